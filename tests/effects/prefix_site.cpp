#include "effects/prefix_site.hpp"

#include "support/pool_snapshot.hpp"

#include <bit>

namespace kvarena::test {

PrefixSite::PrefixSite(const PrefixSiteOptions& options, Story& story)
    : options_(options),
      story_(story),
      manager_(BlockManager::create({.num_blocks = options.num_blocks,
                                     .max_holders = options.max_sequences + 1,
                                     .max_open_tickets = 4,
                                     .eviction = options.eviction})
                   .value()),
      pool_(PrefixPool::create(manager_, {.block_size_tokens = options.block_size_tokens,
                                          .prefix = {.hash_key = {7, 11},
                                                     .max_extra_keys = options.max_extra_keys,
                                                     .duplicates = options.duplicates}})
                .value()),
      memory_(options.num_blocks, options.block_size_tokens, 2),
      block_size_(static_cast<std::size_t>(options.block_size_tokens)),
      outsider_(manager_.register_holder({.purpose = "outsider"}).value()) {
  story_.tell(options.num_blocks, " blocks of ", options.block_size_tokens, " tokens, ",
              options.max_sequences, " sequences; the engine tells what it allocates and releases ",
              options.telling == 0   ? "always"
              : options.telling == 1 ? "sometimes"
                                     : "never");
}

void PrefixSite::fail(const char* kind, std::string text) {
  if (!failure_) failure_ = Failure{kind, std::move(text)};
}

PrefixSite::Figures PrefixSite::figures() const {
  Figures all;
  for (const std::int64_t count : counts_of(manager_.stats())) {
    all.push_back(static_cast<std::uint64_t>(count));
  }
  using Stats = std::array<std::uint64_t, sizeof(PrefixStats) / sizeof(std::uint64_t)>;
  const auto stats = std::bit_cast<Stats>(pool_.stats());
  all.insert(all.end(), stats.begin(), stats.end());
  return all;
}

bool PrefixSite::is_taken(const char* name, const Status& status, bool is_allowed) {
  if (status) return true;
  story_.tell(name, " is refused: ", name_of(status.code), " ", name_of(status.resource));
  if (!is_allowed) fail("refusal", std::string(name) + " was refused without a cause");
  if (figures() != before_) fail("refused call", std::string(name) + " changed something");
  return false;
}

void PrefixSite::expect_refused(const char* name, const Status& status, StatusCode code,
                                Resource resource) {
  if (status) return fail("misuse", std::string(name) + " was taken");
  story_.tell(name, " is refused: ", name_of(status.code), " ", name_of(status.resource));
  if (status.code != code || status.resource != resource) {
    fail("misuse", std::string(name) + " was refused for another cause");
  }
  if (figures() != before_) fail("refused call", std::string(name) + " changed something");
}

/// The words of tokens first .. first + count - 1. Equal tokens behind an equal beginning of one
/// tenant, with equal extra keys, are one word, whoever writes it.
std::vector<Word> PrefixSite::words_of(const Asked& content, std::size_t first, std::size_t count) {
  std::vector<Word> words;
  Word before = 0;
  for (std::size_t i = 0; i < first + count; ++i) {
    std::vector<std::uint64_t> keys;
    for (const ExtraKey& key : content.keys) {
      if (key.first_token == static_cast<std::int64_t>(i)) keys.push_back(key.key);
    }
    const auto [at, is_new] =
        meanings_.try_emplace({content.salt, before, content.tokens[i], std::move(keys)}, 0);
    if (is_new) at->second = ++last_word_;
    before = at->second;
    if (i >= first) words.push_back(before);
  }
  return words;
}

std::vector<std::int64_t> PrefixSite::slots_of(BlockId id) const {
  std::vector<std::int64_t> slots(block_size_);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    slots[i] = std::int64_t{id.value} * options_.block_size_tokens + static_cast<std::int64_t>(i);
  }
  return slots;
}

void PrefixSite::read_blocks(std::size_t stream, Party party, std::span<const Filled> blocks) {
  for (const Filled& block : blocks) {
    if (block.is_written) memory_.read(stream, party, slots_of(block.id), block.words);
  }
}

/// A prompt that begins like one of before, of the same tenant or of another.
PrefixSite::Asked PrefixSite::prompt_of(const Numbers& n) {
  Asked asked{n[3] % 2, {}, {}};
  if (const Asked* before = pick(prompts_, n[1]); before != nullptr && n[2] % 8 != 7) {
    asked = *before;
    if (n[3] % 8 == 7) asked.salt = 1 - asked.salt;
    if (n[2] % 4 == 3) asked.tokens.resize(n[1] % (asked.tokens.size() + 1));
  }
  for (std::uint32_t i = 0; i < 1 + n[2] / 8 % 8; ++i) {
    asked.tokens.push_back(static_cast<std::int32_t>((n[2] >> i) % 2));
  }
  if (options_.max_extra_keys > 0 && n[1] / 8 % 4 == 3) {  // others, or none
    asked.keys.resize(n[1] / 32 % 3);
    for (std::size_t i = 0; i < asked.keys.size(); ++i) {
      const std::int64_t before = i == 0 ? 0 : asked.keys[i - 1].first_token;
      asked.keys[i] = {.key = (n[2] >> i) % 2, .first_token = before + (n[1] >> (8 + i)) % 6};
    }
  }
  return asked;
}

void PrefixSite::remember(const Asked& content) {
  constexpr std::size_t kMost = 8;
  if (content.tokens.empty()) return;
  if (prompts_.size() < kMost) return prompts_.push_back(content);
  prompts_[num_names_++ % kMost] = content;
}

PrefixSite::Handles PrefixSite::handles_of(const Sequence& sequence, std::size_t first,
                                           std::size_t count) const {
  Handles handles;
  for (const Filled& block : std::span(sequence.blocks).subspan(first, count)) {
    handles.ids.push_back(block.id);
    handles.generations.push_back(block.generation);
  }
  return handles;
}

/// An engine that forgets to tell finds less; nobody finds anything wrong.
void PrefixSite::tell(std::span<const BlockId> ids, std::uint32_t number) {
  if (options_.telling == 0 || (options_.telling == 1 && number % 2 == 0)) pool_.notice(ids);
}

void PrefixSite::run_stream(const Numbers& n) {
  const std::size_t stream = n[0] % 2;
  std::uint32_t count = 0;
  while (count <= n[1] && memory_.run_one(stream)) ++count;
  if (count > 0) story_.tell("stream ", stream, " runs ", count, " operation(s)");
}

void PrefixSite::finish() {
  for (const Sequence& sequence : sequences_) {
    read_blocks(kHome, {"sequence", sequence.name}, sequence.blocks);
  }
  memory_.run_until(kHome, memory_.position(kHome));
  for (std::uint32_t i = 0; i < readers_.size(); ++i) retire({i, 0, 0, 0});
  if (!failure()) check_whole();
}

void PrefixSite::check_whole() {
  for (std::uint32_t i = 0; i < 2 * sequences_.size(); ++i) check_found({i, 0, 0, 0});
  std::vector<BlockId> all;
  for (std::int32_t i = 0; i < manager_.num_blocks(); ++i) all.emplace_back(i);
  pool_.notice(all);
  if (!pool_.check_invariants()) fail("accounts", "the pool's check_invariants found a violation");
  while (!sequences_.empty()) destroy({0, 0, 0, 0});
  release_others({0, 0, 0, 0});
  pool_.forget_all();
  const BlockStats stats = manager_.stats();
  if (stats.free != stats.num_blocks || stats.references != 0 || stats.fence_entries != 0 ||
      pool_.stats().registered != 0) {
    fail("accounts", "after everything was given back " + std::to_string(stats.free) + " of " +
                         std::to_string(stats.num_blocks) + " blocks are free");
  }
  if (!manager_.check_invariants() || !pool_.check_invariants()) {
    fail("accounts", "check_invariants found an invariant violated");
  }
}

}  // namespace kvarena::test
