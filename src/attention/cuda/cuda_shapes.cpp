#include "attention/cuda/cuda_shapes.hpp"

#include "attention/validate.hpp"
#include "base/range_checks.hpp"
#include "kernels/columns/columns_workspace.h"
#include "kernels/common/launch_checks.h"
#include "kernels/decode/decode_workspace.h"
#include "kernels/prefill/prefill_order.h"
#include "kernels/prefill/prefill_plan.h"
#include "kvarena/base/latent_fp8.hpp"

#include <algorithm>

namespace kvarena::cuda {
namespace {

constexpr std::int64_t kMaxRows = std::int64_t{1} << 20;
constexpr std::int64_t kMaxDecodeTokens = 16;
constexpr std::int64_t kMaxFixedTokens = std::int64_t{1} << 28;
constexpr std::int64_t kMaxSharedRows = 4096;
constexpr std::int64_t kMaxRunTokens = std::int64_t{1} << 20;
constexpr std::int64_t kMaxSms = 4096;
constexpr std::int64_t kMaxHeadDim = 4096;
constexpr std::int64_t kMaxPrefillHeadDim = 1024;
constexpr std::int64_t kVectorBytes = 16;
/// With more work items (rows x KV heads) than this for each multiprocessor, usual_shape always
/// returns the same launch shape.
constexpr std::int64_t kShapedItems = 2;
/// Query columns that thread blocks of the columns kernel have.
constexpr std::int32_t kNarrowColumns = 64;
constexpr std::int32_t kWideColumns = 128;

/// Whether V is the leading elements of K, as the kernel for latents takes them.
bool is_latent(const KvLayerView& kv) noexcept {
  return kv.key.head_dim == kernels::kLatentDim && kv.value.head_dim == kernels::kLatentValueDim &&
         kv.key.num_heads == 1 && kv.value.base == kv.key.base && !kernels::has_own_scales(kv) &&
         kv.value.token_stride == row_bytes(kv.key.dtype, kernels::kLatentDim);
}

/// Whether V has fewer dims than K as the kernel for many query columns takes them.
bool has_short_values(const KvLayerView& kv) noexcept {
  return kv.key.head_dim == kernels::kLongKeyDim && kv.value.head_dim == kernels::kShortValueDim;
}

/// Whether rows may have more than kRunTokens query tokens, which are several runs then.
bool may_have_runs(const AttentionShape& shape) noexcept {
  const std::int64_t group = shape.num_q_heads / std::max(1, shape.kv.key.num_heads);
  const bool is_short = has_short_values(shape.kv) && shape.batch_invariant_tokens == 0 &&
                        kernels::kRunTokens * group <= kernels::kMaxColumns;
  // One kernel serves a row in every step.
  const bool is_one_launch =
      shape.batch_invariant_tokens == 0 ||
      shape.max_rows + shape.max_run_tokens / kernels::kRunTokens <= kernels::kMaxColumnsRows;
  return (is_latent(shape.kv) || is_short) && shape.max_run_tokens > 0 && is_one_launch;
}

/// Returns the most query columns of a row with runs where the launch shape is that of `columns`.
std::int32_t run_columns(std::int64_t columns, bool is_latent) noexcept {
  if (!is_latent) {
    return columns <= kNarrowColumns ? kNarrowColumns
           : columns <= kWideColumns ? kWideColumns
                                     : static_cast<std::int32_t>(kernels::kMaxColumns);
  }
  for (const std::int32_t most : {16, 32, 64}) {
    if (columns <= most) return most;
  }
  return static_cast<std::int32_t>(kernels::kMaxLatentColumns);
}

/// Returns the query columns of rows that decode attention serves where the kernel for many query
/// columns serves those with more: with two operands for each tile it is faster up to 16.
std::int32_t decode_columns(const AttentionShape& shape) noexcept {
  const std::int32_t group = std::max(1, shape.num_q_heads / std::max(1, shape.kv.key.num_heads));
  const std::int32_t both = 2 * kernels::kColumns;
  const auto limits = decode_limits(shape, shape.max_rows, std::max(1, both / group));
  return kernels::may_have_two_operands(limits) ? both : kernels::kColumns;
}

/// Checks that the kernel for many query columns can serve all rows of a step where no other may:
/// the others mask no draft trees and round differently.
Status check_columns_rows(const AttentionShape& shape) noexcept {
  const bool is_bound = shape.draft_trees || shape.batch_invariant_tokens > 0;
  if (!is_bound || !takes_columns(shape)) return {};
  const std::int64_t most = kernels::most_columns_rows(columns_limits(shape, 1, 1, false));
  return check_each({{Option::max_rows, shape.max_rows, 1, most}});
}

/// Whether K and V are in chunked order, of one type, and not a part of each other.
bool has_chunks_alike(const KvLayerView& kv) noexcept {
  const PlaneView& key = kv.key;
  const PlaneView& value = kv.value;
  const bool is_chunked =
      key.tile_order == TileOrder::chunked && value.tile_order == TileOrder::chunked;
  const bool is_dense = kernels::has_own_chunks(key) && kernels::has_own_chunks(value);
  return is_chunked && is_dense && kv.block_size % kTileTokens == 0 && value.dtype == key.dtype &&
         !kernels::has_own_scales(kv);
}

/// Whether a plane can be read in 16-byte vectors.
bool has_vectors(const PlaneView& plane) noexcept {
  return kernels::is_aligned(plane.base, kVectorBytes) &&
         (plane.block_stride | plane.head_stride) % kVectorBytes == 0;
}

}  // namespace

Status check_shape(const AttentionShape& shape) noexcept {
  if (Status s = check_each({
          {Option::max_rows, shape.max_rows, 1, kMaxRows},
          {Option::max_decode_tokens, shape.max_decode_tokens, 1, kMaxDecodeTokens},
          {Option::num_sms, shape.num_sms, 1, kMaxSms},
          {Option::batch_invariant_tokens, shape.batch_invariant_tokens, 0, kMaxFixedTokens},
          {Option::max_shared_rows, shape.max_shared_rows, 0, kMaxSharedRows},
          {Option::max_step_tokens, shape.max_run_tokens, 0, kMaxRunTokens},
      });
      !s) {
    return s;
  }
  for (const PlaneView* plane : {&shape.kv.key, &shape.kv.value}) {
    if (Status s = kernels::in_range(Resource::head_dim, plane->head_dim, 1, kMaxHeadDim); !s) {
      return s;
    }
  }
  AttentionArgs args;
  args.num_q_heads = shape.num_q_heads;
  args.kv = shape.kv;
  args.scale = 1.0F;
  if (Status s = attention::check_numbers(args); !s) return s;
  return check_columns_rows(shape);
}

Status check_layer(const KvLayerView& kv) noexcept {
  if (Status s = kernels::check_layer(kv); !s) return s;
  for (const PlaneView* plane : {&kv.key, &kv.value}) {
    if (plane->dtype == DType::int8) {
      return unsupported(Resource::dtype, static_cast<std::uint64_t>(plane->dtype));
    }
    if (plane->head_dim > kMaxPrefillHeadDim) {
      return unsupported(Resource::head_dim, static_cast<std::uint64_t>(plane->head_dim));
    }
  }
  return {};
}

kernels::DecodeLimits decode_limits(const AttentionShape& shape, std::int32_t rows,
                                    std::int32_t tokens) noexcept {
  return {.max_rows = rows,
          .q_len = tokens,
          .num_q_heads = shape.num_q_heads,
          .num_kv_heads = shape.kv.key.num_heads,
          .head_dim = shape.kv.key.head_dim,
          .num_sms = shape.num_sms,
          .has_clusters = shape.compute_capability >= 90,
          .kv_dtype = shape.kv.key.dtype,
          .fixed_tokens = shape.batch_invariant_tokens};
}

kernels::ColumnsLimits columns_limits(const AttentionShape& shape, std::int32_t rows,
                                      std::int32_t tokens, bool shares_prefixes) noexcept {
  const std::int32_t group = std::max(1, shape.num_q_heads / std::max(1, shape.kv.key.num_heads));
  const bool shares = shares_prefixes && shape.batch_invariant_tokens == 0 &&
                      !is_latent(shape.kv) && !has_short_values(shape.kv);
  const std::int32_t sharers = shares ? std::min(rows, shape.max_shared_rows) : 0;
  const std::int32_t shared_rows = rows <= kernels::kMaxColumnsRows - sharers ? sharers : 0;
  const std::int32_t head_dim = shape.kv.key.head_dim;
  const bool is_wide = (shared_rows > 0 && kernels::has_wide_prefixes(head_dim)) ||
                       std::int64_t{tokens} * group > kNarrowColumns;
  const std::int64_t columns = std::int64_t{tokens} * group;
  const std::int32_t most = is_latent(shape.kv) || may_have_runs(shape)
                                ? run_columns(columns, is_latent(shape.kv)) / group
                                : (is_wide ? kWideColumns : kNarrowColumns) / group;
  kernels::ColumnsLimits limits{
      .max_rows = rows,
      .q_len = std::clamp(most, 1, attention::kMaxTreeTokens),
      .num_q_heads = shape.num_q_heads,
      .num_kv_heads = shape.kv.key.num_heads,
      .head_dim = head_dim,
      .value_dim = has_short_values(shape.kv) ? kernels::kShortValueDim : 0,
      .num_sms = shape.num_sms,
      .kv_dtype = shape.kv.key.dtype,
      .fixed_tokens = shape.batch_invariant_tokens,
      .shared_rows = shared_rows};
  std::int64_t entries = rows;
  if (may_have_runs(shape) && limits.q_len == kernels::kRunTokens) {
    entries += shape.max_run_tokens / kernels::kRunTokens;
  }
  limits.max_rows = static_cast<std::int32_t>(
      std::min<std::int64_t>(entries, kernels::most_columns_rows(limits)));
  return limits;
}

bool has_prompt_plan(const KvLayerView& kv) noexcept { return kernels::has_hopper_order(kv); }

bool takes_decode(const KvLayerView& kv, std::int32_t num_q_heads) noexcept {
  const PlaneView& key = kv.key;
  const PlaneView& value = kv.value;
  const bool is_narrow = is_16_bit(key.dtype) || key.dtype == DType::fp8_e4m3;
  const bool is_chunked = key.tile_order == TileOrder::chunked &&
                          value.tile_order == TileOrder::chunked &&
                          kv.block_size % kTileTokens == 0;
  const std::int32_t dims[] = {64, 96, 128, 256};
  return is_narrow && is_chunked && !kernels::has_own_scales(kv) && kernels::has_own_chunks(key) &&
         kernels::has_own_chunks(value) && value.dtype == key.dtype &&
         value.head_dim == key.head_dim && value.block_stride == key.block_stride &&
         value.head_stride == key.head_stride &&
         std::find(std::begin(dims), std::end(dims), key.head_dim) != std::end(dims) &&
         num_q_heads <= std::int64_t{key.num_heads} * kernels::kMaxDecodeGroup &&
         has_vectors(key) && has_vectors(value);
}

bool takes_columns(const AttentionShape& shape) noexcept {
  const PlaneView& key = shape.kv.key;
  const PlaneView& value = shape.kv.value;
  const bool has_rows = key.dtype == DType::latent_fp8 ||
                        (key.tile_order == TileOrder::chunked && kernels::has_own_chunks(key));
  const bool has_order = is_latent(shape.kv)
                             ? has_rows && shape.kv.block_size % kTileTokens == 0
                             : has_chunks_alike(shape.kv) &&
                                   (value.head_dim == key.head_dim || has_short_values(shape.kv));
  return has_order && value.block_stride == key.block_stride && has_vectors(key) &&
         has_vectors(value) && shape.num_q_heads <= std::int64_t{key.num_heads} * kWideColumns &&
         kernels::check_columns_limits(columns_limits(shape, 1, 1, false)).code == StatusCode::ok;
}

RowClasses row_classes(const AttentionShape& shape) noexcept {
  if (shape.kv.key.num_heads < 1 || shape.num_q_heads < shape.kv.key.num_heads) return {};
  const bool has_columns = shape.compute_capability / 10 == 9 && takes_columns(shape);
  const bool has_decode = takes_decode(shape.kv, shape.num_q_heads);
  if (!has_columns) return {.decode_tokens = has_decode ? shape.max_decode_tokens : 0};
  const std::int32_t group = shape.num_q_heads / shape.kv.key.num_heads;
  const bool is_decode = has_decode && !shape.draft_trees;
  if (may_have_runs(shape)) return {.column_tokens = kernels::kMaxRunsTokens};
  // One launch shape for all rows, so that cuts do not depend on the batch. Those of latents cut
  // alike.
  const bool is_bound = shape.batch_invariant_tokens > 0 && !is_latent(shape.kv);
  const std::int32_t most = is_bound ? 1 : kWideColumns;
  return {.decode_tokens = is_decode ? decode_columns(shape) / group : 0,
          .column_tokens = columns_limits(shape, 1, most, false).q_len};
}

/// A smaller number of query tokens may need more memory, so the largest size counts.
std::int64_t rows_bytes(const AttentionShape& shape, std::int32_t rows) noexcept {
  std::int64_t decode = 0;
  if (takes_decode(shape.kv, shape.num_q_heads)) {
    const std::int32_t group = shape.num_q_heads / shape.kv.key.num_heads;
    const std::int32_t most = std::max(shape.max_decode_tokens, decode_columns(shape) / group);
    for (std::int32_t tokens = 1; tokens <= most; ++tokens) {
      decode =
          std::max(decode, kernels::decode_workspace_bytes(decode_limits(shape, rows, tokens)));
    }
  }
  if (!takes_columns(shape)) return decode;
  std::int64_t columns = 0;
  for (const std::int32_t tokens : {1, 2, 4, 8, 16, 32, 64, kWideColumns}) {
    for (const bool shares : {false, true}) {
      const kernels::ColumnsLimits limits = columns_limits(shape, rows, tokens, shares);
      columns = std::max(columns, kernels::columns_workspace_bytes(limits));
    }
  }
  return decode + columns;
}

std::int64_t prefixes_bytes(const AttentionShape& shape, std::int32_t rows) noexcept {
  if (!takes_columns(shape)) return 0;
  std::int64_t bytes = 0;
  for (const std::int32_t tokens : {1, kWideColumns}) {
    const kernels::ColumnsLimits limits = columns_limits(shape, rows, tokens, true);
    if (limits.shared_rows > 0) bytes = std::max(bytes, kernels::shared_prefixes_bytes(limits));
  }
  return bytes;
}

std::int64_t shared_bytes(const AttentionShape& shape, std::int32_t rows) noexcept {
  const std::int64_t prefixes = prefixes_bytes(shape, rows);
  return prefixes > 0 ? prefixes + shared_tokens_bytes(rows) : 0;
}

/// The counters of prompts, the largest size of the other kernels' parts over all numbers of rows
/// that the shape serves, and the plan of prompts.
Result<std::int64_t> workspace_bytes(const AttentionShape& shape) noexcept {
  if (Status s = check_shape(shape); !s) return s;
  if (Status s = check_layer(shape.kv); !s) return s;
  if (!has_prompt_plan(shape.kv) && !takes_columns(shape)) return std::int64_t{0};
  // With the same launch shape, more rows never need less memory. Fewer rows may have another
  // launch shape that needs more.
  const std::int64_t shaped = kShapedItems * shape.num_sms / shape.kv.key.num_heads + 1;
  const auto few = static_cast<std::int32_t>(std::min<std::int64_t>(shape.max_rows, shaped));
  std::int64_t most = rows_bytes(shape, shape.max_rows);
  for (std::int32_t rows = 1; rows <= few; ++rows) most = std::max(most, rows_bytes(shape, rows));
  // Steps of more rows share no prefixes.
  const std::int32_t sharing =
      std::min(shape.max_rows, kernels::kMaxColumnsRows - shape.max_shared_rows);
  most = std::max(most, rows_bytes(shape, sharing));
  return kernels::kPrefillCounterBytes + kernels::prefill_plan_bytes(shape.max_rows) + most +
         std::max(shared_bytes(shape, sharing), shared_bytes(shape, shape.max_rows));
}

}  // namespace kvarena::cuda
