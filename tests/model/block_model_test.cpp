// A naive model and the real manager and tables play the same games; nothing they show may differ.
//
// KVARENA_SEED=<n> replays one seed in every game (a failure prints it); KVARENA_MODEL_OPS=<n> sets
// the number of operations of all games together.

#include "model/model_driver.hpp"
#include "support/environment.hpp"
#include "support/process_memory.hpp"

#include <gtest/gtest.h>

#include <map>
#include <ostream>
#include <string>
#include <string_view>

namespace kvarena::model {
namespace {

constexpr std::uint64_t kDefaultOperations = test::kSanitized ? 100'000 : 1'000'000;
constexpr std::uint64_t kDefaultSeed = 20250117;

/// A game's sizes; `share` is its part of all operations, in thousandths.
struct Table {
  const char* name;
  std::int64_t num_blocks;
  std::int32_t block_size;
  std::int32_t max_sequences;
  std::int64_t longest_chunk;
  std::int64_t watermark;
  int share;
  std::int32_t max_open_tickets = 8;
  std::int64_t max_fence_entries = 0;
  std::int64_t max_table_pages = 0;
  std::int32_t spare_holders = 6;
  EvictionPolicy eviction = EvictionPolicy::tail_first;
};

constexpr Table kTables[] = {
    {"OneBlockOneToken", 1, 1, 2, 2, 0, 20},
    {"OneBlock", 1, 16, 3, 20, 0, 20},
    {"TwoBlocksWatermark", 2, 7, 4, 10, 1, 30},
    {"FiveBlocksOfOne", 5, 1, 4, 4, 0, 60},
    {"TinyManySharers", 8, 7, 12, 20, 0, 120},
    {"TinyFewSequences", 12, 16, 3, 60, 2, 80},
    {"SmallOneToken", 40, 1, 8, 12, 4, 90},
    {"SmallSevens", 40, 7, 10, 40, 3, 110},
    {"SmallSixteens", 64, 16, 16, 120, 0, 110},
    {"SmallLargeBlocks", 24, 128, 6, 700, 2, 60},
    {"FewTicketsFewFences", 32, 16, 8, 90, 0, 60, 2, 3},
    {"FewHolders", 20, 7, 8, 30, 0, 40, 8, 0, 0, -4},
    {"FewPages", 64, 1, 12, 20, 0, 40, 8, 0, 6},
    {"MediumPages", 1000, 1, 12, 300, 10, 30, 8, 0, 24},
    {"MediumSixteens", 600, 16, 40, 700, 20, 60, 64},
    {"MediumManySequences", 400, 16, 150, 60, 0, 30, 64},
    {"LargeSevens", 3000, 7, 30, 2000, 50, 15, 64},
    {"LargeSixteens", 10'000, 16, 60, 9000, 100, 8, 64, 2000},
    {"LargeLargeBlocks", 10'000, 128, 20, 60'000, 0, 6, 64},
    {"LargeOneToken", 10'000, 1, 20, 1500, 0, 8, 64},
    {"TinyHeadFirst", 8, 7, 12, 20, 0, 40, 8, 0, 0, 6, EvictionPolicy::head_first},
    {"TinyFifo", 8, 7, 12, 20, 0, 40, 8, 0, 0, 6, EvictionPolicy::fifo},
    {"TinyLfu", 8, 7, 12, 20, 0, 40, 8, 0, 0, 6, EvictionPolicy::lfu},
    {"TinyPriority", 8, 7, 12, 20, 0, 40, 8, 0, 0, 6, EvictionPolicy::priority},
    {"SmallHeadFirst", 64, 4, 16, 60, 3, 40, 8, 0, 0, 6, EvictionPolicy::head_first},
    {"SmallFifo", 64, 4, 16, 60, 3, 40, 8, 0, 0, 6, EvictionPolicy::fifo},
    {"SmallLfu", 64, 4, 16, 60, 3, 40, 8, 0, 0, 6, EvictionPolicy::lfu},
    {"SmallPriority", 64, 4, 16, 60, 3, 40, 8, 0, 0, 6, EvictionPolicy::priority},
    {"MediumHeadFirst", 600, 1, 40, 300, 20, 10, 64, 0, 0, 6, EvictionPolicy::head_first},
    {"MediumFifo", 600, 1, 40, 300, 20, 10, 64, 0, 0, 6, EvictionPolicy::fifo},
    {"MediumLfu", 600, 1, 40, 300, 20, 10, 64, 0, 0, 6, EvictionPolicy::lfu},
    {"MediumPriority", 600, 1, 40, 300, 20, 10, 64, 0, 0, 6, EvictionPolicy::priority},
};

void PrintTo(const Table& table, std::ostream* out) { *out << table.name; }

Game game_of(const Table& table) {
  Game game;
  game.name = table.name;
  game.pool = {.num_blocks = table.num_blocks,
               .watermark_blocks = table.watermark,
               .max_holders = table.max_sequences + table.spare_holders,
               .max_open_tickets = table.max_open_tickets,
               .max_fence_entries = table.max_fence_entries,
               .eviction = table.eviction};
  game.tables = {.block_size_tokens = table.block_size,
                 .max_sequences = table.max_sequences,
                 .max_table_pages = table.max_table_pages,
                 .max_pins = 4,
                 .max_append_tokens = table.longest_chunk * 3};
  game.longest_chunk = table.longest_chunk;
  game.seed = test::number_from_environment("KVARENA_SEED", kDefaultSeed);
  const std::uint64_t all = test::number_from_environment("KVARENA_MODEL_OPS", kDefaultOperations);
  game.operations = static_cast<std::int64_t>(all) * table.share / 1000;
  return game;
}

class BlockModelTest : public ::testing::TestWithParam<Table> {};

TEST_P(BlockModelTest, NothingDiffers) {
  const Game game = game_of(GetParam());
  ModelDriver driver(game);
  const std::string failure = driver.play();
  EXPECT_TRUE(failure.empty()) << failure << "\nAgain: KVARENA_SEED=" << game.seed
                               << " KVARENA_MODEL_OPS=<as before> model_tests --gtest_filter='*"
                               << game.name << "'";
}

INSTANTIATE_TEST_SUITE_P(Games, BlockModelTest, ::testing::ValuesIn(kTables),
                         [](const auto& game) { return std::string(game.param.name); });

TEST(BlockModelGames, AllOperationsArePlayed) {
  int shares = 0;
  for (const Table& table : kTables) shares += table.share;
  EXPECT_GE(shares, 990) << "the games' shares must add up to all operations";
}

// The games are worth nothing if some way to fail never happens in them.
TEST(BlockModelGames, EveryOutcomeHappens) {
  std::map<std::string, std::uint64_t> outcomes;
  for (const char* name :
       {"TinyManySharers", "FewTicketsFewFences", "FewHolders", "FewPages", "TinyPriority"}) {
    for (const Table& table : kTables) {
      if (table.name != std::string_view(name)) continue;
      Game game = game_of(table);
      game.seed = kDefaultSeed;
      game.operations = test::kSanitized ? 2'000 : 20'000;
      game.count_outcomes = true;
      ModelDriver driver(game);
      EXPECT_EQ(driver.play(), "");
      for (const auto& [outcome, count] : driver.outcomes()) outcomes[outcome] += count;
    }
  }
  if (test::kSanitized) return;  // fewer operations do not reach all
  for (const char* outcome : {
           "create_sequence: ok/none",
           "create_sequence: exhausted/sequence",
           "create_sequence: exhausted/holder",
           "create_sequence: invalid_argument/max_length_tokens",
           "fork: ok/none",
           "fork: not_found/sequence",
           "fork: invalid_argument/sequence_length",
           "fork: context_length_exceeded/sequence_length",
           "fork: exhausted/sequence",
           "fork: exhausted/holder",
           "fork: exhausted/table_page",
           "destroy: ok/none",
           "destroy: not_found/sequence",
           "destroy: not_found/ticket",
           "destroy: exhausted/fence_entry",
           "destroy_many: ok/none",
           "destroy_many: duplicate_argument/sequence",
           "destroy_many: not_found/sequence",
           "append: ok/none",
           "append: not_found/sequence",
           "append: duplicate_argument/sequence",
           "append: invalid_argument/num_tokens",
           "append: limit_exceeded/num_tokens",
           "append: context_length_exceeded/sequence_length",
           "append: exhausted/block",
           "append: exhausted/table_page",
           "reserve_capacity: ok/none",
           "reserve_capacity: exhausted/block",
           "reserve_capacity: invalid_argument/capacity",
           "reserve_capacity: context_length_exceeded/sequence_length",
           "promise_capacity: ok/none",
           "promise_capacity: exhausted/reservation",
           "truncate: ok/none",
           "truncate: invalid_argument/sequence_length",
           "truncate: not_found/ticket",
           "truncate: exhausted/fence_entry",
           "append: failed_precondition/sequence",
           "fork: failed_precondition/sequence",
           "truncate: failed_precondition/sequence",
           "import_sequence: ok/none",
           "import_sequence: invalid_argument/num_tokens",
           "import_sequence: invalid_argument/max_length_tokens",
           "import_sequence: context_length_exceeded/sequence_length",
           "import_sequence: exhausted/sequence",
           "import_sequence: exhausted/holder",
           "import_sequence: exhausted/block",
           "import_sequence: exhausted/table_page",
           "publish_import: ok/none",
           "publish_import: not_found/sequence",
           "publish_import: failed_precondition/sequence",
           "publish_import: failed_precondition/block",
           "fail_import: ok/none",
           "fail_import: failed_precondition/sequence",
           "pin: ok/none",
           "pin: not_found/sequence",
           "pin: failed_precondition/sequence",
           "pin: invalid_argument/block_index",
           "pin: invalid_argument/num_blocks",
           "pin: exhausted/holder",
           "pin: exhausted/table_page",
           "unpin: ok/none",
           "unpin: not_found/holder",
           "unpin: not_found/ticket",
           "unpin: exhausted/fence_entry",
           "set_deadline: ok/none",
           "set_deadline: not_found/sequence",
           "copy_rows: ok/none",
           "copy_rows: not_found/sequence",
           "view: ok/none",
           "view: not_found/sequence",
           "view: duplicate_argument/sequence",
           "lookup: invalid_argument/block_index",
           "slot_of: invalid_argument/token_index",
           "register_holder: ok/none",
           "register_holder: exhausted/holder",
           "unregister_holder: failed_precondition/holder",
           "unregister_holder: not_found/holder",
           "reserve: ok/none",
           "reserve: exhausted/reservation",
           "reserve: invalid_argument/reservation",
           "allocate: ok/none",
           "allocate: exhausted/block",
           "allocate: not_found/holder",
           "allocate: duplicate_argument/holder",
           "retain: ok/none",
           "retain: stale_handle/block",
           "retain: not_found/block",
           "retain: exhausted/block",
           "release: ok/none",
           "release_after: ok/none",
           "release_after: not_found/ticket",
           "release_after: exhausted/fence_entry",
           "release of a wrong handle: double_release/block",
           "release of a wrong handle: stale_handle/block",
           "release of a wrong handle: reference_underflow/holder",
           "release of a wrong handle: not_found/block",
           "release_after of a wrong handle: double_release/block",
           "set_content: ok/none",
           "set_content: failed_precondition/block",
           "set_content: double_release/block",
           "set_content: stale_handle/block",
           "set_retention: ok/none",
           "set_retention: unsupported/eviction",
           "set_retention: invalid_argument/priority",
           "set_retention: invalid_argument/expires_at",
           "set_retention: failed_precondition/block",
           "set_retention: stale_handle/block",
           "set_retention: double_release/block",
           "set_retention: not_found/block",
           "advance_clock: ok/none",
           "advance_clock: invalid_argument/clock",
           "advance_clock: unsupported/eviction",
           "quarantine: ok/none",
           "quarantine: exhausted/reservation",
           "restore: ok/none",
           "restore: failed_precondition/block",
           "open_ticket: ok/none",
           "open_ticket: exhausted/ticket",
           "retire: ok/none",
           "retire: not_found/ticket",
       }) {
    EXPECT_GT(outcomes[outcome], 0U) << outcome << " never happened";
  }
}

}  // namespace
}  // namespace kvarena::model
