// Staging of groups without a device: what the host writes into the rings, read by the plain
// version of the kernel, makes the arrays of every part equal to the tables, and those of every
// group of states equal to what the append returned.

#include "step/group_staging.hpp"
#include "blocktable/state_extras.hpp"
#include "kernels/reference/scatter_step.hpp"
#include "step/group_rows.hpp"
#include "support/process_memory.hpp"
#include "support/status_matchers.hpp"
#include "unit/step/host_tables.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace kvarena {
namespace {

constexpr std::int32_t kSequences = 7;
constexpr std::int64_t kLongest = 2400;
constexpr std::int64_t kTokens = 120;

/// A full group of two parts, a window that can be rolled back, chunks, an encoder, another window.
std::vector<GroupTablePart> parts() {
  return {{{PagedKind::full, 8, 0, 0, 7, 3}, 0}, {{PagedKind::full, 8, 0, 0, 5, 2}, 0},
          {{PagedKind::window, 2, 9, 3}, 1},     {{PagedKind::chunk, 4, 12}, 2},
          {{PagedKind::cross, 8, 21}, 3},        {{PagedKind::window, 4, 1}, 4},
          {{PagedKind::chunk, 2, 128}, 5}};
}

/// States that are taken back, copied and kept; states of another group that are written over.
std::vector<TableGroup> states() {
  return {{.kind = PagedKind::state,
           .rollback_tokens = 2,
           .ids_per_page = 7,
           .ids_per_block = 3,
           .num_parts = 3},
          {.kind = PagedKind::state,
           .num_parts = 2,
           .mode = StateMode::read_write,
           .keeps_for_undo = false}};
}
constexpr std::int64_t kEvery = 64;

GroupTablesOptions options_of(std::int64_t max_blocks, bool has_states) {
  std::vector<GroupTableStates> its;
  for (const TableGroup& group : states()) {
    if (!has_states) break;
    its.push_back(
        {group.num_parts, most_extras(group.rollback_tokens, kSequences, kTokens, kEvery)});
  }
  return {.limits = {.steps_in_flight = 3,
                     .max_rows = kSequences,
                     .max_tokens = kTokens,
                     .max_blocks = max_blocks},
          .max_sequences = kSequences,
          .max_sequence_tokens = kLongest,
          .parts = parts(),
          .states = std::move(its)};
}

/// Block tables, and their mirror in host memory.
class Mirror {
 public:
  Mirror(std::int64_t max_blocks, bool lives_are_long, std::uint64_t seed, bool has_states = false)
      : lives_are_long_(lives_are_long),
        options_(options_of(max_blocks, has_states)),
        plan_(plan_memory(options_)),
        memory_(plan_.device_bytes),
        rings_(plan_.staging_bytes),
        staging_(options_, plan_, rings_.data()),
        random_(seed) {
    std::memset(memory_.data(), 0xff, static_cast<std::size_t>(plan_.zeros));
    std::vector<BlockGroup> carved(options_.parts.size(), BlockGroup{2, 100});
    carved[2].blocks_per_page = 5;
    carved.resize(carved.size() + options_.states.size(), BlockGroup{2, 100});
    manager_ = std::make_unique<BlockManager>(
        BlockManager::create({.num_blocks = 900, .groups = carved}).value());
    std::vector<TableGroup> groups;
    for (const GroupTablePart& part : options_.parts) groups.push_back(part.table);
    if (has_states) std::ranges::copy(states(), std::back_inserter(groups));
    tables_ = std::make_unique<BlockTables>(
        BlockTables::create(*manager_, {.max_sequences = kSequences,
                                        .max_append_tokens = kTokens,
                                        .report_rows = true,
                                        .can_undo = true,
                                        .groups = groups,
                                        .checkpoint_every_tokens = kEvery})
            .value());
  }

  void play(int steps) {
    for (int i = 0; i < steps && !::testing::Test::HasFailure(); ++i) {
      SCOPED_TRACE("step " + std::to_string(i));
      change();
      step();
    }
    EXPECT_OK(tables_->check_invariants());
  }
  int num_rows() const { return num_rows_; }
  int num_copies() const { return num_copies_; }
  /// Of the group with the fewest, among those without room for the longest table of each sequence.
  std::uint64_t num_restarts() const {
    std::uint64_t least = ~std::uint64_t{0};
    for (std::size_t part = 0; part < options_.parts.size(); ++part) {
      const kernels::StepShape& shape = plan_.parts[part].shape;
      if (shape.table_entries >= std::int64_t{shape.max_sequences} * shape.max_blocks_a_row)
        continue;
      least = std::min(least, staging_.num_restarts(part));
    }
    return least;
  }
  int num_kept() const { return num_kept_; }
  int num_state_copies() const { return num_state_copies_; }
  int num_extras() const { return num_extras_; }
  int num_lost_steps() const { return num_lost_steps_; }

 private:
  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  SequenceId any() { return ids_[below(ids_.size())]; }

  void change() {
    if (ids_.empty() || (ids_.size() < kSequences && below(3) == 0)) {
      const auto cross = static_cast<std::int32_t>(below(22));
      ids_.push_back(tables_->create_sequence({.cross_tokens = cross}).value());
      return;
    }
    const SequenceId id = any();
    const std::int64_t length = tables_->info(id)->length_tokens;
    auto cut = std::max<std::int64_t>(0, length - static_cast<std::int64_t>(below(6)));
    if (!options_.states.empty()) cut = tables_->restorable_length(id, cut).value();
    switch (below(lives_are_long_ ? 60 : 7)) {
      case 0:
        if (ids_.size() == kSequences) return;
        if (const auto child = tables_->fork(id, cut); child) ids_.push_back(*child);
        return;
      case 1: static_cast<void>(tables_->truncate(id, cut)); return;
      case 2:
        ASSERT_OK(tables_->destroy(id));
        std::erase(ids_, id);
        return;
      case 3: static_cast<void>(tables_->reserve_capacity(id, length + 20)); return;
      default: return;
    }
  }

  void step() {
    demands_.clear();
    std::vector<std::int64_t> left(options_.parts.size(), options_.limits.max_blocks);
    for (const SequenceId id : ids_) {
      if (below(4) == 0) continue;
      const std::int64_t length = tables_->info(id)->length_tokens;
      // States that were lost, by a step that was given up.
      const std::int64_t restored = tables_->restorable_length(id, length).value();
      if (restored < length && !options_.states.empty()) {
        ASSERT_OK(tables_->truncate(id, restored));
        continue;
      }
      const auto most = static_cast<std::int64_t>(below(below(4) == 0 ? 17 : 3));
      const std::int64_t tokens = std::min(kLongest - length, most);
      for (std::size_t part = 0; part < left.size(); ++part) {
        left[part] -= tables_->kept_after(id, static_cast<std::int32_t>(part), tokens).value();
      }
      if (std::ranges::min(left) < 0) break;
      demands_.push_back({id, static_cast<std::int32_t>(tokens)});
    }
    const Result<AppendResult> appended = tables_->append(demands_);
    if (!appended) {
      ASSERT_OK(tables_->destroy(ids_.back()));
      ids_.pop_back();
      return;
    }
    const Status staged = staging_.stage(*tables_, *appended);
    ASSERT_OK(staged);
    if (below(9) == 0) {  // it is not launched
      staging_.withdraw(*tables_);
      ASSERT_OK(tables_->undo_append(false));
      return;
    }
    run(below(3) == 0);
    for (std::size_t part = 0; part < options_.parts.size(); ++part) compare(*appended, part);
    for (std::size_t i = 0; i < options_.states.size(); ++i) compare_states(*appended, i);
    if (below(25) == 0) {
      miss();
      staging_.resync(*tables_, taken());
    }
    if (below(8) == 0) {
      ASSERT_OK(tables_->undo_append(true));
    } else {
      tables_->settle_append();
    }
  }

  std::uint64_t taken() const { return params(0).report->taken; }
  kernels::ScatterStepParams params(std::size_t part) const {
    const bool is_cross = options_.parts[part].table.kind == PagedKind::cross;
    return place_arrays(plan_, part, !is_cross, memory_.data(), rings_.data());
  }
  kernels::ScatterStatesParams states_params(std::size_t i) const {
    return place_states(plan_, i, memory_.data(), rings_.data());
  }
  /// Runs a launch that finds no step: rows of states have no slots, and nothing is copied.
  void miss() {
    for (std::size_t i = 0; i < options_.states.size(); ++i) {
      kernels::ScatterStatesParams its = states_params(i);
      const std::uint64_t before = its.report->misses;
      kernels::reference::scatter_states(its);  // of the step that was taken already
      ASSERT_EQ(its.report->misses, before + 1);
      ASSERT_EQ(its.read[0], -1);
      ASSERT_EQ(its.write[0], -1);
      ASSERT_EQ(its.extra_offsets[1], 0);
      ASSERT_EQ(its.state->step.num_copies, 0);
      ASSERT_EQ(its.copies[0].target, kNoBlock);
      ++num_lost_steps_;
    }
  }
  /// Runs the launch of the staged step in every part: by itself, or as a graph does.
  void run(bool is_recorded) {
    const kernels::StepWord word = staging_.expected();
    std::memcpy(memory_.data() + plan_.expected_word, &word, sizeof(word));
    for (std::size_t part = 0; part < options_.parts.size(); ++part) {
      kernels::ScatterStepParams its = params(part);
      if (!is_recorded) {
        its.expected_word = nullptr;
        its.expected = word;
      }
      kernels::reference::scatter_step(its);
      ASSERT_EQ(its.report->taken, staging_.staged_serial());
      ASSERT_EQ(its.report->misses, 0U);
    }
    for (std::size_t i = 0; i < options_.states.size(); ++i) {
      kernels::ScatterStatesParams its = states_params(i);
      if (!is_recorded) {
        its.expected_word = nullptr;
        its.expected = word;
      }
      kernels::reference::scatter_states(its);
      ASSERT_EQ(its.report->taken, staging_.staged_serial());
    }
    staging_.advance();
  }

  /// The rows of the kernels, the entries of kept blocks, the slots and the copies of a part.
  void compare(const AppendResult& appended, std::size_t part) {
    SCOPED_TRACE("part " + std::to_string(part));
    if (::testing::Test::HasFailure()) return;
    const kernels::ScatterStepParams p = params(part);
    const TableGroup& table = options_.parts[part].table;
    const auto group = static_cast<std::int32_t>(part);
    std::int32_t row = 0;
    std::int64_t token = 0;
    for (const AppendDemand& demand : demands_) {
      std::vector<std::int32_t> entries(kLongest);
      std::int32_t tokens = 0;
      ASSERT_OK(tables_->copy_rows(std::span(&demand.sequence, 1), entries, kLongest,
                                   std::span(&tokens, 1), group));
      // An encoder's blocks come with the first token.
      if (table.kind == PagedKind::cross && entries[0] == kNoBlock.value) tokens = 0;
      for_each_row(table, tokens, demand.num_tokens, [&](const GroupRow& its) {
        ASSERT_GE(p.row_slots[row], 0) << "row " << row;
        ASSERT_EQ(p.row_offsets[row], p.row_slots[row] * kernels::StepShape::kGranule);
        ASSERT_EQ(p.seq_lens[row], its.length) << "row " << row;
        ASSERT_EQ(p.q_offsets[row], token) << "row " << row;
        for (std::int32_t j = 0; j < p.num_blocks[row]; ++j) {
          const auto index = static_cast<std::size_t>(its.first_block + j);
          if (entries[index] == kNoBlock.value) continue;
          ASSERT_EQ(p.block_tables[p.row_offsets[row] + j].value, entries[index])
              << "row " << row << ", block " << index << " of length " << tokens;
          ++num_kept_;
        }
        ++row;
        ++num_rows_;
        token += its.num_new;
      });
    }
    ASSERT_EQ(row, staging_.num_rows(part));
    ASSERT_EQ(p.q_offsets[row], token);
    for (std::int64_t i = 0; i < token && p.slots != nullptr; ++i) {
      const auto at = static_cast<std::size_t>(group * token + i);
      ASSERT_EQ(p.slots[i], appended.slots[at]) << "token " << i;
    }
    std::int32_t copy = 0;
    for (std::size_t i = 0; i < appended.copies.size(); ++i) {
      if (appended.copy_groups[i] != group) continue;
      ASSERT_EQ(p.copies[copy].source, appended.copies[i].source);
      ASSERT_EQ(p.copies[copy++].target, appended.copies[i].target);
    }
    ASSERT_EQ(copy, staging_.num_copies(part));
    ASSERT_EQ(p.copies[copy].source, kNoBlock);
    num_copies_ += copy;
  }

  /// The slots, extras and copies of a group of states, and empty values behind them.
  void compare_states(const AppendResult& appended, std::size_t index) {
    if (::testing::Test::HasFailure()) return;
    SCOPED_TRACE("states " + std::to_string(index));
    const StateSlots& given = appended.states[index];
    const kernels::ScatterStatesParams p = states_params(index);
    const std::size_t rows = demands_.size();
    const auto equals = [](std::span<const std::int32_t> wanted, const std::int32_t* found) {
      return std::equal(wanted.begin(), wanted.end(), found);
    };
    ASSERT_EQ(given.extra_offsets.size(), rows + 1);
    EXPECT_TRUE(equals(given.read, p.read));
    EXPECT_TRUE(equals(given.write, p.write));
    EXPECT_TRUE(equals(given.extra_offsets, p.extra_offsets));
    EXPECT_TRUE(equals(given.extra_tokens, p.extra_tokens));
    EXPECT_TRUE(equals(given.extra_slots, p.extra_slots));
    const auto extras = static_cast<std::int32_t>(given.extra_tokens.size());
    for (std::size_t row = rows; row < kSequences; ++row) {
      ASSERT_EQ(p.read[row * static_cast<std::size_t>(given.num_parts)], -1);
      ASSERT_EQ(p.write[row * static_cast<std::size_t>(given.num_parts)], -1);
      ASSERT_EQ(p.extra_offsets[row + 1], extras) << "row " << row;
    }
    num_extras_ += extras;
    std::int32_t copy = 0;
    for (std::size_t i = 0; i < appended.copies.size(); ++i) {
      if (appended.copy_groups[i] != given.group) continue;
      ASSERT_EQ(p.copies[copy].source, appended.copies[i].source);
      ASSERT_EQ(p.copies[copy++].target, appended.copies[i].target);
    }
    ASSERT_EQ(copy, p.state->step.num_copies);
    ASSERT_EQ(copy, staging_.num_state_copies(index));
    ASSERT_TRUE(copy == p.shape.num_slots() || p.copies[copy].target == kNoBlock);
    num_state_copies_ += copy;
  }

  bool lives_are_long_;
  GroupTablesOptions options_;
  GroupTablesMemory plan_;
  test::AlignedMemory memory_;
  test::AlignedMemory rings_;
  GroupStaging staging_;
  std::mt19937_64 random_;
  std::unique_ptr<BlockManager> manager_;
  std::unique_ptr<BlockTables> tables_;
  std::vector<SequenceId> ids_;
  std::vector<AppendDemand> demands_;
  int num_rows_ = 0;
  int num_kept_ = 0;
  int num_copies_ = 0;
  int num_state_copies_ = 0;
  int num_extras_ = 0;
  int num_lost_steps_ = 0;
};

TEST(GroupStaging, ArraysEqualTheTablesAfterEveryStep) {
  for (std::uint64_t seed = 1; seed <= (test::kSanitized ? 2 : 6) && !::testing::Test::HasFailure();
       ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Mirror mirror(kSequences * kLongest / 2, false, seed);
    mirror.play(3000);
    EXPECT_GT(mirror.num_rows(), 10'000);
    EXPECT_GT(mirror.num_kept(), 100'000);
    EXPECT_GT(mirror.num_copies(), 100);
  }
}

TEST(GroupStaging, SlotsOfStatesAreThoseOfTheStep) {
  for (std::uint64_t seed = 1; seed <= (test::kSanitized ? 1 : 4) && !::testing::Test::HasFailure();
       ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Mirror mirror(kSequences * kLongest / 2, false, seed, true);
    mirror.play(3000);
    EXPECT_GT(mirror.num_rows(), 10'000);
    EXPECT_GT(mirror.num_state_copies(), 1000);
    EXPECT_GT(mirror.num_extras(), 1000);
    EXPECT_GT(mirror.num_lost_steps(), 50);
  }
}

// Tables that outgrow their regions, in a pool that has room for the rows of a step only.
TEST(GroupStaging, TablesAreFoundWhereverTheyLie) {
  for (std::uint64_t seed = 1; seed <= (test::kSanitized ? 1 : 4) && !::testing::Test::HasFailure();
       ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Mirror mirror(1300, true, seed);
    mirror.play(5000);
    EXPECT_GT(mirror.num_kept(), 100'000);
    EXPECT_GT(mirror.num_restarts(), 1U);
  }
}

// A row for each chunk with new tokens; the last one's chunk when there is none.
TEST(GroupRows, AChunkHasRowsOfItsOwn) {
  const TableGroup chunk{PagedKind::chunk, 4, 12};
  const auto rows_of = [&](std::int32_t tokens, std::int32_t num_new) {
    std::string rows;
    for_each_row(chunk, tokens, num_new, [&](const GroupRow& row) {
      rows += std::to_string(row.first_block) + ":" + std::to_string(row.length) + "+" +
              std::to_string(row.num_new) + " ";
    });
    return rows;
  };
  EXPECT_EQ(rows_of(5, 2), "0:5+2 ");
  EXPECT_EQ(rows_of(12, 12), "0:12+12 ");
  EXPECT_EQ(rows_of(13, 1), "3:1+1 ");
  EXPECT_EQ(rows_of(13, 2), "0:12+1 3:1+1 ");
  EXPECT_EQ(rows_of(40, 30), "0:12+2 3:12+12 6:12+12 9:4+4 ");
  EXPECT_EQ(rows_of(24, 0), "3:12+0 ");
  EXPECT_EQ(rows_of(0, 0), "0:0+0 ");
  for (std::int32_t num_new = 0; num_new < 40; ++num_new) {
    std::int64_t most = 0;
    for (std::int32_t old = 0; old < 24; ++old) {
      std::int64_t rows = 0;
      for_each_row(chunk, old + num_new, num_new, [&](const GroupRow&) { ++rows; });
      most = std::max(most, rows);
    }
    EXPECT_EQ(most, most_rows_of_one(chunk, num_new)) << num_new;
    EXPECT_LE(most, most_rows(chunk, 1, num_new)) << num_new;
  }
}

TEST(GroupRows, AnEncoderHasARowForEachNewToken) {
  const TableGroup cross{PagedKind::cross, 8, 21};
  std::int64_t rows = 0;
  for_each_row(cross, 17, 3, [&](const GroupRow& row) {
    EXPECT_EQ(row.length, 17);
    EXPECT_EQ(row.num_new, 1);
    ++rows;
  });
  EXPECT_EQ(rows, 3);
  for_each_row(cross, 17, 0, [&](const GroupRow& row) { EXPECT_EQ(row.num_new, 0); });
  EXPECT_EQ(most_rows_of_one(cross, 3), 3);
  EXPECT_EQ(most_rows_of_one(cross, 0), 1);
}

}  // namespace
}  // namespace kvarena
