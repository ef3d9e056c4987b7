#pragma once

/// @file
/// What the warpgroups that compute logits share: the query columns of a segment, and the tokens of
/// a slab that must not be multiplied as they are. Included by latent.cuh.

#include "kernels/columns/columns_apart.cuh"
#include "kernels/latent/latent_config.cuh"

namespace kvarena::kernels::latent {

/// Returns the new tokens of a row that a column sees.
__device__ __forceinline__ std::uint64_t path_of(const Launch& launch,
                                                 const ColumnsSegment& segment, int column) {
  const int token = launch.token_of(column);
  if (token >= segment.q_len) return 0;
  std::uint64_t path = ~std::uint64_t{0} >> (63 - token);
  const std::uint64_t* const tree = launch.params.tree_mask;
  if (tree != nullptr)
    path = tree[std::int64_t{segment.q_begin} + token] | std::uint64_t{1} << token;
  return path & ~std::uint64_t{0} >> (64 - segment.q_len);
}

/// Loads the query columns of a segment as an operand; those past its last are zeros. Finds what
/// they see of the new tokens. kThreads threads call it, and wait for each other behind it.
template <class C, int kThreads>
__device__ __forceinline__ void load_query(const Launch& launch, Shared<C>& shared,
                                           const ColumnsSegment& segment, int thread) {
  constexpr int kOfRow = C::kRowBytes / kChunkBytes;
  constexpr int kChunks = C::kColumns * kOfRow;
  constexpr int kAtOnce = 9;
  static_assert(kChunks % (kThreads * kAtOnce) == 0);
  const ColumnsParams& p = launch.params;
#pragma unroll 1
  for (int first = 0; first < kChunks; first += kThreads * kAtOnce) {
    uint4 words[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int chunk = first + i * kThreads + thread;
      const int column = first_column<C>(segment) + chunk / kOfRow;
      words[i] = make_uint4(0, 0, 0, 0);
      if (column >= segment.columns) continue;
      const columns::Place place = columns::place_of(launch, segment.q_begin, segment.head, column);
      words[i] = __ldg(reinterpret_cast<const uint4*>(
          static_cast<const char*>(p.q) + place.token * p.q_token_stride +
          place.head * C::kRowBytes + chunk % kOfRow * kChunkBytes));
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int chunk = first + i * kThreads + thread;
      *reinterpret_cast<uint4*>(shared.query + chunked_bytes(C::kRowBytes, chunk / kOfRow,
                                                             chunk % kOfRow * kChunkBytes)) =
          words[i];
    }
  }
  if (thread < C::kColumns) {
    shared.path[thread] = path_of(launch, segment, first_column<C>(segment) + thread);
  }
  fence_async_proxy();
}

/// Returns the tokens of a row that all its columns see: slabs with others need a mask.
__device__ __forceinline__ int unmasked_tokens(const ColumnsSegment& segment) {
  return segment.q_len > 1 ? segment.seq_len - segment.q_len : segment.seq_len;
}

/// Zeroes the tokens of a slab from `tokens` on: their slots may hold anything. Thread `thread` of
/// 128.
template <class C>
__device__ __forceinline__ void clear_behind(char* latents, int tokens, int thread) {
  constexpr int kOfRow = C::kRowBytes / kChunkBytes;
  const int first = max(tokens, 0) * kOfRow;
#pragma unroll 1
  for (int chunk = first + thread; chunk < C::kTokens * kOfRow; chunk += 128) {
    *reinterpret_cast<uint4*>(
        latents + chunked_bytes(C::kRowBytes, chunk / kOfRow, chunk % kOfRow * kChunkBytes)) =
        make_uint4(0, 0, 0, 0);
  }
}

/// Returns whether this thread's part of V of the tokens first .. end - 1 of a slab is finite.
/// Thread `thread` of 128.
template <class C>
__device__ __forceinline__ bool is_finite(const char* latents, int first, int end, int thread) {
  constexpr int kOfRow = C::kDim * 2 / kChunkBytes;
  std::uint32_t check = 0;
#pragma unroll 1
  for (int chunk = max(first, 0) * kOfRow + thread; chunk < min(end, C::kTokens) * kOfRow;
       chunk += 128) {
    const uint4 words = *reinterpret_cast<const uint4*>(
        latents + chunked_bytes(C::kRowBytes, chunk / kOfRow, chunk % kOfRow * kChunkBytes));
    columns::add_check<typename C::T>(check, words.x);
    columns::add_check<typename C::T>(check, words.y);
    columns::add_check<typename C::T>(check, words.z);
    columns::add_check<typename C::T>(check, words.w);
  }
  return (check & 0x7FFF7FFFU) == 0;
}

}  // namespace kvarena::kernels::latent
