#pragma once

/// @file
/// Which tokens a query of prefill sees, and how logits are scaled: shared by both kernels.

#include "kernels/params.h"

namespace kvarena::kernels {

/// A row of the batch as prefill sees it.
struct PrefillRow {
  std::int32_t row;      ///< of the batch
  std::int64_t first_q;  ///< its first query token
  std::int32_t count;    ///< its query tokens
  std::int32_t seq_len;  ///< its tokens, the query tokens included
};

/// Row `row` of the batch. A row that another kernel serves, or that is skipped, has no query
/// tokens.
__device__ inline PrefillRow load_row(const PrefillParams& params, std::int32_t row) {
  const AttentionParams& p = params.attention;
  PrefillRow loaded{row, row, 1, p.batch.seq_lens[row]};
  if (p.q_offsets != nullptr) {
    loaded.first_q = p.q_offsets[row];
    loaded.count = static_cast<std::int32_t>(p.q_offsets[row + 1] - loaded.first_q);
  }
  const bool is_skipped = params.row_slots != nullptr && params.row_slots[row] < 0;
  if (is_skipped || loaded.count < params.min_q_len) loaded.count = 0;
  return loaded;
}

/// Query tokens of the rows before `row`: q_offsets need not begin at 0.
__device__ inline std::int64_t tokens_before(const AttentionParams& p, std::int32_t row) {
  return p.q_offsets == nullptr ? row : p.q_offsets[row] - p.q_offsets[0];
}

/// The row to which piece `piece` belongs when row r's pieces of `size` query tokens begin at
/// tokens_before(r) / size + r: enough places for each row, found without a table of them. The
/// piece's first query token may lie past the row: then there is nothing to do.
__device__ inline std::int32_t row_of_piece(const AttentionParams& p, std::int64_t piece,
                                            std::int32_t size) {
  std::int32_t low = 0;
  std::int32_t high = p.batch.num_rows;
  while (high - low > 1) {
    const std::int32_t middle = low + (high - low) / 2;
    (tokens_before(p, middle) / size + middle <= piece ? low : high) = middle;
  }
  return low;
}

/// The first piece of a row, as row_of_piece counts.
__device__ inline std::int64_t first_piece(const AttentionParams& p, const PrefillRow& row,
                                           std::int32_t size) {
  return tokens_before(p, row.row) / size + row.row;
}

/// Tokens begin .. end - 1 that query token `i` of a row sees; none when end <= begin.
struct Visible {
  std::int32_t begin;
  std::int32_t end;
};
__device__ inline Visible visible_to(const AttentionParams& p, const PrefillRow& row,
                                     std::int32_t i) {
  const std::int32_t end = row.seq_len == 0 ? 0 : max(0, row.seq_len - row.count + i + 1);
  return {p.window_tokens > 0 ? max(0, end - p.window_tokens) : 0, end};
}

/// A logit from a dot product.
__device__ inline float logit_of(const AttentionParams& p, float dot) {
  const float x = dot * p.scale;
  return p.soft_cap > 0.0F ? p.soft_cap * tanhf(x / p.soft_cap) : x;
}

/// How a softmax ends: what weighted values are multiplied by, and the log-sum-exp.
struct SoftmaxEnd {
  float share;
  float lse;
};

/// The end for a query head with its sink: `sum` is of the weights of all tokens against their
/// largest logit `top`, 0 when none is seen. Everything is taken against the larger of `top` and
/// the sink, so that a sink far above every logit overflows nothing.
__device__ inline SoftmaxEnd end_softmax(const AttentionParams& p, int head, float top, float sum) {
  if (sum == 0.0F) return {0.0F, -INFINITY};
  const float sink = p.sinks == nullptr ? -INFINITY : p.sinks[head];
  const float most = fmaxf(top, sink);
  const float shrink = expf(top - most);
  const float total = sum * shrink + (sink == most ? 1.0F : expf(sink - most));
  return {shrink / total, most + logf(total)};
}

}  // namespace kvarena::kernels
