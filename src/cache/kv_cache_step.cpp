// The steps of a KvCache.

#include "attention/checks.hpp"
#include "base/half.hpp"
#include "base/range_checks.hpp"
#include "cache/kv_cache_impl.hpp"
#include "kvarena/device/cuda_device.hpp"
#include "step/event_wait.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvarena {
namespace {

constexpr std::int64_t kMaxTokens = std::numeric_limits<std::int32_t>::max();

/// Checks K or V of new tokens: not null, aligned to its elements, and a stride that keeps tokens
/// apart.
Status check_input(const void* input, std::int64_t stride, const PlaneView& plane,
                   DType dtype) noexcept {
  if (input == nullptr) return invalid_argument(Resource::pointer, 0, 1, 1);
  const auto element = static_cast<std::uintptr_t>(bytes_of(dtype));
  const auto past = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(input) % element);
  if (Status status = check_range(Resource::alignment, past, 0, 0); !status) return status;
  return attention::token_stride(attention::Check::input_stride, stride, plane.num_heads,
                                 plane.head_dim, dtype);
}

/// Checks K and V of a layer. A latent has its V in K.
template <class Args>
Status check_inputs(const KvLayerView& kv, bool has_groups, const Args& args) noexcept {
  if (Status s = check_input(args.key, args.key_token_stride_bytes, kv.key, args.dtype); !s) {
    return s;
  }
  if (has_groups && kv.value.base == kv.key.base) {
    return args.value == nullptr ? Status{} : invalid_argument(Resource::pointer, 1, 0, 0);
  }
  return check_input(args.value, args.value_token_stride_bytes, kv.value, args.dtype);
}

}  // namespace

/// Checks that `call` may come now and that the layer exists.
Status KvCache::Impl::check_layer(StepCall call, std::int32_t layer) const noexcept {
  if (phase != StepPhase::recording) {
    if (Status status = check_phase(call, StepPhase::planned); !status) return status;
  }
  const std::int32_t last = arena.num_layers() - 1;
  if (Status status = check_range(Resource::layer, layer, 0, last); !status) return status;
  const bool exists = arena.groups() == nullptr || arena.groups()->has_layer(layer);
  return exists ? Status{} : wrong_layer(layer, last, WantedLayer::with_kv);
}

bool KvCache::Impl::is_cross(std::int32_t layer) const noexcept {
  const GroupLayout* const groups = arena.groups();
  if (groups == nullptr) return false;
  const auto part = static_cast<std::size_t>(groups->part_of(layer));
  const auto group = static_cast<std::size_t>(groups->parts()[part].group);
  return groups->groups()[group].kind == PagedKind::cross;
}

Status KvCache::Impl::check_writes(std::int32_t layer, bool cross) const noexcept {
  const std::int32_t owner = owner_of(layer);
  if (owner != layer) return invalid_argument(Resource::layer, layer, owner, owner);
  if (is_cross(layer) == cross) return {};
  return wrong_layer(layer, arena.num_layers() - 1,
                     cross ? WantedLayer::of_encoder : WantedLayer::of_tokens);
}

/// The rows of a recording are not known before its graph runs.
Status KvCache::Impl::check_encoders(std::int32_t layer, std::int32_t owner,
                                     bool is_written) noexcept {
  if (phase == StepPhase::recording) return {};
  if (is_written) encoders->note_batch(owner, step);
  const std::optional<SequenceId> lacking = encoders->lacking(owner, *tables);
  return lacking ? encoder_not_written(layer, lacking->value) : Status{};
}

/// Waits for the slot that this step reuses, then retires what step n - k and earlier ones fenced.
Status KvCache::Impl::retire_ended() {
  if (Status status = ring->wait(slot_index()); !status) return status;
  notice_lost_steps(step);
  const auto k = static_cast<std::uint64_t>(options.steps_in_flight);
  if (step >= k) {
    if (Status status = check_taken(step - k); !status) return status;
    if (Status status = fences->retire_through(manager, step - k); !status) return status;
  }
  return options.eager_retire ? fences->retire_completed(manager) : Status{};
}

/// A wait for an event in front of the step's work keeps the order of steps on several streams. On
/// a captured stream the wait would become part of the graph.
Status KvCache::Impl::order_behind_last(StreamId next) {
  if (next == stream) return {};
  const auto* cuda = dynamic_cast<const CudaDevice*>(device);
  for (const StreamId one : {stream, next}) {
    if (cuda == nullptr) break;
    const Result<bool> captured = cuda->is_captured(one);
    if (captured && *captured) return failed_precondition(Resource::stream, one.value);
    if (Status status = unless_destroyed(captured.status()); !status) return status;
  }
  return ring->pass(stream, next);
}

/// A failed begin publishes, so that other threads do not see a wait without end.
Status KvCache::begin_step(const StepOptions& options) {
  Impl& c = *impl_;
  if (Status status = c.check_phase(StepCall::begin_step, StepPhase::between); !status) {
    return status;
  }
  const StreamId stream = options.stream == StreamId{} ? c.stream : options.stream;
  if (Status status = c.order_behind_last(stream); !status) return status;
  c.publisher->begin_step();  // other threads then see a wait that does not end
  if (Status status = c.retire_ended(); !status) {
    if (status.code == StatusCode::device_error) c.distrust(c.find_lost_step(c.step));
    c.publish();
    return status;
  }
  c.stream = stream;
  c.backend->use(stream);
  if (!c.rows_of_steps.empty()) c.rows_of_steps[c.slot_index()].clear();
  c.phase = StepPhase::begun;
  return {};
}

/// Appends for both kinds of steps. When the backend fails, the append is undone.
Result<StepBatch> KvCache::Impl::grow(std::span<const AppendDemand> demands, Urgency urgency,
                                      const RecordedStep* recorded) {
  failed_demand = -1;
  if (Status status = check_phase(StepCall::append, StepPhase::begun); !status) return status;
  if (recorded != nullptr) {
    if (Status s = check_range(Resource::num_sequences, std::ssize(demands), 0, recorded->num_rows);
        !s) {
      return s;
    }
  }
  if (Status status = check_batch(demands); !status) return status;
  const Result<AppendResult> appended = tables->append(demands, urgency);
  if (!appended) {
    failed_demand = tables->failed_demand();
    Status status = appended.status();
    if (status.option == Option::max_append_tokens) status.option = Option::max_step_tokens;
    return status;
  }
  std::span<const ScrubPlan> scrub_plans;
  AppendResult to_begin = *appended;
  if (scrubs) {
    scrub_plans = scrubs->plan(manager, *tables, demands, *appended);
    if (!arena.groups()) to_begin.copies = {};  // with groups, the backend leaves out K's and V's
  }
  Result<StepBatch> batch = backend->begin({.slot = slot_index(),
                                            .demands = demands,
                                            .appended = to_begin,
                                            .scrubs = scrub_plans,
                                            .recorded = recorded},
                                           *tables);
  if (!batch) {
    static_cast<void>(tables->undo_append(backend->copies_are_queued()));
    if (scrubs) scrubs->forget();
    return batch;
  }
  batch->num_copies = std::ssize(appended->copies);
  phase = recorded == nullptr ? StepPhase::planned : StepPhase::replaying;
  serials[slot_index()] = backend->staged_serial();
  num_tokens = batch->num_tokens;
  note_batch(*appended);
  ++batches;
  kv_written.clear();
  index_written.clear();
  note_rows(demands, *appended);
  return batch;
}

Result<StepBatch> KvCache::append(std::span<const AppendDemand> demands, Urgency urgency) {
  return impl_->grow(demands, urgency, nullptr);
}

std::int64_t KvCache::failed_demand() const noexcept { return impl_->failed_demand; }

Status KvCache::write_kv(const WriteKvArgs& args) {
  Impl& c = *impl_;
  if (Status status = c.check_layer(StepCall::write_kv, args.layer); !status) return status;
  if (Status s = check_enum(Resource::dtype, args.dtype, DType::latent_fp8); !s) return s;
  if (Status s = c.check_writes(args.layer, false); !s) return s;
  const Result<KvLayerView> view = c.arena.layer_view(args.layer);
  if (!view) return view.status();
  if (c.num_tokens > 0) {
    if (Status s = check_inputs(*view, c.arena.groups() != nullptr, args); !s) return s;
  }
  c.kv_written.begin();
  const Status queued = c.backend->write_kv(*view, args);
  if (queued) c.kv_written.note(static_cast<std::size_t>(args.layer), c.batches);
  return queued;
}

Status KvCache::write_index(const WriteIndexArgs& args) {
  Impl& c = *impl_;
  if (Status s = c.check_layer(StepCall::write_index, args.layer); !s) return s;
  const GroupLayout* const groups = c.arena.groups();
  if (groups == nullptr || !groups->has_index(args.layer)) {
    return wrong_layer(args.layer, c.arena.num_layers() - 1, WantedLayer::with_index);
  }
  if (Status s = check_enum(Resource::dtype, args.dtype, DType::latent_fp8); !s) return s;
  if (!is_cpu_float(args.dtype)) {
    return unsupported(Resource::dtype, static_cast<std::uint64_t>(args.dtype));
  }
  const Result<IndexView> view = c.arena.index_view(args.layer);
  if (!view) return view.status();
  if (c.num_tokens > 0) {
    if (Status s = check_input(args.key, args.key_token_stride_bytes, view->index, args.dtype);
        !s) {
      return s;
    }
  }
  c.index_written.begin();
  const Status queued = c.backend->write_index(*view, args);
  if (queued) c.index_written.note(static_cast<std::size_t>(args.layer), c.batches);
  return queued;
}

Status KvCache::write_cross(const WriteCrossArgs& args) {
  Impl& c = *impl_;
  if (Status s = c.check_layer(StepCall::write_kv, args.layer); !s) return s;
  if (Status s = check_enum(Resource::dtype, args.dtype, DType::latent_fp8); !s) return s;
  if (Status s = c.check_writes(args.layer, true); !s) return s;
  const Result<KvLayerView> view = c.arena.layer_view(args.layer);
  if (!view) return view.status();
  if (Status s = check_inputs(*view, c.arena.groups() != nullptr, args); !s) return s;
  const Status queued = c.backend->write_cross(*view, args);
  if (queued && c.phase != StepPhase::recording) {
    c.encoders->note(args.sequence, args.layer, c.step);
  }
  return queued;
}

Status KvCache::attend(const AttendArgs& given) {
  Impl& c = *impl_;
  if (Status status = c.check_layer(StepCall::attend, given.layer); !status) return status;
  for (const DType dtype : {given.q_dtype, given.out_dtype}) {
    if (Status s = check_enum(Resource::dtype, dtype, DType::latent_fp8); !s) return s;
  }
  const std::int32_t owner = c.owner_of(given.layer);
  const bool is_cross = c.is_cross(given.layer);
  if (is_cross) {
    if (Status s = c.check_encoders(given.layer, owner, given.kv_is_written); !s) return s;
  } else if (c.num_tokens > 0 && !given.kv_is_written &&
             !c.kv_written.has(static_cast<std::size_t>(owner), c.batches)) {
    return kv_not_written(given.layer);
  }
  if (given.windowed && c.arena.groups() != nullptr) {
    return wrong_layer(given.layer, c.arena.num_layers() - 1, WantedLayer::unwindowed);
  }
  if (given.windowed && c.options.window_tokens == 0) {
    return invalid_argument(Resource::window, 0, 1, kMaxTokens);
  }
  const Result<KvLayerView> view = c.arena.layer_view(given.layer);
  if (!view) return view.status();
  if (given.kv_is_written && !is_cross) {
    c.kv_written.begin();
    c.kv_written.note(static_cast<std::size_t>(owner), c.batches);
  }
  AttendArgs args = given;
  if (args.scale == 0.0F) args.scale = 1.0F / std::sqrt(static_cast<float>(view->key.head_dim));
  return c.backend->attend(*view, args);
}

/// Marks the end of the step's work, for which later steps wait.
Status KvCache::Impl::close_step() {
  if (Status status = ring->mark(slot_index(), stream); !status) return status;
  if (phase == StepPhase::replaying) backend->end_replay();
  const bool has_groups = arena.groups() != nullptr;
  if (!has_groups) tables->settle_append();
  notice_lost_steps(step + 1);
  settle_tokens();
  if (has_groups) tables->settle_append();  // windows give up blocks that are published now
  phase = StepPhase::between;
  ++step;
  publish();
  return {};
}

Status KvCache::end_step() {
  Impl& c = *impl_;
  if (!c.in_step()) return out_of_order(StepCall::end_step, c.phase, c.step);
  return c.close_step();
}

/// Gives the step's sequences the state that they had before its append.
Status KvCache::Impl::take_back_append() {
  bool copies_are_made = true;  // they were queued, or will never be made
  if (phase == StepPhase::replaying) {
    const Result<bool> has_run = backend->abort_replay(*tables);
    if (!has_run) return has_run.status();
    // Scrubs are queued in front of the graph; the copies of states, in groups, are in it.
    copies_are_made = *has_run || (scrubs && arena.groups() == nullptr);
    if (!*has_run) serials[slot_index()] = 0;
  }
  phase = StepPhase::begun;
  if (told) told->clear();
  const Status undone = tables->undo_append(copies_are_made);
  if (scrubs) scrubs->note_abort();
  return undone;
}

Status KvCache::abort_step() {
  Impl& c = *impl_;
  if (!c.in_step()) return out_of_order(StepCall::abort_step, c.phase, c.step);
  c.notice_lost_steps(c.step);  // copies on write stay, made or not
  if (c.phase != StepPhase::begun) {
    if (Status status = c.take_back_append(); !status) return status;
    if (c.encoders) c.encoders->forget_since(c.step);
  }
  return c.close_step();
}

void KvCache::Impl::publish() noexcept {
  publisher->publish({.steps_ended = step,
                      .steps_lost = num_steps_lost,
                      .missed_launches = backend->misses(),
                      .awaited_tickets = fences->num_of_steps()});
}

Status KvCache::publish() {
  Impl& c = *impl_;
  if (Status status = c.check_phase(StepCall::publish, StepPhase::between); !status) return status;
  const Status retired = c.fences->retire_through(c.manager, c.step);
  c.notice_lost_steps(c.step);
  c.publish();
  return retired;
}

Status KvCache::synchronize() {
  Impl& c = *impl_;
  if (Status s = unless_destroyed(c.device->synchronize(c.stream)); !s) {
    c.distrust(c.find_lost_step(c.step));
    return s;
  }
  c.notice_lost_steps(c.step);
  return c.step == 0 || c.phase != StepPhase::between ? Status{} : c.check_taken(c.step - 1);
}

}  // namespace kvarena
