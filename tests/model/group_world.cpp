#include "model/group_world.hpp"

#include "blocktable/state_tables.hpp"

#include <algorithm>
#include <array>
#include <numeric>

namespace kvarena::model {
namespace {

auto& parts_of(const BlockTables& tables);

/// An explicit instantiation may name a private member.
template <auto kImpl>
struct TablesAccess {
  friend auto& parts_of(const BlockTables& tables) { return *(tables.*kImpl); }
};
template struct TablesAccess<&BlockTables::impl_>;

}  // namespace
}  // namespace kvarena::model

namespace kvarena {

/// Gives a node the companion of another one.
struct CompanionProbe {
  static void swap_two(PrefixCompanions& its, std::mt19937_64& random) {
    const auto groups = its.is_state_.size();
    std::vector<BlockId> nodes;
    const std::size_t g = random() % groups;
    for (std::size_t i = 0; i < its.records_.size(); ++i) {
      const BlockId id(static_cast<std::int32_t>(i));
      if (its.has(id, g)) nodes.push_back(id);
    }
    if (nodes.size() < 2) return;
    std::shuffle(nodes.begin(), nodes.end(), random);
    std::swap(its.first(nodes[0], g), its.first(nodes[1], g));
    for (const BlockId node : {nodes[0], nodes[1]}) {
      for (std::int32_t i = its.first(node, g); i != 0;) {
        auto& record = its.records_[PrefixCompanions::place(BlockId(i - 1))];
        record.node = node.value + 1;
        i = record.next;
      }
    }
  }
};

}  // namespace kvarena

namespace kvarena::model {

void GroupWorld::plant_in_companions() {
  CompanionProbe::swap_two(*parts_of(*tables_).prefix->companions(), random_);
}

GroupWorld::GroupWorld(const GroupGame& game, std::uint64_t seed, GroupPlant plant)
    : game_(game), groups_(game.groups), random_(seed) {
  std::vector<BlockGroup> blocks;
  plant_ = plant;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const std::int64_t in_block = is_state(g) ? 1 : groups_[g].block_size_tokens;
    const std::int64_t bytes = game.token_units[g] * in_block;
    const std::int64_t stride =
        game.page_units / bytes == 1 ? game.page_units : std::gcd(game.page_units, bytes);
    blocks.push_back({static_cast<std::int32_t>(game.page_units / bytes), bytes});
    groups_[g].ids_per_page = game.page_units / stride;
    groups_[g].ids_per_block = blocks[g].blocks_per_page == 1 ? 1 : bytes / stride;
  }
  manager_ = std::make_unique<BlockManager>(BlockManager::create({.num_blocks = game.num_pages,
                                                                  .max_holders = 64,
                                                                  .max_open_tickets = 4,
                                                                  .log = game.log,
                                                                  .groups = blocks})
                                                .value());
  tables_ = std::make_unique<BlockTables>(
      BlockTables::create(*manager_, {.max_sequences = game.max_sequences,
                                      .max_pins = 4,
                                      .max_append_tokens = 1024,
                                      .can_undo = game.can_undo,
                                      .groups = groups_,
                                      .checkpoint_every_tokens = game.checkpoint_every,
                                      .prefix_cache = {.is_on = game.has_prefix_cache}})
          .value());
  arena_.assign(static_cast<std::size_t>(game.num_pages * game.page_units), 0);
  auto& books = parts_of(*tables_).groups;
  for (auto& group : books->list) {
    const bool has_limit =
        group.retention.kind == PagedKind::window || group.retention.kind == PagedKind::chunk;
    if (plant != GroupPlant::window_one_block_early || !has_limit) continue;
    group.retention.limit_tokens -= group.block_size;
  }
  if (plant == GroupPlant::state_not_kept) {
    for (auto& of : books->states->list) of.keeps = false;
  }
}

GroupWorld::~GroupWorld() = default;

/// The next step of the sequence believes that nobody else has a claim on its blocks.
void GroupWorld::forget_claims(SequenceId id) {
  auto& parts = parts_of(*tables_);
  parts.sequences.find(id)->claims_seen = parts.claims_of_others();
}

/// The arena's first unit of a token. A slot is in units of its group's blocks, whose ids are
/// multiples of the stride.
std::uint64_t& GroupWorld::unit(std::size_t g, std::int64_t slot) {
  const std::int64_t size = groups_[g].block_size_tokens;
  const std::int64_t stride = game_.page_units / groups_[g].ids_per_page;
  const std::int64_t at = slot / size * stride + slot % size * game_.token_units[g];
  if (slot < 0 || at < 0 || at + game_.token_units[g] > std::ssize(arena_)) {
    fail("a slot outside the arena");
    return arena_[0];
  }
  return arena_[static_cast<std::size_t>(at)];
}

bool GroupWorld::expect(const Status& status, const char* what) {
  if (status) return true;
  fail(std::string(what) + ": " + describe(status));
  return false;
}

std::optional<std::string> GroupWorld::play(std::int64_t operations) {
  for (std::int64_t i = 0; i < operations && !wrong_; ++i) {
    operate();
    if (i % 16 == 0 && !wrong_) check_all();
    if (i % 64 == 0 && !wrong_) {
      expect(tables_->check_invariants(), "tables");
      expect(manager_->check_invariants(), "manager");
    }
  }
  while (!lives_.empty() && !wrong_) end();
  while (!pins_.empty() && !wrong_) unpin();
  if (!wrong_) {
    expect(tables_->check_invariants(), "tables at the end");
    const PageStats pages = manager_->page_stats();
    if (pages.available() != pages.num_pages) fail("pages are left at the end");
    if (tables_->stats().pages_used != 0) fail("table pages are left at the end");
    if (tables_->stats().waste_tokens != 0) fail("waste is left at the end");
  }
  return wrong_;
}

void GroupWorld::operate() {
  note_before();
  const bool has_room = std::ssize(lives_) < game_.max_sequences;
  if (lives_.empty() || (has_room && random(16) == 0)) {
    const std::uint64_t kind = random(8);
    if (game_.has_prefix_cache && kind > 1) return begin_with_prefix();
    if (kind == 0) return import();
    return kind == 1 && !lives_.empty() ? begin_from() : begin();
  }
  switch (random(24)) {
    case 0: return end();
    case 1: return has_room ? fork() : end();
    case 2:
    case 3: return cut();
    case 4: return reserve();
    case 5: return promise();
    case 6: return game_.has_prefix_cache ? operate_prefix() : publish();
    case 7: return pin();
    case 8: return unpin();
    case 9: return checkpoint();
    default: return append();
  }
}

// ---- lives -------------------------------------------------------------------------------------

GroupWorld::Life GroupWorld::new_life() {
  Life life;
  for (const TableGroup& group : groups_) {
    if (group.kind != PagedKind::cross) continue;
    life.cross_tokens =
        static_cast<std::int32_t>(random(static_cast<std::uint64_t>(group.limit_tokens) + 1));
  }
  life.encoder = next_token_++;
  life.states.resize(groups_.size());
  return life;
}

void GroupWorld::begin() {
  Life life = new_life();
  life.id = tables_->create_sequence({.cross_tokens = life.cross_tokens}).value();
  lives_.push_back(std::move(life));
}

/// Begins with blocks of another sequence, as after a hit in a prefix cache.
void GroupWorld::begin_from() {
  const Life from = lives_[any()];
  if (from.is_import) return;
  const auto length = static_cast<std::int64_t>(random(from.tokens.size() + 1));
  if (tables_->restorable_length(from.id, length).value() != length) return;
  std::vector<std::vector<BlockId>> ids(groups_.size());
  std::vector<std::vector<Generation>> generations(groups_.size());
  std::vector<GroupBlocks> blocks(groups_.size());
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g].kind == PagedKind::cross) continue;
    if (is_state(g)) {
      if (length == 0) continue;
      ids[g].resize(static_cast<std::size_t>(groups_[g].num_parts));
      generations[g].resize(ids[g].size());
      if (!tables_->state_blocks(from.id, length, static_cast<std::int32_t>(g), ids[g],
                                 generations[g])) {
        return fail("no blocks of a state that can be had");
      }
      blocks[g] = {0, ids[g], generations[g]};
      continue;
    }
    const std::int64_t size = groups_[g].block_size_tokens;
    const std::int64_t first = oldest_needed(groups_[g].retention(), length) / size;
    for (std::int64_t i = first; i * size < length; ++i) {
      ids[g].push_back(tables_->lookup(from.id, i, static_cast<std::int32_t>(g)).value());
      generations[g].push_back(manager_->generation(ids[g].back()));
    }
    blocks[g] = {first, ids[g], generations[g]};
  }
  if (game_.has_prefix_cache && random(2) == 0) offer_to_another(from, length, blocks);
  const auto made = tables_->create_sequence_from(
      length, blocks, {.cross_tokens = from.cross_tokens, .salt = from.salt});
  if (!made && made.status().resource == Resource::page) {  // a checkpoint, promised
    return expect_unchanged("create_sequence_from");
  }
  if (!made) return fail("create_sequence_from: " + describe(made.status()));
  Life life = from;
  life.id = *made;
  life.encoder = next_token_++;
  life.has_encoder = false;
  life.script.clear();
  note_cut(life, length, true);
  if (tables_->info(*made)->num_blocks != 0) ++outcomes_["began from blocks"];
  lives_.push_back(std::move(life));
}

void GroupWorld::import() {
  Life life;
  life.is_import = true;
  const auto length = static_cast<std::int64_t>(random(200));
  const auto made = tables_->import_sequence(length);
  if (!made) {
    if (made.status().resource != Resource::page) fail("import: " + describe(made.status()));
    expect_unchanged("import");
    ++outcomes_["import refused"];
    return;
  }
  life.id = *made;
  for (std::int64_t i = 0; i < length; ++i) life.tokens.push_back(next_token_++);
  life.states.resize(groups_.size());
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    if (is_state(g) && length > 0) life.states[g] = {length};
  }
  write_all_states(life);
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    for (std::int64_t i = 0; i < length && groups_[g].kind != PagedKind::cross; ++i) {
      const std::int64_t slot = tables_->slot_of(life.id, i, static_cast<std::int32_t>(g)).value();
      if (slot >= 0) unit(g, slot) = stamp(g, life.tokens[static_cast<std::size_t>(i)]);
    }
  }
  if (tables_->append_one_each(std::span(&life.id, 1)).is_ok()) fail("append to an import");
  note_settled();  // also by a refused append
  expect(tables_->publish_import(life.id), "publish_import");
  life.is_import = false;
  ++outcomes_["imported"];
  lives_.push_back(std::move(life));
}

void GroupWorld::fork() {
  const std::size_t parent = any();
  const auto length = static_cast<std::int64_t>(random(lives_[parent].tokens.size() + 1));
  const std::int64_t longest = brute_restorable(lives_[parent], length);
  const auto child = tables_->fork(lives_[parent].id, length);
  const bool is_promised = !child && child.status().resource == Resource::page;
  if (!is_promised && child.is_ok() != (longest == length)) {
    return fail("fork at " + std::to_string(length) + ", can be had at " + std::to_string(longest));
  }
  if (!child) expect_unchanged("fork");
  if (!child && child.status().resource == Resource::page) {
    ++outcomes_["checkpoint promised to others"];
    return;
  }
  if (!child) {
    const Status status = child.status();
    const bool says_where = status.code == StatusCode::failed_precondition &&
                            status.resource == Resource::sequence_length &&
                            static_cast<std::int64_t>(status.available) == longest;
    if (!says_where) fail("fork: " + describe(status));
    ++outcomes_["fork refused"];
    return;
  }
  ++outcomes_["forked"];
  Life life = lives_[parent];
  life.id = *child;
  life.script.clear();
  note_cut(life, length, true);
  if (tables_->info(*child)->cross_tokens != life.cross_tokens) fail("encoder of a fork");
  lives_.push_back(std::move(life));
}

void GroupWorld::cut() {
  Life& life = lives_[any()];
  const std::int64_t most =
      std::min(std::ssize(life.tokens), static_cast<std::ptrdiff_t>(1 + random(64)));
  const std::int64_t length =
      std::ssize(life.tokens) -
      static_cast<std::int64_t>(random(static_cast<std::uint64_t>(most) + 1));
  const std::int64_t longest = brute_restorable(life, length);
  Ticket ticket = kNoTicket;
  if (random(4) == 0) ticket = manager_->open_ticket().value();
  const Status status = tables_->truncate(life.id, length, ticket);
  if (!status) expect_unchanged("truncate");
  if (ticket != kNoTicket) {
    if (status) ++outcomes_["cut with a ticket"];
    expect(manager_->retire(ticket), "retire");
  }
  if (!status && status.resource == Resource::page) return;  // a checkpoint, promised to others
  if (status.is_ok() != (longest == length)) {
    return fail("cut at " + std::to_string(length) + ", can be had at " + std::to_string(longest));
  }
  ++outcomes_[status ? "cut" : "cut refused"];
  if (!status) return;
  note_cut(life, length, false);
  life.script.clear();
}

void GroupWorld::end() {
  const std::size_t which = any();
  const Ticket ticket = random(4) == 0 ? manager_->open_ticket().value() : kNoTicket;
  keep_script(lives_[which]);
  expect(tables_->destroy(lives_[which].id, ticket), "destroy");
  if (ticket != kNoTicket) expect(manager_->retire(ticket), "retire");
  lives_.erase(lives_.begin() + static_cast<std::ptrdiff_t>(which));
}

void GroupWorld::reserve() {
  const Life& life = lives_[any()];
  const Status status = tables_->reserve_capacity(
      life.id, std::ssize(life.tokens) + static_cast<std::int64_t>(random(80)), Urgency::growth);
  if (!status) expect_unchanged("reserve_capacity");
  if (!status && status.code != StatusCode::exhausted) fail("reserve: " + describe(status));
  ++outcomes_[status ? "reserved" : "reserve refused"];
}

void GroupWorld::promise() {
  const Life& life = lives_[any()];
  const Status status = tables_->promise_capacity(
      life.id, std::ssize(life.tokens) + static_cast<std::int64_t>(random(150)));
  if (!status) expect_unchanged("promise_capacity");
  if (!status && status.code != StatusCode::exhausted) fail("promise: " + describe(status));
  ++outcomes_[status ? "promised" : "promise refused"];
}

/// Full blocks of a sequence stay cached when they are released.
void GroupWorld::publish() {
  const Life& life = lives_[any()];
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const std::int64_t full = std::ssize(life.tokens) / groups_[g].block_size_tokens;
    if (groups_[g].kind == PagedKind::cross || is_state(g)) continue;
    for (std::int64_t i = 0; i < full; ++i) {
      const BlockId id = tables_->lookup(life.id, i, static_cast<std::int32_t>(g)).value();
      if (id == kNoBlock || random(2) == 0) continue;
      static_cast<void>(
          manager_->set_content(id, manager_->generation(id), BlockContent::published));
    }
  }
}

// ---- steps -------------------------------------------------------------------------------------

void GroupWorld::append() {
  std::vector<std::size_t> rows(lives_.size());
  std::iota(rows.begin(), rows.end(), 0);
  std::shuffle(rows.begin(), rows.end(), random_);
  rows.resize(1 + static_cast<std::size_t>(random(rows.size())));
  std::vector<AppendDemand> demands;
  for (const std::size_t row : rows) {
    const std::int64_t left = game_.longest - std::ssize(lives_[row].tokens);
    const auto wanted = static_cast<std::int64_t>(random(8) == 0 ? random(70) : random(3));
    demands.push_back({lives_[row].id, static_cast<std::int32_t>(std::min(left, wanted))});
    if (random(4) == 0) demands.back().urgency = Urgency::admission;
  }
  const std::int64_t tokens = tables_->stats().tokens;
  tables_->settle_append();
  note_settled();
  for (std::size_t i = demands.size(); i-- > 0;) {
    if (!lives_[rows[i]].is_lost) continue;
    const auto refused = tables_->append(std::span(&demands[i], 1));
    const bool may = demands[i].num_tokens == 0;
    if (refused.is_ok() != may) fail("an append to a lost state");
    demands.erase(demands.begin() + static_cast<std::ptrdiff_t>(i));
    rows.erase(rows.begin() + static_cast<std::ptrdiff_t>(i));
  }
  tables_->settle_append();
  if (rows.empty()) return;
  std::vector<std::vector<std::uint64_t>> names(rows.size());
  std::vector<std::vector<std::int32_t>> values(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    tell_names(lives_[rows[i]], demands[i].num_tokens, names[i]);
    if (!game_.has_prefix_cache || random(16) == 0) continue;
    values[i] = told(names[i]);
    demands[i].tokens = values[i];
  }
  note_before();
  const auto result = tables_->append(demands);
  if (!result) {
    expect_unchanged("append");
    const Status status = result.status();
    const bool is_known = status.code == StatusCode::exhausted &&
                          status.resource == Resource::page && status.subject < groups_.size();
    if (!is_known) return fail("append: " + describe(status));
    const std::int64_t at = tables_->failed_demand();
    if (at < 0 || at >= std::ssize(demands)) fail("append names no demand");
    if (tables_->stats().tokens != tokens) fail("a refused append changed tokens");
    if (tables_->explain(status).fits) fail("a refused append fits");
    ++outcomes_["append refused"];
    if (!lives_.empty() && random(2) == 0) end();
    return;
  }
  const bool undoes = game_.can_undo && random(4) == 0;
  const std::vector<Life> before = lives_;
  const bool writes = !undoes || random(2) == 0;
  unsettled_.clear();
  unsettled_from_.clear();
  for (const std::size_t row : rows) {
    unsettled_.push_back(lives_[row].id);
    unsettled_from_.push_back(std::ssize(lives_[row].tokens));
  }
  if (writes) write(rows, demands, names, *result);
  if (undoes) {
    expect(tables_->undo_append(writes), "undo");
    for (std::size_t i = 0; i < lives_.size(); ++i) {
      note_undone(lives_[i], before[i], writes);
    }
    unsettled_.clear();
    ++outcomes_["undone"];
  } else {
    for (const std::size_t row : rows) {
      check(lives_[row], std::ssize(before[row].tokens), "in a step");
      if (game_.has_prefix_cache && random(8) != 0) publish_tokens(lives_[row]);
    }
  }
  if (random(2) == 0) {
    tables_->settle_append();
    note_settled();
  }
}

/// Carries out the copies of a step, then writes its tokens.
void GroupWorld::write(std::vector<std::size_t>& rows, const std::vector<AppendDemand>& demands,
                       const std::vector<std::vector<std::uint64_t>>& names,
                       const AppendResult& result) {
  poison_states(result);
  for (std::size_t i = 0; i < result.copies.size(); ++i) {
    const auto g = static_cast<std::size_t>(result.copy_groups[i]);
    if (is_state(g)) {
      copy_state(g, result.copies[i]);
      continue;
    }
    const std::int64_t size = groups_[g].block_size_tokens;
    for (std::int64_t k = 0; k < size; ++k) {
      unit(g, result.copies[i].target.value * size + k) =
          unit(g, result.copies[i].source.value * size + k);
    }
    ++outcomes_["copied"];
  }
  const std::size_t per_group = result.slots.size() / groups_.size();
  std::size_t next = 0;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    Life& life = lives_[rows[r]];
    for (std::int32_t i = 0; i < demands[r].num_tokens; ++i, ++next) {
      life.tokens.push_back(names[r][static_cast<std::size_t>(i)]);
      if (!life.script.empty()) life.script.erase(life.script.begin());
      for (std::size_t g = 0; g < groups_.size(); ++g) {
        const std::int64_t slot = result.slots[g * per_group + next];
        if (groups_[g].kind == PagedKind::cross || is_state(g)) {
          if (slot != -1) fail("a slot in a cross group");
          continue;
        }
        const auto in_table =
            tables_->slot_of(life.id, std::ssize(life.tokens) - 1, static_cast<std::int32_t>(g));
        if (!in_table || *in_table != slot)
          fail("slots and tables differ in group " + std::to_string(g) + ": " +
               std::to_string(slot) + ", " +
               (in_table ? std::to_string(*in_table) : describe(in_table.status())));
        unit(g, slot) = stamp(g, life.tokens.back());
      }
    }
    if (demands[r].num_tokens > 0) write_cross(life);
  }
  run_states(rows, demands, result);
}

}  // namespace kvarena::model
