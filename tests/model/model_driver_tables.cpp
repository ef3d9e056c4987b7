// Moves on the block tables.

#include "model/model_driver.hpp"

#include <algorithm>

namespace kvarena::model {

void ModelDriver::create_sequence() {
  const SequenceOptions options = sequence_options();
  const Status predicted = naive_.can_create(options);
  const Result<SequenceId> real = tables_.create_sequence(options);
  expect_status(real.status(), predicted, "create_sequence");
  if (failed() || !real) return;
  const Result<SequenceInfo> info = tables_.info(*real);
  if (!info) return fail("a new sequence is unknown");
  if (!naive_.adopt(*real, info->holder, options)) fail("a sequence or holder id came back");
  living_.push_back(*real);
  changed_.insert(*real);
}

void ModelDriver::fork_sequence() {
  const SequenceId parent = any_sequence();
  const SequenceOptions options = sequence_options();
  const Result<SequenceInfo> parent_info = naive_.info(parent);
  const std::int64_t length = parent_info ? parent_info->length_tokens : 5;
  std::int64_t cut = static_cast<std::int64_t>(below(static_cast<std::uint64_t>(length) + 1));
  if (one_in(3)) cut = length;
  if (one_in(50)) cut = one_in(2) ? -1 : length + 1;
  const Status predicted = naive_.can_fork(parent, cut, options);
  const Result<SequenceId> real = tables_.fork(parent, cut, options);
  expect_status(real.status(), predicted, "fork");
  if (failed() || !real) return;
  const Result<SequenceInfo> info = tables_.info(*real);
  if (!info) return fail("a new fork is unknown");
  if (!naive_.adopt_fork(parent, cut, *real, info->holder, options)) {
    fail("a sequence or holder id came back");
  }
  living_.push_back(*real);
  changed_.insert(*real);
  changed_.insert(parent);
}

void ModelDriver::destroy_sequence() {
  const SequenceId id = any_sequence();
  const Ticket ticket = one_in(2) ? kNoTicket : any_ticket();
  const Status predicted = naive_.destroy_many(std::span(&id, 1), ticket);
  expect_status(tables_.destroy(id, ticket), predicted, "destroy");
  if (predicted) note_removed(id);
}

void ModelDriver::destroy_several() {
  const std::vector<SequenceId> ids = some_sequences(living_.size() / 2 + 2);
  const Ticket ticket = one_in(2) ? kNoTicket : any_ticket();
  const Status predicted = naive_.destroy_many(ids, ticket);
  expect_status(tables_.destroy_many(ids, ticket), predicted, "destroy_many");
  for (const SequenceId id : ids) {
    if (predicted) note_removed(id);
  }
}

void ModelDriver::decode_step() {
  const std::vector<SequenceId> ids =
      one_in(2) ? readable_sequences() : some_sequences(living_.size());
  std::vector<AppendDemand> demands;
  for (const SequenceId id : ids) demands.push_back({id, 1});
  const Result<Growth> model = naive_.append(demands, Urgency::growth);
  const Result<AppendResult> real = tables_.append_one_each(ids);
  expect_append(demands, real, model);
  changed_.insert(ids.begin(), ids.end());
}

void ModelDriver::append_several() {
  std::vector<AppendDemand> demands;
  for (const SequenceId id : some_sequences(1 + below(8))) {
    demands.push_back({id, static_cast<std::int32_t>(chunk_tokens())});
    if (one_in(3)) demands.back().urgency = any_urgency();
  }
  const Urgency urgency = any_urgency();
  const Result<Growth> model = naive_.append(demands, urgency);
  const Result<AppendResult> real = tables_.append(demands, urgency);
  expect_append(demands, real, model);
  for (const AppendDemand& demand : demands) changed_.insert(demand.sequence);
}

void ModelDriver::expect_append(std::span<const AppendDemand> demands,
                                const Result<AppendResult>& real, const Result<Growth>& model) {
  expect_status(real.status(), model.status(), "append");
  expect_equal(tables_.failed_demand(), naive_.failed_demand(), "failed_demand");
  if (failed() || !model) return;
  expect_equal(real->new_blocks, model->new_blocks, "append's new_blocks");
  if (!std::equal(real->slots.begin(), real->slots.end(), model->slots.begin(),
                  model->slots.end())) {
    fail("append's slots differ");
  }
  const auto equal_copy = [](const BlockCopy& a, const BlockCopy& b) {
    return a.source == b.source && a.target == b.target;
  };
  if (!std::equal(real->copies.begin(), real->copies.end(), model->copies.begin(),
                  model->copies.end(), equal_copy)) {
    fail("append's copies differ: " + std::to_string(real->copies.size()) + ", the model has " +
         std::to_string(model->copies.size()));
  }
  expect_equal(static_cast<std::int64_t>(real->rows.size()),
               static_cast<std::int64_t>(demands.size()), "append's number of rows");
  if (failed() || ++mirrorings_ % 4 == 0) return;  // a step that was never staged
  for (std::size_t i = 0; i < demands.size(); ++i) {
    expect_equal(real->rows[i].num_new_tokens, demands[i].num_tokens, "new tokens of a row");
    mirror_row(real->rows[i], demands[i].sequence);
  }
}

/// Tells the mirror what changed; it then has the blocks of the sequence's tokens. Now and then it
/// loses them again.
void ModelDriver::mirror_row(const AppendedRow& row, SequenceId id) {
  const NaiveTables::Sequence& sequence = naive_.sequences().at(id);
  const auto blocks = static_cast<std::size_t>(naive_.blocks_for(sequence.length));
  const auto changed = static_cast<std::size_t>(row.num_changed_blocks);
  expect_equal(row.length_tokens, sequence.length, "length of a row");
  expect_equal(tables_.changed_blocks(row.slot), row.num_changed_blocks, "changed_blocks");
  if (failed() || changed > blocks) return fail("more blocks of a row changed than it has");
  std::vector<BlockId>& mirror = mirror_[row.slot];
  if (mirror.size() < blocks) mirror.resize(blocks, kNoBlock);
  const std::span<BlockId> lacking = std::span(mirror).subspan(blocks - changed, changed);
  expect_equal(tables_.mirror_changes(row.slot, lacking), row.num_changed_blocks, "mirror_changes");
  expect_equal(tables_.changed_blocks(row.slot), 0, "changed_blocks of a mirrored row");
  for (std::size_t j = 0; j < blocks; ++j) {
    expect_equal(mirror[j].value, sequence.blocks[j].id.value, "entry of the mirror");
  }
  if (mirrorings_ % 7 != 0) return;
  tables_.unmirror(row.slot, static_cast<std::int32_t>(blocks - changed));
  std::fill(lacking.begin(), lacking.end(), kNoBlock);
}

void ModelDriver::reserve_capacity() {
  const SequenceId id = any_sequence();
  const Result<SequenceInfo> info = naive_.info(id);
  std::int64_t capacity = (info ? info->length_tokens : 0) + chunk_tokens();
  if (one_in(50)) capacity = one_in(2) ? -1 : std::int64_t{1} << 35;
  const Urgency urgency = any_urgency();
  expect_status(tables_.reserve_capacity(id, capacity, urgency),
                naive_.reserve_capacity(id, capacity, urgency), "reserve_capacity");
  expect_equal(tables_.failed_demand(), naive_.failed_demand(), "failed_demand");
  changed_.insert(id);
}

void ModelDriver::promise_capacity() {
  const SequenceId id = any_sequence();
  const Result<SequenceInfo> info = naive_.info(id);
  std::int64_t capacity = (info ? info->length_tokens : 0) + chunk_tokens();
  if (one_in(4)) capacity = 0;
  if (one_in(50)) capacity = one_in(2) ? -1 : std::int64_t{1} << 30;
  expect_status(tables_.promise_capacity(id, capacity), naive_.promise_capacity(id, capacity),
                "promise_capacity");
  changed_.insert(id);
}

void ModelDriver::truncate_sequence() {
  const SequenceId id = any_sequence();
  const Result<SequenceInfo> info = naive_.info(id);
  const std::int64_t length = info ? info->length_tokens : 0;
  std::int64_t keep = static_cast<std::int64_t>(below(static_cast<std::uint64_t>(length) + 1));
  if (one_in(5)) keep = length;  // gives reserved capacity back
  if (one_in(5)) keep -= keep % game_.tables.block_size_tokens;
  if (one_in(40)) keep = one_in(2) ? -1 : length + 1;
  const Ticket ticket = one_in(2) ? kNoTicket : any_ticket();
  expect_status(tables_.truncate(id, keep, ticket), naive_.truncate(id, keep, ticket), "truncate");
  changed_.insert(id);
}

void ModelDriver::roll_back_token() {
  const SequenceId id = any_sequence();
  const Result<SequenceInfo> info = naive_.info(id);
  const std::int64_t length = info ? info->length_tokens - 1 : 0;
  expect_status(tables_.truncate(id, length), naive_.truncate(id, length, kNoTicket),
                "truncate by one");
  changed_.insert(id);
}

void ModelDriver::ask_tables() {
  const SequenceId id = any_sequence();
  const Result<SequenceInfo> info = naive_.info(id);
  const auto blocks = static_cast<std::uint64_t>(info ? info->num_blocks : 0);
  const auto tokens = static_cast<std::uint64_t>(info ? info->length_tokens : 0);
  for (int i = 0; i < 3; ++i) {
    const auto index = static_cast<std::int64_t>(below(blocks + 2)) - (one_in(20) ? 1 : 0);
    const Result<BlockId> block = tables_.lookup(id, index);
    const Result<BlockId> model_block = naive_.lookup(id, index);
    expect_status(block.status(), model_block.status(), "lookup");
    if (block && model_block) expect_equal(block->value, model_block->value, "lookup");
    const auto token = static_cast<std::int64_t>(below(tokens + 2)) - (one_in(20) ? 1 : 0);
    const Result<std::int64_t> slot = tables_.slot_of(id, token);
    const Result<std::int64_t> model_slot = naive_.slot_of(id, token);
    expect_status(slot.status(), model_slot.status(), "slot_of");
    if (slot && model_slot) expect_equal(*slot, *model_slot, "slot_of");
  }
  if (!info || info->num_blocks == 0) return;
  std::vector<BlockId> short_by_one(blocks - 1);
  const Status refused = tables_.blocks_of(id, short_by_one).status();
  if (refused.code != StatusCode::invalid_argument || refused.resource != Resource::span_size) {
    fail("blocks_of accepts a span that is too small");
  }
}

void ModelDriver::view_batch() {
  const std::vector<SequenceId> ids = some_sequences(living_.size());
  Status predicted;
  std::set<SequenceId> named;
  for (const SequenceId id : ids) {
    if (!predicted) break;
    if (!naive_.sequences().contains(id)) {
      predicted = not_found(Resource::sequence, id.value);
    } else if (!named.insert(id).second) {
      predicted = duplicate_argument(Resource::sequence, id.value);
    }
  }
  const Result<BatchView> view = tables_.view(ids);
  expect_status(view.status(), predicted, "view");
  if (failed() || !view) return;
  expect_equal(view->num_rows, static_cast<std::int64_t>(ids.size()), "rows of a view");
  expect_equal(view->tables.num_rows, static_cast<std::int64_t>(ids.size()), "rows of its tables");
  for (std::size_t row = 0; row < ids.size(); ++row) {
    const NaiveTables::Sequence& sequence = naive_.sequences().at(ids[row]);
    const std::int64_t blocks = naive_.blocks_for(sequence.length);
    expect_equal(view->seq_lens[row], sequence.length, "length in a view");
    expect_equal(view->num_blocks[row], blocks, "blocks in a view");
    for (std::int64_t j = 0; j < blocks; ++j) {
      expect_equal(view->tables.block(static_cast<std::int32_t>(row), j).value,
                   sequence.blocks[static_cast<std::size_t>(j)].id.value, "entry of a view");
    }
  }
}

}  // namespace kvarena::model
