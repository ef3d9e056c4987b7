#include "model/model_driver.hpp"

#include <algorithm>
#include <array>
#include <sstream>

namespace kvarena::model {
namespace {

/// Pools up to this size are compared whole, and proved, after every operation.
constexpr std::int64_t kSmallPool = 64;
constexpr std::int64_t kSampleEvery = 64;

/// Statuses of misuse promise the id only; every other promises all its numbers.
bool same(const Status& real, const Status& predicted) {
  const bool only_id =
      predicted.code == StatusCode::double_release || predicted.code == StatusCode::stale_handle;
  if (!only_id) return real == predicted;
  return real.code == predicted.code && real.resource == predicted.resource &&
         real.subject == predicted.subject;
}

std::string text_of(const Status& status) {
  std::ostringstream out;
  out << name_of(status.code) << "/" << name_of(status.resource) << " subject " << status.subject
      << " required " << status.required << " available " << status.available << " option "
      << name_of(status.option);
  return out.str();
}

BlockTablesOptions with_rows(BlockTablesOptions options) {
  options.report_rows = true;
  return options;
}

}  // namespace

std::string to_string(const Game& game) {
  std::ostringstream out;
  out << game.name << ": KVARENA_SEED=" << game.seed << " operations=" << game.operations
      << " num_blocks=" << game.pool.num_blocks << " watermark=" << game.pool.watermark_blocks
      << " max_holders=" << game.pool.max_holders
      << " max_open_tickets=" << game.pool.max_open_tickets
      << " max_fence_entries=" << game.pool.max_fence_entries
      << " block_size=" << game.tables.block_size_tokens
      << " max_sequences=" << game.tables.max_sequences
      << " max_table_pages=" << game.tables.max_table_pages << " max_pins=" << game.tables.max_pins
      << " longest_chunk=" << game.longest_chunk << " eviction=" << name_of(game.pool.eviction);
  return out.str();
}

std::span<const ModelDriver::Move> ModelDriver::moves() {
  using D = ModelDriver;
  static constexpr std::array kMoves = {
      Move{"create_sequence", 12, &D::create_sequence},
      Move{"fork_sequence", 8, &D::fork_sequence},
      Move{"destroy_sequence", 8, &D::destroy_sequence},
      Move{"destroy_several", 2, &D::destroy_several},
      Move{"decode_step", 24, &D::decode_step},
      Move{"append_several", 24, &D::append_several},
      Move{"reserve_capacity", 3, &D::reserve_capacity},
      Move{"promise_capacity", 3, &D::promise_capacity},
      Move{"truncate_sequence", 6, &D::truncate_sequence},
      Move{"roll_back_token", 10, &D::roll_back_token},
      Move{"ask_tables", 6, &D::ask_tables},
      Move{"view_batch", 6, &D::view_batch},
      Move{"import_sequence", 3, &D::import_sequence},
      Move{"publish_import", 4, &D::publish_import},
      Move{"fail_import", 1, &D::fail_import},
      Move{"pin_blocks", 4, &D::pin_blocks},
      Move{"unpin_blocks", 4, &D::unpin_blocks},
      Move{"set_deadline", 1, &D::set_deadline},
      Move{"copy_rows", 4, &D::copy_rows},
      Move{"register_outsider", 2, &D::register_outsider},
      Move{"unregister_outsider", 2, &D::unregister_outsider},
      Move{"reserve_for_outsider", 3, &D::reserve_for_outsider},
      Move{"allocate_for_outsider", 5, &D::allocate_for_outsider},
      Move{"allocate_for_several", 3, &D::allocate_for_several},
      Move{"retain_block", 6, &D::retain_block},
      Move{"release_handles", 8, &D::release_handles},
      Move{"release_handles_after", 5, &D::release_handles_after},
      Move{"misuse_handles", 5, &D::misuse_handles},
      Move{"set_content", 6, &D::set_content},
      Move{"set_retention", 4, &D::set_retention},
      Move{"advance_clock", 2, &D::advance_clock},
      Move{"quarantine_block", 1, &D::quarantine_block},
      Move{"restore_block", 3, &D::restore_block},
      Move{"open_ticket", 5, &D::open_ticket},
      Move{"retire_ticket", 5, &D::retire_ticket},
      Move{"ask_pool", 4, &D::ask_pool},
  };
  return kMoves;
}

ModelDriver::ModelDriver(const Game& game)
    : game_(game),
      random_(game.seed),
      manager_(BlockManager::create(game.pool).value()),
      tables_(BlockTables::create(manager_, with_rows(game.tables)).value()),
      pool_(game.pool),
      naive_(pool_, game.tables, tables_.stats().pages_total),
      small_(game.pool.num_blocks <= kSmallPool) {}

std::string ModelDriver::play() {
  int total_weight = 0;
  for (const Move& move : moves()) total_weight += move.weight;
  for (operation_ = 0; operation_ < game_.operations && !failed(); ++operation_) {
    auto dice = static_cast<int>(below(static_cast<std::uint64_t>(total_weight)));
    const Move* move = moves().data();
    while (dice >= move->weight) dice -= (move++)->weight;
    move_ = move->name;
    (this->*move->play)();
    compare();
  }
  move_ = "hand_everything_back";
  if (!failed()) hand_everything_back();
  return failure_;
}

// ---- comparison ---------------------------------------------------------------------------------

void ModelDriver::fail(const std::string& what) {
  if (failed()) return;
  std::ostringstream out;
  out << to_string(game_) << "\nat operation " << operation_ << " (" << move_ << "): " << what;
  failure_ = out.str();
}

void ModelDriver::expect_status(const Status& real, const Status& predicted, const char* what) {
  if (game_.count_outcomes) {
    ++outcomes_[std::string(what) + ": " + std::string(name_of(predicted.code)) + "/" +
                std::string(predicted.resource == Resource::none ? name_of(predicted.option)
                                                                 : name_of(predicted.resource))];
  }
  if (same(real, predicted)) return;
  fail(std::string(what) + " returned " + text_of(real) + ", the model says " + text_of(predicted));
}

void ModelDriver::expect_equal(std::int64_t real, std::int64_t predicted, const char* what) {
  if (real == predicted) return;
  fail(std::string(what) + " is " + std::to_string(real) + ", the model says " +
       std::to_string(predicted));
}

void ModelDriver::compare() {
  const std::set<BlockId> touched = pool_.take_touched();
  const std::set<SequenceId> changed = std::exchange(changed_, {});
  compare_accounts();
  if (small_ || operation_ % kSampleEvery == 0) return compare_everything();
  for (const BlockId id : touched) compare_block(id);
  for (const SequenceId id : changed) compare_sequence(id);
  for (int i = 0; i < 4; ++i) {
    compare_block(BlockId(
        static_cast<std::int32_t>(below(static_cast<std::uint64_t>(game_.pool.num_blocks)))));
    if (!living_.empty()) compare_sequence(living_[below(living_.size())]);
  }
}

void ModelDriver::compare_accounts() {
  const BlockStats real = manager_.stats();
  const BlockStats model = pool_.stats();
  expect_equal(real.num_blocks, model.num_blocks, "stats.num_blocks");
  expect_equal(real.free, model.free, "stats.free");
  expect_equal(real.referenced, model.referenced, "stats.referenced");
  expect_equal(real.fenced, model.fenced, "stats.fenced");
  expect_equal(real.evictable, model.evictable, "stats.evictable");
  expect_equal(real.offline, model.offline, "stats.offline");
  expect_equal(real.reserved, model.reserved, "stats.reserved");
  expect_equal(real.watermark, model.watermark, "stats.watermark");
  expect_equal(real.holders, model.holders, "stats.holders");
  expect_equal(real.references, model.references, "stats.references");
  expect_equal(real.fence_entries, model.fence_entries, "stats.fence_entries");
  expect_equal(real.peak_allocated, model.peak_allocated, "stats.peak_allocated");
  const auto number = [](std::uint64_t value) { return static_cast<std::int64_t>(value); };
  expect_equal(number(real.holders_ever), number(model.holders_ever), "stats.holders_ever");
  expect_equal(number(real.allocations), number(model.allocations), "stats.allocations");
  expect_equal(number(real.releases), number(model.releases), "stats.releases");
  expect_equal(number(real.evictions), number(model.evictions), "stats.evictions");
  expect_equal(number(real.exhaustions), number(model.exhaustions), "stats.exhaustions");
  if (!real.balanced()) fail("the accounts do not balance");
  expect_equal(real.allocated(), model.num_blocks - model.free, "stats.allocated()");
  expect_equal(manager_.available_now(), model.free + model.evictable, "available_now");
  expect_equal(manager_.fence_entries_available(), pool_.fence_entries_left(),
               "fence_entries_available");
  expect_equal(manager_.clock_time(), pool_.clock(), "clock");

  const TableStats tables = tables_.stats();
  const TableStats naive = naive_.stats();
  expect_equal(tables.sequences, naive.sequences, "table stats.sequences");
  expect_equal(tables.tokens, naive.tokens, "table stats.tokens");
  expect_equal(tables.entries, naive.entries, "table stats.entries");
  expect_equal(tables.waste_tokens, naive.waste_tokens, "table stats.waste_tokens");
  expect_equal(tables.pins, naive.pins, "table stats.pins");
  expect_equal(tables.pinned_entries, naive.pinned_entries, "table stats.pinned_entries");
  expect_equal(tables.pages_used, naive.pages_used, "table stats.pages_used");
  expect_equal(tables.pages_total, naive.pages_total, "table stats.pages_total");
  expect_equal(number(tables.sequences_ever), number(naive.sequences_ever), "sequences_ever");
  expect_equal(number(tables.copies_on_write), number(naive.copies_on_write), "copies_on_write");
}

void ModelDriver::compare_block(BlockId id) {
  const std::string block = "block " + std::to_string(id.value);
  expect_equal(static_cast<int>(manager_.state(id)), static_cast<int>(pool_.state(id)),
               (block + " state").c_str());
  expect_equal(manager_.reference_count(id), pool_.reference_count(id),
               (block + " reference count").c_str());
  expect_equal(manager_.claims(id), pool_.claims(id), (block + " claims").c_str());
  expect_equal(static_cast<int>(manager_.content(id)), static_cast<int>(pool_.content(id)),
               (block + " content").c_str());
  expect_equal(manager_.generation(id).value, pool_.generation(id).value,
               (block + " generation").c_str());
  if (manager_.retention(id) != pool_.retention(id)) fail(block + " retention differs");
}

void ModelDriver::compare_sequence(SequenceId id) {
  const Result<SequenceInfo> real = tables_.info(id);
  const Result<SequenceInfo> model = naive_.info(id);
  expect_status(real.status(), model.status(), "info");
  if (failed() || !model) return;
  expect_equal(real->length_tokens, model->length_tokens, "info.length_tokens");
  expect_equal(real->num_blocks, model->num_blocks, "info.num_blocks");
  expect_equal(real->max_length_tokens, model->max_length_tokens, "info.max_length_tokens");
  expect_equal(real->waste_tokens, model->waste_tokens, "info.waste_tokens");
  if (real->holder != model->holder) fail("a sequence has changed its holder");
  expect_equal(static_cast<int>(real->import_state), static_cast<int>(model->import_state),
               "info.import_state");
  std::vector<BlockId> blocks(static_cast<std::size_t>(model->num_blocks));
  const Result<std::int64_t> count = tables_.blocks_of(id, blocks);
  expect_equal(count ? *count : -1, model->num_blocks, "blocks_of");
  const std::vector<Handle>& expected = naive_.sequences().at(id).blocks;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    expect_equal(blocks[i].value, expected[i].id.value, "an entry of a table");
  }
  const Result<HolderReport> holder = manager_.holder(model->holder);
  expect_equal(holder ? holder->references : -1, model->num_blocks, "references of a sequence");
  expect_equal(holder ? holder->reserved : -1, pool_.reserved_by(model->holder),
               "promise to a sequence");
}

void ModelDriver::compare_everything() {
  for (std::int32_t i = 0; i < game_.pool.num_blocks; ++i) compare_block(BlockId(i));
  for (const SequenceId id : living_) compare_sequence(id);
  std::vector<SequenceId> ids = tables_.sequences();
  std::sort(ids.begin(), ids.end());
  expect_equal(static_cast<std::int64_t>(ids.size()), static_cast<std::int64_t>(living_.size()),
               "number of sequences()");
  for (const SequenceId id : ids) {
    if (!naive_.sequences().contains(id)) fail("sequences() names a stranger");
  }
  const std::vector<HolderReport> real = manager_.holders();
  const std::vector<HolderReport> model = pool_.holders();
  expect_equal(static_cast<std::int64_t>(real.size()), static_cast<std::int64_t>(model.size()),
               "number of holders()");
  for (std::size_t i = 0; !failed() && i < model.size(); ++i) {
    if (real[i].holder != model[i].holder || real[i].number != model[i].number ||
        real[i].purpose != model[i].purpose || real[i].references != model[i].references ||
        real[i].reserved != model[i].reserved || real[i].since_ns != model[i].since_ns ||
        real[i].deadline_ns != model[i].deadline_ns) {
      fail("entry " + std::to_string(i) + " of holders() differs");
    }
  }
  compare_pins();
  expect_status(manager_.check_invariants(), {}, "BlockManager::check_invariants");
  expect_status(tables_.check_invariants(), {}, "BlockTables::check_invariants");
}

void ModelDriver::hand_everything_back() {
  expect_status(tables_.destroy_many(living_), naive_.destroy_many(living_, kNoTicket),
                "destroy_many of all");
  living_.clear();
  while (!naive_.pins().empty()) {
    const HolderId pin = naive_.pins().begin()->first;
    expect_status(tables_.unpin(pin), naive_.unpin(pin, kNoTicket), "unpin of all");
  }
  for (Outsider& outsider : outsiders_) {
    std::vector<BlockId> ids;
    std::vector<Generation> generations;
    for (const Handle& handle : outsider.handles) {
      ids.push_back(handle.id);
      generations.push_back(handle.generation);
    }
    expect_status(manager_.release(outsider.holder, ids, generations),
                  pool_.release(outsider.holder, outsider.handles), "release of all");
    expect_status(manager_.unregister_holder(outsider.holder),
                  pool_.unregister_holder(outsider.holder), "unregister");
  }
  for (const Ticket ticket : pool_.open_tickets()) {
    expect_status(manager_.retire(ticket), pool_.retire(ticket), "retire of all");
  }
  for (std::int32_t i = 0; i < game_.pool.num_blocks; ++i) {
    const BlockId id(i);
    expect_status(manager_.restore(id), pool_.restore(id), "restore of all");
    const Generation generation = pool_.generation(id);
    expect_status(manager_.set_content(id, generation, BlockContent::unwritten),
                  pool_.set_content({id, generation}, BlockContent::unwritten),
                  "forgetting of all");
  }
  compare_accounts();
  compare_everything();
  expect_equal(manager_.stats().free, game_.pool.num_blocks, "free blocks at the end");
  expect_equal(tables_.stats().pages_used, 0, "pages at the end");
  // The order of the free blocks is the last thing to compare: take them all.
  const HolderId last = manager_.register_holder({.purpose = "last"}).value();
  if (!pool_.adopt_holder(last, {.purpose = "last"})) fail("a holder id came back");
  std::vector<BlockId> ids(static_cast<std::size_t>(game_.pool.num_blocks));
  std::vector<Generation> generations(ids.size());
  const Want all{last, game_.pool.num_blocks};
  const Result<Grant> grant = pool_.allocate(std::span(&all, 1), Urgency::growth);
  expect_status(manager_.allocate(last, ids, generations).status(), grant.status(), "take all");
  for (std::size_t i = 0; i < ids.size() && grant; ++i) {
    expect_equal(ids[i].value, grant->handles[i].id.value, "the order of the free blocks");
  }
}

// ---- luck ---------------------------------------------------------------------------------------

SequenceId ModelDriver::any_sequence() {
  if (one_in(40)) {
    return dead_.empty() ? SequenceId(below(1000)) : dead_[below(dead_.size())];
  }
  return living_.empty() ? kNoSequence : living_[below(living_.size())];
}

std::vector<SequenceId> ModelDriver::some_sequences(std::size_t at_most) {
  std::vector<SequenceId> chosen = one_in(30) ? living_ : readable_sequences();
  std::shuffle(chosen.begin(), chosen.end(), random_);
  chosen.resize(std::min(chosen.size(), static_cast<std::size_t>(below(at_most + 1))));
  if (!chosen.empty() && one_in(60)) chosen.push_back(chosen[below(chosen.size())]);
  if (one_in(60)) chosen.push_back(any_sequence());
  if (!dead_.empty() && one_in(100)) chosen.push_back(dead_[below(dead_.size())]);
  return chosen;
}

SequenceOptions ModelDriver::sequence_options() {
  SequenceOptions options{.since_ns = operation_, .deadline_ns = operation_ + 7};
  if (one_in(4)) {
    options.max_length_tokens =
        1 + static_cast<std::int64_t>(below(static_cast<std::uint64_t>(game_.longest_chunk) * 2));
  }
  if (one_in(100)) options.max_length_tokens = -1;
  if (one_in(100)) options.max_length_tokens = std::int64_t{1} << 40;
  return options;
}

Ticket ModelDriver::any_ticket() {
  const std::vector<Ticket> open = pool_.open_tickets();
  if (open.empty() || one_in(30)) return Ticket(pool_.newest_ticket().value + 3 - below(6));
  return open[below(open.size())];
}

std::int64_t ModelDriver::chunk_tokens() {
  if (one_in(3)) return 1;
  if (one_in(20)) return 0;
  if (one_in(100)) return -1 - static_cast<std::int64_t>(below(5));
  if (one_in(200)) return game_.tables.max_append_tokens + static_cast<std::int64_t>(below(2));
  return static_cast<std::int64_t>(below(static_cast<std::uint64_t>(game_.longest_chunk) + 1));
}

BlockId ModelDriver::any_block() {
  if (one_in(100))
    return BlockId(one_in(2) ? -1 : static_cast<std::int32_t>(game_.pool.num_blocks));
  return BlockId(
      static_cast<std::int32_t>(below(static_cast<std::uint64_t>(game_.pool.num_blocks))));
}

HolderId ModelDriver::any_holder() {
  if (one_in(30) || outsiders_.empty()) return HolderId(one_in(2) ? 0 : random_());
  return outsiders_[below(outsiders_.size())].holder;
}

ModelDriver::Outsider* ModelDriver::any_outsider() {
  return outsiders_.empty() ? nullptr : &outsiders_[below(outsiders_.size())];
}

std::vector<Handle> ModelDriver::take_some(Outsider& outsider) {
  std::shuffle(outsider.handles.begin(), outsider.handles.end(), random_);
  const auto count = static_cast<std::ptrdiff_t>(below(outsider.handles.size() + 1));
  return {outsider.handles.end() - count, outsider.handles.end()};
}

void ModelDriver::forget(const Handle& handle) {
  if (former_.size() < 64) {
    former_.push_back(handle);
  } else {
    former_[below(former_.size())] = handle;
  }
}

bool ModelDriver::is_reserved(BlockId id) const {
  for (const auto& [name, sequence] : naive_.sequences()) {
    const auto filled = static_cast<std::size_t>(naive_.blocks_for(sequence.length));
    for (std::size_t i = filled; i < sequence.blocks.size(); ++i) {
      if (sequence.blocks[i].id == id) return true;
    }
  }
  return false;
}

bool ModelDriver::owns(const Outsider& outsider, std::span<const Handle> handles) const {
  std::vector<Handle> left = outsider.handles;
  for (const Handle& handle : handles) {
    const auto found = std::find(left.begin(), left.end(), handle);
    if (found == left.end()) return false;
    left.erase(found);
  }
  return true;
}

void ModelDriver::note_removed(SequenceId id) {
  std::erase(living_, id);
  if (dead_.size() < 64) {
    dead_.push_back(id);
  } else {
    dead_[below(dead_.size())] = id;
  }
}

}  // namespace kvarena::model
