// What BlockTables::explain says would come back is what comes back.

#include "block_tables_fixture.hpp"

#include <array>
#include <random>

namespace kvarena {
namespace {

class TableExplainTest : public test::BlockTablesTest {
 protected:
  /// Ends the largest holders one after the other, as explain lists them, and compares what each
  /// brought back with what was said.
  void expect_true_promises(std::int64_t requested) {
    const auto before = picture();
    const Explanation e = tables().explain(requested);
    EXPECT_EQ(picture(), before) << "a question changes nothing";
    EXPECT_OK(tables().check_invariants());
    EXPECT_OK(manager().check_invariants());
    const std::int64_t usable = e.stats.free + e.stats.evictable - e.stats.reserved;
    for (std::size_t i = 0; i < e.num_largest; ++i) {
      ASSERT_OK(tables().destroy(SequenceId(e.largest[i].number)));
      const BlockStats now = manager().stats();
      EXPECT_EQ(now.free + now.evictable - now.reserved - usable, e.returning[i]) << "holder " << i;
    }
  }
};

TEST_F(TableExplainTest, BeamsThatShareNearlyAllReturnLittleUntilTheLastEnds) {
  create(20, 4);
  const SequenceId root = sequence(40);
  for (int i = 0; i < 3; ++i) {
    const SequenceId beam = tables().fork(root, 40).value();
    ASSERT_OK(grow(beam, 1));
  }
  const Explanation e = tables().explain(8);
  ASSERT_EQ(e.num_largest, 4U);
  EXPECT_EQ(e.missing, 1);
  EXPECT_EQ(e.largest[0].references, 11);
  EXPECT_EQ((std::array{e.returning[0], e.returning[1], e.returning[2], e.returning[3]}),
            (std::array<std::int64_t, 4>{1, 2, 3, 13}));
  EXPECT_NE(to_string(e).find("release the largest holder (1 blocks return)"), std::string::npos)
      << to_string(e);
  EXPECT_NE(
      to_string(tables().explain(14)).find("release the 4 largest holders (13 blocks return)"),
      std::string::npos)
      << to_string(tables().explain(14));
  expect_true_promises(8);
}

TEST_F(TableExplainTest, FencedBlocksDoNotReturnAtOnceAndPromisedOnesDo) {
  create({.num_blocks = 20}, {.block_size_tokens = 4});
  const SequenceId reading = sequence(16);
  const SequenceId promised = sequence(4);
  ASSERT_OK(tables().promise_capacity(promised, 20));
  const Ticket ticket = manager().open_ticket().value();
  const SequenceId child = tables().fork(reading, 16).value();
  ASSERT_OK(tables().destroy(child, ticket));
  const Explanation e = tables().explain(30);
  EXPECT_EQ(e.largest[0].number, promised.value);
  EXPECT_EQ(e.returning[0], 5);
  EXPECT_EQ(e.returning[1], 5) << "the ticket still reads all four blocks";
  expect_true_promises(30);
  ASSERT_OK(manager().retire(ticket));
}

TEST_F(TableExplainTest, ABlockThatIsKeptForAnUndoReturnsWithItsSequence) {
  create({.num_blocks = 20}, {.block_size_tokens = 4, .max_sequences = 16, .can_undo = true});
  const SequenceId root = sequence(6);
  const SequenceId child = tables().fork(root, 6).value();
  ASSERT_OK(grow(child, 1));
  const Explanation e = tables().explain(30);
  EXPECT_EQ(e.returning[1], 3) << "the shared block, both last blocks";
  expect_true_promises(30);
}

TEST_F(TableExplainTest, HoldersThatAreNoSequencesAreNotGuessedAt) {
  create(20, 4);
  const HolderId transfer = manager().register_holder({.number = 9, .purpose = "transfer"}).value();
  std::array<BlockId, 12> ids{};
  std::array<Generation, 12> generations{};
  ASSERT_OK(manager().allocate(transfer, ids, generations));
  sequence(8);
  const Explanation e = tables().explain(7);
  EXPECT_EQ(e.returning[0], -1);
  EXPECT_EQ(e.returning[1], -1);
  EXPECT_NE(to_string(e).find("(12 blocks, less those that others share)"), std::string::npos)
      << to_string(e);
  ASSERT_OK(manager().release(transfer, ids, generations));
  ASSERT_OK(manager().unregister_holder(transfer));
}

TEST_F(TableExplainTest, TheEnginesIdIsNamedBesideTheSequence) {
  create(20, 4);
  const SequenceId request = tables().create_sequence({.owner = 77'000}).value();
  ASSERT_OK(grow(request, 16));
  const SequenceId beam = tables().fork(request, 16).value();
  const std::string text = to_string(tables().explain(30));
  for (const SequenceId id : {request, beam}) {
    const std::string line = "sequence " + std::to_string(id.value) + " of owner 77000: 4 ref";
    EXPECT_NE(text.find(line), std::string::npos) << text;
  }
  EXPECT_EQ(manager().holders().at(1).owner, 77'000U);
}

TEST_F(TableExplainTest, HoldsForRandomSharing) {
  std::mt19937_64 random(11);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  for (int round = 0; round < 50; ++round) {
    create({.num_blocks = 300}, {.block_size_tokens = 4, .max_sequences = 16});
    std::vector<SequenceId> all;
    while (all.size() < 12) {
      if (all.empty() || below(3) == 0) {
        all.push_back(sequence(static_cast<std::int32_t>(below(60))));
        continue;
      }
      const SequenceId parent = all[below(all.size())];
      const auto kept =
          static_cast<std::int64_t>(below(static_cast<std::size_t>(length(parent)) + 1));
      all.push_back(tables().fork(parent, kept).value());
      ASSERT_OK(grow(all.back(), static_cast<std::int32_t>(below(9))));
    }
    expect_true_promises(400);
    tables_.reset();
  }
}

}  // namespace
}  // namespace kvarena
