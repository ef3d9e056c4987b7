#pragma once

/// @file
/// The plain kernel of prefill.h: a thread block has one query token of one query head and goes
/// through the tokens it sees kPlainThreads at a time, first a thread a token (logits), then a
/// thread a few dims (outputs). Everything in f32. For what the tensor core kernel does not take;
/// not for speed.

#include "kernels/common/convert.cuh"
#include "kernels/prefill/prefill_rows.cuh"

#include "kvarena/base/tile_order.hpp"

namespace kvarena::kernels {

inline constexpr int kPlainThreads = 128;
inline constexpr int kPlainDims = 8;  ///< of the output, a thread
inline constexpr int kPlainMaxHeadDim = kPlainThreads * kPlainDims;

/// Most or sum over the thread block; every thread gets it.
template <bool kMost>
__device__ inline float reduce_block(float x, float* scratch) {
  scratch[threadIdx.x] = x;
  __syncthreads();
  for (int half = kPlainThreads / 2; half > 0; half /= 2) {
    if (static_cast<int>(threadIdx.x) < half) {
      const float other = scratch[threadIdx.x + half];
      scratch[threadIdx.x] =
          kMost ? fmaxf(scratch[threadIdx.x], other) : scratch[threadIdx.x] + other;
    }
    __syncthreads();
  }
  const float result = scratch[0];
  __syncthreads();
  return result;
}

/// Element (token, dim) of K or V of a row.
__device__ inline float paged_element(const AttentionParams& a, const PlaneView& plane,
                                      std::int64_t block, int head, int at, int d) {
  const auto bytes = static_cast<std::int32_t>(bytes_of(plane.dtype));
  if (plane.dtype == DType::latent_fp8) {
    return load_latent_fp8(plane.base + element_offset(plane, bytes, block, head, at, 0), d);
  }
  return load_f32(plane.base + element_offset(plane, bytes, block, head, at, d), plane.dtype);
}

/// The scale of a head of K or V for all its tokens. A plane that has a scale for each token has no
/// other.
__device__ inline float common_scale(const float* scales, const PlaneView& plane, int index) {
  return scales == nullptr || plane.scales_offset != 0 ? 1.0F : scales[index];
}

/// The scale of K or V of a token of a row that has its own; 1 without.
__device__ inline float own_scale(const PlaneView& plane, std::int32_t block_size,
                                  std::int64_t block, int head, int at) {
  if (plane.scales_offset == 0) return 1.0F;
  return *reinterpret_cast<const float*>(plane.base +
                                         scale_byte(plane, block_size, block, head, at));
}

__global__ void __launch_bounds__(kPlainThreads)
    prefill_plain(const __grid_constant__ PrefillParams p) {
  __shared__ float query[kPlainMaxHeadDim];
  __shared__ float weights[kPlainThreads];
  __shared__ float scratch[kPlainThreads];
  const AttentionParams& a = p.attention;
  const auto piece = static_cast<std::int64_t>(blockIdx.x);
  // Pieces of one token: row r begins at q_offsets[r] + r and has one place too many.
  const PrefillRow row = load_row(p, row_of_piece(a, piece, 1));
  const auto i = static_cast<int>(piece - first_piece(a, row, 1));
  if (i >= row.count) return;
  const auto head = static_cast<int>(blockIdx.y);
  const int kv_head = head / (a.num_q_heads / a.kv.key.num_heads);
  const std::int64_t token = row.first_q + i;
  const int dim_k = a.kv.key.head_dim;
  const int dim_v = a.kv.value.head_dim;
  const int scale = a.scales.per_head ? kv_head : 0;
  const float key_scale = common_scale(a.scales.key, a.kv.key, scale);
  const float value_scale = common_scale(a.scales.value, a.kv.value, scale);
  for (int d = threadIdx.x; d < dim_k; d += kPlainThreads) {
    query[d] = load_f32(static_cast<const std::byte*>(a.q) + token * a.q_token_stride +
                            (head * dim_k + d) * bytes_of(a.q_dtype),
                        a.q_dtype);
  }
  __syncthreads();

  const Visible seen = visible_to(a, row, i);
  float out[kPlainDims] = {};
  float top = -INFINITY;
  float sum = 0.0F;
  for (int from = seen.begin; from < seen.end; from += kPlainThreads) {
    const int key = from + static_cast<int>(threadIdx.x);
    float logit = -INFINITY;
    if (key < seen.end) {
      const std::int64_t block = a.batch.tables.block(row.row, key / a.kv.block_size).value;
      float dot = 0.0F;
      for (int d = 0; d < dim_k; ++d) {
        dot += query[d] * paged_element(a, a.kv.key, block, kv_head, key % a.kv.block_size, d);
      }
      const float own = own_scale(a.kv.key, a.kv.block_size, block, kv_head, key % a.kv.block_size);
      logit = logit_of(a, dot * key_scale * own);
    }
    const float most = fmaxf(top, reduce_block<true>(logit, scratch));
    const float shrink = expf(top - most);
    top = most;
    weights[threadIdx.x] = expf(logit - most);
    sum = sum * shrink + reduce_block<false>(weights[threadIdx.x], scratch);
    const int tokens = min(kPlainThreads, seen.end - from);
#pragma unroll
    for (int part = 0; part < kPlainDims; ++part) {
      const int d = static_cast<int>(threadIdx.x) + part * kPlainThreads;
      if (d >= dim_v) continue;
      float x = out[part] * shrink;
      for (int t = 0; t < tokens; ++t) {
        const std::int64_t block =
            a.batch.tables.block(row.row, (from + t) / a.kv.block_size).value;
        const int at = (from + t) % a.kv.block_size;
        x += weights[t] * paged_element(a, a.kv.value, block, kv_head, at, d) *
             own_scale(a.kv.value, a.kv.block_size, block, kv_head, at);
      }
      out[part] = x;
    }
    __syncthreads();
  }
  const SoftmaxEnd end = end_softmax(a, head, top, sum);
  const float share = end.share * value_scale;
#pragma unroll
  for (int part = 0; part < kPlainDims; ++part) {
    const int d = static_cast<int>(threadIdx.x) + part * kPlainThreads;
    if (d < dim_v) {
      store_f32(static_cast<std::byte*>(a.out) + token * a.out_token_stride +
                    (head * dim_v + d) * bytes_of(a.out_dtype),
                a.out_dtype, out[part] * share);
    }
  }
  if (a.lse != nullptr && threadIdx.x == 0) a.lse[token * a.num_q_heads + head] = end.lse;
}

}  // namespace kvarena::kernels
