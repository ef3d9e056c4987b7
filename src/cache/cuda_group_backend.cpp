#include "cache/cuda_group_backend.hpp"

#include "cache/backend_sizes.hpp"
#include "cache/cuda_backend.hpp"
#include "cache/cuda_blocks.hpp"
#include "cache/device_batch.hpp"
#include "cache/group_plan.hpp"
#include "kernels/copy_blocks/copy_blocks.h"
#include "kernels/table_slots/table_slots.h"

#include <algorithm>
#include <new>
#include <utility>

namespace kvarena {

CudaGroupBackend::CudaGroupBackend(CudaDevice& device, StreamId stream, GroupDeviceTables tables,
                                   Workspaces workspaces, const Arena& arena,
                                   const BackendOptions& options)
    : Backend(stream),
      device_(device),
      ordinal_(device.ordinal()),
      tables_(std::move(tables)),
      workspaces_(std::move(workspaces)),
      layout_(*arena.groups()),
      states_(arena, tables_, options.num_sms),
      sequences_(static_cast<std::size_t>(options.limits.max_rows)),
      slots_(static_cast<std::size_t>(options.limits.max_rows)) {}

/// Keeps the shape of each group, from its first layer, and the blocks of each part.
Status CudaGroupBackend::create_groups(const Arena& arena, const BackendOptions& options) {
  const std::int32_t capability = 10 * device_.info().major + device_.info().minor;
  if (options.scrubs) scrubs_ = group_scrub_params(arena);
  for (std::size_t part = 0; part < layout_.parts().size(); ++part) {
    const GroupLayout::Part& its = layout_.parts()[part];
    const Result<KvLayerView> view = arena.layer_view(its.layout.planes()[0].layer);
    if (!view) return view.status();
    const auto group = static_cast<std::size_t>(attention_group(layout_, part));
    parts_.push_back({.group = group,
                      .copies = {.base = arena.base(),
                                 .block_stride = its.blocks.id_stride_bytes,
                                 .bytes = its.blocks.block_bytes,
                                 .copies = tables_.view(part).copies,
                                 .num_copies = 0,
                                 .num_blocks = view->num_blocks},
                      .num_copies = 0});
    if (group < groups_.size()) continue;
    Group& made = groups_.emplace_back();
    made.table = table_group(layout_, part);
    made.first_part = part;
    made.shape = group_shape(options, made.table, *view);
    made.shape.compute_capability = capability;
    const bool is_split =
        made.table.kind == PagedKind::chunk || made.table.kind == PagedKind::cross;
    if (options.draft_trees && !is_split && !has_tree_kernel(options, *view, capability)) {
      return unsupported_option(Option::draft_trees, 1);
    }
    if (is_split) made.shape.draft_trees = false;  // attend refuses their masks
    made.classes = cuda::row_classes(made.shape);
    AttentionArgs seen;
    set_visible(seen, layout_.groups()[static_cast<std::size_t>(its.group)]);
    made.window_tokens = seen.window_tokens;
    made.workspace = workspaces_.at(group);
  }
  return {};
}

// ---- a step ------------------------------------------------------------------------------------

/// Counts the rows of the step that was staged, group by group.
void CudaGroupBackend::count_rows(const StepGrowth& growth) noexcept {
  const std::span<const AppendedRow> rows = growth.appended.rows;
  for (Group& group : groups_) {
    group.few_token_rows =
        count_group_rows(group.table, without_prompts(group.classes), rows).classes.columns;
    group.rows = count_group_rows(group.table, group.step_classes(), rows);
  }
  for (std::size_t part = 0; part < parts_.size(); ++part) {
    parts_[part].num_copies = !scrubs_.empty() ? 0 : tables_.num_copies(part);
  }
  states_.count_copies(tables_);
}

/// Counts the rows of a recorded step.
void CudaGroupBackend::count_rows(const RecordedStep& shape) noexcept {
  for (Group& group : groups_) {
    group.few_token_rows = count_group_rows(group.table, group.classes, shape).num_rows;
    group.rows = count_group_rows(group.table, group.step_classes(), shape);
  }
  for (Part& part : parts_) {
    const bool is_cross = groups_[part.group].table.kind == PagedKind::cross;
    part.num_copies = is_cross || !scrubs_.empty() ? 0 : shape.num_rows;
  }
  states_.count_copies(shape);
}

/// Returns the attention step of a group.
cuda::AttentionStep CudaGroupBackend::step_for(const Group& group) const noexcept {
  const DeviceStepView& view = tables_.view(group.first_part);
  return {.shape = step_shape(group.shape, group.few_token_rows),
          .total_q = num_tokens_,
          .rows = group.rows.classes,
          .table_stride = view.table_stride,
          .row_slots = view.row_slots,
          .workspace = group.workspace,
          .workspace_bytes = workspaces_.bytes(),
          .overlap = layers_begun_};
}

/// Returns the attention arguments that all layers of a part share.
AttentionArgs CudaGroupBackend::args_for(const Group& group, std::size_t part) const noexcept {
  const DeviceStepView& view = tables_.view(part);
  AttentionArgs args;
  args.batch = {.tables = {.entries = view.block_tables,
                           .pages = nullptr,
                           .row_offsets = view.row_offsets,
                           .page_shift = 0,
                           .num_rows = group.rows.num_rows},
                .seq_lens = view.seq_lens,
                .num_blocks = view.num_blocks,
                .num_rows = group.rows.num_rows};
  args.q_offsets = view.q_offsets;
  args.num_q_heads = group.shape.num_q_heads;
  args.window_tokens = group.window_tokens;
  return args;
}

/// Prepares the workspaces for the rows of the step. Does nothing for a group whose shape stays the
/// same. Prompts have no shape, but need a workspace that was prepared once.
Status CudaGroupBackend::reset_schedules(void* stream) {
  for (Group& group : groups_) {
    const cuda::RowCounts& rows = group.rows.classes;
    const bool is_prepared = rows.decode + rows.columns == 0 && group.prepared_rows > 0;
    if (group.workspace == nullptr || is_prepared) continue;
    const cuda::AttentionStep step = step_for(group);
    if (group.prepared_rows == step.shape.max_rows) continue;
    if (Status s = cuda::launch_reset(step, stream); !s) return s;
    group.prepared_rows = step.shape.max_rows;
  }
  return {};
}

/// Queues everything in front of the layers: the tables, the copies and the schedules.
Status CudaGroupBackend::launch_step(void* stream, bool is_recorded) {
  layers_begun_ = false;
  if (is_recorded) {
    if (Status s = tables_.record(stream_); !s) return s;
  } else {
    if (Status s = tables_.launch(stream_); !s) return s;
    tables_.advance();  // the device takes the step, even if a later launch fails
  }
  for (const Part& part : parts_) {
    kernels::CopyBlocksParams copies = part.copies;
    copies.num_copies = part.num_copies;
    if (Status s = kernels::launch_copy_paged_blocks(copies, static_cast<cudaStream_t>(stream));
        !s) {
      return s;
    }
  }
  if (Status s = states_.launch(static_cast<cudaStream_t>(stream)); !s) return s;
  for (const Group& group : groups_) {
    if (group.workspace == nullptr) continue;
    const AttentionArgs args = args_for(group, group.first_part);
    if (Status s = cuda::launch_schedule(step_for(group), args, stream); !s) return s;
  }
  return {};
}

/// A step that a graph runs queues only its name, its scrubs, and a reset of the workspaces when
/// its shape is new. Its other work is in the graph.
Result<StepBatch> CudaGroupBackend::begin(const StepGrowth& growth, BlockTables& tables) {
  if (Status s = tables_.stage(tables, growth.appended); !s) return s;
  const bool is_replayed = growth.recorded != nullptr;
  const std::int64_t num_tables = static_cast<std::int64_t>(parts_.size() + states_.size());
  const std::int64_t num_tokens = std::ssize(growth.appended.slots) / num_tables;
  num_tokens_ = num_tokens;
  num_sequences_ = growth.demands.size();
  for (std::size_t i = 0; i < num_sequences_; ++i) {
    sequences_[i] = growth.demands[i].sequence;
    slots_[i] = growth.appended.rows[i].slot;
  }
  if (is_replayed) {
    num_tokens_ = std::int64_t{growth.recorded->num_rows} * growth.recorded->tokens_per_row;
    count_rows(*growth.recorded);
  } else {
    count_rows(growth);
  }
  const Status launched = launch_on_gpu(device_, stream_, ordinal_, [&](void* stream) {
    if (Status s = reset_schedules(stream); !s) return s;
    if (Status s = launch_group_scrubs(scrubs_, growth.scrubs, stream); !s) return s;
    return is_replayed ? tables_.expect(stream_) : launch_step(stream, false);
  });
  if (!launched) {
    tables_.withdraw(tables);
    return launched;
  }
  return batch_of(growth.appended, num_tokens);
}

/// The slots of tokens are those of the parts alone.
StepBatch CudaGroupBackend::batch_of(const AppendResult& appended,
                                     std::int64_t num_tokens) const noexcept {
  return {.slots = appended.slots.first(parts_.size() * static_cast<std::size_t>(num_tokens)),
          .device_slots = tables_.view(0).slots,
          .num_tokens = num_tokens,
          .num_copies = std::ssize(appended.copies),
          .new_blocks = appended.new_blocks,
          .states = appended.states,
          .device_states = states_.slots()};
}

/// The launches of a step are recorded by the capture of the stream.
Result<StepBatch> CudaGroupBackend::begin_recording(const RecordedStep& shape) {
  const Result<bool> captured = device_.is_captured(stream_);
  if (!captured) return captured.status();
  if (!*captured) return failed_precondition(Resource::stream, stream_.value);
  num_sequences_ = 0;
  num_tokens_ = std::int64_t{shape.num_rows} * shape.tokens_per_row;
  count_rows(shape);
  const Status launched = launch_on_gpu(device_, stream_, ordinal_,
                                        [&](void* stream) { return launch_step(stream, true); });
  if (!launched) return launched;
  return StepBatch{.slots = {},
                   .device_slots = tables_.view(0).slots,
                   .num_tokens = num_tokens_,
                   .device_states = states_.slots()};
}

/// The graph has run if the device took the step.
Result<bool> CudaGroupBackend::abort_replay(BlockTables& tables) {
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

DeviceBatch CudaGroupBackend::device_batch_of_part(std::int32_t part) const noexcept {
  const auto p = static_cast<std::size_t>(part);
  DeviceBatch batch = kvarena::device_batch_of(tables_.view(p));
  batch.num_rows = groups_[parts_[p].group].rows.num_rows;
  return batch;
}

// ---- layers ------------------------------------------------------------------------------------

Status CudaGroupBackend::write_kv(const KvLayerView& kv, const WriteKvArgs& args) {
  const AppendArgs append{.kv = kv,
                          .key = args.key,
                          .value = args.value,
                          .dtype = args.dtype,
                          .slots = tables_.view(part_of(args.layer)).slots,
                          .num_tokens = num_tokens_,
                          .scales = args.scales,
                          .key_token_stride_bytes = args.key_token_stride_bytes,
                          .value_token_stride_bytes = args.value_token_stride_bytes};
  return launch_layer(
      [&](void* stream) { return cuda::launch_append(append, layers_begun_, stream); });
}

Status CudaGroupBackend::write_index(const IndexView& index, const WriteIndexArgs& args) {
  return write_kv(layer_of(index), {.layer = args.layer,
                                    .key = args.key,
                                    .dtype = args.dtype,
                                    .key_token_stride_bytes = args.key_token_stride_bytes});
}

/// Finds the slots of the encoder's tokens in its table, then writes there. Neither begins before
/// the kernel in front of it has ended, because both use the same slots.
Status CudaGroupBackend::write_cross(const KvLayerView& kv, const WriteCrossArgs& args) {
  const std::size_t part = part_of(args.layer);
  const SequenceId* const first = sequences_.data();
  const SequenceId* const found = std::find(first, first + num_sequences_, args.sequence);
  if (found == first + num_sequences_) {
    return not_found(Resource::sequence, args.sequence.value);
  }
  const std::int32_t slot = slots_[static_cast<std::size_t>(found - first)];
  const std::int32_t num_tokens = tables_.num_cross_tokens(part, found - first);
  const AppendArgs append{.kv = kv,
                          .key = args.key,
                          .value = args.value,
                          .dtype = args.dtype,
                          .slots = tables_.cross_slots(),
                          .num_tokens = num_tokens,
                          .scales = args.scales,
                          .key_token_stride_bytes = args.key_token_stride_bytes,
                          .value_token_stride_bytes = args.value_token_stride_bytes};
  return launch_layer([&](void* stream) {
    const Status status = kernels::launch_table_slots({.table = tables_.table_of(part, slot),
                                                       .slots = tables_.cross_slots(),
                                                       .num_tokens = num_tokens,
                                                       .block_size = kv.block_size},
                                                      static_cast<cudaStream_t>(stream));
    return status ? cuda::launch_append(append, false, stream) : status;
  });
}

/// The kernel in front of the attention of a cross group may have written K and V of tokens that
/// count as old ones, so that the two do not overlap.
Status CudaGroupBackend::attend(const KvLayerView& kv, const AttendArgs& given) {
  const std::size_t part = part_of(given.layer);
  const Group& group = groups_[parts_[part].group];
  const bool is_cross = group.table.kind == PagedKind::cross;
  if (given.tree_mask != nullptr && (is_cross || group.table.kind == PagedKind::chunk)) {
    return unsupported(Resource::window, static_cast<std::uint64_t>(group.table.limit_tokens));
  }
  AttentionArgs args = args_for(group, part);
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
  cuda::AttentionStep step = step_for(group);
  step.overlap = step.overlap && !is_cross;
  return launch_layer([&](void* stream) { return cuda::launch_attention(step, args, stream); });
}

Result<std::unique_ptr<Backend>> create_cuda_group_backend(Device& device, const Arena& arena,
                                                           StreamId stream,
                                                           const BackendOptions& options) try {
  auto* cuda = dynamic_cast<CudaDevice*>(&device);
  if (cuda == nullptr) return unsupported(Resource::device);
  Result<GroupDeviceTables> tables =
      GroupDeviceTables::create(*cuda, group_tables_options(*arena.groups(), options));
  if (!tables) return tables.status();
  Result<Workspaces> workspaces = Workspaces::create(device, options.workspaces);
  if (!workspaces) return workspaces.status();
  auto backend = std::make_unique<CudaGroupBackend>(*cuda, stream, std::move(*tables),
                                                    std::move(*workspaces), arena, options);
  if (Status status = backend->create_groups(arena, options); !status) return status;
  return std::unique_ptr<Backend>(std::move(backend));
} catch (const std::bad_alloc&) {
  return exhausted(Resource::host_memory, sizeof(CudaGroupBackend), 0);
}

}  // namespace kvarena
