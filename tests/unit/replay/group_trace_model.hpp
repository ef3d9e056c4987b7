#pragma once

/// @file
/// Small models whose layers keep different data.

#include "replay/pool_units.hpp"

#include "kvarena/base/group_layout.hpp"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

namespace kvarena::test {

/// What the layers of a model keep.
enum class GroupModelKind : std::uint8_t {
  window,         ///< a full group and a window, of pages with several blocks
  window_alone,   ///< every layer has a window
  chunk,          ///< a full group and chunks
  latent,         ///< latents, V in K
  index,          ///< latents with the keys of a sparse-attention index
  shared,         ///< layers that read the K and V of others
  state,          ///< a full group and states, by kernels that read one slot and write another
  state_in_place  ///< states by kernels in place, in parts, that keep nothing for an undo
};

inline constexpr GroupModelKind kGroupModelKinds[] = {
    GroupModelKind::window, GroupModelKind::window_alone,  GroupModelKind::chunk,
    GroupModelKind::latent, GroupModelKind::index,         GroupModelKind::shared,
    GroupModelKind::state,  GroupModelKind::state_in_place};

inline std::string_view name_of(GroupModelKind kind) noexcept {
  constexpr std::string_view kNames[] = {"Window", "WindowAlone", "Chunk", "Latent",
                                         "Index",  "Shared",      "State", "StateInPlace"};
  return kNames[static_cast<std::size_t>(kind)];
}

/// One model, with blocks of 8 tokens and 4 query heads. Not copied: its groups borrow from it.
class GroupTraceModel {
 public:
  explicit GroupTraceModel(GroupModelKind kind) {
    switch (kind) {
      case GroupModelKind::window:
        add(PagedKind::full, {2, 5});
        add(PagedKind::window, {0, 1, 3, 4}, 20);
        break;
      case GroupModelKind::window_alone: add(PagedKind::window, {0, 1}, 17); break;
      case GroupModelKind::chunk:
        add(PagedKind::full, {3});
        add(PagedKind::chunk, {0, 1, 2}, 40);
        break;
      case GroupModelKind::latent: add_latents({0, 1, 2}); break;
      case GroupModelKind::index:
        add_latents({0, 1, 2});
        groups.back().index_dim = 12;
        break;
      case GroupModelKind::shared:
        add(PagedKind::full, {0, 2});
        add(PagedKind::window, {1, 3}, 24);
        layers_[0].push_back({.layer = 4, .reads_layer = 2});
        layers_[1].push_back({.layer = 5, .reads_layer = 3});
        break;
      case GroupModelKind::state:
        add(PagedKind::full, {3});
        add_states({0, 1, 2}, StateMode::read_write, true);
        break;
      case GroupModelKind::state_in_place:
        add(PagedKind::full, {2, 5});
        add_states({0, 1, 3, 4}, StateMode::in_place, false);
        break;
    }
    for (std::size_t g = 0; g < groups.size(); ++g) groups[g].layers = layers_[g];
  }
  GroupTraceModel(const GroupTraceModel&) = delete;
  GroupTraceModel& operator=(const GroupTraceModel&) = delete;

  /// K and V of a token in all layers.
  std::int64_t token_bytes() const {
    std::int64_t bytes = 0;
    for (const LayerGroup& group : groups) {
      if (group.kind == PagedKind::state) continue;
      const std::int64_t dims =
          group.head_dim_k + (group.value_in_key ? 0 : std::int64_t{group.head_dim_v});
      bytes += owners(group) * group.num_kv_heads * dims * bytes_of(group.dtype);
    }
    return bytes;
  }
  /// The keys of a token in all indexes, with their scales.
  std::int64_t index_bytes() const {
    std::int64_t bytes = 0;
    for (const LayerGroup& group : groups) {
      if (group.index_dim > 0) bytes += owners(group) * (group.index_dim + 4);
    }
    return bytes;
  }
  std::int64_t num_attention_layers() const {
    std::int64_t count = 0;
    for (const LayerGroup& group : groups) {
      count += group.kind == PagedKind::state ? 0 : std::ssize(group.layers);
    }
    return count;
  }
  bool has_states() const { return groups.back().kind == PagedKind::state; }
  /// States of a sequence in all layers.
  std::int64_t state_bytes() const {
    std::int64_t bytes = 0;
    for (const StatePlane& plane : planes_) bytes += plane.num_elements() * bytes_of(plane.dtype);
    return bytes * std::ssize(groups.back().layers);
  }
  std::int32_t first_state_layer() const { return groups.back().layers.front().layer; }
  /// Pages of a sequence in a replay.
  std::int64_t pages_of(std::int64_t tokens) const {
    replay::ReplayOptions options;
    options.groups = {.list = groups, .page_sequence_tokens = 1024};
    options.attention.num_q_heads = 4;
    return replay::PoolUnits::create(options).value().of_length(tokens);
  }
  /// A pool in which sequences of 20 tokens begin that cannot all grow to 160 beside each other.
  std::int64_t tight_pages() const { return std::max(pages_of(160), 2 * pages_of(20)); }

  std::vector<LayerGroup> groups;

 private:
  static std::int64_t owners(const LayerGroup& group) {
    return std::ranges::count_if(group.layers, [](const auto& its) { return its.reads_layer < 0; });
  }
  void add(PagedKind kind, std::initializer_list<std::int32_t> numbers, std::int64_t limit = 0) {
    std::vector<GroupLayer>& layers = layers_.emplace_back();
    for (const std::int32_t number : numbers) layers.push_back({.layer = number});
    groups.push_back({.kind = kind,
                      .layers = {},
                      .num_kv_heads = 2,
                      .head_dim_k = 16,
                      .head_dim_v = 8,
                      .dtype = DType::bf16,
                      .block_size_tokens = 8,
                      .limit_tokens = limit});
  }
  void add_latents(std::initializer_list<std::int32_t> numbers) {
    add(PagedKind::full, numbers);
    groups.back().num_kv_heads = 1;
    groups.back().head_dim_k = 24;
    groups.back().head_dim_v = 16;
    groups.back().value_in_key = true;
  }
  void add_states(std::initializer_list<std::int32_t> numbers, StateMode mode, bool keeps) {
    std::vector<GroupLayer>& layers = layers_.emplace_back();
    for (const std::int32_t number : numbers) layers.push_back({.layer = number});
    planes_ = {{.dtype = DType::f32, .num_dims = 2, .shape = {40, 30}},
               {.dtype = DType::bf16, .num_dims = 1, .shape = {57}}};
    groups.push_back({.kind = PagedKind::state,
                      .layers = {},
                      .planes = planes_,
                      .mode = mode,
                      .keeps_for_undo = keeps});
  }

  std::vector<std::vector<GroupLayer>> layers_;
  std::vector<StatePlane> planes_;
};

}  // namespace kvarena::test
