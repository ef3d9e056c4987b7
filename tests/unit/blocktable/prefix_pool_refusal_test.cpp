// What a prefix pool refuses, and that a refused call changes nothing.

#include "unit/blocktable/prefix_pool_fixture.hpp"

#include <cstring>
#include <limits>
#include <string>

namespace kvarena::test {
namespace {

class PrefixPoolRefusalTest : public PrefixPoolTest {
 protected:
  /// Everything that calls can change, as text.
  std::string all() {
    const PrefixStats s = stats();
    std::string text = std::to_string(s.registered) + " " + std::to_string(s.published) + " " +
                       std::to_string(s.registrations) + " " + std::to_string(s.removals) + " " +
                       std::to_string(s.queries) + " " + std::to_string(s.duplicates);
    for (std::int32_t i = 0; i < manager_->num_blocks(); ++i) {
      const BlockId id(i);
      text += " " + std::to_string(static_cast<int>(manager_->content(id))) + "," +
              std::to_string(manager_->reference_count(id)) + "," +
              std::to_string(manager_->generation(id).value);
    }
    return text;
  }
  /// Registers `count` blocks from number `from` of a line.
  Result<std::int64_t> add(PrefixPosition& at, const Line& line, std::size_t from,
                           std::size_t count) {
    return pool_->register_blocks(at, std::span(line.tokens).subspan(from * kSize, count * kSize),
                                  std::span(line.ids).subspan(from, count),
                                  std::span(line.generations).subspan(from, count), line.keys);
  }
  /// Refuses to register all of a line there, and changes nothing.
  Status refusal(PrefixPosition at, const Line& line) {
    const std::string before = all();
    const PrefixPosition place = at;
    const Status status = add(at, line, 0, line.tokens.size() / kSize).status();
    EXPECT_EQ(all(), before);
    EXPECT_EQ(std::memcmp(&at, &place, sizeof at), 0);
    expect_whole();
    return status;
  }
};

TEST_F(PrefixPoolRefusalTest, OptionsOfTablesAlone) {
  const auto made = [&](const PrefixOptions& options) {
    return PrefixPool::create(*manager_, {.prefix = options}).status();
  };
  EXPECT_REFUSES(made({.duplicates = DuplicateRule::share}), unsupported, duplicates);
  EXPECT_REFUSES(made({.max_accounts = 3}), unsupported, max_accounts);
  EXPECT_REFUSES(made({.share_parts = true}), unsupported, share_parts);
  EXPECT_REFUSES(made({.max_extra_keys = 32}), invalid_argument, max_extra_keys);
  EXPECT_REFUSES(made({.history_entries = -1}), invalid_argument, history_entries);
  EXPECT_REFUSES(made({.ghost_blocks = 1}), invalid_argument, ghost_blocks);
  EXPECT_REFUSES(PrefixPool::create(*manager_, {.block_size_tokens = 0}), invalid_argument,
                 block_size_tokens);
  const BlockGroup groups[] = {{}, {}};
  BlockManager grouped = BlockManager::create({.num_blocks = 8, .groups = groups}).value();
  EXPECT_FAILS(PrefixPool::create(grouped, {}), unsupported, num_groups);
}

TEST_F(PrefixPoolRefusalTest, PositionsOfOthers) {
  Line line = begin(tokens(8));
  EXPECT_FAILS(refusal({}, line), not_found, sequence);
  BlockManager other_manager = BlockManager::create({.num_blocks = 16}).value();
  PrefixPool other =
      PrefixPool::create(other_manager, {.block_size_tokens = 4, .prefix = {.hash_key = {7, 11}}})
          .value();
  EXPECT_FAILS(refusal(other.begin(), line), not_found, sequence);
  PrefixPosition forged = pool_->begin(1);
  forged.salt = 2;
  EXPECT_FAILS(refusal(forged, line), not_found, sequence);
  forged = pool_->begin();
  forged.blocks = 1;
  EXPECT_FAILS(refusal(forged, line), not_found, sequence);
  forged.last = BlockId(99);
  EXPECT_FAILS(refusal(forged, line), not_found, sequence);
  forged.last = BlockId(-7);
  EXPECT_FAILS(refusal(forged, line), not_found, sequence);
}

TEST_F(PrefixPoolRefusalTest, PositionsBehindBlocksThatAreGone) {
  Line one = computed(tokens(8));
  Line two = begin(tokens(16, 50));
  PrefixPosition swapped = one.position;
  swapped.chain[0] ^= 1U;
  EXPECT_FAILS(refusal(swapped, two), not_found, sequence);
  EXPECT_OK(pool_->forget(std::span(one.ids).last(1)));
  EXPECT_FAILS(refusal(one.position, two), stale_handle, block);
  // The block is registered again, for the same tokens: a new registration.
  PrefixPosition anew = pool_->begin();
  EXPECT_OK(add(anew, one, 0, 2));
  EXPECT_FAILS(refusal(one.position, two), stale_handle, block);
  EXPECT_OK(add(anew, two, 0, 4));
}

TEST_F(PrefixPoolRefusalTest, APositionBehindABlockThatOthersTook) {
  Line one = begin(tokens(8));
  EXPECT_OK(register_rest(one));
  EXPECT_OK(manager_->release(one.holder, one.ids, one.generations));  // not told
  Line two = begin(tokens(8, 50));
  PrefixPosition at = one.position;
  EXPECT_FALSE(add(at, two, 0, 2).is_ok());
  EXPECT_EQ(add(at, two, 0, 2).status().code, StatusCode::stale_handle);
  EXPECT_EQ(stats().registered, 0) << "the same blocks were handed out, and looked at";
}

TEST_F(PrefixPoolRefusalTest, APositionBehindABlockOfAnotherContent) {
  Line line = begin(tokens(12));
  PrefixPosition at = pool_->begin();
  EXPECT_OK(add(at, line, 0, 1));
  EXPECT_OK(manager_->set_content(line.ids[0], line.generations[0], BlockContent::failed));
  EXPECT_FAILS(add(at, line, 1, 1), stale_handle, block);
  EXPECT_EQ(stats().registered, 1) << "nobody has told";
  pool_->notice(line.ids);
  EXPECT_EQ(stats().registered, 0);
}

/// The contents of all its blocks are registered, as blocks of others.
TEST_F(PrefixPoolRefusalTest, ABlockThatIsNamedTwiceBesideItsEqual) {
  Line first = begin(tokens(12));
  EXPECT_OK(register_rest(first));
  Line second = begin(tokens(12));
  second.ids[1] = second.ids[0];
  second.generations[1] = second.generations[0];
  EXPECT_FAILS(refusal(pool_->begin(), second), duplicate_argument, block);
  second.ids[0] = second.ids[1] = first.ids[2];
  second.generations[0] = second.generations[1] = first.generations[2];
  EXPECT_FAILS(refusal(pool_->begin(), second), duplicate_argument, block);
  EXPECT_OK(pool_->check_invariants());
  EXPECT_OK(pool_->publish(first.ids, first.generations));
}

TEST_F(PrefixPoolRefusalTest, HandlesThatAreNotBlocksOfTheCaller) {
  Line line = begin(tokens(12));
  Line changed = line;
  changed.ids[2] = BlockId(16);
  EXPECT_FAILS(refusal(pool_->begin(), changed), not_found, block);
  changed.ids[2] = BlockId(-1);
  EXPECT_FAILS(refusal(pool_->begin(), changed), not_found, block);
  changed = line;
  ++changed.generations[1].value;
  EXPECT_FAILS(refusal(pool_->begin(), changed), stale_handle, block);
  changed = line;
  changed.ids[2] = changed.ids[0];
  changed.generations[2] = changed.generations[0];
  EXPECT_FAILS(refusal(pool_->begin(), changed), duplicate_argument, block);
  changed = line;
  changed.ids[2] = BlockId(15);  // nobody holds it
  changed.generations[2] = manager_->generation(BlockId(15));
  EXPECT_FAILS(refusal(pool_->begin(), changed), failed_precondition, block);
  EXPECT_OK(register_rest(line));
  changed = line;
  changed.tokens = tokens(12, 70);
  EXPECT_FAILS(refusal(pool_->begin(), changed), failed_precondition, block);
  Line half = begin(tokens(12));
  half.ids[2] = line.ids[0];  // registered for the first tokens, and named for the last
  half.generations[2] = line.generations[0];
  half.tokens[11] = 99;
  EXPECT_FAILS(refusal(pool_->begin(), half), failed_precondition, block);
}

TEST_F(PrefixPoolRefusalTest, ContentsThatOthersSet) {
  Line line = begin(tokens(8));
  EXPECT_OK(manager_->set_content(line.ids[1], line.generations[1], BlockContent::failed));
  EXPECT_FAILS(refusal(pool_->begin(), line), failed_precondition, block);
  EXPECT_OK(manager_->set_content(line.ids[1], line.generations[1], BlockContent::unwritten));
  EXPECT_EQ(register_rest(line).value(), 2);
}

TEST_F(PrefixPoolRefusalTest, NumbersThatDoNotFit) {
  Line line = begin(tokens(8));
  PrefixPosition at = pool_->begin();
  EXPECT_FAILS(
      pool_->register_blocks(at, std::span(line.tokens).first(7), line.ids, line.generations),
      invalid_argument, num_tokens);
  EXPECT_FAILS(
      pool_->register_blocks(at, line.tokens, line.ids, std::span(line.generations).first(1)),
      invalid_argument, span_size);
  line.keys = {{.key = 1, .first_token = 3}, {.key = 1, .first_token = 2}};
  EXPECT_REFUSES(refusal(at, line), invalid_argument, first_token);
  line.keys = {{.key = 1}, {.key = 2}, {.key = 3}};
  EXPECT_REFUSES(refusal(at, line), invalid_argument, extra_keys);
  line.keys.clear();
  EXPECT_OK(add(at, line, 0, 1));
  line.keys = {{.key = 1}};  // begins before the position, which has none
  EXPECT_REFUSES(add(at, line, 1, 1), invalid_argument, extra_keys);
  EXPECT_EQ(pool_->register_blocks(at, {}, {}, {}).value(), 0);
  EXPECT_EQ(at.blocks, 1);
  at.blocks = std::numeric_limits<std::int32_t>::max() / kSize;
  line.keys.clear();
  EXPECT_FAILS(add(at, line, 1, 1), invalid_argument, num_tokens);
}

TEST_F(PrefixPoolRefusalTest, Adoptions) {
  Line one = computed(tokens(12));
  end(one);
  const HolderId holder = manager_->register_holder({}).value();
  Ids ids(3);
  std::vector<Generation> generations(3);
  const std::string before = all();
  EXPECT_FAILS(pool_->adopt(HolderId(99), {tokens(13)}, ids, generations), not_found, holder);
  EXPECT_FAILS(pool_->adopt(HolderId(99), {tokens(3)}, ids, generations), not_found, holder);
  EXPECT_FAILS(pool_->adopt(holder, {tokens(13)}, std::span(ids).first(2), generations),
               invalid_argument, span_size);
  EXPECT_FAILS(pool_->adopt(holder, {tokens(13)}, ids, std::span(generations).first(2)),
               invalid_argument, span_size);
  EXPECT_FAILS(pool_->adopt(holder, {tokens(5)}, ids, std::span(generations).first(2)),
               invalid_argument, span_size);
  const std::vector<ExtraKey> keys = {{.key = 1, .first_token = -1}};
  EXPECT_REFUSES(pool_->adopt(holder, {tokens(13), 0, keys}, ids, generations), invalid_argument,
                 first_token);
  const HolderId other = manager_->register_holder({}).value();
  EXPECT_OK(manager_->reserve(other, 14));
  EXPECT_FAILS(pool_->adopt(holder, {tokens(13)}, ids, generations), exhausted, block);
  EXPECT_EQ(all(), before);
  EXPECT_OK(manager_->reserve(other, 13));
  EXPECT_EQ(pool_->adopt(holder, {tokens(13)}, ids, generations)->found.blocks, 3);
}

TEST_F(PrefixPoolRefusalTest, PublishedAndForgottenBlocks) {
  Line line = begin(tokens(8));
  EXPECT_OK(register_rest(line));
  const std::string before = all();
  Line changed = line;
  ++changed.generations[1].value;
  EXPECT_FAILS(publish(changed), stale_handle, block);
  changed = line;
  changed.ids[1] = BlockId(16);
  EXPECT_FAILS(publish(changed), not_found, block);
  EXPECT_FAILS(pool_->publish(line.ids, std::span(line.generations).first(1)), invalid_argument,
               span_size);
  EXPECT_FAILS(pool_->forget(changed.ids), not_found, block);
  EXPECT_EQ(all(), before);
  EXPECT_EQ(publish(line).value(), 2);
}

}  // namespace
}  // namespace kvarena::test
