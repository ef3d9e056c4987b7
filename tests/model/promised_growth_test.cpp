// Sequences with a promise of capacity beside others that take all they can get, in pools of random
// groups. The judge knows nothing of pages: a promised sequence is never refused in steps of one
// token, and it is never named as the one that does not fit. In pools of `pool_pages` pages no
// sequence at all is refused.
//
// KVARENA_SEED=<n> replays one seed; KVARENA_PROMISE_STEPS=<n> sets the steps of each game.

#include "kvarena/allocator/block_manager.hpp"
#include "kvarena/base/choose_pages.hpp"
#include "kvarena/blocktable/block_tables.hpp"
#include "kvarena/capacity/kv_memory.hpp"
#include "support/environment.hpp"
#include "support/process_memory.hpp"
#include "support/status_matchers.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace kvarena::model {
namespace {

constexpr std::uint64_t kDefaultSteps = test::kSanitized ? 12'000 : 400'000;
constexpr std::int64_t kStepsOfPool = 400;

/// What a random pool is made of.
struct RandomPool {
  std::vector<PagedGroup> groups;
  PageChoice choice;
  std::int64_t longest = 0;
  std::int64_t checkpoint_every = 0;
  bool can_undo = false;
  bool keeps_for_undo = false;
  StateMode mode = StateMode::in_place;
};

std::string describe(const RandomPool& pool) {
  std::string text = "longest " + std::to_string(pool.longest) + ", checkpoints every " +
                     std::to_string(pool.checkpoint_every) +
                     "; kind, block, limit, rollback, parts, blocks a page:";
  for (std::size_t g = 0; g < pool.groups.size(); ++g) {
    const PagedGroup& group = pool.groups[g];
    const PagedBlocks& blocks = pool.choice.groups[g];
    for (const std::int64_t number :
         {static_cast<std::int64_t>(group.kind), std::int64_t{group.block_size_tokens},
          group.limit_tokens, std::int64_t{group.rollback_tokens}, std::int64_t{blocks.num_parts},
          std::int64_t{blocks.blocks_per_page}}) {
      text += " " + std::to_string(number);
    }
    text += ";";
  }
  return text;
}

class PromisedGrowth : public ::testing::Test {
 protected:
  struct Life {
    SequenceId id;
    std::int64_t length = 0;
    std::int64_t promised = 0;  // tokens
  };

  std::int64_t below(std::int64_t bound) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(bound));
  }
  bool once_in(std::int64_t n) { return below(n) == 0; }

  RandomPool random_pool() {
    RandomPool pool;
    const std::int64_t num_groups = 1 + below(3);
    std::int64_t common = 1;
    for (std::int64_t g = 0; g < num_groups; ++g) {
      constexpr PagedKind kinds[] = {PagedKind::full, PagedKind::window, PagedKind::chunk,
                                     PagedKind::state};
      PagedGroup group{.kind = kinds[g == 0 ? below(3) : below(4)],
                       .num_layers = static_cast<std::int32_t>(1 + below(6)),
                       .layer_bytes = 1024 * (1 + below(6)),
                       .block_size_tokens = 1 << below(5)};
      const std::int64_t size = group.block_size_tokens;
      if (group.kind == PagedKind::window) group.limit_tokens = 1 + below(40);
      if (group.kind == PagedKind::chunk) group.limit_tokens = size * (1 + below(4));
      if (group.kind == PagedKind::window || group.kind == PagedKind::state) {
        group.rollback_tokens = static_cast<std::int32_t>(once_in(2) ? below(4) : 0);
      }
      if (group.kind != PagedKind::state) common = std::lcm(common, size);
      pool.groups.push_back(group);
    }
    pool.longest = 10 + below(120);
    pool.choice = choose_pages(pool.groups, pool.longest).value();
    pool.can_undo = once_in(2);
    pool.keeps_for_undo = once_in(2);
    pool.mode = once_in(2) ? StateMode::in_place : StateMode::read_write;
    pool.checkpoint_every = once_in(2) ? common : 0;
    return pool;
  }

  void create(const RandomPool& pool, std::int64_t num_pages) {
    std::vector<BlockGroup> blocks;
    std::vector<TableGroup> tables;
    for (std::size_t g = 0; g < pool.groups.size(); ++g) {
      const PagedGroup& group = pool.groups[g];
      const PagedBlocks& its = pool.choice.groups[g];
      const bool is_state = group.kind == PagedKind::state;
      for (std::int32_t part = 0; part < (is_state ? 1 : its.num_parts); ++part) {
        blocks.push_back({its.blocks_per_page, its.block_bytes});
        tables.push_back({.kind = group.kind,
                          .block_size_tokens = group.block_size_tokens,
                          .limit_tokens = group.limit_tokens,
                          .rollback_tokens = group.rollback_tokens,
                          .num_parts = is_state ? its.num_parts : 1,
                          .mode = pool.mode,
                          .keeps_for_undo = pool.keeps_for_undo});
      }
    }
    tables_.reset();
    lives_.clear();
    manager_ = std::make_unique<BlockManager>(
        BlockManager::create(
            {.num_blocks = num_pages, .max_holders = 32, .max_open_tickets = 2, .groups = blocks})
            .value());
    tables_ = std::make_unique<BlockTables>(
        BlockTables::create(*manager_, {.max_sequences = 24,
                                        .max_append_tokens = 4096,
                                        .can_undo = pool.can_undo,
                                        .groups = tables,
                                        .checkpoint_every_tokens = pool.checkpoint_every})
            .value());
    longest_ = pool.longest;
  }

  void begin(std::int64_t promised) {
    const SequenceId id = tables_->create_sequence().value();
    lives_.push_back({id});
    if (promised == 0) return;
    const Status status = tables_->promise_capacity(id, promised);
    if (status) {
      lives_.back().promised = promised;
      ++promises_;
    } else {
      EXPECT_EQ(status.resource, Resource::reservation) << describe(status);
    }
  }

  /// Some sequences want one token each; a promised one stays within its promise.
  std::vector<std::size_t> who_wants() {
    std::vector<std::size_t> rows;
    for (std::size_t i = 0; i < lives_.size(); ++i) {
      const std::int64_t most = lives_[i].promised > 0 ? lives_[i].promised : 4 * longest_;
      if (!once_in(4) && lives_[i].length < most) rows.push_back(i);
    }
    std::ranges::shuffle(rows, random_);
    return rows;
  }

  Status append(std::span<const std::size_t> rows) {
    std::vector<AppendDemand> demands;
    for (const std::size_t row : rows) demands.push_back({lives_[row].id, 1});
    return tables_->append(demands).status();
  }

  /// One step. Others than promised sequences are left out until it fits.
  void step_beside_greedy(const RandomPool& pool) {
    std::vector<std::size_t> rows = who_wants();
    for (Status status = append(rows); !status; status = append(rows)) {
      ASSERT_EQ(status.code, StatusCode::exhausted) << describe(status);
      ASSERT_EQ(status.resource, Resource::page) << describe(status);
      const auto at = static_cast<std::ptrdiff_t>(tables_->failed_demand());
      ASSERT_TRUE(at >= 0 && at < std::ssize(rows));
      const Life& life = lives_[rows[static_cast<std::size_t>(at)]];
      ASSERT_EQ(life.promised, 0) << "a sequence of " << life.length << " tokens has a promise of "
                                  << life.promised << ": " << describe(status);
      rows.erase(rows.begin() + at);
      ++refusals_;
    }
    const bool undoes = pool.can_undo && pool.keeps_for_undo && once_in(10);
    if (undoes) {
      EXPECT_OK(tables_->undo_append(once_in(2)));
    } else {
      tables_->settle_append();
      for (const std::size_t row : rows) ++lives_[row].length;
    }
  }

  void end(std::size_t which) {
    EXPECT_OK(tables_->destroy(lives_[which].id));
    lives_.erase(lives_.begin() + static_cast<std::ptrdiff_t>(which));
  }

  std::mt19937_64 random_;
  std::unique_ptr<BlockManager> manager_;
  std::unique_ptr<BlockTables> tables_;
  std::vector<Life> lives_;
  std::int64_t longest_ = 0;
  std::int64_t promises_ = 0;
  std::int64_t refusals_ = 0;
};

std::uint64_t first_seed() { return test::number_from_environment("KVARENA_SEED", 20261123); }
std::uint64_t num_games() {
  return test::number_from_environment("KVARENA_PROMISE_STEPS", kDefaultSteps) / kStepsOfPool;
}

TEST_F(PromisedGrowth, IsNeverRefused) {
  for (std::uint64_t seed = first_seed(); seed < first_seed() + num_games(); ++seed) {
    SCOPED_TRACE("KVARENA_SEED=" + std::to_string(seed));
    random_.seed(seed);
    const RandomPool pool = random_pool();
    SCOPED_TRACE(describe(pool));
    create(pool, 20 + below(100));
    for (std::int64_t i = 0; i < kStepsOfPool; ++i) {
      if (lives_.size() < 20 && once_in(3)) begin(once_in(2) ? 1 + below(pool.longest) : 0);
      if (!lives_.empty() && once_in(20)) {  // a promise for a sequence that runs
        Life& life = lives_[static_cast<std::size_t>(below(std::ssize(lives_)))];
        const std::int64_t capacity = life.length + below(pool.longest);
        if (capacity > 0 && tables_->promise_capacity(life.id, capacity)) {
          life.promised = capacity;
          ++promises_;
        }
      }
      step_beside_greedy(pool);
      if (HasFatalFailure()) return;
      for (std::size_t w = lives_.size(); w-- > 0;) {
        const bool is_done = lives_[w].promised > 0 && lives_[w].length >= lives_[w].promised;
        if (once_in(is_done ? 3 : 40)) end(w);
      }
      if (i % 64 == 0) {
        ASSERT_OK(manager_->check_invariants());
      }
    }
  }
  EXPECT_GT(promises_, 10 * static_cast<std::int64_t>(num_games()));
  EXPECT_GT(refusals_, 10 * static_cast<std::int64_t>(num_games()));
}

/// The pages of a plan for steps of one token of each sequence.
std::int64_t planned_pages(const RandomPool& pool, std::int64_t sequences) {
  std::int64_t pages = 0;
  for (std::size_t g = 0; g < pool.groups.size(); ++g) {
    const PagedGroup& group = pool.groups[g];
    const bool is_state = group.kind == PagedKind::state;
    const capacity::GroupMemory memory{
        .kind = group.kind == PagedKind::window  ? capacity::CacheKind::window
                : group.kind == PagedKind::chunk ? capacity::CacheKind::chunked
                : is_state                       ? capacity::CacheKind::recurrent
                                                 : capacity::CacheKind::full,
        .num_layers = group.num_layers,
        .limit_tokens = group.limit_tokens,
        .block_size_tokens = is_state ? 0 : group.block_size_tokens,
        .paged = group};
    pages +=
        capacity::pool_pages(memory, pool.choice.groups[g], sequences, pool.longest, sequences);
  }
  return pages;
}

TEST_F(PromisedGrowth, NeedsNoPromiseInAPlannedPool) {
  for (std::uint64_t seed = first_seed(); seed < first_seed() + num_games(); ++seed) {
    SCOPED_TRACE("KVARENA_SEED=" + std::to_string(seed));
    random_.seed(seed);
    RandomPool pool = random_pool();
    for (PagedGroup& group : pool.groups) group.rollback_tokens = 0;  // a plan has none
    pool.choice = choose_pages(pool.groups, pool.longest).value();
    const std::int64_t sequences = 1 + below(6);
    SCOPED_TRACE(describe(pool));
    create(pool, planned_pages(pool, sequences));
    for (std::int64_t i = 0; i < kStepsOfPool; ++i) {
      while (std::ssize(lives_) < sequences) begin(0);
      std::vector<std::size_t> rows = who_wants();
      std::erase_if(rows, [&](std::size_t row) { return lives_[row].length == pool.longest; });
      const Status status = append(rows);
      ASSERT_TRUE(status.is_ok()) << describe(status);
      tables_->settle_append();
      for (const std::size_t row : rows) ++lives_[row].length;
      for (std::size_t w = lives_.size(); w-- > 0;) {
        if (once_in(lives_[w].length == pool.longest ? 3 : 60)) end(w);
      }
    }
  }
}

}  // namespace
}  // namespace kvarena::model
