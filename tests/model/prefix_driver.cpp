#include "model/prefix_driver.hpp"

#include <algorithm>
#include <sstream>

namespace kvarena::model {
namespace {

BlockManagerOptions pool_options(const PrefixGame& game) {
  return {.num_blocks = game.num_blocks,
          .max_holders = game.max_sequences + 12,
          .max_open_tickets = 4,
          .log = game.log,
          .eviction = game.eviction};
}

BlockTablesOptions table_options(const PrefixGame& game) {
  return {.block_size_tokens = game.block_size,
          .max_sequences = game.max_sequences,
          .max_pins = 3,
          .max_append_tokens = 1 << 12,
          .prefix_cache = {.is_on = true,
                           .hash_key = game.hash_key,
                           .max_extra_keys = 2,
                           .history_entries = 1 << 16,
                           .duplicates = game.duplicates,
                           .max_accounts = game.has_limits ? game.num_salts : 0,
                           .share_parts = game.shares_parts}};
}

}  // namespace

PrefixDriver::PrefixDriver(const PrefixGame& game)
    : game_(game),
      random_(game.seed),
      manager_(BlockManager::create(pool_options(game)).value()),
      tables_(BlockTables::create(manager_, table_options(game)).value()),
      pool_(pool_options(game)),
      naive_(pool_, table_options(game), tables_.stats().pages_total),
      prefix_(pool_, naive_, table_options(game).prefix_cache) {
  const HolderInfo info{.purpose = "outsider"};
  outsider_ = manager_.register_holder(info).value();
  static_cast<void>(pool_.adopt_holder(outsider_, info));
  naive_.after_allocate = [this](auto demands, auto wants, const Grant& grant) {
    std::map<BlockId, SequenceId> takers;
    std::size_t next = 0;
    for (std::size_t i = 0; i < wants.size(); ++i) {
      for (std::int64_t n = 0; n < wants[i].count; ++n) {
        takers[grant.handles[next++].id] = demands[i].sequence;
      }
    }
    prefix_.evicted(pool_.take_evicted(), takers);
  };
  if (!game.has_limits) return;
  naive_.before_allocate = [this](auto demands, auto wants) { prefix_.yield(demands, wants); };
  for (std::int32_t salt = 0; salt < game.num_salts; ++salt) {
    set_limits(static_cast<std::uint64_t>(salt), {.floor_blocks = 1});
  }
}

std::span<const PrefixDriver::Move> PrefixDriver::moves() {
  using D = PrefixDriver;
  static constexpr std::array kMoves = {
      Move{"create_sequence", 12, &D::create_sequence},
      Move{"fork_sequence", 5, &D::fork_sequence},
      Move{"append_tokens", 16, &D::append_tokens},
      Move{"decode_step", 12, &D::decode_step},
      Move{"register_tokens", 4, &D::register_tokens},
      Move{"doubt_tokens", 2, &D::doubt_tokens},
      Move{"publish", 20, &D::publish},
      Move{"truncate", 6, &D::truncate},
      Move{"destroy", 10, &D::destroy},
      Move{"forget", 1, &D::forget},
      Move{"ask", 6, &D::ask},
      Move{"pin_or_unpin", 4, &D::pin_or_unpin},
      Move{"play_outsider", 6, &D::play_outsider},
      Move{"set_limits", 2, &D::set_limits},
      Move{"set_retention", 4, &D::set_retention},
      Move{"advance_clock", 2, &D::advance_clock},
  };
  return kMoves;
}

std::string PrefixDriver::play(std::int64_t operations) {
  int total = 0;
  for (const Move& move : moves()) total += move.weight;
  for (operation_ = 0; operation_ < operations && failure_.empty(); ++operation_) {
    auto dice = static_cast<int>(below(static_cast<std::uint64_t>(total)));
    const Move* move = moves().data();
    while (dice >= move->weight) dice -= (move++)->weight;
    move_ = move->name;
    (this->*move->play)();
    compare();
  }
  move_ = "clear";
  if (failure_.empty()) clear();
  return failure_;
}

// ---- comparison ---------------------------------------------------------------------------------

void PrefixDriver::fail(const std::string& what) {
  if (!failure_.empty()) return;
  std::ostringstream out;
  out << game_.name << " seed " << game_.seed << " at operation " << operation_ << " (" << move_
      << "): " << what;
  failure_ = out.str();
}

void PrefixDriver::expect(std::int64_t real, std::int64_t predicted, const std::string& what) {
  if (real == predicted) return;
  fail(what + " is " + std::to_string(real) + ", the model says " + std::to_string(predicted));
}

void PrefixDriver::expect(const Status& real, const Status& predicted, const char* what) {
  ++outcomes_[std::string(what) + ": " + std::string(name_of(predicted.code))];
  if (real.code == predicted.code && real.resource == predicted.resource) return;
  fail(std::string(what) + " returned \"" + describe(real) + "\", the model says \"" +
       describe(predicted) + "\"");
}

void PrefixDriver::compare_match(const PrefixQuery& query) {
  compare_match(tables_.match(query).value(), prefix_.match(query));
}

void PrefixDriver::compare_match(const PrefixMatch& real, const PrefixMatch& model) {
  ++outcomes_["stop: " + std::string(name_of(model.stop))];
  if (model.part_tokens > 0) ++outcomes_["part"];
  expect(real.part_tokens, model.part_tokens, "part_tokens of a match");
  expect(real.blocks, model.blocks, "blocks of a match");
  expect(real.tokens, model.tokens, "tokens of a match");
  expect(static_cast<int>(real.stop), static_cast<int>(model.stop), "stop of a match");
  if (model.stop == PrefixStop::evicted) {
    ++outcomes_["removal: " + std::string(name_of(model.removal))];
    expect(static_cast<int>(real.removal), static_cast<int>(model.removal), "removal of a match");
    expect(static_cast<std::int64_t>(real.removal_serial),
           static_cast<std::int64_t>(model.removal_serial), "removal_serial of a match");
    if (model.removal_by != kNoSequence) ++outcomes_["removal by a sequence of the salt"];
    expect(static_cast<std::int64_t>(real.removal_by.value),
           static_cast<std::int64_t>(model.removal_by.value), "removal_by of a match");
    expect(real.removal_time, model.removal_time, "removal_time of a match");
  }
  expect(real.pending_block.value, model.pending_block.value, "pending_block of a match");
}

void PrefixDriver::compare_stats() {
  const PrefixStats real = tables_.prefix_stats();
  const PrefixStats model = prefix_.stats();
  const auto same = [this](std::uint64_t a, std::uint64_t b, const char* what) {
    expect(static_cast<std::int64_t>(a), static_cast<std::int64_t>(b), what);
  };
  expect(real.registered, model.registered, "registered");
  expect(real.published, model.published, "published");
  same(real.registrations, model.registrations, "registrations");
  same(real.removals, model.removals, "removals");
  same(real.queries, model.queries, "queries");
  same(real.hit_tokens, model.hit_tokens, "hit_tokens");
  same(real.hits, model.hits, "hits");
  same(real.duplicates, model.duplicates, "duplicates");
  same(real.shared, model.shared, "shared");
  same(real.broken_chains, model.broken_chains, "broken_chains");
  for (std::size_t i = 0; i < kNumPrefixRemovals; ++i) {
    same(real.removals_by[i], model.removals_by[i], "removals_by");
  }
  for (std::size_t i = 0; i < kNumPrefixStops; ++i) same(real.stops[i], model.stops[i], "stops");
}

void PrefixDriver::compare_salts() {
  std::int64_t evictable = 0;
  const Explanation explanation = tables_.explain(1);
  for (std::size_t i = 0; i < explanation.num_salts; ++i) {
    evictable += explanation.evictable_salts[i].blocks;
  }
  expect(evictable + explanation.evictable_of_others, manager_.stats().evictable,
         "evictable blocks of an explanation");
  for (std::int32_t s = 0; game_.has_limits && s < game_.num_salts; ++s) {
    const auto salt = static_cast<std::uint64_t>(s);
    const Result<SaltFigures> real = tables_.salt_figures(salt);
    const SaltFigures model = prefix_.figures(salt);
    expect(real->registered, model.registered, "registered of a salt");
    expect(real->kept, model.kept, "kept of a salt");
    expect(real->sequences, model.sequences, "sequences of a salt");
    if (model.kept > 0) ++outcomes_["kept"];
  }
}

void PrefixDriver::compare() {
  static_cast<void>(pool_.take_touched());
  for (std::int32_t i = 0; i < game_.num_blocks; ++i) {
    const BlockId id(i);
    const std::string block = "block " + std::to_string(i);
    expect(static_cast<int>(manager_.state(id)), static_cast<int>(pool_.state(id)), block);
    expect(static_cast<int>(manager_.content(id)), static_cast<int>(pool_.content(id)),
           block + " content");
    expect(manager_.reference_count(id), pool_.reference_count(id), block + " references");
    expect(manager_.generation(id).value, pool_.generation(id).value, block + " generation");
  }
  for (const SequenceId id : living_) {
    const SequenceInfo info = tables_.info(id).value();
    const NaivePrefix::Sequence& model = prefix_.sequence(id);
    const std::string name = "sequence " + std::to_string(id.value);
    expect(info.length_tokens, length_of(id), name + " length");
    expect(info.known_tokens, std::ssize(model.known), name + " known_tokens");
    expect(info.registered_blocks, std::ssize(model.chain), name + " registered_blocks");
    expect(info.published_blocks, static_cast<std::int64_t>(model.published), name + " published");
    const std::vector<Handle>& blocks = naive_.sequences().at(id).blocks;
    expect(info.num_blocks, std::ssize(blocks), name + " blocks");
    for (std::size_t b = 0; b < blocks.size() && failure_.empty(); ++b) {
      expect(tables_.lookup(id, static_cast<std::int64_t>(b))->value, blocks[b].id.value,
             name + " block");
    }
  }
  compare_stats();
  compare_salts();
  if (Status s = tables_.check_invariants(); !s) fail(describe(s));
  if (Status s = manager_.check_invariants(); !s) fail(describe(s));
}

}  // namespace kvarena::model
