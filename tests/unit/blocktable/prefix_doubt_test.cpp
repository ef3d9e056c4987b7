// Tokens that may be unwritten: no block with one of them is registered.

#include "unit/blocktable/prefix_fixture.hpp"

#include <gtest/gtest.h>

#include <span>

namespace kvarena::test {
namespace {

using PrefixDoubtTest = PrefixTest;

TEST_F(PrefixDoubtTest, DoubtfulTokensAreRegisteredByNobody) {
  create_cache({});
  const Tokens list = tokens(16);
  const SequenceId id = begin(list);
  const AppendDemand demand{id, 6, {}, std::span(list).first(6)};
  EXPECT_OK(tables().append(std::span(&demand, 1)));
  EXPECT_OK(tables().distrust_tokens(id, 5));
  EXPECT_EQ(tables().info(id)->known_tokens, 5);
  EXPECT_EQ(tables().info(id)->registered_blocks, 1);
  append_rest(id, list);
  EXPECT_OK(tables().register_tokens(id, std::span(list).subspan(5)));
  EXPECT_OK(tables().publish(id));
  EXPECT_EQ(match(list).blocks, 1) << "the block before the doubtful tokens";
  const SequenceId with = tables().fork(id, 8).value();
  const SequenceId without = tables().fork(id, 5).value();
  for (const SequenceId fork : {with, without}) {
    const Tokens others = tokens(16, 100);
    append_rest(fork, others);
    EXPECT_OK(tables().publish(fork));
  }
  EXPECT_EQ(tables().info(with)->registered_blocks, 1);
  EXPECT_EQ(tables().info(without)->registered_blocks, 4);
  expect_whole();
}

TEST_F(PrefixDoubtTest, ACutBelowTheDoubtfulTokensEndsTheDoubt) {
  create_cache({.can_undo = true});
  const Tokens list = tokens(16);
  const SequenceId id = begin(list);
  append_rest(id, list);
  EXPECT_OK(tables().distrust_tokens(id, 16)) << "no token is doubtful";
  EXPECT_OK(tables().distrust_tokens(id, 6));
  EXPECT_OK(tables().distrust_tokens(id, 10));
  EXPECT_OK(tables().truncate(id, 7));
  append_rest(id, list);
  EXPECT_OK(tables().publish(id));
  EXPECT_EQ(match(list).blocks, 1);
  EXPECT_OK(tables().truncate(id, 6));
  EXPECT_OK(tables().withdraw_tokens(id, 6));
  append_rest(id, list);
  EXPECT_OK(tables().publish(id));
  EXPECT_EQ(tables().prefix_stats().published, 4);
  EXPECT_OK(tables().distrust_tokens(id, 14)) << "its last block is published and stays so";
  EXPECT_OK(tables().withdraw_tokens(id, 14));
  EXPECT_OK(tables().truncate(id, 15));
  EXPECT_EQ(tables().info(id)->known_tokens, 14);
  EXPECT_REFUSED(tables().distrust_tokens(id, 16), invalid_argument, sequence_length);
  EXPECT_REFUSED(tables().distrust_tokens(id, -1), invalid_argument, sequence_length);
  EXPECT_REFUSED(tables().distrust_tokens(SequenceId(1), 0), not_found, sequence);
  expect_whole();
}

TEST_F(PrefixDoubtTest, AnUndoneAppendTakesItsDoubtWithIt) {
  create_cache({.can_undo = true});
  const Tokens list = tokens(16);
  const SequenceId id = begin(list);
  const AppendDemand demand{id, 6, {}, std::span(list).first(6)};
  EXPECT_OK(tables().append(std::span(&demand, 1)));
  append_rest(id, list);
  EXPECT_OK(tables().distrust_tokens(id, 6));
  EXPECT_OK(tables().undo_append(true));
  append_rest(id, list);
  EXPECT_OK(tables().publish(id));
  EXPECT_EQ(tables().prefix_stats().published, 4);
  expect_whole();
}

}  // namespace
}  // namespace kvarena::test
