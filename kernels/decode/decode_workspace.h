#pragma once

/// @file
/// The content of a decode workspace. The schedule and the kernel share this header.

#include "kernels/decode/decode_shape.h"
#include "kvarena/base/status.hpp"

#include <algorithm>
#include <cstdint>

namespace kvarena::kernels {

inline constexpr std::int32_t kMaxWaves = 8;  ///< most waves of parts in a schedule

/// A contiguous run of units of one row; it applies to all KV heads. 32 bytes, loaded as two
/// vectors.
struct DecodePart {
  std::int32_t first_q;          ///< the row's first query token in q and out
  std::int32_t first_unit;       ///< inclusive
  std::int32_t last_unit;        ///< exclusive
  std::int32_t part;             ///< index among the row's parts
  std::uint32_t num_parts : 24;  ///< parts of the row
  std::uint32_t q_len : 8;       ///< query tokens of the row
  std::int32_t first_slot;  ///< place of the row's partial results, in units of head x column chunk
  std::int32_t seq_len;     ///< of the row
  std::int32_t table_row;   ///< of the block tables
};
static_assert(sizeof(DecodePart) == 32);

/// The figures of a schedule, for the attention kernel.
struct DecodeHeader {
  std::int32_t num_parts;    ///< entries of `parts`
  std::int32_t next_work;    ///< work items taken after the first item of each thread block, or
                             ///< cluster of them
  std::int32_t blocks_done;  ///< thread blocks that have left the loop
  std::int32_t part_units;   ///< most units of a part, but for long rows with fixed parts
};

/// Constants of a kernel besides its parameters.
struct DecodeConstants {
  std::uint32_t tiles_per_block;
  std::uint64_t block_of_tile;  ///< ceil(2^32 / tiles_per_block): a multiplication and a shift
                                ///< divide a tile index
};

/// How rows are cut with fixed parts: by their own length, the heads and head_dim alone. Short
/// parts make a row that is alone faster and a full batch slower. The numbers are those with which
/// no batch of docs/benchmarks.md that fills the device is more than 10 % slower than without fixed
/// parts.
struct FixedParts {
  std::int32_t short_row;     ///< tokens of the longest short row
  std::int32_t short_tokens;  ///< most of a part of a short row
  std::int32_t tokens;        ///< most of a part of another row
  std::int32_t most_parts;    ///< of a row; a longer row gets longer parts
};
inline FixedParts fixed_parts(std::int32_t head_dim, std::int64_t heads) noexcept {
  switch (head_dim) {
    case 64: return {1024, 1024, 512, 32};
    case 96: return {0, 768, 768, 32};
    case 128: return heads >= 4 ? FixedParts{1024, 256, 512, 32} : FixedParts{8192, 1024, 512, 64};
    default: return {0, 1024, 1024, 32};
  }
}

/// Checks whether a workspace can serve `limits`. Returns invalid_argument or unsupported with the
/// limit.
Status check_decode_limits(const DecodeLimits& limits) noexcept;
/// Checks the address and size of a workspace. Returns invalid_argument (pointer, alignment) or
/// limit_exceeded (workspace).
Status check_decode_workspace(const DecodeLimits& limits, const void* workspace,
                              std::int64_t bytes) noexcept;

/// The offsets of the arrays of a workspace, in bytes.
struct DecodeWorkspace {
  std::int64_t parts;      ///< DecodePart [max_parts]
  std::int64_t counters;   ///< int32 [slots, thread blocks of a cluster, 2] arrived parts of the
                           ///< group, and arrived groups of the item, that begin at the slot; all
                           ///< are 0 between launches
  std::int64_t max_sum;    ///< float2 [slots, 2, columns] running maximum (log2) and sum of a part,
                           ///< and of the group that begins at the slot
  std::int64_t outputs;    ///< float [slots, columns, head_dim] unnormalised outputs
  std::int64_t bytes;      ///< size of the whole workspace
  std::int32_t max_parts;  ///< most parts of a schedule
  std::int32_t chunks;     ///< column chunks of a KV head
};

/// Returns the units of a part of `tokens` tokens, rounded up to one for each warp.
inline std::int32_t fixed_part_units(const DecodeLimits& limits, std::int32_t tokens) noexcept {
  const std::int32_t warps = usual_shape(limits).warps;
  const std::int32_t units = tokens / unit_tokens(limits.kv_dtype);
  return (units + warps - 1) / warps * warps;
}

/// What a step's arrays need.
struct DecodeSize {
  std::int64_t max_parts;
  std::int64_t slots;
  std::int64_t columns;  ///< of all slots
};
inline DecodeSize decode_size(const DecodeLimits& limits) noexcept {
  const std::int64_t per_row =
      static_cast<std::int64_t>(limits.num_kv_heads) * column_chunks(limits);
  const DecodeShape shape = usual_shape(limits);
  // A row is split until there are kMaxWaves thread blocks for each place. Each row has at least
  // one part. A row of n tokens has at most n / part_tokens + 1 fixed parts; a short one has at
  // most so many more. A step of short rows may have another shape, and no more parts.
  const std::int64_t waves =
      static_cast<std::int64_t>(limits.num_sms) * shape.per_sm * kMaxWaves / per_row + 1;
  const FixedParts fixed = fixed_parts(limits.head_dim, per_row);
  const std::int64_t part_tokens =
      std::int64_t{fixed_part_units(limits, fixed.tokens)} * unit_tokens(limits.kv_dtype);
  const std::int64_t more =
      fixed.short_tokens < fixed.tokens ? (fixed.short_row - 1) / fixed.short_tokens : 0;
  const std::int64_t cut =
      limits.fixed_tokens == 0 ? 0 : limits.fixed_tokens / part_tokens + limits.max_rows * more;
  const std::int64_t parts = limits.max_rows + std::max(waves, cut);
  const std::int64_t slots = parts * per_row;
  return {parts, slots, slots * kColumns * column_operands(limits)};
}

/// Returns the most that a step needs, for all step_tokens. Where these matter, a step of one query
/// token has the most parts. A step of q_len has the most slots but for the rounding of its parts:
/// one more for each item of a row at most.
inline DecodeSize most_decode_size(DecodeLimits limits) noexcept {
  limits.step_tokens = limits.q_len;
  const DecodeSize many = decode_size(limits);
  if (!may_have_two_operands(limits)) return many;
  const std::int64_t rounding =
      static_cast<std::int64_t>(limits.num_kv_heads) * column_chunks(limits);
  limits.step_tokens = 1;
  const DecodeSize few = decode_size(limits);
  return {std::max(few.max_parts, many.max_parts), std::max(few.slots, many.slots + rounding),
          std::max(few.columns, many.columns + rounding * kColumns * 2)};
}

/// Lays out a workspace. The arrays have the places of the step that needs most.
inline DecodeWorkspace decode_workspace(const DecodeLimits& limits) noexcept {
  const auto align = [](std::int64_t bytes) { return (bytes + 255) / 256 * 256; };
  const DecodeSize most = most_decode_size(limits);
  DecodeWorkspace w{};
  w.max_parts = static_cast<std::int32_t>(decode_size(limits).max_parts);
  w.chunks = column_chunks(limits);
  w.parts = 256;
  w.counters = align(w.parts + most.max_parts * static_cast<std::int64_t>(sizeof(DecodePart)));
  w.max_sum = align(w.counters + most.slots * kMostOfDecodeCluster * 8);
  w.outputs = align(w.max_sum + most.columns * 2 * 8);
  w.bytes = align(w.outputs + most.columns * limits.head_dim * 4);
  return w;
}

}  // namespace kvarena::kernels
