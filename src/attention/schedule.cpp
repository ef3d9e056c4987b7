#include "attention/schedule.hpp"

#include <new>

namespace kvarena::attention {
namespace {

constexpr std::int32_t kTileRows = 32;        // query rows that share one pass over K and V
constexpr std::int32_t kPartsPerThread = 8;   // a worker that is delayed costs at most one part
constexpr std::int64_t kSegmentCost = 32;     // loading q and storing out, in units of half a token
constexpr std::int64_t kSmallestPart = 1024;  // a smaller part is not worth waking a worker

constexpr std::int64_t round_up(std::int64_t value, std::int64_t multiple) noexcept {
  return (value + multiple - 1) / multiple * multiple;
}

constexpr std::int64_t kFloat = sizeof(float);
constexpr std::int64_t kLine = 64;

// The cost of one token. Reading a token costs as much as multiplying it with two query tokens: two
// units.
std::int64_t token_cost(const Step& step, std::int32_t row, std::int64_t tile) noexcept {
  return std::max(2, step.tile_count(row, tile));
}

/// The cost of a segment of a tile: its start and its tokens.
std::int64_t segment_cost(const Step& step, std::int32_t row, std::int64_t tile) noexcept {
  return kSegmentCost + step.span(row, tile).size() * token_cost(step, row, tile);
}

/// The cost of a whole step.
std::int64_t total_cost(const Step& step) noexcept {
  std::int64_t total = 0;
  for (std::int32_t row = 0; row < step.batch->num_rows; ++row) {
    const std::int64_t tiles = step.num_tiles(row);
    for (std::int64_t tile = 0; tile < tiles; ++tile) {
      total += segment_cost(step, row, tile) * step.num_kv_heads;
    }
  }
  return total;
}

// Returns the place `cost` units behind the start of a tile's segments, at a multiple of
// kChunkTokens tokens, or with `is_whole` at the start of a segment.
Cursor place_in_tile(const Step& step, std::int32_t row, std::int64_t tile, std::int64_t cost,
                     bool is_whole) noexcept {
  const std::int64_t each = segment_cost(step, row, tile);
  const TokenSpan span = step.span(row, tile);
  if (is_whole) return {row, static_cast<std::int32_t>(cost / each), tile, span.begin};
  const std::int64_t inside = std::max<std::int64_t>(0, cost % each - kSegmentCost);
  const std::int64_t token = span.begin + inside / token_cost(step, row, tile);
  return {row, static_cast<std::int32_t>(cost / each), tile,
          std::max(span.begin, token / kChunkTokens * kChunkTokens)};
}

bool same_place(const Cursor& a, const Cursor& b) noexcept {
  return same_segment(a, b) && a.token == b.token;
}

// Tells each part that holds a piece of a segment where that segment began, and tells the part in
// which it began how many pieces there are.
void link_pieces(const Step& step, Part* parts, std::int32_t count) noexcept {
  const auto begins_inside = [&step](const Cursor& at) {
    return at.token > step.span(at.row, at.tile).begin;
  };
  for (std::int32_t p = 1; p < count; ++p) {
    if (!begins_inside(parts[p].begin)) continue;
    const Part& before = parts[p - 1];
    const bool runs_through =
        same_segment(before.begin, parts[p].begin) && begins_inside(before.begin);
    const std::int32_t first = runs_through ? before.first_part : p - 1;
    parts[p].first_part = first;
    parts[first].pieces = parts[first].pieces == 0 ? 2 : parts[first].pieces + 1;
  }
}

}  // namespace

Geometry::Geometry(const AttentionLimits& limits) noexcept
    : group(limits.num_q_heads / limits.num_kv_heads),
      tile_tokens(std::max(1, kTileRows / group)),
      tile_rows(tile_tokens * group),
      q_stride(round_up(limits.head_dim_k, kDimPad)),
      acc_stride(round_up(limits.head_dim_v, kDimPad)),
      max_parts(limits.num_threads == 1 ? 1 : limits.num_threads * kPartsPerThread) {}

/// Places parts, counters, partial results and scratch one behind another, at multiples of a cache
/// line.
WorkspaceMap::WorkspaceMap(const AttentionLimits& limits) noexcept : geometry_(limits) {
  const std::int64_t row_floats = round_up(geometry_.tile_rows * kFloat, kLine);
  partial_bytes_ = geometry_.tile_rows * geometry_.acc_stride * kFloat + 2 * row_floats;
  scratch_bytes_ = partial_bytes_ + row_floats +
                   geometry_.tile_rows * (geometry_.q_stride + kChunkTokens) * kFloat +
                   4 * kRowSlots * static_cast<std::int64_t>(sizeof(const std::byte*));
  const std::int64_t parts = geometry_.max_parts;
  counters_offset_ = round_up((parts + 1) * static_cast<std::int64_t>(sizeof(Part)), kLine);
  partials_offset_ = counters_offset_ + kLine + round_up(parts * kFloat, kLine);
  scratch_offset_ = partials_offset_ + (parts > 1 ? 2 * parts * partial_bytes_ : 0);
  bytes_ = scratch_offset_ + limits.num_threads * scratch_bytes_;
}

Part* WorkspaceMap::parts(std::byte* workspace) const noexcept {
  return std::launder(reinterpret_cast<Part*>(workspace));
}

std::int32_t* WorkspaceMap::next_part(std::byte* workspace) const noexcept {
  return std::launder(reinterpret_cast<std::int32_t*>(workspace + counters_offset_));
}

std::int32_t* WorkspaceMap::missing(std::byte* workspace) const noexcept {
  return std::launder(reinterpret_cast<std::int32_t*>(workspace + counters_offset_ + kLine));
}

Partial WorkspaceMap::partial_at(std::byte* from) const noexcept {
  const std::int64_t row_floats = round_up(geometry_.tile_rows * kFloat, kLine) / kFloat;
  auto* floats = reinterpret_cast<float*>(from);
  return {floats + 2 * row_floats, floats, floats + row_floats};
}

Partial WorkspaceMap::partial(std::byte* workspace, std::int32_t part, bool tail) const noexcept {
  return partial_at(workspace + partials_offset_ + (2 * part + (tail ? 1 : 0)) * partial_bytes_);
}

Scratch WorkspaceMap::scratch(std::byte* workspace, std::int32_t worker) const noexcept {
  std::byte* from = workspace + scratch_offset_ + worker * scratch_bytes_;
  Scratch scratch{};
  scratch.state = partial_at(from);
  auto* floats = reinterpret_cast<float*>(from + partial_bytes_);
  scratch.correction = floats;
  floats += round_up(geometry_.tile_rows * kFloat, kLine) / kFloat;
  scratch.q = floats;
  floats += geometry_.tile_rows * geometry_.q_stride;
  scratch.scores = floats;
  floats += geometry_.tile_rows * kChunkTokens;
  auto* rows = reinterpret_cast<const std::byte**>(floats);
  scratch.key_rows[0] = rows;
  scratch.key_rows[1] = rows + kRowSlots;
  scratch.value_rows[0] = rows + 2 * kRowSlots;
  scratch.value_rows[1] = rows + 3 * kRowSlots;
  return scratch;
}

/// Goes over the tiles, and cuts where the cost so far passes a multiple of one part's share.
std::int32_t cut(const Step& step, const AttentionLimits& limits, std::byte* workspace) noexcept {
  const WorkspaceMap map(limits);
  Part* parts = map.parts(workspace);
  const std::int64_t total = total_cost(step);
  const std::int64_t wanted =
      std::clamp<std::int64_t>(total / kSmallestPart, 1, map.geometry().max_parts);

  Cursor begin = step.first_segment(0);
  std::int32_t count = 0;
  const auto add = [&](const Cursor& at) {
    if (count == 0 || !same_place(parts[count - 1].begin, at)) parts[count++] = Part{at, count, 0};
  };
  add(begin);
  std::int64_t before = 0;  // cost of the tiles before the current one
  std::int64_t cuts = 1;
  for (std::int32_t row = 0; row < step.batch->num_rows && cuts < wanted; ++row) {
    const std::int64_t tiles = step.num_tiles(row);
    for (std::int64_t tile = 0; tile < tiles && cuts < wanted; ++tile) {
      const std::int64_t cost = segment_cost(step, row, tile) * step.num_kv_heads;
      for (; cuts < wanted; ++cuts) {
        const std::int64_t target = total / wanted * cuts + total % wanted * cuts / wanted;
        if (target >= before + cost) break;
        add(place_in_tile(step, row, tile, target - before, limits.batch_invariant));
      }
      before += cost;
    }
  }
  parts[count] = Part{step.first_segment(step.batch->num_rows), count, 0};
  link_pieces(step, parts, count);
  return count;
}

}  // namespace kvarena::attention
