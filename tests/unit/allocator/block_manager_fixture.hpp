#pragma once

/// @file
/// A small pool with holders, and calls that keep handles together.

#include "kvarena/allocator/block_manager.hpp"
#include "support/pool_snapshot.hpp"
#include "support/status_matchers.hpp"
#include "support/violations.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace kvarena::test {

/// Blocks with their generations, in order.
struct Handles {
  std::vector<BlockId> ids;
  std::vector<Generation> generations;

  /// The raw numbers of the ids.
  std::vector<std::int32_t> raw() const {
    std::vector<std::int32_t> numbers;
    for (const BlockId id : ids) numbers.push_back(id.value);
    return numbers;
  }
  /// The handles at these places, in this order.
  Handles pick(std::initializer_list<std::size_t> places) const {
    Handles picked;
    for (const std::size_t place : places) {
      picked.ids.push_back(ids[place]);
      picked.generations.push_back(generations[place]);
    }
    return picked;
  }
};

/// A manager of the test's size. Every test ends with the proof of the accounts.
class BlockManagerTest : public ::testing::Test {
 protected:
  void create(BlockManagerOptions options) {
    Result<BlockManager> created = BlockManager::create(options);
    ASSERT_TRUE(created.is_ok()) << describe(created.status());
    manager_.emplace(std::move(created).value());
  }
  void create(std::int64_t num_blocks, std::int64_t watermark = 0) {
    create({.num_blocks = num_blocks, .watermark_blocks = watermark});
  }
  void TearDown() override {
    if (manager_) {
      EXPECT_OK(manager_->check_invariants());
      EXPECT_TRUE(manager_->stats().balanced());
    }
  }

  BlockManager& manager() { return *manager_; }
  HolderId holder(std::uint64_t owner = 0, const char* purpose = "test") {
    return manager_->register_holder({.number = owner, .purpose = purpose}).value();
  }
  /// Takes `count` blocks; the test fails when it cannot.
  Handles take(HolderId who, std::size_t count, Urgency urgency = Urgency::growth) {
    Handles handles{std::vector<BlockId>(count), std::vector<Generation>(count)};
    EXPECT_OK(manager_->allocate(who, handles.ids, handles.generations, urgency));
    return handles;
  }
  Result<std::int64_t> try_take(HolderId who, std::size_t count,
                                Urgency urgency = Urgency::growth) {
    Handles handles{std::vector<BlockId>(count), std::vector<Generation>(count)};
    return manager_->allocate(who, handles.ids, handles.generations, urgency);
  }
  Status retain(HolderId who, const Handles& handles) {
    return manager_->retain(who, handles.ids, handles.generations);
  }
  Status release(HolderId who, const Handles& handles) {
    return manager_->release(who, handles.ids, handles.generations);
  }
  Status release_after(Ticket ticket, HolderId who, const Handles& handles) {
    return manager_->release_after(ticket, who, handles.ids, handles.generations);
  }
  Ticket ticket() { return manager_->open_ticket().value(); }

  std::optional<BlockManager> manager_;
};

/// Evaluates `call` and expects this failure and an unchanged pool.
#define EXPECT_REFUSED(call, code, resource)                         \
  do {                                                               \
    const auto before_ = ::kvarena::test::snapshot_of(manager());    \
    EXPECT_FAILS(call, code, resource);                              \
    EXPECT_TRUE(before_ == ::kvarena::test::snapshot_of(manager())); \
  } while (false)

}  // namespace kvarena::test
