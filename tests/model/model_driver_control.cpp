// Moves on imports, pins and deadlines, and copies of the tables.

#include "model/model_driver.hpp"

#include <algorithm>
#include <iterator>

namespace kvarena::model {

/// The sequences whose tokens may be read.
std::vector<SequenceId> ModelDriver::readable_sequences() const {
  std::vector<SequenceId> readable;
  std::copy_if(living_.begin(), living_.end(), std::back_inserter(readable), [&](SequenceId id) {
    return naive_.sequences().at(id).import_state == ImportState::none;
  });
  return readable;
}

/// An import that waits, or seldom another sequence.
SequenceId ModelDriver::any_import() {
  std::vector<SequenceId> waiting;
  std::copy_if(living_.begin(), living_.end(), std::back_inserter(waiting), [&](SequenceId id) {
    return naive_.sequences().at(id).import_state == ImportState::filling;
  });
  return waiting.empty() || one_in(10) ? any_sequence() : waiting[below(waiting.size())];
}

void ModelDriver::import_sequence() {
  const SequenceOptions options = sequence_options();
  std::int64_t tokens = chunk_tokens();
  if (one_in(100)) tokens = std::int64_t{1} << 33;
  const Urgency urgency = any_urgency();
  const Status predicted = naive_.can_import(tokens, options, urgency);
  const Result<SequenceId> real = tables_.import_sequence(tokens, options, urgency);
  expect_status(real.status(), predicted, "import_sequence");
  if (failed() || !real) return;
  const Result<SequenceInfo> info = tables_.info(*real);
  if (!info) return fail("a new import is unknown");
  if (!naive_.adopt_import(tokens, *real, info->holder, options, urgency)) {
    fail("a sequence or holder id came back, or there are no blocks");
  }
  living_.push_back(*real);
  changed_.insert(*real);
}

void ModelDriver::publish_import() {
  const SequenceId id = any_import();
  const auto found = naive_.sequences().find(id);
  if (one_in(8) && found != naive_.sequences().end() && found->second.length > 0) {
    const Handle handle = found->second.blocks.front();  // a part of the transfer has failed
    expect_status(manager_.set_content(handle.id, handle.generation, BlockContent::failed),
                  pool_.set_content(handle, BlockContent::failed), "set_content");
  }
  const Status predicted = naive_.publish_import(id);
  expect_status(tables_.publish_import(id), predicted, "publish_import");
  changed_.insert(id);
}

void ModelDriver::fail_import() {
  const SequenceId id = any_import();
  const Status predicted = naive_.fail_import(id);
  expect_status(tables_.fail_import(id), predicted, "fail_import");
  changed_.insert(id);
}

HolderId ModelDriver::any_pin() {
  const auto& pins = naive_.pins();
  if (pins.empty() || one_in(20)) return any_holder();
  return std::next(pins.begin(), static_cast<std::ptrdiff_t>(below(pins.size())))->first;
}

void ModelDriver::pin_blocks() {
  const SequenceId id = any_sequence();
  const Result<SequenceInfo> info = naive_.info(id);
  const std::int64_t filled = info ? naive_.blocks_for(info->length_tokens) : 2;
  PinOptions options{.purpose = "model's pin", .since_ns = operation_, .deadline_ns = 1};
  if (one_in(2)) {
    options.first_block = static_cast<std::int64_t>(below(static_cast<std::uint64_t>(filled) + 1));
    options.num_blocks = static_cast<std::int64_t>(
        below(static_cast<std::uint64_t>(filled - options.first_block) + 1));
  }
  if (one_in(40)) options.first_block = one_in(2) ? -1 : filled + 1;
  if (one_in(40)) options.num_blocks = one_in(2) ? -2 : filled + 1;
  const Status predicted = naive_.can_pin(id, options);
  const Result<HolderId> real = tables_.pin(id, options);
  expect_status(real.status(), predicted, "pin");
  if (failed() || !real) return;
  const Result<HolderReport> report = manager_.holder(*real);
  if (!report) return fail("a new pin has no holder");
  if (!naive_.adopt_pin(id, options, *real, report->number)) fail("a holder id came back");
}

void ModelDriver::unpin_blocks() {
  const HolderId pin = any_pin();
  const Ticket ticket = one_in(2) ? kNoTicket : any_ticket();
  const Status predicted = naive_.unpin(pin, ticket);
  expect_status(tables_.unpin(pin, ticket), predicted, "unpin");
}

void ModelDriver::set_deadline() {
  const SequenceId id = any_sequence();
  const Status predicted = naive_.set_deadline(id, operation_ + 3);
  expect_status(tables_.set_deadline(id, operation_ + 3), predicted, "set_deadline");
}

void ModelDriver::compare_pins() {
  for (const auto& [holder, pin] : naive_.pins()) {
    std::vector<BlockId> blocks(pin.blocks.size());
    const Result<std::int64_t> count = tables_.blocks_of(holder, blocks);
    expect_equal(count ? *count : -1, std::ssize(pin.blocks), "blocks_of a pin");
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      expect_equal(blocks[i].value, pin.blocks[i].id.value, "a block of a pin");
    }
  }
}

void ModelDriver::copy_rows() {
  const std::vector<SequenceId> ids = some_sequences(living_.size());
  std::int64_t longest = 0;
  for (const SequenceId id : ids) {
    const auto found = naive_.sequences().find(id);
    if (found == naive_.sequences().end()) {
      return expect_status(tables_.copy_rows(ids, {}, 0, {}),
                           not_found(Resource::sequence, id.value), "copy_rows");
    }
    longest = std::max(longest, naive_.blocks_for(found->second.length));
  }
  const std::int64_t stride = longest + static_cast<std::int64_t>(below(3));
  std::vector<std::int32_t> entries(ids.size() * static_cast<std::size_t>(stride), -7);
  std::vector<std::int32_t> lengths(ids.size(), -7);
  expect_status(tables_.copy_rows(ids, entries, stride, lengths), {}, "copy_rows");
  for (std::size_t row = 0; row < ids.size() && !failed(); ++row) {
    const NaiveTables::Sequence& sequence = naive_.sequences().at(ids[row]);
    expect_equal(lengths[row], sequence.length, "length of a copied row");
    for (std::int64_t j = 0; j < stride; ++j) {
      const bool is_filled = j < naive_.blocks_for(sequence.length);
      const std::int32_t expected =
          is_filled ? sequence.blocks[static_cast<std::size_t>(j)].id.value : -1;
      expect_equal(entries[row * static_cast<std::size_t>(stride) + static_cast<std::size_t>(j)],
                   expected, "entry of a copied row");
    }
  }
}

}  // namespace kvarena::model
