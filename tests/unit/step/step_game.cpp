#include "unit/step/step_game.hpp"

#include <algorithm>
#include <sstream>
#include <utility>

namespace kvarena::test {
namespace {

template <class T>
std::vector<T> array_at(const std::byte* image, std::int64_t offset, std::int64_t count) {
  const auto* first = reinterpret_cast<const T*>(image + offset);
  return {first, first + count};
}

/// Collects the first difference.
class Differ {
 public:
  void expect(std::int64_t found, std::int64_t wanted, const char* array, std::size_t index,
              std::int64_t entry = -1) {
    if (found == wanted || !text_.empty()) return;
    std::ostringstream out;
    out << array << "[" << index;
    if (entry >= 0) out << ", " << entry;
    out << "] is " << found << ", not " << wanted;
    text_ = out.str();
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

void compare_row(Differ& differ, const StepArrays& arrays, const ExpectedStep::Row& row,
                 std::size_t r) {
  constexpr std::int64_t kGranule = kernels::StepShape::kGranule;
  const auto blocks = static_cast<std::int64_t>(row.blocks.size());
  const std::int64_t offset = arrays.row_slots[r] * kGranule;  // wherever its table is
  differ.expect(arrays.row_offsets[r], offset, "row_offsets", r);
  if (offset < 0 || offset + blocks > std::ssize(arrays.block_tables)) {
    differ.expect(arrays.row_slots[r], 0, "row_slots", r);
    return;
  }
  differ.expect(arrays.seq_lens[r], row.seq_len, "seq_lens", r);
  differ.expect(arrays.num_blocks[r], blocks, "num_blocks", r);
  const BlockId* table = arrays.block_tables.data() + offset;
  for (std::int64_t j = 0; j < blocks; ++j) {
    differ.expect(table[j].value, row.blocks[static_cast<std::size_t>(j)].value, "block_tables",
                  static_cast<std::size_t>(offset), j);
  }
}

BlockTablesOptions options_of(const StepGameOptions& options) {
  return {.block_size_tokens = options.tables.block_size_tokens,
          .max_sequences = options.tables.max_sequences,
          .max_append_tokens = options.tables.limits.max_tokens,
          .report_rows = true};
}

}  // namespace

StepArrays StepArrays::of(const DeviceTablesMemory& plan, const std::byte* image) {
  const std::int64_t rows = plan.shape.max_rows;
  return {.block_tables = array_at<BlockId>(image, plan.block_tables, plan.shape.table_entries),
          .row_slots = array_at<std::int32_t>(image, plan.row_slots, rows),
          .row_offsets = array_at<std::int64_t>(image, plan.row_offsets, rows),
          .seq_lens = array_at<std::int32_t>(image, plan.seq_lens, rows),
          .num_blocks = array_at<std::int32_t>(image, plan.num_blocks, rows),
          .q_offsets = array_at<std::int64_t>(image, plan.q_offsets, rows + 1),
          .slots = array_at<std::int64_t>(image, plan.slots, plan.shape.max_tokens),
          .copies = array_at<BlockCopy>(image, plan.copies, rows)};
}

std::string ExpectedStep::difference(const StepArrays& arrays) const {
  Differ differ;
  for (std::size_t r = 0; r < arrays.row_slots.size(); ++r) {
    if (r < rows.size()) {
      compare_row(differ, arrays, rows[r], r);
      continue;
    }
    differ.expect(arrays.row_slots[r], -1, "row_slots", r);
    differ.expect(arrays.row_offsets[r], 0, "row_offsets", r);
    differ.expect(arrays.seq_lens[r], 0, "seq_lens", r);
    differ.expect(arrays.num_blocks[r], 0, "num_blocks", r);
  }
  for (std::size_t r = 0; r < arrays.q_offsets.size(); ++r) {
    differ.expect(arrays.q_offsets[r], q_offsets[std::min(r, q_offsets.size() - 1)], "q_offsets",
                  r);
  }
  for (std::size_t i = 0; i < arrays.slots.size(); ++i) {
    differ.expect(arrays.slots[i], i < slots.size() ? slots[i] : -1, "slots", i);
  }
  for (std::size_t i = 0; i < arrays.copies.size(); ++i) {
    const BlockCopy wanted = i < copies.size() ? copies[i] : BlockCopy{kNoBlock, kNoBlock};
    differ.expect(arrays.copies[i].source.value, wanted.source.value, "copies.source", i);
    differ.expect(arrays.copies[i].target.value, wanted.target.value, "copies.target", i);
  }
  return differ.text();
}

ExpectedStep nothing() {
  ExpectedStep step;
  step.q_offsets = {0};
  return step;
}

DeviceTablesOptions small_tables(std::int32_t block_size, std::int32_t steps_in_flight) {
  return {.limits = {.steps_in_flight = steps_in_flight,
                     .max_rows = 20,
                     .max_tokens = 300,
                     .max_blocks = 20 * 70},
          .max_sequences = 24,
          .max_sequence_blocks = 70,
          .block_size_tokens = block_size};
}

DeviceTablesOptions pooled_tables(std::int32_t block_size, std::int32_t steps_in_flight) {
  return {.limits = {.steps_in_flight = steps_in_flight,
                     .max_rows = 20,
                     .max_tokens = 300,
                     .max_blocks = 350},
          .max_sequences = 24,
          .max_sequence_blocks = 400,
          .block_size_tokens = block_size};
}

StepGameOptions large_game() {
  return {.seed = 3,
          .num_blocks = 200'000,
          .first_sequences = 2590,
          .longest_chunk = 100,
          .one_token_in_100 = 40,
          .tables = {.limits = {.steps_in_flight = 2,
                                .max_rows = 2500,
                                .max_tokens = 30'000,
                                .max_blocks = 60'000},
                     .max_sequences = 2600,
                     .max_sequence_blocks = 300,
                     .block_size_tokens = 2}};
}

StepGame::StepGame(const StepGameOptions& options)
    : options_(options),
      random_(options.seed),
      manager_(BlockManager::create(
                   {.num_blocks = options.num_blocks, .max_holders = options.tables.max_sequences})
                   .value()),
      tables_(BlockTables::create(manager_, options_of(options)).value()) {
  for (std::int32_t i = 0; i < options.first_sequences; ++i) {
    living_.push_back(tables_.create_sequence(longest()).value());
  }
}

SequenceOptions StepGame::longest() const {
  return {.max_length_tokens = std::int64_t{options_.tables.max_sequence_blocks} *
                               options_.tables.block_size_tokens};
}

void StepGame::destroy_one() {
  const std::size_t which = any();
  static_cast<void>(tables_.destroy(living_[which]));
  living_[which] = living_.back();
  living_.pop_back();
}

void StepGame::append_too_much() {
  const AppendDemand demand{living_[any()],
                            static_cast<std::int32_t>(options_.tables.limits.max_tokens)};
  const std::int64_t length = tables_.info(demand.sequence)->length_tokens;
  if (!tables_.append(std::span(&demand, 1))) return;
  static_cast<void>(tables_.truncate(demand.sequence, length));  // it fitted
}

void StepGame::change_something() {
  const std::uint64_t dice = living_.empty() ? 0 : below(20);
  if (dice < 6) {
    const Result<SequenceId> id = tables_.create_sequence(longest());
    if (id) living_.push_back(*id);
  } else if (dice < 10) {
    const SequenceId parent = living_[any()];
    const std::int64_t length = tables_.info(parent)->length_tokens;
    const std::int64_t shared =
        one_in(2) ? length
                  : static_cast<std::int64_t>(below(static_cast<std::uint64_t>(length) + 1));
    const Result<SequenceId> id = tables_.fork(parent, shared, longest());
    if (id) living_.push_back(*id);
  } else if (dice < 14) {
    const SequenceId id = living_[any()];
    const std::int64_t length = tables_.info(id)->length_tokens;
    const std::int64_t cut =
        one_in(2) ? std::min<std::int64_t>(length, 1)
                  : static_cast<std::int64_t>(below(static_cast<std::uint64_t>(length) + 1));
    static_cast<void>(tables_.truncate(id, length - cut));
  } else if (dice < 16) {
    const SequenceId id = living_[any()];
    static_cast<void>(tables_.reserve_capacity(
        id, tables_.info(id)->length_tokens + static_cast<std::int64_t>(below(30))));
  } else if (dice < 18) {
    destroy_one();
  } else {
    append_too_much();
  }
}

void StepGame::choose_batch() {
  batch_.clear();
  std::shuffle(living_.begin(), living_.end(), random_);
  const std::size_t most =
      std::min(living_.size(), static_cast<std::size_t>(options_.tables.limits.max_rows));
  const std::size_t count = one_in(3) ? below(most + 1) : most;
  std::int64_t left = options_.tables.limits.max_tokens;
  std::int64_t blocks_left = options_.tables.limits.max_blocks;
  for (std::size_t i = 0; i < count; ++i) {
    std::int64_t tokens = 1;
    if (below(100) >= options_.one_token_in_100) {
      tokens =
          static_cast<std::int64_t>(below(static_cast<std::uint64_t>(options_.longest_chunk) + 1));
    }
    const std::int64_t length = tables_.info(living_[i])->length_tokens;
    tokens = std::min({tokens, left, longest().max_length_tokens - length});
    const std::int64_t block_size = options_.tables.block_size_tokens;
    const std::int64_t blocks = (length + tokens + block_size - 1) / block_size;
    if (blocks > blocks_left) continue;
    blocks_left -= blocks;
    left -= tokens;
    batch_.push_back({living_[i], static_cast<std::int32_t>(tokens)});
  }
}

AppendResult StepGame::next() {
  for (std::uint64_t changes = below(4); changes > 0; --changes) change_something();
  for (;;) {
    choose_batch();
    const Result<AppendResult> appended = tables_.append(batch_);
    if (appended) return appended_ = *appended;
    destroy_one();  // the pool is used up
  }
}

ExpectedStep StepGame::expected() {
  ExpectedStep step;
  step.q_offsets.push_back(0);
  std::vector<SequenceId> ids;
  for (const AppendDemand& demand : batch_) {
    ids.push_back(demand.sequence);
    step.q_offsets.push_back(step.q_offsets.back() + demand.num_tokens);
  }
  const BatchView view = tables_.view(ids).value();
  for (std::int32_t r = 0; r < view.num_rows; ++r) {
    const SequenceId id = ids[static_cast<std::size_t>(r)];
    ExpectedStep::Row row{.seq_len = view.seq_lens[r], .blocks = {}};
    for (std::int64_t j = 0; j < view.num_blocks[r]; ++j) {
      row.blocks.push_back(view.tables.block(r, j));
    }
    const AppendDemand& demand = batch_[static_cast<std::size_t>(r)];
    for (std::int32_t i = row.seq_len - demand.num_tokens; i < row.seq_len; ++i) {
      step.slots.push_back(tables_.slot_of(id, i).value());
    }
    step.rows.push_back(std::move(row));
  }
  step.copies.assign(appended_.copies.begin(), appended_.copies.end());
  return step;
}

}  // namespace kvarena::test
