#pragma once

/// @file
/// Sequences of a GroupEngine that begin with tokens that were there before. Included by
/// group_engine.hpp.

#include "unit/cache/group_engine.hpp"

namespace kvarena::test {

/// A sequence with the tokens of one that has ended. It begins with what is cached of them.
inline void GroupEngine::begin_again() {
  const auto from = ended_[random_() % ended_.size()];
  const auto size = static_cast<std::size_t>(from->length);
  const std::size_t wanted = random_() % 2 == 0 ? size : 1 + random_() % size;
  const std::span<const std::int32_t> tokens(from->names.data(), wanted);
  const auto id = both([&](KvCache& cache) { return cache.create_sequence({.tokens = tokens}); });
  if (!id) {
    ASSERT_EQ(id.status().resource, Resource::page) << describe(id.status());
    return;
  }
  const std::int64_t length = cache_->tables().info(*id)->length_tokens;
  ASSERT_LT(length, std::ssize(tokens));
  lives_[*id] = cut_copy(options_.groups, *from, length);
  lives_[*id].repeats = from;
  num_hits_ += length > 0 ? 1 : 0;
}

/// Names the new tokens of a step, and tells them most times.
inline void GroupEngine::name_tokens(Record& record) {
  for (AppendDemand& demand : record.demands) {
    Life& life = record.lives[demand.sequence];
    std::vector<std::int32_t>& names = record.names.emplace_back();
    for (std::int64_t i = 0; i < demand.num_tokens; ++i) {
      const auto at = static_cast<std::size_t>(life.length + i);
      const bool repeats = life.repeats && at < life.repeats->names.size();
      names.push_back(repeats ? life.repeats->names[at] : next_name_++);
      life.names.push_back(names.back());
    }
    if (options_.prefix_cache && random_() % 16 != 0) demand.tokens = names;
  }
}

/// The last `count` tokens of a sequence have the K and V that they had in the one it repeats.
inline void GroupEngine::repeat(const Life& life, std::int32_t index, std::int64_t count,
                                float* key, float* value) {
  for (std::int64_t i = 0; i < count && life.repeats; ++i) {
    const Remembered& its = life.repeats->layers.at(index);
    const auto at = static_cast<std::size_t>(life.length - count + i);
    if (at >= its.key.size()) return;
    std::copy(its.key[at].begin(), its.key[at].end(), key + i * std::ssize(its.key[at]));
    std::copy(its.value[at].begin(), its.value[at].end(), value + i * std::ssize(its.value[at]));
  }
}

}  // namespace kvarena::test
