#include "verify/cuda/content_kernels.h"

#include "kernels/common/launch_checks.h"

#include <thrust/count.h>
#include <thrust/execution_policy.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/system/cuda/execution_policy.h>
#include <thrust/system_error.h>

#include <algorithm>
#include <new>

namespace kvarena::verify {
namespace {

constexpr int kWarp = 32;
constexpr int kWarps = 8;  // of a thread block
constexpr std::int64_t kMaxGrid = 1 << 20;

// A warp takes a row (layer, token, head) at a time, a thread every 32nd lane of it. A row of an
// odd number of 16-bit elements ends in half a lane, and begins anywhere.
__global__ void fill_rows(ContentRows p) {
  const std::int64_t rows_of_layer = p.num_tokens * p.num_heads;
  const std::int64_t num_rows = rows_of_layer * p.num_layers;
  const auto row_bytes = static_cast<std::uint32_t>(p.head_dim * bytes_of(p.dtype));
  const bool halves = row_bytes % 4 != 0;
  const Pattern pattern = pattern_of(p.dtype, p.kind);
  const std::int64_t first = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  for (std::int64_t row = first; row < num_rows; row += std::int64_t{gridDim.x} * kWarps) {
    const std::int64_t layer = row / rows_of_layer;
    const std::int64_t in_layer = row % rows_of_layer;
    const std::int64_t token = in_layer / p.num_heads;
    const RowSeed seed = row_seed(p.hashes[token], p.first_layer + static_cast<int>(layer), p.kind,
                                  static_cast<int>(in_layer % p.num_heads));
    std::byte* const out = p.rows + layer * p.layer_stride + in_layer * row_bytes;
    for (std::uint32_t i = threadIdx.x % kWarp; i * 4 < row_bytes; i += kWarp) {
      const std::uint32_t x = lane(seed, i, pattern);
      if (!halves) {
        *reinterpret_cast<std::uint32_t*>(out + i * 4) = x;
        continue;
      }
      *reinterpret_cast<std::uint16_t*>(out + i * 4) = static_cast<std::uint16_t>(x);
      if (i * 4 + 2 < row_bytes) {
        *reinterpret_cast<std::uint16_t*>(out + i * 4 + 2) = static_cast<std::uint16_t>(x >> 16);
      }
    }
  }
}

// Whether a word of the rows is not content.
template <class Word>
struct IsWrong {
  ContentRows p;
  std::uint32_t words_a_row;
  Pattern pattern;

  __device__ bool operator()(std::int64_t index) const {
    const std::int64_t row = index / words_a_row;
    const auto word = static_cast<std::uint32_t>(index - row * words_a_row);
    const auto layer = static_cast<int>(row / (p.num_tokens * p.num_heads));
    const std::int64_t in_layer = row - layer * (p.num_tokens * p.num_heads);
    const std::int64_t token = in_layer / p.num_heads;
    const auto head = static_cast<int>(in_layer - token * p.num_heads);
    const RowSeed seed = row_seed(p.hashes[token], p.first_layer + layer, p.kind, head);
    constexpr std::uint32_t kWords = 4 / sizeof(Word);  // of a lane
    const std::uint32_t x = lane(seed, word / kWords, pattern) >> (word % kWords * 16);
    const std::byte* const rows = p.rows + layer * p.layer_stride;
    return reinterpret_cast<const Word*>(rows)[in_layer * words_a_row + word] !=
           static_cast<Word>(x);
  }
};

// Thrust takes the memory for its partial sums from the workspace.
struct WorkspaceAllocator {
  using value_type = char;
  std::byte* next;
  std::byte* end;

  char* allocate(std::ptrdiff_t bytes) {
    std::byte* const at = next;
    if (end - at < bytes) throw std::bad_alloc();
    next += (bytes + 255) / 256 * 256;
    return reinterpret_cast<char*>(at);
  }
  void deallocate(char*, std::size_t) noexcept {}
};

template <class Word>
std::int64_t count_words(const ContentRows& p, WorkspaceAllocator& workspace, cudaStream_t stream) {
  const auto words_a_row =
      static_cast<std::uint32_t>(p.head_dim * bytes_of(p.dtype) / static_cast<int>(sizeof(Word)));
  const std::int64_t words = p.num_tokens * p.num_heads * p.num_layers * words_a_row;
  const thrust::counting_iterator<std::int64_t> first(0);
  return thrust::count_if(thrust::cuda::par(workspace).on(stream), first, first + words,
                          IsWrong<Word>{p, words_a_row, pattern_of(p.dtype, p.kind)});
}

}  // namespace

Status launch_fill_rows(const ContentRows& rows, cudaStream_t stream) noexcept {
  const std::int64_t num_rows = rows.num_tokens * rows.num_heads * rows.num_layers;
  if (num_rows == 0) return {};
  const std::int64_t blocks = std::min((num_rows + kWarps - 1) / kWarps, kMaxGrid);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(kWarp * kWarps);
  config.stream = stream;
  return kernels::launch_status(cudaLaunchKernelEx(&config, fill_rows, rows));
}

Result<std::int64_t> count_wrong_words(const ContentRows& rows, std::byte* workspace,
                                       cudaStream_t stream) noexcept {
  WorkspaceAllocator allocator{workspace, workspace + kCountWorkspaceBytes};
  try {
    const bool whole_lanes = rows.head_dim * bytes_of(rows.dtype) % 4 == 0;
    return whole_lanes ? count_words<std::uint32_t>(rows, allocator, stream)
                       : count_words<std::uint16_t>(rows, allocator, stream);
  } catch (const thrust::system_error& error) {
    return kernels::launch_status(static_cast<cudaError_t>(error.code().value()));
  } catch (const std::bad_alloc&) {
    return Status{StatusCode::exhausted, Resource::workspace, Option::none, 0, 0, 0, 0};
  }
}

}  // namespace kvarena::verify
