// The steps of a KvCache, and recorded ones.

#include "cache/kv_cache_impl.hpp"

#include <cmath>
#include <limits>

namespace kvarena {
namespace {

constexpr std::int64_t kMaxTokens = std::numeric_limits<std::int32_t>::max();

/// K or V of new tokens: there, and aligned to its elements.
Status check_input(const void* input, DType dtype) noexcept {
  if (input == nullptr) return invalid_argument(Resource::pointer, 0, 1, 1);
  const auto element = static_cast<std::uintptr_t>(bytes_of(dtype));
  const auto past = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(input) % element);
  return check_range(Resource::alignment, past, 0, 0);
}

}  // namespace

// ---- a step
// --------------------------------------------------------------------------------------

Status KvCache::Impl::check_phase(Phase expected) const noexcept {
  if (phase == expected) return {};
  return failed_precondition(Resource::event, step, static_cast<std::uint64_t>(expected),
                             static_cast<std::uint64_t>(phase));
}

Status KvCache::Impl::check_layer(std::int32_t layer) const noexcept {
  if (phase != Phase::recording) {
    if (Status status = check_phase(Phase::planned); !status) return status;
  }
  return check_range(Resource::layer, layer, 0, arena.layout().num_layers() - 1);
}

Status KvCache::Impl::retire_ended() {
  if (Status status = ring->wait(slot_index()); !status) return status;
  const auto k = static_cast<std::uint64_t>(options.steps_in_flight);
  if (step >= k) {
    if (Status status = fences->retire_through(manager, step - k); !status) return status;
  }
  return options.eager_retire ? fences->retire_completed(manager) : Status{};
}

Status KvCache::begin_step() {
  Impl& c = *impl_;
  if (Status status = c.check_phase(Impl::Phase::between); !status) return status;
  c.publisher->begin_step();  // others see a wait that does not end
  if (Status status = c.retire_ended(); !status) {
    c.publisher->publish(c.step);
    return status;
  }
  c.phase = Impl::Phase::begun;
  return {};
}

/// Whether the step's rows have at most max_batch_blocks table entries. While all tables together
/// have fewer, nothing needs to be counted.
Status KvCache::Impl::check_batch_blocks(std::span<const AppendDemand> demands) {
  const std::int64_t block_size = options.layout.block_size_tokens;
  const std::int64_t growth = options.max_step_tokens / block_size + 2 * std::ssize(demands);
  if (tables->stats().entries + growth <= options.max_batch_blocks) return {};
  std::int64_t blocks = 0;
  for (std::size_t i = 0; i < demands.size(); ++i) {
    const AppendDemand& demand = demands[i];
    const Result<SequenceInfo> info = tables->info(demand.sequence);
    if (!info || demand.num_tokens < 0) continue;  // the tables name it
    blocks += (info->length_tokens + demand.num_tokens + block_size - 1) / block_size;
    if (blocks <= options.max_batch_blocks) continue;
    failed_demand = static_cast<std::int64_t>(i);
    return exhausted(Resource::workspace, static_cast<std::uint64_t>(blocks),
                     static_cast<std::uint64_t>(options.max_batch_blocks), demand.sequence.value);
  }
  return {};
}

Result<StepBatch> KvCache::Impl::grow(std::span<const AppendDemand> demands, Urgency urgency,
                                      const RecordedStep* recorded) {
  failed_demand = -1;
  if (Status status = check_phase(Phase::begun); !status) return status;
  if (Status s = check_range(Resource::num_sequences, std::ssize(demands), 0,
                             recorded == nullptr ? options.max_batch_rows : recorded->num_rows);
      !s) {
    return s;
  }
  if (Status status = check_batch_blocks(demands); !status) return status;
  const Result<AppendResult> appended = tables->append(demands, urgency);
  if (!appended) {
    failed_demand = tables->failed_demand();
    return appended.status();
  }
  phase = Phase::grown;
  Result<StepBatch> batch = backend->begin(
      {.slot = slot_index(), .demands = demands, .appended = *appended, .recorded = recorded},
      *tables);
  if (!batch) return batch;
  phase = recorded == nullptr ? Phase::planned : Phase::replaying;
  num_tokens = batch->num_tokens;
  return batch;
}

Result<StepBatch> KvCache::append(std::span<const AppendDemand> demands, Urgency urgency) {
  return impl_->grow(demands, urgency, nullptr);
}

std::int64_t KvCache::failed_demand() const noexcept { return impl_->failed_demand; }

Status KvCache::write_kv(const WriteKvArgs& args) {
  Impl& c = *impl_;
  if (Status status = c.check_layer(args.layer); !status) return status;
  for (const void* input : {args.key, args.value}) {
    if (c.num_tokens == 0) break;
    if (Status status = check_input(input, args.dtype); !status) return status;
  }
  const Result<KvLayerView> view = c.arena.layer_view(args.layer);
  if (!view) return view.status();
  return c.backend->write_kv(*view, args);
}

Status KvCache::attend(const AttendArgs& given) {
  Impl& c = *impl_;
  if (Status status = c.check_layer(given.layer); !status) return status;
  if (given.windowed && c.options.window_tokens == 0) {
    return invalid_argument(Resource::window, 0, 1, kMaxTokens);
  }
  const Result<KvLayerView> view = c.arena.layer_view(given.layer);
  if (!view) return view.status();
  AttendArgs args = given;
  if (args.scale == 0.0F) args.scale = 1.0F / std::sqrt(static_cast<float>(view->key.head_dim));
  return c.backend->attend(*view, args);
}

Status KvCache::end_step() {
  Impl& c = *impl_;
  if (!c.in_step()) return failed_precondition(Resource::event, c.step, 1, 0);
  if (Status status = c.ring->mark(c.slot_index(), c.stream); !status) return status;
  if (c.phase == Impl::Phase::replaying) c.backend->end_replay();
  c.phase = Impl::Phase::between;
  ++c.step;
  c.publisher->publish(c.step);
  return {};
}

Status KvCache::publish() {
  Impl& c = *impl_;
  if (Status status = c.check_phase(Impl::Phase::between); !status) return status;
  const Status retired = c.fences->retire_through(c.manager, c.step);
  c.publisher->publish(c.step);
  return retired;
}

Status KvCache::synchronize() { return impl_->device->synchronize(impl_->stream); }

// ---- a recorded step
// -----------------------------------------------------------------------------

Status KvCache::Impl::check_shape(const RecordedStep& shape) const noexcept {
  if (device->kind() == DeviceKind::host) return unsupported(Resource::device);
  if (Status s = check_range(Resource::num_sequences, shape.num_rows, 1, options.max_batch_rows);
      !s) {
    return s;
  }
  if (Status s =
          check_range(Resource::num_tokens, shape.tokens_per_row, 1, options.max_decode_tokens);
      !s) {
    return s;
  }
  return check_range(Resource::num_tokens, std::int64_t{shape.num_rows} * shape.tokens_per_row, 1,
                     options.max_step_tokens);
}

Result<StepBatch> KvCache::begin_recording(const RecordedStep& shape) {
  Impl& c = *impl_;
  if (Status status = c.check_shape(shape); !status) return status;
  if (Status status = c.check_phase(Impl::Phase::between); !status) return status;
  Result<StepBatch> batch = c.backend->begin_recording(shape);
  if (!batch) return batch;
  c.phase = Impl::Phase::recording;
  c.num_tokens = batch->num_tokens;
  return batch;
}

Status KvCache::end_recording() {
  Impl& c = *impl_;
  if (Status status = c.check_phase(Impl::Phase::recording); !status) return status;
  c.phase = Impl::Phase::between;
  return {};
}

Result<StepBatch> KvCache::append_recorded(const RecordedStep& shape,
                                           std::span<const AppendDemand> demands, Urgency urgency) {
  Impl& c = *impl_;
  c.failed_demand = -1;
  if (Status status = c.check_shape(shape); !status) return status;
  for (std::size_t i = 0; i < demands.size(); ++i) {
    const std::int32_t expected = shape.tokens_per_row;
    if (demands[i].num_tokens == expected) continue;
    c.failed_demand = static_cast<std::int64_t>(i);
    return invalid_argument(Resource::num_tokens, demands[i].num_tokens, expected, expected);
  }
  return c.grow(demands, urgency, &shape);
}

}  // namespace kvarena
