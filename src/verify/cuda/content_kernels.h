#pragma once

/// @file
/// Token content on a GPU: fills rows of K, V or q from prefix hashes, and compares rows with what
/// the hashes give. The same bytes as fill_row of content_pattern.hpp. Queued on the caller's
/// stream; no allocation, no synchronisation. Returns device_error when a launch fails.

#include "verify/content_pattern.hpp"

#include "kvarena/base/result.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace kvarena::verify {

/// Rows of one kind: [num_layers, num_tokens, num_heads, head_dim], layers `layer_stride` apart.
struct ContentRows {
  const std::uint64_t* hashes = nullptr;  ///< [num_tokens] prefix hash of each token
  std::byte* rows = nullptr;              ///< aligned to 4 bytes
  std::int64_t layer_stride = 0;          ///< bytes, a multiple of 4
  std::int64_t num_tokens = 0;
  std::int32_t first_layer = 0;
  std::int32_t num_layers = 1;
  std::int32_t num_heads = 0;
  std::int32_t head_dim = 0;
  DType dtype = DType::bf16;  ///< f32, f16 or bf16
  RowKind kind = RowKind::key;
};

/// Queues filling the rows. Returns device_error when the launch fails.
Status launch_fill_rows(const ContentRows& rows, cudaStream_t stream) noexcept;

/// Device memory that count_wrong_words works in.
inline constexpr std::int64_t kCountWorkspaceBytes = 1 << 20;

/// How many words of the rows are not what the hashes give: words of 4 bytes, of 2 where rows are
/// no multiple of 4. Waits for the stream. `workspace`: kCountWorkspaceBytes. Returns device_error.
Result<std::int64_t> count_wrong_words(const ContentRows& rows, std::byte* workspace,
                                       cudaStream_t stream) noexcept;

}  // namespace kvarena::verify
