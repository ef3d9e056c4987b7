#pragma once

/// @file
/// Block tables with groups and a prefix cache over a pool of pages.

#include "kvarena/blocktable/block_tables.hpp"
#include "support/status_matchers.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

namespace kvarena::test {

/// Blocks of 4 tokens, a block a page: a group of all tokens and a window of 8, or states of two
/// blocks.
class GroupPrefixTest : public ::testing::Test {
 protected:
  using Tokens = std::vector<std::int32_t>;
  static inline const TableGroup kFull{.block_size_tokens = 4};
  static inline const TableGroup kWindow{PagedKind::window, 4, 8};
  static inline const TableGroup kState{
      .kind = PagedKind::state, .num_parts = 2, .mode = StateMode::read_write};

  Status make(const std::vector<TableGroup>& groups, const PrefixOptions& prefix = {.is_on = true},
              std::int64_t num_pages = 200, EvictionPolicy policy = EvictionPolicy::tail_first) {
    tables_.reset();
    const std::vector<BlockGroup> blocks(groups.size(), {1, 64});
    manager_ = std::make_unique<BlockManager>(
        BlockManager::create({.num_blocks = num_pages, .groups = blocks, .eviction = policy})
            .value());
    Result<BlockTables> made = BlockTables::create(*manager_, {.max_sequences = 16,
                                                               .can_undo = true,
                                                               .groups = groups,
                                                               .checkpoint_every_tokens = 8,
                                                               .prefix_cache = prefix});
    if (!made) return made.status();
    tables_ = std::make_unique<BlockTables>(std::move(made).value());
    return {};
  }
  void TearDown() override {
    if (tables_ == nullptr) return;
    EXPECT_OK(tables_->check_invariants());
    tables_.reset();
    EXPECT_OK(manager_->check_invariants());
    EXPECT_EQ(manager_->page_stats().available(), manager_->num_pages());
  }
  static Tokens counted(std::int32_t count, std::int32_t first = 0) {
    Tokens tokens(static_cast<std::size_t>(count));
    std::iota(tokens.begin(), tokens.end(), first);
    return tokens;
  }
  void grow(SequenceId id, const Tokens& tokens) {
    const AppendDemand demand{
        .sequence = id, .num_tokens = static_cast<std::int32_t>(tokens.size()), .tokens = tokens};
    EXPECT_OK(tables_->append(std::span(&demand, 1)));
    EXPECT_OK(tables_->publish(id));
    tables_->settle_append();
  }
  /// A sequence that computes these tokens in steps of `step`, and ends.
  void compute(const Tokens& tokens, std::size_t step) {
    const SequenceId id = tables_->create_sequence().value();
    for (std::size_t at = 0; at < tokens.size(); at += step) {
      const auto end = std::min(tokens.size(), at + step);
      grow(id, Tokens(tokens.begin() + static_cast<std::ptrdiff_t>(at),
                      tokens.begin() + static_cast<std::ptrdiff_t>(end)));
    }
    EXPECT_OK(tables_->destroy(id));
  }
  PrefixMatch match(const Tokens& tokens) { return tables_->match({.tokens = tokens}).value(); }
  /// Takes a block of a group out of service and back: its content is lost.
  void lose(BlockId id) {
    EXPECT_TRUE(manager_->quarantine(id).value());
    EXPECT_OK(manager_->restore(id));
  }

  std::unique_ptr<BlockManager> manager_;
  std::unique_ptr<BlockTables> tables_;
};

}  // namespace kvarena::test
