#pragma once

/// @file
/// The kernel of token_move.h. A unit is as many neighbouring dims of one token and head as fill 16
/// bytes of the narrower type, which lie together on both sides in either tile order. Thread
/// (blockIdx.y, threadIdx.x) has the unit within a token, (blockIdx.x, threadIdx.y) the tokens,
/// blockIdx.z K or V. All places and loads of a thread's tokens are issued before its stores.

#include "kernels/append/token_move.h"
#include "kernels/common/convert.cuh"
#include "kernels/common/vector_io.cuh"

#include "kvarena/base/tile_order.hpp"

#include <type_traits>

namespace kvarena::kernels {

/// A token on one side: its block, and its place in the block.
struct TokenPlace {
  std::int64_t block;
  std::int32_t token;
};

/// Both places of a token; `from.block` is -1 when it is to be skipped.
struct TokenPlaces {
  TokenPlace from;
  TokenPlace to;
};

/// The block and place of the position `at` of a sequence, or of a slot.
__device__ __forceinline__ TokenPlace split_position(const TokenMove& m, std::int64_t at) {
  const std::int64_t block = m.block_shift >= 0 ? at >> m.block_shift : at / m.block_size;
  return {block, static_cast<std::int32_t>(at - block * m.block_size)};
}

/// Position `at` of a row, through its table.
__device__ __forceinline__ TokenPlace table_place(const TokenMove& m, std::int32_t row,
                                                  std::int64_t at) {
  if (row < 0 || row >= m.tables.num_rows || at < 0) return {-1, 0};
  TokenPlace place = split_position(m, at);
  place.block = m.tables.block(row, place.block).value;
  return place;
}

/// The place of token `i` of runs: the run whose offsets enclose it. When every run is one token,
/// as in a decode step, the first guess is right.
__device__ __forceinline__ TokenPlace run_place(const TokenMove& m, std::int64_t i) {
  std::int64_t low = 0;
  std::int64_t high = m.num_runs;
  if (i < high && m.run_offsets[i] == i) low = i;
  if (low == i && i < high && m.run_offsets[i + 1] == i + 1) high = i + 1;
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    (m.run_offsets[middle] <= i ? low : high) = middle;
  }
  if (i >= m.run_offsets[low + 1]) return {-1, 0};
  const TokenRun run = m.runs[low];
  return table_place(m, run.row, run.start + (i - m.run_offsets[low]));
}

/// Where token `i` of the move lies on both sides.
__device__ __forceinline__ TokenPlaces find_token(const TokenMove& m, std::int64_t i) {
  if (m.map == TokenMap::copies) {
    const TokenPlace at = split_position(m, i);
    const BlockCopy copy = m.copies[at.block];
    const bool inside = copy.source.value < m.num_blocks && copy.target.value >= 0 &&
                        copy.target.value < m.num_target_blocks;
    return {{inside ? copy.source.value : -1, at.token}, {copy.target.value, at.token}};
  }
  TokenPlace pool{};
  if (m.map == TokenMap::slots) {
    const std::int64_t slot = m.slots[i];
    pool = slot < 0 ? TokenPlace{-1, 0} : split_position(m, slot);
  } else if (m.map == TokenMap::runs) {
    pool = run_place(m, i);
  } else {
    pool = table_place(m, m.row, std::int64_t{m.first_token} + i);
  }
  const TokenPlace flat{pool.block >= 0 && pool.block < m.num_blocks ? 0 : -1,
                        static_cast<std::int32_t>(i)};
  if (!m.to_pool) return {{flat.block < 0 ? -1 : pool.block, pool.token}, {0, flat.token}};
  return {flat, pool};
}

/// Units of 16 bytes and more: `From` and `To` known at compile time.
template <class From, class To>
struct VectorUnit {
  static constexpr int kNarrow = sizeof(From) < sizeof(To) ? sizeof(From) : sizeof(To);
  static constexpr int kWidth = kChunkBytes / kNarrow;
  static constexpr int kFromBytes = sizeof(From);
  static constexpr int kToBytes = sizeof(To);
  static constexpr bool kScaled = std::is_same_v<From, Fp8> || std::is_same_v<To, Fp8>;

  template <class T>
  union Words {
    uint4 words[kWidth * sizeof(T) / 16];
    T elements[kWidth];
    __device__ Words() {}
  };
  Words<From> in;

  __device__ static int from_bytes(const PlaneMove&) { return kFromBytes; }
  __device__ static int to_bytes(const PlaneMove&) { return kToBytes; }
  __device__ void read(const std::byte* at, const PlaneMove&) {
#pragma unroll
    for (int i = 0; i < static_cast<int>(kWidth * sizeof(From) / 16); ++i) {
      in.words[i] = load_once(at + 16 * i);
    }
  }
  __device__ void write(std::byte* at, const PlaneMove&, float scale) const {
    if constexpr (std::is_same_v<From, To>) {
      store(at, in.words[0]);
    } else {
      Words<To> out;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const float x = to_f32(in.elements[i]);
        out.elements[i] = from_f32<To>(kScaled ? x * scale : x);
      }
#pragma unroll
      for (int i = 0; i < static_cast<int>(kWidth * sizeof(To) / 16); ++i) {
        store(at + 16 * i, out.words[i]);
      }
    }
  }
};

/// Units of one element, for head dims and addresses that 16 bytes do not divide.
struct ElementUnit {
  static constexpr int kWidth = 1;
  static constexpr bool kScaled = true;
  float value;
  unsigned bits;

  __device__ static int from_bytes(const PlaneMove& p) {
    return static_cast<int>(bytes_of(p.from.dtype));
  }
  __device__ static int to_bytes(const PlaneMove& p) {
    return static_cast<int>(bytes_of(p.to.dtype));
  }
  __device__ void read(const std::byte* at, const PlaneMove& p) {
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
  __device__ void write(std::byte* at, const PlaneMove& p, float scale) const {
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

/// What a value is multiplied with on its way: an fp8 side's scale, or its inverse when it is
/// written.
__device__ __forceinline__ float factor_of(const TokenMove& m, const PlaneMove& p, int head) {
  if (p.scales == nullptr || p.from.dtype == p.to.dtype) return 1.0F;
  const float scale = p.scales[m.scale_per_head ? head : 0];
  return p.to.dtype == DType::fp8_e4m3 ? 1.0F / scale : scale;
}

template <class Unit, int kTokens>
__global__ void __launch_bounds__(512) move_tokens(const __grid_constant__ TokenMove m) {
  const PlaneMove& plane = m.planes[blockIdx.z];
  const unsigned units_per_head = static_cast<unsigned>(plane.to.head_dim) / Unit::kWidth;
  const unsigned unit = blockIdx.y * blockDim.x + threadIdx.x;
  const unsigned head = unit / units_per_head;
  if (head >= static_cast<unsigned>(plane.to.num_heads)) return;
  const int dim = static_cast<int>((unit - head * units_per_head) * Unit::kWidth);
  const std::int64_t first = std::int64_t{blockIdx.x} * kTokens * blockDim.y + threadIdx.y;

  TokenPlace targets[kTokens];
  Unit units[kTokens];
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    const std::int64_t token = first + i * static_cast<int>(blockDim.y);
    targets[i].block = -1;
    if (token >= m.num_tokens) continue;
    TokenPlaces places = find_token(m, token);
    targets[i] = places.to;
    if (places.from.block < 0) targets[i].block = -1;
    // Contiguous memory is read whether the token is skipped or not, so that its load does not
    // wait.
    if (m.to_pool) places.from.block = 0;
    if (places.from.block < 0) continue;
    units[i].read(plane.from.base + element_offset(plane.from, plane.kind, Unit::from_bytes(plane),
                                                   places.from.block, static_cast<int>(head),
                                                   places.from.token, dim),
                  plane);
  }
  const float factor = Unit::kScaled ? factor_of(m, plane, static_cast<int>(head)) : 1.0F;
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    if (targets[i].block < 0) continue;
    units[i].write(plane.to.base + element_offset(plane.to, plane.kind, Unit::to_bytes(plane),
                                                  targets[i].block, static_cast<int>(head),
                                                  targets[i].token, dim),
                   plane, factor);
  }
}

}  // namespace kvarena::kernels
