#pragma once

/// @file
/// The limits of decode attention on CUDA, and the workspace that it needs for them. The size is a
/// pure function that needs no CUDA, so memory can be planned on any machine.

#include "kvarena/base/dtype.hpp"

#include <cstdint>

namespace kvarena::kernels {

/// The largest step that a workspace serves, and the shape that decides the schedule. Without
/// clusters no thread block waits for another one, so a launch ends on any part of a device. In a
/// cluster its eight thread blocks wait for each other; the device runs them at the same time, and
/// the launch waits until eight multiprocessors that may form a cluster have room. It is fastest
/// when `num_sms` is the number of multiprocessors that it gets; with less than 64 it has no
/// clusters.
struct DecodeLimits {
  std::int32_t max_rows = 0;      ///< sequences that decode attention serves in a step
  std::int32_t q_len = 1;         ///< most query tokens a row, 1 .. 16
  std::int32_t num_q_heads = 0;   ///< a multiple of num_kv_heads
  std::int32_t num_kv_heads = 0;  ///< KV heads
  std::int32_t head_dim = 0;      ///< 64, 96, 128 or 256
  std::int32_t num_sms = 0;       ///< multiprocessors
  bool has_clusters = false;      ///< the device has clusters of thread blocks (compute capability
                                  ///< 9.0 and later)
  DType kv_dtype = DType::bf16;   ///< of K and V: bf16, f16 or fp8_e4m3
  std::int64_t fixed_tokens = 0;  ///< with fixed parts: most tokens of all rows together. A step
                                  ///< with more tokens may get longer parts. 0: no fixed parts
  std::int32_t step_tokens = 0;  ///< most query tokens a row of this step, at most q_len; 0: q_len.
                                 ///< Fewer may have a faster launch. The size and the place of the
                                 ///< counters do not depend on it, nor on what follows
  std::int32_t step_rows = 0;  ///< rows of this step that decode attention serves. 0: unknown; then
                               ///< the rest does not matter
  std::int32_t step_row_tokens = 0;  ///< tokens that they read, on average; at most step_longest
  std::int32_t step_longest = 0;     ///< tokens that the longest of them reads
};

/// Most rows of a batch, with those that decode attention skips.
inline constexpr std::int32_t kMaxDecodeRows = 1 << 20;
/// Most query tokens a row.
inline constexpr std::int32_t kMaxDecodeQueryTokens = 16;
/// Most `fixed_tokens`.
inline constexpr std::int64_t kMaxFixedDecodeTokens = std::int64_t{1} << 34;
/// Most query heads for each KV head that decode attention serves.
inline constexpr std::int64_t kMaxDecodeGroup = 16;

/// Returns the bytes of workspace for `limits`: a pure function of them.
std::int64_t decode_workspace_bytes(const DecodeLimits& limits) noexcept;

}  // namespace kvarena::kernels
