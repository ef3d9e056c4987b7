#pragma once

/// @file
/// What attention over the layers of groups must give: K and V that a test remembers itself, what a
/// token sees of them, and plain loops in double precision.

#include "base/half.hpp"
#include "kvarena/allocator/arena.hpp"
#include "kvarena/allocator/block_manager.hpp"
#include "kvarena/base/group_layout.hpp"
#include "kvarena/blocktable/sequences.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace kvarena::test {

/// A group of a test, which owns its layers.
struct EngineGroup {
  LayerGroup group;
  std::vector<GroupLayer> layers;
};

inline std::int32_t value_dim(const LayerGroup& group) {
  return group.head_dim_v == 0 ? group.head_dim_k : group.head_dim_v;
}

/// K and V of one layer: a vector for each token.
struct Remembered {
  std::vector<std::vector<float>> key;
  std::vector<std::vector<float>> value;
};

/// What a test knows of a sequence.
struct Life {
  std::map<std::int32_t, Remembered> layers;  // by owning layer; of an encoder its tokens
  std::int64_t length = 0;
  std::int32_t cross_tokens = 0;
  std::vector<std::int32_t> names;      // of its tokens, with a prefix cache
  std::shared_ptr<const Life> repeats;  // a sequence whose tokens it has first, as far as they go
};

/// Adds `count` tokens of `size` numbers.
inline void remember(std::vector<std::vector<float>>& to, const float* from, std::int64_t count,
                     std::int64_t size) {
  for (std::int64_t i = 0; i < count; ++i) to.emplace_back(from + i * size, from + (i + 1) * size);
}

/// The same sequence with fewer tokens.
inline Life cut_copy(const std::vector<EngineGroup>& groups, const Life& life,
                     std::int64_t length) {
  Life cut = life;
  cut.length = length;
  cut.names.resize(std::min(cut.names.size(), static_cast<std::size_t>(length)));
  for (const EngineGroup& its : groups) {
    if (its.group.kind == PagedKind::cross) continue;
    for (const GroupLayer& layer : its.layers) {
      if (layer.reads_layer != -1) continue;
      cut.layers[layer.layer].key.resize(static_cast<std::size_t>(length));
      cut.layers[layer.layer].value.resize(static_cast<std::size_t>(length));
    }
  }
  return cut;
}

/// The tokens that a token at `position` sees.
inline std::pair<std::int64_t, std::int64_t> visible(const LayerGroup& group, const Life& life,
                                                     std::int64_t position) {
  switch (group.kind) {
    case PagedKind::window:
      return {std::max<std::int64_t>(0, position - group.limit_tokens + 1), position + 1};
    case PagedKind::chunk:
      return {position / group.limit_tokens * group.limit_tokens, position + 1};
    case PagedKind::cross: return {0, life.cross_tokens};
    default: return {0, position + 1};
  }
}

inline double at(const std::vector<std::vector<float>>& tokens, std::int64_t t, std::int64_t d) {
  return static_cast<double>(tokens[static_cast<std::size_t>(t)][static_cast<std::size_t>(d)]);
}

/// The output of query head `head` for one token, whose query begins at `q`.
inline std::vector<double> attend_exactly(const LayerGroup& group, const Life& life,
                                          std::int32_t owner, std::int64_t position,
                                          std::int64_t kv_head, const float* q, double scale) {
  const Remembered& kv = life.layers.at(owner);
  const std::int64_t dim = group.head_dim_k;
  const std::int64_t dim_v = value_dim(group);
  const auto [first, end] = visible(group, life, position);
  std::vector<double> logits;
  double top = -INFINITY;
  for (std::int64_t t = first; t < end; ++t) {
    const float* const k = kv.key[static_cast<std::size_t>(t)].data() + kv_head * dim;
    double logit = 0;
    for (std::int64_t d = 0; d < dim; ++d) {
      logit += static_cast<double>(q[d]) * static_cast<double>(k[d]);
    }
    logits.push_back(scale * logit);
    top = std::max(top, logits.back());
  }
  std::vector<double> out(static_cast<std::size_t>(dim_v));
  double total = 0;
  for (std::int64_t t = first; t < end; ++t) {
    const double weight = std::exp(logits[static_cast<std::size_t>(t - first)] - top);
    const float* const v = kv.value[static_cast<std::size_t>(t)].data() + kv_head * dim_v;
    total += weight;
    for (std::size_t d = 0; d < out.size(); ++d) out[d] += weight * static_cast<double>(v[d]);
  }
  if (total > 0) {
    for (double& x : out) x /= total;
  }
  return out;
}

/// The ranges of a pool of pages that no block of a sequence or of a cached state has: first byte
/// and bytes.
inline std::vector<std::pair<std::int64_t, std::int64_t>> free_ranges(const BlockManager& manager,
                                                                      const Arena& arena) {
  const GroupLayout& layout = *arena.groups();
  std::vector<std::pair<std::int64_t, std::int64_t>> held;
  for (std::int32_t id = 0; id < manager.num_blocks(); ++id) {
    const BlockState state = manager.state(BlockId(id));
    if (state != BlockState::referenced && state != BlockState::evictable) continue;
    const BlockPlace place = manager.place_of(BlockId(id));
    const auto group = static_cast<std::size_t>(place.group);
    const std::size_t parts = layout.parts().size();
    const PagedBlocks& blocks =
        group < parts ? layout.parts()[group].blocks : layout.states()[group - parts].blocks;
    const std::int64_t bytes = blocks.block_bytes;
    held.emplace_back(place.page * layout.page_bytes() + place.slot * bytes, bytes);
  }
  std::sort(held.begin(), held.end());
  held.emplace_back(arena.bytes(), 0);
  std::vector<std::pair<std::int64_t, std::int64_t>> free;
  std::int64_t next = 0;
  for (const auto& [first, bytes] : held) {
    if (first > next) free.emplace_back(next, first - next);
    next = first + bytes;
  }
  return free;
}

/// Numbers as elements of a type.
inline std::vector<std::byte> encoded(const std::vector<float>& numbers, DType dtype) {
  std::vector<std::byte> bytes(numbers.size() * static_cast<std::size_t>(bytes_of(dtype)));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    store_f32(bytes.data(), dtype, static_cast<std::int64_t>(i), numbers[i]);
  }
  return bytes;
}

inline std::string name_of_kind(PagedKind kind) {
  switch (kind) {
    case PagedKind::full: return "full";
    case PagedKind::window: return "window";
    case PagedKind::chunk: return "chunk";
    case PagedKind::state: return "state";
    case PagedKind::cross: return "cross";
  }
  return "?";
}

}  // namespace kvarena::test
