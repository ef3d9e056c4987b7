#pragma once

/// @file
/// The decode kernel. Tokens of a tile are the rows of mma.m16n8k16, query columns its eight
/// columns. K and V go from global memory straight into mma operands (that is what `chunked` tile
/// order is for). Lane `l` of a warp is (g, t) = (l / 4, l % 4), as in the PTX description of the
/// fragments: S^T holds tokens g and g + 8 of columns 2t and 2t + 1.

#include "kernels/decode/decode_workspace.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace kvarena::kernels::decode {

inline constexpr float kLog2e = 1.4426950408889634F;

__device__ __forceinline__ uint4 load_stream(const void* address) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(address));
  return v;
}
__device__ __forceinline__ uint2 load_stream_half(const void* address) {
  uint2 v;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];"
               : "=r"(v.x), "=r"(v.y)
               : "l"(address));
  return v;
}
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ unsigned transpose_8x8(unsigned x) {
  unsigned y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}
/// Word `i` of a vector; `i` is a compile-time constant after unrolling.
__device__ __forceinline__ unsigned word(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/// What depends on the 16-bit type.
template <class T>
struct Element;
template <>
struct Element<__nv_bfloat16> {
  static __device__ __forceinline__ unsigned pack(float low, float high) {
    const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const unsigned&>(v);
  }
  static __device__ __forceinline__ void mma(float* c, unsigned a0, unsigned a1, unsigned a2,
                                             unsigned a3, unsigned b0, unsigned b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
};
template <>
struct Element<__half> {
  static __device__ __forceinline__ unsigned pack(float low, float high) {
    const __half2 v = __floats2half2_rn(low, high);
    return reinterpret_cast<const unsigned&>(v);
  }
  static __device__ __forceinline__ void mma(float* c, unsigned a0, unsigned a1, unsigned a2,
                                             unsigned a3, unsigned b0, unsigned b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
};

/// K and V of one tile in registers, as mma operands.
template <int D>
struct TileRegisters {
  static constexpr int kWide = D / 64;        ///< V groups of 64 dims
  static constexpr bool kTail = D % 64 != 0;  ///< and one of 32
  uint4 k[D / 16];
  uint4 v[D / 16];

  __device__ __forceinline__ void load_key(const char* tile, int lane) {
#pragma unroll
    for (int i = 0; i < D / 16; ++i) k[i] = load_stream(tile + i * 512 + lane * 16);
  }
  /// v[4 * group + j] holds dims 8g .. 8g + 7 of the group of token 2t + (j & 1) + (j >> 1) * 8; of
  /// the tail, halves of v[4 * kWide ..] hold dims 4g .. 4g + 3 of the same tokens.
  __device__ __forceinline__ void load_value(const char* tile, int g, int t) {
#pragma unroll
    for (int i = 0; i < kWide * 4; ++i) v[i] = load_stream(tile + i * 512 + (t * 8 + g) * 16);
    if constexpr (kTail) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const char* at = tile + kWide * 2048 + j * 512 + t * 64 + g * 8;
        const uint2 low = load_stream_half(at);
        const uint2 high = load_stream_half(at + 256);
        v[kWide * 4 + j] = make_uint4(low.x, low.y, high.x, high.y);
      }
    }
  }
  /// Slots outside [first, end) may hold anything, NaN too; their weights are 0, their values must
  /// be.
  __device__ __forceinline__ void clear_value_outside(int first, int end, int token0, int t) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int token = token0 + 2 * t + (j & 1) + (j >> 1) * 8;
      if (token >= first && token < end) continue;
#pragma unroll
      for (int group = 0; group < kWide; ++group) v[group * 4 + j] = make_uint4(0, 0, 0, 0);
      if constexpr (kTail) {
        uint4& pair = v[kWide * 4 + (j >> 1)];
        if ((j & 1) == 0) {
          pair.x = pair.y = 0;
        } else {
          pair.z = pair.w = 0;
        }
      }
    }
  }
  /// Word of token slot `j` (see load_value) that mma step `i` needs.
  __device__ __forceinline__ unsigned value_word(int i, int j) const {
    if (i < kWide * 4) return word(v[(i & ~3) + j], i & 3);
    return word(v[kWide * 4 + (j >> 1)], (j & 1) * 2 + (i & 1));
  }
};

/// Running softmax state and output of one warp: rows of O^T are dims, columns query columns.
template <int D>
struct Accumulator {
  float o[D / 16][4];
  float max0, max1, sum0, sum1;  // of columns 2t and 2t + 1, in log2

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < D / 16; ++i) o[i][0] = o[i][1] = o[i][2] = o[i][3] = 0.0F;
    max0 = max1 = -INFINITY;
    sum0 = sum1 = 0.0F;
  }
  /// First of the two adjacent dims that o[i][0] and o[i][2] belong to.
  static __device__ __forceinline__ int dim_of(int i, int g) {
    if (i < TileRegisters<D>::kWide * 4) return (i >> 2) * 64 + g * 8 + (i & 3) * 2;
    return TileRegisters<D>::kWide * 64 + g * 4 + (i & 1) * 2;
  }
};

/// One (row, head, column chunk) and a part of its tiles.
struct WorkItem {
  DecodePart part;
  int head;   ///< KV head
  int chunk;  ///< of query columns
};

template <class T, int D, int W>
struct Shared {
  float max_sum[W][kColumns][2];
  alignas(16) float o[W][kColumns][D + 4];
  int next;
  int is_last;
};

/// A thread block's view of the problem. `OneTile`: a block is one tile, the common case, for which
/// the inner loop then has no arithmetic between a table entry and an address but one
/// multiplication.
template <class T, int D, int W, bool OneTile>
struct Kernel {
  const DecodeParams& p;
  const DecodeWorkspace w;
  const DecodeConstants constants;
  Shared<T, D, W>& shared;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int group = p.limits.num_q_heads / p.limits.num_kv_heads;
  const int chunks = w.chunks;
  const int heads = p.limits.num_kv_heads * chunks;

  __device__ DecodeHeader* header() const { return static_cast<DecodeHeader*>(p.workspace); }
  __device__ const DecodePart* parts() const {
    return reinterpret_cast<const DecodePart*>(static_cast<const char*>(p.workspace) + w.parts);
  }
  __device__ int* counter(const WorkItem& item) const {
    return reinterpret_cast<int*>(static_cast<char*>(p.workspace) + w.counters) +
           (static_cast<std::int64_t>(item.part.row) * heads + item.head * chunks + item.chunk) * 2;
  }
  __device__ std::int64_t slot(const WorkItem& item, int part) const {
    return (static_cast<std::int64_t>(item.part.first_slot) + part) * heads + item.head * chunks +
           item.chunk;
  }
  __device__ float2* max_sum(std::int64_t slot) const {
    return reinterpret_cast<float2*>(static_cast<char*>(p.workspace) + w.max_sum) + slot * kColumns;
  }
  __device__ float* outputs(std::int64_t slot) const {
    return reinterpret_cast<float*>(static_cast<char*>(p.workspace) + w.outputs) +
           slot * kColumns * D;
  }

  /// Heads of one part are neighbours, so that thread blocks at work together read neighbouring
  /// bytes.
  __device__ WorkItem item_at(int index) const {
    const int at = index / heads;
    const int within = index - at * heads;
    const int4* words = reinterpret_cast<const int4*>(parts() + at);
    const int4 a = words[0];
    const int4 b = words[1];
    return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}, within / chunks, within % chunks};
  }
  __device__ const BlockId* table(const WorkItem& item) const {
    const int row = p.row_slots == nullptr ? item.part.row : p.row_slots[item.part.row];
    return p.block_tables + row * p.table_stride;
  }
  /// Exact for tile < 2^20 / tiles a block: no branch and no division in the inner loop.
  __device__ unsigned table_index(int tile) const {
    if constexpr (OneTile) return static_cast<unsigned>(tile);
    return static_cast<unsigned>(static_cast<unsigned>(tile) * constants.block_of_tile >> 32);
  }
  __device__ int block_of(const BlockId* table, int tile) const {
    return table[table_index(tile)].value;
  }
  /// Bytes from a plane's base to a tile.
  __device__ std::int64_t tile_offset(int block, int head, int tile) const {
    const std::int64_t at = block * p.block_stride + head * p.head_stride;
    if constexpr (OneTile) return at;
    const unsigned within = tile - table_index(tile) * constants.tiles_per_block;
    return at + within * (kTileTokens * D * 2);
  }
  /// A column's query: token within the row and query head. `column` may be past the last.
  __device__ std::int64_t q_row(const WorkItem& item, int column) const {
    const int token = column / group;
    const int head = item.head * group + column % group;
    return (static_cast<std::int64_t>(item.part.row) * p.limits.q_len + token) *
               p.limits.num_q_heads +
           head;
  }
  __device__ int num_columns() const { return p.limits.q_len * group; }
  /// One past the last position that a column sees.
  __device__ int limit_of(const WorkItem& item, int column) const {
    return item.part.seq_len - p.limits.q_len + min(column / group, p.limits.q_len - 1) + 1;
  }

  __device__ void load_first(TileRegisters<D>& tile, const WorkItem& item, int& next_block) const;
  __device__ void load_query(unsigned (&q)[D / 16][2], const WorkItem& item) const;
  __device__ void stream(Accumulator<D>& acc, TileRegisters<D>& tile, int next_block,
                         const WorkItem& item) const;
  __device__ void mask(float (&s)[4], const WorkItem& item, int tile) const;
  __device__ void merge_warps(const WorkItem& item) const;
  __device__ void combine(const WorkItem& item, int first, int end) const;
  __device__ void write_output(const WorkItem& item, int column, int dim, float maximum, float sum,
                               float4 o) const;
  __device__ void arrive(const WorkItem& item, bool all_at_once) const;
  __device__ void run() const;
};

}  // namespace kvarena::kernels::decode

#include "kernels/decode/decode_combine.cuh"
#include "kernels/decode/decode_stream.cuh"
