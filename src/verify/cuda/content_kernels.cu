#include "verify/cuda/content_kernels.h"

#include "kernels/common/launch_checks.h"

#include <algorithm>

namespace kvarena::verify {
namespace {

constexpr int kWarp = 32;
constexpr int kWarps = 8;  // of a thread block
constexpr std::int64_t kMaxGrid = 1 << 20;

// Stores a lane; a row of an odd number of 16-bit elements ends in half of one, and begins
// anywhere.
struct Fill {
  __device__ void whole(std::byte* at, std::uint32_t x) const {
    *reinterpret_cast<std::uint32_t*>(at) = x;
  }
  __device__ void half(std::byte* at, std::uint16_t x) const {
    *reinterpret_cast<std::uint16_t*>(at) = x;
  }
};

struct Compare {
  unsigned long long* wrong_lanes;
  __device__ void whole(const std::byte* at, std::uint32_t x) const {
    if (*reinterpret_cast<const std::uint32_t*>(at) != x) atomicAdd(wrong_lanes, 1ULL);
  }
  __device__ void half(const std::byte* at, std::uint16_t x) const {
    if (*reinterpret_cast<const std::uint16_t*>(at) != x) atomicAdd(wrong_lanes, 1ULL);
  }
};

// A warp takes a row (layer, token, head) at a time, a thread every 32nd lane of it.
template <class Visit>
__global__ void visit_rows(ContentRows p, Visit visit) {
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
        visit.whole(out + i * 4, x);
        continue;
      }
      visit.half(out + i * 4, static_cast<std::uint16_t>(x));
      if (i * 4 + 2 < row_bytes) visit.half(out + i * 4 + 2, static_cast<std::uint16_t>(x >> 16));
    }
  }
}

template <class Visit>
Status launch(const ContentRows& rows, const Visit& visit, cudaStream_t stream) noexcept {
  const std::int64_t num_rows = rows.num_tokens * rows.num_heads * rows.num_layers;
  if (num_rows == 0) return {};
  const std::int64_t blocks = std::min((num_rows + kWarps - 1) / kWarps, kMaxGrid);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(kWarp * kWarps);
  config.stream = stream;
  return kernels::launch_status(cudaLaunchKernelEx(&config, visit_rows<Visit>, rows, visit));
}

}  // namespace

Status launch_fill_rows(const ContentRows& rows, cudaStream_t stream) noexcept {
  return launch(rows, Fill{}, stream);
}

Status launch_compare_rows(const ContentRows& rows, unsigned long long* wrong_lanes,
                           cudaStream_t stream) noexcept {
  return launch(rows, Compare{wrong_lanes}, stream);
}

}  // namespace kvarena::verify
