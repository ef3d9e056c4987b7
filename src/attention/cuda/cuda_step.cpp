#include "attention/cuda/cuda_step.hpp"

#include "attention/cuda/cuda_shapes.hpp"
#include "kernels/columns/columns_workspace.h"
#include "kernels/common/launch_checks.h"
#include "kernels/decode/decode_workspace.h"

#include <algorithm>
#include <limits>

namespace kvarena::cuda {
namespace {

constexpr std::int64_t kVectorBytes = 16;
constexpr std::int64_t kAlignment = 256;

/// Returns whether the kernels of rows with few query tokens can read and write this layer. The one
/// for latents has no soft cap.
bool is_fast(const AttentionArgs& args) noexcept {
  const DType kv = args.kv.key.dtype;
  const bool is_latent = args.kv.key.head_dim == kernels::kLatentDim;
  if (is_latent && args.soft_cap > 0.0F) return false;
  const bool has_types = is_16_bit(args.q_dtype) && args.out_dtype == args.q_dtype &&
                         (kv == args.q_dtype || bytes_of(kv) == 1) &&
                         (!is_latent || args.q_dtype == DType::bf16);
  const std::int64_t strides = args.q_token_stride_bytes | args.out_token_stride_bytes;
  return has_types && kernels::is_aligned(args.q, kVectorBytes) &&
         kernels::is_aligned(args.out, kVectorBytes) && strides % kVectorBytes == 0;
}

/// Whether K and V are fp8.
bool is_fp8(const KvLayerView& kv) noexcept { return kv.key.dtype == DType::fp8_e4m3; }

/// Returns whether the kernel for prompts needs counters.
bool counts_items(const AttentionShape& shape) noexcept {
  return shape.compute_capability / 10 == 9 && has_prompt_plan(shape.kv);
}

/// Returns the parts of the workspace of a step with these limits.
WorkspaceParts parts_of(const StepPlan& plan, const RowClasses& classes,
                        std::int32_t num_rows) noexcept {
  const AttentionStep& step = plan.step;
  WorkspaceParts parts;
  if (classes.decode_tokens > 0) parts.decode_bytes = kernels::decode_workspace_bytes(plan.decode);
  if (classes.column_tokens > 0) {
    parts.columns_bytes = kernels::columns_workspace_bytes(plan.columns);
  }
  parts.needed = kernels::kPrefillCounterBytes + parts.decode_bytes + parts.columns_bytes;
  auto* const base = static_cast<std::byte*>(step.workspace);
  if (base == nullptr) return parts;
  parts.counters = base;
  parts.decode = base + kernels::kPrefillCounterBytes;
  parts.columns = parts.decode + parts.decode_bytes;
  std::byte* end = base + step.workspace_bytes / kAlignment * kAlignment;
  const auto take = [&](std::int64_t bytes) -> std::byte* {
    if (bytes == 0 || end - base - parts.needed < bytes) return nullptr;
    return end -= bytes;
  };
  parts.plan = plan.counts_items ? take(kernels::prefill_plan_bytes(num_rows)) : nullptr;
  if (!step.shares_prefixes || classes.column_tokens == 0) return parts;
  parts.shared_tokens = reinterpret_cast<std::int32_t*>(take(shared_tokens_bytes(num_rows)));
  parts.prefixes_bytes = prefixes_bytes(step.shape, step.shape.max_rows);
  parts.prefixes = parts.shared_tokens != nullptr ? take(parts.prefixes_bytes) : nullptr;
  return parts;
}

/// Returns the kernels of a step. Rows with many query columns are prompts where one launch cannot
/// serve them all, and over latents with a window.
StepKernels step_kernels(const StepPlan& plan, RowClasses classes, bool has_window) noexcept {
  const RowCounts& rows = plan.step.rows;
  const bool has_runs = rows.column_tokens > plan.columns.q_len;  // rows have several
  const std::int64_t runs = has_runs ? plan.step.total_q / kernels::kRunTokens : 0;
  const bool has_latent_window = has_window && plan.columns.head_dim == kernels::kLatentDim;
  const bool is_column_step = rows.columns + runs <= plan.columns.max_rows && !has_latent_window;
  if (!is_column_step) classes.column_tokens = 0;
  const bool has_prefixes = plan.parts.prefixes != nullptr && is_column_step && !has_window &&
                            plan.step.shape.batch_invariant_tokens == 0;
  // One launch serves all rows of such a step, also those that share nothing. Over fp8 decode
  // attention is faster for these.
  if (has_prefixes && !is_fp8(plan.step.shape.kv) &&
      rows.columns + runs + rows.decode <= plan.columns.max_rows) {
    classes.decode_tokens = 0;
  }
  return {.classes = classes,
          .has_decode = rows.decode > 0 && classes.decode_tokens > 0,
          .has_columns = (rows.columns > 0 || has_prefixes) && classes.column_tokens > 0,
          .has_prefixes = has_prefixes,
          .min_prompt = std::max(classes.decode_tokens, classes.column_tokens) + 1,
          .num_prompts = rows.prompts + (is_column_step ? 0 : rows.columns)};
}

/// Returns the leading tokens of each row that it reads together with others, or null.
const std::int32_t* shared_tokens(const StepPlan& plan) noexcept {
  return plan.kernels.has_prefixes ? plan.parts.shared_tokens : nullptr;
}

/// Tells decode attention of the step's rows. With a window they read no more than it, and where
/// their lengths are unknown, that much is assumed.
void describe_rows(const RowCounts& rows, std::int32_t window_tokens,
                   kernels::DecodeLimits& limits) noexcept {
  limits.step_tokens = rows.decode_tokens;
  const bool is_known = rows.decode_length > 0;
  if (rows.decode < 1 || (!is_known && window_tokens == 0)) return;
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  const std::int64_t seen = std::int64_t{window_tokens} + rows.decode_tokens - 1;
  const std::int64_t most = window_tokens > 0 ? std::min(seen, kMost) : kMost;
  const std::int64_t mean = is_known ? (rows.decode_length - 1) / rows.decode + 1 : most;
  const std::int64_t longest =
      is_known ? std::min(std::max<std::int64_t>(rows.decode_longest, mean), most) : most;
  limits.step_rows = rows.decode;
  limits.step_longest = static_cast<std::int32_t>(longest);
  limits.step_row_tokens = static_cast<std::int32_t>(std::min(mean, longest));
}

}  // namespace

StepPlan plan_step(const AttentionStep& step, std::int32_t num_rows,
                   std::int32_t window_tokens) noexcept {
  const AttentionShape& shape = step.shape;
  const RowClasses classes = row_classes(shape);
  StepPlan plan{.step = step,
                .counts_items = counts_items(shape),
                .decode = decode_limits(shape, shape.max_rows, std::max(1, classes.decode_tokens)),
                .columns = columns_limits(shape, shape.max_rows, step.rows.column_tokens,
                                          step.shares_prefixes),
                .parts = {},
                .kernels = {}};
  describe_rows(step.rows, window_tokens, plan.decode);
  plan.parts = parts_of(plan, classes, num_rows);
  plan.kernels = step_kernels(plan, classes, window_tokens != 0);
  return plan;
}

StepKernels layer_kernels(const StepPlan& plan, const AttentionArgs& args) noexcept {
  const StepKernels& kernels = plan.kernels;
  AttentionShape shape = plan.step.shape;
  shape.kv = args.kv;
  shape.num_q_heads = args.num_q_heads;
  const bool can_decode = !kernels.has_decode || takes_decode(shape.kv, shape.num_q_heads);
  const bool can_do_columns = !kernels.has_columns || takes_columns(shape);
  if (is_fast(args) && can_decode && can_do_columns) return kernels;
  const RowCounts& rows = plan.step.rows;
  return {.classes = {}, .num_prompts = rows.decode + rows.columns + rows.prompts};
}

kernels::FindPrefixesParams find_prefixes(const StepPlan& plan,
                                          const AttentionArgs& args) noexcept {
  kernels::FindPrefixesParams params{.limits = plan.columns,
                                     .seq_lens = args.batch.seq_lens,
                                     .q_offsets = args.q_offsets,
                                     .row_slots = plan.step.row_slots,
                                     .num_rows = args.batch.num_rows,
                                     .window_tokens = args.window_tokens,
                                     .block_size = plan.step.shape.kv.block_size,
                                     .block_tables = args.batch.tables.entries,
                                     .table_stride = plan.step.table_stride,
                                     .shared_tokens = plan.parts.shared_tokens,
                                     .prefixes = plan.parts.prefixes,
                                     .prefixes_bytes = plan.parts.prefixes_bytes};
  // A token of fp8 takes half of the time, so what does not depend on it is twice as many. Own
  // tokens of a row that decode attention would serve take 1.4 times as long.
  if (is_fp8(plan.step.shape.kv)) {
    params.saved_sixteenths = 10;
    params.own_sixteenths = plan.step.rows.decode > 0 ? 7 : 0;
    params.member_tokens *= 2;
    params.group_tokens *= 2;
  }
  return params;
}

kernels::DecodeScheduleParams decode_schedule(const StepPlan& plan,
                                              const AttentionArgs& args) noexcept {
  return {.limits = plan.decode,
          .seq_lens = args.batch.seq_lens,
          .row_slots = plan.step.row_slots,
          .q_offsets = args.q_offsets,
          .shared_tokens = shared_tokens(plan),
          .num_rows = args.batch.num_rows,
          .window_tokens = args.window_tokens,
          .fixed_parts = plan.step.shape.batch_invariant_tokens > 0,
          .workspace = plan.parts.decode,
          .workspace_bytes = plan.parts.decode_bytes};
}

kernels::ColumnsScheduleParams columns_schedule(const StepPlan& plan,
                                                const AttentionArgs& args) noexcept {
  return {.limits = plan.columns,
          .min_q_len = plan.kernels.classes.decode_tokens + 1,
          .max_q_len = std::max(plan.columns.q_len, plan.step.rows.column_tokens),
          .seq_lens = args.batch.seq_lens,
          .q_offsets = args.q_offsets,
          .row_slots = plan.step.row_slots,
          .num_rows = args.batch.num_rows,
          .window_tokens = args.window_tokens,
          .shared_tokens = shared_tokens(plan),
          .prefixes = plan.kernels.has_prefixes ? plan.parts.prefixes : nullptr,
          .fixed_parts = plan.step.shape.batch_invariant_tokens > 0,
          .workspace = plan.parts.columns,
          .workspace_bytes = plan.parts.columns_bytes};
}

kernels::DecodeParams decode_params(const StepPlan& plan, const AttentionArgs& args) noexcept {
  return {.limits = plan.decode,
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
          .table_stride = plan.step.table_stride,
          .num_rows = args.batch.num_rows,
          .max_q_len = plan.step.rows.decode_tokens,
          .window_tokens = args.window_tokens,
          .dtype = args.q_dtype,
          .scales = args.scales,
          .scale = args.scale,
          .soft_cap = args.soft_cap,
          .workspace = plan.parts.decode,
          .workspace_bytes = plan.parts.decode_bytes,
          .q_token_stride = args.q_token_stride_bytes,
          .out_token_stride = args.out_token_stride_bytes};
}

kernels::ColumnsParams columns_params(const StepPlan& plan, const AttentionArgs& args) noexcept {
  return {.limits = plan.columns,
          .q = args.q,
          .out = args.out,
          .lse = args.lse,
          .sinks = args.sinks,
          .tree_mask = args.tree_mask,
          .key = args.kv.key.base,
          .value = args.kv.value.base,
          .block_stride = args.kv.key.block_stride,
          .head_stride = args.kv.key.head_stride,
          .value_head_stride = args.kv.value.head_stride,
          .block_size = args.kv.block_size,
          .block_tables = args.batch.tables.entries,
          .table_stride = plan.step.table_stride,
          .num_rows = args.batch.num_rows,
          .window_tokens = args.window_tokens,
          .prefixes = plan.kernels.has_prefixes ? plan.parts.prefixes : nullptr,
          .dtype = args.q_dtype,
          .scales = args.scales,
          .scale = args.scale,
          .soft_cap = args.soft_cap,
          .workspace = plan.parts.columns,
          .workspace_bytes = plan.parts.columns_bytes,
          .q_token_stride = args.q_token_stride_bytes,
          .out_token_stride = args.out_token_stride_bytes};
}

kernels::PrefillParams prefill_params(const StepPlan& plan, const AttentionArgs& args,
                                      const StepKernels& kernels) noexcept {
  // launch_schedule plans the prompts of layers that the other kernels can read.
  const bool is_planned = kernels.classes == plan.kernels.classes;
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
                        .sinks = args.sinks,
                        .q_token_stride = args.q_token_stride_bytes,
                        .out_token_stride = args.out_token_stride_bytes},
          .total_q = plan.step.total_q,
          .min_q_len = kernels.min_prompt,
          .row_slots = plan.step.row_slots,
          .num_prompts = kernels.num_prompts,
          .has_fixed_tiles = plan.step.shape.batch_invariant_tokens > 0,
          .num_sms = plan.step.shape.num_sms,
          .compute_capability = plan.step.shape.compute_capability,
          .counters = reinterpret_cast<kernels::PrefillCounters*>(
              plan.counts_items ? plan.parts.counters : nullptr),
          .plan = reinterpret_cast<kernels::PrefillPlan*>(is_planned ? plan.parts.plan : nullptr)};
}

}  // namespace kvarena::cuda
