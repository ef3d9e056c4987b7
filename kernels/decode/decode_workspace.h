#pragma once

/// @file
/// What lies in a decode workspace, and the shape of a launch. Shared by the schedule and the
/// kernel.

#include "kernels/decode/decode_limits.h"
#include "kvarena/base/status.hpp"
#include "kvarena/base/tile_order.hpp"

#include <cstdint>

namespace kvarena::kernels {

inline constexpr std::int32_t kColumns = 8;   ///< query columns a thread block computes at once
inline constexpr std::int32_t kMaxWaves = 8;  ///< a schedule has at most that many waves of parts

/// Tokens of a unit, what a warp loads at once: one tile, or two where elements have one byte.
constexpr std::int32_t unit_tokens(DType kv_dtype) noexcept {
  return kTileTokens * (kv_dtype == DType::fp8_e4m3 ? 2 : 1);
}

/// A contiguous run of one row's units; the same for all KV heads. 32 bytes, loaded as two vectors.
struct DecodePart {
  std::int32_t row;         ///< batch row
  std::int32_t first_unit;  ///< inclusive
  std::int32_t last_unit;   ///< exclusive
  std::int32_t part;        ///< index among the row's parts
  std::int32_t num_parts;   ///< parts of the row
  std::int32_t first_slot;  ///< of the row's partial results, in units of head x column chunk
  std::int32_t seq_len;     ///< of the row
  std::int32_t table_row;   ///< of the block tables
};
static_assert(sizeof(DecodePart) == 32);

/// What the schedule tells the kernel.
struct DecodeHeader {
  std::int32_t num_parts;    ///< entries of `parts`
  std::int32_t next_work;    ///< work items taken beyond the first of each thread block
  std::int32_t blocks_done;  ///< thread blocks that have left the loop
  std::int32_t unused;
};

/// A kernel's constants besides its parameters.
struct DecodeConstants {
  std::uint32_t tiles_per_block;
  std::uint64_t
      block_of_tile;  ///< ceil(2^32 / tiles_per_block): multiply and shift divide a tile index
};

/// The launch of a shape: thread blocks of `warps` warps, `per_sm` of them on a multiprocessor.
struct DecodeShape {
  std::int32_t warps;
  std::int32_t per_sm;
};

/// Twelve to sixteen warps on a multiprocessor, as many as registers allow, in two thread blocks
/// whose beginnings and ends overlap; one of eight warps where there are few work items, so that
/// their parts are few. Measured; docs/benchmarks.md.
inline DecodeShape decode_shape(const DecodeLimits& limits) noexcept {
  const std::int64_t items = static_cast<std::int64_t>(limits.max_rows) * limits.num_kv_heads;
  switch (limits.head_dim) {
    case 64: {
      const bool medium = items > 8 && items <= std::int64_t{2} * limits.num_sms;
      return medium ? DecodeShape{8, 2} : DecodeShape{4, 4};
    }
    case 96: return {8, 2};
    case 128: return items <= limits.num_sms / 2 ? DecodeShape{8, 1} : DecodeShape{6, 2};
    default: return {4, 2};
  }
}

/// Chunks of kColumns query columns that a KV head's queries need.
inline std::int32_t column_chunks(const DecodeLimits& limits) noexcept {
  const std::int32_t columns = limits.q_len * (limits.num_q_heads / limits.num_kv_heads);
  return (columns + kColumns - 1) / kColumns;
}

/// Whether a workspace can serve `limits`: invalid_argument or unsupported naming the limit.
Status check_decode_limits(const DecodeLimits& limits) noexcept;
/// Whether `workspace` is one: invalid_argument (pointer, alignment) or limit_exceeded (workspace).
Status check_decode_workspace(const DecodeLimits& limits, const void* workspace,
                              std::int64_t bytes) noexcept;

/// Where the arrays of a workspace begin, in bytes.
struct DecodeWorkspace {
  std::int64_t parts;      ///< DecodePart [max_parts]
  std::int64_t counters;   ///< int32 [max_rows * num_kv_heads * chunks, 2] arrivals, combined
  std::int64_t max_sum;    ///< float2 [slots, kColumns] running maximum (log2) and sum
  std::int64_t outputs;    ///< float [slots, kColumns, head_dim] unnormalised outputs
  std::int64_t bytes;      ///< in all
  std::int32_t max_parts;  ///< the schedule never makes more
  std::int32_t chunks;     ///< column chunks of a KV head
};

inline DecodeWorkspace decode_workspace(const DecodeLimits& limits) noexcept {
  const auto align = [](std::int64_t bytes) { return (bytes + 255) / 256 * 256; };
  const std::int64_t per_row =
      static_cast<std::int64_t>(limits.num_kv_heads) * column_chunks(limits);
  const DecodeShape shape = decode_shape(limits);
  // Splitting stops at kMaxWaves thread blocks a place; each row has one part at least.
  const std::int64_t split =
      static_cast<std::int64_t>(limits.num_sms) * shape.per_sm * kMaxWaves / per_row + 1;
  DecodeWorkspace w{};
  w.max_parts = static_cast<std::int32_t>(limits.max_rows + split);
  const std::int64_t slots = w.max_parts * per_row;
  w.chunks = column_chunks(limits);
  w.parts = 256;
  w.counters = align(w.parts + w.max_parts * static_cast<std::int64_t>(sizeof(DecodePart)));
  w.max_sum = align(w.counters + limits.max_rows * per_row * 8);
  w.outputs = align(w.max_sum + slots * kColumns * 8);
  w.bytes = align(w.outputs + slots * kColumns * limits.head_dim * 4);
  return w;
}

}  // namespace kvarena::kernels
