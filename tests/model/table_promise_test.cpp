// What tables with groups promise: sequences within the plan are never refused, whatever came
// before; what is left after most sequences have ended lies in no more pages than its blocks need;
// and a sequence with a promise grows while others take all that they can get.
//
// KVARENA_SEED=<n> replays one seed; KVARENA_LIVES_OPS=<n> sets the operations of each model.

#include "kvarena/base/choose_pages.hpp"
#include "kvarena/blocktable/block_tables.hpp"
#include "support/environment.hpp"
#include "support/process_memory.hpp"
#include "support/status_matchers.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <ostream>
#include <random>
#include <set>
#include <vector>

namespace kvarena::model {
namespace {

constexpr std::uint64_t kDefaultOperations = test::kSanitized ? 20'000 : 1'000'000;
constexpr std::int64_t kMaxTokens = 131'072;

struct TableGame {
  const char* name;
  std::vector<PagedGroup> groups;
  std::int64_t longest;               // tokens of a sequence
  std::int64_t sequences;             // in the plan
  std::int64_t step_tokens = 16;      // a step adds so many at most
  std::int64_t rollback_tokens = 16;  // a sequence may get shorter by so many
};

void PrintTo(const TableGame& game, std::ostream* out) { *out << game.name; }

PagedGroup tokens_of(PagedKind kind, std::int32_t layers, std::int64_t token_bytes,
                     std::int64_t limit = 0, std::int32_t rollback = 0) {
  return {.kind = kind,
          .num_layers = layers,
          .layer_bytes = 16 * token_bytes,
          .limit_tokens = limit,
          .rollback_tokens = rollback};
}

PagedGroup states_of(std::int32_t layers, std::int64_t bytes, std::int32_t rollback = 0) {
  return {.kind = PagedKind::state,
          .num_layers = layers,
          .layer_bytes = bytes,
          .rollback_tokens = rollback};
}

constexpr auto kFull = PagedKind::full;
constexpr auto kWindow = PagedKind::window;
constexpr auto kChunk = PagedKind::chunk;

const std::vector<TableGame> kTableGames = {
    {"Gemma", {tokens_of(kFull, 10, 8192), tokens_of(kWindow, 52, 8192, 1024)}, 8192, 7},
    {"GemmaTakesBack",
     {tokens_of(kFull, 10, 8192), tokens_of(kWindow, 52, 8192, 1024, 100)},
     3000,
     5,
     40,
     100},
    {"GptOss", {tokens_of(kFull, 18, 2048), tokens_of(kWindow, 18, 2048, 128)}, 8192, 9, 1},
    {"Llama4", {tokens_of(kFull, 12, 4096), tokens_of(kChunk, 36, 4096, 8192)}, 20'000, 3, 100},
    {"SmallChunks", {tokens_of(kFull, 10, 512), tokens_of(kChunk, 2, 512, 112)}, 900, 6, 96},
    {"SmallWindows", {tokens_of(kFull, 10, 512), tokens_of(kWindow, 2, 512, 220)}, 900, 6, 1},
    {"DeepSeek", {tokens_of(kFull, 61, 1152)}, 8192, 6, 200, 8192},
    {"Phi3", {tokens_of(kWindow, 32, 12288, 2047)}, 4096, 6, 1},
    {"MiMo", {tokens_of(kFull, 9, 2560), tokens_of(kWindow, 39, 5120, 128)}, 1500, 12, 7},
    {"Vision", {tokens_of(kFull, 32, 4096), tokens_of(PagedKind::cross, 8, 4096, 6404)}, 4096, 5},
    {"Qwen3Next", {tokens_of(kFull, 12, 2048), states_of(36, 2'146'304)}, 8192, 7},
    {"Nemotron3Nano", {tokens_of(kFull, 6, 1024), states_of(23, 2'134'016)}, 8192, 6, 200},
    {"StatesTakenBack", {tokens_of(kFull, 6, 1024), states_of(24, 500'000, 3)}, 3000, 5, 4, 3},
    {"Windows",
     {tokens_of(kWindow, 1, 512, 40, 20), tokens_of(kWindow, 5, 512, 200, 20),
      tokens_of(kFull, 2, 512, 0)},
     700,
     9,
     33,
     20},
};

/// Models with as many sequences as a pool of kPoolBytes has room for.
constexpr std::int64_t kPoolBytes = 40'000'000'000;

std::vector<TableGame> full_pools() {
  const std::pair<const char*, std::int64_t> sequences[] = {
      {"Gemma", 34},          {"GptOss", 130},  {"Llama4", 24}, {"Qwen3Next", 142},
      {"Nemotron3Nano", 393}, {"DeepSeek", 69}, {"Phi3", 49}};
  std::vector<TableGame> games;
  for (const auto& [name, count] : sequences) {
    const auto same = [name = std::string_view(name)](const TableGame& g) {
      return name == g.name;
    };
    games.push_back(*std::ranges::find_if(kTableGames, same));
    games.back().sequences = count;
    games.back().longest = std::min<std::int64_t>(games.back().longest, 8192);
    games.back().step_tokens = 16;
  }
  return games;
}

/// The tables of a model in a pool of pages for `sequences` of them.
struct ModelTables {
  /// A pool of exactly the plan's pages and those of one step.
  explicit ModelTables(const TableGame& game) {
    const PageChoice choice = choose_pages(game.groups, kMaxTokens).value();
    pages_of_pool = kPoolBytes / choice.page_bytes;
    for (std::size_t g = 0; g < game.groups.size(); ++g) {
      const PagedGroup& group = game.groups[g];
      const PagedBlocks& its = choice.groups[g];
      pages_of_one += pages_of(group, its, game.longest);
      if (group.kind == PagedKind::state) {
        add_states(group, its, choice.page_bytes);
        continue;
      }
      for (std::int32_t part = 0; part < its.num_parts; ++part) {
        blocks.push_back({its.blocks_per_page, its.block_bytes});
        groups.push_back({.kind = group.kind,
                          .limit_tokens = group.limit_tokens,
                          .rollback_tokens = group.rollback_tokens,
                          .ids_per_page = its.ids_per_page(choice.page_bytes),
                          .ids_per_block = its.ids_per_block()});
        if (group.kind == PagedKind::cross) cross_tokens = group.limit_tokens;
        const std::int64_t step_blocks = (game.step_tokens + 15) / 16;
        pages_of_step += (step_blocks + its.blocks_per_page - 1) / its.blocks_per_page;
      }
    }
    manager = std::make_unique<BlockManager>(
        BlockManager::create({.num_blocks = game.sequences * pages_of_one + pages_of_step,
                              .max_holders = kMostSequences,
                              .max_open_tickets = 1,
                              .max_fence_entries = 1,
                              .groups = blocks})
            .value());
    tables = std::make_unique<BlockTables>(
        BlockTables::create(*manager,
                            {.max_sequences = kMostSequences, .max_pins = 0, .groups = groups})
            .value());
  }
  /// A step can need its states twice, when a checkpoint or somebody else keeps those before it.
  void add_states(const PagedGroup& group, const PagedBlocks& its, std::int64_t page_bytes) {
    blocks.push_back({its.blocks_per_page, its.block_bytes});
    groups.push_back({.kind = group.kind,
                      .rollback_tokens = group.rollback_tokens,
                      .ids_per_page = its.ids_per_page(page_bytes),
                      .ids_per_block = its.ids_per_block(),
                      .num_parts = its.num_parts,
                      .mode = StateMode::read_write});
    const std::int64_t in_step = (group.rollback_tokens + 1) * its.num_parts;
    pages_of_step += (in_step + its.blocks_per_page - 1) / its.blocks_per_page;
  }
  SequenceId begin() const {
    return tables->create_sequence({.cross_tokens = static_cast<std::int32_t>(cross_tokens)})
        .value();
  }
  /// The pages that a sequence's blocks touch, and the most that they may touch.
  std::pair<std::int64_t, std::int64_t> pages_touched(SequenceId id) const {
    std::pair<std::int64_t, std::int64_t> sum{0, 0};
    std::vector<BlockId> ids(kMaxTokens / 16);
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const std::int64_t count = tables->blocks_of(id, ids, static_cast<std::int32_t>(g)).value();
      std::set<std::int32_t> pages;
      std::int64_t held = 0;
      for (std::int64_t i = 0; i < count; ++i) {
        const BlockId block = ids[static_cast<std::size_t>(i)];
        if (block == kNoBlock) continue;
        pages.insert(manager->place_of(block).page);
        ++held;
      }
      sum.first += std::ssize(pages);
      sum.second += pages_of(groups[g].kind, held, manager->groups()[g].blocks_per_page);
    }
    return sum;
  }

  std::vector<BlockGroup> blocks;
  std::vector<TableGroup> groups;
  static constexpr std::int32_t kMostSequences = 400;
  std::int64_t cross_tokens = 0;
  std::int64_t pages_of_pool = 0;  // of kPoolBytes
  std::int64_t pages_of_one = 0;
  std::int64_t pages_of_step = 0;
  std::unique_ptr<BlockManager> manager;
  std::unique_ptr<BlockTables> tables;
};

std::uint64_t seed() { return test::number_from_environment("KVARENA_SEED", 20261123); }

/// Random lives of at most the plan's sequences.
class TableLives {
 public:
  explicit TableLives(const TableGame& game) : game_(game), pool_(game), random_(seed()) {}

  void play(std::int64_t operations) {
    for (std::int64_t i = 0; i < operations && !::testing::Test::HasFailure(); ++i) {
      if (std::ssize(live_) < game_.sequences && random_() % 4 == 0) live_.push_back(pool_.begin());
      if (live_.empty()) continue;
      const std::size_t which = random_() % live_.size();
      const std::uint64_t kind = random_() % 64;
      const bool is_longest = length(live_[which]) == game_.longest;
      if (kind == 0 || (is_longest && kind < 8)) {
        end(which);
      } else if (kind < 6) {
        cut(live_[which]);
      } else if (kind < 10) {
        publish(live_[which]);
      } else {
        grow(live_[which]);
      }
      if (i % (1024 * (1 + game_.sequences / 16)) == 0) expect_pages_within_bounds();
      if (i % 16384 == 0) {
        EXPECT_OK(pool_.manager->check_invariants());
        EXPECT_OK(pool_.tables->check_invariants());
      }
    }
  }
  /// All sequences of the plan live, and have their greatest length.
  void fill() {
    while (std::ssize(live_) < game_.sequences) live_.push_back(pool_.begin());
    for (const SequenceId id : live_) {
      while (length(id) < game_.longest && !::testing::Test::HasFailure()) {
        append(id, std::min(game_.step_tokens, game_.longest - length(id)));
      }
    }
    EXPECT_OK(pool_.manager->check_invariants());
  }
  /// Nine of ten sequences end. Those left have no more pages than their blocks need.
  void drain() {
    for (std::size_t i = live_.size(); i-- > 0;) {
      if (i % 10 != 0) end(i);
    }
    std::int64_t most = 0;
    for (const SequenceId id : live_) most += pool_.pages_touched(id).second;
    const PageStats pages = pool_.manager->page_stats();
    EXPECT_LE(pages.of_groups - pages.evictable, most);
  }
  const BlockManager& manager() const { return *pool_.manager; }
  const ModelTables& pool() const { return pool_; }

 private:
  std::int64_t length(SequenceId id) const { return pool_.tables->info(id)->length_tokens; }

  void grow(SequenceId id) {
    const std::int64_t times = random_() % 16 == 0 ? 40 : 1;
    for (std::int64_t i = 0; i < times && !::testing::Test::HasFailure(); ++i) {
      const std::int64_t left = game_.longest - length(id);
      const auto tokens =
          static_cast<std::int64_t>(1 + random_() % static_cast<std::uint64_t>(game_.step_tokens));
      append(id, std::min(left, tokens));
    }
  }
  void append(SequenceId id, std::int64_t tokens) {
    const AppendDemand demand{id, static_cast<std::int32_t>(tokens)};
    const auto result = pool_.tables->append(std::span(&demand, 1));
    ASSERT_TRUE(result.is_ok()) << describe(result.status()) << "\n"
                                << to_string(pool_.tables->explain(result.status()));
    pool_.tables->settle_append();
  }
  void cut(SequenceId id) {
    const std::int64_t now = length(id);
    const std::int64_t most = std::min(game_.rollback_tokens, now);
    const std::int64_t wanted =
        now - static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(most + 1));
    if (wanted < published_[id]) return;  // a page more: others keep what it gave up at its end
    const std::int64_t can = pool_.tables->restorable_length(id, wanted).value();
    if (can == wanted) {
      ASSERT_OK(pool_.tables->truncate(id, wanted));
    }
  }
  void publish(SequenceId id) {
    const auto group = static_cast<std::int32_t>(random_() % pool_.groups.size());
    const std::int64_t full = length(id) / 16;
    for (std::int64_t i = std::max<std::int64_t>(0, full - 4); i < full; ++i) {
      const auto block = pool_.tables->lookup(id, i, group);
      if (!block || *block == kNoBlock) continue;
      static_cast<void>(pool_.manager->set_content(*block, pool_.manager->generation(*block),
                                                   BlockContent::published));
      published_[id] = (i + 1) * 16;
    }
  }
  void end(std::size_t which) {
    EXPECT_OK(pool_.tables->destroy(live_[which]));
    published_.erase(live_[which]);
    live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(which));
  }
  void expect_pages_within_bounds() {
    for (const SequenceId id : live_) {
      const auto [touched, most] = pool_.pages_touched(id);
      EXPECT_LE(touched, most) << "of a sequence of " << length(id) << " tokens";
    }
  }

  const TableGame& game_;
  ModelTables pool_;
  std::mt19937_64 random_;
  std::vector<SequenceId> live_;
  std::map<SequenceId, std::int64_t> published_;  // tokens whose blocks stay cached
};

class TablePromise : public ::testing::TestWithParam<TableGame> {};

TEST_P(TablePromise, NoSequenceWithinThePlanIsRefused) {
  const auto operations = static_cast<std::int64_t>(
      test::number_from_environment("KVARENA_LIVES_OPS", kDefaultOperations));
  TableLives lives(GetParam());
  lives.play(operations);
  EXPECT_GT(static_cast<std::int64_t>(lives.manager().page_stats().turned),
            lives.manager().num_pages());
  lives.drain();
  EXPECT_FALSE(HasFailure()) << "KVARENA_SEED=" << seed();
}

class TablePlan : public ::testing::TestWithParam<TableGame> {};

TEST_P(TablePlan, AFullPoolOfItsSequencesIsHeldAndDrained) {
  const auto operations = static_cast<std::int64_t>(
      test::number_from_environment("KVARENA_LIVES_OPS", kDefaultOperations));
  const TableGame game = GetParam();
  TableLives lives(game);
  EXPECT_EQ(lives.pool().pages_of_pool / lives.pool().pages_of_one, game.sequences);
  lives.play(operations);
  lives.fill();
  lives.drain();
  EXPECT_FALSE(HasFailure()) << "KVARENA_SEED=" << seed();
}

INSTANTIATE_TEST_SUITE_P(, TablePlan, ::testing::ValuesIn(full_pools()),
                         [](const auto& tested) { return tested.param.name; });

/// Promised sequences grow token by token to what they were promised, while others take whatever
/// growth may take.
TEST_P(TablePromise, APromisedSequenceIsNotRefused) {
  TableGame game = GetParam();
  game.longest = std::min<std::int64_t>(game.longest, 1500);
  ModelTables pool(game);
  std::mt19937_64 random(seed());
  BlockTables& tables = *pool.tables;
  for (int round = 0; round < 10 && !HasFailure(); ++round) {
    std::vector<SequenceId> promised;
    for (int i = 0; i < 2; ++i) {
      promised.push_back(pool.begin());
      ASSERT_OK(tables.promise_capacity(promised.back(), game.longest));
    }
    std::vector<SequenceId> others;
    for (std::int64_t n = 0; n < game.longest && !HasFailure(); ++n) {
      for (const SequenceId id : promised) {
        const auto result = tables.append_one_each(std::span(&id, 1));
        ASSERT_TRUE(result.is_ok()) << n << " tokens: " << describe(result.status()) << "\n"
                                    << to_string(tables.explain(result.status()));
        tables.settle_append();
      }
      if (others.size() < 30 && random() % 8 == 0) others.push_back(pool.begin());
      if (others.empty()) continue;
      const std::size_t which = random() % others.size();
      const AppendDemand demand{others[which], static_cast<std::int32_t>(random() % 200)};
      if (!tables.append(std::span(&demand, 1)) && random() % 4 == 0) {
        ASSERT_OK(tables.destroy(others[which]));
        others.erase(others.begin() + static_cast<std::ptrdiff_t>(which));
      }
      tables.settle_append();
    }
    for (const SequenceId id : promised) ASSERT_OK(tables.destroy(id));
    for (const SequenceId id : others) ASSERT_OK(tables.destroy(id));
    EXPECT_EQ(pool.manager->page_stats().reserved, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(, TablePromise, ::testing::ValuesIn(kTableGames),
                         [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace kvarena::model
