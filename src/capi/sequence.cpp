// Sequences of a cache.

#include "capi/convert.hpp"
#include "capi/objects.hpp"
#include "capi/prefix.hpp"

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

using namespace kvarena;
using namespace kvarena::capi;

namespace {

/// Reads the options; NULL means all defaults.
Result<SequenceOptions> options_of(const kvarena_sequence_options* options) noexcept {
  kvarena_sequence_options given;
  if (Status s = read_optional_struct(options, given); !s) return s;
  SequenceOptions result;
  result.max_length_tokens = given.max_length_tokens;
  result.since_ns = given.since_ns;
  result.deadline_ns = given.deadline_ns;
  result.owner = given.owner;
  result.cross_tokens = given.cross_tokens;
  if (Status s = read_prompt(given, result); !s) return s;
  return result;
}

/// Writes the id of a new sequence.
Status write_id(const Result<SequenceId>& created, kvarena_sequence* sequence) noexcept {
  if (created) *sequence = created->value;
  return created.status();
}

/// Creates a sequence by `create(cache, options)`.
template <class Create>
kvarena_status create_by(kvarena_cache* cache, const kvarena_sequence_options* options,
                         kvarena_sequence* sequence, Create&& create) {
  return enter<CacheObject>(cache, [&](CacheObject& object) -> Status {
    if (sequence == nullptr) return refused_null();
    const Result<SequenceOptions> given = options_of(options);
    if (!given) return given.status();
    return write_id(create(object.get(), *given), sequence);
  });
}

kvarena_sequence_info info_of(const KvCache& cache, const SequenceInfo& found) {
  kvarena_sequence_info info{};
  info.length_tokens = found.length_tokens;
  info.num_blocks = found.num_blocks;
  info.max_length_tokens = found.max_length_tokens;
  info.waste_tokens = found.waste_tokens;
  info.owner = found.owner;
  info.holder = found.holder.value;
  info.import_state = static_cast<std::int32_t>(found.import_state);
  info.known_tokens = found.known_tokens;
  info.registered_blocks = found.registered_blocks;
  info.published_blocks = found.published_blocks;
  if (const Result<HolderReport> holder = cache.manager().holder(found.holder)) {
    info.since_ns = holder->since_ns;
    info.deadline_ns = holder->deadline_ns;
  }
  return info;
}

}  // namespace

kvarena_status kvarena_sequence_create(kvarena_cache* cache,
                                       const kvarena_sequence_options* options,
                                       kvarena_sequence* sequence) {
  return create_by(cache, options, sequence, [](KvCache& c, const SequenceOptions& given) {
    return c.create_sequence(given);
  });
}

kvarena_status kvarena_sequence_fork(kvarena_cache* cache, kvarena_sequence parent,
                                     int64_t length_tokens, const kvarena_sequence_options* options,
                                     kvarena_sequence* sequence) {
  return create_by(cache, options, sequence, [&](KvCache& c, const SequenceOptions& given) {
    return c.fork(SequenceId(parent), length_tokens, given);
  });
}

kvarena_status kvarena_sequence_create_from(kvarena_cache* cache, int64_t length_tokens,
                                            const kvarena_group_blocks* parts, size_t num_parts,
                                            const kvarena_sequence_options* options,
                                            kvarena_sequence* sequence) {
  return create_by(
      cache, options, sequence,
      [&](KvCache& c, const SequenceOptions& given) -> Result<SequenceId> {
        const std::size_t most = c.manager().groups().size();
        if (num_parts > most) {
          return invalid_argument(Resource::num_groups, static_cast<std::int64_t>(num_parts), 0,
                                  static_cast<std::int64_t>(most));
        }
        if (Status s = check_array(parts, num_parts); !s) return s;
        std::vector<GroupBlocks> blocks(num_parts);
        for (std::size_t i = 0; i < num_parts; ++i) {
          kvarena_group_blocks its;
          if (Status s = read_entry(parts, i, its); !s) return s;
          if (Status s = check_array(its.blocks, its.num_blocks); !s) return s;
          if (Status s = check_array(its.generations, its.num_blocks); !s) return s;
          blocks[i].first_block = its.first_block;
          blocks[i].ids = {reinterpret_cast<const BlockId*>(its.blocks), its.num_blocks};
          blocks[i].generations = {reinterpret_cast<const Generation*>(its.generations),
                                   its.num_blocks};
        }
        return c.create_sequence_from(length_tokens, blocks, given);
      });
}

kvarena_status kvarena_sequence_restorable_length(kvarena_cache* cache, kvarena_sequence sequence,
                                                  int64_t length_tokens, int64_t* restorable) {
  return enter<CacheObject>(cache, [&](CacheObject& object) -> Status {
    if (restorable == nullptr) return refused_null();
    const Result<std::int64_t> found =
        object.get().tables().restorable_length(SequenceId(sequence), length_tokens);
    if (found) *restorable = *found;
    return found.status();
  });
}

kvarena_status kvarena_sequence_group_blocks(kvarena_cache* cache, kvarena_sequence sequence,
                                             int32_t part, int32_t* blocks, size_t room,
                                             size_t* count, int64_t* first_block) {
  return enter<CacheObject>(cache, [&](CacheObject& object) -> Status {
    if (count == nullptr || first_block == nullptr || (blocks == nullptr && room > 0)) {
      return refused_null();
    }
    if (Status s = check_part(object.get(), part); !s) return s;
    const BlockTables& tables = object.get().tables();
    std::vector<BlockId> table;
    Result<std::int64_t> found = tables.blocks_of(SequenceId(sequence), table, part);
    if (!found && found.status().resource == Resource::span_size) {
      table.resize(found.status().required);
      found = tables.blocks_of(SequenceId(sequence), table, part);
    }
    if (!found) return found.status();
    const auto first = std::ranges::find_if(table, [](BlockId id) { return id != kNoBlock; });
    *first_block = first - table.begin();
    *count = static_cast<std::size_t>(table.end() - first);
    if (*count > room) return too_small(room, *count);
    std::transform(first, table.end(), blocks, [](BlockId id) { return id.value; });
    return {};
  });
}

kvarena_status kvarena_sequence_import(kvarena_cache* cache, int64_t num_tokens,
                                       const kvarena_sequence_options* options, int32_t urgency,
                                       kvarena_sequence* sequence) {
  return create_by(cache, options, sequence,
                   [&](KvCache& c, const SequenceOptions& given) -> Result<SequenceId> {
                     const Result<Urgency> chosen = urgency_from_c(urgency, Urgency::admission);
                     if (!chosen) return chosen.status();
                     return c.import_sequence(num_tokens, given, *chosen);
                   });
}

kvarena_status kvarena_sequence_publish_import(kvarena_cache* cache, kvarena_sequence sequence) {
  return enter<CacheObject>(cache, [&](CacheObject& object) {
    return object.get().publish_import(SequenceId(sequence));
  });
}

kvarena_status kvarena_sequence_fail_import(kvarena_cache* cache, kvarena_sequence sequence) {
  return enter<CacheObject>(
      cache, [&](CacheObject& object) { return object.get().fail_import(SequenceId(sequence)); });
}

kvarena_status kvarena_sequence_truncate(kvarena_cache* cache, kvarena_sequence sequence,
                                         int64_t length_tokens, kvarena_ticket ticket) {
  return enter<CacheObject>(cache, [&](CacheObject& object) {
    return object.get().truncate(SequenceId(sequence), length_tokens, Ticket(ticket));
  });
}

kvarena_status kvarena_sequence_destroy(kvarena_cache* cache, const kvarena_sequence* sequences,
                                        size_t count, kvarena_ticket ticket) {
  return enter<CacheObject>(cache, [&](CacheObject& object) -> Status {
    if (Status s = check_array(sequences, count); !s) return s;
    static_assert(sizeof(SequenceId) == sizeof(kvarena_sequence));
    const auto* const ids = reinterpret_cast<const SequenceId*>(sequences);
    return object.get().destroy_many(std::span(ids, count), Ticket(ticket));
  });
}

kvarena_status kvarena_sequence_reserve(kvarena_cache* cache, kvarena_sequence sequence,
                                        int64_t capacity_tokens, int32_t urgency) {
  return enter<CacheObject>(cache, [&](CacheObject& object) -> Status {
    const Result<Urgency> chosen = urgency_from_c(urgency, Urgency::admission);
    if (!chosen) return chosen.status();
    return object.get().reserve_capacity(SequenceId(sequence), capacity_tokens, *chosen);
  });
}

kvarena_status kvarena_sequence_promise(kvarena_cache* cache, kvarena_sequence sequence,
                                        int64_t capacity_tokens) {
  return enter<CacheObject>(cache, [&](CacheObject& object) {
    return object.get().promise_capacity(SequenceId(sequence), capacity_tokens);
  });
}

kvarena_status kvarena_sequence_set_deadline(kvarena_cache* cache, kvarena_sequence sequence,
                                             int64_t deadline_ns) {
  return enter<CacheObject>(cache, [&](CacheObject& object) {
    return object.get().set_deadline(SequenceId(sequence), deadline_ns);
  });
}

kvarena_status kvarena_sequence_ask(kvarena_cache* cache, kvarena_sequence sequence,
                                    kvarena_sequence_info* info) {
  return enter<CacheObject>(cache, [&](CacheObject& object) -> Status {
    if (Status s = check_target(info); !s) return s;
    const Result<SequenceInfo> found = object.get().tables().info(SequenceId(sequence));
    if (!found) return found.status();
    write_struct(info_of(object.get(), *found), info);
    return {};
  });
}

kvarena_status kvarena_sequence_blocks(kvarena_cache* cache, kvarena_sequence sequence,
                                       int32_t* blocks, size_t room, size_t* count) {
  return enter<CacheObject>(cache, [&](CacheObject& object) -> Status {
    if (count == nullptr || (blocks == nullptr && room > 0)) return refused_null();
    const BlockTables& tables = object.get().tables();
    const Result<SequenceInfo> found = tables.info(SequenceId(sequence));
    if (!found) return found.status();
    *count = static_cast<std::size_t>(found->num_blocks);
    if (*count > room) return too_small(room, *count);
    return tables
        .blocks_of(SequenceId(sequence), std::span(reinterpret_cast<BlockId*>(blocks), room))
        .status();
  });
}

kvarena_status kvarena_sequence_slot(kvarena_cache* cache, kvarena_sequence sequence, int64_t index,
                                     int64_t* slot) {
  return enter<CacheObject>(cache, [&](CacheObject& object) -> Status {
    if (slot == nullptr) return refused_null();
    const Result<std::int64_t> found = object.get().tables().slot_of(SequenceId(sequence), index);
    if (found) *slot = *found;
    return found.status();
  });
}

kvarena_status kvarena_sequence_tables(kvarena_cache* cache, const kvarena_sequence* sequences,
                                       size_t count, int32_t* tables, size_t row_stride,
                                       int32_t* lengths) {
  return enter<CacheObject>(cache, [&](CacheObject& object) -> Status {
    if (Status s = check_array(sequences, count); !s) return s;
    if (Status s = check_array(tables, count == 0 ? 0 : row_stride); !s) return s;
    const std::span ids(reinterpret_cast<const SequenceId*>(sequences), count);
    const std::span entries(tables, count * row_stride);
    const std::span counts(lengths, lengths == nullptr ? 0 : count);
    return object.get().tables().copy_rows(ids, entries, static_cast<std::int64_t>(row_stride),
                                           counts);
  });
}

kvarena_status kvarena_sequence_list(kvarena_cache* cache, kvarena_sequence* sequences, size_t room,
                                     size_t* count) {
  return enter<CacheObject>(cache, [&](CacheObject& object) -> Status {
    if (count == nullptr || (sequences == nullptr && room > 0)) return refused_null();
    const std::vector<SequenceId> all = object.get().tables().sequences();
    const auto existing = object.get().tables().stats().sequences;
    if (std::ssize(all) != existing) return exhausted(Resource::host_memory, 0, 0);
    *count = all.size();
    if (all.size() > room) return too_small(room, all.size());
    for (const SequenceId id : all) *sequences++ = id.value;
    return {};
  });
}

// ---- pins ---------------------------------------------------------------------------------------

kvarena_status kvarena_pin_create(kvarena_cache* cache, kvarena_sequence sequence,
                                  const kvarena_pin_options* options, kvarena_holder* pin) {
  return enter<CacheObject>(cache, [&](CacheObject& object) -> Status {
    kvarena_pin_options given;
    if (Status s = read_optional_struct(options, given); !s) return s;
    if (pin == nullptr) return refused_null();
    PinOptions wanted;
    wanted.first_block = given.first_block;
    if (given.num_blocks != 0) wanted.num_blocks = given.num_blocks;
    wanted.owner = given.owner;
    wanted.purpose = object.names.keep(given.purpose, "pin");
    wanted.since_ns = given.since_ns;
    wanted.deadline_ns = given.deadline_ns;
    const Result<HolderId> created = object.get().pin(SequenceId(sequence), wanted);
    if (created) *pin = created->value;
    return created.status();
  });
}

kvarena_status kvarena_pin_blocks(kvarena_cache* cache, kvarena_holder pin, int32_t* blocks,
                                  size_t room, size_t* count) {
  return enter<CacheObject>(cache, [&](CacheObject& object) -> Status {
    if (count == nullptr || (blocks == nullptr && room > 0)) return refused_null();
    const BlockTables& tables = object.get().tables();
    const std::span ids(reinterpret_cast<BlockId*>(blocks), room);
    const Result<std::int64_t> copied = tables.blocks_of(HolderId(pin), ids);
    if (copied) {
      *count = static_cast<std::size_t>(*copied);
    } else if (const auto holder = object.get().manager().holder(HolderId(pin));
               holder && copied.status().resource == Resource::span_size) {
      *count = static_cast<std::size_t>(holder->references);
      return too_small(room, *count);
    }
    return copied.status();
  });
}

kvarena_status kvarena_pin_release(kvarena_cache* cache, kvarena_holder pin,
                                   kvarena_ticket ticket) {
  return enter<CacheObject>(cache, [&](CacheObject& object) {
    return object.get().unpin(HolderId(pin), Ticket(ticket));
  });
}
