#pragma once

/// @file
/// The limits of attention with many query columns on Hopper, and the workspace that it needs for
/// them. A query column is one query token with one query head: a KV head has q_len * group columns
/// a row. The size is a pure function that needs no CUDA, so memory can be planned on any machine.

#include "kvarena/base/dtype.hpp"

#include <cstdint>

namespace kvarena::kernels {

/// The largest step that a workspace serves, and the shape that decides the schedule.
struct ColumnsLimits {
  std::int32_t max_rows = 0;      ///< rows that are not skipped, 1 .. 16384; with runs: runs
  std::int32_t q_len = 1;         ///< most query tokens a row, 1 .. 64
  std::int32_t num_q_heads = 0;   ///< a multiple of num_kv_heads
  std::int32_t num_kv_heads = 0;  ///< KV heads
  std::int32_t head_dim = 0;      ///< 64, 80, 96, 128, 192 or 256; kLatentDim: latents
  std::int32_t value_dim = 0;    ///< of V: 0 for that of K (of a latent, kLatentValueDim); 128 with
                                 ///< a head_dim of 192
  std::int32_t num_sms = 0;      ///< multiprocessors of the device, 1 .. 256
  DType kv_dtype = DType::bf16;  ///< of K and V: bf16, f16 or fp8_e4m3, which has no head_dim 80
                                 ///< and no short values; of latents bf16, fp8_e4m3 or latent_fp8
  std::int64_t fixed_tokens = 0;  ///< with fixed parts: most tokens of all rows together. A step
                                  ///< with more tokens gets longer parts. 0: no fixed parts
  std::int32_t shared_rows = 0;  ///< most rows that share prefixes, 0 .. 4096 and at most max_rows.
                                 ///< More than 0: thread blocks have 128 columns where head_dim is
                                 ///< more than 128. 0 with runs
};

/// A latent (MLA, arXiv 2405.04434) has so many elements, and the leading ones are V too.
inline constexpr std::int32_t kLatentDim = 576;
inline constexpr std::int32_t kLatentValueDim = 512;

/// A run: so many query tokens of a row, of latents or short values, whose prompts have no kernel
/// of their own. A row with more is computed as several rows, each with the tokens up to the last
/// of its run. A row has at most kMaxRunsTokens.
inline constexpr std::int32_t kRunTokens = 64;
inline constexpr std::int32_t kMaxRunsTokens = kRunTokens << 11;

/// Keys of this head_dim may have values of kShortValueDim.
inline constexpr std::int32_t kLongKeyDim = 192;
inline constexpr std::int32_t kShortValueDim = 128;

/// Returns whether V has fewer dims than K, which is no latent.
constexpr bool has_short_values(const ColumnsLimits& limits) noexcept {
  return limits.head_dim == kLongKeyDim && limits.value_dim == kShortValueDim;
}
/// Returns whether rows may have several runs.
constexpr bool has_runs(const ColumnsLimits& limits) noexcept {
  return limits.head_dim == kLatentDim || has_short_values(limits);
}
/// Returns the elements of V and of outputs.
constexpr std::int32_t columns_value_dim(const ColumnsLimits& limits) noexcept {
  if (limits.head_dim == kLatentDim) return kLatentValueDim;
  return has_short_values(limits) ? kShortValueDim : limits.head_dim;
}

/// Most query columns of a row for each KV head.
inline constexpr std::int64_t kMaxColumns = 1024;
/// The same of latents, which have one KV head.
inline constexpr std::int64_t kMaxLatentColumns = 8192;

/// Returns the bytes of workspace for `limits`: a pure function of them. 0 when they are refused.
std::int64_t columns_workspace_bytes(const ColumnsLimits& limits) noexcept;

/// Returns the bytes for the shared prefixes of a step (shared_prefixes.h). 0 when the limits are
/// refused or share nothing.
std::int64_t shared_prefixes_bytes(const ColumnsLimits& limits) noexcept;

}  // namespace kvarena::kernels
