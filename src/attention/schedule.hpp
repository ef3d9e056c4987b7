#pragma once

/// @file
/// The workspace of a plan and the schedule in it. The work of a step forms one sequence, which is
/// cut into parts of equal cost. The cost counts tokens read, or multiplied when a tile has many
/// query tokens. A cut may lie inside a segment. Each part then leaves a partial result, and the
/// part that finishes last combines them in the order of parts. The results therefore do not depend
/// on which worker is faster.

#include "attention/step.hpp"
#include "kvarena/attention/attention.hpp"

#include <cstddef>
#include <cstdint>

namespace kvarena::attention {

/// Sizes that follow from the limits.
struct Geometry {
  explicit Geometry(const AttentionLimits& limits) noexcept;

  std::int32_t group;        ///< query heads for each kv head
  std::int32_t tile_tokens;  ///< query tokens in a tile
  std::int32_t tile_rows;    ///< query rows in a tile: tile_tokens * group
  std::int64_t q_stride;     ///< floats of a query row
  std::int64_t acc_stride;   ///< floats of an accumulator row
  std::int32_t max_parts;    ///< most parts of a plan
};

/// One part of the schedule. It ends where the next part begins.
struct Part {
  Cursor begin;             ///< where its work begins
  std::int32_t first_part;  ///< the part in which the segment that continues into this part began
  std::int32_t pieces;      ///< number of parts that share the segment which begins here and
                            ///< continues behind this part
};

/// A partial result: rows in base 2 that are not normalised.
struct Partial {
  float* acc;  ///< [tile_rows, acc_stride]
  float* m;    ///< [tile_rows] largest logit
  float* l;    ///< [tile_rows] sum of weights
};

/// The scratch memory of one worker.
struct Scratch {
  float* q;                         ///< [tile_rows, q_stride]
  Partial state;                    ///< accumulators of the current piece
  float* scores;                    ///< [tile_rows, kChunkTokens]
  float* correction;                ///< [tile_rows]
  const std::byte** key_rows[2];    ///< [kRowSlots] of this chunk and of the next one
  const std::byte** value_rows[2];  ///< [kRowSlots] of this chunk and of the next one
};

/// The places of all arrays in a workspace. Cheap to make from the limits.
class WorkspaceMap {
 public:
  explicit WorkspaceMap(const AttentionLimits& limits) noexcept;

  /// Bytes of the whole workspace.
  std::int64_t bytes() const noexcept { return bytes_; }
  /// The sizes for which the map was made.
  const Geometry& geometry() const noexcept { return geometry_; }

  /// [max_parts + 1] parts. The last used one marks the end.
  Part* parts(std::byte* workspace) const noexcept;
  /// The next part to take.
  std::int32_t* next_part(std::byte* workspace) const noexcept;
  /// [max_parts] numbers of missing pieces, for the segment that began in each part.
  std::int32_t* missing(std::byte* workspace) const noexcept;
  /// Returns the partial result of a segment: with `tail` the segment that begins in `part` and
  /// continues behind it, else the segment that continues into `part`.
  Partial partial(std::byte* workspace, std::int32_t part, bool tail) const noexcept;
  /// Returns the scratch memory of one worker.
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

/// Writes the parts of `step` into the workspace and returns their number. O(rows + tiles + parts).
std::int32_t cut(const Step& step, const AttentionLimits& limits, std::byte* workspace) noexcept;

}  // namespace kvarena::attention
