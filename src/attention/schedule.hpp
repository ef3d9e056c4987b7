#pragma once

/// @file
/// The workspace of a plan and the schedule in it. The step's work, laid end to end, is cut into
/// parts of equal cost (tokens read, or multiplied where a tile has many query tokens). A cut may
/// fall inside a segment: each part then leaves a partial result, and the part that arrives last
/// combines them in the order of parts, so that results do not depend on which worker was faster.

#include "attention/step.hpp"
#include "kvarena/attention/attention.hpp"

#include <cstddef>
#include <cstdint>

namespace kvarena::attention {

/// Sizes that follow from the limits.
struct Geometry {
  explicit Geometry(const AttentionLimits& limits) noexcept;

  std::int32_t group;        ///< query heads a kv head
  std::int32_t tile_tokens;  ///< query tokens a tile
  std::int32_t tile_rows;    ///< query rows a tile: tile_tokens * group
  std::int64_t q_stride;     ///< floats of a query row
  std::int64_t acc_stride;   ///< floats of an accumulator row
  std::int32_t max_parts;    ///< parts a plan may have
};

/// One part of the schedule; it ends where the next begins.
struct Part {
  Cursor begin;             ///< where its work begins
  std::int32_t first_part;  ///< the part in which the segment that runs into this one began
  std::int32_t pieces;      ///< parts that share the segment which begins here and runs out of it
};

/// A partial result: unnormalised rows in base 2.
struct Partial {
  float* acc;  ///< [tile_rows, acc_stride]
  float* m;    ///< [tile_rows] largest logit
  float* l;    ///< [tile_rows] sum of weights
};

/// What one worker needs.
struct Scratch {
  float* q;                         ///< [tile_rows, q_stride]
  Partial state;                    ///< accumulators of the current piece
  float* scores;                    ///< [tile_rows, kChunkTokens]
  float* correction;                ///< [tile_rows]
  const std::byte** key_rows[2];    ///< [kRowSlots] this chunk's and the next one's
  const std::byte** value_rows[2];  ///< [kRowSlots] likewise
};

/// Where everything lies in a workspace. Cheap to make from the limits.
class WorkspaceMap {
 public:
  explicit WorkspaceMap(const AttentionLimits& limits) noexcept;

  /// Bytes of the whole workspace.
  std::int64_t bytes() const noexcept { return bytes_; }
  /// The sizes it was made for.
  const Geometry& geometry() const noexcept { return geometry_; }

  /// [max_parts + 1]; the last used one marks the end.
  Part* parts(std::byte* workspace) const noexcept;
  /// Next part to take.
  std::int32_t* next_part(std::byte* workspace) const noexcept;
  /// [max_parts] pieces of the segment begun in that part which are still missing.
  std::int32_t* missing(std::byte* workspace) const noexcept;
  /// The partial of the segment that begins in `part` and runs out of it (`tail`), or that runs
  /// into it.
  Partial partial(std::byte* workspace, std::int32_t part, bool tail) const noexcept;
  /// Scratch of one worker.
  Scratch scratch(std::byte* workspace, std::int32_t worker) const noexcept;

 private:
  Partial partial_at(std::byte* from) const noexcept;

  Geometry geometry_;
  std::int64_t partial_bytes_;
  std::int64_t scratch_bytes_;
  std::int64_t counters_offset_;
  std::int64_t partials_offset_;
  std::int64_t scratch_offset_;
  std::int64_t bytes_;
};

/// Writes the parts of `step` into the workspace; returns their number. O(rows + tiles + parts).
std::int32_t cut(const Step& step, const AttentionLimits& limits, std::byte* workspace) noexcept;

}  // namespace kvarena::attention
