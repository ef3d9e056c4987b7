#include "attention/cpu/piece.hpp"

#include "base/half.hpp"

#include <atomic>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>
#include <utility>

namespace kvarena::attention {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();
constexpr float kLog2E = std::numbers::log2e_v<float>;

// Up to kChunkTokens tokens of one segment. `first` and `last` say whether the chunk begins or ends
// this part's piece of the segment.
struct Chunk {
  Cursor at;
  std::int64_t end = 0;
  bool first = false;
  bool last = false;
  std::int32_t count() const noexcept { return static_cast<std::int32_t>(end - at.token); }
};

// Goes over the chunks of one part, in order. Chunks end at multiples of kChunkTokens.
class Walk {
 public:
  Walk(const Step& step, const Cursor& begin, const Cursor& end)
      : step_(step), at_(begin), end_(end) {}

  bool next(Chunk& chunk) noexcept {
    const bool in_last = same_segment(at_, end_);
    if (in_last && at_.token == end_.token) return false;
    const TokenSpan span = step_.span(at_.row, at_.tile);
    const std::int64_t piece_end = in_last ? end_.token : span.end;
    chunk.at = at_;
    chunk.end = std::min(piece_end, (at_.token / kChunkTokens + 1) * kChunkTokens);
    chunk.first = first_;
    chunk.last = chunk.end == piece_end;
    first_ = chunk.last;
    at_.token = chunk.end;
    if (chunk.last && !in_last) at_ = step_.next_segment(at_);
    return true;
  }

 private:
  const Step& step_;
  Cursor at_;
  Cursor end_;
  bool first_ = true;
};

// Finds the addresses of the tokens' elements of one head. The rest of the list repeats the last
// address.
void resolve(const PlaneView& plane, std::int32_t block_size, const BlockTableView& tables,
             const Chunk& chunk, const std::byte** rows) noexcept {
  std::int32_t filled = 0;
  for (std::int64_t token = chunk.at.token; token < chunk.end;) {
    const std::int64_t index = token / block_size;
    const std::int64_t offset = token - index * block_size;
    const std::int64_t block = tables.block(chunk.at.row, index).value;
    const std::byte* row = plane.base + block * plane.block_stride +
                           chunk.at.head * plane.head_stride + offset * plane.token_stride;
    const std::int64_t here = std::min(block_size - offset, chunk.end - token);
    for (std::int64_t i = 0; i < here; ++i) rows[filled++] = row + i * plane.token_stride;
    token += here;
  }
  for (std::int32_t i = filled; filled > 0 && i < kRowSlots; ++i) rows[i] = rows[filled - 1];
}

/// Prefetches the rows [from, to).
void prefetch_rest(const std::byte* const* rows, std::int32_t from, std::int32_t to,
                   std::int64_t row_bytes) noexcept {
  for (std::int32_t i = from; i < to; ++i) {
    for (std::int64_t at = 0; at < row_bytes; at += 64) __builtin_prefetch(rows[i] + at, 0, 2);
  }
}

// Returns the position of dim d in a row of q or acc.
std::int64_t place_of(std::int32_t d, bool interleaved) noexcept {
  if (!interleaved) return d;
  return (d & ~(kDimPad - 1)) + (d & 1) * (kDimPad / 2) + (d & (kDimPad - 1)) / 2;
}

// The work of one worker on one part.
class PartRunner {
 public:
  PartRunner(const Run& run, std::int32_t part, std::int32_t worker) noexcept
      : run_(run),
        p_(*run.params),
        geometry_(run.map->geometry()),
        parts_(run.map->parts(run.workspace)),
        part_(part),
        scratch_(run.map->scratch(run.workspace, worker)) {}

  void operator()() noexcept {
    Walk walk(run_.step, parts_[part_].begin, parts_[part_ + 1].begin);
    Chunk chunk;
    Chunk ahead;
    if (!walk.next(chunk)) return;
    resolve_rows(chunk);
    for (bool more = true; more; chunk = ahead) {
      std::swap(now_, later_);
      more = walk.next(ahead);
      if (more) resolve_rows(ahead);
      if (chunk.first) begin_piece(chunk);
      attend(chunk, more ? ahead.count() : 0);
      if (chunk.last) end_piece(chunk);
    }
  }

 private:
  // Finds the K and V rows of the next chunk.
  void resolve_rows(const Chunk& chunk) noexcept {
    resolve(p_.kv.key, p_.kv.block_size, p_.batch.tables, chunk, scratch_.key_rows[later_]);
    resolve(p_.kv.value, p_.kv.block_size, p_.batch.tables, chunk, scratch_.value_rows[later_]);
  }

  // Query rows of the chunk's tile.
  std::int32_t rows_of(const Chunk& chunk) const noexcept {
    return run_.step.tile_count(chunk.at.row, chunk.at.tile) * geometry_.group;
  }

  // The place of a query row in q, out and lse.
  struct Place {
    std::int64_t token;
    std::int64_t head;
  };
  // Returns the place of row `r` of the chunk's tile.
  Place place_of_row(const Chunk& chunk, std::int32_t r) const noexcept {
    return {run_.step.q_begin(chunk.at.row) + chunk.at.tile * geometry_.tile_tokens +
                r / geometry_.group,
            chunk.at.head * geometry_.group + r % geometry_.group};
  }

  // Loads q, scaled so that logits come out in base 2, or with a soft cap as the argument of tanh.
  // Clears the state.
  void begin_piece(const Chunk& chunk) noexcept {
    const float factor = p_.soft_cap > 0.0F ? p_.scale / p_.soft_cap : p_.scale * kLog2E;
    const std::int32_t dim = p_.kv.key.head_dim;
    const std::int32_t rows = rows_of(chunk);
    for (std::int32_t r = 0; r < rows; ++r) {
      float* to = scratch_.q + r * geometry_.q_stride;
      std::fill(to, to + geometry_.q_stride, 0.0F);
      const Place place = place_of_row(chunk, r);
      const auto* from = static_cast<const std::byte*>(p_.q) + place.token * p_.q_stride();
      const std::int64_t first = place.head * dim;
      for (std::int32_t d = 0; d < dim; ++d) {
        to[place_of(d, run_.key_ops->interleaved)] = load_f32(from, p_.q_dtype, first + d) * factor;
      }
    }
    std::fill_n(scratch_.state.m, rows, kLowest);
    std::fill_n(scratch_.state.l, rows, 0.0F);
    std::fill_n(scratch_.state.acc, rows * geometry_.acc_stride, 0.0F);
  }

  // Attends to a chunk. When every query token sees the whole chunk, all rows are computed at once.
  // Otherwise each token's rows are computed over the tokens that it sees, so that unseen tokens
  // are never multiplied.
  void attend(const Chunk& chunk, std::int32_t ahead) noexcept {
    const std::int32_t tokens = run_.step.tile_count(chunk.at.row, chunk.at.tile);
    const std::int64_t first = chunk.at.tile * geometry_.tile_tokens;
    const TokenSpan narrowest = seen_by_all(chunk, first, tokens);
    if (chunk.count() == 0) return prefetch(0, ahead);
    if (narrowest.begin <= chunk.at.token && chunk.end <= narrowest.end) {
      attend_rows(0, tokens * geometry_.group, 0, chunk.count(), ahead > 0);
      return prefetch(chunk.count(), ahead);
    }
    prefetch(0, ahead);
    for (std::int32_t i = 0; i < tokens; ++i) {
      if (p_.tree_mask == nullptr) {
        attend_span(chunk, i, run_.step.visible(chunk.at.row, first + i));
      } else {
        attend_tree(chunk, i, first + i);
      }
    }
  }

  // Returns the tokens that all of the query tokens [first, first + tokens) see, or some of these.
  TokenSpan seen_by_all(const Chunk& chunk, std::int64_t first,
                        std::int32_t tokens) const noexcept {
    const std::int32_t row = chunk.at.row;
    const TokenSpan of_first = run_.step.visible(row, first);
    if (p_.tree_mask == nullptr) {
      return {run_.step.visible(row, first + tokens - 1).begin, of_first.end};
    }
    const std::int64_t first_new = of_first.end - first - 1;
    return {run_.step.window_tokens > 0 ? first_new : 0, first_new};
  }

  // Attends to the part of a chunk within `seen`, with query token `i` of the tile.
  void attend_span(const Chunk& chunk, std::int32_t i, const TokenSpan& seen) noexcept {
    const std::int64_t begin = std::max(seen.begin, chunk.at.token);
    const std::int64_t end = std::min(seen.end, chunk.end);
    if (begin >= end) return;
    attend_rows(i * geometry_.group, geometry_.group,
                static_cast<std::int32_t>(begin - chunk.at.token),
                static_cast<std::int32_t>(end - begin), false);
  }

  // Attends to what query token `query` of a draft tree sees of a chunk: older tokens, then runs of
  // new ones. A window keeps the last of all these.
  void attend_tree(const Chunk& chunk, std::int32_t i, std::int64_t query) noexcept {
    const std::int32_t row = chunk.at.row;
    const std::int64_t count = run_.step.q_count(row);
    const std::int64_t first_new = std::int64_t{p_.batch.seq_lens[row]} - count;
    if (first_new < 0) return;
    const std::uint64_t all = ~std::uint64_t{0} >> (64 - count);
    std::uint64_t seen = (p_.tree_mask[run_.step.q_begin(row) + query] & all) | 1ULL << query;
    std::int64_t begin = 0;
    if (const std::int64_t window = run_.step.window_tokens; window > 0) {
      while (std::popcount(seen) > window) seen &= seen - 1;
      begin = std::max<std::int64_t>(0, first_new - (window - std::popcount(seen)));
    }
    attend_span(chunk, i, {begin, first_new});
    while (seen != 0) {
      const int from = std::countr_zero(seen);
      const int length = std::countr_one(seen >> from);
      attend_span(chunk, i, {first_new + from, first_new + from + length});
      if (from + length == 64) break;
      seen &= ~std::uint64_t{0} << (from + length);
    }
  }

  // Prefetches rows of the next chunk.
  void prefetch(std::int32_t from, std::int32_t to) const noexcept {
    const PlaneView& key = p_.kv.key;
    const PlaneView& value = p_.kv.value;
    prefetch_rest(scratch_.key_rows[later_], from, to, key.head_dim * bytes_of(key.dtype));
    prefetch_rest(scratch_.value_rows[later_], from, to, value.head_dim * bytes_of(value.dtype));
  }

  // Computes the query rows [row, row + rows) over the chunk's tokens [token, token + count).
  void attend_rows(std::int32_t row, std::int32_t rows, std::int32_t token, std::int32_t count,
                   bool prefetch) noexcept {
    const TokenRows keys{scratch_.key_rows[now_] + token,
                         prefetch ? scratch_.key_rows[later_] : nullptr, count};
    const TokenRows values{scratch_.value_rows[now_] + token,
                           prefetch ? scratch_.value_rows[later_] : nullptr, count};
    const Partial& state = scratch_.state;
    run_.key_ops->score(scratch_.q + row * geometry_.q_stride, geometry_.q_stride, rows, keys,
                        p_.kv.key.head_dim, scratch_.scores);
    const float cap = p_.soft_cap * kLog2E;
    for (std::int32_t r = 0; r < rows; ++r) {
      scratch_.correction[r] = run_.value_ops->soften(scratch_.scores + r * kChunkTokens, count,
                                                      cap, state.m + row + r, state.l + row + r);
    }
    run_.value_ops->weigh(scratch_.scores, scratch_.correction, rows, values, p_.kv.value.head_dim,
                          state.acc + row * geometry_.acc_stride, geometry_.acc_stride);
  }

  // Stores a whole segment. A piece of a segment becomes a partial result, and the last piece to
  // finish combines all of them.
  void end_piece(const Chunk& chunk) noexcept {
    const TokenSpan span = run_.step.span(chunk.at.row, chunk.at.tile);
    const Part& part = parts_[part_];
    const bool runs_in = same_segment(part.begin, chunk.at) && part.begin.token > span.begin;
    const bool runs_out = chunk.end < span.end;
    if (!runs_in && !runs_out) return store(chunk);
    const std::int32_t first = runs_in ? part.first_part : part_;
    save(run_.map->partial(run_.workspace, part_, !runs_in), rows_of(chunk));
    const std::atomic_ref<std::int32_t> missing(run_.map->missing(run_.workspace)[first]);
    if (missing.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    combine(first, parts_[first].pieces, rows_of(chunk));
    store(chunk);
  }

  // Copies the state to a partial result.
  void save(const Partial& to, std::int32_t rows) const noexcept {
    std::copy_n(scratch_.state.m, rows, to.m);
    std::copy_n(scratch_.state.l, rows, to.l);
    std::copy_n(scratch_.state.acc, rows * geometry_.acc_stride, to.acc);
  }

  // Sets the state to the sum of the partial results of parts first .. first + pieces - 1, in that
  // order.
  void combine(std::int32_t first, std::int32_t pieces, std::int32_t rows) noexcept {
    const Partial& state = scratch_.state;
    for (std::int32_t r = 0; r < rows; ++r) {
      float largest = kLowest;
      for (std::int32_t i = 0; i < pieces; ++i) {
        largest = std::max(largest, run_.map->partial(run_.workspace, first + i, i == 0).m[r]);
      }
      const float shift = largest == kLowest ? 0.0F : largest;
      float* acc = state.acc + r * geometry_.acc_stride;
      std::fill_n(acc, geometry_.acc_stride, 0.0F);
      float total = 0.0F;
      for (std::int32_t i = 0; i < pieces; ++i) {
        const Partial partial = run_.map->partial(run_.workspace, first + i, i == 0);
        const float weight = std::exp2(partial.m[r] - shift);
        const float* from = partial.acc + r * geometry_.acc_stride;
        total += weight * partial.l[r];
        for (std::int64_t d = 0; d < geometry_.acc_stride; ++d) acc[d] += weight * from[d];
      }
      state.m[r] = largest;
      state.l[r] = total;
    }
  }

  // Normalises the state and writes out and lse.
  void store(const Chunk& chunk) const noexcept {
    const std::int32_t dim = p_.kv.value.head_dim;
    const std::int32_t rows = rows_of(chunk);
    for (std::int32_t r = 0; r < rows; ++r) {
      const Place place = place_of_row(chunk, r);
      auto* const to = static_cast<std::byte*>(p_.out) + place.token * p_.out_stride();
      const float m = scratch_.state.m[r];
      const float* const sink = p_.sinks == nullptr ? nullptr : p_.sinks + place.head;
      float l = scratch_.state.l[r];
      const bool empty = l == 0.0F;
      // When a sink is far above every logit, the sum is infinite and the output 0, which is
      // correct.
      if (sink != nullptr && !empty) l += std::exp2(*sink * kLog2E - m);
      const float factor = empty ? 0.0F : 1.0F / l;
      const float* acc = scratch_.state.acc + r * geometry_.acc_stride;
      for (std::int32_t d = 0; d < dim; ++d) {
        store_f32(to, p_.out_dtype, place.head * dim + d,
                  acc[place_of(d, run_.value_ops->interleaved)] * factor);
      }
      if (p_.lse == nullptr) continue;
      const float lse = empty ? kLowest : m * std::numbers::ln2_v<float> + std::log(l);
      p_.lse[place.token * p_.num_q_heads + place.head] = std::isinf(l) ? *sink : lse;
    }
  }

  const Run& run_;
  const kernels::AttentionParams& p_;
  const Geometry& geometry_;
  const Part* parts_;
  std::int32_t part_;
  Scratch scratch_;
  std::int32_t now_ = 0;
  std::int32_t later_ = 1;
};

}  // namespace

void run_part(const Run& run, std::int32_t part, std::int32_t worker) noexcept {
  PartRunner(run, part, worker)();
}

}  // namespace kvarena::attention
