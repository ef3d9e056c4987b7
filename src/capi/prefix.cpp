// The prefix cache of a cache: what it finds, forgets and keeps.

#include "capi/prefix.hpp"

#include "capi/convert.hpp"
#include "capi/objects.hpp"

#include <span>

using namespace kvarena;
using namespace kvarena::capi;

namespace {

static_assert(sizeof(kvarena_extra_key) == sizeof(ExtraKey));
static_assert(offsetof(kvarena_extra_key, first_token) == offsetof(ExtraKey, first_token));

/// Writes what `find(cache)` returns.
template <class Find>
kvarena_status find_by(kvarena_cache* cache, kvarena_prefix* prefix, Find&& find) {
  return enter<CacheObject>(cache, [&](CacheObject& object) -> Status {
    if (Status s = check_target(prefix); !s) return s;
    const Result<PrefixMatch> found = find(object.get());
    if (found) write_struct(to_c(*found), prefix);
    return found.status();
  });
}

}  // namespace

kvarena_prefix kvarena::capi::to_c(const PrefixMatch& match) noexcept {
  kvarena_prefix result{};
  result.tokens = match.tokens;
  result.blocks = match.blocks;
  result.removal_serial = match.removal_serial;
  result.pending_block = match.pending_block.value;
  result.stop = static_cast<std::int32_t>(match.stop);
  result.removal = static_cast<std::int32_t>(match.removal);
  result.registered_tokens = match.registered_tokens;
  result.part_tokens = match.part_tokens;
  result.removal_by = match.removal_by.value;
  result.removal_time = match.removal_time;
  return result;
}

Result<std::span<const std::int32_t>> kvarena::capi::tokens_from_c(const std::int32_t* tokens,
                                                                   std::uint64_t count) noexcept {
  if (Status s = check_array(tokens, count); !s) return s;
  return std::span(tokens, static_cast<std::size_t>(count));
}

Status kvarena::capi::read_prompt(const kvarena_sequence_options& given,
                                  SequenceOptions& result) noexcept {
  const auto tokens = tokens_from_c(given.tokens, given.num_tokens);
  if (!tokens) return tokens.status();
  if (Status s = check_array(given.extra_keys, given.num_extra_keys); !s) return s;
  result.tokens = *tokens;
  result.salt = given.salt;
  result.extra_keys = {reinterpret_cast<const ExtraKey*>(given.extra_keys),
                       static_cast<std::size_t>(given.num_extra_keys)};
  return {};
}

kvarena_status kvarena_prefix_match(kvarena_cache* cache, const kvarena_sequence_options* prompt,
                                    kvarena_prefix* prefix) {
  return find_by(cache, prefix, [&](const KvCache& c) -> Result<PrefixMatch> {
    kvarena_sequence_options given;
    if (Status s = read_struct(prompt, given); !s) return s;
    SequenceOptions asked;
    if (Status s = read_prompt(given, asked); !s) return s;
    return c.tables().match({asked.tokens, asked.salt, asked.extra_keys});
  });
}

kvarena_status kvarena_sequence_prefix(kvarena_cache* cache, kvarena_sequence sequence,
                                       kvarena_prefix* prefix) {
  return find_by(cache, prefix,
                 [&](const KvCache& c) { return c.tables().prefix_of(SequenceId(sequence)); });
}

kvarena_status kvarena_sequence_adopt(kvarena_cache* cache, kvarena_sequence sequence,
                                      const int32_t* tokens, size_t count, kvarena_prefix* prefix) {
  return find_by(cache, prefix, [&](KvCache& c) -> Result<PrefixMatch> {
    const auto given = tokens_from_c(tokens, count);
    return given ? c.adopt(SequenceId(sequence), *given) : given.status();
  });
}

kvarena_status kvarena_sequence_register(kvarena_cache* cache, kvarena_sequence sequence,
                                         const int32_t* tokens, size_t count) {
  return enter<CacheObject>(cache, [&](CacheObject& object) -> Status {
    const auto given = tokens_from_c(tokens, count);
    if (!given) return given.status();
    return object.get().register_tokens(SequenceId(sequence), *given);
  });
}

kvarena_status kvarena_sequence_forget(kvarena_cache* cache, kvarena_sequence sequence) {
  return enter<CacheObject>(
      cache, [&](CacheObject& object) { return object.get().forget(SequenceId(sequence)); });
}

kvarena_status kvarena_sequence_set_retention(kvarena_cache* cache, kvarena_sequence sequence,
                                              int64_t first_token, int64_t num_tokens,
                                              int32_t priority, int64_t expires_at,
                                              int64_t* blocks) {
  return enter<CacheObject>(cache, [&](CacheObject& object) -> Status {
    const Result<std::int64_t> set = object.get().set_retention(
        SequenceId(sequence), first_token, num_tokens, retention_from_c(priority, expires_at));
    if (set && blocks != nullptr) *blocks = *set;
    return set.status();
  });
}

kvarena_status kvarena_prefix_advance_clock(kvarena_cache* cache, int64_t now) {
  return enter<CacheObject>(cache,
                            [&](CacheObject& object) { return object.get().advance_clock(now); });
}

kvarena_status kvarena_prefix_forget_salt(kvarena_cache* cache, uint64_t salt) {
  return enter<CacheObject>(cache,
                            [&](CacheObject& object) { return object.get().forget_salt(salt); });
}

kvarena_status kvarena_prefix_forget_all(kvarena_cache* cache) {
  return enter<CacheObject>(cache, [](CacheObject& object) { return object.get().forget_all(); });
}
