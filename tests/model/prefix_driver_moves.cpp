// What the driver does: on both sides, in the same words.

#include "model/prefix_driver.hpp"

#include <algorithm>

namespace kvarena::model {

PrefixDriver::Tokens PrefixDriver::any_tokens(std::size_t at_most) {
  Tokens tokens(below(at_most + 1));
  for (std::int32_t& token : tokens) {
    token = static_cast<std::int32_t>(below(static_cast<std::uint64_t>(game_.alphabet)));
  }
  return tokens;
}

void PrefixDriver::create(const Tokens& prompt, const SequenceOptions& given) {
  SequenceOptions options = given;
  options.tokens = prompt;
  const PrefixQuery query{prompt, options.salt, options.extra_keys};
  compare_match(query);
  PrefixMatch found = prefix_.match(query);
  const std::vector<Handle> blocks = prefix_.blocks_to_take(query, found);
  const Result<SequenceId> real = tables_.create_sequence(options);
  Status predicted = naive_.can_create({});
  if (predicted && found.stop == PrefixStop::not_yet_published &&
      game_.duplicates == DuplicateRule::wait && !prompt.empty()) {
    predicted = failed_precondition(Resource::content);
  }
  expect(real.status(), predicted, "create_sequence");
  if (!real || !predicted) {
    // A holder was registered and went again; the model's pool counts only those that stay.
    return;
  }
  if (!naive_.adopt(*real, tables_.info(*real)->holder, {})) fail("an id came back");
  prefix_.begin(*real, options);
  living_.push_back(*real);
  if (prompt.empty()) return;
  if (!blocks.empty())
    expect(naive_.begin_with(*real, blocks, found.tokens), Status{}, "retain of a match");
  prefix_.adopted(*real, prompt, found);
  compare_match(tables_.prefix_of(*real).value(), found);
  prompts_[*real] = Tokens(prompt.begin() + found.tokens, prompt.end());
}

void PrefixDriver::create_sequence() {
  SequenceOptions options{.salt = below(static_cast<std::uint64_t>(game_.num_salts))};
  if (one_in(4)) {
    keys_[0] = {.key = below(2), .first_token = static_cast<std::int64_t>(below(4))};
    keys_[1] = {.key = below(2),
                .first_token = keys_[0].first_token + static_cast<std::int64_t>(below(4))};
    options.extra_keys = std::span<const ExtraKey>(keys_).first(1 + below(2));
  }
  create(any_tokens(static_cast<std::size_t>(game_.longest)), options);
}

void PrefixDriver::append(SequenceId id, const Tokens& tokens, bool tells) {
  const AppendDemand demand{
      id,
      static_cast<std::int32_t>(tokens.size()),
      {},
      tells ? std::span<const std::int32_t>(tokens) : std::span<const std::int32_t>{}};
  const bool knows_all = std::ssize(prefix_.sequence(id).known) == length_of(id);
  const Result<Growth> model = naive_.append(std::span(&demand, 1), Urgency::growth);
  const Result<AppendResult> real = tables_.append(std::span(&demand, 1));
  expect(real.status(), model.status(), "append");
  if (!real || !model) return;
  expect(std::ssize(real->copies), std::ssize(model->copies), "copies");
  if (!std::equal(real->slots.begin(), real->slots.end(), model->slots.begin(),
                  model->slots.end())) {
    fail("slots differ");
  }
  if (tells && knows_all) prefix_.add_tokens(id, tokens);
}

void PrefixDriver::append_tokens() {
  const SequenceId id = any_sequence();
  if (id == kNoSequence) return;
  Tokens tokens = std::exchange(prompts_[id], {});
  if (tokens.empty() || one_in(6)) tokens = any_tokens(5);
  if (one_in(3) && tokens.size() > 1) {  // a part of the prompt
    const auto half = static_cast<std::ptrdiff_t>(tokens.size() / 2);
    prompts_[id].assign(tokens.begin() + half, tokens.end());
    tokens.resize(static_cast<std::size_t>(half));
  }
  append(id, tokens, !one_in(12));
}

void PrefixDriver::decode_step() {
  if (living_.empty()) return;
  const Tokens tokens = [&] {
    Tokens list(living_.size());
    for (std::int32_t& token : list) token = any_tokens(1).empty() ? 0 : 1;
    return list;
  }();
  std::vector<AppendDemand> demands;
  std::vector<bool> knows_all;
  for (const SequenceId id : living_) {
    demands.push_back({.sequence = id, .num_tokens = 1});
    knows_all.push_back(std::ssize(prefix_.sequence(id).known) == length_of(id));
  }
  const Result<Growth> model = naive_.append(demands, Urgency::growth);
  const Result<AppendResult> real = tables_.append_one_each(living_, tokens);
  expect(real.status(), model.status(), "append_one_each");
  if (!real || !model) return;
  for (std::size_t i = 0; i < living_.size(); ++i) {
    if (knows_all[i]) prefix_.add_tokens(living_[i], std::span(tokens).subspan(i, 1));
  }
}

/// Tells tokens that nobody told: they may be any, since nothing here looks at bytes.
void PrefixDriver::register_tokens() {
  const SequenceId id = any_sequence();
  if (id == kNoSequence) return;
  const auto unknown =
      static_cast<std::size_t>(length_of(id) - std::ssize(prefix_.sequence(id).known));
  const Tokens tokens = any_tokens(unknown + (one_in(10) ? 1 : 0));
  Status predicted;
  if (tokens.size() > unknown) predicted = invalid_argument(Resource::num_tokens, 0, 0, 0);
  expect(tables_.register_tokens(id, tokens), predicted, "register_tokens");
  if (predicted) prefix_.register_tokens(id, tokens);
}

/// Says that tokens may be unwritten, or only that nobody knows them.
void PrefixDriver::doubt_tokens() {
  const SequenceId id = any_sequence();
  if (id == kNoSequence) return;
  const auto length = static_cast<std::int64_t>(
      below(static_cast<std::uint64_t>(length_of(id)) + (one_in(10) ? 2 : 1)));
  Status predicted;
  if (length > length_of(id)) predicted = invalid_argument(Resource::sequence_length, 0, 0, 0);
  if (one_in(4)) {
    expect(tables_.withdraw_tokens(id, length), predicted, "withdraw_tokens");
    if (predicted) prefix_.untell(id, length);
  } else {
    expect(tables_.distrust_tokens(id, length), predicted, "distrust_tokens");
    if (predicted) prefix_.distrust(id, length);
  }
}

void PrefixDriver::publish(SequenceId id, std::int64_t length) {
  expect(tables_.publish(id, length), Status{}, "publish");
  prefix_.publish(id, length == -1 ? length_of(id) : length);
}

void PrefixDriver::publish() {
  const SequenceId id = any_sequence();
  if (id == kNoSequence) return;
  publish(id, one_in(3)
                  ? static_cast<std::int64_t>(below(static_cast<std::uint64_t>(length_of(id)) + 1))
                  : -1);
}

void PrefixDriver::fork(SequenceId parent, std::int64_t length) {
  const Status predicted = naive_.can_fork(parent, length, {});
  const Result<SequenceId> real = tables_.fork(parent, length);
  expect(real.status(), predicted, "fork");
  if (!real || !predicted) return;
  if (!naive_.adopt_fork(parent, length, *real, tables_.info(*real)->holder, {})) {
    fail("an id came back");
  }
  prefix_.fork(parent, *real, length);
  living_.push_back(*real);
}

void PrefixDriver::fork_sequence() {
  const SequenceId id = any_sequence();
  if (id == kNoSequence) return;
  fork(id, static_cast<std::int64_t>(below(static_cast<std::uint64_t>(length_of(id)) + 1)));
}

void PrefixDriver::truncate(SequenceId id, std::int64_t length) {
  const Ticket ticket = !tickets_.empty() && one_in(3) ? tickets_.back() : kNoTicket;
  prefix_.cut(id, length);
  expect(tables_.truncate(id, length, ticket), naive_.truncate(id, length, ticket), "truncate");
  prompts_.erase(id);
}

void PrefixDriver::truncate() {
  const SequenceId id = any_sequence();
  if (id == kNoSequence) return;
  truncate(id, static_cast<std::int64_t>(below(static_cast<std::uint64_t>(length_of(id)) + 1)));
}

void PrefixDriver::destroy(SequenceId id) {
  const Ticket ticket = !tickets_.empty() && one_in(3) ? tickets_.back() : kNoTicket;
  prefix_.end(id);
  expect(tables_.destroy(id, ticket), naive_.destroy_many(std::span(&id, 1), ticket), "destroy");
  std::erase(living_, id);
  prompts_.erase(id);
}

void PrefixDriver::destroy() {
  if (const SequenceId id = any_sequence(); id != kNoSequence) destroy(id);
}

void PrefixDriver::forget() {
  const SequenceId id = any_sequence();
  if (one_in(4)) {
    expect(tables_.forget_all(), Status{}, "forget_all");
    prefix_.forget_all();
  } else if (one_in(2)) {
    const std::uint64_t salt = below(static_cast<std::uint64_t>(game_.num_salts));
    expect(tables_.forget_salt(salt), Status{}, "forget_salt");
    prefix_.forget_salt(salt);
  } else if (id != kNoSequence) {
    expect(tables_.forget(id), Status{}, "forget");
    prefix_.forget(id);
  }
}

void PrefixDriver::ask() {
  const Tokens tokens = any_tokens(static_cast<std::size_t>(game_.longest));
  compare_match({.tokens = tokens, .salt = below(static_cast<std::uint64_t>(game_.num_salts))});
}

void PrefixDriver::pin_or_unpin() {
  if (!naive_.pins().empty() && one_in(2)) {
    const HolderId pin = naive_.pins().begin()->first;
    expect(tables_.unpin(pin), naive_.unpin(pin, kNoTicket), "unpin");
    return;
  }
  const SequenceId id = any_sequence();
  if (id == kNoSequence) return;
  const auto filled = static_cast<std::uint64_t>(naive_.blocks_for(length_of(id)));
  const PinOptions options{.first_block = static_cast<std::int64_t>(below(filled + 1))};
  const Status predicted = naive_.can_pin(id, options);
  const Result<HolderId> real = tables_.pin(id, options);
  expect(real.status(), predicted, "pin");
  if (!real || !predicted) return;
  if (!naive_.adopt_pin(id, options, *real, manager_.holder(*real)->number)) {
    fail("a pin's holder came back");
  }
}

void PrefixDriver::set_limits(std::uint64_t salt, const SaltLimits& limits) {
  const bool had_floor = prefix_.has_account(salt);
  expect(tables_.set_salt_limits(salt, limits), Status{}, "set_salt_limits");
  HolderId holder;
  for (const HolderReport& report : manager_.holders()) {
    if (report.purpose == "salt floor" && report.owner == salt) holder = report.holder;
  }
  if (!had_floor) {
    static_cast<void>(pool_.adopt_holder(holder, {.owner = salt, .purpose = "salt floor"}));
  }
  prefix_.set_limits(salt, limits, holder);
}

void PrefixDriver::set_limits() {
  if (!game_.has_limits) return;
  SaltLimits limits;
  if (!one_in(4)) limits.floor_blocks = static_cast<std::int64_t>(below(4));
  if (one_in(2)) {
    limits.cap_blocks =
        std::max<std::int64_t>(1, limits.floor_blocks) + static_cast<std::int64_t>(below(5));
  }
  set_limits(below(static_cast<std::uint64_t>(game_.num_salts)), limits);
}

/// Retention of any block, also of one that has none or belongs to others.
void PrefixDriver::set_retention() {
  if (game_.eviction != EvictionPolicy::priority) return;
  const BlockId id(static_cast<std::int32_t>(below(static_cast<std::uint64_t>(game_.num_blocks))));
  RetentionHint retention{.priority = static_cast<std::int32_t>(30 + below(8))};
  if (!one_in(3)) retention.expires_at = pool_.clock() + static_cast<std::int64_t>(below(20));
  const Handle handle{id, manager_.generation(id)};
  expect(manager_.set_retention(id, handle.generation, retention),
         pool_.set_retention(handle, retention), "set_retention");
}

void PrefixDriver::advance_clock() {
  if (game_.eviction != EvictionPolicy::priority) return;
  const std::int64_t now = pool_.clock() + static_cast<std::int64_t>(below(6));
  expect(manager_.advance_clock(now), pool_.advance_clock(now), "advance_clock");
}

/// Others take blocks, retire tickets, quarantine and set contents, without a word to the tables.
void PrefixDriver::play_outsider() {
  if (!game_.has_outsiders) return;
  const BlockId id(static_cast<std::int32_t>(below(static_cast<std::uint64_t>(game_.num_blocks))));
  switch (below(8)) {
    case 0: {
      std::array<BlockId, 1> ids;
      std::array<Generation, 1> generations;
      const Want want{outsider_, 1};
      const Result<Grant> model = pool_.allocate(std::span(&want, 1), Urgency::growth);
      expect(manager_.allocate(outsider_, ids, generations).status(), model.status(), "allocate");
      if (model) outside_.push_back(model->handles.front());
      static_cast<void>(pool_.take_evicted());
      return;
    }
    case 1: {
      if (outside_.empty()) return;
      const Handle handle = outside_.back();
      outside_.pop_back();
      expect(
          manager_.release(outsider_, std::span(&handle.id, 1), std::span(&handle.generation, 1)),
          pool_.release(outsider_, std::span(&handle, 1)), "release");
      return;
    }
    case 2: {
      const Result<bool> real = manager_.quarantine(id);
      expect(real.status(), pool_.quarantine(id).status(), "quarantine");
      return;
    }
    case 3: expect(manager_.restore(id), pool_.restore(id), "restore"); return;
    case 4: {
      const Handle handle{id, manager_.generation(id)};
      const BlockState state = manager_.state(id);
      if (state == BlockState::free || state == BlockState::offline) return;
      const auto content = one_in(2) ? BlockContent::failed : BlockContent::unwritten;
      expect(manager_.set_content(id, handle.generation, content),
             pool_.set_content(handle, content), "set_content");
      return;
    }
    case 5: {
      const Result<Ticket> real = manager_.open_ticket();
      expect(real.status(), pool_.can_open_ticket(), "open_ticket");
      if (real && pool_.adopt_ticket(*real)) tickets_.push_back(*real);
      return;
    }
    default: {
      if (tickets_.empty()) return;
      const Ticket ticket = tickets_.front();
      tickets_.erase(tickets_.begin());
      expect(manager_.retire(ticket), pool_.retire(ticket), "retire");
      return;
    }
  }
}

// ---- the enumeration ----------------------------------------------------------------------------

/// Each step is one call that can be made in any state; without a sequence it does nothing.
void PrefixDriver::step(int number) {
  const SequenceId newest = living_.empty() ? kNoSequence : living_.back();
  const SequenceId oldest = living_.empty() ? kNoSequence : living_.front();
  move_ = "step";
  switch (number) {
    case 0:
    case 1: {
      create(number == 0 ? Tokens{1, 2, 3, 4, 5} : Tokens{1, 2, 7}, {});
      const SequenceId created = living_.empty() ? kNoSequence : living_.back();
      if (created != newest) append(created, std::exchange(prompts_[created], {}), true);
      break;
    }
    case 2:
      if (oldest != kNoSequence) publish(oldest, -1);
      break;
    case 3:
      if (oldest != kNoSequence) destroy(oldest);
      break;
    case 4:
      if (newest != kNoSequence) append(newest, {6}, true);
      break;
    case 5:
      if (newest != kNoSequence && length_of(newest) > 0) truncate(newest, length_of(newest) - 1);
      break;
    default:
      if (newest != kNoSequence) fork(newest, std::max<std::int64_t>(0, length_of(newest) - 1));
      break;
  }
  ++operation_;
}

void PrefixDriver::other_step(int number) {
  const SequenceId newest = living_.empty() ? kNoSequence : living_.back();
  const SequenceId oldest = living_.empty() ? kNoSequence : living_.front();
  move_ = "other_step";
  ++operation_;
  if (number < kNumBeginnings) {
    create({1, 2, 3, 4, 5}, {.salt = number == 0 ? 1U : 0U});
    const SequenceId created = living_.empty() ? kNoSequence : living_.back();
    if (created != newest) append(created, std::exchange(prompts_[created], {}), number == 0);
    return;
  }
  if (newest == kNoSequence) return;
  switch (number) {
    case 2: return publish(oldest, std::min<std::int64_t>(2, length_of(oldest)));
    case 3: {
      const auto known = std::ssize(prefix_.sequence(newest).known);
      Tokens tokens{1, 2, 3, 4, 5, 6, 7, 8};
      tokens.erase(tokens.begin(), tokens.begin() + std::min<std::ptrdiff_t>(known, 8));
      tokens.resize(static_cast<std::size_t>(length_of(newest) - known));
      expect(tables_.register_tokens(newest, tokens), Status{}, "register_tokens");
      return prefix_.register_tokens(newest, tokens);
    }
    case 4: expect(tables_.forget(oldest), Status{}, "forget"); return prefix_.forget(oldest);
    case 5: return publish(newest, -1);
    default: return destroy(oldest);
  }
}

void PrefixDriver::clear() {
  while (!living_.empty()) destroy(living_.back());
  while (!naive_.pins().empty()) {
    const HolderId pin = naive_.pins().begin()->first;
    expect(tables_.unpin(pin), naive_.unpin(pin, kNoTicket), "unpin");
  }
  for (const Ticket ticket : std::exchange(tickets_, {})) {
    expect(manager_.retire(ticket), pool_.retire(ticket), "retire");
  }
  expect(tables_.forget_all(), Status{}, "forget_all");
  prefix_.forget_all();
  compare();
}

}  // namespace kvarena::model
