#pragma once

/// @file
/// The shape of a launch of decode attention: how many warps a thread block has, how many thread
/// blocks a multiprocessor, and how many a cluster. Plain numbers, no CUDA.

#include "kernels/decode/decode_limits.h"
#include "kvarena/base/tile_order.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>

namespace kvarena::kernels {

inline constexpr std::int32_t kColumns = 8;              ///< query columns of an operand
inline constexpr std::int32_t kMostOfDecodeCluster = 8;  ///< most thread blocks of a cluster
/// Multiprocessors from which on there are clusters: a small part of a device may have no room.
inline constexpr std::int32_t kLeastClusterSms = 64;

/// Returns the tokens of a unit, which a warp loads at once: one tile, or two when elements have
/// one byte.
constexpr std::int32_t unit_tokens(DType kv_dtype) noexcept {
  return kTileTokens * (kv_dtype == DType::fp8_e4m3 ? 2 : 1);
}

/// Returns the work items of a full step that is not cut.
inline std::int64_t row_items(const DecodeLimits& limits) noexcept {
  return static_cast<std::int64_t>(limits.max_rows) * limits.num_kv_heads;
}
/// Returns whether steps may have two operands of query columns for each tile, so that more than
/// eight columns read K and V of fp8 half as often; the columns kernel serves the others on Hopper.
/// Not where few items are cut into many parts, whose results would be larger; with fixed
/// parts, so that a row's cut does not depend on the columns of others; and with head_dim 256,
/// whose outputs take the registers.
inline bool may_have_two_operands(const DecodeLimits& limits) noexcept {
  return limits.kv_dtype == DType::fp8_e4m3 && limits.head_dim <= 128 && limits.fixed_tokens == 0 &&
         limits.q_len * (limits.num_q_heads / limits.num_kv_heads) > kColumns &&
         row_items(limits) > limits.num_sms / 2;
}
/// Returns the query columns of a KV head.
inline std::int32_t columns_of(const DecodeLimits& limits) noexcept {
  const bool is_of_step = limits.step_tokens > 0 && may_have_two_operands(limits);
  return (is_of_step ? limits.step_tokens : limits.q_len) *
         (limits.num_q_heads / limits.num_kv_heads);
}
/// Returns how many operands of query columns a thread block multiplies with each tile.
inline std::int32_t column_operands(const DecodeLimits& limits) noexcept {
  return may_have_two_operands(limits) && columns_of(limits) > kColumns ? 2 : 1;
}
/// Returns how many chunks of query columns, those of a thread block, the queries of a KV head
/// need.
inline std::int32_t column_chunks(const DecodeLimits& limits) noexcept {
  const std::int32_t chunk = kColumns * column_operands(limits);
  return (columns_of(limits) + chunk - 1) / chunk;
}

/// The launch for a shape: thread blocks of `warps` warps, `per_sm` of them on a multiprocessor.
/// The `cluster` thread blocks of a cluster share their work items and merge their results in
/// shared memory.
struct DecodeShape {
  std::int32_t warps;
  std::int32_t per_sm;
  std::int32_t cluster = 1;
  friend bool operator==(const DecodeShape&, const DecodeShape&) = default;
};

/// Returns how many thread blocks, or clusters of them, run at once. Clusters leave some
/// multiprocessors without work, because each is in one part of the device: an H200 of 132
/// multiprocessors holds 15 clusters of eight.
inline std::int32_t places_of(const DecodeShape& shape, std::int32_t num_sms) noexcept {
  const std::int32_t sms = shape.cluster > 1 ? num_sms * 10 / 11 : num_sms;
  return std::max(1, sms * shape.per_sm / shape.cluster);
}

/// Returns the launch shape where nothing is known of a step's rows: eight to sixteen warps on a
/// multiprocessor, as many as registers allow, in two or four thread blocks whose starts and ends
/// overlap. With few work items it is one thread block, or with head_dim 64 two, so that the items
/// have few parts. The numbers are measured; see docs/benchmarks.md. With fixed parts, the shape
/// does not depend on the rows.
inline DecodeShape usual_shape(const DecodeLimits& limits) noexcept {
  const std::int64_t items = limits.fixed_tokens > 0 ? std::int64_t{1} << 40 : row_items(limits);
  // Two operands: with head_dim 96 and 128 a warp needs all the registers that it can have.
  if (column_operands(limits) == 2) {
    return limits.head_dim == 64 ? DecodeShape{6, 2} : DecodeShape{4, 2};
  }
  const bool is_small = items <= limits.num_sms / 2;
  switch (limits.head_dim) {
    case 64:
      return items <= std::int64_t{2} * limits.num_sms ? DecodeShape{8, 2} : DecodeShape{4, 4};
    case 96: return is_small ? DecodeShape{12, 1} : DecodeShape{8, 2};
    case 128: return is_small ? DecodeShape{8, 1} : DecodeShape{6, 2};
    default: return is_small ? DecodeShape{8, 1} : DecodeShape{4, 2};
  }
}

/// Returns the estimated time of a step of `items` equal work items of `units` units that are not
/// cut much, in rounds: a warp needs about as long for a unit whatever the others do. Between its
/// ends a thread block has one round for each unit of a warp, and half a round at the ends
/// together. A last wave that is not full takes the mean of its share and of a full one's time;
/// where items are long and can be cut, more of the first.
inline double rounds_of(const DecodeShape& shape, std::int64_t items, std::int64_t units,
                        std::int32_t num_sms) noexcept {
  const std::int64_t places = std::int64_t{num_sms} * shape.per_sm;
  const auto whole = static_cast<double>((items + places - 1) / places);
  const double waves = static_cast<double>(items) / static_cast<double>(places);
  const double uncut = std::min(0.5, 20.0 / static_cast<double>(units));
  const auto rounds = static_cast<double>((units + shape.warps - 1) / shape.warps);
  return (waves + (whole - waves) * uncut) * rounds + 0.5 * whole;
}

/// Returns the shapes of steps of many short rows, for a head_dim; none where the usual one serves
/// all. The first is for rows of different lengths.
inline std::span<const DecodeShape> short_row_shapes(const DecodeLimits& limits) noexcept {
  static constexpr DecodeShape k64[] = {{4, 4}, {2, 8}, {1, 16}};
  static constexpr DecodeShape k96[] = {{4, 4}, {2, 8}};
  static constexpr DecodeShape k128[] = {{4, 3}, {3, 4}, {6, 2}, {2, 6}};  // the last for fp8 alone
  switch (limits.head_dim) {
    case 64: return k64;
    case 96: return k96;
    case 128: return std::span(k128).first(limits.kv_dtype == DType::fp8_e4m3 ? 4 : 3);
    default: return {};
  }
}

/// Returns the shape that costs least: `usual`, or one of `shapes` that costs less.
template <class Cost>
DecodeShape cheapest_of(const DecodeShape& usual, std::span<const DecodeShape> shapes,
                        const Cost& cost_of) noexcept {
  DecodeShape best = usual;
  double least = cost_of(usual);
  for (const DecodeShape& shape : shapes) {
    const double cost = cost_of(shape);
    if (cost >= least) continue;
    best = shape;
    least = cost;
  }
  return best;
}

/// The work of a step of few equal work items.
struct FewItems {
  std::int64_t items;
  std::int64_t units;  ///< of an item, at least 1
};

/// Returns the estimated time of a step of few work items, in microseconds of an H200: that of its
/// bytes at the speed of the memory, or of the multiprocessors that read; a little for each round
/// of units after the first; and the time of its beginning and end. At the end the parts of an item
/// are combined, in two levels where they are many. In a cluster eight times as many warps are
/// combined before. The numbers are measured; see docs/benchmarks.md.
inline double time_of(const DecodeShape& shape, const DecodeLimits& limits,
                      const FewItems& work) noexcept {
  constexpr double kBytesOfMemory = 4.4e6;  // in a microsecond
  constexpr double kBytesOfSm = 55e3;
  const bool has_clusters = shape.cluster > 1;
  const std::int64_t places = places_of(shape, limits.num_sms);
  const std::int64_t warps = std::int64_t{shape.warps} * shape.cluster;
  const std::int64_t most = (work.units + warps - 1) / warps;
  // A thread block that shares its multiprocessor gets two rounds at least.
  const std::int64_t cuts =
      has_clusters || shape.per_sm == 1 ? most : std::max<std::int64_t>(most / 2, 1);
  const std::int64_t parts = std::clamp<std::int64_t>(places / work.items, 1, cuts);
  const auto rounds = static_cast<double>((most + parts - 1) / parts);
  const auto waves = static_cast<double>((work.items * parts + places - 1) / places);
  const auto unit_bytes = static_cast<double>(std::int64_t{unit_tokens(limits.kv_dtype)} *
                                              limits.head_dim * 2 * bytes_of(limits.kv_dtype));
  const double all = static_cast<double>(work.items * work.units) * unit_bytes / kBytesOfMemory;
  const double of_sm = waves * rounds * shape.warps * shape.per_sm * unit_bytes / kBytesOfSm;
  const double round = (has_clusters ? 0.3 : 0.1) + (bytes_of(limits.kv_dtype) == 1 ? 0.25 : 0.0);
  double ends = parts == 1 ? 3.1 : parts <= 12 ? 5.1 : parts <= 16 ? 5.5 : 7.2;
  if (has_clusters) ends = (parts == 1 ? 3.9 : 5.1) + 0.05 * (shape.warps - 8);
  if (limits.head_dim == 64 && !has_clusters) ends *= 0.9;  // smaller results
  if (limits.head_dim == 256) ends *= has_clusters ? 1.2 : 1.4;
  return std::max(all, of_sm) + waves * ((rounds - 1) * round + ends);
}

/// Returns the shapes in clusters for a head_dim.
inline std::span<const DecodeShape> cluster_shapes(std::int32_t head_dim) noexcept {
  static constexpr DecodeShape k64[] = {{8, 2, 8}};
  static constexpr DecodeShape k96[] = {{12, 1, 8}};
  static constexpr DecodeShape k128[] = {{8, 1, 8}, {10, 1, 8}};
  static constexpr DecodeShape k256[] = {{8, 1, 8}};
  switch (head_dim) {
    case 64: return k64;
    case 96: return k96;
    case 128: return k128;
    default: return k256;
  }
}

/// Chooses between a shape and those in clusters for a step of few equal work items.
inline DecodeShape few_items_shape(const DecodeShape& usual, const DecodeLimits& limits,
                                   const FewItems& work) noexcept {
  if (!limits.has_clusters || limits.num_sms < kLeastClusterSms) return usual;
  return cheapest_of(usual, cluster_shapes(limits.head_dim),
                     [&](const DecodeShape& shape) { return time_of(shape, limits, work); });
}

/// Chooses the launch shape of a step. Few rows of about one length may have clusters. Where there
/// are work items for several waves, and rows are short, thread blocks of few warps lose less: to
/// warps without a unit in the last round of an item, to thread blocks without an item in the last
/// wave, and at the ends of items. Measured; see docs/benchmarks.md. Schedule and attention of a
/// step must have the same limits.
inline DecodeShape decode_shape(const DecodeLimits& limits) noexcept {
  constexpr std::int32_t kShortUnits = 160;
  constexpr std::int64_t kFewItems = 8;
  constexpr std::int32_t kFewUnits = 96;
  constexpr std::int64_t kUnknownTokens = 4096;  // of a sequence that is alone
  const DecodeShape usual = usual_shape(limits);
  const std::span<const DecodeShape> shapes = short_row_shapes(limits);
  if (limits.fixed_tokens > 0 || column_operands(limits) == 2) return usual;
  const std::int64_t per_row = std::int64_t{limits.num_kv_heads} * column_chunks(limits);
  const std::int64_t unit = unit_tokens(limits.kv_dtype);
  if (limits.step_rows == 0) {
    if (limits.max_rows > 1) return usual;
    return few_items_shape(usual, limits, {per_row, kUnknownTokens / unit});
  }
  const std::int64_t items = limits.step_rows * per_row;
  const std::int64_t units = std::max<std::int64_t>(1, (limits.step_row_tokens + unit - 1) / unit);
  const std::int64_t sms = limits.num_sms;
  const bool is_even =
      std::int64_t{limits.step_longest} * 2 <= std::int64_t{limits.step_row_tokens} * 3;
  // Eight warps would have little to do.
  const bool has_little = limits.head_dim == 64 && items <= kFewItems && units <= kFewUnits;
  if (is_even && items <= sms / 2) {
    DecodeLimits few = limits;
    few.max_rows = std::min(limits.max_rows, limits.step_rows);
    const DecodeShape shape = few_items_shape(usual_shape(few), limits, {items, units});
    if (shape.cluster > 1 || !has_little) return shape;
  }
  if (has_little) return shapes.front();
  if (items <= 2 * sms || units > kShortUnits || shapes.empty()) return usual;
  // A long row among few others ends late in a thread block of few warps.
  const std::int64_t least_uneven = (limits.head_dim == 96 ? 3 : 6) * sms;
  if (!is_even) return items >= least_uneven ? shapes.front() : usual;
  return cheapest_of(usual, shapes, [&](const DecodeShape& shape) {
    const bool lacks_items = shape != usual && items * 16 < sms * shape.per_sm * 15;
    return lacks_items ? std::numeric_limits<double>::infinity()
                       : rounds_of(shape, items, units, limits.num_sms);
  });
}

}  // namespace kvarena::kernels
