// Sequences of a GroupWorld that begin with tokens that were there before.

#include "model/group_world.hpp"

#include <algorithm>

namespace kvarena::model {
namespace {

constexpr std::size_t kMostScripts = 24;

}  // namespace

std::vector<std::int32_t> GroupWorld::told(const std::vector<std::uint64_t>& names) {
  return {names.begin(), names.end()};
}

/// The names of the next tokens: those of the script, then new ones.
void GroupWorld::tell_names(const Life& life, std::int64_t count,
                            std::vector<std::uint64_t>& names) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto place = static_cast<std::size_t>(i);
    names.push_back(place < life.script.size() ? life.script[place] : next_token_++);
  }
}

void GroupWorld::keep_script(const Life& life) {
  if (!game_.has_prefix_cache || life.is_import || life.tokens.empty()) return;
  if (scripts_.size() == kMostScripts) {
    scripts_.erase(scripts_.begin() + static_cast<std::ptrdiff_t>(random(kMostScripts)));
  }
  scripts_.push_back({life.salt, life.tokens});
}

/// A sequence with the tokens of another one, up to some length.
void GroupWorld::begin_with_prefix() {
  if (!lives_.empty() && random(3) == 0) keep_script(lives_[any()]);
  if (scripts_.empty()) return begin();
  const Script from = scripts_[static_cast<std::size_t>(random(scripts_.size()))];
  std::vector<std::uint64_t> wanted = from.tokens;
  if (random(2) == 0) wanted.resize(1 + static_cast<std::size_t>(random(wanted.size())));
  const bool is_foreign = random(8) == 0;
  const std::uint64_t salt = is_foreign ? from.salt + 1 : from.salt;
  const std::vector<std::int32_t> tokens = told(wanted);
  Life life = new_life();
  const auto made = tables_->create_sequence({.tokens = tokens, .salt = salt});
  if (!made) {
    const Status status = made.status();
    if (status.resource != Resource::page) fail("create_sequence: " + describe(status));
    ++outcomes_["prefix promised to others"];
    return;
  }
  life.id = *made;
  if (is_foreign) {
    if (tables_->info(life.id)->length_tokens != 0) fail("a hit across salts");
    note_asked(life, std::ssize(wanted));
    life.salt = salt;  // what it computes must not be found under the other salt: new tokens
    lives_.push_back(std::move(life));
    return;
  }
  note_found(life, wanted, salt);
  lives_.push_back(std::move(life));
}

/// The lengths of a state at the end of the prompt, and where a longer prefix ended.
void GroupWorld::note_asked(Life& life, std::int64_t prompt) {
  const auto full = std::ranges::find(groups_, PagedKind::full, &TableGroup::kind);
  const std::int64_t size = full->block_size_tokens;
  life.asked = {prompt / size * size, tables_->prefix_of(life.id)->registered_tokens};
}

/// What was found is read as if the sequence had written it.
void GroupWorld::note_found(Life& life, const std::vector<std::uint64_t>& wanted,
                            std::uint64_t salt) {
  const auto match = tables_->prefix_of(life.id);
  if (!match) return fail("prefix_of: " + describe(match.status()));
  const std::int64_t length = tables_->info(life.id)->length_tokens;
  if (length != match->tokens || length > std::ssize(wanted) ||
      match->registered_tokens < match->tokens ||
      (match->stop == PrefixStop::other_group) != (match->registered_tokens > match->tokens)) {
    return fail("the match and the sequence differ");
  }
  life.salt = salt;
  life.tokens.assign(wanted.begin(), wanted.begin() + length);
  life.script.assign(wanted.begin() + length, wanted.end());
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    life.states[g].clear();
    if (is_state(g) && length > 0) life.states[g] = {length};
  }
  life.checkpoints.clear();
  note_asked(life, std::ssize(wanted));
  life.is_lost = false;
  ++outcomes_[length > 0 ? "prefix hit" : "prefix missed"];
  if (match->stop == PrefixStop::other_group) ++outcomes_["another group fell short"];
  check(life, length, "in a prefix");
  check_states(life);
}

/// Blocks of a prefix that can be found are not for another tenant. What has never been told is.
void GroupWorld::offer_to_another(const Life& from, std::int64_t length,
                                  const std::vector<GroupBlocks>& blocks) {
  const auto made = tables_->create_sequence_from(
      length, blocks, {.cross_tokens = from.cross_tokens, .salt = from.salt + 1});
  if (made) {
    const auto full = std::ranges::find(groups_, PagedKind::full, &TableGroup::kind);
    const std::size_t first = static_cast<std::size_t>(full - groups_.begin());
    const std::vector<std::int32_t> tokens =
        told({from.tokens.begin(), from.tokens.begin() + length});
    const auto found = tables_->match({.tokens = tokens, .salt = from.salt}).value();
    const auto own = tables_->create_sequence({.tokens = tokens, .salt = from.salt});
    if (own) {
      const bool has_first = found.tokens > 0 && !blocks[first].ids.empty();
      if (has_first && tables_->lookup(*own, 0, static_cast<std::int32_t>(first)).value() ==
                           blocks[first].ids.front()) {
        fail("another tenant got a block that can be found");
      }
      expect(tables_->destroy(*own), "destroy");
    }
    expect(tables_->destroy(*made), "destroy");
    return;
  }
  if (made.status().resource == Resource::page) return;
  if (made.status().option != Option::salt) fail("another salt: " + describe(made.status()));
  ++outcomes_["refused to another tenant"];
}

/// A sequence that is cut to nothing begins with a prefix of its own tokens again.
void GroupWorld::adopt_again() {
  Life& life = lives_[any()];
  if (life.is_import || life.tokens.empty()) return;
  keep_script(life);
  const std::vector<std::uint64_t> wanted = life.tokens;
  if (!tables_->truncate(life.id, 0)) return fail("a cut to nothing is refused");
  note_cut(life, 0, false);
  life.script = wanted;
  const std::vector<std::int32_t> tokens = told(wanted);
  const auto found = tables_->adopt(life.id, tokens);
  if (!found) {
    // Blocks may be reserved, or promised to others.
    const Status status = found.status();
    const bool is_known =
        status.code == StatusCode::failed_precondition || status.resource == Resource::page;
    if (!is_known) fail("adopt: " + describe(status));
    return;
  }
  ++outcomes_["adopted again"];
  note_found(life, wanted, life.salt);
}

void GroupWorld::publish_tokens(const Life& life) {
  expect(tables_->publish(life.id), "publish");
  if (plant_ == GroupPlant::companion_of_another) plant_in_companions();
}

void GroupWorld::operate_prefix() {
  const Life& life = lives_[any()];
  switch (random(8)) {
    case 0: expect(tables_->forget(life.id), "forget"); return;
    case 1:
      if (random(4) == 0) expect(tables_->forget_all(), "forget_all");
      return;
    case 2: {
      const auto length = static_cast<std::int64_t>(random(life.tokens.size() + 1));
      const auto known = tables_->info(life.id)->known_tokens;
      if (length < known) expect(tables_->withdraw_tokens(life.id, length), "withdraw");
      return;
    }
    case 3: {  // tells what steps have not told
      const std::int64_t known = tables_->info(life.id)->known_tokens;
      if (life.is_import || life.is_lost || known >= std::ssize(life.tokens)) return;
      const std::vector<std::int32_t> all = told(life.tokens);
      expect(tables_->register_tokens(life.id,
                                      std::span(all).subspan(static_cast<std::size_t>(known))),
             "register_tokens");
      publish_tokens(life);
      return;
    }
    default: return adopt_again();
  }
}

}  // namespace kvarena::model
