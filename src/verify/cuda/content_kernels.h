#pragma once

/// @file
/// Token content on a GPU: kernels that fill rows of K, V or q from prefix hashes, and kernels that
/// compare rows with the content from the hashes. The bytes are those of fill_row
/// (content_pattern.hpp). Work is queued on the caller's stream. No allocation; only
/// count_wrong_words synchronises.

#include "verify/content_pattern.hpp"

#include "kvarena/base/result.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace kvarena::verify {

/// Rows of one kind: [num_layers, num_tokens, num_heads, head_dim]. Two layers are `layer_stride`
/// apart.
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

/// Bytes of the workspace of count_wrong_words in device memory.
inline constexpr std::int64_t kCountWorkspaceBytes = 1 << 20;

/// Returns the number of words that differ from the content of the hashes. A word has 4 bytes, or 2
/// bytes when the bytes of a row are no multiple of 4. Waits for the stream. `workspace` has
/// kCountWorkspaceBytes bytes. Returns device_error.
Result<std::int64_t> count_wrong_words(const ContentRows& rows, std::byte* workspace,
                                       cudaStream_t stream) noexcept;

}  // namespace kvarena::verify
