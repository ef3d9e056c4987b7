#include "attention/cuda/cuda_step.hpp"

#include "attention/cuda/cuda_shapes.hpp"
#include "kernels/columns/columns_workspace.h"
#include "kernels/common/launch_checks.h"
#include "kernels/decode/decode_workspace.h"

#include <algorithm>

namespace kvarena::cuda {
namespace {

constexpr std::int64_t kVectorBytes = 16;
constexpr std::int64_t kAlignment = 256;

/// Returns whether the kernels of rows with few query tokens can read and write this layer.
bool is_fast(const AttentionArgs& args) noexcept {
  const DType kv = args.kv.key.dtype;
  const bool has_types = is_16_bit(args.q_dtype) && args.out_dtype == args.q_dtype &&
                         (kv == DType::fp8_e4m3 || kv == args.q_dtype);
  return has_types && kernels::is_aligned(args.q, kVectorBytes) &&
         kernels::is_aligned(args.out, kVectorBytes);
}

/// Returns whether a step looks for rows that begin with the same blocks.
bool finds_prefixes(const AttentionStep& step, const AttentionArgs& args) noexcept {
  return step.shares_prefixes && args.window_tokens == 0 &&
         step.shape.batch_invariant_tokens == 0 &&
         parts_of(step, args.batch.num_rows).prefixes != nullptr;
}

}  // namespace

StepKernels step_kernels(const AttentionStep& step, const AttentionArgs& args) noexcept {
  const RowClasses classes = row_classes(step.shape);
  const std::int32_t num_rows = args.batch.num_rows;
  const bool has_prefixes = finds_prefixes(step, args);
  const std::int32_t num_prompts = num_rows - step.rows.decode - step.rows.columns;
  return {.classes = classes,
          .has_decode = step.rows.decode > 0 && classes.decode_tokens > 0,
          .has_columns = (step.rows.columns > 0 || has_prefixes) && classes.column_tokens > 0,
          .has_prompts = num_prompts > 0,
          .has_prefixes = has_prefixes,
          .min_prompt = std::max(classes.decode_tokens, classes.column_tokens) + 1,
          .num_prompts = num_prompts};
}

StepKernels layer_kernels(const AttentionStep& step, const AttentionArgs& args) noexcept {
  StepKernels kernels = step_kernels(step, args);
  AttentionShape shape = step.shape;
  shape.kv = args.kv;
  shape.num_q_heads = args.num_q_heads;
  const bool can_decode = !kernels.has_decode || takes_decode(shape.kv, shape.num_q_heads);
  const bool can_do_columns = !kernels.has_columns || takes_columns(shape);
  if (is_fast(args) && can_decode && can_do_columns) return kernels;
  return {.classes = {},
          .has_prompts = args.batch.num_rows > 0,
          .min_prompt = 1,
          .num_prompts = args.batch.num_rows};
}

bool counts_items(const AttentionShape& shape) noexcept {
  return shape.compute_capability / 10 == 9 && has_prompt_plan(shape.kv);
}

kernels::DecodeLimits decode_limits(const AttentionStep& step) noexcept {
  const RowClasses classes = row_classes(step.shape);
  return decode_limits(step.shape, step.shape.max_rows, std::max(1, classes.decode_tokens));
}

kernels::ColumnsLimits columns_limits(const AttentionStep& step) noexcept {
  return columns_limits(step.shape, step.shape.max_rows, step.rows.column_tokens,
                        step.shares_prefixes);
}

WorkspaceParts parts_of(const AttentionStep& step, std::int32_t num_rows) noexcept {
  const RowClasses classes = row_classes(step.shape);
  auto* const base = static_cast<std::byte*>(step.workspace);
  WorkspaceParts parts;
  parts.counters = base;
  parts.decode = base + kernels::kPrefillCounterBytes;
  if (classes.decode_tokens > 0) {
    parts.decode_bytes = kernels::decode_workspace_bytes(decode_limits(step));
  }
  parts.columns = parts.decode + parts.decode_bytes;
  if (classes.column_tokens > 0) {
    parts.columns_bytes = kernels::columns_workspace_bytes(columns_limits(step));
  }
  parts.needed = parts.columns + parts.columns_bytes - base;
  std::byte* end = base + step.workspace_bytes / kAlignment * kAlignment;
  const auto take = [&](std::int64_t bytes) -> std::byte* {
    if (bytes == 0 || end - base - parts.needed < bytes) return nullptr;
    return end -= bytes;
  };
  parts.plan = counts_items(step.shape) ? take(kernels::prefill_plan_bytes(num_rows)) : nullptr;
  if (!step.shares_prefixes || classes.column_tokens == 0) return parts;
  parts.shared_tokens = take(shared_tokens_bytes(num_rows));
  parts.prefixes_bytes = prefixes_bytes(step.shape, step.shape.max_rows);
  parts.prefixes = parts.shared_tokens != nullptr ? take(parts.prefixes_bytes) : nullptr;
  return parts;
}

kernels::FindPrefixesParams find_prefixes(const AttentionStep& step,
                                          const AttentionArgs& args) noexcept {
  const WorkspaceParts parts = parts_of(step, args.batch.num_rows);
  return {.limits = columns_limits(step),
          .seq_lens = args.batch.seq_lens,
          .q_offsets = args.q_offsets,
          .row_slots = step.row_slots,
          .num_rows = args.batch.num_rows,
          .window_tokens = args.window_tokens,
          .block_size = step.shape.kv.block_size,
          .block_tables = args.batch.tables.entries,
          .table_stride = step.table_stride,
          .shared_tokens = reinterpret_cast<std::int32_t*>(parts.shared_tokens),
          .prefixes = parts.prefixes,
          .prefixes_bytes = parts.prefixes_bytes};
}

kernels::DecodeScheduleParams decode_schedule(const AttentionStep& step,
                                              const AttentionArgs& args) noexcept {
  const WorkspaceParts parts = parts_of(step, args.batch.num_rows);
  const auto* const shared_tokens = finds_prefixes(step, args)
                                        ? reinterpret_cast<const std::int32_t*>(parts.shared_tokens)
                                        : nullptr;
  return {.limits = decode_limits(step),
          .seq_lens = args.batch.seq_lens,
          .row_slots = step.row_slots,
          .q_offsets = args.q_offsets,
          .shared_tokens = shared_tokens,
          .num_rows = args.batch.num_rows,
          .window_tokens = args.window_tokens,
          .fixed_parts = step.shape.batch_invariant_tokens > 0,
          .workspace = parts.decode,
          .workspace_bytes = parts.decode_bytes};
}

kernels::ColumnsScheduleParams columns_schedule(const AttentionStep& step,
                                                const AttentionArgs& args) noexcept {
  const WorkspaceParts parts = parts_of(step, args.batch.num_rows);
  const auto* const shared_tokens = finds_prefixes(step, args)
                                        ? reinterpret_cast<const std::int32_t*>(parts.shared_tokens)
                                        : nullptr;
  return {.limits = columns_limits(step),
          .min_q_len = row_classes(step.shape).decode_tokens + 1,
          .seq_lens = args.batch.seq_lens,
          .q_offsets = args.q_offsets,
          .row_slots = step.row_slots,
          .num_rows = args.batch.num_rows,
          .window_tokens = args.window_tokens,
          .shared_tokens = shared_tokens,
          .prefixes = shared_tokens != nullptr ? parts.prefixes : nullptr,
          .fixed_parts = step.shape.batch_invariant_tokens > 0,
          .workspace = parts.columns,
          .workspace_bytes = parts.columns_bytes};
}

kernels::DecodeParams decode_params(const AttentionStep& step, const AttentionArgs& args) noexcept {
  const WorkspaceParts parts = parts_of(step, args.batch.num_rows);
  return {.limits = decode_limits(step),
          .q = args.q,
          .out = args.out,
          .lse = args.lse,
          .sinks = args.sinks,
          .key = args.kv.key.base,
          .value = args.kv.value.base,
          .block_stride = args.kv.key.block_stride,
          .head_stride = args.kv.key.head_stride,
          .block_size = args.kv.block_size,
          .block_tables = args.batch.tables.entries,
          .table_stride = step.table_stride,
          .num_rows = args.batch.num_rows,
          .max_q_len = step.rows.decode_tokens,
          .window_tokens = args.window_tokens,
          .dtype = args.q_dtype,
          .scales = args.scales,
          .scale = args.scale,
          .soft_cap = args.soft_cap,
          .workspace = parts.decode,
          .workspace_bytes = parts.decode_bytes};
}

kernels::ColumnsParams columns_params(const AttentionStep& step,
                                      const AttentionArgs& args) noexcept {
  const WorkspaceParts parts = parts_of(step, args.batch.num_rows);
  return {.limits = columns_limits(step),
          .q = args.q,
          .out = args.out,
          .lse = args.lse,
          .sinks = args.sinks,
          .tree_mask = args.tree_mask,
          .key = args.kv.key.base,
          .value = args.kv.value.base,
          .block_stride = args.kv.key.block_stride,
          .head_stride = args.kv.key.head_stride,
          .block_size = args.kv.block_size,
          .block_tables = args.batch.tables.entries,
          .table_stride = step.table_stride,
          .num_rows = args.batch.num_rows,
          .window_tokens = args.window_tokens,
          .prefixes = finds_prefixes(step, args) ? parts.prefixes : nullptr,
          .dtype = args.q_dtype,
          .scale = args.scale,
          .soft_cap = args.soft_cap,
          .workspace = parts.columns,
          .workspace_bytes = parts.columns_bytes};
}

kernels::PrefillParams prefill_params(const AttentionStep& step, const AttentionArgs& args,
                                      const StepKernels& kernels) noexcept {
  const bool has_counters = counts_items(step.shape);
  const WorkspaceParts parts =
      has_counters ? parts_of(step, args.batch.num_rows) : WorkspaceParts{};
  // launch_schedule plans the prompts of layers that the other kernels can read.
  const bool is_planned = kernels.classes == row_classes(step.shape);
  std::byte* const plan = is_planned ? parts.plan : nullptr;
  return {.attention = {.kv = args.kv,
                        .batch = args.batch,
                        .q_offsets = args.q_offsets,
                        .q = args.q,
                        .out = args.out,
                        .lse = args.lse,
                        .num_q_heads = args.num_q_heads,
                        .window_tokens = args.window_tokens,
                        .scale = args.scale,
                        .soft_cap = args.soft_cap,
                        .q_dtype = args.q_dtype,
                        .out_dtype = args.out_dtype,
                        .scales = args.scales,
                        .sinks = args.sinks},
          .total_q = step.total_q,
          .min_q_len = kernels.min_prompt,
          .row_slots = step.row_slots,
          .num_prompts = kernels.num_prompts,
          .has_fixed_tiles = step.shape.batch_invariant_tokens > 0,
          .num_sms = step.shape.num_sms,
          .compute_capability = step.shape.compute_capability,
          .counters = reinterpret_cast<kernels::PrefillCounters*>(parts.counters),
          .plan = reinterpret_cast<kernels::PrefillPlan*>(plan)};
}

}  // namespace kvarena::cuda
