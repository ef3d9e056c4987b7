#include "kernels/append/scaled_append.h"

#include "kernels/append/fp8_scale.cuh"
#include "kernels/common/convert.cuh"
#include "kernels/common/grid_dependency.cuh"
#include "kernels/common/launch_checks.h"
#include "kernels/common/launch_kernel.h"
#include "kernels/common/load_kernel.h"
#include "kvarena/base/tile_order.hpp"

#include <cstdint>

namespace kvarena::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kOfLane = 4;

/// New tokens of K or of V.
struct PlaneAppend {
  PlaneView plane;
  const std::byte* from;
  std::int64_t token_stride;
  const std::int64_t* slots;
  std::int64_t num_tokens;
  std::int64_t num_blocks;
  std::int32_t block_size;
};

/// Converts one head of one token in each warp.
template <class T>
__global__ void __launch_bounds__(kThreads) append_scaled(const __grid_constant__ PlaneAppend p) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t row = std::int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  const std::int64_t token = row / p.plane.num_heads;
  const auto head = static_cast<std::int32_t>(row - token * p.plane.num_heads);
  const std::int64_t slot = token < p.num_tokens ? p.slots[token] : -1;
  wait_for_previous_kernel();
  let_next_kernel_begin();
  const std::int64_t block = slot / p.block_size;
  if (slot < 0 || block >= p.num_blocks) return;
  const auto in_block = static_cast<std::int32_t>(slot - block * p.block_size);
  const int dims = p.plane.head_dim;
  const auto* const from =
      reinterpret_cast<const T*>(p.from + token * p.token_stride) + std::int64_t{head} * dims;
  unsigned most = 0;
  for (int d = lane; d < dims; d += 32) most = max(most, finite_magnitude(to_f32(from[d])));
  const int exponent = scale_exponent(__reduce_max_sync(~0U, most));
  const float factor = power_of_two(-exponent);
  for (int d = lane * kOfLane; d < dims; d += 32 * kOfLane) {
    std::uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      word |= std::uint32_t{from_f32<Fp8>(to_f32(from[d + i]) * factor).bits} << (8 * i);
    }
    *reinterpret_cast<std::uint32_t*>(p.plane.base +
                                      element_offset(p.plane, 1, block, head, in_block, d)) = word;
  }
  if (lane == 0) {
    *reinterpret_cast<float*>(p.plane.base + scale_byte(p.plane, p.block_size, block, head,
                                                        in_block)) = power_of_two(exponent);
  }
}

/// Queues the append of one plane.
Status launch_plane(const PlaneAppend& append, DType dtype, bool overlap,
                    cudaStream_t stream) noexcept {
  const auto kernel = dtype == DType::f32    ? append_scaled<float>
                      : dtype == DType::f16  ? append_scaled<__half>
                      : dtype == DType::bf16 ? append_scaled<__nv_bfloat16>
                                             : nullptr;
  if (kernel == nullptr) return unsupported_by(SupportedList::moved_dtypes, dtype);
  const std::int64_t rows = append.num_tokens * append.plane.num_heads;
  const std::int64_t blocks = (rows * 32 + kThreads - 1) / kThreads;
  if (Status s = in_range(Resource::num_tokens, blocks, 1, 0x7fffffff); !s) return s;
  const LaunchShape shape{dim3(static_cast<unsigned>(blocks)), dim3(kThreads)};
  return launch_status(launch_kernel(kernel, shape, overlap, stream, append));
}

}  // namespace

Status load_scaled_append() noexcept {
  return load_kernels(append_scaled<float>, append_scaled<__half>, append_scaled<__nv_bfloat16>);
}

Status launch_scaled_append(const AppendParams& p, bool overlap, cudaStream_t stream) noexcept {
  const bool has_value = p.value != nullptr && p.kv.value.base != p.kv.key.base;
  if (p.kv.key.scales_offset == 0 || (has_value && p.kv.value.scales_offset == 0)) {
    return unsupported(Resource::scale);  // both have them, or none
  }
  if (p.num_tokens == 0) return {};
  const auto append = [&](const PlaneView& plane, const void* from, std::int64_t stride) {
    return PlaneAppend{
        .plane = plane,
        .from = static_cast<const std::byte*>(from),
        .token_stride = token_stride(stride, plane.num_heads, plane.head_dim, p.dtype),
        .slots = p.slots,
        .num_tokens = p.num_tokens,
        .num_blocks = p.kv.num_blocks,
        .block_size = p.kv.block_size};
  };
  const PlaneAppend key = append(p.kv.key, p.key, p.key_token_stride);
  if (Status s = launch_plane(key, p.dtype, overlap, stream); !s || !has_value) return s;
  // The launch in front writes neither slots nor K and V of the caller.
  return launch_plane(append(p.kv.value, p.value, p.value_token_stride), p.dtype, true, stream);
}

}  // namespace kvarena::kernels
