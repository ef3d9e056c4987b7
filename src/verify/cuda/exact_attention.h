#pragma once

/// @file
/// Attention in double precision on a GPU. The kernel makes K, V and q from prefix hashes and uses
/// no cache, table or block. It is the GPU's counterpart of the host's plain loops, and fast enough
/// to compare every result of a replay. Work is queued on the caller's stream. No allocation, no
/// synchronisation.

#include "verify/step_memory.hpp"

#include "kvarena/base/status.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace kvarena::verify {

/// One comparison. All arrays are in device memory.
struct ExactAttention {
  const std::uint64_t* hashes = nullptr;  ///< prefix hashes of whole sequences
  const QueryToken* tokens = nullptr;     ///< [num_tokens]
  std::int32_t num_tokens = 0;
  std::int32_t longest_tokens = 0;  ///< the largest seq_len
  std::int32_t first_layer = 0;
  std::int32_t num_layers = 1;
  std::int32_t num_q_heads = 0;
  std::int32_t num_kv_heads = 0;
  std::int32_t head_dim_k = 0;
  std::int32_t head_dim_v = 0;
  DType dtype = DType::bf16;       ///< type of K, V and q: f32, f16 or bf16
  DType out_dtype = DType::bf16;   ///< type of the results: f32, f16 or bf16
  const std::byte* out = nullptr;  ///< results: [num_layers, q tokens, num_q_heads, head_dim_v]
  std::int64_t layer_stride = 0;   ///< bytes from one layer of `out` to the next
  double* partials = nullptr;      ///< partial_bytes(...) for each (layer, token)
  AttentionSums* sums = nullptr;   ///< [num_layers, num_tokens] written
};

/// Most layers times tokens of one launch.
inline constexpr std::int64_t kMaxExactItems = 65535;

/// Returns the bytes of partial results of one (layer, token).
std::int64_t partial_bytes(std::int64_t longest_tokens, std::int64_t num_q_heads,
                           std::int64_t head_dim_v) noexcept;

/// Loads the kernels (kernels/common/load_kernel.h).
Status load_exact_attention() noexcept;

/// Queues the comparison. Returns device_error when a launch fails.
Status launch_exact_attention(const ExactAttention& params, cudaStream_t stream) noexcept;

}  // namespace kvarena::verify
