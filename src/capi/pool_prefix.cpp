// The prefix cache of a pool.

#include "capi/pool_prefix.hpp"

#include "capi/prefix.hpp"

#include <cstring>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

using namespace kvarena;
using namespace kvarena::capi;

namespace {

/// A position as its words in C: everything of it but the number of blocks.
struct PositionWords {
  std::uint64_t pool;
  std::uint64_t salt;
  std::uint64_t chain[2];
  std::uint64_t root[2];
  BlockId last;
  std::uint32_t registration;
  std::int32_t num_keys;
  std::uint32_t reserved;
};
static_assert(sizeof(PositionWords) == sizeof(kvarena_prefix_position::state));

kvarena_prefix_position position_to_c(const PrefixPosition& given) noexcept {
  const PositionWords words{given.pool,
                            given.salt,
                            {given.chain[0], given.chain[1]},
                            {given.root[0], given.root[1]},
                            given.last,
                            given.registration,
                            given.num_keys,
                            0};
  kvarena_prefix_position result{};
  result.blocks = given.blocks;
  std::memcpy(result.state, &words, sizeof words);
  return result;
}

PrefixPosition position_from_c(const kvarena_prefix_position& given) noexcept {
  PositionWords words;
  std::memcpy(&words, given.state, sizeof words);
  return {.blocks = given.blocks,
          .num_keys = words.num_keys,
          .pool = words.pool,
          .salt = words.salt,
          .chain = {words.chain[0], words.chain[1]},
          .root = {words.root[0], words.root[1]},
          .last = words.last,
          .registration = words.registration};
}

/// Runs `body(prefix pool)`. Returns failed_precondition without one.
template <class Body>
kvarena_status enter_prefix(kvarena_pool* pool, Body&& body) noexcept {
  return enter<PoolObject>(pool, [&](PoolObject& object) -> Status {
    return object.prefix ? body(*object.prefix) : refused_prefix(Resource::none);
  });
}

/// Reads what is asked for.
Status read_query(const kvarena_sequence_options* prompt, PrefixQuery& query) noexcept {
  kvarena_sequence_options given;
  if (Status s = read_struct(prompt, given); !s) return s;
  SequenceOptions asked;
  if (Status s = read_prompt(given, asked); !s) return s;
  query = {asked.tokens, asked.salt, asked.extra_keys};
  return {};
}

/// Handles of blocks that the caller names, or the room for them.
template <class Block, class Number>
struct Handles {
  Block* blocks;
  Number* generations;
  std::size_t count;

  Status check() const noexcept {
    if (Status s = check_array(blocks, count); !s) return s;
    return check_array(generations, count);
  }
  auto ids() const noexcept {
    using Id = std::conditional_t<std::is_const_v<Block>, const BlockId, BlockId>;
    return std::span(reinterpret_cast<Id*>(blocks), count);
  }
  auto numbers() const noexcept {
    using Id = std::conditional_t<std::is_const_v<Number>, const Generation, Generation>;
    return std::span(reinterpret_cast<Id*>(generations), count);
  }
};

}  // namespace

Status kvarena::capi::refused_prefix(Resource resource) noexcept {
  Status status = failed_precondition(resource);
  status.option = Option::prefix_cache;
  return status;
}

Status kvarena::capi::create_prefix(const kvarena_pool_options& given, PoolObject& object) {
  if (given.prefix_cache == 0) return {};
  if (given.prefix_duplicates < 0 || given.prefix_duplicates > KVARENA_WAIT) {
    return invalid_option(Option::duplicates, given.prefix_duplicates, 0, KVARENA_WAIT);
  }
  PrefixPoolOptions wanted;
  if (given.block_size_tokens != 0) wanted.block_size_tokens = given.block_size_tokens;
  wanted.prefix.hash_key = {given.prefix_key_low, given.prefix_key_high};
  wanted.prefix.max_extra_keys = given.prefix_extra_keys;
  wanted.prefix.history_entries = given.prefix_history;
  wanted.prefix.duplicates = static_cast<DuplicateRule>(given.prefix_duplicates);
  wanted.prefix.ghost_blocks = given.prefix_ghost_blocks;
  if (given.prefix_events != nullptr) {
    object.events = std::make_unique<EventAdapter>(given.prefix_events, given.prefix_events_user);
    wanted.prefix.events = object.events->sink();
  }
  Result<PrefixPool> made = PrefixPool::create(*object.manager, wanted);
  if (made) object.prefix.emplace(std::move(*made));
  return made.status();
}

kvarena_status kvarena_pool_begin_prefix(kvarena_pool* pool, uint64_t salt,
                                         kvarena_prefix_position* position) {
  return enter_prefix(pool, [&](PrefixPool& prefix) -> Status {
    if (Status s = check_target(position); !s) return s;
    write_struct(position_to_c(prefix.begin(salt)), position);
    return {};
  });
}

kvarena_status kvarena_pool_match(kvarena_pool* pool, const kvarena_sequence_options* prompt,
                                  int32_t* blocks, uint32_t* generations, size_t room,
                                  kvarena_prefix* prefix) {
  return enter_prefix(pool, [&](PrefixPool& its) -> Status {
    const Handles found{blocks, generations, room};
    if (Status s = found.check(); !s) return s;
    if (Status s = check_target(prefix); !s) return s;
    PrefixQuery query;
    if (Status s = read_query(prompt, query); !s) return s;
    const Result<PrefixMatch> match = its.match(query, found.ids(), found.numbers());
    if (match) write_struct(to_c(*match), prefix);
    return match.status();
  });
}

kvarena_status kvarena_pool_adopt(kvarena_pool* pool, kvarena_holder holder,
                                  const kvarena_sequence_options* prompt, int32_t* blocks,
                                  uint32_t* generations, size_t room, kvarena_prefix* prefix,
                                  kvarena_prefix_position* position) {
  return enter_prefix(pool, [&](PrefixPool& its) -> Status {
    const Handles found{blocks, generations, room};
    if (Status s = found.check(); !s) return s;
    if (Status s = check_target(prefix); !s) return s;
    if (Status s = check_target(position); !s) return s;
    PrefixQuery query;
    if (Status s = read_query(prompt, query); !s) return s;
    const Result<PrefixAdoption> adopted =
        its.adopt(HolderId(holder), query, found.ids(), found.numbers());
    if (!adopted) return adopted.status();
    write_struct(to_c(adopted->found), prefix);
    write_struct(position_to_c(adopted->end), position);
    return {};
  });
}

kvarena_status kvarena_pool_register(kvarena_pool* pool, kvarena_prefix_position* position,
                                     const kvarena_sequence_options* prompt, const int32_t* blocks,
                                     const uint32_t* generations, size_t count,
                                     size_t* registered) {
  return enter_prefix(pool, [&](PrefixPool& its) -> Status {
    const Handles given{blocks, generations, count};
    if (Status s = given.check(); !s) return s;
    kvarena_prefix_position at;
    if (Status s = read_struct(position, at); !s) return s;
    PrefixQuery query;
    if (Status s = read_query(prompt, query); !s) return s;
    PrefixPosition place = position_from_c(at);
    const Result<std::int64_t> added =
        its.register_blocks(place, query.tokens, given.ids(), given.numbers(), query.extra_keys);
    if (!added) return added.status();
    write_struct(position_to_c(place), position);
    if (registered != nullptr) *registered = static_cast<std::size_t>(*added);
    return {};
  });
}

kvarena_status kvarena_pool_publish(kvarena_pool* pool, const int32_t* blocks,
                                    const uint32_t* generations, size_t count, size_t* published) {
  return enter_prefix(pool, [&](PrefixPool& its) -> Status {
    const Handles given{blocks, generations, count};
    if (Status s = given.check(); !s) return s;
    const Result<std::int64_t> found = its.publish(given.ids(), given.numbers());
    if (found && published != nullptr) *published = static_cast<std::size_t>(*found);
    return found.status();
  });
}

kvarena_status kvarena_pool_forget(kvarena_pool* pool, const int32_t* blocks, size_t count) {
  return enter_prefix(pool, [&](PrefixPool& its) -> Status {
    if (Status s = check_array(blocks, count); !s) return s;
    return its.forget(std::span(reinterpret_cast<const BlockId*>(blocks), count));
  });
}

kvarena_status kvarena_pool_forget_salt(kvarena_pool* pool, uint64_t salt) {
  return enter_prefix(pool, [&](PrefixPool& its) -> Status {
    its.forget_salt(salt);
    return {};
  });
}

kvarena_status kvarena_pool_forget_all(kvarena_pool* pool) {
  return enter_prefix(pool, [](PrefixPool& its) -> Status {
    its.forget_all();
    return {};
  });
}

kvarena_status kvarena_pool_ask_prefix(kvarena_pool* pool, kvarena_prefix_stats* stats,
                                       kvarena_prefix_use* use) {
  return enter_prefix(pool, [&](PrefixPool& its) -> Status {
    if (stats != nullptr) {
      if (Status s = check_target(stats); !s) return s;
    }
    if (use != nullptr) {
      if (Status s = check_target(use); !s) return s;
    }
    if (stats != nullptr) write_struct(to_c(its.stats()), stats);
    if (use != nullptr) write_struct(to_c(its.use()), use);
    return {};
  });
}
