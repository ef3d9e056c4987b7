#include "cache/host_backend.hpp"

#include "base/half.hpp"
#include "cache/backend_sizes.hpp"
#include "kernels/reference/kv_write.hpp"

#include <algorithm>
#include <utility>

namespace kvarena {
namespace {

/// Returns the byte ranges of one block: one range in block-major order, one for each plane in
/// layer-major order.
std::vector<BlockRegion> regions_of(const Arena& arena) {
  const KvLayout& layout = arena.layout();
  if (arena.order() == BlockOrder::block_major) {
    return {{arena.base(), layout.block_bytes(), layout.block_bytes()}};
  }
  std::vector<BlockRegion> regions;
  const auto num_planes = static_cast<std::int32_t>(layout.planes().size());
  for (std::int32_t plane = 0; plane < num_planes; ++plane) {
    if (layout.plane_bytes(plane) == 0) continue;  // an alias
    regions.push_back({arena.base() + layout.plane_offset(plane, arena.order(), arena.num_blocks()),
                       layout.block_stride(plane, arena.order()), layout.plane_bytes(plane)});
  }
  return regions;
}

}  // namespace

Result<std::unique_ptr<Backend>> HostBackend::create(Device& device, const Arena& arena,
                                                     StreamId stream,
                                                     const BackendOptions& options) {
  Result<CpuWorkers> workers = CpuWorkers::create(options.num_threads);
  if (!workers) return workers.status();
  const Result<KvLayerView> view = arena.layer_view(0);
  if (!view) return view.status();
  Result<Workspaces> workspaces = Workspaces::create(device, options.workspaces);
  if (!workspaces) return workspaces.status();
  std::unique_ptr<HostBackend> backend(
      new HostBackend(device, arena, stream, std::move(*workers), std::move(*workspaces)));
  backend->planned_view_ = *view;
  backend->window_tokens_ = options.window_tokens;
  backend->limits_ = host_limits(options, *view);
  backend->regions_ = regions_of(arena);
  backend->create_steps(arena, options);
  return std::unique_ptr<Backend>(std::move(backend));
}

/// Makes the steps of the ring: each has its operations, its workspaces and its list of scrubs.
void HostBackend::create_steps(const Arena& arena, const BackendOptions& options) {
  const auto layers = static_cast<std::size_t>(arena.layout().num_layers());
  const auto num_steps = static_cast<std::size_t>(options.limits.steps_in_flight);
  const auto num_plans = static_cast<std::size_t>(num_windows(options));
  const std::int64_t max_scrubs =
      options.limits.max_rows +
      ScrubPlanner::max_clears({.block_size_tokens = options.block_size_tokens}, options.limits);
  steps_.reserve(num_steps);
  while (steps_.size() < num_steps) {
    const std::size_t first = steps_.size() * num_plans;
    Step& step = steps_.emplace_back(options.limits);
    if (options.scrubs) {
      step.scrubs = LazyArray<kernels::BlockScrub>(static_cast<std::size_t>(max_scrubs));
    }
    step.operations.resize(layers * kCallsPerLayer + 1);
    for (std::size_t i = 0; i < num_plans; ++i) step.workspace[i] = workspaces_.at(first + i);
  }
}

// ---- a step ------------------------------------------------------------------------------------

/// Plans the step's attention, without a window and with it.
Status HostBackend::plan(Step& step) {
  AttentionArgs shape;
  shape.kv = planned_view_;
  shape.batch = step.slot.batch();
  shape.q_offsets = step.slot.q_offsets.data();
  shape.num_q_heads = limits_.num_q_heads;
  shape.scale = 1.0F;
  const auto workspace_bytes = static_cast<std::size_t>(workspaces_.bytes());
  for (std::size_t i = 0; i < 2 && step.workspace[i] != nullptr; ++i) {
    shape.window_tokens = i == 0 ? 0 : window_tokens_;
    Result<AttentionPlan> plan =
        plan_attention(shape, limits_, std::span(step.workspace[i], workspace_bytes));
    if (!plan) return plan.status();
    step.plan[i] = *plan;
  }
  return {};
}

/// Queues the work in front of the step's writes: its copies, or its scrubs, which include the
/// copies.
Status HostBackend::queue_copies(Step& step, std::span<const ScrubPlan> plans) {
  const ScrubPlan scrubs = plans.empty() ? ScrubPlan{} : plans[0];
  step.num_operations = 1;
  Operation& operation = step.operations.front();
  operation.backend = this;
  if (const std::size_t count = scrubs.copies.size() + scrubs.clears.size(); count > 0) {
    const auto clears = std::copy(scrubs.copies.begin(), scrubs.copies.end(), step.scrubs.begin());
    std::copy(scrubs.clears.begin(), scrubs.clears.end(), clears);
    operation.scrubs = std::span(step.scrubs.data(), count);
    return device_.launch_host(run_scrubs, &operation, stream_);
  }
  if (step.slot.num_copies == 0) return {};
  operation.copies = std::span(step.slot.copies.data(), step.slot.num_copies);
  return device_.launch_host(run_copies, &operation, stream_);
}

/// Captures the tables first, so that later steps may change them while the work runs.
Result<StepBatch> HostBackend::begin(const StepGrowth& growth, BlockTables& tables) {
  Step& step = steps_[growth.slot];
  StepSlot& slot = step.slot;
  if (Status s = capture_step(slot, tables, growth.demands, growth.appended); !s) return s;
  if (Status s = plan(step); !s) return s;
  step_ = &step;
  if (Status s = queue_copies(step, growth.scrubs); !s) return s;
  return StepBatch{.slots = std::span(slot.slots.data(), static_cast<std::size_t>(slot.num_tokens)),
                   .device_slots = slot.slots.data(),
                   .num_tokens = slot.num_tokens,
                   .num_copies = static_cast<std::int64_t>(slot.num_copies),
                   .new_blocks = growth.appended.new_blocks};
}

/// Returns the next free operation of the step.
Result<HostBackend::Operation*> HostBackend::next_operation() {
  if (step_->num_operations == step_->operations.size()) {
    return limit_exceeded(Resource::step, step_->num_operations, step_->operations.size() - 1,
                          Option::none);
  }
  Operation* operation = &step_->operations[step_->num_operations];
  operation->backend = this;
  return operation;
}

/// Queues an operation, which counts as used only when that succeeds.
Status HostBackend::queue(HostFunction function, Operation* operation) {
  const Status status = device_.launch_host(function, operation, stream_);
  if (status) ++step_->num_operations;
  return status;
}

Status HostBackend::write_kv(const KvLayerView& kv, const WriteKvArgs& args) {
  if (!is_cpu_float(args.dtype)) {
    return unsupported(Resource::dtype, static_cast<std::uint64_t>(args.dtype));
  }
  Result<Operation*> operation = next_operation();
  if (!operation) return operation.status();
  (*operation)->append = {.kv = kv,
                          .key = args.key,
                          .value = args.value,
                          .dtype = args.dtype,
                          .slots = step_->slot.slots.data(),
                          .num_tokens = step_->slot.num_tokens,
                          .key_token_stride_bytes = args.key_token_stride_bytes,
                          .value_token_stride_bytes = args.value_token_stride_bytes};
  return queue(run_append, *operation);
}

Status HostBackend::attend(const KvLayerView& kv, const AttendArgs& args) {
  const AttentionArgs attention{.kv = kv,
                                .batch = step_->slot.batch(),
                                .q_offsets = step_->slot.q_offsets.data(),
                                .q = args.q,
                                .q_dtype = args.q_dtype,
                                .out = args.out,
                                .out_dtype = args.out_dtype,
                                .lse = args.lse,
                                .num_q_heads = limits_.num_q_heads,
                                .scale = args.scale,
                                .window_tokens = args.windowed ? window_tokens_ : 0,
                                .soft_cap = args.soft_cap,
                                .scales = {},
                                .sinks = args.sinks,
                                .tree_mask = args.tree_mask,
                                .q_token_stride_bytes = args.q_token_stride_bytes,
                                .out_token_stride_bytes = args.out_token_stride_bytes};
  const AttentionPlan& plan = step_->plan[args.windowed ? 1 : 0];
  // What the worker would refuse is refused here: a failed operation stops the stream.
  if (Status status = validate(attention); !status) return status;
  if (Status status = validate(plan, attention); !status) return status;
  Result<Operation*> operation = next_operation();
  if (!operation) return operation.status();
  (*operation)->attention = attention;
  (*operation)->plan = &plan;
  return queue(run_attention, *operation);
}

Status HostBackend::run_copies(void* operation) {
  const auto& o = *static_cast<const Operation*>(operation);
  return copy_blocks(o.copies, o.backend->regions_, o.backend->num_blocks_);
}

Status HostBackend::run_scrubs(void* operation) {
  const auto& o = *static_cast<const Operation*>(operation);
  kernels::ScrubParams scrub = o.backend->scrub_;
  scrub.scrubs = o.scrubs.data();
  scrub.num_scrubs = std::ssize(o.scrubs);
  kernels::reference::scrub(scrub);
  return {};
}

Status HostBackend::run_append(void* operation) {
  const auto& o = *static_cast<const Operation*>(operation);
  return append_kv(o.append, &o.backend->workers_);
}

Status HostBackend::run_attention(void* operation) {
  const auto& o = *static_cast<const Operation*>(operation);
  return kvarena::run_attention(*o.plan, o.attention, o.backend->workers_);
}

}  // namespace kvarena
