// Every documented status of every call on tables, provoked; and that nothing changed.

#include "block_tables_fixture.hpp"

namespace kvarena::test {
namespace {

class TableRefusalTest : public BlockTablesTest {};

TEST_F(TableRefusalTest, CreateNamesTheOptionItsValueAndItsRange) {
  BlockManager manager = BlockManager::create({.num_blocks = 4}).value();
  const auto expect = [&](const BlockTablesOptions& options, Option option, std::int64_t value) {
    const Status status = BlockTables::create(manager, options).status();
    EXPECT_EQ(status.code, StatusCode::invalid_argument);
    EXPECT_EQ(status.option, option) << describe(status);
    EXPECT_EQ(static_cast<std::int64_t>(status.subject), value);
  };
  expect({.block_size_tokens = 0}, Option::block_size_tokens, 0);
  expect({.block_size_tokens = 65537}, Option::block_size_tokens, 65537);
  expect({.max_sequences = 0}, Option::max_sequences, 0);
  expect({.max_sequences = -5}, Option::max_sequences, -5);
  expect({.max_table_pages = -1}, Option::max_table_pages, -1);
  expect({.max_append_tokens = 0}, Option::max_append_tokens, 0);
}

TEST_F(TableRefusalTest, AnUrgencyThatIsNoneTakesNothing) {
  create(4, 4);
  const SequenceId id = sequence(1);
  constexpr auto kForeign = static_cast<Urgency>(99);
  const AppendDemand demand{id, 9};
  EXPECT_REFUSED(tables().append(std::span(&demand, 1), kForeign), invalid_argument, urgency);
  EXPECT_REFUSED(tables().reserve_capacity(id, 9, kForeign), invalid_argument, urgency);
  EXPECT_EQ(tables().info(id)->length_tokens, 1);
}

TEST_F(TableRefusalTest, WhatRunsOutSaysWhichOptionToRaise) {
  create({.num_blocks = 4}, {.max_sequences = 1, .max_table_pages = 1});
  const SequenceId id = sequence(1);
  EXPECT_REFUSES(tables().create_sequence(), exhausted, max_sequences);
  EXPECT_REFUSES(tables().fork(id, 1), exhausted, max_table_pages);
}

TEST_F(TableRefusalTest, SequencesRunOut) {
  create({.num_blocks = 4}, {.max_sequences = 2});
  const SequenceId a = sequence(0);
  sequence(0);
  EXPECT_REFUSED(tables().create_sequence(), exhausted, sequence);
  EXPECT_REFUSED(tables().fork(a, 0), exhausted, sequence);
  ASSERT_OK(tables().destroy(a));
  EXPECT_OK(tables().create_sequence());
}

TEST_F(TableRefusalTest, HoldersOfTheManagerRunOut) {
  create({.num_blocks = 4, .max_holders = 1}, {.max_sequences = 2});
  const SequenceId a = sequence(3);
  EXPECT_REFUSED(tables().create_sequence(), exhausted, holder);
  EXPECT_REFUSED(tables().fork(a, 2), exhausted, holder);
}

TEST_F(TableRefusalTest, UnknownAndDestroyedSequencesAreErrorsEverywhere) {
  create(8, 4);
  const SequenceId gone = sequence(5);
  ASSERT_OK(tables().destroy(gone));
  const SequenceId reused_slot = sequence(5);
  EXPECT_NE(reused_slot, gone);
  std::vector<BlockId> out(8);
  for (const SequenceId id : {gone, kNoSequence, SequenceId(~0ULL)}) {
    EXPECT_REFUSED(tables().fork(id, 0), not_found, sequence);
    EXPECT_REFUSED(tables().destroy(id), not_found, sequence);
    EXPECT_REFUSED(grow(id, 1), not_found, sequence);
    EXPECT_REFUSED(tables().append_one_each(std::span(&id, 1)), not_found, sequence);
    EXPECT_REFUSED(tables().reserve_capacity(id, 9), not_found, sequence);
    EXPECT_REFUSED(tables().promise_capacity(id, 9), not_found, sequence);
    EXPECT_REFUSED(tables().truncate(id, 0), not_found, sequence);
    EXPECT_REFUSED(tables().info(id), not_found, sequence);
    EXPECT_REFUSED(tables().lookup(id, 0), not_found, sequence);
    EXPECT_REFUSED(tables().slot_of(id, 0), not_found, sequence);
    EXPECT_REFUSED(tables().blocks_of(id, out), not_found, sequence);
    EXPECT_REFUSED(tables().view(std::span(&id, 1)), not_found, sequence);
    EXPECT_EQ(tables().destroy(id).subject, id.value);
  }
}

TEST_F(TableRefusalTest, LengthsOutsideTheirRange) {
  create(8, 4);
  const SequenceId s = sequence(6);
  EXPECT_REFUSED(tables().fork(s, 7), invalid_argument, sequence_length);
  EXPECT_REFUSED(tables().fork(s, -1), invalid_argument, sequence_length);
  EXPECT_REFUSED(tables().truncate(s, 7), invalid_argument, sequence_length);
  EXPECT_REFUSED(tables().truncate(s, -1), invalid_argument, sequence_length);
  EXPECT_REFUSED(grow(s, -1), invalid_argument, num_tokens);
  EXPECT_REFUSED(tables().reserve_capacity(s, -1), invalid_argument, capacity);
  EXPECT_REFUSED(tables().promise_capacity(s, -1), invalid_argument, capacity);
  EXPECT_REFUSED(tables().reserve_capacity(s, std::int64_t{1} << 31), invalid_argument, capacity);
  EXPECT_REFUSES(tables().create_sequence({.max_length_tokens = -1}), invalid_argument,
                 max_length_tokens);
  EXPECT_REFUSES(tables().create_sequence({.max_length_tokens = std::int64_t{1} << 31}),
                 invalid_argument, max_length_tokens);
}

TEST_F(TableRefusalTest, IndicesOutsideTheirRange) {
  create(8, 4);
  const SequenceId s = sequence(6);
  EXPECT_REFUSED(tables().lookup(s, 2), invalid_argument, block_index);
  EXPECT_REFUSED(tables().lookup(s, -1), invalid_argument, block_index);
  EXPECT_REFUSED(tables().slot_of(s, 6), invalid_argument, token_index);
  EXPECT_REFUSED(tables().slot_of(s, -1), invalid_argument, token_index);
  std::vector<BlockId> one(1);
  EXPECT_REFUSED(tables().blocks_of(s, one), invalid_argument, span_size);
}

TEST_F(TableRefusalTest, TheMaximumLengthIsKept) {
  create(8, 4);
  const SequenceId s = sequence(6, 8);
  EXPECT_REFUSED(grow(s, 3), context_length_exceeded, sequence_length);
  const Status status = grow(s, 3).status();
  EXPECT_EQ(status.subject, s.value);
  EXPECT_EQ(status.required, 9U);
  EXPECT_EQ(status.available, 8U);
  EXPECT_REFUSED(tables().reserve_capacity(s, 9), context_length_exceeded, sequence_length);
  EXPECT_REFUSED(tables().promise_capacity(s, 9), context_length_exceeded, sequence_length);
  EXPECT_REFUSED(tables().fork(s, 6, {.max_length_tokens = 5}), context_length_exceeded,
                 sequence_length);
  EXPECT_OK(grow(s, 2));
}

TEST_F(TableRefusalTest, AppendNamesTheFirstSequenceThatDoesNotFit) {
  create(4, 4);
  const SequenceId a = sequence(4);
  const SequenceId b = sequence(4);
  const SequenceId c = sequence(3);
  const std::vector<AppendDemand> demands{{c, 1}, {a, 4}, {b, 1}};
  EXPECT_REFUSED(tables().append(demands), exhausted, block);
  EXPECT_EQ(tables().failed_demand(), 2);
  const Status status = tables().append(demands).status();
  EXPECT_EQ(status.subject, b.value);
  EXPECT_EQ(status.required, 2U);
  EXPECT_EQ(status.available, 1U);
  EXPECT_OK(grow(a, 4));
  EXPECT_EQ(tables().failed_demand(), -1);
}

TEST_F(TableRefusalTest, FaultyDemandsAreNamedByIndex) {
  create(16, 4);
  const SequenceId a = sequence(4);
  const SequenceId b = sequence(4, 6);
  const auto expect = [this](const std::vector<AppendDemand>& demands, StatusCode code,
                             std::int64_t index) {
    const auto before = picture();
    EXPECT_EQ(tables().append(demands).status().code, code);
    EXPECT_EQ(tables().failed_demand(), index);
    EXPECT_TRUE(before == picture());
  };
  expect({{a, 1}, {a, 1}}, StatusCode::duplicate_argument, 1);
  expect({{a, 1}, {b, 3}}, StatusCode::context_length_exceeded, 1);
  expect({{a, 1}, {SequenceId(3), 3}}, StatusCode::not_found, 1);
  expect({{b, -2}, {a, 1}}, StatusCode::invalid_argument, 0);
}

TEST_F(TableRefusalTest, TokensOfOneCallAreLimited) {
  create({.num_blocks = 100}, {.block_size_tokens = 4, .max_append_tokens = 10});
  const SequenceId a = sequence(0);
  const SequenceId b = sequence(0);
  EXPECT_REFUSED(grow(a, 11), limit_exceeded, num_tokens);
  const std::vector<AppendDemand> demands{{a, 5}, {b, 6}};
  EXPECT_REFUSED(tables().append(demands), limit_exceeded, num_tokens);
  EXPECT_EQ(tables().failed_demand(), 1);
  EXPECT_OK(grow(a, 10));
}

TEST_F(TableRefusalTest, TablePagesRunOut) {
  create({.num_blocks = 1000}, {.block_size_tokens = 1, .max_sequences = 8, .max_table_pages = 2});
  const SequenceId a = sequence(128);
  const SequenceId b = sequence(1);
  const SequenceId c = sequence(0);
  EXPECT_REFUSED(grow(c, 1), exhausted, table_page);
  EXPECT_EQ(tables().failed_demand(), 0);
  EXPECT_EQ(grow(c, 1).status().subject, c.value);
  EXPECT_REFUSED(tables().reserve_capacity(c, 1), exhausted, table_page);
  EXPECT_REFUSED(tables().fork(a, 5), exhausted, table_page);
  ASSERT_OK(tables().destroy(b));
  EXPECT_OK(grow(c, 1));
}

TEST_F(TableRefusalTest, WantOfBlocksIsNamedBeforeWantOfPages) {
  create(4, 16);
  const SequenceId a = sequence(0);
  EXPECT_REFUSED(grow(a, 100'000), exhausted, block);
  EXPECT_REFUSED(tables().reserve_capacity(a, 100'000), exhausted, block);
  EXPECT_EQ(grow(a, 100'000).status().required, 6250U);
}

TEST_F(TableRefusalTest, PromisesBeyondThePool) {
  create(4, 16);
  const SequenceId a = sequence(16);
  EXPECT_REFUSED(tables().promise_capacity(a, 100'000'000), exhausted, reservation);
  EXPECT_EQ(tables().promise_capacity(a, 1000).subject, a.value);
}

TEST_F(TableRefusalTest, DestroyManyTakesAllOrNothing) {
  create(8, 4);
  const SequenceId a = sequence(5);
  const SequenceId b = sequence(5);
  const std::vector<SequenceId> repeated{a, b, a};
  EXPECT_REFUSED(tables().destroy_many(repeated), duplicate_argument, sequence);
  EXPECT_EQ(tables().destroy_many(repeated).subject, a.value);
  const std::vector<SequenceId> stranger{a, SequenceId(3)};
  EXPECT_REFUSED(tables().destroy_many(stranger), not_found, sequence);
  EXPECT_REFUSED(tables().destroy(a, Ticket(9)), not_found, ticket);
  EXPECT_REFUSED(tables().truncate(a, 5, Ticket(9)), not_found, ticket);
}

TEST_F(TableRefusalTest, FenceEntriesRunOut) {
  create({.num_blocks = 8, .max_fence_entries = 3}, {.block_size_tokens = 4});
  const SequenceId a = sequence(8);
  const SequenceId b = sequence(8);
  const Ticket t = manager().open_ticket().value();
  const std::vector<SequenceId> both{a, b};
  EXPECT_REFUSED(tables().destroy_many(both, t), exhausted, fence_entry);
  ASSERT_OK(tables().destroy(a, t));
  EXPECT_REFUSED(tables().truncate(b, 0, t), exhausted, fence_entry);
  EXPECT_REFUSED(tables().destroy(b, t), exhausted, fence_entry);
  EXPECT_REFUSED(tables().truncate(b, 1, t), exhausted, fence_entry);  // what is kept is fenced too
  EXPECT_OK(tables().truncate(b, 4, t));
}

TEST_F(TableRefusalTest, ViewsNameASequenceOnce) {
  create(8, 4);
  const SequenceId a = sequence(5);
  const std::vector<SequenceId> twice{a, a};
  EXPECT_REFUSED(tables().view(twice), duplicate_argument, sequence);
}

}  // namespace
}  // namespace kvarena::test
