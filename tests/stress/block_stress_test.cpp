// Turnover of sequences before going live: many short lives, ragged lengths, exhaustion and
// recovery, many managers, many table operations. Every scenario ends with every block free.

#include "kvarena/blocktable/block_tables.hpp"
#include "support/environment.hpp"
#include "support/process_memory.hpp"
#include "support/status_matchers.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace kvarena {
namespace {

constexpr std::int64_t kMostGrowthBytes = 8 << 20;

/// Checks at its end that resident memory has not grown by more than the limit.
class ResidentMemoryGuard {
 public:
  ResidentMemoryGuard() : before_(test::resident_bytes()) {}
  ~ResidentMemoryGuard() {
    if (test::kSanitized) return;  // sanitizers keep freed memory on purpose
    EXPECT_LE(test::resident_bytes() - before_, kMostGrowthBytes) << "resident memory has grown";
  }
  ResidentMemoryGuard(const ResidentMemoryGuard&) = delete;
  ResidentMemoryGuard& operator=(const ResidentMemoryGuard&) = delete;

 private:
  std::int64_t before_;
};

class BlockStressTest : public ::testing::Test {
 protected:
  std::mt19937_64 random_{test::number_from_environment("KVARENA_SEED", 4)};

  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(high - low + 1));
  }
};

Result<AppendResult> grow(BlockTables& tables, SequenceId id, std::int64_t tokens) {
  const AppendDemand demand{id, static_cast<std::int32_t>(tokens)};
  return tables.append(std::span(&demand, 1));
}

void expect_all_free(const BlockManager& manager, const BlockTables& tables) {
  EXPECT_EQ(manager.stats().free, manager.num_blocks());
  EXPECT_EQ(manager.stats().holders, 0);
  EXPECT_EQ(tables.stats().pages_used, 0);
  EXPECT_OK(manager.check_invariants());
  EXPECT_OK(tables.check_invariants());
}

TEST_F(BlockStressTest, RapidTurnoverOverAHundredNames) {
  constexpr int kTurns = 10'000;
  BlockManager manager = BlockManager::create({.num_blocks = 2000}).value();
  BlockTables tables = BlockTables::create(manager, {.max_sequences = 128}).value();
  const ResidentMemoryGuard guard;
  std::map<std::string, SequenceId> by_name;
  for (int turn = 0; turn < kTurns; ++turn) {
    const std::string name = "request-" + std::to_string(between(0, 99));
    const auto found = by_name.find(name);
    if (found != by_name.end()) {
      ASSERT_OK(tables.destroy(found->second));
      by_name.erase(found);
    }
    const SequenceId id = tables.create_sequence().value();
    ASSERT_OK(grow(tables, id, between(1, 300)));
    by_name[name] = id;
    if (turn % 500 == 0) {
      ASSERT_OK(manager.check_invariants());
      ASSERT_OK(tables.check_invariants());
    }
  }
  EXPECT_EQ(tables.stats().sequences_ever, static_cast<std::uint64_t>(kTurns));
  for (const auto& [name, id] : by_name) ASSERT_OK(tables.destroy(id));
  expect_all_free(manager, tables);
}

TEST_F(BlockStressTest, RaggedLengthsTakeExactlyTheBlocksTheyNeed) {
  BlockManager manager = BlockManager::create({.num_blocks = 100 * 63}).value();
  BlockTables tables = BlockTables::create(manager, {.block_size_tokens = 16}).value();
  const ResidentMemoryGuard guard;
  std::vector<SequenceId> ids;
  std::int64_t blocks = 0;
  for (int i = 0; i < 100; ++i) {
    const std::int64_t length = between(16, 1000);
    ids.push_back(tables.create_sequence().value());
    std::int64_t left = length;
    while (left > 0) {
      const std::int64_t chunk = between(1, std::min<std::int64_t>(left, 128));
      ASSERT_OK(grow(tables, ids.back(), chunk));
      left -= chunk;
    }
    EXPECT_EQ(tables.info(ids.back())->num_blocks, (length + 15) / 16) << length << " tokens";
    blocks += (length + 15) / 16;
    ASSERT_EQ(manager.stats().allocated(), blocks);
  }
  ASSERT_OK(tables.destroy_many(ids));
  expect_all_free(manager, tables);
}

TEST_F(BlockStressTest, ExhaustionIsRefusedExplainedAndRecoveredFrom) {
  BlockManager manager = BlockManager::create({.num_blocks = 256, .watermark_blocks = 8}).value();
  BlockTables tables = BlockTables::create(manager, {.max_sequences = 64}).value();
  const ResidentMemoryGuard guard;
  std::vector<SequenceId> running;
  int refusals = 0;
  for (int step = 0; step < 20'000; ++step) {
    if (running.size() < 40) {
      const SequenceId id = tables.create_sequence().value();
      const AppendDemand prompt{id, static_cast<std::int32_t>(between(16, 200))};
      if (tables.append(std::span(&prompt, 1), Urgency::admission)) {
        running.push_back(id);
      } else {
        ASSERT_OK(tables.destroy(id));
      }
    }
    while (!running.empty()) {
      const BlockStats before = manager.stats();
      const Result<AppendResult> decoded = tables.append_one_each(running);
      if (decoded) break;
      ++refusals;
      ASSERT_EQ(decoded.status().code, StatusCode::exhausted);
      ASSERT_EQ(manager.stats().free, before.free) << "a refused call changes nothing";
      ASSERT_EQ(manager.stats().references, before.references);
      ASSERT_FALSE(manager.explain(static_cast<std::int64_t>(decoded.status().required)).fits);
      ASSERT_OK(tables.destroy(running.back()));  // preemption, newest first
      running.pop_back();
    }
    if (!running.empty() && step % 7 == 0) {
      const std::size_t done = random_() % running.size();
      ASSERT_OK(tables.destroy(running[done]));
      running.erase(running.begin() + static_cast<std::ptrdiff_t>(done));
    }
    if (step % 1000 == 0) {
      ASSERT_OK(manager.check_invariants());
    }
  }
  EXPECT_GT(refusals, 100) << "the pool must really run out";
  ASSERT_OK(tables.destroy_many(running));
  expect_all_free(manager, tables);
}

TEST_F(BlockStressTest, AHundredLivesOfAManager) {
  const auto life = [this] {
    BlockManager manager = BlockManager::create({.num_blocks = 10'000}).value();
    BlockTables tables = BlockTables::create(manager, {}).value();
    for (int i = 0; i < 50; ++i) {
      const SequenceId id = tables.create_sequence().value();
      ASSERT_OK(grow(tables, id, between(1, 2000)));
      if (i % 3 == 0) {
        ASSERT_OK(tables.fork(id, between(0, tables.info(id)->length_tokens)));
      }
    }
    ASSERT_GT(manager.stats().referenced, 0);
    ASSERT_OK(manager.check_invariants());
  };
  life();
  const ResidentMemoryGuard guard;
  for (int i = 0; i < 100; ++i) life();
}

TEST_F(BlockStressTest, TenThousandTableOperations) {
  BlockManager manager = BlockManager::create({.num_blocks = 4000}).value();
  BlockTables tables = BlockTables::create(manager, {.max_sequences = 300}).value();
  const ResidentMemoryGuard guard;
  std::vector<SequenceId> ids;
  std::vector<Ticket> open;
  const auto any = [&] { return ids[random_() % ids.size()]; };
  for (int operation = 0; operation < 10'000; ++operation) {
    const std::int64_t dice = ids.empty() ? 0 : between(0, 9);
    if (dice <= 1 && ids.size() < 300) {
      ids.push_back(tables.create_sequence().value());
    } else if (dice <= 4) {
      static_cast<void>(grow(tables, any(), between(1, 64)));  // may be exhausted
    } else if (dice == 5 && ids.size() < 300) {
      const SequenceId parent = any();
      ids.push_back(tables.fork(parent, between(0, tables.info(parent)->length_tokens)).value());
    } else if (dice == 6) {
      const SequenceId id = any();
      ASSERT_OK(tables.truncate(id, between(0, tables.info(id)->length_tokens)));
    } else if (dice == 7) {
      static_cast<void>(tables.append_one_each(ids));
    } else {
      if (open.size() >= 8) {
        ASSERT_OK(manager.retire(open.front()));
        open.erase(open.begin());
      }
      open.push_back(manager.open_ticket().value());
      const std::size_t victim = random_() % ids.size();
      ASSERT_OK(tables.destroy(ids[victim], operation % 2 == 0 ? open.back() : kNoTicket));
      ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(victim));
    }
    ASSERT_TRUE(manager.stats().balanced());
    if (operation % 250 == 0) {
      ASSERT_OK(manager.check_invariants());
      ASSERT_OK(tables.check_invariants());
    }
  }
  ASSERT_OK(tables.destroy_many(ids));
  for (const Ticket ticket : open) ASSERT_OK(manager.retire(ticket));
  expect_all_free(manager, tables);
}

}  // namespace
}  // namespace kvarena
