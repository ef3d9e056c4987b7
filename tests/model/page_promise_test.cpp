// Sequences within the plan are never refused, whatever came before: random lives of sequences of
// real models, in a pool of exactly `pages_of` pages for each of them.
//
// KVARENA_SEED=<n> replays one seed; KVARENA_LIVES_OPS=<n> sets the operations of each model.

#include "kvarena/allocator/block_manager.hpp"
#include "kvarena/base/choose_pages.hpp"
#include "support/environment.hpp"
#include "support/process_memory.hpp"
#include "support/status_matchers.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <vector>

namespace kvarena::model {
namespace {

constexpr std::uint64_t kDefaultOperations = test::kSanitized ? 20'000 : 1'000'000;
constexpr std::int64_t kMaxTokens = 131'072;

struct LivesGame {
  const char* name;
  std::vector<PagedGroup> groups;
  std::int64_t longest;              // tokens of a sequence
  std::int64_t sequences;            // in the plan
  bool publishes = false;            // blocks stay cached when they are released
  std::int64_t rollback_tokens = 0;  // a sequence may get shorter by so many
  // A step takes so many blocks before others leave; the plan has their pages once more. 0: blocks
  // leave first.
  std::int64_t step_blocks = 0;
};

void PrintTo(const LivesGame& game, std::ostream* out) { *out << game.name; }

PagedGroup tokens_of(PagedKind kind, std::int32_t layers, std::int64_t token_bytes,
                     std::int64_t limit = 0, std::int32_t rollback = 0) {
  return {.kind = kind,
          .num_layers = layers,
          .layer_bytes = 16 * token_bytes,
          .limit_tokens = limit,
          .rollback_tokens = rollback};
}
PagedGroup state(std::int32_t layers, std::int64_t bytes) {
  return {.kind = PagedKind::state, .num_layers = layers, .layer_bytes = bytes};
}

constexpr auto kFull = PagedKind::full;
constexpr auto kWindow = PagedKind::window;

const std::vector<LivesGame> kLives = {
    {"Gemma", {tokens_of(kFull, 10, 8192), tokens_of(kWindow, 52, 8192, 1024)}, 8192, 7},
    {"GemmaPublishes",
     {tokens_of(kFull, 10, 8192), tokens_of(kWindow, 52, 8192, 1024)},
     3000,
     5,
     true},
    {"GemmaTakesBack",
     {tokens_of(kFull, 10, 8192), tokens_of(kWindow, 52, 8192, 1024, 100)},
     3000,
     5,
     false,
     100},
    {"GptOss", {tokens_of(kFull, 18, 2048), tokens_of(kWindow, 18, 2048, 128)}, 8192, 9},
    {"Llama4",
     {tokens_of(kFull, 12, 4096), tokens_of(PagedKind::chunk, 36, 4096, 8192)},
     20'000,
     3},
    // Five blocks a page in the second group: a window or a chunk begins anywhere in a page,
    // because a step takes its blocks before others leave.
    {"SmallChunks",
     {tokens_of(kFull, 10, 512), tokens_of(PagedKind::chunk, 2, 512, 112)},
     900,
     6,
     true,
     0,
     0},
    {"SmallChunksInSteps",
     {tokens_of(kFull, 10, 512), tokens_of(PagedKind::chunk, 2, 512, 112)},
     900,
     6,
     false,
     0,
     6},
    {"SmallWindows",
     {tokens_of(kFull, 10, 512), tokens_of(kWindow, 2, 512, 220)},
     900,
     6,
     true,
     0,
     0},
    {"SmallWindowsInSteps",
     {tokens_of(kFull, 10, 512), tokens_of(kWindow, 2, 512, 220)},
     900,
     6,
     true,
     0,
     1},
    {"SmallWindowsInLongSteps",
     {tokens_of(kFull, 10, 512), tokens_of(kWindow, 2, 512, 220, 40)},
     900,
     6,
     false,
     40,
     7},
    {"GemmaInSteps",
     {tokens_of(kFull, 10, 8192), tokens_of(kWindow, 52, 8192, 1024)},
     3000,
     5,
     true,
     0,
     1},
    {"Qwen3Next",
     {tokens_of(kFull, 12, 2048), state(36, 32 * 128 * 128 * 4 + 49152)},
     8192,
     11,
     true},
    {"Nemotron3", {tokens_of(kFull, 6, 1024), state(23, 64 * 64 * 128 * 4 + 36864)}, 8192, 12},
    {"DeepSeek", {tokens_of(kFull, 61, 1152)}, 8192, 6, false, 8192},
    {"Phi3", {tokens_of(kWindow, 32, 12288, 2047)}, 4096, 6},
    {"MiMo", {tokens_of(kFull, 9, 2560), tokens_of(kWindow, 39, 5120, 128)}, 1500, 12, true},
    {"Windows",
     {tokens_of(kWindow, 1, 512, 40, 20), tokens_of(kWindow, 5, 512, 200, 20),
      tokens_of(kFull, 2, 512, 0)},
     700,
     9,
     false,
     20},
};

/// One group of the pool: a part of an attention group, or all parts of a state.
struct PoolGroup {
  const PagedGroup* group;
  std::int64_t blocks_a_unit;  // the parts of a state
  std::int64_t blocks_per_page;
};

struct Sequence {
  HolderId holder;
  std::int64_t length = 0;
  struct Held {
    std::int64_t first = 0;  // number of the first block
    std::vector<BlockId> ids;
    std::vector<Generation> generations;
  };
  std::vector<Held> groups;
};

/// Sequences of a model that begin, grow, are cut and end at random.
class Lives {
 public:
  Lives(const LivesGame& game, std::uint64_t seed) : game_(game), random_(seed) {
    const PageChoice choice = choose_pages(game.groups, kMaxTokens).value();
    std::vector<BlockGroup> blocks;
    for (std::size_t g = 0; g < game.groups.size(); ++g) {
      const PagedBlocks& its = choice.groups[g];
      const bool is_state = game.groups[g].kind == PagedKind::state;
      for (std::int32_t part = 0; part < (is_state ? 1 : its.num_parts); ++part) {
        blocks.push_back({its.blocks_per_page, its.block_bytes});
        groups_.push_back({&game.groups[g], is_state ? its.num_parts : 1, its.blocks_per_page});
      }
      pages_of_one_ += pages_of(game.groups[g], its, game.longest);
    }
    pool_ = std::make_unique<BlockManager>(
        BlockManager::create({.num_blocks = game.sequences * pages_of_one_ + pages_of_step(),
                              .max_holders = static_cast<std::int32_t>(game.sequences),
                              .max_open_tickets = 1,
                              .max_fence_entries = 1,
                              .groups = blocks})
            .value());
  }

  void play(std::int64_t operations) {
    for (std::int64_t i = 0; i < operations && !::testing::Test::HasFailure(); ++i) {
      if (static_cast<std::int64_t>(live_.size()) < game_.sequences && random_() % 4 == 0) begin();
      if (live_.empty()) continue;
      const std::size_t which = random_() % live_.size();
      Sequence& s = live_[which];
      const bool is_longest = s.length == game_.longest;
      const std::uint64_t kind = random_() % 64;
      if (kind == 0 || (is_longest && kind < 4)) {
        end(which);
      } else if (kind < 8) {
        cut(s);
      } else {
        grow(s, kind < 16 ? game_.longest / 4 : kind < 40 ? 16 : 100);
      }
      if (i % 512 == 0) expect_pages_within_bounds();
      if (i % 8192 == 0) {
        EXPECT_OK(pool_->check_invariants());
      }
    }
  }
  std::int64_t num_pages() const { return pool_->num_pages(); }
  std::int64_t peak_used() const { return pool_->page_stats().peak_used; }
  std::int64_t page_turns() const { return static_cast<std::int64_t>(pool_->page_stats().turned); }

 private:
  std::int64_t pages_of_step() const {
    std::int64_t pages = 0;
    for (const PoolGroup& group : groups_) {
      pages += (game_.step_blocks + group.blocks_per_page - 1) / group.blocks_per_page;
    }
    return pages;
  }

  void begin() {
    Sequence s;
    s.holder = pool_->register_holder({.purpose = "life"}).value();
    s.groups.resize(groups_.size());
    live_.push_back(std::move(s));
    grow(live_.back(), 1);
  }

  /// Gives up what a sequence of that length does not keep.
  void give_up(Sequence& s, std::int64_t length) {
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      const std::int64_t first = retained(*groups_[g].group, length).first_block;
      Sequence::Held& held = s.groups[g];
      if (first <= held.first) continue;
      const std::int64_t unit = groups_[g].blocks_a_unit;
      const std::int64_t size = static_cast<std::int64_t>(held.ids.size()) / unit;
      release(held, 0, unit * std::min(first - held.first, size));
      held.first = first;
    }
    release_now(s);
  }

  /// Moves every group's blocks to what a sequence of that length keeps.
  void move_to(Sequence& s, std::int64_t length) {
    if (game_.step_blocks == 0) give_up(s, length);
    demands_.clear();
    std::size_t count = 0;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      const Sequence::Held& held = s.groups[g];
      const std::int64_t wanted = retained(*groups_[g].group, length).end_block - held.first;
      const std::int64_t more =
          groups_[g].blocks_a_unit * wanted - static_cast<std::int64_t>(held.ids.size());
      demands_.push_back({.holder = s.holder,
                          .count = static_cast<std::uint32_t>(std::max<std::int64_t>(0, more)),
                          .group = static_cast<std::int32_t>(g)});
      count += demands_.back().count;
    }
    ids_.resize(count);
    generations_.resize(count);
    const Result<std::int64_t> taken = pool_->allocate_each(demands_, ids_, generations_);
    ASSERT_TRUE(taken.is_ok()) << describe(taken.status()) << "\n"
                               << to_string(pool_->explain(taken.status()));
    std::size_t first = 0;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      Sequence::Held& held = s.groups[g];
      for (std::size_t i = first; i < first + demands_[g].count; ++i) {
        held.ids.push_back(ids_[i]);
        held.generations.push_back(generations_[i]);
        if (!game_.publishes || random_() % 2 == 0) continue;
        static_cast<void>(pool_->set_content(ids_[i], generations_[i], BlockContent::published));
      }
      first += demands_[g].count;
    }
    s.length = length;
    if (game_.step_blocks > 0) give_up(s, length);
  }

  /// Notes the blocks first .. end - 1 of a group for release_now.
  void release(Sequence::Held& held, std::int64_t first, std::int64_t end) {
    const auto from = static_cast<std::ptrdiff_t>(first);
    const auto to = static_cast<std::ptrdiff_t>(end);
    out_ids_.insert(out_ids_.end(), held.ids.begin() + from, held.ids.begin() + to);
    out_generations_.insert(out_generations_.end(), held.generations.begin() + from,
                            held.generations.begin() + to);
    held.ids.erase(held.ids.begin() + from, held.ids.begin() + to);
    held.generations.erase(held.generations.begin() + from, held.generations.begin() + to);
  }
  void release_now(const Sequence& s) {
    if (out_ids_.empty()) return;
    EXPECT_OK(pool_->release(s.holder, out_ids_, out_generations_));
    out_ids_.clear();
    out_generations_.clear();
  }

  /// Grows block by block, as steps do: what leaves a window is given up before the next block.
  void grow(Sequence& s, std::int64_t most) {
    const std::int64_t by =
        1 + static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(most));
    const std::int64_t length = std::min(game_.longest, s.length + by);
    while (s.length < length && !::testing::Test::HasFailure()) {
      const std::int64_t blocks =
          1 + (game_.step_blocks == 0
                   ? 0
                   : static_cast<std::int64_t>(random_() %
                                               static_cast<std::uint64_t>(game_.step_blocks)));
      move_to(s, std::min(length, (s.length / 16 + blocks) * 16));
    }
  }

  void cut(Sequence& s) {
    if (game_.rollback_tokens == 0) return grow(s, 1);
    const auto most = static_cast<std::uint64_t>(std::min(game_.rollback_tokens, s.length - 1));
    if (most == 0) return;
    const std::int64_t length = s.length - static_cast<std::int64_t>(random_() % (most + 1));
    // A window keeps what it had; blocks in front are not had again.
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      Sequence::Held& held = s.groups[g];
      const std::int64_t wanted = retained(*groups_[g].group, length).end_block;
      const std::int64_t end = held.first + static_cast<std::int64_t>(held.ids.size());
      if (groups_[g].group->kind != PagedKind::state && end > wanted) {
        release(held, wanted - held.first, end - held.first);
      }
    }
    release_now(s);
    s.length = length;
  }

  void end(std::size_t which) {
    Sequence& s = live_[which];
    for (Sequence::Held& held : s.groups) {
      release(held, 0, static_cast<std::int64_t>(held.ids.size()));
    }
    if (random_() % 2 == 0) {  // in an order of its own
      const std::uint64_t seed = random_();
      std::shuffle(out_ids_.begin(), out_ids_.end(), std::mt19937_64(seed));
      std::shuffle(out_generations_.begin(), out_generations_.end(), std::mt19937_64(seed));
    }
    release_now(s);
    EXPECT_OK(pool_->unregister_holder(s.holder));
    live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(which));
  }

  /// No sequence touches more pages of a group than its blocks may.
  void expect_pages_within_bounds() {
    for (const Sequence& s : live_) {
      for (std::size_t g = 0; g < groups_.size(); ++g) {
        pages_.clear();
        for (const BlockId id : s.groups[g].ids) pages_.push_back(pool_->place_of(id).page);
        std::ranges::sort(pages_);
        const auto touched = std::ranges::unique(pages_).begin() - pages_.begin();
        EXPECT_LE(touched, pages_of(groups_[g].group->kind,
                                    static_cast<std::int64_t>(s.groups[g].ids.size()),
                                    groups_[g].blocks_per_page))
            << "group " << g << " with " << s.groups[g].ids.size() << " blocks";
      }
    }
  }

  const LivesGame& game_;
  std::mt19937_64 random_;
  std::vector<PoolGroup> groups_;
  std::int64_t pages_of_one_ = 0;
  std::unique_ptr<BlockManager> pool_;
  std::vector<Sequence> live_;
  std::vector<HolderDemand> demands_;
  std::vector<BlockId> ids_;
  std::vector<Generation> generations_;
  std::vector<BlockId> out_ids_;
  std::vector<Generation> out_generations_;
  std::vector<std::int32_t> pages_;
};

class PagePromise : public ::testing::TestWithParam<LivesGame> {};

TEST_P(PagePromise, NoSequenceWithinThePlanIsRefused) {
  const std::uint64_t seed = test::number_from_environment("KVARENA_SEED", 20261123);
  const auto operations = static_cast<std::int64_t>(
      test::number_from_environment("KVARENA_LIVES_OPS", kDefaultOperations));
  Lives lives(GetParam(), seed);
  lives.play(operations);
  RecordProperty("pages", std::to_string(lives.num_pages()));
  RecordProperty("peak", std::to_string(lives.peak_used()));
  EXPECT_GT(lives.page_turns(), lives.num_pages());
  EXPECT_FALSE(HasFailure()) << "KVARENA_SEED=" << seed;
}

INSTANTIATE_TEST_SUITE_P(, PagePromise, ::testing::ValuesIn(kLives),
                         [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace kvarena::model
