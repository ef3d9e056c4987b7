#include "cache/host_backend.hpp"

#include <algorithm>
#include <thread>
#include <utility>

namespace kvarena {
namespace {

constexpr std::uint64_t kWorkspaceAlignment = 64;

std::int32_t thread_count(std::int32_t asked) noexcept {
  if (asked != 0) return asked;
  const auto cores = static_cast<std::int32_t>(std::thread::hardware_concurrency());
  return std::clamp(cores, 1, CpuWorkers::kMaxThreads);
}

/// The byte ranges of one block: one range in block-major order, one a plane in layer-major order.
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

Result<HostBackend> HostBackend::create(Device& device, const Arena& arena,
                                        const HostBackendOptions& options) {
  Result<CpuWorkers> workers = CpuWorkers::create(thread_count(options.num_threads));
  if (!workers) return workers.status();
  Result<KvLayerView> view = arena.layer_view(0);
  if (!view) return view.status();
  AttentionArgs nothing;  // what every batch shares: types, tile order, heads
  nothing.kv = *view;
  nothing.num_q_heads = options.num_q_heads;
  nothing.scale = 1.0F;
  if (Status status = validate(nothing); !status) return status;
  HostBackend backend(device, arena, std::move(*workers));
  backend.planned_view_ = *view;
  backend.window_tokens_ = options.window_tokens;
  backend.limits_ = {.max_rows = options.limits.max_rows,
                     .max_q_tokens = options.limits.max_tokens,
                     .num_q_heads = options.num_q_heads,
                     .num_kv_heads = view->key.num_heads,
                     .head_dim_k = view->key.head_dim,
                     .head_dim_v = view->value.head_dim,
                     .num_threads = backend.workers_.num_threads(),
                     .path = CpuPath::best};
  const Result<std::int64_t> bytes = attention_workspace_bytes(backend.limits_);
  if (!bytes) return bytes.status();
  backend.workspace_bytes_ = *bytes;
  backend.regions_ = regions_of(arena);
  if (Status status = backend.allocate_steps(arena, options); !status) return status;
  return backend;
}

Status HostBackend::allocate_steps(const Arena& arena, const HostBackendOptions& options) {
  const auto layers = static_cast<std::size_t>(arena.layout().num_layers());
  steps_.resize(static_cast<std::size_t>(options.limits.steps_in_flight));
  for (Step& step : steps_) {
    step.operations.resize(layers * kCallsPerLayer + 1);
    const std::size_t num_plans = window_tokens_ == 0 ? 1 : 2;
    for (std::size_t i = 0; i < num_plans; ++i) {
      const Result<void*> memory =
          device_->allocate({.bytes = static_cast<std::uint64_t>(workspace_bytes_),
                             .alignment_bytes = kWorkspaceAlignment,
                             .purpose = MemoryPurpose::intermediate_buffers,
                             .description = "attention workspace"});
      if (!memory) return memory.status();
      step.workspace[i] = static_cast<std::byte*>(*memory);
    }
  }
  return {};
}

HostBackend::HostBackend(HostBackend&& other) noexcept
    : device_(other.device_),
      workers_(std::move(other.workers_)),
      limits_(other.limits_),
      planned_view_(other.planned_view_),
      window_tokens_(other.window_tokens_),
      workspace_bytes_(other.workspace_bytes_),
      num_blocks_(other.num_blocks_),
      regions_(std::move(other.regions_)),
      steps_(std::move(other.steps_)) {
  other.steps_.clear();
}

HostBackend::~HostBackend() {
  for (const Step& step : steps_) {
    for (std::byte* workspace : step.workspace) {
      if (workspace != nullptr) static_cast<void>(device_->free(workspace));
    }
  }
}

Result<HostBackend::Operation*> HostBackend::next_operation(std::size_t index) {
  Step& step = steps_[index];
  if (step.num_operations == step.operations.size()) {
    return exhausted(Resource::workspace, step.num_operations, step.operations.size() - 1);
  }
  Operation* operation = &step.operations[step.num_operations];
  operation->backend = this;
  return operation;
}

Status HostBackend::begin(std::size_t index, const StepSlot& slot, StreamId stream) {
  Step& step = steps_[index];
  step.num_operations = 1;  // the first is the copies'
  AttentionArgs shape;
  shape.kv = planned_view_;
  shape.batch = slot.batch();
  shape.q_offsets = slot.q_offsets.data();
  shape.num_q_heads = limits_.num_q_heads;
  shape.scale = 1.0F;
  const auto workspace_bytes = static_cast<std::size_t>(workspace_bytes_);
  for (std::size_t i = 0; i < 2 && step.workspace[i] != nullptr; ++i) {
    shape.window_tokens = i == 0 ? 0 : window_tokens_;
    Result<AttentionPlan> plan =
        plan_attention(shape, limits_, std::span(step.workspace[i], workspace_bytes));
    if (!plan) return plan.status();
    step.plan[i] = *plan;
  }
  if (slot.num_copies == 0) return {};
  Operation& operation = step.operations.front();
  operation.backend = this;
  operation.copies = std::span(slot.copies.data(), slot.num_copies);
  return device_->launch_host(run_copies, &operation, stream);
}

Status HostBackend::write_kv(std::size_t index, const AppendArgs& args, StreamId stream) {
  Result<Operation*> operation = next_operation(index);
  if (!operation) return operation.status();
  (*operation)->append = args;
  if (Status s = device_->launch_host(run_append, *operation, stream); !s) return s;
  ++steps_[index].num_operations;
  return {};
}

Status HostBackend::attend(std::size_t index, const AttentionArgs& args, StreamId stream) {
  if (Status status = validate(args); !status) return status;
  Result<Operation*> operation = next_operation(index);
  if (!operation) return operation.status();
  (*operation)->attention = args;
  (*operation)->plan = &steps_[index].plan[args.window_tokens == 0 ? 0 : 1];
  if (Status s = device_->launch_host(run_attention, *operation, stream); !s) return s;
  ++steps_[index].num_operations;
  return {};
}

Status HostBackend::run_copies(void* operation) {
  const auto& o = *static_cast<const Operation*>(operation);
  return copy_blocks(o.copies, o.backend->regions_, o.backend->num_blocks_);
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
