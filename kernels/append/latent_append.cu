#include "kernels/append/latent_append.h"

#include "kernels/append/fp8_scale.cuh"
#include "kernels/common/convert.cuh"
#include "kernels/common/grid_dependency.cuh"
#include "kernels/common/launch_checks.h"
#include "kernels/common/launch_kernel.h"
#include "kernels/common/load_kernel.h"

#include <cstdint>

namespace kvarena::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kOfLane = kLatentFp8Run / 32;

/// Converts one latent in each warp.
template <class T>
__global__ void __launch_bounds__(kThreads) append_latents(const __grid_constant__ AppendParams p) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t row = std::int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  const PlaneView& plane = p.kv.key;
  const std::int64_t token = row / plane.num_heads;
  const std::int64_t head = row - token * plane.num_heads;
  const std::int64_t slot = token < p.num_tokens ? p.slots[token] : -1;
  wait_for_previous_kernel();
  let_next_kernel_begin();
  const std::int64_t block = slot / p.kv.block_size;
  if (slot < 0 || block >= p.kv.num_blocks) return;
  const auto* const from = reinterpret_cast<const T*>(static_cast<const std::byte*>(p.key) +
                                                      token * p.key_token_stride) +
                           head * kLatentFp8Dim;
  std::byte* const to = plane.base + block * plane.block_stride + head * plane.head_stride +
                        (slot - block * p.kv.block_size) * kLatentFp8Bytes;
  constexpr int kRuns = kLatentFp8ValueDim / kLatentFp8Run;
  float values[kRuns][kOfLane];
#pragma unroll
  for (int run = 0; run < kRuns; ++run) {
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      values[run][i] = to_f32(from[run * kLatentFp8Run + lane * kOfLane + i]);
    }
  }
  const T* const position = from + kLatentFp8ValueDim + 2 * lane;
  const __nv_bfloat162 pair{from_f32<__nv_bfloat16>(to_f32(position[0])),
                            from_f32<__nv_bfloat16>(to_f32(position[1]))};
  reinterpret_cast<__nv_bfloat162*>(to + kLatentFp8PositionAt)[lane] = pair;
#pragma unroll
  for (int run = 0; run < kRuns; ++run) {
    unsigned most = 0;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      most = max(most, finite_magnitude(values[run][i]));
    }
    const int exponent = scale_exponent(__reduce_max_sync(~0U, most));
    const float factor = power_of_two(-exponent);
    std::uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      word |= std::uint32_t{from_f32<Fp8>(values[run][i] * factor).bits} << (8 * i);
    }
    reinterpret_cast<std::uint32_t*>(to + run * kLatentFp8Run)[lane] = word;
    if (lane == run) {
      reinterpret_cast<float*>(to + kLatentFp8ScalesAt)[run] = power_of_two(exponent);
    }
  }
}

}  // namespace

Status load_latent_append() noexcept {
  return load_kernels(append_latents<float>, append_latents<__half>, append_latents<__nv_bfloat16>);
}

Status launch_latent_append(const AppendParams& params, bool overlap,
                            cudaStream_t stream) noexcept {
  const PlaneView& plane = params.kv.key;
  if (params.kv.value.base != plane.base || params.kv.value.dtype != plane.dtype ||
      plane.head_dim != kLatentFp8Dim) {
    return unsupported_by(SupportedList::moved_dtypes, params.kv.value.dtype);
  }
  const auto kernel = params.dtype == DType::f32    ? append_latents<float>
                      : params.dtype == DType::f16  ? append_latents<__half>
                      : params.dtype == DType::bf16 ? append_latents<__nv_bfloat16>
                                                    : nullptr;
  if (kernel == nullptr) return unsupported_by(SupportedList::moved_dtypes, params.dtype);
  if (params.num_tokens == 0) return {};
  AppendParams p = params;
  p.key_token_stride =
      token_stride(p.key_token_stride, plane.num_heads, plane.head_dim, params.dtype);
  const std::int64_t blocks = (params.num_tokens * plane.num_heads * 32 + kThreads - 1) / kThreads;
  if (Status s = in_range(Resource::num_tokens, blocks, 1, 0x7fffffff); !s) return s;
  const LaunchShape shape{dim3(static_cast<unsigned>(blocks)), dim3(kThreads)};
  return launch_status(launch_kernel(kernel, shape, overlap, stream, p));
}

}  // namespace kvarena::kernels
