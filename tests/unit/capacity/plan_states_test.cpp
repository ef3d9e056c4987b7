// Plans of models with recurrent layers: the second state of a step is counted, so that sequences
// within a plan are never refused, and the cache of such a plan is made.

#include "kvarena/allocator/block_manager.hpp"
#include "kvarena/blocktable/block_tables.hpp"
#include "kvarena/cache/kv_cache.hpp"
#include "kvarena/capacity/memory_plan.hpp"
#include "kvarena/capacity/model_presets.hpp"
#include "kvarena/device/host_device.hpp"

#include "cache/cache_plan.hpp"
#include "support/status_matchers.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvarena::capacity {
namespace {

constexpr std::int64_t kContext = 6144;
constexpr std::int64_t kStepTokens = 512;
constexpr const char* kModels[] = {"Qwen3-Next-80B-A3B", "Nemotron-3-Nano-30B-A3B", "Qwen3.5-27B"};

PlanOptions options_of(std::int64_t batch) {
  return {.memory_bytes = std::int64_t{4000} << 30,
          .kept = KeptTokens::model,
          .context_tokens = kContext,
          .batch = batch,
          .max_step_tokens = kStepTokens,
          .target = CacheTarget{.kind = DeviceKind::cuda, .num_sms = 132}};
}

TEST(PlanOfStates, CountsTheSecondStateOfEachSequenceOfAStep) {
  const GroupMemory state{
      .kind = CacheKind::recurrent,
      .num_layers = 6,
      .unit_bytes = 6 * 1024,
      .paged = {.kind = PagedKind::state, .num_layers = 6, .layer_bytes = 1024}};
  const PagedBlocks alone{.num_parts = 3, .block_bytes = 2048, .blocks_per_page = 1};
  EXPECT_EQ(pool_pages(state, alone, 0, 100, 8), 0);
  EXPECT_EQ(pool_pages(state, alone, 1, 100, 8), 3 + 3);
  EXPECT_EQ(pool_pages(state, alone, 5, 100, 8), 5 * (3 + 3));
  EXPECT_EQ(pool_pages(state, alone, 20, 100, 8), 20 * 3 + 8 * 3) << "a row has a token at least";
  const PagedBlocks shared{.num_parts = 3, .block_bytes = 2048, .blocks_per_page = 4};
  EXPECT_EQ(pool_pages(state, shared, 5, 100, 8), 5 * 3) << "they begin anywhere in a page of four";
  EXPECT_EQ(pool_pages(state, shared, 20, 100, 8), 20 * 2 + 8);
  EXPECT_EQ(pool_units(state, 20, 100, 8), 28);
  EXPECT_EQ(peak_units(state, 100), 1) << "between steps";
}

// What can be taken back: the states of the last tokens are kept, and a step writes as many anew.
TEST(PlanOfStates, CountsTheStatesThatCanBeHadAgain) {
  const GroupMemory state{
      .kind = CacheKind::recurrent,
      .num_layers = 6,
      .unit_bytes = 6 * 1024,
      .paged = {
          .kind = PagedKind::state, .num_layers = 6, .layer_bytes = 1024, .rollback_tokens = 3}};
  const PagedBlocks alone{.num_parts = 3, .block_bytes = 2048, .blocks_per_page = 1};
  EXPECT_EQ(peak_units(state, 100), 4);
  EXPECT_EQ(units_at(state, 1), 2) << "of the tokens 0 and 1";
  EXPECT_EQ(pool_pages(state, alone, 5, 100, 100), 5 * 3 * (4 + 4));
  EXPECT_EQ(pool_pages(state, alone, 5, 100, 8), 5 * 3 * 4 + 3 * 8) << "a state for each token";
  EXPECT_EQ(pool_units(state, 5, 100, 8), 5 * 4 + 8);
  EXPECT_EQ(pool_units(state, 5, 100, 100), 5 * (4 + 4));
  EXPECT_EQ(formula_of(state), "6,144 B x (1 + min(tokens, 3))");
}

/// A group of all tokens and another one whose tokens can be taken back, and sequences of them.
struct TakenBack {
  static constexpr std::int64_t kLength = 60;  // of a sequence
  explicit TakenBack(std::uint32_t seed) : random(seed) {
    is_state = below(2) == 0;
    rollback = below(7);
    sequences = 1 + below(4);
    step_tokens = std::max(sequences, 1 + below(30));
    // A block of several KiB: pages have several blocks of the second group.
    if (below(2) == 0) groups[0].block_size_tokens = 64;
    groups[1] = {.kind = PagedKind::window,
                 .layers = other,
                 .num_kv_heads = 1,
                 .head_dim_k = 32,
                 .block_size_tokens = 1 + below(5),
                 .limit_tokens = 1 + below(12),
                 .rollback_tokens = rollback};
    if (!is_state) return;
    groups[1] = {.kind = PagedKind::state,
                 .layers = other,
                 .rollback_tokens = rollback,
                 .planes = {&plane, 1},
                 .mode = below(2) == 0 ? StateMode::read_write : StateMode::in_place};
  }
  std::int32_t below(std::int64_t end) {
    return static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(end));
  }
  /// The pages that the plan counts.
  std::int64_t pages() {
    const GroupLayout layout = GroupLayout::create(groups, kLength).value();
    std::int64_t sum = 0;
    for (std::size_t g = 0; g < 2; ++g) {
      const bool is_its_state = g == 1 && is_state;
      GroupMemory memory;
      memory.paged = layout.groups()[g];
      memory.kind = g == 0 ? CacheKind::full : is_state ? CacheKind::recurrent : CacheKind::window;
      memory.limit_tokens = memory.paged.limit_tokens;
      memory.block_size_tokens = is_its_state ? 0 : memory.paged.block_size_tokens;
      const PagedBlocks& blocks =
          is_its_state ? layout.states()[0].blocks : layout.parts()[g].blocks;
      blocks_per_page = blocks.blocks_per_page;
      sum += pool_pages(memory, blocks, sequences, kLength, step_tokens);
    }
    return sum;
  }
  /// Random tokens for each sequence that is not complete, up to those of a step.
  std::vector<AppendDemand> next(std::span<const SequenceId> ids) {
    std::vector<AppendDemand> demands;
    std::int64_t left = step_tokens;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const std::int64_t most = std::min(left, kLength - lengths[i]);
      const std::int64_t tokens = below(2) == 0 ? most : below(most + 1);
      if (tokens == 0) continue;
      demands.push_back({ids[i], static_cast<std::int32_t>(tokens)});
      lengths[i] += tokens;
      left -= tokens;
    }
    return demands;
  }
  bool is_over() const {
    return std::ranges::all_of(lengths.begin(), lengths.begin() + sequences,
                               [](std::int64_t n) { return n == kLength; });
  }

  std::mt19937 random;
  GroupLayer full[1] = {{0, -1}};
  GroupLayer other[1] = {{1, -1}};
  StatePlane plane{.dtype = DType::f32, .num_dims = 1, .shape = {256}};
  LayerGroup groups[2] = {
      {.layers = full, .num_kv_heads = 1, .head_dim_k = 32, .block_size_tokens = 4}};
  std::int32_t blocks_per_page = 0;  ///< of the second group; set by pages()
  bool is_state = false;
  std::int32_t rollback = 0;
  std::int32_t sequences = 0;
  std::int64_t step_tokens = 0;
  std::array<std::int64_t, 4> lengths{};
};

// Sequences within the plan are never refused.
TEST(PlanOfStates, APoolOfItsPagesHoldsWhatCanBeTakenBack) {
  const auto device = HostDevice::create({.streams = HostStreams::inline_calls}).value();
  int with_large_pages = 0;
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    TakenBack game(seed);
    SCOPED_TRACE("seed " + std::to_string(seed));
    KvCacheOptions options;
    options.groups = game.groups;
    options.num_q_heads = 1;
    options.num_threads = 1;
    options.max_sequences = game.sequences;
    options.max_sequence_tokens = TakenBack::kLength;
    options.max_step_tokens = static_cast<std::int32_t>(game.step_tokens);
    options.size.num_blocks = game.pages();
    options.checkpoint_every_tokens = 0;
    with_large_pages += game.blocks_per_page > 1 && game.rollback > 0 ? 1 : 0;
    KvCache cache = KvCache::create(*device, options).value();
    std::vector<SequenceId> ids;
    for (int i = 0; i < game.sequences; ++i) ids.push_back(cache.create_sequence().value());
    while (!game.is_over()) {
      const std::vector<AppendDemand> demands = game.next(ids);
      ASSERT_OK(cache.begin_step());
      ASSERT_OK(cache.append(demands));
      ASSERT_OK(cache.end_step());
    }
  }
  EXPECT_GT(with_large_pages, 30);
}

TEST(PlanOfStates, ACacheOfItIsAsLargeAsPlanned) {
  for (const char* name : kModels) {
    SCOPED_TRACE(name);
    const ModelSpec model = *find_model_preset(name);
    const PlanOptions options = options_of(4);
    const MemoryPlan planned = plan(model, options).value();
    const Result<PlannedCache> made = cache_options(model, options, planned);
    ASSERT_OK(made);
    const CacheFootprint footprint = cache_footprint(made->options, *options.target).value();
    EXPECT_EQ(footprint.pool_bytes, planned.kv_cache_bytes);
    EXPECT_EQ(footprint.workspace_bytes + footprint.table_bytes, planned.table_bytes);
    EXPECT_EQ(footprint.num_blocks, planned.num_pages);
    // One state of each sequence between steps, and a second one in a step.
    const auto states = std::ranges::find_if(planned.groups, [](const GroupPlan& group) {
      return group.memory.kind == CacheKind::recurrent;
    });
    ASSERT_NE(states, planned.groups.end());
    EXPECT_EQ(planned.step_bytes, 4 * states->pages_per_sequence * planned.page_bytes);
  }
}

TEST(PlanOfStates, DistancesOfCheckpointsAreWholeBlocks) {
  const ModelSpec model = *find_model_preset("Qwen3-Next-80B-A3B");
  for (const auto& [block, distance] :
       {std::pair{16, 2048}, std::pair{48, 2016}, std::pair{4096, 4096}}) {
    PlanOptions options = options_of(1);
    options.block_size_tokens = block;
    const MemoryPlan planned = plan(model, options).value();
    EXPECT_EQ(cache_options(model, options, planned)->options.checkpoint_every_tokens, distance);
  }
}

// The tables of a cache with as many pages as are planned for some sequences: whatever they do,
// none is refused. No memory is needed for that.
TEST(PlanOfStates, SequencesWithinItAreNeverRefused) {
  constexpr std::size_t kSequences = 5;
  for (const char* name : kModels) {
    SCOPED_TRACE(name);
    const ModelSpec model = *find_model_preset(name);
    const PlanOptions options = options_of(kSequences);
    const MemoryPlan planned = plan(model, options).value();
    PlannedCache made = cache_options(model, options, planned).value();
    made.options.size = {.num_blocks = planned.asked_kv_bytes / planned.page_bytes};
    const CachePlan cache = plan_cache(made.options, {.kind = DeviceKind::host}, 0).value();
    BlockManager manager = BlockManager::create(manager_options(cache)).value();
    BlockTables tables = BlockTables::create(manager, block_tables_options(cache)).value();
    std::mt19937_64 random(7);
    const auto below = [&](std::uint64_t n) { return static_cast<std::int64_t>(random() % n); };
    std::map<SequenceId, std::int64_t> lives;
    std::int64_t longest = 0;
    int checkpoints = 0;
    for (int step = 0; step < 4000; ++step) {
      if (lives.size() < kSequences) {
        lives[tables.create_sequence({.max_length_tokens = kContext}).value()] = 0;
      }
      auto it = lives.begin();
      std::advance(it, below(lives.size()));
      const auto& [id, length] = *it;
      switch (below(40)) {
        case 0: {
          const std::int64_t cut =
              tables.restorable_length(id, std::max<std::int64_t>(0, length - below(3000))).value();
          ASSERT_OK(tables.truncate(id, cut));
          it->second = cut;
          break;
        }
        case 1: checkpoints += tables.checkpoint(id) ? 1 : 0; break;
        case 2:
          if (below(8) != 0) break;
          ASSERT_OK(tables.destroy(id));
          lives.erase(it);
          break;
        default: break;
      }
      std::vector<AppendDemand> demands;
      std::int64_t left = kStepTokens;
      for (const auto& [one, its] : lives) {
        const std::int64_t wanted = below(4) == 0 ? 300 : 1;
        const std::int64_t tokens = std::min({wanted, left, kContext - its});
        left -= tokens;
        demands.push_back({one, static_cast<std::int32_t>(tokens)});
      }
      const Result<AppendResult> appended = tables.append(demands);
      ASSERT_OK(appended) << "step " << step << ": " << describe(appended.status());
      if (below(10) == 0) {
        ASSERT_OK(tables.undo_append(true));
        continue;
      }
      tables.settle_append();
      for (const AppendDemand& demand : demands) {
        longest = std::max(longest, lives[demand.sequence] += demand.num_tokens);
      }
    }
    EXPECT_EQ(longest, kContext);
    EXPECT_GT(checkpoints, 20);
    EXPECT_OK(tables.check_invariants());
  }
}

// ---- pages of layers of several kinds -----------------------------------------------------------

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
  GroupMemory window{.kind = CacheKind::window,
                     .num_layers = 1,
                     .limit_tokens = 129,
                     .block_size_tokens = 16,
                     .unit_bytes = 1024,
                     .paged = {.kind = PagedKind::window,
                               .num_layers = 1,
                               .layer_bytes = 1024,
                               .block_size_tokens = 16,
                               .limit_tokens = 129}};
  for (const auto& [per_page, rollback] : std::vector<std::pair<std::int32_t, std::int32_t>>{
           {1, 0}, {2, 0}, {3, 0}, {8, 0}, {64, 0}, {1, 5}, {2, 16}, {3, 7}, {8, 40}}) {
    window.paged.rollback_tokens = rollback;
    const PagedBlocks blocks{.block_bytes = 1024, .blocks_per_page = per_page};
    // A sequence grows by `tokens` in one step, and its first page begins anywhere.
    for (const std::int64_t tokens : {1, 2, 15, 16, 17, 100, 1000}) {
      std::int64_t most = 0;
      for (std::int64_t length = tokens; length <= 2000; ++length) {
        const std::int64_t first = std::max<std::int64_t>(0, length - tokens - 129 - rollback) / 16;
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
