// What a GroupWorld expects to find in memory and to be as it was, encoders and pins.

#include "model/group_world.hpp"
#include "support/pool_snapshot.hpp"

#include <algorithm>

namespace kvarena::model {

/// The length, the encoder's tokens and the blocks of every sequence.
std::vector<std::int64_t> GroupWorld::all_rows() const {
  std::vector<std::int64_t> all;
  std::vector<BlockId> ids(static_cast<std::size_t>(game_.longest) + 512);
  for (const Life& life : lives_) {
    const SequenceInfo info = tables_->info(life.id).value();
    all.insert(all.end(), {static_cast<std::int64_t>(life.id.value), info.length_tokens,
                           info.cross_tokens, info.num_blocks});
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      const std::int64_t count =
          tables_->blocks_of(life.id, ids, static_cast<std::int32_t>(g)).value();
      all.push_back(count);
      for (std::int64_t i = 0; i < count; ++i) {
        all.push_back(ids[static_cast<std::size_t>(i)].value);
      }
    }
  }
  return all;
}

/// Remembers what a call that is refused must leave as it is: the figures of pages and groups, and
/// every so often all rows.
void GroupWorld::note_before() {
  constexpr std::uint64_t kCallsBetweenRows = 16;
  figures_before_ = test::page_figures(*manager_);
  rows_before_.clear();
  if (calls_++ % kCallsBetweenRows == 0) rows_before_ = all_rows();
}

void GroupWorld::expect_unchanged(const char* what) {
  if (test::page_figures(*manager_) != figures_before_) {
    return fail(std::string("a refused ") + what + " changed the accounts of pages");
  }
  if (rows_before_.empty()) return;
  ++outcomes_["rows compared"];
  if (all_rows() != rows_before_) fail(std::string("a refused ") + what + " changed a row");
}

void GroupWorld::write_cross(Life& life) {
  life.has_encoder = true;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    for (std::int64_t i = 0; i < life.cross_tokens && groups_[g].kind == PagedKind::cross; ++i) {
      const auto slot = tables_->slot_of(life.id, i, static_cast<std::int32_t>(g));
      if (!slot) return fail("no block for an encoder's token");
      unit(g, *slot) = stamp(g, life.encoder + static_cast<std::uint64_t>(i));
    }
  }
}

/// The longest length at which the tables have all tokens that the next one reads, by looking at
/// each; 0 when there is none.
std::int64_t GroupWorld::brute_restorable(const Life& life, std::int64_t length) {
  const auto has_all = [&](std::int64_t n) {
    if (!has_states(life, n)) return false;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      const TableGroup& group = groups_[g];
      std::int64_t first = 0;
      if (group.kind == PagedKind::cross || is_state(g)) continue;
      if (group.kind == PagedKind::window)
        first = n - std::max<std::int64_t>(1, group.limit_tokens - 1);
      if (group.kind == PagedKind::chunk) first = (n - 1) / group.limit_tokens * group.limit_tokens;
      for (std::int64_t i = std::max<std::int64_t>(0, first); i < n; ++i) {
        if (tables_->slot_of(life.id, i, static_cast<std::int32_t>(g)).value() < 0) return false;
      }
    }
    return true;
  };
  for (std::int64_t n = length; n > 0; --n) {
    if (has_all(n)) return n;
  }
  return 0;
}

/// The tokens that a token at position `length` reads, and those behind it, must be found.
void GroupWorld::check(const Life& life, std::int64_t length, const char* when) {
  for (std::size_t g = 0; g < groups_.size() && !wrong_; ++g) {
    const TableGroup& group = groups_[g];
    const auto number = static_cast<std::int32_t>(g);
    if (group.kind == PagedKind::cross) {
      for (std::int64_t i = 0; i < life.cross_tokens && life.has_encoder; ++i) {
        const std::int64_t slot = tables_->slot_of(life.id, i, number).value();
        if (unit(g, slot) != stamp(g, life.encoder + static_cast<std::uint64_t>(i))) {
          return fail(std::string("an encoder's token is lost ") + when);
        }
      }
      continue;
    }
    if (is_state(g)) continue;
    std::int64_t first = 0;
    if (group.kind == PagedKind::window) first = length - group.limit_tokens + 1;
    if (group.kind == PagedKind::chunk) first = length / group.limit_tokens * group.limit_tokens;
    for (std::int64_t i = std::max<std::int64_t>(0, first); i < std::ssize(life.tokens); ++i) {
      const std::int64_t slot = tables_->slot_of(life.id, i, number).value();
      if (slot < 0 || unit(g, slot) != stamp(g, life.tokens[static_cast<std::size_t>(i)])) {
        return fail("token " + std::to_string(i) + " of " + std::to_string(life.tokens.size()) +
                    " in group " + std::to_string(g) + " is lost " + when);
      }
    }
  }
}

void GroupWorld::check_all() {
  for (const Life& life : lives_) {
    if (tables_->info(life.id)->length_tokens != std::ssize(life.tokens)) fail("a length differs");
    check(life, std::ssize(life.tokens), "between steps");
    check_states(life);
  }
  check_pins();
}

void GroupWorld::check_pins() {
  for (const Pinned& pinned : pins_) {
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      for (std::size_t i = 0; i < pinned.slots[g].size(); ++i) {
        const std::int64_t slot = pinned.slots[g][i];
        if (slot >= 0 && unit(g, slot) != stamp(g, pinned.life.tokens[i])) {
          return fail("a pinned token is lost");
        }
      }
      if (is_state(g)) check_pinned_state(pinned, g);
    }
  }
}

void GroupWorld::pin() {
  const Life& life = lives_[any()];
  const auto held = tables_->pin(life.id);
  if (!held) {
    if (held.status().resource != Resource::holder) fail("pin: " + describe(held.status()));
    return;
  }
  Pinned pinned{*held, life, {}};
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    pinned.slots.emplace_back();
    for (std::int64_t i = 0; i < std::ssize(life.tokens); ++i) {
      if (groups_[g].kind == PagedKind::cross || is_state(g)) break;
      pinned.slots[g].push_back(tables_->slot_of(life.id, i, static_cast<std::int32_t>(g)).value());
    }
  }
  ++outcomes_["pinned"];
  pins_.push_back(std::move(pinned));
}

void GroupWorld::unpin() {
  if (pins_.empty()) return;
  check_pins();
  expect(tables_->unpin(pins_.back().holder), "unpin");
  pins_.pop_back();
}

}  // namespace kvarena::model
