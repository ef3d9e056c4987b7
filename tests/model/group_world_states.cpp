// The recurrent layers of a GroupWorld. The state after a token is named by the token, because no
// token is used twice: what a step reads must be the state of the last token before it.

#include "model/group_world.hpp"

#include <algorithm>
#include <numeric>

namespace kvarena::model {
namespace {

constexpr std::uint64_t kPoison = 0xdeadbeefdeadbeef;
constexpr std::uint64_t kPartStep = 1'000'003;

}  // namespace

std::int32_t GroupWorld::table_id(std::size_t g, BlockId id) const {
  const BlockPlace place = manager_->place_of(id);
  return static_cast<std::int32_t>(place.page * groups_[g].ids_per_page +
                                   place.slot * groups_[g].ids_per_block);
}

/// A part fills its slot: the first and the last unit have the value.
void GroupWorld::write_state(std::size_t g, std::int64_t part, std::int32_t slot,
                             std::uint64_t value) {
  const std::int64_t first = slot * (game_.page_units / groups_[g].ids_per_page);
  if (slot < 0 || first + game_.token_units[g] > std::ssize(arena_)) {
    return fail("a state's slot outside the arena");
  }
  const std::uint64_t stored = value == 0 || value == kPoison
                                   ? value
                                   : stamp(g, value) * kPartStep + static_cast<std::uint64_t>(part);
  arena_[static_cast<std::size_t>(first)] = stored;
  arena_[static_cast<std::size_t>(first + game_.token_units[g] - 1)] = stored;
}

/// Returns the value, or kPoison when the bytes are nothing that was written as this part.
std::uint64_t GroupWorld::read_state(std::size_t g, std::int64_t part, std::int32_t slot) {
  if (slot == -1) return 0;
  const std::int64_t first = slot * (game_.page_units / groups_[g].ids_per_page);
  const std::uint64_t stored = arena_[static_cast<std::size_t>(first)];
  if (stored != arena_[static_cast<std::size_t>(first + game_.token_units[g] - 1)]) return kPoison;
  if (stored == 0 || stored == kPoison) return stored;
  const std::uint64_t without_part = stored - static_cast<std::uint64_t>(part);
  if (without_part % kPartStep != 0) return kPoison;
  const std::uint64_t stamped = without_part / kPartStep - (g + 1);
  return stamped % 31 == 0 ? stamped / 31 : kPoison;
}

/// Everything that a step writes has rubbish before, except the state that a row reads and writes
/// in place.
void GroupWorld::poison_states(const AppendResult& result) {
  for (const StateSlots& slots : result.states) {
    const auto g = static_cast<std::size_t>(slots.group);
    const auto is_copied = [&](std::int32_t slot) {
      for (std::size_t i = 0; i < result.copies.size(); ++i) {
        if (result.copy_groups[i] == slots.group && result.copies[i].target.value == slot) {
          return true;
        }
      }
      return false;
    };
    for (std::size_t i = 0; i < slots.write.size(); ++i) {
      const std::int32_t slot = slots.write[i];
      if (slot == -1 || (slot == slots.read[i] && !is_copied(slot))) continue;
      write_state(g, 0, slot, kPoison);
    }
    for (const std::int32_t slot : slots.extra_slots) write_state(g, 0, slot, kPoison);
  }
}

void GroupWorld::copy_state(std::size_t g, const BlockCopy& copy) {
  ++outcomes_[copy.source == kNoBlock ? "state cleared" : "state copied"];
  if (plant_ == GroupPlant::state_copy_lost && random(20) == 0) return;
  const std::int64_t stride = game_.page_units / groups_[g].ids_per_page;
  for (std::int64_t k = 0; k < game_.token_units[g]; ++k) {
    arena_[static_cast<std::size_t>(copy.target.value * stride + k)] =
        copy.source == kNoBlock ? 0
                                : arena_[static_cast<std::size_t>(copy.source.value * stride + k)];
  }
}

/// Runs the recurrences, row by row in any order.
void GroupWorld::run_states(const std::vector<std::size_t>& rows,
                            const std::vector<AppendDemand>& demands, const AppendResult& result) {
  std::vector<std::size_t> order(rows.size());
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random_);
  for (const StateSlots& slots : result.states) {
    const auto g = static_cast<std::size_t>(slots.group);
    const bool in_place = groups_[g].mode == StateMode::in_place;
    const auto parts = static_cast<std::size_t>(slots.num_parts);
    for (const std::size_t r : order) {
      Life& life = lives_[rows[r]];
      const std::int64_t wanted = demands[r].num_tokens;
      const std::int64_t before = std::ssize(life.tokens) - wanted;
      const auto first = static_cast<std::size_t>(slots.extra_offsets[r]);
      const auto end = static_cast<std::size_t>(slots.extra_offsets[r + 1]);
      if (wanted == 0 && first != end) return fail("states of a row without new tokens");
      for (std::size_t part = 0; part < parts; ++part) {
        const auto p = static_cast<std::int64_t>(part);
        const std::int32_t read = slots.read[r * parts + part];
        const std::int32_t write = slots.write[r * parts + part];
        if (wanted == 0) {
          if (write != -1) return fail("a slot to write without new tokens");
          continue;
        }
        if (in_place && read != write) return fail("a kernel in place has two slots");
        if (read_state(g, p, read) != state_after(life, before)) {
          return fail("a stale state is read in group " + std::to_string(g));
        }
        for (std::size_t e = first; e < end; ++e) {
          const std::int64_t token = slots.extra_tokens[e];
          const bool rises = e == first || slots.extra_tokens[e - 1] < token;
          if (token < 0 || token >= wanted - 1 || !rises) return fail("extras out of order");
          write_state(g, p, slots.extra_slots[e * parts + part],
                      state_after(life, before + token + 1));
        }
        write_state(g, p, write, state_after(life, before + wanted));
      }
    }
    for (std::size_t r = 0; r < rows.size(); ++r) {
      Life& life = lives_[rows[r]];
      const auto now = std::ssize(life.tokens);
      const std::int64_t wanted = demands[r].num_tokens;
      const std::int64_t rollback = groups_[g].rollback_tokens;
      for (std::int64_t i = 0; i < std::min(wanted, rollback + 1); ++i) {
        life.states[g].insert(now - i);
      }
      const bool keeps = game_.can_undo && groups_[g].keeps_for_undo;
      if (!keeps) std::erase_if(life.states[g], [&](std::int64_t n) { return n < now - rollback; });
    }
  }
}

/// An undone step gives back what it did not write over.
void GroupWorld::note_undone(Life& life, const Life& before, bool was_written) {
  const auto now = std::ssize(life.tokens);
  life = before;
  if (std::ssize(before.tokens) == now) return;
  for (std::size_t g = 0; g < groups_.size() && was_written; ++g) {
    if (!is_state(g) || groups_[g].keeps_for_undo) continue;
    const std::int64_t first = now - groups_[g].rollback_tokens;
    std::erase_if(life.states[g], [&](std::int64_t n) { return n < first; });
    std::vector<BlockId> ids(static_cast<std::size_t>(groups_[g].num_parts));
    std::vector<Generation> generations(ids.size());
    const auto length = std::ssize(life.tokens);
    life.is_lost |= length > 0 &&
                    !tables_->state_blocks(life.id, length, static_cast<int>(g), ids, generations);
  }
  if (life.is_lost) ++outcomes_["state lost"];
}

void GroupWorld::note_settled() {
  for (std::size_t i = 0; i < unsettled_.size(); ++i) {
    for (Life& life : lives_) {
      if (life.id != unsettled_[i]) continue;
      const auto now = std::ssize(life.tokens);
      for (std::size_t g = 0; g < groups_.size(); ++g) {
        if (!is_state(g)) continue;
        const std::int64_t first = now - groups_[g].rollback_tokens;
        std::erase_if(life.states[g], [&](std::int64_t n) { return n < first; });
      }
      const std::int64_t every = game_.checkpoint_every;
      for (std::int64_t n = every; every > 0 && n <= now; n += every) {
        if (n > unsettled_from_[i]) life.checkpoints.insert(n);
      }
      for (const std::int64_t n : life.asked) {
        if (n > unsettled_from_[i] && n <= now) life.checkpoints.insert(n);
      }
    }
  }
  unsettled_.clear();
}

/// A life goes on at a length that could be had. A fork has its present state alone.
void GroupWorld::note_cut(Life& life, std::int64_t length, bool is_child) {
  life.tokens.resize(static_cast<std::size_t>(length));
  life.is_lost = false;
  bool is_checkpoint = false;  // then it is the only state of all groups
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    is_checkpoint |= is_state(g) && length > 0 && !life.states[g].contains(length);
  }
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    if (!is_state(g)) continue;
    auto& its = life.states[g];
    std::erase_if(its, [&](std::int64_t n) { return n > length || (is_child && n != length); });
    if (length == 0) continue;
    if (is_checkpoint) its = {length};
  }
  std::erase_if(life.checkpoints, [&](std::int64_t n) { return is_child || n > length; });
  if (is_child) life.asked.clear();
}

void GroupWorld::checkpoint() {
  Life& life = lives_[any()];
  const bool has_groups = std::ranges::any_of(
      groups_, [](const TableGroup& group) { return group.kind == PagedKind::state; });
  if (!unsettled_.empty() && random(4) != 0) {
    tables_->settle_append();
    note_settled();
  }
  const Status status = tables_->checkpoint(life.id);
  if (!has_groups) {
    if (status.code != StatusCode::unsupported) fail("a checkpoint without states");
    return;
  }
  const bool waits = !unsettled_.empty() && game_.can_undo;
  if (status.is_ok() == (waits || life.is_lost)) return fail("checkpoint: " + describe(status));
  if (!status || life.tokens.empty()) return;
  ++outcomes_["checkpoint"];
  life.checkpoints.insert(std::ssize(life.tokens));
  std::vector<std::int64_t> lengths(life.tokens.size());
  const auto count = tables_->checkpoints_of(life.id, lengths);
  if (!count || *count == 0 ||
      lengths[static_cast<std::size_t>(*count) - 1] != std::ssize(life.tokens)) {
    return fail("a checkpoint is not there");
  }
  if (plant_ == GroupPlant::checkpoint_rewritten) forget_claims(life.id);
}

/// Whether the tables say that all states at a length can be had.
bool GroupWorld::has_states(const Life& life, std::int64_t length) {
  for (std::size_t g = 0; g < groups_.size() && length > 0; ++g) {
    if (!is_state(g)) continue;
    std::vector<BlockId> ids(static_cast<std::size_t>(groups_[g].num_parts));
    std::vector<Generation> generations(ids.size());
    if (!tables_->state_blocks(life.id, length, static_cast<std::int32_t>(g), ids, generations)) {
      return false;
    }
  }
  return true;
}

/// Every state that can be had is that of its length, none that is due is missing, and no length
/// has a checkpoint that nobody made.
void GroupWorld::check_states(const Life& life) {
  const auto now = std::ssize(life.tokens);
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(now) + 1);
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    if (!is_state(g)) continue;
    std::vector<BlockId> ids(static_cast<std::size_t>(groups_[g].num_parts));
    std::vector<Generation> generations(ids.size());
    for (std::int64_t n = 1; n <= now; ++n) {
      const bool is_due = life.states[g].contains(n) && !life.is_lost;
      const auto found =
          tables_->state_blocks(life.id, n, static_cast<std::int32_t>(g), ids, generations);
      if (!found) {
        if (is_due) return fail("a state is missing at " + std::to_string(n));
        continue;
      }
      for (std::size_t part = 0; part < ids.size(); ++part) {
        const std::uint64_t value =
            read_state(g, static_cast<std::int64_t>(part), table_id(g, ids[part]));
        if (value != state_after(life, n)) {
          return fail("the state at " + std::to_string(n) + " of " + std::to_string(now) +
                      " is another");
        }
      }
    }
    const auto count = tables_->checkpoints_of(life.id, lengths);
    if (!count) return fail("checkpoints: " + describe(count.status()));
    for (std::int64_t i = 0; i < *count; ++i) {
      if (life.checkpoints.contains(lengths[static_cast<std::size_t>(i)])) continue;
      return fail("a checkpoint that nobody made");
    }
    if (*count > 1) ++outcomes_["several checkpoints"];
  }
}

void GroupWorld::check_pinned_state(const Pinned& pinned, std::size_t g) {
  std::vector<BlockId> ids(static_cast<std::size_t>(groups_[g].num_parts));
  const auto count = tables_->blocks_of(pinned.holder, ids, static_cast<std::int32_t>(g));
  if (!count) return fail("blocks of a pin: " + describe(count.status()));
  for (std::int64_t part = 0; part < *count; ++part) {
    const std::int32_t slot = table_id(g, ids[static_cast<std::size_t>(part)]);
    if (read_state(g, part, slot) != state_after(pinned.life, std::ssize(pinned.life.tokens))) {
      return fail("a pinned state is lost");
    }
  }
}

/// Writes the states of an import.
void GroupWorld::write_all_states(const Life& life) {
  const auto now = std::ssize(life.tokens);
  for (std::size_t g = 0; g < groups_.size() && now > 0; ++g) {
    if (!is_state(g)) continue;
    std::vector<BlockId> ids(static_cast<std::size_t>(groups_[g].num_parts));
    const auto count = tables_->blocks_of(life.id, ids, static_cast<std::int32_t>(g));
    if (!count || *count != groups_[g].num_parts) return fail("states of an import");
    for (std::size_t part = 0; part < ids.size(); ++part) {
      write_state(g, static_cast<std::int64_t>(part), table_id(g, ids[part]),
                  state_after(life, now));
    }
  }
}

}  // namespace kvarena::model
