#pragma once

/// @file
/// Computes the right output of attention in plain loops: two passes over the logits, sums in
/// double precision. One thread block computes one head of a query token. Any heads of a batch may
/// be chosen.

#include "kvarena/attention/attention.hpp"
#include "kvarena/base/latent_fp8.hpp"
#include "kvarena/base/tile_order.hpp"
#include "tools/attention_meter/attention_problem.hpp"
#include "tools/attention_meter/comparison.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvarena::meter {

inline constexpr int kPlainThreads = 256;         ///< threads of a thread block of plain_attention
inline constexpr std::int32_t kLeastCost = 1024;  ///< tokens that a pair counts as, at least
inline constexpr std::int64_t kComparedTokens = std::int64_t{1} << 25;  ///< of all compared pairs

/// One query token's head.
struct PlainPair {
  std::int32_t row;      ///< of the batch
  std::int32_t query;    ///< of the row's query tokens
  std::int32_t head;     ///< query head
  std::int64_t scratch;  ///< first of `end` floats of scratch, where the query token sees begin ..
                         ///< end - 1
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

/// A row in the format latent_fp8.
struct LatentRow {
  std::byte bytes[kLatentFp8Bytes];
};

/// Returns element (token, dim) of a plane whose elements are of type T.
template <class T>
__device__ double element_of(const PlaneView& plane, int block, int head, int token, int d) {
  if constexpr (std::is_same_v<T, LatentRow>) {
    const std::byte* const row = plane.base + element_offset(plane, 1, block, head, token, 0);
    const std::byte* const at = row + latent_fp8_byte(d);
    if (d >= kLatentFp8ValueDim) return as_float(*reinterpret_cast<const __nv_bfloat16*>(at));
    const auto* const scales = reinterpret_cast<const float*>(row + kLatentFp8ScalesAt);
    return double{as_float(*reinterpret_cast<const __nv_fp8_e4m3*>(at))} *
           scales[d / kLatentFp8Run];
  } else {
    const std::int64_t at = element_offset(plane, sizeof(T), block, head, token, d);
    return as_float(*reinterpret_cast<const T*>(plane.base + at));
  }
}

/// `out` [number of pairs, head_dim of V], one pair a thread block. `Q` is the type of q; `T` that
/// of K and V, scales 1. Every array of `p` is on the device.
template <class Q, class T>
__global__ void __launch_bounds__(kPlainThreads)
    plain_attention(AttentionArgs p, const PlainPair* pairs, float* scratch, double* out) {
  const PlainPair pair = pairs[blockIdx.x];
  const int dims = p.kv.key.head_dim;
  const int kv_head = pair.head / (p.num_q_heads / p.kv.key.num_heads);
  const std::int64_t first_query = p.q_offsets[pair.row];
  const auto queries = static_cast<int>(p.q_offsets[pair.row + 1] - first_query);
  const int end = p.batch.seq_lens[pair.row] - queries + pair.query + 1;  // sees begin .. end - 1
  const int begin = p.window_tokens > 0 && end > p.window_tokens ? end - p.window_tokens : 0;
  const std::int64_t query = (first_query + pair.query) * p.num_q_heads + pair.head;
  const Q* q = static_cast<const Q*>(p.q) + query * dims;
  float* logits = scratch + pair.scratch;
  const auto element = [&](const PlaneView& plane, int token, int d) {
    const BlockId block = p.batch.tables.block(pair.row, token / p.kv.block_size);
    return element_of<T>(plane, block.value, kv_head, token % p.kv.block_size, d);
  };
  float highest = -INFINITY;
  for (int token = begin + static_cast<int>(threadIdx.x); token < end; token += kPlainThreads) {
    double dot = 0.0;
    for (int d = 0; d < dims; ++d) dot += as_float(q[d]) * element(p.kv.key, token, d);
    dot *= p.scale;
    if (p.soft_cap > 0.0F) dot = p.soft_cap * tanh(dot / p.soft_cap);
    logits[token] = static_cast<float>(dot);
    highest = fmaxf(highest, logits[token]);
  }
  highest = combined(highest, [](float a, float b) { return fmaxf(a, b); });
  double sum = 0.0;
  for (int token = begin + static_cast<int>(threadIdx.x); token < end; token += kPlainThreads) {
    logits[token] = expf(logits[token] - highest);
    sum += logits[token];
  }
  sum = combined(sum, [](double a, double b) { return a + b; });
  const int value_dims = p.kv.value.head_dim;
  for (int d = static_cast<int>(threadIdx.x); d < value_dims; d += kPlainThreads) {
    double value = 0.0;
    for (int token = begin; token < end; ++token) {
      value += static_cast<double>(logits[token]) * element(p.kv.value, token, d);
    }
    out[blockIdx.x * static_cast<std::int64_t>(value_dims) + d] = value / sum;
  }
}

/// The pairs of a problem to compare, whose tokens add up to about kComparedTokens.
inline std::vector<PlainPair> compared_pairs(const AttentionProblem& problem) {
  std::vector<PlainPair> all;
  std::vector<std::int64_t> costs;
  for (std::size_t row = 0; row < problem.lengths.size(); ++row) {
    for (std::int32_t query = 0; query < problem.queries_of(row); ++query) {
      const std::int32_t end = problem.lengths[row] - problem.queries_of(row) + query + 1;
      for (std::int32_t head = 0; head < problem.shape.num_q_heads; ++head) {
        all.push_back({static_cast<std::int32_t>(row), query, head, 0});
        costs.push_back(std::max(end, kLeastCost));
      }
    }
  }
  std::vector<PlainPair> pairs;
  std::int64_t scratch = 0;
  for (const std::int64_t i : sampled(costs, kComparedTokens)) {
    pairs.push_back(all[static_cast<std::size_t>(i)]);
    pairs.back().scratch = std::exchange(scratch, scratch + costs[static_cast<std::size_t>(i)]);
  }
  return pairs;
}

}  // namespace kvarena::meter
