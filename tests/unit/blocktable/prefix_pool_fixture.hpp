#pragma once

/// @file
/// An engine with block tables of its own over a small pool with a prefix cache.

#include "kvarena/blocktable/prefix_pool.hpp"
#include "support/status_matchers.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

namespace kvarena::test {

/// A pool of 16 blocks of 4 tokens, unless a test wants others.
class PrefixPoolTest : public ::testing::Test {
 protected:
  using Tokens = std::vector<std::int32_t>;
  using Ids = std::vector<BlockId>;

  /// A sequence as the engine keeps it.
  struct Line {
    HolderId holder{};
    Tokens tokens{};
    std::vector<ExtraKey> keys{};
    Ids ids{};
    std::vector<Generation> generations{};
    PrefixPosition position{};
    PrefixMatch found{};

    std::size_t registered() const { return static_cast<std::size_t>(position.blocks); }
  };

  struct Sizes {
    std::int64_t num_blocks = 16;
    std::int32_t max_extra_keys = 2;
    DuplicateRule duplicates = DuplicateRule::duplicate;
    PrefixEventSink events{};
    EvictionPolicy eviction = BlockManagerOptions{}.eviction;
  };

  PrefixPoolTest() = default;
  void SetUp() override { create({}); }
  void TearDown() override { expect_whole(); }

  void create(const Sizes& sizes) {
    pool_.reset();
    manager_.reset();
    manager_.emplace(
        BlockManager::create({.num_blocks = sizes.num_blocks, .eviction = sizes.eviction}).value());
    pool_.emplace(PrefixPool::create(*manager_, {.block_size_tokens = kSize,
                                                 .prefix = {.hash_key = {7, 11},
                                                            .max_extra_keys = sizes.max_extra_keys,
                                                            .duplicates = sizes.duplicates,
                                                            .events = sizes.events}})
                      .value());
  }
  void expect_whole() {
    EXPECT_OK(pool_->check_invariants());
    EXPECT_OK(manager_->check_invariants());
  }

  /// `count` tokens that begin with `first`.
  static Tokens tokens(std::int32_t count, std::int32_t first = 1) {
    Tokens list(static_cast<std::size_t>(count));
    std::iota(list.begin(), list.end(), first);
    return list;
  }
  PrefixMatch match(const Tokens& list, std::uint64_t salt = 0,
                    std::span<const ExtraKey> keys = {}) {
    return pool_->match({list, salt, keys}).value();
  }
  /// A sequence with what is cached of its tokens and blocks for the others.
  Line begin(const Tokens& list, std::uint64_t salt = 0, std::vector<ExtraKey> keys = {}) {
    Line line{.holder = manager_->register_holder({}).value(), .tokens = list, .keys = keys};
    const auto blocks = (list.size() + kSize - 1) / kSize;
    line.ids.resize(blocks);
    line.generations.resize(blocks);
    const PrefixAdoption adopted =
        pool_->adopt(line.holder, {list, salt, line.keys}, line.ids, line.generations).value();
    line.found = adopted.found;
    line.position = adopted.end;
    const auto have = static_cast<std::size_t>(adopted.found.blocks);
    EXPECT_OK(manager_->allocate(line.holder, std::span(line.ids).subspan(have),
                                 std::span(line.generations).subspan(have)));
    pool_->notice(manager_->evicted());
    return line;
  }
  /// Registers the full blocks behind the position.
  Result<std::int64_t> register_rest(Line& line) {
    const std::size_t first = line.registered();
    const std::size_t count = line.tokens.size() / kSize - first;
    return pool_->register_blocks(line.position,
                                  std::span(line.tokens).subspan(first * kSize, count * kSize),
                                  std::span(line.ids).subspan(first, count),
                                  std::span(line.generations).subspan(first, count), line.keys);
  }
  Result<std::int64_t> publish(const Line& line) {
    return pool_->publish(line.ids, line.generations);
  }
  /// A sequence that has been computed and published.
  Line computed(const Tokens& list, std::uint64_t salt = 0, std::vector<ExtraKey> keys = {}) {
    Line line = begin(list, salt, keys);
    EXPECT_OK(register_rest(line));
    EXPECT_OK(publish(line));
    return line;
  }
  /// Gives the blocks back, the last first.
  void end(Line& line) {
    std::reverse(line.ids.begin(), line.ids.end());
    std::reverse(line.generations.begin(), line.generations.end());
    EXPECT_OK(manager_->release(line.holder, line.ids, line.generations));
    pool_->notice(line.ids);
    EXPECT_OK(manager_->unregister_holder(line.holder));
    line.ids.clear();
    line.generations.clear();
  }
  static Ids first(const Ids& ids, std::size_t count) {
    const std::span<const BlockId> leading = std::span(ids).first(count);
    return {leading.begin(), leading.end()};
  }
  PrefixStats stats() { return pool_->stats(); }

  static constexpr std::int32_t kSize = 4;
  std::optional<BlockManager> manager_;
  std::optional<PrefixPool> pool_;
};

}  // namespace kvarena::test
