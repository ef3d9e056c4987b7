#pragma once

/// @file
/// Computes the right output of a decode launch in plain loops: two passes over the logits, sums in
/// double precision. One thread block computes one head of a query token. Any heads of a batch may
/// be chosen.

#include "kernels/decode/decode.h"
#include "kvarena/base/tile_order.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace kvarena::meter {

inline constexpr int kPlainThreads = 256;  ///< threads of a thread block of plain_decode

/// One query token's head.
struct PlainPair {
  std::int32_t row;      ///< of the batch
  std::int32_t query;    ///< of the row's query tokens
  std::int32_t head;     ///< query head
  std::int64_t scratch;  ///< first of the row's `seq_len` floats of scratch
};

__device__ inline float as_float(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ inline float as_float(__half value) { return __half2float(value); }
__device__ inline float as_float(__nv_fp8_e4m3 value) { return static_cast<float>(value); }

/// Combines one value a thread in thread order, the same result for every thread.
template <class T, class Combine>
__device__ T combined(T mine, Combine combine) {
  __shared__ T all[kPlainThreads];
  __syncthreads();
  all[threadIdx.x] = mine;
  __syncthreads();
  T result = all[0];
  for (int i = 1; i < kPlainThreads; ++i) result = combine(result, all[i]);
  return result;
}

/// `out` [number of pairs, head_dim], one pair a thread block. `Q` is the type of q; `T` that of K
/// and V, in chunked order, scales 1. `seq_lens` are those of the schedule.
template <class Q, class T>
__global__ void __launch_bounds__(kPlainThreads)
    plain_decode(kernels::DecodeParams p, const std::int32_t* seq_lens, const PlainPair* pairs,
                 float* scratch, double* out) {
  const PlainPair pair = pairs[blockIdx.x];
  const int dims = p.limits.head_dim;
  const int heads = p.limits.num_q_heads;
  const int kv_head = pair.head / (heads / p.limits.num_kv_heads);
  const int end = seq_lens[pair.row] - p.limits.q_len + pair.query + 1;  // sees begin .. end - 1
  const int begin = p.window_tokens > 0 && end > p.window_tokens ? end - p.window_tokens : 0;
  const std::int64_t query =
      (static_cast<std::int64_t>(pair.row) * p.limits.q_len + pair.query) * heads + pair.head;
  const Q* q = static_cast<const Q*>(p.q) + query * dims;
  float* logits = scratch + pair.scratch;
  const auto head_of = [&](const void* base, int token) {
    const BlockId block = p.block_tables[pair.row * p.table_stride + token / p.block_size];
    return reinterpret_cast<const T*>(static_cast<const char*>(base) +
                                      block.value * p.block_stride + kv_head * p.head_stride);
  };
  const auto place_of = [&](int token, int d) {
    constexpr int kBytes = sizeof(T);
    return chunked_bytes(dims * kBytes, token % p.block_size, d * kBytes) / kBytes;
  };
  float highest = -INFINITY;
  for (int token = begin + static_cast<int>(threadIdx.x); token < end; token += kPlainThreads) {
    const T* k = head_of(p.key, token);
    double dot = 0.0;
    for (int d = 0; d < dims; ++d) {
      const int at = place_of(token, d);
      dot += static_cast<double>(as_float(q[d])) * as_float(k[at]);
    }
    logits[token] = static_cast<float>(dot * p.scale);
    highest = fmaxf(highest, logits[token]);
  }
  highest = combined(highest, [](float a, float b) { return fmaxf(a, b); });
  double sum = 0.0;
  for (int token = begin + static_cast<int>(threadIdx.x); token < end; token += kPlainThreads) {
    logits[token] = expf(logits[token] - highest);
    sum += logits[token];
  }
  sum = combined(sum, [](double a, double b) { return a + b; });
  for (int d = static_cast<int>(threadIdx.x); d < dims; d += kPlainThreads) {
    double value = 0.0;
    for (int token = begin; token < end; ++token) {
      const int at = place_of(token, d);
      value += static_cast<double>(logits[token]) * as_float(head_of(p.value, token)[at]);
    }
    out[blockIdx.x * static_cast<std::int64_t>(dims) + d] = value / sum;
  }
}

}  // namespace kvarena::meter
