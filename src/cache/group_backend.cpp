#include "cache/group_backend.hpp"

#include "base/half.hpp"
#include "cache/backend_sizes.hpp"
#include "cache/device_batch.hpp"
#include "cache/group_plan.hpp"
#include "cache/host_backend.hpp"
#include "kernels/reference/kv_write.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace kvarena {

Result<std::unique_ptr<Backend>> GroupBackend::create(Device& device, const Arena& arena,
                                                      StreamId stream,
                                                      const BackendOptions& options) {
  Result<CpuWorkers> workers = CpuWorkers::create(options.num_threads);
  if (!workers) return workers.status();
  Result<Workspaces> workspaces = Workspaces::create(device, options.workspaces);
  if (!workspaces) return workspaces.status();
  std::unique_ptr<GroupBackend> backend(
      new GroupBackend(device, arena, stream, std::move(*workers), std::move(*workspaces)));
  if (Status status = backend->create_groups(arena, options); !status) return status;
  backend->create_steps(arena, options);
  return std::unique_ptr<Backend>(std::move(backend));
}

/// Keeps the shape of each group, from its first layer.
Status GroupBackend::create_groups(const Arena& arena, const BackendOptions& options) {
  for (std::size_t part = 0; part < layout_.parts().size(); ++part) {
    if (group_of(part) < views_.size()) continue;
    views_.resize(group_of(part));  // groups of states have no view
    limits_.resize(group_of(part));
    first_parts_.resize(group_of(part));
    const auto view = arena.layer_view(layout_.parts()[part].layout.planes()[0].layer);
    if (!view) return view.status();
    views_.push_back(*view);
    limits_.push_back(host_limits(options, *view));
    first_parts_.push_back(part);
  }
  return {};
}

/// Makes the steps of the ring. Calls of write_cross have places of their own, one a row and layer.
void GroupBackend::create_steps(const Arena& arena, const BackendOptions& options) {
  const std::size_t num_parts = layout_.parts().size();
  std::size_t cross_layers = 0;
  for (const PagedGroup& group : layout_.groups()) {
    if (group.kind == PagedKind::cross) cross_layers += static_cast<std::size_t>(group.num_layers);
  }
  const auto layers = static_cast<std::size_t>(layout_.num_layers());
  const auto num_steps = static_cast<std::size_t>(options.limits.steps_in_flight);
  steps_.reserve(num_steps);
  while (steps_.size() < num_steps) {
    const std::size_t first = steps_.size() * views_.size();
    Step& step = steps_.emplace_back();
    for (const GroupLayout::Part& part : layout_.parts()) {
      const std::int64_t longest = options.max_sequence_tokens / part.layout.block_size() + 1;
      step.parts.emplace_back(options.limits, longest);
    }
    if (options.scrubs) step.scrubs = StepScrubs(arena, options.limits);
    step.states.emplace_back(layout_,
                             StateStepLimits{options.limits.max_rows, options.limits.max_tokens,
                                             options.checkpoint_every_tokens});
    step.slots =
        LazyArray<std::int64_t>(static_cast<std::size_t>(options.limits.max_tokens) * num_parts);
    for (std::size_t g = 0; g < views_.size(); ++g) {
      step.workspace.push_back(workspaces_.at(first + g));
    }
    step.plans.resize(views_.size());
    step.operations.resize(layers * HostBackend::kCallsPerLayer + 1 +
                           cross_layers * static_cast<std::size_t>(options.limits.max_rows));
  }
}

// ---- a step ------------------------------------------------------------------------------------

/// Copies tables, slots and copies of every part, so that later steps may change them while the
/// work runs. A row has the entries of its kept blocks only.
Status GroupBackend::capture(Step& step, BlockTables& tables, const StepGrowth& growth) {
  const AppendResult& appended = growth.appended;
  const std::size_t rows = growth.demands.size();
  const std::size_t num_tables = layout_.parts().size() + layout_.states().size();
  step.num_tokens = static_cast<std::int64_t>(appended.slots.size() / num_tables);
  std::copy_n(appended.slots.begin(), step.parts.size() * appended.slots.size() / num_tables,
              step.slots.begin());
  step.states.front().capture(appended);
  for (std::size_t part = 0; part < step.parts.size(); ++part) {
    StepSlot& slot = step.parts[part];
    slot.num_rows = static_cast<std::int32_t>(rows);
    slot.num_tokens = step.num_tokens;
    slot.num_copies = 0;
    for (std::size_t i = 0; !step.scrubs.are_on() && i < appended.copies.size(); ++i) {
      if (appended.copy_groups[i] != static_cast<std::int32_t>(part)) continue;
      slot.copies[slot.num_copies++] = appended.copies[i];
    }
    slot.q_offsets[0] = 0;
    for (std::size_t row = 0; row < rows; ++row) {
      slot.sequences[row] = growth.demands[row].sequence;
      slot.q_offsets[row + 1] = slot.q_offsets[row] + growth.demands[row].num_tokens;
    }
    const Result<BatchView> view =
        tables.view(std::span(slot.sequences.data(), rows), static_cast<std::int32_t>(part));
    if (!view) return view.status();
    // A row whose first blocks were given up would begin in front of the entries.
    const std::span offsets(view->tables.row_offsets, rows);
    const std::int64_t lead = rows == 0 ? 0 : -std::min<std::int64_t>(std::ranges::min(offsets), 0);
    std::int64_t num_entries = 0;
    for (std::size_t row = 0; row < rows; ++row) {
      slot.row_offsets[row] = lead + offsets[row];
      slot.row_slots[row] = static_cast<std::int32_t>(slot.row_offsets[row]);
      slot.seq_lens[row] = view->seq_lens[row];
      slot.num_blocks[row] = view->num_blocks[row];
      num_entries = std::max(num_entries, slot.row_offsets[row] + slot.num_blocks[row]);
    }
    std::copy_n(view->tables.entries, std::max<std::int64_t>(num_entries - lead, 0),
                slot.entries.begin() + lead);
  }
  return {};
}

/// Plans the step's attention, once for each group.
Status GroupBackend::plan(Step& step) {
  const auto workspace_bytes = static_cast<std::size_t>(workspaces_.bytes());
  for (std::size_t g = 0; g < views_.size(); ++g) {
    if (layout_.groups()[g].kind == PagedKind::state) continue;
    const StepSlot& slot = step.parts[first_parts_[g]];
    AttentionArgs shape;
    shape.kv = views_[g];
    shape.batch = slot.batch();
    shape.q_offsets = slot.q_offsets.data();
    shape.num_q_heads = limits_[g].num_q_heads;
    shape.scale = 1.0F;
    set_visible(shape, layout_.groups()[g]);
    const Result<AttentionPlan> planned =
        plan_attention(shape, limits_[g], std::span(step.workspace[g], workspace_bytes));
    if (!planned) return planned.status();
    step.plans[g] = *planned;
  }
  return {};
}

Result<StepBatch> GroupBackend::begin(const StepGrowth& growth, BlockTables& tables) {
  Step& step = steps_[growth.slot];
  if (Status s = capture(step, tables, growth); !s) return s;
  if (Status s = plan(step); !s) return s;
  step_ = &step;
  step.num_operations = 1;
  Operation& first =
      step.operations.front() = {.backend = this, .step = &step, .append = {}, .attention = {}};
  if (step.scrubs.capture(growth.scrubs) || !growth.appended.copies.empty()) {
    if (Status s = device_.launch_host(run_copies, &first, stream_); !s) return s;
  }
  const auto num_slots = step.parts.size() * static_cast<std::size_t>(step.num_tokens);
  return StepBatch{.slots = std::span(step.slots.data(), num_slots),
                   .device_slots = step.slots.data(),
                   .num_tokens = step.num_tokens,
                   .num_copies = std::ssize(growth.appended.copies),
                   .new_blocks = growth.appended.new_blocks,
                   .states = step.states.front().slots(),
                   .device_states = step.states.front().device_slots()};
}

DeviceBatch GroupBackend::device_batch_of_part(std::int32_t part) const noexcept {
  DeviceBatch batch = kvarena::device_batch_of(step_->parts[static_cast<std::size_t>(part)]);
  batch.slots = slots_of(*step_, static_cast<std::size_t>(part));
  return batch;
}

/// Returns the next free operation of the step.
Result<GroupBackend::Operation*> GroupBackend::next_operation() {
  if (step_->num_operations == step_->operations.size()) {
    return limit_exceeded(Resource::step, step_->num_operations, step_->operations.size() - 1,
                          Option::none);
  }
  Operation* operation = &step_->operations[step_->num_operations];
  operation->backend = this;
  operation->step = step_;
  return operation;
}

/// Queues an operation, which counts as used only when that succeeds.
Status GroupBackend::queue(HostFunction function, Operation* operation) {
  const Status status = device_.launch_host(function, operation, stream_);
  if (status) ++step_->num_operations;
  return status;
}

Status GroupBackend::queue_append(HostFunction function, const KvLayerView& kv,
                                  const WriteKvArgs& args) {
  Result<Operation*> operation = next_operation();
  if (!operation) return operation.status();
  (*operation)->append = {.kv = kv,
                          .key = args.key,
                          .value = args.value,
                          .dtype = args.dtype,
                          .slots = slots_of(*step_, part_of(args.layer)),
                          .num_tokens = step_->num_tokens,
                          .key_token_stride_bytes = args.key_token_stride_bytes,
                          .value_token_stride_bytes = args.value_token_stride_bytes};
  return queue(function, *operation);
}

Status GroupBackend::write_kv(const KvLayerView& kv, const WriteKvArgs& args) {
  if (is_cpu_float(args.dtype)) return queue_append(run_append, kv, args);
  return unsupported(Resource::dtype, static_cast<std::uint64_t>(args.dtype));
}

Status GroupBackend::write_index(const IndexView& index, const WriteIndexArgs& args) {
  return queue_append(run_index, layer_of(index),
                      {.layer = args.layer,
                       .key = args.key,
                       .dtype = args.dtype,
                       .key_token_stride_bytes = args.key_token_stride_bytes});
}

Status GroupBackend::write_cross(const KvLayerView& kv, const WriteCrossArgs& args) {
  if (!is_cpu_float(args.dtype)) {
    return unsupported(Resource::dtype, static_cast<std::uint64_t>(args.dtype));
  }
  const std::size_t part = part_of(args.layer);
  const StepSlot& slot = step_->parts[part];
  const SequenceId* const first = slot.sequences.data();
  const SequenceId* const found = std::find(first, first + slot.num_rows, args.sequence);
  if (found == first + slot.num_rows) return not_found(Resource::sequence, args.sequence.value);
  Result<Operation*> operation = next_operation();
  if (!operation) return operation.status();
  (*operation)->part = part;
  (*operation)->row = static_cast<std::int32_t>(found - first);
  (*operation)->append = {.kv = kv,
                          .key = args.key,
                          .value = args.value,
                          .dtype = args.dtype,
                          .num_tokens = slot.seq_lens[static_cast<std::size_t>(found - first)],
                          .key_token_stride_bytes = args.key_token_stride_bytes,
                          .value_token_stride_bytes = args.value_token_stride_bytes};
  return queue(run_cross, *operation);
}

Status GroupBackend::attend(const KvLayerView& kv, const AttendArgs& args) {
  const std::size_t part = part_of(args.layer);
  const std::size_t group = group_of(part);
  const StepSlot& slot = step_->parts[part];
  AttentionArgs attention{.kv = kv,
                          .batch = slot.batch(),
                          .q_offsets = slot.q_offsets.data(),
                          .q = args.q,
                          .q_dtype = args.q_dtype,
                          .out = args.out,
                          .out_dtype = args.out_dtype,
                          .lse = args.lse,
                          .num_q_heads = limits_[group].num_q_heads,
                          .scale = args.scale,
                          .soft_cap = args.soft_cap,
                          .scales = {},
                          .sinks = args.sinks,
                          .tree_mask = args.tree_mask,
                          .q_token_stride_bytes = args.q_token_stride_bytes,
                          .out_token_stride_bytes = args.out_token_stride_bytes};
  set_visible(attention, layout_.groups()[group]);
  const AttentionPlan& plan = step_->plans[group];
  // What the worker would refuse is refused here: a failed operation stops the stream.
  if (Status status = validate(attention); !status) return status;
  if (Status status = validate(plan, attention); !status) return status;
  Result<Operation*> operation = next_operation();
  if (!operation) return operation.status();
  (*operation)->attention = attention;
  (*operation)->plan = &plan;
  return queue(run_attention, *operation);
}

// ---- on the stream -----------------------------------------------------------------------------

/// Copies the bytes of whole blocks or scrubs them, part by part, and copies those of states.
Status GroupBackend::run_copies(void* operation) {
  const auto& o = *static_cast<const Operation*>(operation);
  const GroupLayout& layout = o.backend->layout_;
  o.step->scrubs.run();
  for (std::size_t part = 0; part < o.step->parts.size(); ++part) {
    const PagedBlocks& blocks = layout.parts()[part].blocks;
    const StepSlot& slot = o.step->parts[part];
    for (std::size_t i = 0; i < slot.num_copies; ++i) {
      std::memcpy(o.backend->base_ + slot.copies[i].target.value * blocks.id_stride_bytes,
                  o.backend->base_ + slot.copies[i].source.value * blocks.id_stride_bytes,
                  static_cast<std::size_t>(blocks.block_bytes));
    }
  }
  o.step->states.front().run_copies(layout, o.backend->base_);
  return {};
}

Status GroupBackend::run_append(void* operation) {
  const auto& o = *static_cast<const Operation*>(operation);
  return append_kv(o.append, &o.backend->workers_);
}

Status GroupBackend::run_index(void* operation) {
  const AppendArgs& args = static_cast<const Operation*>(operation)->append;
  kernels::reference::append({.kv = args.kv,
                              .key = args.key,
                              .value = nullptr,
                              .slots = args.slots,
                              .num_tokens = args.num_tokens,
                              .dtype = args.dtype,
                              .key_token_stride = args.key_token_stride_bytes});
  return {};
}

/// Finds the slots of an encoder's tokens in the row's table, some at a time.
Status GroupBackend::run_cross(void* operation) {
  constexpr std::int64_t kAtOnce = 256;
  const auto& o = *static_cast<const Operation*>(operation);
  const StepSlot& slot = o.step->parts[o.part];
  const BatchView batch = slot.batch();
  const KvLayerView& kv = o.append.kv;
  const auto stride = [&](std::int64_t given, const PlaneView& plane) {
    return given != 0 ? given : plane.num_heads * plane.head_dim * bytes_of(o.append.dtype);
  };
  const std::int64_t key_stride = stride(o.append.key_token_stride_bytes, kv.key);
  const std::int64_t value_stride = stride(o.append.value_token_stride_bytes, kv.value);
  std::array<std::int64_t, kAtOnce> slots;
  for (std::int64_t first = 0; first < o.append.num_tokens; first += kAtOnce) {
    const std::int64_t count = std::min(kAtOnce, o.append.num_tokens - first);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t token = first + i;
      const BlockId block = batch.tables.block(o.row, token / kv.block_size);
      slots[static_cast<std::size_t>(i)] =
          block.value * std::int64_t{kv.block_size} + token % kv.block_size;
    }
    AppendArgs args = o.append;
    args.slots = slots.data();
    args.num_tokens = count;
    args.key = static_cast<const std::byte*>(o.append.key) + first * key_stride;
    if (o.append.value != nullptr) {
      args.value = static_cast<const std::byte*>(o.append.value) + first * value_stride;
    }
    if (Status s = append_kv(args, &o.backend->workers_); !s) return s;
  }
  return {};
}

Status GroupBackend::run_attention(void* operation) {
  const auto& o = *static_cast<const Operation*>(operation);
  return kvarena::run_attention(*o.plan, o.attention, o.backend->workers_);
}

}  // namespace kvarena
