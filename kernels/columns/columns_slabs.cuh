#pragma once

/// @file
/// Where the slabs of a segment lie in the pool: the table entries of their 16-token tiles, and the
/// bytes from a head's K or V to a tile. A warp holds the entries of some slabs ahead, one a lane.
/// Included by columns_producer.cuh and columns_converter.cuh.

#include "kernels/columns/columns_config.cuh"

namespace kvarena::kernels::columns {

template <class C>
struct Slabs {
  /// Slabs whose table entries the lanes hold.
  static constexpr int kSlabsAhead = 32 / C::kTiles;

  /// Returns the table entry's index of a tile. It is exact for tile < 2^32 / tiles_per_block.
  static __device__ __forceinline__ unsigned table_index(const Launch& launch, int tile) {
    return static_cast<unsigned>(static_cast<unsigned>(tile) * launch.constants.block_of_tile >>
                                 32);
  }
  /// Returns the bytes from a head's K or V to a tile, which lies in `block`.
  template <int kTileBytes>
  static __device__ __forceinline__ std::int64_t tile_offset(const Launch& launch, int block,
                                                             int tile) {
    const unsigned within = tile - table_index(launch, tile) * launch.constants.tiles_per_block;
    return block * launch.params.block_stride + within * kTileBytes;
  }
  /// Returns this lane's block of the kSlabsAhead slabs from `first` of a segment on. Entries that
  /// no query token needs are not read.
  static __device__ __forceinline__ int load_entries(const Launch& launch,
                                                     const ColumnsSegment& segment, int first,
                                                     int lane) {
    const int at = first + lane / C::kTiles;
    const int token = segment.first_token + (at * C::kTiles + lane % C::kTiles) * kTileTokens;
    if (at >= segment.slabs || token >= segment.seq_len ||
        token + kTileTokens <= segment.first_seen) {
      return 0;
    }
    const BlockId* const table =
        launch.params.block_tables + segment.table_row * launch.params.table_stride;
    return __ldg(reinterpret_cast<const int*>(table + table_index(launch, token / kTileTokens)));
  }
};

}  // namespace kvarena::kernels::columns
