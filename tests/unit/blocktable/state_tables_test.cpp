// Groups of states in block tables, example by example: which slots a step hands out, what a fork,
// a cut and an undo find, and checkpoints.

#include "kvarena/blocktable/block_tables.hpp"

#include "support/status_matchers.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace kvarena {
namespace {

using Numbers = std::vector<std::int32_t>;

struct Choice {
  StateMode mode = StateMode::in_place;
  bool keeps = false;
  std::int32_t rollback = 0;
  std::int64_t every = 0;
  bool can_undo = true;
};

/// A page is a block of attention, 4 tokens, or one of the two parts of a state.
class StateTablesTest : public ::testing::Test {
 protected:
  void create(const Choice& choice, std::int64_t num_pages = 40) {
    tables_.reset();
    const BlockGroup blocks[] = {{1, 64}, {1, 64}};
    manager_ = std::make_unique<BlockManager>(
        BlockManager::create({.num_blocks = num_pages, .groups = blocks}).value());
    groups_ = {{.block_size_tokens = 4},
               {.kind = PagedKind::state,
                .rollback_tokens = choice.rollback,
                .num_parts = 2,
                .mode = choice.mode,
                .keeps_for_undo = choice.keeps}};
    tables_ = std::make_unique<BlockTables>(
        BlockTables::create(*manager_, {.max_sequences = 8,
                                        .can_undo = choice.can_undo,
                                        .groups = groups_,
                                        .checkpoint_every_tokens = choice.every})
            .value());
  }
  Result<AppendResult> grow(SequenceId id, std::int32_t tokens) {
    const AppendDemand demand{id, tokens};
    return tables_->append(std::span(&demand, 1));
  }
  SequenceId sequence(std::int32_t tokens) {
    const SequenceId id = tables_->create_sequence().value();
    EXPECT_OK(grow(id, tokens));
    tables_->settle_append();
    return id;
  }
  static Numbers list(std::span<const std::int32_t> of) { return {of.begin(), of.end()}; }
  Numbers held(SequenceId id) {
    std::vector<BlockId> ids(64);
    const auto count = tables_->blocks_of(id, ids, 1).value();
    Numbers all;
    for (std::int64_t i = 0; i < count; ++i) all.push_back(ids[static_cast<std::size_t>(i)].value);
    return all;
  }
  std::int64_t states() { return manager_->group_stats(1).referenced / 2; }

  std::vector<TableGroup> groups_;
  std::unique_ptr<BlockManager> manager_;
  std::unique_ptr<BlockTables> tables_;
};

TEST_F(StateTablesTest, StatesThatNobodyWroteAreLost) {
  create({.mode = StateMode::read_write, .keeps = true, .rollback = 1, .every = 8});
  const SequenceId id = sequence(8);  // states at 7 and 8; 8 is a checkpoint too
  EXPECT_OK(grow(id, 1));
  tables_->settle_append();
  EXPECT_OK(grow(id, 9));  // states at 17 and 18, and a checkpoint at 16
  ASSERT_OK(tables_->lose_states(id, 9));
  EXPECT_EQ(tables_->info(id)->length_tokens, 18);
  EXPECT_EQ(states(), 0) << "none is held";
  std::int64_t lengths[4] = {};
  EXPECT_EQ(tables_->checkpoints_of(id, lengths).value(), 1);
  EXPECT_EQ(lengths[0], 8);
  EXPECT_FAILS(grow(id, 1), failed_precondition, sequence_length);
  EXPECT_FAILS(tables_->checkpoint(id), failed_precondition, sequence_length);
  EXPECT_EQ(tables_->restorable_length(id, 18).value(), 8);
  ASSERT_OK(tables_->truncate(id, 8));
  EXPECT_OK(grow(id, 1));
  EXPECT_OK(tables_->check_invariants());
  // What was written before stays.
  const SequenceId other = sequence(5);
  EXPECT_OK(grow(other, 1));
  ASSERT_OK(tables_->lose_states(other, 5));
  EXPECT_EQ(tables_->restorable_length(other, 6).value(), 5);
  ASSERT_OK(tables_->truncate(other, 5));
  EXPECT_OK(grow(other, 1));
  EXPECT_OK(tables_->check_invariants());
  EXPECT_FAILS(tables_->lose_states(SequenceId(1 << 20), 0), not_found, sequence);
}

TEST_F(StateTablesTest, AKernelInPlaceKeepsItsSlot) {
  create({});
  const SequenceId id = tables_->create_sequence().value();
  const auto first = grow(id, 3);
  ASSERT_OK(first);
  ASSERT_EQ(first->states.size(), 1u);
  const StateSlots slots = first->states[0];
  EXPECT_EQ(slots.group, 1);
  EXPECT_EQ(slots.num_parts, 2);
  EXPECT_EQ(list(slots.read), list(slots.write));
  EXPECT_EQ(slots.extra_tokens.size(), 0u);
  ASSERT_EQ(first->copies.size(), 2u) << "both parts are cleared";
  EXPECT_EQ(first->copies[0].source, kNoBlock);
  EXPECT_EQ(first->copies[0].target.value, slots.write[0]);
  EXPECT_EQ(first->copy_groups[1], 1);
  const Numbers where = list(slots.write);
  for (int i = 0; i < 20; ++i) {
    tables_->settle_append();
    const auto next = grow(id, 2);
    ASSERT_OK(next);
    EXPECT_EQ(next->copies.size(), 0u);
    EXPECT_EQ(list(next->states[0].read), where);
    EXPECT_EQ(list(next->states[0].write), where);
  }
  EXPECT_EQ(states(), 1);
  ASSERT_OK(tables_->check_invariants());
}

TEST_F(StateTablesTest, AKernelThatReadsAndWritesTakesZerosFirst) {
  create({.mode = StateMode::read_write});
  const SequenceId id = tables_->create_sequence().value();
  const auto first = grow(id, 3);
  ASSERT_OK(first);
  EXPECT_EQ(list(first->states[0].read), (Numbers{-1, -1}));
  EXPECT_EQ(first->copies.size(), 0u);
  const auto none = grow(id, 0);
  ASSERT_OK(none);
  EXPECT_EQ(list(none->states[0].read), held(id));
  EXPECT_EQ(list(none->states[0].write), (Numbers{-1, -1}));
}

TEST_F(StateTablesTest, AForkGoesOnAlone) {
  for (const StateMode mode : {StateMode::in_place, StateMode::read_write}) {
    create({.mode = mode});
    const SequenceId parent = sequence(5);
    const Numbers of_parent = held(parent);
    const SequenceId child = tables_->fork(parent, 5).value();
    EXPECT_EQ(held(child), of_parent);
    EXPECT_EQ(states(), 1);
    const auto step = grow(child, 1);
    ASSERT_OK(step);
    const StateSlots slots = step->states[0];
    EXPECT_NE(list(slots.write), of_parent);
    std::vector<BlockCopy> copies;
    for (std::size_t i = 0; i < step->copies.size(); ++i) {
      if (step->copy_groups[i] == 1) copies.push_back(step->copies[i]);
    }
    if (mode == StateMode::in_place) {
      EXPECT_EQ(list(slots.read), list(slots.write));
      ASSERT_EQ(copies.size(), 2u);
      EXPECT_EQ(copies[1].source.value, of_parent[1]);
      EXPECT_EQ(copies[1].target.value, slots.write[1]);
    } else {
      EXPECT_EQ(list(slots.read), of_parent);
      EXPECT_EQ(copies.size(), 0u);
    }
    tables_->settle_append();
    EXPECT_EQ(held(parent), of_parent);
    const auto again = grow(parent, 1);
    ASSERT_OK(again);
    EXPECT_EQ(list(again->states[0].write), of_parent) << "it is alone again";
    EXPECT_FAILS(tables_->fork(parent, 5), failed_precondition, sequence_length);
  }
}

TEST_F(StateTablesTest, AnUndoHasTheStateBack) {
  create({.mode = StateMode::read_write, .keeps = true});
  const SequenceId id = sequence(5);
  const Numbers before = held(id);
  for (const bool may_have_run : {true, false}) {
    const auto step = grow(id, 2);
    ASSERT_OK(step);
    EXPECT_EQ(list(step->states[0].read), before);
    EXPECT_NE(list(step->states[0].write), before);
    EXPECT_EQ(states(), 2) << "in a step";
    ASSERT_OK(tables_->undo_append(may_have_run));
    EXPECT_EQ(held(id), before);
    ASSERT_OK(tables_->check_invariants());
  }
  ASSERT_OK(grow(id, 1));
  tables_->settle_append();
  EXPECT_EQ(states(), 1) << "between steps";
}

TEST_F(StateTablesTest, AStateWrittenOverIsLostAndNeverRead) {
  create({});
  const SequenceId id = sequence(5);
  ASSERT_OK(tables_->checkpoint(id));
  ASSERT_OK(grow(id, 3));
  tables_->settle_append();
  ASSERT_OK(grow(id, 1));
  ASSERT_OK(tables_->undo_append(false));
  EXPECT_OK(grow(id, 1)) << "the step did not run";
  ASSERT_OK(tables_->undo_append(true));
  ASSERT_OK(tables_->check_invariants());
  const Status refused = grow(id, 1).status();
  EXPECT_EQ(refused.code, StatusCode::failed_precondition);
  EXPECT_EQ(refused.resource, Resource::sequence_length);
  EXPECT_EQ(refused.required, 8u);
  EXPECT_EQ(refused.available, 5u);
  EXPECT_EQ(tables_->failed_demand(), 0);
  EXPECT_FAILS(tables_->checkpoint(id), failed_precondition, sequence_length);
  ASSERT_OK(tables_->truncate(id, 5));
  EXPECT_OK(grow(id, 1));
}

TEST_F(StateTablesTest, RollbackTokensHaveSlotsOfTheirOwn) {
  create({.mode = StateMode::read_write, .rollback = 2});
  const SequenceId id = sequence(6);
  EXPECT_EQ(states(), 3) << "at 4, 5 and 6 tokens";
  const auto step = grow(id, 4);
  ASSERT_OK(step);
  const StateSlots slots = step->states[0];
  EXPECT_EQ(list(slots.extra_offsets), (Numbers{0, 2}));
  EXPECT_EQ(list(slots.extra_tokens), (Numbers{1, 2}));
  EXPECT_EQ(list(slots.read), list(slots.write)) << "read before it is written, for the last token";
  tables_->settle_append();
  EXPECT_EQ(states(), 3) << "at 8, 9 and 10 tokens";
  const Status refused = tables_->truncate(id, 7);
  EXPECT_EQ(refused.code, StatusCode::failed_precondition);
  EXPECT_EQ(refused.available, 0u);
  EXPECT_EQ(tables_->restorable_length(id, 9).value(), 9);
  ASSERT_OK(tables_->truncate(id, 8));
  EXPECT_EQ(states(), 1);
  const auto next = grow(id, 1);
  ASSERT_OK(next);
  EXPECT_NE(list(next->states[0].read), list(next->states[0].write)) << "8 can be had again";
  ASSERT_OK(tables_->undo_append(true));
  EXPECT_EQ(tables_->restorable_length(id, 8).value(), 8);
}

TEST_F(StateTablesTest, ACheckpointStaysUntilItsPagesAreNeeded) {
  create({}, 12);
  const SequenceId id = sequence(4);
  ASSERT_OK(tables_->checkpoint(id));
  const Numbers kept = held(id);
  ASSERT_OK(grow(id, 3));
  EXPECT_FAILS(tables_->checkpoint(id), failed_precondition, sequence) << "before it is settled";
  tables_->settle_append();
  EXPECT_EQ(manager_->group_stats(1).evictable, 2);
  std::vector<std::int64_t> lengths(4);
  EXPECT_EQ(tables_->checkpoints_of(id, lengths).value(), 1);
  EXPECT_EQ(lengths[0], 4);
  EXPECT_FAILS(tables_->checkpoints_of(id, std::span(lengths).first(0)), invalid_argument,
               span_size);
  EXPECT_EQ(tables_->restorable_length(id, 6).value(), 4);
  const SequenceId child = tables_->fork(id, 4).value();
  EXPECT_EQ(held(child), kept);
  ASSERT_OK(tables_->destroy(child));
  ASSERT_OK(tables_->truncate(id, 4));
  EXPECT_EQ(held(id), kept);
  ASSERT_OK(grow(id, 3));
  tables_->settle_append();
  // 2 + 2 pages are held; this one needs all others.
  const SequenceId large = tables_->create_sequence().value();
  ASSERT_OK(grow(large, 24));
  EXPECT_EQ(tables_->checkpoints_of(id, lengths).value(), 0);
  EXPECT_FAILS(tables_->truncate(id, 4), failed_precondition, sequence_length);
  ASSERT_OK(tables_->check_invariants());
}

TEST_F(StateTablesTest, StepsPassCheckpoints) {
  create({.every = 8});
  const SequenceId id = tables_->create_sequence().value();
  const auto step = grow(id, 27);
  ASSERT_OK(step);
  EXPECT_EQ(list(step->states[0].extra_tokens), (Numbers{7, 15, 23}));
  tables_->settle_append();
  std::vector<std::int64_t> lengths(4);
  ASSERT_EQ(tables_->checkpoints_of(id, lengths).value(), 3);
  EXPECT_EQ(lengths, (std::vector<std::int64_t>{8, 16, 24, 0}));
  EXPECT_EQ(states(), 1);
  ASSERT_OK(grow(id, 5));
  tables_->settle_append();
  ASSERT_EQ(tables_->checkpoints_of(id, lengths).value(), 4) << "the end is at a multiple";
  EXPECT_EQ(lengths[3], 32);
  const Numbers kept = held(id);
  const auto next = grow(id, 1);
  ASSERT_OK(next);
  EXPECT_NE(list(next->states[0].write), kept) << "a checkpoint is not written over";
  ASSERT_OK(tables_->undo_append(true));
  ASSERT_OK(tables_->truncate(id, 16));
  EXPECT_EQ(tables_->checkpoints_of(id, lengths).value(), 2) << "later tokens may differ";
}

TEST_F(StateTablesTest, MarksAreLeftOutWhenPagesAreShort) {
  create({.every = 4}, 9);
  const SequenceId id = tables_->create_sequence().value();
  const auto step = grow(id, 20);  // 5 + 2 pages; two are left
  ASSERT_OK(step);
  EXPECT_EQ(step->states[0].extra_tokens.size(), 0u);
  tables_->settle_append();
  std::vector<std::int64_t> lengths(8);
  EXPECT_EQ(tables_->checkpoints_of(id, lengths).value(), 1) << "that at the end needs no page";
}

TEST_F(StateTablesTest, ASequenceBeginsWithBlocksOfACheckpoint) {
  create({});
  const SequenceId id = sequence(4);
  ASSERT_OK(tables_->checkpoint(id));
  std::vector<BlockId> state(2);
  std::vector<Generation> of_state(2);
  EXPECT_FAILS(tables_->state_blocks(id, 3, 1, state, of_state), failed_precondition,
               sequence_length);
  EXPECT_FAILS(tables_->state_blocks(id, 4, 0, state, of_state), invalid_argument, num_groups);
  ASSERT_EQ(tables_->state_blocks(id, 4, 1, state, of_state).value(), 2);
  const BlockId full = tables_->lookup(id, 0, 0).value();
  const Generation of_full = manager_->generation(full);
  ASSERT_OK(manager_->set_content(full, of_full, BlockContent::published));
  ASSERT_OK(tables_->destroy(id));
  const std::vector<GroupBlocks> blocks{{0, std::span(&full, 1), std::span(&of_full, 1)},
                                        {0, state, of_state}};
  const SequenceId made = tables_->create_sequence_from(4, blocks).value();
  EXPECT_EQ(held(made), (Numbers{state[0].value, state[1].value}));
  const std::vector<GroupBlocks> half{{0, std::span(&full, 1), std::span(&of_full, 1)},
                                      {0, std::span(state).first(1), std::span(of_state).first(1)}};
  EXPECT_FAILS(tables_->create_sequence_from(4, half), invalid_argument, num_blocks);
  ASSERT_OK(tables_->check_invariants());
}

TEST_F(StateTablesTest, BadOptionsAreRefused) {
  const BlockGroup blocks[] = {{1, 64}, {1, 64}};
  BlockManager pool = BlockManager::create({.num_blocks = 8, .groups = blocks}).value();
  const auto option_of = [&](const TableGroup& group, std::int64_t every = 32) {
    const TableGroup both[] = {{.block_size_tokens = 16}, group};
    const Status status =
        BlockTables::create(pool, {.groups = both, .checkpoint_every_tokens = every}).status();
    EXPECT_EQ(status.code, StatusCode::invalid_argument);
    return status.option;
  };
  constexpr auto kState = PagedKind::state;
  EXPECT_EQ(option_of({.kind = kState, .num_parts = 0}), Option::num_parts);
  EXPECT_EQ(option_of({.kind = kState, .num_parts = 4097}), Option::num_parts);
  EXPECT_EQ(option_of({.kind = kState, .mode = static_cast<StateMode>(2)}), Option::mode);
  EXPECT_EQ(option_of({.kind = kState}, 24), Option::checkpoint_every_tokens);
  EXPECT_EQ(option_of({.kind = kState}, -16), Option::checkpoint_every_tokens);
  BlockManager plain = BlockManager::create({.num_blocks = 8}).value();
  BlockTables without = BlockTables::create(plain, {}).value();
  const SequenceId id = without.create_sequence().value();
  EXPECT_FAILS(without.checkpoint(id), unsupported, num_groups);
}

}  // namespace
}  // namespace kvarena
