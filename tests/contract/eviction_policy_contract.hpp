#pragma once

/// @file
/// A pool with a policy and one holder, and calls for single blocks.

#include "kvarena/allocator/block_manager.hpp"
#include "support/status_matchers.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

namespace kvarena::test {

/// A block as it was handed out.
struct Handle {
  BlockId id;
  Generation generation;
};

/// A policy, of blocks or of pages of one block.
struct PolicyCase {
  EvictionPolicy policy;
  bool has_pages = false;
  constexpr PolicyCase(EvictionPolicy its, bool with_pages = false)
      : policy(its), has_pages(with_pages) {}
  constexpr operator EvictionPolicy() const { return policy; }
};

/// One holder takes, publishes and releases blocks. Every test ends with the proof of the accounts.
class EvictionPolicyTest : public testing::TestWithParam<PolicyCase> {
 protected:
  void create(std::int64_t num_blocks, OperationLog* log = nullptr) {
    const BlockGroup group;
    manager_.emplace(
        BlockManager::create({.num_blocks = num_blocks,
                              .log = log,
                              .groups = std::span(&group, GetParam().has_pages ? 1 : 0),
                              .eviction = GetParam()})
            .value());
    holder_ = manager_->register_holder({.purpose = "test"}).value();
  }
  void TearDown() override {
    if (manager_) {
      EXPECT_OK(manager_->check_invariants());
    }
  }
  bool is(EvictionPolicy policy) const { return GetParam() == policy; }

  Handle take() {
    Handle handle;
    EXPECT_OK(
        manager_->allocate(holder_, std::span(&handle.id, 1), std::span(&handle.generation, 1)));
    return handle;
  }
  void publish(const Handle& handle) {
    EXPECT_OK(manager_->set_content(handle.id, handle.generation, BlockContent::published));
  }
  Status retain(const Handle& handle) {
    return manager_->retain(holder_, std::span(&handle.id, 1), std::span(&handle.generation, 1));
  }
  void release(const Handle& handle) {
    EXPECT_OK(
        manager_->release(holder_, std::span(&handle.id, 1), std::span(&handle.generation, 1)));
  }
  void release_all(std::span<const Handle> handles) {
    std::vector<BlockId> ids;
    std::vector<Generation> generations;
    for (const Handle& handle : handles) {
      ids.push_back(handle.id);
      generations.push_back(handle.generation);
    }
    EXPECT_OK(manager_->release(holder_, ids, generations));
  }
  // Fills the pool with published blocks 0, 1, 2, ..., all held.
  std::vector<Handle> published(std::size_t count) {
    std::vector<Handle> handles;
    for (std::size_t i = 0; i < count; ++i) {
      handles.push_back(take());
      publish(handles.back());
    }
    return handles;
  }
  // What the pool evicts from now on.
  std::vector<int> drained() {
    std::vector<int> ids;
    while (manager_->stats().evictable > 0) {
      ids.push_back(take().id.value);
      EXPECT_EQ(manager_->evicted().size(), 1U);
      EXPECT_EQ(manager_->evicted()[0].value, ids.back());
      EXPECT_OK(manager_->check_invariants());
    }
    return ids;
  }

  std::optional<BlockManager> manager_;
  HolderId holder_;
};

/// All policies, of blocks and of pages.
inline std::vector<PolicyCase> policy_cases() {
  std::vector<PolicyCase> cases(kEvictionPolicies.begin(), kEvictionPolicies.end());
  for (const EvictionPolicy policy : kEvictionPolicies) cases.emplace_back(policy, true);
  return cases;
}

/// The name of a policy as part of a test's name.
inline std::string test_name_of(const PolicyCase& its) {
  std::string name(name_of(its.policy));
  std::ranges::replace(name, '-', '_');
  return its.has_pages ? name + "_of_pages" : name;
}

}  // namespace kvarena::test
