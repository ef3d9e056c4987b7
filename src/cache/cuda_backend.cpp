#include "cache/cuda_backend.hpp"

#include "device/current_gpu.hpp"
#include "kernels/copy_blocks/copy_blocks.h"
#include "kvarena/attention/cuda_attention.hpp"
#include "kvarena/device/cuda_device.hpp"
#include "step/device_tables.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <bit>
#include <utility>
#include <vector>

namespace kvarena {
namespace {

constexpr std::uint64_t kWorkspaceAlignment = 256;

/// Copies of whole blocks: one launch in block-major order, in layer-major order one for the planes
/// of each size, which K and V of a uniform layout take in turn.
std::vector<kernels::CopyBlocksParams> copies_of(const Arena& arena) {
  const KvLayout& layout = arena.layout();
  const std::int64_t num_blocks = arena.num_blocks();
  if (arena.order() == BlockOrder::block_major) {
    return {{.base = arena.base(),
             .block_stride = layout.block_bytes(),
             .bytes = layout.block_bytes(),
             .copies = nullptr,
             .num_copies = 0,
             .num_blocks = num_blocks}};
  }
  std::vector<kernels::CopyBlocksParams> all;
  const std::int64_t layer_stride = layout.block_bytes() / layout.num_layers() * num_blocks;
  for (const PlaneKind kind : {PlaneKind::key, PlaneKind::value}) {
    const std::int32_t plane = layout.plane_of(0, kind);
    all.push_back({.base = arena.base() + layout.plane_offset(plane, arena.order(), num_blocks),
                   .block_stride = layout.block_stride(plane, arena.order()),
                   .bytes = layout.plane_bytes(plane),
                   .copies = nullptr,
                   .num_copies = 0,
                   .num_blocks = num_blocks,
                   .num_planes = layout.num_layers(),
                   .plane_stride = layer_stride});
  }
  return all;
}

class CudaBackend final : public Backend {
 public:
  CudaBackend(CudaDevice& device, StreamId stream, DeviceTables tables, const Arena& arena,
              const BackendOptions& options)
      : device_(device),
        ordinal_(device.ordinal()),
        stream_(stream),
        tables_(std::move(tables)),
        copies_(copies_of(arena)),
        options_(options) {}
  ~CudaBackend() override;
  Status create_workspaces(const KvLayerView& kv);

  Result<StepBatch> begin(const StepGrowth& growth, BlockTables& tables) override;
  Status write_kv(const KvLayerView& kv, const WriteKvArgs& args) override;
  Status attend(const KvLayerView& kv, const AttendArgs& args) override;
  Result<StepBatch> begin_recording(const RecordedStep& shape) override;
  void end_replay() noexcept override { tables_.advance(); }

 private:
  /// A step as the host sees it.
  struct Batch {
    std::int32_t num_rows = 0;
    std::int64_t num_tokens = 0;
    std::int64_t num_copies = 0;  ///< or an upper bound
    std::int32_t decode_rows = 0;
    std::int32_t decode_tokens = 1;
  };
  /// A workspace and the shape that the counters in it are laid out for.
  struct Schedule {
    std::byte* workspace = nullptr;  ///< null: none is needed
    std::int32_t max_rows = 0;
    std::int32_t decode_tokens = 0;
    std::int32_t window_tokens = 0;
  };

  static Batch batch_of(const StepGrowth& growth, std::int32_t max_decode_tokens) noexcept;
  static Batch batch_of(const RecordedStep& shape) noexcept;
  cuda::AttentionStep step_for(const Schedule& schedule, const Batch& batch) const noexcept;
  AttentionArgs args_for(const Schedule& schedule) const noexcept;
  Status reset_schedules(const Batch& batch, void* stream);
  Status launch_step(void* stream);
  /// Runs `launch(native stream)` with the GPU current; failures of CUDA become the device's.
  template <class Launch>
  Status launch_on_gpu(Launch launch) const;
  /// The same for one kernel of a layer.
  template <class Launch>
  Status launch_layer(Launch launch) {
    const Status status = launch_on_gpu(launch);
    layers_begun_ = layers_begun_ || status;
    return status;
  }

  CudaDevice& device_;
  const std::int32_t ordinal_;
  StreamId stream_;
  DeviceTables tables_;
  std::vector<kernels::CopyBlocksParams> copies_;
  BackendOptions options_;
  cuda::AttentionShape shape_;
  std::int64_t workspace_bytes_ = 0;
  std::array<Schedule, 2> schedules_;  ///< full, windowed
  Batch batch_;                        ///< the step or the recording at work
  bool layers_begun_ = false;          ///< a layer's kernel stands behind those of launch_step
};

// ---- creation
// -----------------------------------------------------------------------------------

Status CudaBackend::create_workspaces(const KvLayerView& kv) {
  shape_ = {.kv = kv,
            .num_q_heads = options_.num_q_heads,
            .max_rows = options_.limits.max_rows,
            .max_decode_tokens = options_.max_decode_tokens,
            .num_sms = device_.info().num_sms};
  const Result<std::int64_t> bytes = cuda::workspace_bytes(shape_);
  if (!bytes) return bytes.status();
  workspace_bytes_ = *bytes;
  schedules_[1].window_tokens = options_.window_tokens;
  const std::size_t num_schedules = options_.window_tokens == 0 ? 1 : 2;
  for (std::size_t i = 0; i < num_schedules && workspace_bytes_ > 0; ++i) {
    const Result<void*> memory =
        device_.allocate({.bytes = static_cast<std::uint64_t>(workspace_bytes_),
                          .alignment_bytes = kWorkspaceAlignment,
                          .purpose = MemoryPurpose::intermediate_buffers,
                          .description = "attention workspace"});
    if (!memory) return memory.status();
    schedules_[i].workspace = static_cast<std::byte*>(*memory);
  }
  return {};
}

CudaBackend::~CudaBackend() {
  for (const Schedule& schedule : schedules_) {
    if (schedule.workspace != nullptr) static_cast<void>(device_.free(schedule.workspace));
  }
}

template <class Launch>
Status CudaBackend::launch_on_gpu(Launch launch) const {
  const Result<void*> stream = device_.native_stream(stream_);
  if (!stream) return stream.status();
  if (device_.lost_to() != 0) return device_.check(device_.lost_to(), Resource::stream);
  const CurrentGpu current(ordinal_);
  if (current.error() != cudaSuccess) return device_.check(current.error(), Resource::device);
  const Status status = launch(*stream);
  const bool is_told = device_.lost_to() != 0;  // by whoever saw it first
  if (status.code != StatusCode::device_error || is_told) return status;
  return device_.check(status.native, status.resource);
}

// ---- a step
// --------------------------------------------------------------------------------------

CudaBackend::Batch CudaBackend::batch_of(const StepGrowth& growth,
                                         std::int32_t max_decode_tokens) noexcept {
  const auto demands = growth.demands;
  Batch batch{.num_rows = static_cast<std::int32_t>(demands.size()),
              .num_tokens = std::ssize(growth.appended.slots),
              .num_copies = std::ssize(growth.appended.copies)};
  if (demands.empty()) return batch;
  const std::int32_t tokens = demands.front().num_tokens;
  if (tokens < 1 || tokens > max_decode_tokens) return batch;
  const auto other = std::find_if(demands.begin(), demands.end(), [&](const AppendDemand& demand) {
    return demand.num_tokens != tokens;
  });
  batch.decode_rows = static_cast<std::int32_t>(other - demands.begin());
  batch.decode_tokens = tokens;
  return batch;
}

CudaBackend::Batch CudaBackend::batch_of(const RecordedStep& shape) noexcept {
  return {.num_rows = shape.num_rows,
          .num_tokens = std::int64_t{shape.num_rows} * shape.tokens_per_row,
          .num_copies = shape.num_rows,
          .decode_rows = shape.num_rows,
          .decode_tokens = shape.tokens_per_row};
}

/// Rows are rounded up to a power of two, so that the shape of a schedule seldom changes.
cuda::AttentionStep CudaBackend::step_for(const Schedule& schedule,
                                          const Batch& batch) const noexcept {
  const DeviceStepView& view = tables_.view();
  cuda::AttentionStep step{.shape = shape_,
                           .total_q = batch.num_tokens,
                           .decode_rows = batch.decode_rows,
                           .decode_tokens = batch.decode_tokens,
                           .table_stride = view.table_stride,
                           .row_slots = view.row_slots,
                           .workspace = schedule.workspace,
                           .workspace_bytes = workspace_bytes_,
                           .overlap = layers_begun_};
  const auto rows = static_cast<std::uint32_t>(std::max(batch.decode_rows, 1));
  step.shape.max_rows = std::min(shape_.max_rows, static_cast<std::int32_t>(std::bit_ceil(rows)));
  return step;
}

AttentionArgs CudaBackend::args_for(const Schedule& schedule) const noexcept {
  const DeviceStepView& view = tables_.view();
  AttentionArgs args;
  args.batch = {.tables = {.entries = view.block_tables,
                           .pages = nullptr,
                           .row_offsets = view.row_offsets,
                           .page_shift = 0,
                           .num_rows = batch_.num_rows},
                .seq_lens = view.seq_lens,
                .num_blocks = view.num_blocks,
                .num_rows = batch_.num_rows};
  args.q_offsets = view.q_offsets;
  args.num_q_heads = shape_.num_q_heads;
  args.window_tokens = schedule.window_tokens;
  return args;
}

/// Readies the workspaces for a batch's shape: nothing to do while it stays the same.
Status CudaBackend::reset_schedules(const Batch& batch, void* stream) {
  for (Schedule& schedule : schedules_) {
    if (schedule.workspace == nullptr || batch.decode_rows == 0) continue;
    const cuda::AttentionStep step = step_for(schedule, batch);
    if (schedule.max_rows == step.shape.max_rows && schedule.decode_tokens == step.decode_tokens) {
      continue;
    }
    if (Status s = cuda::launch_reset(step, stream); !s) return s;
    schedule.max_rows = step.shape.max_rows;
    schedule.decode_tokens = step.decode_tokens;
  }
  return {};
}

/// Everything of batch_ that precedes its layers.
Status CudaBackend::launch_step(void* stream) {
  layers_begun_ = false;
  if (Status s = tables_.launch(stream_); !s) return s;
  const auto native = static_cast<cudaStream_t>(stream);
  for (kernels::CopyBlocksParams copies : copies_) {
    copies.copies = tables_.view().copies;
    copies.num_copies = batch_.num_copies;
    if (Status s = kernels::launch_copy_blocks(copies, native); !s) return s;
  }
  for (const Schedule& schedule : schedules_) {
    if (schedule.workspace == nullptr) continue;
    if (Status s = cuda::launch_schedule(step_for(schedule, batch_), args_for(schedule), stream);
        !s) {
      return s;
    }
  }
  return {};
}

Result<StepBatch> CudaBackend::begin(const StepGrowth& growth, BlockTables& tables) {
  if (Status s = tables_.stage(tables, growth.appended); !s) return s;
  const bool is_replayed = growth.recorded != nullptr;
  batch_ = is_replayed ? batch_of(*growth.recorded) : batch_of(growth, options_.max_decode_tokens);
  const Status launched = launch_on_gpu([&](void* stream) {
    if (Status s = reset_schedules(batch_, stream); !s) return s;
    return is_replayed ? Status{} : launch_step(stream);
  });
  if (!launched) return launched;
  if (!is_replayed) tables_.advance();
  return StepBatch{.slots = growth.appended.slots,
                   .device_slots = tables_.view().slots,
                   .num_tokens = std::ssize(growth.appended.slots),
                   .num_copies = std::ssize(growth.appended.copies),
                   .new_blocks = growth.appended.new_blocks};
}

Result<StepBatch> CudaBackend::begin_recording(const RecordedStep& shape) {
  batch_ = batch_of(shape);
  const Status launched = launch_on_gpu([&](void* stream) {
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    const cudaError_t error = cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &capture);
    if (error != cudaSuccess) return device_.check(error, Resource::stream);
    if (capture != cudaStreamCaptureStatusActive) {
      return failed_precondition(Resource::stream, stream_.value);
    }
    return launch_step(stream);
  });
  if (!launched) return launched;
  return StepBatch{
      .slots = {}, .device_slots = tables_.view().slots, .num_tokens = batch_.num_tokens};
}

Status CudaBackend::write_kv(const KvLayerView& kv, const WriteKvArgs& args) {
  const AppendArgs append{.kv = kv,
                          .key = args.key,
                          .value = args.value,
                          .dtype = args.dtype,
                          .slots = tables_.view().slots,
                          .num_tokens = batch_.num_tokens,
                          .scales = args.scales};
  return launch_layer(
      [&](void* stream) { return cuda::launch_append(append, layers_begun_, stream); });
}

Status CudaBackend::attend(const KvLayerView& kv, const AttendArgs& given) {
  const Schedule& schedule = schedules_[given.windowed ? 1 : 0];
  AttentionArgs args = args_for(schedule);
  args.kv = kv;
  args.q = given.q;
  args.q_dtype = given.q_dtype;
  args.out = given.out;
  args.out_dtype = given.out_dtype;
  args.lse = given.lse;
  args.scale = given.scale;
  args.soft_cap = given.soft_cap;
  args.sinks = given.sinks;
  args.scales = given.scales;
  const cuda::AttentionStep step = step_for(schedule, batch_);
  return launch_layer([&](void* stream) { return cuda::launch_attention(step, args, stream); });
}

}  // namespace

Result<std::unique_ptr<Backend>> create_cuda_backend(Device& device, const Arena& arena,
                                                     StreamId stream,
                                                     const BackendOptions& options) {
  auto* cuda = dynamic_cast<CudaDevice*>(&device);
  if (cuda == nullptr) return unsupported(Resource::device);
  const Result<KvLayerView> view = arena.layer_view(0);
  if (!view) return view.status();
  Result<DeviceTables> tables =
      DeviceTables::create(*cuda, {.limits = options.limits,
                                   .max_sequences = options.max_sequences,
                                   .max_sequence_blocks = options.max_sequence_blocks,
                                   .block_size_tokens = arena.layout().block_size()});
  if (!tables) return tables.status();
  auto backend = std::make_unique<CudaBackend>(*cuda, stream, std::move(*tables), arena, options);
  if (Status status = backend->create_workspaces(*view); !status) return status;
  return std::unique_ptr<Backend>(std::move(backend));
}

}  // namespace kvarena
