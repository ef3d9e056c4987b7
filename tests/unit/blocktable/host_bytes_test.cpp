// What create takes of the process is what host_bytes says.

#include "support/process_memory.hpp"
#include "support/status_matchers.hpp"

#include "kvarena/blocktable/block_tables.hpp"
#include "kvarena/blocktable/prefix_pool.hpp"

#include <gtest/gtest.h>

#include <fstream>

namespace kvarena {
namespace {

/// Address space of the process.
std::int64_t mapped_bytes() {
  std::int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * 4096;
}

TEST(HostBytes, AreWhatTheTablesMap) {
  if (test::kSanitized) GTEST_SKIP() << "a sanitizer maps more";
  struct Size {
    BlockManagerOptions pool;
    BlockTablesOptions tables;
  };
  const BlockGroup blocks[] = {{5, 1024}, {1, 5120}};
  const TableGroup groups[] = {{}, {PagedKind::window, 16, 1024}};
  const Size sizes[] = {
      {{.num_blocks = 1 << 18, .max_holders = 4096}, {.max_sequences = 4096}},
      {{.num_blocks = 1 << 20, .max_holders = 64, .max_fence_entries = 1 << 20},
       {.max_sequences = 64, .max_table_pages = 1 << 17, .can_undo = true}},
      {{.num_blocks = 1 << 17, .max_holders = 64, .groups = blocks},
       {.max_sequences = 64, .groups = groups}},
      {{.num_blocks = 1 << 17, .max_holders = 64, .groups = blocks},
       {.max_sequences = 64, .groups = groups, .prefix_cache = {.is_on = true}}},
  };
  for (const Size& size : sizes) {
    const std::int64_t before = mapped_bytes();
    auto manager = BlockManager::create(size.pool).value();
    const std::int64_t between = mapped_bytes();
    auto tables = BlockTables::create(manager, size.tables).value();
    const std::int64_t after = mapped_bytes();
    const auto expected = static_cast<double>(BlockManager::host_bytes(size.pool));
    EXPECT_NEAR(static_cast<double>(between - before), expected, 0.02 * expected);
    const auto tables_expected =
        static_cast<double>(BlockTables::host_bytes(manager.num_blocks(), size.tables));
    EXPECT_NEAR(static_cast<double>(after - between), tables_expected, 0.02 * tables_expected);
  }
}

TEST(HostBytes, AreWhatAPrefixPoolMaps) {
  if (test::kSanitized) GTEST_SKIP() << "a sanitizer maps more";
  BlockManager manager = BlockManager::create({.num_blocks = 1 << 18}).value();
  PrefixPoolOptions options;
  for (const bool tells : {false, true}) {
    if (tells) options.prefix.events.tell = [](const PrefixEvent&, void*) {};
    const std::int64_t before = mapped_bytes();
    const auto pool = PrefixPool::create(manager, options).value();
    const std::int64_t after = mapped_bytes();
    const auto expected = static_cast<double>(PrefixPool::host_bytes(1 << 18, options));
    EXPECT_NEAR(static_cast<double>(after - before), expected, 0.02 * expected);
  }
}

}  // namespace
}  // namespace kvarena
