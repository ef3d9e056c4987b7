#include "cache/cuda_backend.hpp"

#include "cache/backend_sizes.hpp"
#include "cache/cuda_blocks.hpp"
#include "cache/device_batch.hpp"
#include "cache/gpu_launch.hpp"
#include "cache/group_row_counts.hpp"
#include "cache/sharing_gain.hpp"
#include "kvarena/attention/cuda_attention.hpp"
#include "kvarena/device/cuda_device.hpp"
#include "step/device_tables.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <utility>

namespace kvarena {
namespace {

/// The device's part of a KvCache on a GPU.
class CudaBackend final : public Backend {
 public:
  /// The memory that the backend owns on the device.
  struct Memory {
    DeviceTables tables;
    Workspaces workspaces;
  };

  /// Requires that `arena` has a layer 0.
  CudaBackend(CudaDevice& device, StreamId stream, Memory memory, const Arena& arena,
              const BackendOptions& options)
      : Backend(stream),
        device_(device),
        ordinal_(device.ordinal()),
        tables_(std::move(memory.tables)),
        workspaces_(std::move(memory.workspaces)),
        blocks_(arena, options.scrubs),
        shape_(cuda_shape(options, *arena.layer_view(0))),
        schedules_{{{.workspace = workspaces_.at(0)},
                    {.workspace = workspaces_.at(1), .window_tokens = options.window_tokens}}} {
    shape_.compute_capability = 10 * device.info().major + device.info().minor;
    classes_ = cuda::row_classes(shape_);
  }

  Result<StepBatch> begin(const StepGrowth& growth, BlockTables& tables) override;
  Status write_kv(const KvLayerView& kv, const WriteKvArgs& args) override;
  Status attend(const KvLayerView& kv, const AttendArgs& args) override;
  DeviceBatch device_batch() const noexcept override { return device_batch_of(tables_.view()); }
  Result<StepBatch> begin_recording(const RecordedStep& shape) override;
  void end_replay() noexcept override { tables_.advance(); }
  Result<bool> abort_replay(BlockTables& tables) override;
  std::uint64_t staged_serial() const noexcept override { return tables_.staged_serial(); }
  std::uint64_t taken_serial() const noexcept override { return tables_.taken_serial(); }
  std::uint64_t misses() const noexcept override { return tables_.misses(); }
  void resync(BlockTables& tables) noexcept override { tables_.resync(tables); }

 private:
  /// The host's figures of a step.
  struct Batch {
    std::int32_t num_rows = 0;
    std::int64_t num_tokens = 0;
    std::int64_t num_copies = 0;      ///< number of copies, or an upper bound
    std::int32_t few_token_rows = 0;  ///< rows that are no prompts, or an upper bound
    cuda::RowCounts rows;
    bool shares_prefixes = false;
  };
  /// A workspace, and the shape for which its counters were prepared.
  struct Schedule {
    std::byte* workspace = nullptr;  ///< null: no workspace is needed
    std::int32_t max_rows = 0;
    std::int32_t window_tokens = 0;
  };

  Batch batch_of(const StepGrowth& growth) const noexcept;
  Batch batch_of(const RecordedStep& shape) const noexcept;
  cuda::AttentionStep step_for(const Schedule& schedule, const Batch& batch) const noexcept;
  AttentionArgs args_for(const Schedule& schedule) const noexcept;
  Status reset_schedules(const Batch& batch, void* stream);
  Status launch_step(void* stream, bool is_recorded);
  Status launch_scrubs(std::span<const ScrubPlan> plans, void* stream);
  /// Runs `launch(native stream)` with the GPU current.
  template <class Launch>
  Status launch_on_gpu(Launch launch) const {
    return kvarena::launch_on_gpu(device_, stream_, ordinal_, launch);
  }
  /// Does the same for one kernel of a layer.
  template <class Launch>
  Status launch_layer(Launch launch) {
    const Status status = launch_on_gpu(launch);
    layers_begun_ = layers_begun_ || status;
    return status;
  }

  CudaDevice& device_;
  const std::int32_t ordinal_;
  DeviceTables tables_;
  Workspaces workspaces_;
  CudaBlocks blocks_;
  cuda::AttentionShape shape_;
  cuda::RowClasses classes_;
  std::array<Schedule, 2> schedules_;  ///< without a window, with a window
  Batch batch_;                        ///< the current step or recording
  bool layers_begun_ = false;          ///< a layer's kernel was queued behind those of launch_step
};

// ---- a step ------------------------------------------------------------------------------------

/// Returns the figures of a step.
CudaBackend::Batch CudaBackend::batch_of(const StepGrowth& growth) const noexcept {
  Batch batch{.num_rows = static_cast<std::int32_t>(growth.demands.size()),
              .num_tokens = std::ssize(growth.appended.slots),
              .num_copies = std::ssize(growth.appended.copies),
              .few_token_rows = 0,
              .rows = {},
              .shares_prefixes = false};
  const auto count = [&](const cuda::RowClasses& classes) {
    cuda::RowCounts rows;
    for (const AppendedRow& row : growth.appended.rows) {
      cuda::count_row(classes, row.num_new_tokens, rows, row.length_tokens);
    }
    return rows;
  };
  batch.few_token_rows = count(without_prompts(classes_)).columns;
  batch.rows = count(cuda::row_classes(step_shape(shape_, batch.few_token_rows)));
  return batch;
}

/// Returns the figures of a recorded step: all rows have the same number of tokens.
CudaBackend::Batch CudaBackend::batch_of(const RecordedStep& shape) const noexcept {
  cuda::RowCounts rows;
  cuda::count_row(cuda::row_classes(step_shape(shape_, shape.num_rows)), shape.tokens_per_row, rows,
                  shape.row_tokens);
  rows.decode *= shape.num_rows;
  rows.decode_length *= shape.num_rows;
  rows.columns *= shape.num_rows;
  rows.prompts *= shape.num_rows;
  return {.num_rows = shape.num_rows,
          .num_tokens = std::int64_t{shape.num_rows} * shape.tokens_per_row,
          .num_copies = shape.num_rows,
          .few_token_rows = shape.num_rows,
          .rows = rows,
          .shares_prefixes = shape.shares_prefixes};
}

/// Returns the attention step for a schedule.
cuda::AttentionStep CudaBackend::step_for(const Schedule& schedule,
                                          const Batch& batch) const noexcept {
  const DeviceStepView& view = tables_.view();
  return {.shape = step_shape(shape_, batch.few_token_rows),
          .total_q = batch.num_tokens,
          .rows = batch.rows,
          .shares_prefixes = batch.shares_prefixes,
          .table_stride = view.table_stride,
          .row_slots = view.row_slots,
          .workspace = schedule.workspace,
          .workspace_bytes = workspaces_.bytes(),
          .overlap = layers_begun_};
}

/// Returns the attention arguments that all layers share.
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

/// Prepares the workspaces for a batch's shape. Does nothing while the shape stays the same. A
/// batch of prompts has no shape, but needs a workspace that was prepared once.
Status CudaBackend::reset_schedules(const Batch& batch, void* stream) {
  for (Schedule& schedule : schedules_) {
    const bool is_prepared = batch.rows.decode + batch.rows.columns == 0 && schedule.max_rows > 0;
    if (schedule.workspace == nullptr || is_prepared) continue;
    const cuda::AttentionStep step = step_for(schedule, batch);
    if (schedule.max_rows == step.shape.max_rows) continue;
    if (Status s = cuda::launch_reset(step, stream); !s) return s;
    schedule.max_rows = step.shape.max_rows;
  }
  return {};
}

/// Queues everything in front of the layers of batch_: the tables, the copies and the schedules.
Status CudaBackend::launch_step(void* stream, bool is_recorded) {
  layers_begun_ = false;
  if (is_recorded) {
    if (Status s = tables_.record(stream_); !s) return s;
  } else {
    if (Status s = tables_.launch(stream_); !s) return s;
    tables_.advance();  // the device takes the step, even if a later launch fails
  }
  if (Status s = blocks_.launch_copies(tables_.view().copies, batch_.num_copies, stream); !s) {
    return s;
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

/// Queues the scrubs of a step, copies first.
Status CudaBackend::launch_scrubs(std::span<const ScrubPlan> plans, void* stream) {
  if (plans.empty()) return {};
  const ScrubPlan& plan = plans[0];
  if (Status s = blocks_.launch_scrubs(plan.copies, stream); !s) return s;
  copies_are_queued_ = !plan.copies.empty();
  return blocks_.launch_scrubs(plan.clears, stream);
}

/// A step that a graph runs queues only its name, its scrubs, and a reset of the workspaces when
/// its shape is new. Its other work is in the graph.
Result<StepBatch> CudaBackend::begin(const StepGrowth& growth, BlockTables& tables) {
  if (Status s = tables_.stage(tables, growth.appended); !s) return s;
  const bool is_replayed = growth.recorded != nullptr;
  batch_ = is_replayed ? batch_of(*growth.recorded) : batch_of(growth);
  if (!is_replayed && shape_.max_shared_rows > 0 && classes_.column_tokens > 0) {
    const std::span<const AppendedRow> rows = growth.appended.rows;
    const SharingThreshold gain = sharing_threshold(rows, shape_.kv);
    batch_.shares_prefixes = tables.most_sharers(rows, gain.block) >= gain.sharers;
  }
  copies_are_queued_ = false;
  const Status launched = launch_on_gpu([&](void* stream) {
    if (Status s = reset_schedules(batch_, stream); !s) return s;
    // The scrubs are in front of all other work, so a graph that runs the step does not contain
    // them.
    if (Status s = launch_scrubs(growth.scrubs, stream); !s) return s;
    return is_replayed ? tables_.expect(stream_) : launch_step(stream, false);
  });
  if (!launched) {
    tables_.withdraw(tables);
    return launched;
  }
  return StepBatch{.slots = growth.appended.slots,
                   .device_slots = tables_.view().slots,
                   .num_tokens = std::ssize(growth.appended.slots),
                   .num_copies = std::ssize(growth.appended.copies),
                   .new_blocks = growth.appended.new_blocks};
}

/// The launches of a step are recorded by the capture of the stream.
Result<StepBatch> CudaBackend::begin_recording(const RecordedStep& shape) {
  const Result<bool> captured = device_.is_captured(stream_);
  if (!captured) return captured.status();
  if (!*captured) return failed_precondition(Resource::stream, stream_.value);
  batch_ = batch_of(shape);
  const Status launched = launch_on_gpu([&](void* stream) { return launch_step(stream, true); });
  if (!launched) return launched;
  return StepBatch{
      .slots = {}, .device_slots = tables_.view().slots, .num_tokens = batch_.num_tokens};
}

/// The graph has run if the device took the step.
Result<bool> CudaBackend::abort_replay(BlockTables& tables) {
  // The caller who asks for results gets a failure of the work. Here it matters only that the work
  // is over.
  const Status waited = device_.synchronize(stream_);
  if (device_.lost_to() != 0) return waited;
  const bool has_run = tables_.taken_serial() == tables_.staged_serial();
  if (has_run) {
    tables_.advance();
  } else {
    tables_.withdraw(tables);
  }
  return has_run;
}

Status CudaBackend::write_kv(const KvLayerView& kv, const WriteKvArgs& args) {
  const AppendArgs append{.kv = kv,
                          .key = args.key,
                          .value = args.value,
                          .dtype = args.dtype,
                          .slots = tables_.view().slots,
                          .num_tokens = batch_.num_tokens,
                          .scales = args.scales,
                          .key_token_stride_bytes = args.key_token_stride_bytes,
                          .value_token_stride_bytes = args.value_token_stride_bytes};
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
  args.tree_mask = given.tree_mask;
  args.scales = given.scales;
  args.q_token_stride_bytes = given.q_token_stride_bytes;
  args.out_token_stride_bytes = given.out_token_stride_bytes;
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
  const std::int32_t capability = 10 * cuda->info().major + cuda->info().minor;
  if (options.draft_trees && !has_tree_kernel(options, *view, capability)) {
    return unsupported_option(Option::draft_trees, 1);
  }
  Result<DeviceTables> tables = DeviceTables::create(*cuda, tables_options(options));
  if (!tables) return tables.status();
  Result<Workspaces> workspaces = Workspaces::create(device, options.workspaces);
  if (!workspaces) return workspaces.status();
  return std::unique_ptr<Backend>(std::make_unique<CudaBackend>(
      *cuda, stream, CudaBackend::Memory{std::move(*tables), std::move(*workspaces)}, arena,
      options));
}

}  // namespace kvarena
