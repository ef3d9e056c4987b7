#pragma once

/// @file
/// The kernel of token_move.h. A unit is a run of neighbouring dims of one token and head that
/// fills 16 bytes of the narrower type. On both sides it is one chunk of 16 bytes, or several whose
/// distance is known. (blockIdx.y, threadIdx.x) selects the unit within a token, (blockIdx.x,
/// threadIdx.y) the tokens, and blockIdx.z K or V. A thread finds all places and issues all loads
/// of its tokens before its stores. Finding a place is a chain of dependent loads. The reads of new
/// tokens do not wait for that chain, and an overlapping launch walks it before the kernel in front
/// has ended.

#include "kernels/append/token_move.h"
#include "kernels/common/convert.cuh"
#include "kernels/common/grid_dependency.cuh"
#include "kernels/common/vector_io.cuh"

#include "kvarena/base/tile_order.hpp"

#include <type_traits>

namespace kvarena::kernels {

inline constexpr int kMoveThreads = 256;  ///< most threads of a thread block

/// The place of a token in a pool: its block (-1: skip the token) and its offset in the block.
struct TokenPlace {
  std::int32_t block;
  std::int32_t token;
};

/// Splits a slot, or a position of a sequence, into block and offset.
__device__ __forceinline__ TokenPlace split_position(const TokenMove& m, std::int64_t at) {
  const std::int64_t block = m.block_shift >= 0 ? at >> m.block_shift : at / m.block_size;
  return {static_cast<std::int32_t>(block), static_cast<std::int32_t>(at - block * m.block_size)};
}

/// A position in a row of the tables, or a slot with row 0. Row -1: skip the token.
struct RowPosition {
  std::int32_t row;
  std::int64_t at;
};

/// Returns the place of a position, read from its row's table.
__device__ __forceinline__ TokenPlace table_place(const TokenMove& m, const RowPosition& position) {
  const auto [row, at] = position;
  if (row < 0 || row >= m.tables.num_rows || at < 0) return {-1, 0};
  const TokenPlace place = split_position(m, at);
  return {m.tables.block(row, place.block).value, place.token};
}

/// The run that a thread found last: tokens begin .. end - 1. The next token is usually in the same
/// run.
struct RunCursor {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  TokenRun run{-1, 0};
};

/// Loads run `index`.
__device__ __forceinline__ RunCursor load_run(const TokenMove& m, std::int32_t index) {
  return {m.run_offsets[index], m.run_offsets[index + 1], m.runs[index]};
}

/// Returns the position of token `i` of a move by runs. The first guess is right for runs of equal
/// length, such as the one-token runs of a decode step; otherwise a binary search finds the run.
__device__ __forceinline__ RowPosition run_position(const TokenMove& m, std::int64_t i,
                                                    RunCursor& cursor) {
  if (i < cursor.begin || i >= cursor.end) {
    const auto last = static_cast<std::int32_t>(m.num_runs) - 1;
    const std::int32_t guess =
        min(static_cast<std::int32_t>(static_cast<float>(i) * m.runs_per_token), last);
    cursor = load_run(m, guess);
    if (i < cursor.begin || i >= cursor.end) {
      std::int32_t low = i < cursor.begin ? 0 : guess;
      std::int32_t high = i < cursor.begin ? guess : last + 1;
      while (high - low > 1) {
        const std::int32_t middle = low + (high - low) / 2;
        (m.run_offsets[middle] <= i ? low : high) = middle;
      }
      cursor = load_run(m, low);
      if (i < cursor.begin || i >= cursor.end) return {-1, 0};
    }
  }
  return {cursor.run.row, cursor.run.start + (i - cursor.begin)};
}

/// Finds the places of tokens first, first + step, .. of the move in the pool (with copies: in the
/// source pool). A place outside the pool is skipped. The loops go step by step over all tokens, so
/// that their chains of loads run side by side.
template <TokenMap kMap, int kTokens>
__device__ __forceinline__ void find_places(const TokenMove& m, std::int64_t first, int step,
                                            TokenPlace (&places)[kTokens]) {
  RowPosition positions[kTokens];
  RunCursor cursor;
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    const std::int64_t token = first + i * step;
    positions[i] = {-1, 0};
    if (token >= m.num_tokens) continue;
    if constexpr (kMap == TokenMap::slots) {
      positions[i] = {0, m.slots[token]};
    } else if constexpr (kMap == TokenMap::runs) {
      positions[i] = run_position(m, token, cursor);
    } else if constexpr (kMap == TokenMap::copies) {
      positions[i] = {0, token};
    } else {
      positions[i] = {m.row, std::int64_t{m.first_token} + token};
    }
  }
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    const auto [row, at] = positions[i];
    places[i] = {-1, 0};
    if constexpr (kMap == TokenMap::slots) {
      if (row >= 0 && at >= 0 && at < m.num_blocks * m.block_size) {
        places[i] = split_position(m, at);
      }
    } else if constexpr (kMap == TokenMap::copies) {
      if (row < 0) continue;
      const TokenPlace copied = split_position(m, at);
      places[i] = {m.copies[copied.block].source.value, copied.token};
    } else {
      places[i] = table_place(m, positions[i]);
    }
    if (places[i].block >= m.num_blocks) places[i].block = -1;
  }
}

/// A unit of 16 bytes or more, for types `From` and `To` that are known at compile time.
template <class From, class To>
struct VectorUnit {
  static constexpr int kNarrow = sizeof(From) < sizeof(To) ? sizeof(From) : sizeof(To);
  static constexpr int kWidth = kChunkBytes / kNarrow;
  static constexpr int kFromBytes = sizeof(From);
  static constexpr int kToBytes = sizeof(To);
  static constexpr bool kScaled = std::is_same_v<From, Fp8> || std::is_same_v<To, Fp8>;
  // A unit that is only moved fits in 40 registers. With conversions, that limit would spill.
  static constexpr int kBlocksPerSm = std::is_same_v<From, To> ? 6 : 1;

  template <class T>
  union Words {
    uint4 words[kWidth * sizeof(T) / 16];
    T elements[kWidth];
    __device__ Words() {}
  };
  Words<From> in;

  __device__ static int from_bytes(const PlaneMove&) { return kFromBytes; }
  __device__ static int to_bytes(const PlaneMove&) { return kToBytes; }
  /// `step`: bytes from one chunk of the unit to the next.
  __device__ void read(const std::byte* at, int step, const PlaneMove&) {
#pragma unroll
    for (int i = 0; i < static_cast<int>(kWidth * sizeof(From) / 16); ++i) {
      in.words[i] = load_once(at + step * i);
    }
  }
  template <bool kOnce>
  __device__ void write(std::byte* at, int step, const PlaneMove&, float scale) const {
    if constexpr (std::is_same_v<From, To>) {
      kOnce ? store_once(at, in.words[0]) : store(at, in.words[0]);
    } else {
      Words<To> out;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const float x = to_f32(in.elements[i]);
        out.elements[i] = from_f32<To>(kScaled ? x * scale : x);
      }
#pragma unroll
      for (int i = 0; i < static_cast<int>(kWidth * sizeof(To) / 16); ++i) {
        kOnce ? store_once(at + step * i, out.words[i]) : store(at + step * i, out.words[i]);
      }
    }
  }
};

/// A unit of one element, for head dims and addresses that are not multiples of 16 bytes.
struct ElementUnit {
  static constexpr int kWidth = 1;
  static constexpr bool kScaled = true;
  static constexpr int kBlocksPerSm = 1;
  float value;
  unsigned bits;

  __device__ static int from_bytes(const PlaneMove& p) {
    return static_cast<int>(bytes_of(p.from.dtype));
  }
  __device__ static int to_bytes(const PlaneMove& p) {
    return static_cast<int>(bytes_of(p.to.dtype));
  }
  __device__ void read(const std::byte* at, int, const PlaneMove& p) {
    if (p.from.dtype != p.to.dtype) {
      value = load_f32(at, p.from.dtype);
      return;
    }
    switch (from_bytes(p)) {
      case 1: bits = *reinterpret_cast<const std::uint8_t*>(at); break;
      case 2: bits = *reinterpret_cast<const std::uint16_t*>(at); break;
      default: bits = *reinterpret_cast<const std::uint32_t*>(at); break;
    }
  }
  template <bool kOnce>
  __device__ void write(std::byte* at, int, const PlaneMove& p, float scale) const {
    if (p.from.dtype != p.to.dtype) {
      store_f32(at, p.to.dtype, value * scale);
      return;
    }
    switch (to_bytes(p)) {
      case 1: *reinterpret_cast<std::uint8_t*>(at) = static_cast<std::uint8_t>(bits); break;
      case 2: *reinterpret_cast<std::uint16_t*>(at) = static_cast<std::uint16_t>(bits); break;
      default: *reinterpret_cast<std::uint32_t*>(at) = bits; break;
    }
  }
};

/// Returns the factor for the values of a move: the scale of an fp8 source, or the inverse scale of
/// an fp8 target. 1 when both sides or no side is fp8, or when there are no scales.
__device__ __forceinline__ float factor_of(const TokenMove& m, const PlaneMove& p, int head) {
  const bool is_written = p.to.dtype == DType::fp8_e4m3;
  if (p.scales == nullptr || is_written == (p.from.dtype == DType::fp8_e4m3)) return 1.0F;
  const float scale = p.scales[m.scale_per_head ? head : 0];
  return is_written ? 1.0F / scale : scale;
}

/// Returns the address of element (token, head, dim) on the contiguous side `flat`.
template <class Unit>
__device__ __forceinline__ std::byte* flat_at(const PlaneView& flat, const PlaneMove& plane,
                                              int head, std::int64_t token, int dim) {
  const int bytes = &flat == &plane.from ? Unit::from_bytes(plane) : Unit::to_bytes(plane);
  return flat.base + head * flat.head_stride + token * flat.token_stride + dim * bytes;
}

/// Returns the bytes from the first chunk of a unit to the second one. `chunked` exchanges the two
/// chunks of a pair for some tokens (tile_order.hpp).
__device__ __forceinline__ int chunk_step(const PlaneView& plane, int element_bytes, int token) {
  if (plane.tile_order == TileOrder::rows) return kChunkBytes;
  const int row = chunked_row_bytes(plane, element_bytes);
  return chunked_bytes(row, token, kChunkBytes) - chunked_bytes(row, token, 0);
}

/// Returns `unit / per_head`. It multiplies when the launcher found that to be exact.
__device__ __forceinline__ unsigned head_of(const TokenMove& m, unsigned unit, unsigned per_head) {
  return m.head_reciprocal != 0 ? __umulhi(unit, m.head_reciprocal) : unit / per_head;
}

/// Moves kTokens tokens in each thread. `kMap` equals m.map.
template <class Unit, int kTokens, TokenMap kMap>
__global__ void __launch_bounds__(kMoveThreads, Unit::kBlocksPerSm)
    move_tokens(const __grid_constant__ TokenMove m) {
  constexpr bool kToPool = kMap != TokenMap::gather && kMap != TokenMap::copies;
  const PlaneMove& plane = m.planes[blockIdx.z];
  const unsigned units_per_head = static_cast<unsigned>(plane.to.head_dim) / Unit::kWidth;
  const unsigned unit = blockIdx.y * blockDim.x + threadIdx.x;
  const int head = static_cast<int>(head_of(m, unit, units_per_head));
  if (head >= plane.to.num_heads) return;
  const int dim =
      static_cast<int>(unit - static_cast<unsigned>(head) * units_per_head) * Unit::kWidth;
  const std::int64_t first = std::int64_t{blockIdx.x} * kTokens * blockDim.y + threadIdx.y;

  Unit units[kTokens];
  TokenPlace places[kTokens];
  const auto step = static_cast<int>(blockDim.y);
  constexpr bool kAppends = kMap == TokenMap::slots || kMap == TokenMap::runs;
  const bool overlap = kAppends && m.overlap;
  if (overlap) find_places<kMap>(m, first, step, places);
  wait_for_previous_kernel();
  if (kAppends) let_next_kernel_begin();
    // Contiguous memory is read even when the token is skipped.
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    const std::int64_t token = first + i * step;
    if (kToPool && token < m.num_tokens) {
      units[i].read(flat_at<Unit>(plane.from, plane, head, token, dim), kChunkBytes, plane);
    }
  }
  if (!overlap) find_places<kMap>(m, first, step, places);
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    if (kToPool || places[i].block < 0) continue;
    const std::int64_t at = element_offset(plane.from, Unit::from_bytes(plane), places[i].block,
                                           head, places[i].token, dim);
    units[i].read(plane.from.base + at,
                  chunk_step(plane.from, Unit::from_bytes(plane), places[i].token), plane);
  }
  const float factor = Unit::kScaled ? factor_of(m, plane, head) : 1.0F;
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    if (places[i].block < 0) continue;
    const std::int64_t token = first + i * step;
    std::byte* at = nullptr;
    int chunks_apart = kChunkBytes;
    if constexpr (kMap == TokenMap::gather) {
      at = flat_at<Unit>(plane.to, plane, head, token, dim);
    } else {
      if constexpr (kMap == TokenMap::copies) {
        places[i].block = m.copies[split_position(m, token).block].target.value;
        if (places[i].block < 0 || places[i].block >= m.num_target_blocks) continue;
      }
      at = plane.to.base + element_offset(plane.to, Unit::to_bytes(plane), places[i].block, head,
                                          places[i].token, dim);
      chunks_apart = chunk_step(plane.to, Unit::to_bytes(plane), places[i].token);
    }
    units[i].template write<(kTokens > 1)>(at, chunks_apart, plane, factor);
  }
}

}  // namespace kvarena::kernels
