#include "effects/cache_site.hpp"

#include <algorithm>

namespace kvarena::test {

/// Adds a token to a sequence. With a prefix cache its content is that of equal tokens behind an
/// equal beginning of one tenant, with equal extra keys, whoever computes it; else it is its own.
void CacheSite::add_word(Sequence& sequence, std::int32_t token) {
  const Word word = families_.size();
  Word content = word;
  if (options_.has_prefix_cache) {
    const Word before = sequence.words.empty() ? 0 : contents_[sequence.words.back()];
    std::vector<std::uint64_t> keys;
    for (const ExtraKey& key : sequence.keys) {
      if (key.first_token == std::ssize(sequence.words)) keys.push_back(key.key);
    }
    content = meanings_.try_emplace({sequence.salt, before, token, keys}, word).first->second;
  }
  sequence.words.push_back(word);
  families_.push_back(sequence.family);
  is_written_.push_back(false);
  is_lost_.push_back(false);
  contents_.push_back(content);
  tokens_.push_back(token);
}

std::vector<Word> CacheSite::contents_of(std::span<const Word> words) const {
  std::vector<Word> contents;
  for (const Word word : words) contents.push_back(contents_[word]);
  return contents;
}

std::vector<std::int32_t> CacheSite::tokens_of(const Sequence& sequence, std::size_t first) const {
  std::vector<std::int32_t> tokens;
  for (std::size_t i = first; i < sequence.words.size(); ++i) {
    tokens.push_back(tokens_[sequence.words[i]]);
  }
  return tokens;
}

/// The next tokens of a sequence: of its prompt, then any.
std::vector<std::int32_t> CacheSite::next_tokens(const Sequence& sequence, std::size_t count,
                                                 std::uint32_t number) const {
  std::vector<std::int32_t> tokens;
  for (std::size_t i = 0; i < count; ++i) {
    tokens.push_back(i < sequence.coming.size()
                         ? sequence.coming[i]
                         : static_cast<std::int32_t>((sequence.words.size() + i + number) % 2));
  }
  return tokens;
}

/// Remembers what a sequence has: others will ask for the same.
void CacheSite::remember(const Sequence& sequence) {
  constexpr std::size_t kMost = 8;
  Asked asked{sequence.salt, tokens_of(sequence, 0), sequence.keys};
  if (prompts_.size() < kMost) return prompts_.push_back(std::move(asked));
  prompts_[num_names_ % kMost] = std::move(asked);
}

/// A prompt that begins like one of before, of the same tenant or of another.
CacheSite::Asked CacheSite::prompt_of(const Numbers& n) {
  Asked asked{n[3] % 2, {}, {}};
  if (const Asked* before = pick(prompts_, n[1]); before != nullptr && n[2] % 8 != 7) {
    asked = *before;
    if (n[3] % 8 == 7) asked.salt = 1 - asked.salt;
    if (n[2] % 4 == 3) asked.tokens.resize(n[1] % (asked.tokens.size() + 1));
  }
  for (std::uint32_t i = 0; i < n[2] / 8 % 8; ++i) {
    asked.tokens.push_back(static_cast<std::int32_t>((n[2] >> i) % 2));
  }
  if (options_.has_extra_keys && n[1] / 8 % 4 == 3) {  // others, or none
    asked.keys.resize(n[1] / 32 % 3);
    for (std::size_t i = 0; i < asked.keys.size(); ++i) {
      const std::int64_t before = i == 0 ? 0 : asked.keys[i - 1].first_token;
      asked.keys[i] = {.key = (n[2] >> i) % 2, .first_token = before + (n[1] >> (8 + i)) % 6};
    }
  }
  return asked;
}

/// What a sequence has been given of its prompt must be what somebody wrote for it.
void CacheSite::take_prefix(Sequence& sequence, std::span<const std::int32_t> prompt,
                            const PrefixMatch& found) {
  const auto covered = static_cast<std::size_t>(found.tokens);
  for (const std::int32_t token : prompt.first(covered)) {
    add_word(sequence, token);
    is_written_.back() = true;
  }
  sequence.coming.assign(prompt.begin() + found.tokens, prompt.end());
  story_.tell(site_, "sequence ", sequence.name, " of tenant ", sequence.salt, " begins with ",
              found.tokens, " of ", prompt.size(), " tokens",
              found.part_tokens > 0 ? ", a part of a block among them" : "", ": ",
              name_of(found.stop),
              found.stop == PrefixStop::evicted && found.removal == PrefixRemoval::over_cap
                  ? ", over the cap"
                  : "");
  check_on_home(sequence);
}

void CacheSite::create_with_prompt(const Numbers& n) {
  if (!options_.has_prefix_cache) return;
  const Asked asked = prompt_of(n);
  const auto id = guarded("create_sequence with a prompt", [&] {
    return cache_.create_sequence(
        {.tokens = asked.tokens, .salt = asked.salt, .extra_keys = asked.keys});
  });
  if (!id) return;
  const std::uint32_t name = ++num_names_;
  sequences_.push_back(
      {.id = *id, .name = name, .family = name, .salt = asked.salt, .keys = asked.keys});
  if (asked.tokens.empty()) return;
  take_prefix(sequences_.back(), asked.tokens, cache_.tables().prefix_of(*id).value());
}

/// A sequence without tokens begins with what is cached.
void CacheSite::adopt(const Numbers& n) {
  Sequence* sequence = pick(sequences_, n[0]);
  if (!options_.has_prefix_cache || sequence == nullptr || !sequence->words.empty()) return;
  if (!sequence->may_append || sequence->is_import) return;
  const Asked asked = prompt_of(n);
  const auto found = guarded("adopt", [&] { return cache_.adopt(sequence->id, asked.tokens); });
  if (found) take_prefix(*sequence, asked.tokens, *found);
}

/// Tells what no step has told, when all of it has been written or the cache can know that it was
/// not.
void CacheSite::register_tokens(const Numbers& n) {
  const Sequence* sequence = pick(sequences_, n[0]);
  if (!options_.has_prefix_cache || sequence == nullptr || sequence->is_import) return;
  const auto info = cache_.tables().info(sequence->id).value();
  const bool is_written = std::all_of(sequence->words.begin(), sequence->words.end(),
                                      [this](Word w) { return is_written_[w] || is_lost_[w]; });
  const std::vector<std::int32_t> rest =
      tokens_of(*sequence, static_cast<std::size_t>(info.known_tokens));
  const auto call = [&] { return cache_.register_tokens(sequence->id, rest); };
  if (has_appended_ && is_in_step_) {
    return refused("tokens told in a step", "register_tokens behind an append", call);
  }
  if (!is_written || rest.empty()) return;
  end_floor(sequence->salt);
  const Registered before = registered();
  if (guarded("register_tokens", call)) {
    judge_caps("register_tokens", before);
    story_.tell(site_, rest.size(), " tokens of sequence ", sequence->name, " are told late");
  }
}

void CacheSite::forget(const Numbers& n) {
  const Sequence* sequence = pick(sequences_, n[0]);
  if (!options_.has_prefix_cache || sequence == nullptr) return;
  const Status status = n[1] % 4 == 0   ? cache_.forget_all()
                        : n[1] % 4 == 1 ? cache_.forget_salt(n[2] % 2)
                                        : cache_.forget(sequence->id);
  if (!status) fail("forget", "forget was refused");
  story_.tell(site_, "cached blocks are forgotten");
}

/// Priorities and times decide what is evicted, and nothing else.
void CacheSite::retain(const Numbers& n) {
  const Sequence* sequence = pick(sequences_, n[0]);
  if (!options_.has_prefix_cache || sequence == nullptr) return;
  if (options_.eviction != EvictionPolicy::priority) {
    return refused("retention without priorities", "advance_clock",
                   [&] { return cache_.advance_clock(1); });
  }
  const std::int64_t first = n[1] % (std::ssize(sequence->words) + 1);
  const RetentionHint hint{.priority = static_cast<std::int32_t>(30 + n[2] % 8),
                           .expires_at = n[2] % 3 == 0 ? 0 : clock_ + n[2] / 8 % 8};
  if (n[3] % 4 == 0) {
    clock_ += n[3] / 8 % 4;
    if (!cache_.advance_clock(clock_)) fail("retention", "the clock was refused");
  } else if (!cache_.set_retention(sequence->id, first, std::ssize(sequence->words) - first,
                                   hint)) {
    fail("retention", "a retention was refused");
  }
}

}  // namespace kvarena::test
