#pragma once

/// @file
/// Tables with a prefix cache over a small pool.

#include "unit/blocktable/block_tables_fixture.hpp"

#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

namespace kvarena::test {

/// Tables of the test's size with a prefix cache.
class PrefixTest : public BlockTablesTest {
 protected:
  using Tokens = std::vector<std::int32_t>;

  struct Sizes {
    std::int64_t num_blocks = 16;
    std::int32_t block_size = 4;
    DuplicateRule duplicates = DuplicateRule::duplicate;
    std::int32_t max_extra_keys = 2;
    bool can_undo = false;
    bool shares_parts = false;
  };

  void create_cache(const Sizes& sizes) {
    create({.num_blocks = sizes.num_blocks, .max_holders = 128},
           {.block_size_tokens = sizes.block_size,
            .max_sequences = 16,
            .can_undo = sizes.can_undo,
            .prefix_cache = {.is_on = true,
                             .hash_key = {7, 11},
                             .max_extra_keys = sizes.max_extra_keys,
                             .duplicates = sizes.duplicates,
                             .share_parts = sizes.shares_parts}});
  }

  /// `count` tokens that begin with `first`.
  static Tokens tokens(std::int32_t count, std::int32_t first = 1) {
    Tokens list(static_cast<std::size_t>(count));
    std::iota(list.begin(), list.end(), first);
    return list;
  }
  /// A sequence that begins with what is cached of `list`.
  SequenceId begin(const Tokens& list, std::uint64_t salt = 0,
                   std::span<const ExtraKey> keys = {}) {
    return tables_->create_sequence({.tokens = list, .salt = salt, .extra_keys = keys}).value();
  }
  /// Appends the rest of `list` to a sequence that has its beginning.
  void append_rest(SequenceId id, const Tokens& list) {
    const std::span<const std::int32_t> rest =
        std::span(list).subspan(static_cast<std::size_t>(length(id)));
    const AppendDemand demand{id, static_cast<std::int32_t>(rest.size()), {}, rest};
    EXPECT_OK(tables_->append(std::span(&demand, 1)));
  }
  /// A sequence of these tokens, computed as far as they are not cached, and published.
  SequenceId computed(const Tokens& list, std::uint64_t salt = 0,
                      std::span<const ExtraKey> keys = {}) {
    const SequenceId id = begin(list, salt, keys);
    append_rest(id, list);
    EXPECT_OK(tables_->publish(id));
    return id;
  }
  PrefixMatch match(const Tokens& list, std::uint64_t salt = 0,
                    std::span<const ExtraKey> keys = {}) {
    return tables_->match({.tokens = list, .salt = salt, .extra_keys = keys}).value();
  }
  PrefixStop stop_of(const Tokens& list, std::uint64_t salt = 0,
                     std::span<const ExtraKey> keys = {}) {
    return match(list, salt, keys).stop;
  }
  void expect_whole() {
    EXPECT_OK(tables_->check_invariants());
    EXPECT_OK(manager_->check_invariants());
  }
  PrefixStats stats() { return tables_->prefix_stats(); }
};

}  // namespace kvarena::test
