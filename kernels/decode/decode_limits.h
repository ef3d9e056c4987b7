#pragma once

/// @file
/// What decode attention on CUDA serves, and how much workspace that takes: a pure function that
/// needs no CUDA, so that memory can be planned on any machine.

#include "kvarena/base/dtype.hpp"

#include <cstdint>

namespace kvarena::kernels {

/// The largest step a workspace serves, and the shape that decides the schedule. As many
/// thread blocks as `num_sms` multiprocessors hold may wait for one another: with more than the
/// device has, a launch may hang.
struct DecodeLimits {
  std::int32_t max_rows = 0;      ///< sequences
  std::int32_t q_len = 1;         ///< query tokens a row, 1 .. 8
  std::int32_t num_q_heads = 0;   ///< a multiple of num_kv_heads
  std::int32_t num_kv_heads = 0;  ///< KV heads
  std::int32_t head_dim = 0;      ///< 64, 96, 128 or 256
  std::int32_t num_sms = 0;       ///< multiprocessors, at most those of the device
  DType kv_dtype = DType::bf16;   ///< of K and V: bf16, f16 or fp8_e4m3
};

/// Query heads a KV head that decode takes at most.
inline constexpr std::int64_t kMaxDecodeGroup = 16;

/// Bytes of workspace for `limits`: a pure function of them.
std::int64_t decode_workspace_bytes(const DecodeLimits& limits) noexcept;

}  // namespace kvarena::kernels
