// The events of a prefix cache are enough to know elsewhere what it has.

#include "unit/blocktable/prefix_fixture.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <utility>
#include <vector>

namespace kvarena::test {
namespace {

/// An index that is rebuilt from events alone.
class Mirror {
 public:
  static void tell(const PrefixEvent& event, void* context) {
    static_cast<Mirror*>(context)->take(event);
  }

  std::int64_t size() const { return std::ssize(blocks_); }
  std::uint64_t events() const { return last_number_; }
  std::int64_t removed() const { return removed_; }
  /// The blocks of the longest stored prefix of a query.
  std::vector<BlockId> match(const PrefixQuery& query, std::int64_t block_size) const {
    std::vector<BlockId> found;
    BlockId parent = kNoBlock;
    const std::int64_t most = (std::ssize(query.tokens) - 1) / block_size;  // one is left
    for (std::int64_t b = 0; b < most; ++b) {
      const auto its = query.tokens.subspan(static_cast<std::size_t>(b * block_size),
                                            static_cast<std::size_t>(block_size));
      Keys keys;
      for (const ExtraKey& key : query.extra_keys) {
        if (key.first_token / block_size == b) {
          keys.emplace_back(key.key, key.first_token % block_size);
        }
      }
      const auto at = std::find_if(blocks_.begin(), blocks_.end(), [&](const auto& pair) {
        const Block& block = pair.second;
        return block.parent == parent && block.salt == query.salt && block.keys == keys &&
               std::equal(its.begin(), its.end(), block.tokens.begin(), block.tokens.end());
      });
      if (at == blocks_.end()) break;
      parent = at->first;
      found.push_back(parent);
    }
    return found;
  }

 private:
  using Keys = std::vector<std::pair<std::uint64_t, std::int64_t>>;  // first token in the block
  struct Block {
    BlockId parent;
    std::uint64_t salt;
    std::vector<std::int32_t> tokens;
    Keys keys;
  };

  void take(const PrefixEvent& event) {
    EXPECT_EQ(event.number, ++last_number_) << "no gap";
    switch (event.kind) {
      case PrefixEventKind::stored:
        EXPECT_FALSE(blocks_.contains(event.block));
        blocks_[event.block] = {
            event.parent, event.salt, {event.tokens.begin(), event.tokens.end()}, {}};
        for (const ExtraKey& key : event.extra_keys) {
          blocks_[event.block].keys.emplace_back(key.key, key.first_token);
        }
        break;
      case PrefixEventKind::removed:
        EXPECT_EQ(blocks_.erase(event.block), 1U);
        ++removed_;
        break;
      case PrefixEventKind::cleared: blocks_.clear(); break;
    }
  }

  std::map<BlockId, Block> blocks_;
  std::uint64_t last_number_ = 0;
  std::int64_t removed_ = 0;
};

class PrefixEventsTest : public PrefixTest {
 protected:
  void create_told(DuplicateRule duplicates, std::int64_t num_blocks = 16) {
    create({.num_blocks = num_blocks, .max_holders = 64},
           {.block_size_tokens = 2,
            .max_sequences = 8,
            .prefix_cache = {.is_on = true,
                             .hash_key = {7, 11},
                             .max_extra_keys = 2,
                             .duplicates = duplicates,
                             .max_accounts = 1,
                             .events = {Mirror::tell, &mirror_}}});
  }
  /// The mirror says of a query what the tables say.
  void expect_same(const PrefixQuery& query) {
    const PrefixMatch real = tables().match(query).value();
    const std::vector<BlockId> told = mirror_.match(query, 2);
    ASSERT_EQ(std::ssize(told), real.blocks);
    if (told.empty() || tables().stats().sequences == 8) return;
    const SequenceId probe =
        tables()
            .create_sequence({.tokens = query.tokens.first(told.size() * 2 + 1),
                              .salt = query.salt,
                              .extra_keys = query.extra_keys})
            .value();
    for (std::size_t b = 0; b < told.size(); ++b) {
      EXPECT_EQ(tables().lookup(probe, static_cast<std::int64_t>(b)).value(), told[b]);
    }
    EXPECT_OK(tables().destroy(probe));
  }

  Mirror mirror_;  // outlives the tables: the fixture resets them first
};

TEST_F(PrefixEventsTest, StoredAtPublishRemovedWithTheBlockCleared) {
  create_told(DuplicateRule::duplicate);
  const SequenceId id = begin(tokens(6), 3);
  append_rest(id, tokens(6));
  EXPECT_EQ(mirror_.events(), 0U) << "what is being written cannot be found";
  EXPECT_OK(tables().publish(id, 4));
  EXPECT_EQ(mirror_.events(), 2U);
  EXPECT_EQ(mirror_.size(), 2);
  EXPECT_OK(tables().destroy(id));
  EXPECT_EQ(mirror_.events(), 2U) << "the third was never published";
  EXPECT_EQ(std::ssize(mirror_.match({.tokens = tokens(6), .salt = 3}, 2)), 2);
  EXPECT_EQ(std::ssize(mirror_.match({.tokens = tokens(6), .salt = 4}, 2)), 0);
  EXPECT_OK(tables().forget_salt(3));
  EXPECT_EQ(mirror_.size(), 0);
  EXPECT_EQ(mirror_.removed(), 2);
  EXPECT_OK(tables().destroy(computed(tokens(6), 3)));
  EXPECT_OK(tables().forget_all());
  EXPECT_EQ(mirror_.size(), 0);
  EXPECT_EQ(mirror_.removed(), 2) << "one event clears all";
  EXPECT_EQ(mirror_.events(), 8U);
  EXPECT_EQ(name_of(PrefixEventKind::stored), "stored");
  EXPECT_EQ(name_of(PrefixEventKind::cleared), "cleared");
  tables_.reset();
}

TEST_F(PrefixEventsTest, AnIndexRebuiltFromThemIsTheSame) {
  for (const DuplicateRule rule : {DuplicateRule::duplicate, DuplicateRule::share}) {
    std::mt19937_64 random(17);
    const auto below = [&random](std::uint64_t end) { return random() % end; };
    tables_.reset();
    mirror_ = {};
    create_told(rule);
    EXPECT_OK(tables().set_salt_limits(0, {.floor_blocks = 2, .cap_blocks = 5}));
    std::vector<SequenceId> living;
    std::vector<Tokens> prompts;
    for (int round = 0; round < 4000; ++round) {
      Tokens list(1 + below(12));
      for (std::int32_t& token : list) token = static_cast<std::int32_t>(below(2));
      const std::uint64_t salt = below(2);
      const std::array<ExtraKey, 1> key{
          {{.key = below(2), .first_token = static_cast<std::int64_t>(2 + below(3))}}};
      const auto keys = std::span<const ExtraKey>(key).first(below(3) == 0 ? 1 : 0);
      switch (below(6)) {
        case 0:
        case 1: {
          const Result<SequenceId> id =
              tables().create_sequence({.tokens = list, .salt = salt, .extra_keys = keys});
          if (!id) break;
          const auto rest = std::span(list).subspan(static_cast<std::size_t>(length(*id)));
          const AppendDemand demand{*id, static_cast<std::int32_t>(rest.size()), {}, rest};
          static_cast<void>(tables().append(std::span(&demand, 1)));
          living.push_back(*id);
          break;
        }
        case 2:
          if (!living.empty()) {
            EXPECT_OK(tables().publish(living[below(living.size())]));
          }
          break;
        case 3: {
          if (living.empty()) break;
          const std::size_t which = below(living.size());
          EXPECT_OK(tables().destroy(living[which]));
          living.erase(living.begin() + static_cast<std::ptrdiff_t>(which));
          break;
        }
        case 4:
          if (!living.empty()) {
            const SequenceId id = living[below(living.size())];
            EXPECT_OK(tables().truncate(
                id, static_cast<std::int64_t>(below(static_cast<std::uint64_t>(length(id)) + 1))));
          }
          break;
        default:
          if (below(40) == 0) {
            EXPECT_OK(tables().forget_all());
          }
          if (below(40) == 0) {
            EXPECT_OK(tables().forget_salt(salt));
          }
      }
      ASSERT_EQ(mirror_.size(), stats().published) << "round " << round;
      expect_same({list, salt, keys});
      if (HasFatalFailure()) return;
    }
    EXPECT_GT(mirror_.removed(), 100);
    EXPECT_GT(stats().removals_by[static_cast<std::size_t>(PrefixRemoval::over_cap)], 0U);
  }
  tables_.reset();
}

/// With groups, events tell of the registered group: a mirror knows how far a prefix is registered.
/// A sequence begins there or earlier, where every group has what it needs.
TEST_F(PrefixEventsTest, OfGroupsTheMirrorKnowsHowFarAPrefixIsRegistered) {
  const TableGroup full{.block_size_tokens = 2};
  const TableGroup window{PagedKind::window, 2, 4};
  const std::vector<BlockGroup> blocks(2, {1, 64});
  create(
      {.num_blocks = 16, .groups = blocks},
      {.max_sequences = 8,
       .can_undo = true,
       .groups = std::array{full, window},
       .prefix_cache = {.is_on = true, .hash_key = {7, 11}, .events = {Mirror::tell, &mirror_}}});
  std::mt19937_64 random(23);
  std::int64_t shorter = 0;
  for (int round = 0; round < 3000; ++round) {
    Tokens list(1 + random() % 12);
    for (std::int32_t& token : list) token = static_cast<std::int32_t>(random() % 2);
    const PrefixMatch real = match(list);
    ASSERT_EQ(std::ssize(mirror_.match({.tokens = list}, 2)) * 2, real.registered_tokens);
    ASSERT_LE(real.tokens, real.registered_tokens);
    if (real.tokens < real.registered_tokens) ++shorter;
    const Result<SequenceId> id = tables().create_sequence({.tokens = list});
    if (!id) continue;
    while (length(*id) < std::ssize(list)) {  // a token a step, so that windows leave blocks behind
      const auto next = std::span(list).subspan(static_cast<std::size_t>(length(*id)), 1);
      const AppendDemand demand{*id, 1, {}, next};
      if (!tables().append(std::span(&demand, 1))) break;
      EXPECT_OK(tables().publish(*id));
      tables().settle_append();
    }
    EXPECT_OK(tables().destroy(*id));
    ASSERT_EQ(mirror_.size(), stats().published) << "round " << round;
  }
  EXPECT_GT(shorter, 0);
  EXPECT_GT(mirror_.removed(), 100);
  tables_.reset();
}

}  // namespace
}  // namespace kvarena::test
