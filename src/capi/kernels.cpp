// Attention for engines with block tables of their own: on the host the CPU's code, on CUDA the
// kernels.

#include "capi/convert.hpp"
#include "capi/objects.hpp"
#include "capi/pending.hpp"

#include "kvarena/attention/attention.hpp"
#include "kvarena/attention/cuda_attention.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

namespace kvarena::capi {

/// The schedule of a step: without a window, or with it.
struct ScheduledStep {
  std::byte* workspace = nullptr;
  AttentionArgs args;                 ///< of all layers
  std::optional<AttentionPlan> plan;  ///< host
  cuda::AttentionStep step;           ///< CUDA
  bool is_made = false;
  std::vector<std::int32_t> num_blocks;  ///< host: of each row
};

/// The kernels of one shape and their workspaces.
class KernelsObject {
 public:
  static Result<std::shared_ptr<KernelsObject>> create(std::shared_ptr<DeviceObject> device,
                                                       const kvarena_kernels_options& given);
  ~KernelsObject();

  std::int64_t workspace_bytes() const noexcept { return bytes_ * (window_tokens_ > 0 ? 2 : 1); }
  Status schedule(const kvarena_tables& tables, bool windowed, void* stream);
  Status write(const AppendArgs& args, bool overlap, void* stream);
  Status attend(AttentionArgs args, bool windowed, bool overlap, void* stream);
  Status check_tables(bool windowed, void* stream);

  bool is_cuda() const noexcept { return device_->cuda() != nullptr; }
  /// Returns the schedule, or failed_precondition (step) or invalid_argument (window).
  Result<ScheduledStep*> scheduled(bool windowed, bool must_be_made);

 private:
  KernelsObject() = default;
  Status create_on_host(std::int32_t num_threads);
  Status create_on_cuda();
  Status allocate(std::uint64_t alignment_bytes);
  Status prepare_workspaces();

  std::shared_ptr<DeviceObject> device_;
  cuda::AttentionShape shape_;
  cuda::RowClasses classes_;
  AttentionLimits limits_;
  std::optional<CpuWorkers> workers_;
  std::int32_t window_tokens_ = 0;
  std::int64_t bytes_ = 0;
  std::array<ScheduledStep, 2> steps_;
  void* scratch_ = nullptr;
};

template <>
inline constexpr Kind kKindOf<KernelsObject> = Kind::kernels;

namespace {

constexpr std::uint64_t kScratchBytes = 16;

/// A layer's view of the shape, without memory.
Result<KvLayerView> shape_view(const kvarena_kernels_options& given) noexcept {
  const Result<DType> dtype = dtype_from_c(given.dtype);
  if (!dtype) return dtype.status();
  UniformLayoutOptions options;
  options.num_layers = 1;
  options.num_kv_heads = given.num_kv_heads;
  options.head_dim_k = given.head_dim_k;
  options.head_dim_v = given.head_dim_v;
  options.dtype = *dtype;
  if (given.block_size_tokens != 0) options.block_size_tokens = given.block_size_tokens;
  if (given.tile_order < 0 || given.tile_order > KVARENA_TILE_CHUNKED) {
    return invalid_option(Option::tile_order, given.tile_order, 0, KVARENA_TILE_CHUNKED);
  }
  options.tile_order =
      given.tile_order == KVARENA_TILE_CHUNKED ? TileOrder::chunked : TileOrder::rows;
  const Result<KvLayout> layout = KvLayout::create(options);
  if (!layout) return layout.status();
  return view_of(*layout, BlockOrder::block_major, given.num_blocks, nullptr, 0);
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

Status KernelsObject::schedule(const kvarena_tables& tables, bool windowed, void* stream) {
  const Result<ScheduledStep*> found = scheduled(windowed, false);
  if (!found) return found.status();
  ScheduledStep& step = **found;
  const std::int64_t rows = tables.num_rows;
  if (rows < 0 || rows > limits_.max_rows) {
    return invalid_argument(Resource::num_sequences, rows, 0, limits_.max_rows);
  }
  const bool has_arrays = tables.tables != nullptr && tables.row_offsets != nullptr &&
                          tables.lengths != nullptr && tables.q_offsets != nullptr;
  if (rows > 0 && !has_arrays) return refused_null();
  step.is_made = false;
  AttentionArgs& args = step.args;
  args = {};
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
  if (!is_cuda()) {
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int32_t size = shape_.kv.block_size;
      step.num_blocks[static_cast<std::size_t>(r)] = (tables.lengths[r] + size - 1) / size;
    }
    args.batch.num_blocks = step.num_blocks.data();
    const std::span memory(step.workspace, static_cast<std::size_t>(bytes_));
    const Result<AttentionPlan> plan = plan_attention(args, limits_, memory);
    if (!plan) return plan.status();
    step.plan = *plan;
    step.is_made = true;
    return {};
  }
  if (rows > 0 && (tables.query_tokens == nullptr || tables.row_slots == nullptr)) {
    return refused_null();
  }
  if (stream == nullptr) return refused_null();
  step.step = {};
  step.step.shape = shape_;
  step.step.total_q = tables.total_q;
  step.step.rows =
      cuda::count_rows(classes_, std::span(tables.query_tokens, static_cast<std::size_t>(rows)));
  step.step.shares_prefixes = tables.shares_prefixes != 0;
  step.step.table_stride = tables.table_stride;
  step.step.row_slots = tables.row_slots;
  step.step.workspace = step.workspace;
  step.step.workspace_bytes = bytes_;
  if (step.workspace != nullptr) {
    if (Status s = cuda::launch_schedule(step.step, args, stream); !s) return s;
  }
  step.is_made = true;
  return {};
}

Status KernelsObject::write(const AppendArgs& args, bool overlap, void* stream) {
  if (!is_cuda()) return append_kv(args, &*workers_);
  return stream == nullptr ? refused_null() : cuda::launch_append(args, overlap, stream);
}

Status KernelsObject::attend(AttentionArgs args, bool windowed, bool overlap, void* stream) {
  const Result<ScheduledStep*> step = scheduled(windowed, true);
  if (!step) return step.status();
  const AttentionArgs& planned = (*step)->args;
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
    // Only the tables are checked: nothing is read through these.
    alignas(64) static std::byte nothing[64];
    args.kv.key.base = args.kv.value.base = nothing;
    args.q = args.out = nothing;
    return validate(args, Validation::checked);
  }
  if (stream == nullptr) return refused_null();
  args.kv.key.base = args.kv.value.base = static_cast<std::byte*>(scratch_);
  return cuda::check_tables(args, scratch_, stream);
}

}  // namespace kvarena::capi

using namespace kvarena;
using namespace kvarena::capi;

namespace {

/// K and V of a layer.
Result<KvLayerView> layer_of(const kvarena_plane* key, const kvarena_plane* value) {
  kvarena_plane k, v;
  if (Status s = read_struct(key, k); !s) return s;
  if (Status s = read_struct(value, v); !s) return s;
  return view_from_c(k, v);
}

}  // namespace

kvarena_status kvarena_kernels_create(kvarena_device* device,
                                      const kvarena_kernels_options* options,
                                      kvarena_kernels** kernels) {
  const Visit visit(device, Kind::device);
  if (!visit) return capi::to_c(visit.status());
  return guarded([&]() -> Status {
    kvarena_kernels_options given;
    if (Status s = read_struct(options, given); !s) return s;
    if (kernels == nullptr) return refused_null();
    auto created =
        KernelsObject::create(std::static_pointer_cast<DeviceObject>(visit.share()), given);
    return created ? open(std::move(*created), kernels) : created.status();
  });
}

kvarena_status kvarena_kernels_release(kvarena_kernels* kernels) {
  return close<KernelsObject>(kernels, [](KernelsObject&) {});
}

kvarena_status kvarena_kernels_workspace_bytes(kvarena_kernels* kernels, int64_t* bytes) {
  return enter<KernelsObject>(kernels, [&](KernelsObject& object) -> Status {
    if (bytes == nullptr) return refused_null();
    *bytes = object.workspace_bytes();
    return {};
  });
}

kvarena_status kvarena_kernels_schedule(kvarena_kernels* kernels, const kvarena_tables* tables,
                                        int32_t windowed, void* stream) {
  return enter<KernelsObject>(kernels, [&](KernelsObject& object) -> Status {
    kvarena_tables given;
    if (Status s = read_struct(tables, given); !s) return s;
    return object.schedule(given, windowed != 0, stream);
  });
}

kvarena_status kvarena_kernels_write(kvarena_kernels* kernels, const kvarena_plane* key,
                                     const kvarena_plane* value, const int64_t* slots,
                                     int64_t num_tokens, const kvarena_write_args* args,
                                     int32_t overlap, void* stream) {
  return enter<KernelsObject>(kernels, [&](KernelsObject& object) -> Status {
    kvarena_write_args given;
    if (Status s = read_struct(args, given); !s) return s;
    const Result<KvLayerView> layer = layer_of(key, value);
    if (!layer) return layer.status();
    const Result<DType> dtype = dtype_from_c(given.dtype);
    if (!dtype) return dtype.status();
    AppendArgs write;
    write.kv = *layer;
    write.key = given.key;
    write.value = given.value;
    write.dtype = *dtype;
    write.slots = slots;
    write.num_tokens = num_tokens;
    write.scales = {given.key_scale, given.value_scale, given.scale_per_head != 0};
    if (Status s = set_strides(given, write); !s) return s;
    return object.write(write, overlap != 0, stream);
  });
}

kvarena_status kvarena_kernels_attend(kvarena_kernels* kernels, const kvarena_plane* key,
                                      const kvarena_plane* value, const kvarena_attend_args* args,
                                      int32_t overlap, void* stream) {
  return enter<KernelsObject>(kernels, [&](KernelsObject& object) -> Status {
    kvarena_attend_args given;
    if (Status s = read_struct(args, given); !s) return s;
    const Result<KvLayerView> layer = layer_of(key, value);
    if (!layer) return layer.status();
    const Result<DType> q_dtype = dtype_from_c(given.q_dtype);
    if (!q_dtype) return q_dtype.status();
    const Result<DType> out_dtype = dtype_from_c(given.out_dtype);
    if (!out_dtype) return out_dtype.status();
    AttentionArgs attend;
    attend.kv = *layer;
    attend.q = given.q;
    attend.q_dtype = *q_dtype;
    attend.out = given.out;
    attend.out_dtype = *out_dtype;
    attend.lse = given.lse;
    attend.scale = given.scale != 0.0F ? given.scale
                                       : 1.0F / std::sqrt(static_cast<float>(layer->key.head_dim));
    attend.soft_cap = given.soft_cap;
    attend.scales = {given.key_scale, given.value_scale, given.scale_per_head != 0};
    attend.sinks = given.sinks;
    attend.tree_mask = given.tree_mask;
    if (Status s = set_strides(given, attend); !s) return s;
    return object.attend(attend, given.windowed != 0, overlap != 0, stream);
  });
}

kvarena_status kvarena_kernels_check_tables(kvarena_kernels* kernels, int32_t windowed,
                                            void* stream) {
  return enter<KernelsObject>(
      kernels, [&](KernelsObject& object) { return object.check_tables(windowed != 0, stream); });
}

size_t kvarena_kernels_describe(const kvarena_status* status, char* out, size_t size) {
  if (status == nullptr) return write_text("no status was given", out, size);
  return write_text(describe_attention(from_c(*status)), out, size);
}
