// What an engine controls: ids that agree on every rank, urgencies of single demands, deadlines,
// imports, pins, and rows for kernels of its own.

#include "block_tables_fixture.hpp"

#include <array>
#include <limits>

namespace kvarena::test {
namespace {

class TableControlTest : public BlockTablesTest {
 protected:
  HolderReport holder_of(SequenceId id) { return *manager().holder(tables().info(id)->holder); }
  std::int64_t available() { return manager().available_now(); }
};

// ---- ids ----------------------------------------------------------------------------------------

TEST_F(TableControlTest, TablesThatAreCalledAlikeIssueEqualIds) {
  std::vector<std::vector<SequenceId>> issued;
  for (int rank = 0; rank < 3; ++rank) {
    create(4, 4);
    std::vector<SequenceId>& ids = issued.emplace_back();
    ids.push_back(sequence(5));
    ids.push_back(*tables().fork(ids[0], 5));
    EXPECT_OK(tables().destroy(ids[0]));
    ids.push_back(sequence(1));
    EXPECT_NE(ids[2], ids[0]) << "no id comes back";
  }
  EXPECT_EQ(issued[0], issued[1]);
  EXPECT_EQ(issued[0], issued[2]);
}

TEST_F(TableControlTest, ARefusedCallUsesNoIdUp) {
  create({.num_blocks = 4, .max_holders = 2}, {.block_size_tokens = 4, .max_sequences = 2});
  const SequenceId a = sequence(1);
  EXPECT_FAILS(tables().create_sequence({.max_length_tokens = -1}), invalid_argument, none);
  EXPECT_FAILS(tables().import_sequence(1000), exhausted, block);
  EXPECT_FAILS(tables().fork(a, 2), invalid_argument, sequence_length);
  const SequenceId b = sequence(1);
  EXPECT_EQ(b.value >> 24, (a.value >> 24) + 1);
}

// ---- urgencies ----------------------------------------------------------------------------------

TEST_F(TableControlTest, GrowthIsServedFirstWhateverTheOrder) {
  create({.num_blocks = 8, .watermark_blocks = 3}, {.block_size_tokens = 1, .max_sequences = 8});
  const SequenceId running = sequence(2);  // 6 are left, 3 of them for growth alone
  const SequenceId prompt = sequence(0);
  for (const bool prompt_first : {true, false}) {
    std::vector<AppendDemand> demands{{running, 2, Urgency::growth},
                                      {prompt, 2, Urgency::admission}};
    if (prompt_first) std::swap(demands[0], demands[1]);
    const Status refused = tables().append(demands).status();
    EXPECT_FAILS(refused, exhausted, block);
    EXPECT_EQ(refused.subject, prompt.value) << "growth fits, the prompt does not";
    EXPECT_EQ(tables().failed_demand(), prompt_first ? 0 : 1);
    EXPECT_EQ(refused.required, 4U);
    EXPECT_EQ(refused.available, 3U) << "the watermark stays";
    EXPECT_EQ(tables().explain(refused).urgency, Urgency::admission);
  }
  const std::vector<AppendDemand> fits{{prompt, 1, Urgency::admission},
                                       {running, 2, Urgency::growth}};
  EXPECT_OK(tables().append(fits));
  EXPECT_EQ(available(), 3);
}

TEST_F(TableControlTest, ADemandWithoutUrgencyHasThatOfTheCall) {
  create({.num_blocks = 4, .watermark_blocks = 2}, {.block_size_tokens = 1, .max_sequences = 4});
  const SequenceId a = sequence(0);
  const std::vector<AppendDemand> demand{{a, 3}};
  EXPECT_FAILS(tables().append(demand, Urgency::admission), exhausted, block);
  const std::vector<AppendDemand> growth{{a, 3, Urgency::growth}};
  EXPECT_OK(tables().append(growth, Urgency::admission));
}

TEST_F(TableControlTest, GrowthThatDoesNotFitIsNamedBeforeNewWork) {
  create({.num_blocks = 4, .watermark_blocks = 1}, {.block_size_tokens = 1, .max_sequences = 4});
  const SequenceId prompt = sequence(0);
  const SequenceId running = sequence(0);
  const std::vector<AppendDemand> demands{{prompt, 1, Urgency::admission},
                                          {running, 5, Urgency::growth}};
  const auto before = picture();
  const Status refused = tables().append(demands).status();
  EXPECT_EQ(refused.subject, running.value);
  EXPECT_EQ(tables().failed_demand(), 1);
  EXPECT_TRUE(before == picture());
}

TEST_F(TableControlTest, AnUrgencyThatIsNoneIsRefusedWithItsDemand) {
  create(4, 1);
  const SequenceId a = sequence(0);
  const SequenceId b = sequence(0);
  const std::vector<AppendDemand> demands{{a, 1}, {b, 1, static_cast<Urgency>(7)}};
  EXPECT_REFUSED(tables().append(demands), invalid_argument, urgency);
  EXPECT_EQ(tables().failed_demand(), 1);
}

// ---- deadlines ----------------------------------------------------------------------------------

TEST_F(TableControlTest, ADeadlineCanBeChanged) {
  create(4, 1);
  const SequenceId a = tables().create_sequence({.deadline_ns = 5, .owner = 3}).value();
  EXPECT_OK(tables().set_deadline(a, 77));
  EXPECT_EQ(holder_of(a).deadline_ns, 77);
  EXPECT_EQ(holder_of(a).owner, 3U);
  EXPECT_OK(tables().set_deadline(a, 0));
  EXPECT_EQ(holder_of(a).deadline_ns, 0);
  EXPECT_FAILS(tables().set_deadline(SequenceId(9), 1), not_found, sequence);
  EXPECT_FAILS(manager().set_deadline(HolderId(9), 1), not_found, holder);
}

// ---- imports ------------------------------------------------------------------------------------

TEST_F(TableControlTest, AnImportIsReadableOnlyWhenItIsPublished) {
  create(8, 4);
  const SequenceId a = tables().import_sequence(6, {.owner = 11}).value();
  EXPECT_EQ(length(a), 6);
  EXPECT_EQ(tables().info(a)->import_state, ImportState::filling);
  EXPECT_EQ(tables().info(a)->owner, 11U);
  EXPECT_EQ(manager().content(BlockId(1)), BlockContent::being_written);
  EXPECT_REFUSED(grow(a, 1), failed_precondition, sequence);
  EXPECT_REFUSED(grow(a, 0), failed_precondition, sequence);
  EXPECT_REFUSED(tables().fork(a, 6), failed_precondition, sequence);
  EXPECT_REFUSED(tables().truncate(a, 5), failed_precondition, sequence);
  EXPECT_REFUSED(tables().pin(a), failed_precondition, sequence);
  EXPECT_OK(tables().publish_import(a));
  EXPECT_EQ(manager().content(BlockId(1)), BlockContent::unwritten);
  const Result<AppendResult> grown = grow(a, 1);
  ASSERT_OK(grown);
  EXPECT_EQ(grown->slots[0], 6) << "in place, behind the imported tokens";
  EXPECT_TRUE(grown->copies.empty());
  EXPECT_REFUSED(tables().publish_import(a), failed_precondition, sequence);
  EXPECT_REFUSED(tables().fail_import(a), failed_precondition, sequence);
}

TEST_F(TableControlTest, AFailedImportCanOnlyBeDestroyed) {
  create(8, 4);
  const SequenceId a = tables().import_sequence(6).value();
  EXPECT_OK(tables().fail_import(a));
  EXPECT_EQ(tables().info(a)->import_state, ImportState::failed);
  EXPECT_EQ(manager().content(BlockId(0)), BlockContent::failed);
  EXPECT_REFUSED(tables().publish_import(a), failed_precondition, sequence);
  EXPECT_REFUSED(grow(a, 1), failed_precondition, sequence);
  EXPECT_REFUSED(tables().reserve_capacity(a, 12), failed_precondition, sequence);
  EXPECT_REFUSED(tables().promise_capacity(a, 12), failed_precondition, sequence);
  const Ticket transfer = manager().open_ticket().value();
  EXPECT_OK(tables().destroy(a, transfer));
  EXPECT_EQ(manager().stats().fenced, 2) << "writes may still arrive";
  EXPECT_OK(manager().retire(transfer));
  EXPECT_EQ(available(), 8);
}

TEST_F(TableControlTest, ABlockThatFailedKeepsAnImportFromBeingPublished) {
  create(8, 4);
  const SequenceId a = tables().import_sequence(8).value();
  ASSERT_OK(
      manager().set_content(BlockId(1), manager().generation(BlockId(1)), BlockContent::failed));
  EXPECT_REFUSED(tables().publish_import(a), failed_precondition, block);
  EXPECT_EQ(manager().content(BlockId(0)), BlockContent::being_written);
}

TEST_F(TableControlTest, AnImportThatDoesNotFitChangesNothing) {
  create({.num_blocks = 4, .watermark_blocks = 1},
         {.block_size_tokens = 4, .max_sequences = 2, .max_table_pages = 2});
  const SequenceId a = sequence(1);
  const auto refused = tables().import_sequence(12).status();
  EXPECT_FAILS(refused, exhausted, block);
  EXPECT_EQ(tables().explain(refused).urgency, Urgency::admission);
  EXPECT_EQ(tables().explain(refused).missing, 1);
  EXPECT_REFUSED(tables().import_sequence(12), exhausted, block);
  EXPECT_REFUSED(tables().import_sequence(-1), invalid_argument, num_tokens);
  EXPECT_REFUSED(tables().import_sequence(9, {.max_length_tokens = 8}), context_length_exceeded,
                 sequence_length);
  EXPECT_REFUSED(tables().import_sequence(1, {.max_length_tokens = -3}), invalid_argument, none);
  EXPECT_OK(tables().import_sequence(12, {}, Urgency::growth));
  EXPECT_REFUSED(tables().import_sequence(0), exhausted, sequence);
  EXPECT_OK(tables().destroy(a));
}

// ---- pins ---------------------------------------------------------------------------------------

TEST_F(TableControlTest, APinKeepsBlocksAndBytesOfItsSequence) {
  create(8, 4);
  const SequenceId a = tables().create_sequence({.owner = 5}).value();
  ASSERT_OK(grow(a, 6));
  const HolderId pin =
      tables().pin(a, {.purpose = "prefix cache", .since_ns = 3, .deadline_ns = 4}).value();
  const HolderReport report = *manager().holder(pin);
  EXPECT_EQ(report.purpose, "prefix cache");
  EXPECT_EQ(report.owner, 5U) << "that of the sequence";
  EXPECT_EQ(report.references, 2);
  EXPECT_EQ(report.since_ns, 3);
  EXPECT_EQ(report.deadline_ns, 4);
  EXPECT_EQ(tables().stats().pins, 1);
  EXPECT_EQ(tables().stats().pinned_entries, 2);
  EXPECT_EQ(tables().stats().entries, 2);
  const Result<AppendResult> grown = grow(a, 1);
  ASSERT_OK(grown);
  ASSERT_EQ(grown->copies.size(), 1U) << "the pinned bytes stay";
  EXPECT_EQ(grown->copies[0].source, BlockId(1));
  EXPECT_OK(tables().destroy(a));
  EXPECT_EQ(available(), 6);
  std::array<BlockId, 2> held;
  EXPECT_EQ(*tables().blocks_of(pin, held), 2);
  EXPECT_EQ(held[1], BlockId(1));
  EXPECT_OK(tables().check_invariants());
  EXPECT_OK(tables().unpin(pin));
  EXPECT_EQ(available(), 8);
  EXPECT_FAILS(tables().unpin(pin), not_found, holder);
  EXPECT_FAILS(tables().blocks_of(pin, held), not_found, holder);
}

TEST_F(TableControlTest, APinOfARangeOverPages) {
  create({.num_blocks = 400}, {.block_size_tokens = 1, .max_sequences = 2});
  const SequenceId a = sequence(300);
  const HolderId pin = tables().pin(a, {.first_block = 100, .num_blocks = 150, .owner = 9}).value();
  std::vector<BlockId> held(150);
  ASSERT_EQ(*tables().blocks_of(pin, held), 150);
  for (std::int32_t i = 0; i < 150; ++i) {
    ASSERT_EQ(held[static_cast<std::size_t>(i)], BlockId(100 + i));
  }
  EXPECT_EQ(manager().holder(pin)->owner, 9U);
  EXPECT_OK(tables().destroy(a));
  EXPECT_EQ(available(), 250);
  const Ticket reader = manager().open_ticket().value();
  EXPECT_OK(tables().unpin(pin, reader));
  EXPECT_EQ(available(), 250);
  EXPECT_OK(manager().retire(reader));
  EXPECT_EQ(available(), 400);
}

TEST_F(TableControlTest, PinsAreExplainedWithTheBlocksThatTheyGiveBack) {
  create({.num_blocks = 8, .max_holders = 4}, {.block_size_tokens = 1, .max_sequences = 2});
  const SequenceId a = sequence(6);
  const HolderId pin = tables().pin(a, {.num_blocks = 4}).value();
  ASSERT_OK(tables().destroy(a));
  const SequenceId b = sequence(3);
  const Explanation e = tables().explain(5);
  ASSERT_EQ(e.num_largest, 2U);
  EXPECT_EQ(e.largest[0].holder, pin);
  EXPECT_EQ(e.returning[0], 4);
  EXPECT_EQ(e.returning[1], 7);
  EXPECT_EQ(manager().check_invariants(), Status{}) << "counting left everything as it was";
  EXPECT_OK(tables().destroy(b));
}

TEST_F(TableControlTest, APinThatCannotBeHadChangesNothing) {
  create({.num_blocks = 8, .max_holders = 5},
         {.block_size_tokens = 2, .max_sequences = 2, .max_table_pages = 4, .max_pins = 2});
  const SequenceId a = sequence(5);
  EXPECT_REFUSED(tables().pin(SequenceId(7)), not_found, sequence);
  EXPECT_REFUSED(tables().pin(a, {.first_block = -1}), invalid_argument, block_index);
  EXPECT_REFUSED(tables().pin(a, {.first_block = 4}), invalid_argument, block_index);
  EXPECT_REFUSED(tables().pin(a, {.first_block = 1, .num_blocks = 3}), invalid_argument,
                 num_blocks);
  EXPECT_REFUSED(tables().pin(a, {.num_blocks = -2}), invalid_argument, num_blocks);
  ASSERT_OK(tables().pin(a));
  ASSERT_OK(tables().pin(a));
  EXPECT_REFUSED(tables().pin(a), exhausted, holder);
  EXPECT_REFUSED(tables().unpin(tables().info(a)->holder), not_found, holder);
}

TEST_F(TableControlTest, TablesGiveBackThePinsThatAreLeft) {
  create(8, 2);
  const SequenceId a = sequence(5);
  ASSERT_OK(tables().pin(a));  // the fixture finds no reference when the tables are gone
}

// ---- rows ---------------------------------------------------------------------------------------

TEST_F(TableControlTest, RowsAreCopiedWithTheirLengths) {
  create({.num_blocks = 400}, {.block_size_tokens = 2, .max_sequences = 4});
  const SequenceId a = sequence(5);
  const SequenceId empty = sequence(0);
  const SequenceId longest = sequence(2 * 130);
  ASSERT_OK(tables().reserve_capacity(a, 100));
  const std::vector<SequenceId> ids{longest, a, empty, a};
  constexpr std::int64_t kStride = 131;
  std::vector<std::int32_t> entries(4 * kStride + 1, -5);
  std::vector<std::int32_t> lengths(4);
  ASSERT_OK(tables().copy_rows(ids, entries, kStride, lengths));
  EXPECT_EQ(lengths, (std::vector<std::int32_t>{260, 5, 0, 5}));
  for (std::size_t row = 0; row < ids.size(); ++row) {
    const Numbers expected = blocks(ids[row]);
    const auto filled = static_cast<std::size_t>((length(ids[row]) + 1) / 2);
    for (std::size_t j = 0; j < kStride; ++j) {
      ASSERT_EQ(entries[row * kStride + j], j < filled ? expected[j] : -1) << row << ", " << j;
    }
  }
  EXPECT_EQ(entries.back(), -5) << "nothing behind the rows";
}

TEST_F(TableControlTest, RowsThatDoNotFitAreNotCopied) {
  create(8, 2);
  const SequenceId a = sequence(5);
  const std::vector<SequenceId> one{a};
  const std::vector<SequenceId> stranger{a, SequenceId(3)};
  std::array<std::int32_t, 4> entries{9, 9, 9, 9};
  std::array<std::int32_t, 1> lengths{9};
  EXPECT_FAILS(tables().copy_rows(one, entries, 2, lengths), invalid_argument, span_size);
  EXPECT_FAILS(tables().copy_rows(one, std::span(entries).first(2), 3, lengths), invalid_argument,
               span_size);
  const Status far =
      tables().copy_rows(std::vector{a, a, a, a}, entries, std::int64_t{1} << 62, lengths);
  EXPECT_EQ(far.required, std::numeric_limits<std::int64_t>::max());
  EXPECT_FAILS(tables().copy_rows(stranger, entries, 3, lengths), not_found, sequence);
  const std::vector<SequenceId> twice{a, a};
  EXPECT_FAILS(tables().copy_rows(twice, entries, 3, {}), invalid_argument, span_size);
  EXPECT_EQ(entries, (std::array<std::int32_t, 4>{9, 9, 9, 9}));
  EXPECT_EQ(lengths[0], 9);
  EXPECT_OK(tables().copy_rows(one, entries, 4, {}));
  EXPECT_EQ(entries[3], -1);
  EXPECT_OK(tables().copy_rows({}, {}, 0, {}));
}

}  // namespace
}  // namespace kvarena::test
