#pragma once

/// @file
/// Tables over a small pool.

#include "kvarena/blocktable/block_tables.hpp"
#include "support/pool_snapshot.hpp"
#include "support/status_matchers.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <tuple>
#include <vector>

namespace kvarena::test {

/// Tables of the test's size. Every test ends with the proof of tables and pool.
class BlockTablesTest : public ::testing::Test {
 protected:
  using Numbers = std::vector<std::int32_t>;

  void create(const BlockManagerOptions& pool, const BlockTablesOptions& options) {
    tables_.reset();  // it uses the manager that goes
    manager_ = std::make_unique<BlockManager>(BlockManager::create(pool).value());
    Result<BlockTables> created = BlockTables::create(*manager_, options);
    ASSERT_TRUE(created.is_ok()) << describe(created.status());
    tables_ = std::make_unique<BlockTables>(std::move(created).value());
  }
  void create(std::int64_t num_blocks, std::int32_t block_size) {
    create({.num_blocks = num_blocks}, {.block_size_tokens = block_size, .max_sequences = 16});
  }
  void TearDown() override {
    if (tables_ != nullptr) {
      EXPECT_OK(tables_->check_invariants());
    }
    tables_.reset();
    if (manager_ != nullptr) {
      EXPECT_OK(manager_->check_invariants());
      EXPECT_EQ(manager_->stats().references, 0) << "tables give everything back";
    }
  }

  BlockManager& manager() { return *manager_; }
  BlockTables& tables() { return *tables_; }

  /// A sequence of that length.
  SequenceId sequence(std::int32_t length, std::int64_t maximum = 0) {
    const SequenceId id = tables_->create_sequence({.max_length_tokens = maximum}).value();
    EXPECT_OK(grow(id, length));
    return id;
  }
  Result<AppendResult> grow(SequenceId id, std::int32_t tokens, Urgency urgency = Urgency::growth) {
    const AppendDemand demand{id, tokens};
    return tables_->append(std::span(&demand, 1), urgency);
  }
  Numbers blocks(SequenceId id) {
    std::vector<BlockId> ids(static_cast<std::size_t>(tables_->info(id)->num_blocks));
    EXPECT_OK(tables_->blocks_of(id, ids));
    Numbers numbers;
    for (const BlockId block : ids) numbers.push_back(block.value);
    return numbers;
  }
  std::int64_t length(SequenceId id) { return tables_->info(id)->length_tokens; }

  /// Everything that can be seen, for "nothing changed".
  auto picture() {
    std::vector<std::tuple<SequenceId, std::int64_t, Numbers>> all;
    for (const SequenceId id : tables_->sequences()) all.emplace_back(id, length(id), blocks(id));
    return std::tuple(snapshot_of(*manager_), all, tables_->stats().pages_used,
                      tables_->stats().tokens);
  }

  std::unique_ptr<BlockManager> manager_;
  std::unique_ptr<BlockTables> tables_;
};

/// Evaluates `call` and expects this failure and unchanged tables.
#define EXPECT_REFUSED(call, code, resource) \
  do {                                       \
    const auto before_ = picture();          \
    EXPECT_FAILS(call, code, resource);      \
    EXPECT_TRUE(before_ == picture());       \
  } while (false)

}  // namespace kvarena::test
