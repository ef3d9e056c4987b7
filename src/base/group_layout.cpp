#include "kvarena/base/group_layout.hpp"

#include "base/out_of_memory.hpp"
#include "base/range_checks.hpp"

#include <algorithm>
#include <new>
#include <utility>

namespace kvarena {
namespace {

constexpr std::int64_t kMaxLayers = 4096;
constexpr std::int64_t kMaxHeads = 4096;
constexpr std::int64_t kMaxIndexDim = 128;
constexpr std::int32_t kIndexStep = 4;

/// Returns the layers of a group that have K and V of their own, in order.
std::vector<std::int32_t> owners_of(const LayerGroup& group) {
  std::vector<std::int32_t> owners;
  for (const GroupLayer& layer : group.layers) {
    if (layer.reads_layer == -1) owners.push_back(layer.layer);
  }
  return owners;
}

/// Scales in blocks are those of fp8, and an index is one row of at most one scale.
Status check_formats(const LayerGroup& group) noexcept {
  if (Status s = check_option(Option::index_dim, group.index_dim, 0, kMaxIndexDim); !s) return s;
  if (const std::int32_t beyond = group.index_dim % kIndexStep; beyond != 0) {
    const std::int32_t below = group.index_dim - beyond;
    return invalid_option(Option::index_dim, group.index_dim, below, below + kIndexStep);
  }
  if (group.scale == ScaleKind::none) return {};
  const bool is_fp8 =
      group.dtype == DType::fp8_e4m3 && group.dtype_v.value_or(group.dtype) == DType::fp8_e4m3;
  if (group.scale == ScaleKind::per_token_head && is_fp8) return {};
  return unsupported_option(Option::scale, static_cast<std::uint64_t>(group.scale));
}

/// Each layer of a group of states has a state of its own.
Status check_states(const LayerGroup& group) noexcept {
  for (const GroupLayer& layer : group.layers) {
    if (Status s = check_option(Option::reads_layer, layer.reads_layer, -1, -1); !s) return s;
  }
  if (Status s = check_enum(Option::mode, group.mode, StateMode::read_write); !s) return s;
  return state_bytes(group.planes).status();
}

Status check_group(const LayerGroup& group) noexcept {
  if (Status s = check_enum(Option::kind, group.kind, PagedKind::cross); !s) return s;
  const auto num_owners =
      std::ranges::count(group.layers, -1, [](const GroupLayer& l) { return l.reads_layer; });
  if (Status s = check_option(Option::num_layers, num_owners, 1, kMaxLayers); !s) return s;
  for (const GroupLayer& layer : group.layers) {
    if (Status s = check_option(Option::layer, layer.layer, 0, kMaxLayers - 1); !s) return s;
  }
  if (group.kind == PagedKind::state) return check_states(group);
  if (Status s = check_each({
          {Option::num_kv_heads, group.num_kv_heads, 1, kMaxHeads},
          {Option::head_dim_k, group.head_dim_k, 1, kMaxHeads},
          {Option::head_dim_v, group.head_dim_v, 0, kMaxHeads},
      });
      !s) {
    return s;
  }
  return check_formats(group);
}

/// The planes of one block with K and V of these layers.
GroupSpec spec_of(const LayerGroup& group, std::span<const std::int32_t> layers) {
  GroupSpec spec;
  spec.block_size_tokens = group.block_size_tokens;
  for (const std::int32_t layer : layers) {
    PlaneSpec plane{.layer = layer,
                    .kind = PlaneKind::key,
                    .num_heads = group.num_kv_heads,
                    .head_dim = group.head_dim_k,
                    .dtype = group.dtype,
                    .scale = group.scale};
    spec.planes.push_back(plane);
    plane.kind = PlaneKind::value;
    plane.dtype = group.dtype_v.value_or(group.dtype);
    if (group.head_dim_v != 0) plane.head_dim = group.head_dim_v;
    if (group.value_in_key) plane.alias_of = static_cast<std::int32_t>(spec.planes.size()) - 1;
    spec.planes.push_back(plane);
    if (group.index_dim == 0) continue;
    spec.planes.push_back({.layer = layer,
                           .kind = PlaneKind::index,
                           .num_heads = 1,
                           .head_dim = group.index_dim,
                           .dtype = DType::fp8_e4m3,
                           .scale = ScaleKind::per_token_head});
  }
  return spec;
}

/// Makes a layout with the preferred order of tiles, if the group can have it.
Result<KvLayout> layout_of(const LayerGroup& group, std::span<const std::int32_t> layers,
                           TileOrder preferred) {
  GroupSpec spec = spec_of(group, layers);
  spec.tile_order = preferred;
  Result<KvLayout> layout = KvLayout::create(std::span(&spec, 1));
  if (layout || layout.status().code != StatusCode::unsupported) return layout;
  spec.tile_order = TileOrder::rows;
  return KvLayout::create(std::span(&spec, 1));
}

/// The group as choose_pages takes it. Two places of a layer with K and V in one group are found
/// here.
Result<PagedGroup> paged_of(const LayerGroup& group, std::span<const std::int32_t> owners,
                            TileOrder preferred) {
  PagedGroup paged{.kind = group.kind,
                   .num_layers = static_cast<std::int32_t>(owners.size()),
                   .limit_tokens = group.limit_tokens,
                   .rollback_tokens = group.rollback_tokens};
  if (group.kind == PagedKind::state) {
    paged.layer_bytes = *state_bytes(group.planes);
    return paged;
  }
  const Result<KvLayout> whole = layout_of(group, owners, preferred);
  if (!whole) return whole.status();
  paged.layer_bytes = whole->block_bytes() / paged.num_layers;
  paged.block_size_tokens = group.block_size_tokens;
  return paged;
}

}  // namespace

Status GroupLayout::place_layer(std::int32_t layer, Place at) {
  places_.resize(std::max(places_.size(), index(layer) + 1));
  Place& place = places_[index(layer)];
  if (place.part != -1 || place.states != -1) {
    return invalid_option(Option::layer, layer, 0, kMaxLayers - 1);
  }
  place = at;
  return {};
}

/// Adds a group of states: the planes of a layer follow one another, and so do the layers of a
/// part.
Status GroupLayout::add_states(const LayerGroup& group, std::int32_t number,
                               const PagedBlocks& blocks) {
  States& made = states_.emplace_back();
  made.group = number;
  made.blocks = blocks;
  made.mode = group.mode;
  made.keeps_for_undo = group.keeps_for_undo;
  for (const StatePlane& plane : group.planes) {
    made.planes.push_back({.offset = made.layer_bytes, .plane = plane});
    made.layer_bytes += *state_bytes(std::span(&plane, 1));
  }
  for (const GroupLayer& layer : group.layers) {
    const Place at{.owner = static_cast<std::int32_t>(made.layers.size()),
                   .states = static_cast<std::int32_t>(states_.size()) - 1};
    if (Status s = place_layer(layer.layer, at); !s) return s;
    made.layers.push_back(layer.layer);
  }
  made.layers_per_part = static_cast<std::int32_t>(made.layers.size()) / blocks.num_parts;
  return {};
}

/// Writes down where the layers of a group are. Owners come in the order of the parts.
Status GroupLayout::place_layers(const LayerGroup& group, std::int32_t first_part,
                                 std::span<const std::int32_t> owners, std::int32_t num_parts) {
  const auto in_part = static_cast<std::int32_t>(owners.size()) / num_parts;
  for (std::size_t i = 0; i < owners.size(); ++i) {
    const std::int32_t part = first_part + static_cast<std::int32_t>(i) / in_part;
    if (Status s = place_layer(owners[i], {.part = part, .owner = owners[i]}); !s) return s;
  }
  for (const GroupLayer& layer : group.layers) {
    if (layer.reads_layer == -1) continue;
    if (std::ranges::find(owners, layer.reads_layer) == owners.end()) {
      return invalid_option(Option::reads_layer, layer.reads_layer, -1, kMaxLayers - 1);
    }
    const Place of_owner = places_[index(layer.reads_layer)];
    if (Status s = place_layer(layer.layer, of_owner); !s) return s;
  }
  return {};
}

Result<GroupLayout> GroupLayout::create(std::span<const LayerGroup> groups,
                                        std::int64_t max_sequence_tokens, TileOrder preferred) try {
  GroupLayout made;
  std::vector<std::vector<std::int32_t>> owners;
  for (const LayerGroup& group : groups) {
    if (Status s = check_group(group); !s) return s;
    owners.push_back(owners_of(group));
    const Result<PagedGroup> paged = paged_of(group, owners.back(), preferred);
    if (!paged) return paged.status();
    made.groups_.push_back(*paged);
  }
  const Result<PageChoice> choice = choose_pages(made.groups_, max_sequence_tokens);
  if (!choice) return choice.status();
  if (std::ranges::all_of(groups, [](const LayerGroup& g) { return g.kind == PagedKind::state; })) {
    return unsupported_option(Option::kind, static_cast<std::uint64_t>(PagedKind::state));
  }
  made.page_bytes_ = choice->page_bytes;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const PagedBlocks& blocks = choice->groups[g];
    made.blocks_.push_back(blocks);
    if (groups[g].kind == PagedKind::state) {
      if (Status s = made.add_states(groups[g], static_cast<std::int32_t>(g), blocks); !s) return s;
      continue;
    }
    const auto first_part = static_cast<std::int32_t>(made.parts_.size());
    const std::size_t in_part = owners[g].size() / static_cast<std::size_t>(blocks.num_parts);
    for (std::size_t part = 0; part < static_cast<std::size_t>(blocks.num_parts); ++part) {
      const std::size_t first = part * in_part;
      Result<KvLayout> layout =
          layout_of(groups[g], std::span(owners[g]).subspan(first, in_part), preferred);
      if (!layout) return layout.status();
      made.parts_.push_back(
          {.group = static_cast<std::int32_t>(g), .blocks = blocks, .layout = std::move(*layout)});
    }
    if (Status s = made.place_layers(groups[g], first_part, owners[g], blocks.num_parts); !s) {
      return s;
    }
  }
  return made;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

std::int64_t GroupLayout::pages_of_sequence(std::int64_t length_tokens) const noexcept {
  std::int64_t pages = 0;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    pages += pages_of(groups_[g], blocks_[g], length_tokens);
  }
  return pages;
}

/// The ids of a part's blocks: more than a block id can have are refused.
Result<std::int64_t> GroupLayout::num_ids(const Part& part, std::int64_t num_pages) const noexcept {
  const std::int64_t ids = num_pages * part.blocks.ids_per_page(page_bytes_);
  if (ids <= KvLayout::kMaxBlocks) return ids;
  return invalid_argument(Resource::num_blocks, ids, 1, KvLayout::kMaxBlocks);
}

PlaneView GroupLayout::plane_view(std::byte* base, const Part& part,
                                  std::int32_t plane) const noexcept {
  const KvLayout& layout = part.layout;
  const PlaneSpec& spec = layout.planes()[index(plane)];
  return {.base = base + layout.plane_offset(plane, BlockOrder::block_major, 1),
          .block_stride = part.blocks.id_stride_bytes,
          .head_stride = layout.head_stride(plane),
          .token_stride = layout.token_stride(plane),
          .num_heads = spec.num_heads,
          .head_dim = spec.head_dim,
          .dtype = spec.dtype,
          .tile_order = layout.tile_order_of(plane),
          .scales_offset = layout.scales_offset(plane)};
}

Result<KvLayerView> GroupLayout::layer_view(std::byte* base, std::int64_t num_pages,
                                            std::int32_t layer) const noexcept {
  if (!has_layer(layer)) {
    return invalid_argument(Resource::layer, layer, 0, num_layers() - 1);
  }
  const Part& part = parts_[index(part_of(layer))];
  const Result<std::int64_t> ids = num_ids(part, num_pages);
  if (!ids) return ids.status();
  const auto view = [&](PlaneKind kind) {
    return plane_view(base, part, part.layout.plane_of(owner_of(layer), kind));
  };
  return KvLayerView{.key = view(PlaneKind::key),
                     .value = view(PlaneKind::value),
                     .block_size = part.layout.block_size(),
                     .num_blocks = *ids};
}

Result<IndexView> GroupLayout::index_view(std::byte* base, std::int64_t num_pages,
                                          std::int32_t layer) const noexcept {
  if (!has_index(layer)) return invalid_argument(Resource::layer, layer, 0, num_layers() - 1);
  const Part& part = parts_[index(part_of(layer))];
  const Result<std::int64_t> ids = num_ids(part, num_pages);
  if (!ids) return ids.status();
  return IndexView{.index = plane_view(base, part, part.layout.plane_of(layer, PlaneKind::index)),
                   .block_size = part.layout.block_size(),
                   .num_blocks = *ids};
}

Result<StateView> GroupLayout::state_view(std::byte* base, std::int64_t num_pages,
                                          std::int32_t layer) const noexcept {
  if (!has_state(layer)) return invalid_argument(Resource::layer, layer, 0, num_layers() - 1);
  const Place place = places_[index(layer)];
  const States& its = states_[index(place.states)];
  const std::int64_t num_slots = num_pages * its.blocks.ids_per_page(page_bytes_);
  if (num_slots > KvLayout::kMaxBlocks) {
    return invalid_argument(Resource::num_blocks, num_slots, 1, KvLayout::kMaxBlocks);
  }
  const std::int64_t in_part = place.owner % its.layers_per_part;
  StateView view{.base = base + in_part * its.layer_bytes,
                 .slot_stride = its.blocks.id_stride_bytes,
                 .num_slots = num_slots,
                 .group = place.states,
                 .part = place.owner / its.layers_per_part,
                 .num_planes = its.planes.size()};
  std::ranges::copy(its.planes, view.planes.begin());
  return view;
}

}  // namespace kvarena
