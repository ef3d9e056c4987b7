// Plans of models whose layers share a pool of pages.

#include "kvarena/capacity/memory_plan.hpp"

#include "kvarena/capacity/model_presets.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace kvarena::capacity {
namespace {

/// What a sequence of 8,192 tokens takes in a pool, between steps.
struct PagesOfModel {
  const char* model;
  std::int64_t tokens;
  std::int64_t page_bytes;  // of a single group, its block
  std::vector<std::int32_t> parts;
  std::vector<std::int32_t> blocks_per_page;
  std::vector<std::int64_t> pages;
  std::int64_t guaranteed;  // sequences in 40,000,000,000 B
};

// Blocks of 16 tokens in bf16, states in f32.
TEST(Plan, PagesOfModelsWithLayersOfSeveralKinds) {
  const PagesOfModel models[] = {
      {"Gemma-3-27B", 8192, 6'815'744, {1, 1}, {5, 1}, {103, 65}, 34},
      {"gpt-oss-120b", 8192, 589'824, {1, 1}, {1, 1}, {512, 9}, 130},
      {"Llama-4-Scout-17B-16E", 8192, 786'432, {1, 3}, {1, 1}, {512, 1536}, 24},
      {"Qwen3-Next-80B-A3B", 8192, 4'325'376, {1, 18}, {11, 1}, {47, 18}, 142},
      {"Nemotron-3-Nano-30B-A3B", 8192, 2'162'688, {1, 23}, {22, 1}, {24, 23}, 393},
      {"DeepSeek-V3", 8192, 1'124'352, {1}, {}, {512}, 69},
      {"Phi-3-mini-4k-instruct", 4096, 6'291'456, {1}, {}, {129}, 49},
  };
  for (const PagesOfModel& expected : models) {
    const MemoryPlan p =
        plan(*find_model_preset(expected.model), {.memory_bytes = std::int64_t{1000} << 30,
                                                  .kept = KeptTokens::model,
                                                  .context_tokens = expected.tokens,
                                                  .max_step_tokens = 1})
            .value();
    std::int64_t pages = 0;
    std::vector<std::int32_t> parts, blocks;
    std::vector<std::int64_t> each;
    for (const GroupPlan& group : p.groups) {
      parts.push_back(group.num_parts);
      if (p.page_bytes > 0) blocks.push_back(group.blocks_per_page);
      each.push_back(p.page_bytes > 0 ? group.pages_per_sequence : group.units_per_sequence);
      pages += each.back();
    }
    const std::int64_t page = p.page_bytes > 0 ? p.page_bytes : p.groups.front().memory.unit_bytes;
    EXPECT_EQ(page, expected.page_bytes) << expected.model;
    EXPECT_EQ(parts, expected.parts) << expected.model;
    EXPECT_EQ(blocks, expected.blocks_per_page) << expected.model;
    EXPECT_EQ(each, expected.pages) << expected.model;
    EXPECT_EQ(40'000'000'000 / page / pages, expected.guaranteed) << expected.model;
    EXPECT_EQ(p.bytes_per_sequence, pages * page) << expected.model;
    EXPECT_EQ(p.kv_cache_bytes % page, 0) << expected.model;
  }
}

// The pages that the sequences of a step hold: a window of 129 tokens in blocks of 16, one block or
// eight blocks a page.
TEST(Plan, PagesHaveRoomForAStep) {
  const GroupMemory window{.kind = CacheKind::window,
                           .num_layers = 1,
                           .limit_tokens = 129,
                           .block_size_tokens = 16,
                           .unit_bytes = 1024,
                           .paged = {.kind = PagedKind::window,
                                     .num_layers = 1,
                                     .layer_bytes = 1024,
                                     .block_size_tokens = 16,
                                     .limit_tokens = 129}};
  for (const std::int32_t per_page : {1, 2, 3, 8, 64}) {
    const PagedBlocks blocks{.block_bytes = 1024, .blocks_per_page = per_page};
    // A sequence grows by `tokens` in one step, and its first page begins anywhere.
    for (const std::int64_t tokens : {1, 2, 15, 16, 17, 100, 1000}) {
      std::int64_t most = 0;
      for (std::int64_t length = tokens; length <= 2000; ++length) {
        const std::int64_t first = std::max<std::int64_t>(0, length - tokens - 129) / 16;
        const std::int64_t last = (length - 1) / 16;
        most = std::max(most, last / per_page - first / per_page + 1);
      }
      EXPECT_GE(pool_pages(window, blocks, 1, 2000, tokens), most) << per_page << ", " << tokens;
      EXPECT_LE(pool_pages(window, blocks, 1, 2000, tokens), most + 1)
          << per_page << ", " << tokens;
      EXPECT_GE(pool_pages(window, blocks, 7, 2000, 7 * tokens), 7 * most);
    }
  }
}

}  // namespace
}  // namespace kvarena::capacity
