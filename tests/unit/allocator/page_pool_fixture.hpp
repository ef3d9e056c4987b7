#pragma once

/// @file
/// A small pool with a group of three blocks a page and one of two.

#include "block_manager_fixture.hpp"

#include <array>
#include <string>
#include <vector>

namespace kvarena::test {

inline constexpr std::array<BlockGroup, 2> kThreeAndTwo = {
    BlockGroup{.blocks_per_page = 3, .block_bytes = 1000},
    BlockGroup{.blocks_per_page = 2, .block_bytes = 1500}};

/// A pool with these groups, whose accounts must balance at the end.
class PagePoolTest : public BlockManagerTest {
 protected:
  void create_pages(std::int64_t num_pages, std::int64_t watermark = 0) {
    create({.num_blocks = num_pages,
            .watermark_blocks = watermark,
            .max_holders = 8,
            .max_open_tickets = 4,
            .groups = kThreeAndTwo});
  }
  void TearDown() override {
    expect_balance();
    BlockManagerTest::TearDown();
  }
  void expect_balance() {
    if (!manager_) return;
    EXPECT_TRUE(manager().page_stats().balanced());
    std::int64_t of_groups = 0;
    for (std::int32_t g = 0; g < static_cast<std::int32_t>(manager().groups().size()); ++g) {
      EXPECT_TRUE(manager().group_stats(g).balanced());
      of_groups += manager().group_stats(g).pages;
    }
    EXPECT_EQ(of_groups, manager().page_stats().of_groups);
  }
  Result<std::int64_t> take_each(std::span<const HolderDemand> demands, Handles& handles,
                                 Urgency urgency = Urgency::growth) {
    std::size_t count = 0;
    for (const HolderDemand& demand : demands) count += demand.count;
    handles = {std::vector<BlockId>(count), std::vector<Generation>(count)};
    return manager().allocate_each(demands, handles.ids, handles.generations, urgency);
  }
  /// Takes `count` blocks of a group; the test fails when it cannot.
  Handles take_of(HolderId who, std::int32_t group, std::uint32_t count,
                  Urgency urgency = Urgency::growth) {
    const HolderDemand demand{.holder = who, .count = count, .group = group};
    Handles handles;
    EXPECT_OK(take_each(std::span(&demand, 1), handles, urgency));
    return handles;
  }
  Result<std::int64_t> try_take_of(HolderId who, std::int32_t group, std::uint32_t count,
                                   Urgency urgency = Urgency::growth) {
    const HolderDemand demand{.holder = who, .count = count, .group = group};
    Handles handles;
    return take_each(std::span(&demand, 1), handles, urgency);
  }
  void publish(const Handles& handles) {
    for (std::size_t i = 0; i < handles.ids.size(); ++i) {
      ASSERT_OK(
          manager().set_content(handles.ids[i], handles.generations[i], BlockContent::published));
    }
  }
  /// "page.slot" of each block: "0.0 0.1 1.0".
  std::string places(std::span<const BlockId> ids) {
    std::string text;
    for (const BlockId id : ids) {
      const BlockPlace place = manager().place_of(id);
      text +=
          (text.empty() ? "" : " ") + std::to_string(place.page) + "." + std::to_string(place.slot);
    }
    return text;
  }
  std::string places(const Handles& handles) { return places(handles.ids); }

  ViolationRecorder recorder_;
};

}  // namespace kvarena::test
