#include "capi/kernels_object.hpp"

#include "capi/convert.hpp"

#include "kvarena/allocator/layer_view.hpp"

#include <algorithm>
#include <span>
#include <thread>
#include <utility>

namespace kvarena::capi {
namespace {

constexpr std::uint64_t kScratchBytes = 16;
/// An address for arguments whose memory is not read: a shape has types and strides alone.
alignas(256) std::byte nowhere[256];

/// A layer's view of the shape, without memory.
Result<KvLayerView> shape_view(const kvarena_kernels_options& given) noexcept {
  const Result<DType> dtype = dtype_from_c(given.dtype);
  if (!dtype) return dtype.status();
  GroupSpec group;
  if (given.block_size_tokens != 0) group.block_size_tokens = given.block_size_tokens;
  if (given.tile_order < 0 || given.tile_order > KVARENA_TILE_CHUNKED) {
    return invalid_option(Option::tile_order, given.tile_order, 0, KVARENA_TILE_CHUNKED);
  }
  group.tile_order =
      given.tile_order == KVARENA_TILE_CHUNKED ? TileOrder::chunked : TileOrder::rows;
  PlaneSpec plane{.kind = PlaneKind::key,
                  .num_heads = given.num_kv_heads,
                  .head_dim = given.head_dim_k,
                  .dtype = *dtype};
  group.planes.push_back(plane);
  plane.kind = PlaneKind::value;
  if (given.head_dim_v != 0) plane.head_dim = given.head_dim_v;
  if (given.value_in_key != 0) plane.alias_of = 0;
  group.planes.push_back(plane);
  const Result<KvLayout> layout = KvLayout::create(std::span(&group, 1));
  if (!layout) return layout.status();
  return layer_view({*layout, BlockOrder::block_major, given.num_blocks}, nowhere, 0);
}

}  // namespace

Result<std::shared_ptr<KernelsObject>> KernelsObject::create(std::shared_ptr<DeviceObject> device,
                                                             const kvarena_kernels_options& given) {
  const Result<KvLayerView> view = shape_view(given);
  if (!view) return view.status();
  if (given.window_tokens < 0) {
    return invalid_option(Option::window_tokens, given.window_tokens, 0, INT32_MAX);
  }
  std::shared_ptr<KernelsObject> object(new KernelsObject);
  object->device_ = std::move(device);
  object->window_tokens_ = given.window_tokens;
  cuda::AttentionShape& shape = object->shape_;
  shape.kv = *view;
  shape.num_q_heads = given.num_q_heads;
  shape.max_rows = given.max_rows;
  shape.max_decode_tokens = given.max_decode_tokens != 0 ? given.max_decode_tokens : 1;
  shape.batch_invariant_tokens = given.batch_invariant_tokens;
  shape.draft_trees = given.draft_trees != 0;
  shape.max_run_tokens = std::clamp<std::int64_t>(given.max_q_tokens, 0, std::int64_t{1} << 20);
  shape.max_shared_rows = given.max_shared_rows;
  AttentionLimits& limits = object->limits_;
  limits.max_rows = given.max_rows;
  limits.max_q_tokens = given.max_q_tokens;
  limits.num_q_heads = given.num_q_heads;
  limits.num_kv_heads = given.num_kv_heads;
  limits.head_dim_k = view->key.head_dim;
  limits.head_dim_v = view->value.head_dim;
  limits.draft_trees = given.draft_trees != 0;
  limits.batch_invariant = given.batch_invariant_tokens > 0;
  const Status created =
      object->is_cuda() ? object->create_on_cuda() : object->create_on_host(given.num_threads);
  if (!created) return created;
  return object;
}

KernelsObject::~KernelsObject() {
  for (const ScheduledStep& step : steps_) {
    if (step.workspace != nullptr) static_cast<void>(device_->device().free(step.workspace));
  }
  if (scratch_ != nullptr) static_cast<void>(device_->device().free(scratch_));
}

/// Allocates a workspace for each window.
Status KernelsObject::allocate(std::uint64_t alignment_bytes) {
  if (bytes_ == 0) return {};
  for (std::size_t i = 0; i < (window_tokens_ > 0 ? 2U : 1U); ++i) {
    AllocationRequest request;
    request.bytes = static_cast<std::uint64_t>(bytes_);
    request.alignment_bytes = alignment_bytes;
    request.purpose = MemoryPurpose::intermediate_buffers;
    request.description = "attention workspace of kernels";
    const Result<void*> memory = device_->device().allocate(request);
    if (!memory) return memory.status();
    steps_[i].workspace = static_cast<std::byte*>(*memory);
  }
  return {};
}

Status KernelsObject::create_on_host(std::int32_t num_threads) {
  if (num_threads == 0) {
    const auto cores = static_cast<std::int32_t>(std::thread::hardware_concurrency());
    num_threads = std::clamp(cores, 1, CpuWorkers::kMaxThreads);
  }
  Result<CpuWorkers> workers = CpuWorkers::create(num_threads);
  if (!workers) return workers.status();
  workers_.emplace(std::move(*workers));
  limits_.num_threads = num_threads;
  AttentionArgs nothing;  // types, tile order, heads: the same for every step
  nothing.kv = shape_.kv;
  nothing.num_q_heads = shape_.num_q_heads;
  nothing.scale = 1.0F;
  if (Status s = validate(nothing); !s) return s;
  const Result<std::int64_t> bytes = attention_workspace_bytes(limits_);
  if (!bytes) return bytes.status();
  bytes_ = *bytes;
  for (ScheduledStep& step : steps_) {
    step.num_blocks.resize(static_cast<std::size_t>(limits_.max_rows));
  }
  return allocate(64);
}

Status KernelsObject::create_on_cuda() {
  const CudaDeviceInfo info = device_->cuda()->info();
  shape_.num_sms = info.num_sms;
  shape_.compute_capability = 10 * info.major + info.minor;
  classes_ = cuda::row_classes(shape_);
  const Result<std::int64_t> bytes = cuda::workspace_bytes(shape_);
  if (!bytes) return bytes.status();
  bytes_ = *bytes;
  if (Status s = cuda::load_kernels(shape_.kv); !s) return s;
  if (Status s = allocate(256); !s) return s;
  AllocationRequest request;
  request.bytes = kScratchBytes;
  request.purpose = MemoryPurpose::intermediate_buffers;
  request.description = "scratch of kernels";
  const Result<void*> scratch = device_->device().allocate(request);
  if (!scratch) return scratch.status();
  scratch_ = *scratch;
  return bytes_ == 0 ? Status{} : prepare_workspaces();
}

/// Prepares the workspaces on a stream of its own and waits for that.
Status KernelsObject::prepare_workspaces() {
  const Result<StreamId> stream = device_->device().create_stream();
  if (!stream) return stream.status();
  Status status;
  const Result<void*> native = device_->name_of(*stream);
  if (!native) status = native.status();
  for (const ScheduledStep& step : steps_) {
    if (!status || step.workspace == nullptr) continue;
    cuda::AttentionStep reset;
    reset.shape = shape_;
    reset.workspace = step.workspace;
    reset.workspace_bytes = bytes_;
    status = cuda::launch_reset(reset, *native);
  }
  const Status ended = device_->device().destroy_stream(*stream);
  return status ? ended : status;
}

Result<ScheduledStep*> KernelsObject::scheduled(bool windowed, bool must_be_made) {
  if (windowed && window_tokens_ == 0) return invalid_argument(Resource::window, 1, 0, 0);
  ScheduledStep& step = steps_[windowed ? 1 : 0];
  if (must_be_made && !step.is_made) return failed_precondition(Resource::step);
  return &step;
}

/// What both kinds of devices need of the rows.
Status KernelsObject::take_rows(const kvarena_tables& tables, bool windowed, AttentionArgs& args) {
  const std::int64_t rows = tables.num_rows;
  if (rows < 0 || rows > limits_.max_rows) {
    return invalid_argument(Resource::num_sequences, rows, 0, limits_.max_rows);
  }
  const bool has_arrays = tables.tables != nullptr && tables.row_offsets != nullptr &&
                          tables.lengths != nullptr && tables.q_offsets != nullptr;
  if (rows > 0 && !has_arrays) return refused_null();
  args.kv = shape_.kv;
  args.batch.tables.entries = reinterpret_cast<const BlockId*>(tables.tables);
  args.batch.tables.row_offsets = tables.row_offsets;
  args.batch.tables.num_rows = tables.num_rows;
  args.batch.seq_lens = tables.lengths;
  args.batch.num_rows = tables.num_rows;
  args.q_offsets = tables.q_offsets;
  args.num_q_heads = shape_.num_q_heads;
  args.window_tokens = windowed ? window_tokens_ : 0;
  args.scale = 1.0F;
  return {};
}

Status KernelsObject::schedule_on_host(ScheduledStep& step) {
  const std::int64_t size = shape_.kv.block_size;
  for (std::size_t r = 0; r < static_cast<std::size_t>(step.args.batch.num_rows); ++r) {
    step.num_blocks[r] = static_cast<std::int32_t>((step.args.batch.seq_lens[r] + size - 1) / size);
  }
  step.args.batch.num_blocks = step.num_blocks.data();
  AttentionArgs checked = step.args;
  checked.q = checked.out = nowhere;
  if (Status s = validate(checked, Validation::checked); !s) return s;
  const std::span memory(step.workspace, static_cast<std::size_t>(bytes_));
  const Result<AttentionPlan> plan = plan_attention(step.args, limits_, memory);
  if (plan) step.plan = *plan;
  return plan.status();
}

Status KernelsObject::schedule_on_cuda(ScheduledStep& step, const kvarena_tables& tables,
                                       void* stream) {
  const bool has_arrays = tables.query_tokens != nullptr && tables.row_slots != nullptr;
  if ((tables.num_rows > 0 && !has_arrays) || stream == nullptr) return refused_null();
  step.step = {};
  step.step.shape = shape_;
  step.step.total_q = tables.total_q;
  const auto num_rows = static_cast<std::size_t>(tables.num_rows);
  step.step.rows = cuda::count_rows(
      classes_, std::span(tables.query_tokens, num_rows),
      std::span(tables.host_lengths, tables.host_lengths != nullptr ? num_rows : 0));
  step.step.shares_prefixes = tables.shares_prefixes != 0;
  step.step.table_stride = tables.table_stride;
  step.step.row_slots = tables.row_slots;
  step.step.workspace = step.workspace;
  step.step.workspace_bytes = bytes_;
  return step.workspace == nullptr ? Status{} : cuda::launch_schedule(step.step, step.args, stream);
}

Status KernelsObject::schedule(const kvarena_tables& tables, bool windowed, void* stream) {
  const Result<ScheduledStep*> found = scheduled(windowed, false);
  if (!found) return found.status();
  ScheduledStep& step = **found;
  AttentionArgs args;
  if (Status s = take_rows(tables, windowed, args); !s) return s;
  step.is_made = false;
  step.args = args;
  const Status made = is_cuda() ? schedule_on_cuda(step, tables, stream) : schedule_on_host(step);
  step.is_made = made.is_ok();
  return made;
}

Status KernelsObject::write(const AppendArgs& args, bool overlap, void* stream) {
  if (!is_cuda()) return append_kv(args, &*workers_);
  return stream == nullptr ? refused_null() : cuda::launch_append(args, overlap, stream);
}

Status KernelsObject::attend(AttentionArgs args, bool windowed, bool overlap, void* stream) {
  const Result<ScheduledStep*> step = scheduled(windowed, true);
  if (!step) return step.status();
  const AttentionArgs& planned = (*step)->args;
  const std::int64_t blocks = shape_.kv.num_blocks;
  if (args.kv.num_blocks < blocks) {
    return invalid_argument(Resource::num_blocks, args.kv.num_blocks, blocks, INT64_MAX);
  }
  args.batch = planned.batch;
  args.q_offsets = planned.q_offsets;
  args.num_q_heads = planned.num_q_heads;
  args.window_tokens = planned.window_tokens;
  if (!is_cuda()) return run_attention(*(*step)->plan, args, *workers_);
  if (stream == nullptr) return refused_null();
  cuda::AttentionStep launched = (*step)->step;
  launched.overlap = overlap;
  return cuda::launch_attention(launched, args, stream);
}

Status KernelsObject::check_tables(bool windowed, void* stream) {
  const Result<ScheduledStep*> step = scheduled(windowed, true);
  if (!step) return step.status();
  AttentionArgs args = (*step)->args;
  if (!is_cuda()) {
    args.q = args.out = nowhere;
    return validate(args, Validation::checked);
  }
  if (stream == nullptr) return refused_null();
  return cuda::check_tables(args, scratch_, stream);
}

}  // namespace kvarena::capi
