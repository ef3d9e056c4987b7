#pragma once

/// @file
/// The producer warp of the columns kernel. It copies the slabs of the thread block's segments into
/// shared memory, first to last, K before V. A tile of 16 tokens is one bulk copy, and lane `i`
/// copies tile `i` of a slab. Tokens older than the query tokens are copied before the kernel in
/// front has completed: as many slabs as there are stages, and another one into the L2. Included by
/// columns.cuh.

#include "kernels/columns/columns_config.cuh"
#include "kernels/columns/columns_slabs.cuh"
#include "kernels/common/grid_dependency.cuh"

namespace kvarena::kernels::columns {

/// Returns the cache hint of data that other thread blocks read too.
__device__ __forceinline__ std::uint64_t evict_normal_hint() {
  std::uint64_t hint;
  asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(hint));
  return hint;
}

/// The producer warp.
template <class C>
struct Producer {
  using TableSlabs = Slabs<C>;
  static constexpr int kSlabsAhead = TableSlabs::kSlabsAhead;

  const Launch& launch;
  Shared<C>& shared;
  const int lane;
  int slab = 0;             ///< slabs so far, of all segments
  bool has_waited = false;  ///< for the kernel in front
  std::uint64_t hint = 0;   ///< of the copies of a segment

  template <int kTileBytes>
  __device__ __forceinline__ std::int64_t tile_offset(int block, int tile) const {
    return TableSlabs::template tile_offset<kTileBytes>(launch, block, tile);
  }
  __device__ __forceinline__ int load_entries(const ColumnsSegment& segment, int first) const {
    return TableSlabs::load_entries(launch, segment, first, lane);
  }
  /// Asks the L2 for the tiles of slab `at` of a segment that some query token sees.
  __device__ __forceinline__ void prefetch(const ColumnsSegment& segment, const char* key,
                                           const char* value, int at, int block) const {
    const int token = segment.first_token + (at * C::kTiles + lane) * kTileTokens;
    if (lane >= C::kTiles || token >= segment.seq_len ||
        token + kTileTokens <= segment.first_seen) {
      return;
    }
    prefetch_bulk(key + tile_offset<C::kKeyTileBytes>(block, token / kTileTokens),
                  C::kKeyTileBytes);
    prefetch_bulk(value + tile_offset<C::kTileBytes>(block, token / kTileTokens), C::kTileBytes);
  }
  /// Waits for the kernel in front, then lets the next one begin.
  __device__ __forceinline__ void follow() {
    wait_for_previous_kernel();
    let_next_kernel_begin();
    has_waited = true;
  }

  __device__ __forceinline__ void copy_key(const ColumnsSegment& segment, const char* key, int at,
                                           int block);
  __device__ __forceinline__ void copy_value(const ColumnsSegment& segment, const char* value,
                                             int at, int block);
  __device__ __forceinline__ void write_edge_tile(const ColumnsSegment& segment, const char* from,
                                                  char* to, int first_token);
  __device__ __forceinline__ void run(int words);
};

/// Copies the tiles of K of slab `at` of a segment that some query token sees.
template <class C>
__device__ __forceinline__ void Producer<C>::copy_key(const ColumnsSegment& segment,
                                                      const char* key, int at, int block) {
  const int stage = slab % C::kStages;
  const int token = segment.first_token + (at * C::kTiles + lane) * kTileTokens;
  wait(&shared.key_empty[stage], ((slab / C::kStages) & 1) ^ 1);
  const bool is_seen =
      lane < C::kTiles && token < segment.seq_len && token + kTileTokens > segment.first_seen;
  const int count = __popc(__ballot_sync(~0U, is_seen));
  if (lane == 0) arrive_and_expect(&shared.key_full[stage], count * C::kKeyTileBytes);
  __syncwarp();
  if (is_seen) {
    copy_bulk(shared_address(shared.key[stage]) + lane * C::kKeyTileBytes,
              key + tile_offset<C::kKeyTileBytes>(block, token / kTileTokens), C::kKeyTileBytes,
              &shared.key_full[stage], hint);
  }
}

/// Writes a tile of V whose tokens are not all seen; those that no query token sees become zeros,
/// because their slots may hold anything.
template <class C>
__device__ __forceinline__ void Producer<C>::write_edge_tile(const ColumnsSegment& segment,
                                                             const char* from, char* to,
                                                             int first_token) {
  constexpr int kChunks = C::kTileBytes / kChunkBytes;
  constexpr int kOfToken = C::kPiece / kChunkBytes;  // neighbouring chunks of a token
#pragma unroll 1
  for (int chunk = lane; chunk < kChunks; chunk += 32) {
    const int token =
        first_token + chunk / (kChunks / 2) * kAtomTokens + chunk / kOfToken % kAtomTokens;
    uint4 content = make_uint4(0, 0, 0, 0);
    if (token < segment.seq_len && token >= segment.first_seen) {
      content = *reinterpret_cast<const uint4*>(from + chunk * kChunkBytes);
    }
    *reinterpret_cast<uint4*>(to + chunk * kChunkBytes) = content;
  }
}

/// Copies the tiles of V of slab `at` of a segment whose tokens are all seen, and writes the
/// others.
template <class C>
__device__ __forceinline__ void Producer<C>::copy_value(const ColumnsSegment& segment,
                                                        const char* value, int at, int block) {
  const int stage = slab % C::kStages;
  const int token = segment.first_token + (at * C::kTiles + lane) * kTileTokens;
  wait(&shared.value_empty[stage], ((slab / C::kStages) & 1) ^ 1);
  const bool is_whole =
      lane < C::kTiles && token + kTileTokens <= segment.seq_len && token >= segment.first_seen;
  const unsigned whole = __ballot_sync(~0U, is_whole);
  const bool has_edge = whole != (1U << C::kTiles) - 1;
  if (has_edge) {
#pragma unroll 1
    for (int i = 0; i < C::kTiles; ++i) {
      if ((whole >> i & 1) != 0) continue;
      const int first = segment.first_token + (at * C::kTiles + i) * kTileTokens;
      write_edge_tile(
          segment,
          value + tile_offset<C::kTileBytes>(__shfl_sync(~0U, block, i), first / kTileTokens),
          shared.value[stage] + i * C::kTileBytes, first);
    }
    fence_async_proxy();
  }
  if (lane == 0) expect(&shared.value_full[stage], __popc(whole) * C::kTileBytes);
  __syncwarp();
  if (has_edge) {
    arrive(&shared.value_full[stage]);  // each lane for what it has written
  } else if (lane == 0) {
    arrive_many(&shared.value_full[stage], 32);
  }
  if (is_whole) {
    copy_bulk(shared_address(shared.value[stage]) + lane * C::kTileBytes,
              value + tile_offset<C::kTileBytes>(block, token / kTileTokens), C::kTileBytes,
              &shared.value_full[stage], hint);
  }
}

/// Copies all segments of the thread block. The entries of the next slabs are loaded while the
/// current ones are copied, and segments are loaded two ahead: where they are short, the producer
/// waits for neither.
template <class C>
__device__ __forceinline__ void Producer<C>::run(int words) {
  ColumnsSegment segment = segment_of(words);
  int held = load_entries(segment, 0);
  int next = segment.next >= 0 ? load_words(launch, segment.next, lane) : 0;
  wait_for_set_up<C>();
  while (true) {
    const int slabs = segment.slabs;
    const bool has_next = segment.next >= 0;
    int after_next = 0;
    // K and V of a row are read once; those of a tile also by other tiles of the group.
    hint = C::kHasTiles && segment.q_len == 0 ? evict_normal_hint() : evict_first_hint();
    const std::int64_t to_key = segment.head * launch.params.head_stride;
    const std::int64_t to_value =
        C::kDim == C::kKeyDim ? to_key : segment.head * launch.params.value_head_stride;
    const char* const key = static_cast<const char*>(launch.params.key) + to_key;
    const char* const value = static_cast<const char*>(launch.params.value) + to_value;
    for (int first = 0; first < slabs; first += kSlabsAhead) {
      int ahead = 0;
      if (first + kSlabsAhead < slabs) {
        ahead = load_entries(segment, first + kSlabsAhead);
      } else if (has_next) {
        const ColumnsSegment its = segment_of(next);
        ahead = load_entries(its, 0);
        after_next = its.next >= 0 ? load_words(launch, its.next, lane) : 0;
      }
      for (int i = first; i < min(slabs, first + kSlabsAhead); ++i, ++slab) {
        const int block = __shfl_sync(~0U, held, (i - first) * C::kTiles + lane % C::kTiles);
        const bool has_new_tokens =
            segment.first_token + (i + 1) * C::kTokens > segment.seq_len - segment.q_len;
        if (!has_waited && (slab >= C::kStages || has_new_tokens)) {
          if (!C::kHasTiles && !has_new_tokens) prefetch(segment, key, value, i, block);
          follow();
        }
        copy_key(segment, key, i, block);
        copy_value(segment, value, i, block);
      }
      held = ahead;
    }
    if (!has_next) break;
    segment = segment_of(next);
    next = after_next;
  }
  if (!has_waited) follow();
}

}  // namespace kvarena::kernels::columns
