#pragma once

/// @file
/// `GroupLayout`: where every byte lies in a pool whose layers keep different data. Layers that
/// keep the same data are a group. A group has a layout of its own (`KvLayout`); a group that is
/// cut into parts has one for each part, and ids and tables of its own for each. All blocks lie in
/// equal pages (choose_pages.hpp): `address = base + id * id_stride + plane_offset`, where an id
/// counts strides from the base of the pool. States of recurrent layers have planes of their own
/// instead (state_layout.hpp). A layer of sparse attention has the keys of its index in the same
/// block. An immutable value: it can be copied, and read from any thread.

#include "kvarena/base/choose_pages.hpp"
#include "kvarena/base/export.hpp"
#include "kvarena/base/layout.hpp"
#include "kvarena/base/result.hpp"
#include "kvarena/base/state_layout.hpp"
#include "kvarena/base/views.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace kvarena {

/// One layer of a group.
struct GroupLayer {
  std::int32_t layer = 0;         ///< the model's layer, 0 .. 4095
  std::int32_t reads_layer = -1;  ///< a layer of the same group whose K and V this one reads; it
                                  ///< writes nothing then. -1: it has K and V of its own
};

/// Layers that keep the same data. The layers and planes are borrowed. A group of states uses kind,
/// layers, rollback_tokens, planes, mode and keeps_for_undo; the others use all but the last three
/// of these.
struct LayerGroup {
  PagedKind kind = PagedKind::full;      ///< the data that they keep
  std::span<const GroupLayer> layers;    ///< at least one with data of its own
  std::int32_t num_kv_heads = 0;         ///< 1 .. 4096
  std::int32_t head_dim_k = 0;           ///< 1 .. 4096
  std::int32_t head_dim_v = 0;           ///< 1 .. 4096; 0: the same as head_dim_k
  DType dtype = DType::f16;              ///< of K, and of V unless dtype_v says another
  std::optional<DType> dtype_v{};        ///< of V
  bool value_in_key = false;             ///< V is the leading head_dim_v elements of K: a latent
  std::int32_t block_size_tokens = 16;   ///< 1 .. 65536
  std::int64_t limit_tokens = 0;         ///< window, chunk, cross: as PagedGroup::limit_tokens
  std::int32_t rollback_tokens = 0;      ///< window, state: as PagedGroup::rollback_tokens
  std::span<const StatePlane> planes{};  ///< state: what a layer keeps, 1 .. 8 planes
  StateMode mode = StateMode::in_place;  ///< state: how its kernel works
  bool keeps_for_undo = true;            ///< state: as TableGroup::keeps_for_undo
  /// none, or per_token_head with K and V in fp8_e4m3: an f32 for each token and head.
  ScaleKind scale = ScaleKind::none;
  /// Elements of a token's key in a sparse-attention index, kept behind K and V in fp8_e4m3 with an
  /// f32 scale a token: a multiple of 4 up to 128. 0: the layers have none.
  std::int32_t index_dim = 0;
};

/// The page and the layouts of a pool of groups.
class KVARENA_EXPORT GroupLayout {
 public:
  /// Blocks with ids and tables of their own: a group, or a part of one.
  struct Part {
    std::int32_t group = 0;  ///< index of the group
    PagedBlocks blocks;      ///< its blocks in a page; num_parts is that of the group
    KvLayout layout;         ///< of one block
  };

  /// The states of a group of recurrent layers.
  struct States {
    std::int32_t group = 0;            ///< index of the group
    PagedBlocks blocks;                ///< a block is a slot: the state of `layers_per_part` layers
    std::int32_t layers_per_part = 0;  ///< layers in a slot
    std::int64_t layer_bytes = 0;      ///< of one layer in a slot
    std::vector<std::int32_t> layers;  ///< in the order of the parts
    std::vector<StatePlaneView> planes;    ///< of a layer; offsets from its first byte
    StateMode mode = StateMode::in_place;  ///< as given
    bool keeps_for_undo = true;            ///< as given
  };

  /// Chooses the page, for sequences of up to `max_sequence_tokens`. Groups that can have the order
  /// `preferred` inside their tiles get it, the others have rows. Returns what choose_pages and
  /// KvLayout::create return, and validate for planes of states; invalid_argument (num_layers) for
  /// a group without layers of its own, (layer) for a layer outside its range or with two places,
  /// (reads_layer) for a layer that is not in the same group, has no data of its own or is in a
  /// group of states, (index_dim) with the nearest multiples; unsupported (kind) for groups of
  /// states alone; or exhausted (host_memory).
  static Result<GroupLayout> create(std::span<const LayerGroup> groups,
                                    std::int64_t max_sequence_tokens,
                                    TileOrder preferred = TileOrder::rows);

  /// Bytes of a page.
  std::int64_t page_bytes() const noexcept { return page_bytes_; }
  /// The groups as the functions of choose_pages.hpp take them.
  std::span<const PagedGroup> groups() const noexcept { return groups_; }
  /// The parts of all groups with K and V, in the order of the groups.
  std::span<const Part> parts() const noexcept { return parts_; }
  /// The groups of states, in their order. Block tables have them behind `parts`.
  std::span<const States> states() const noexcept { return states_; }
  /// The largest layer of any group, plus one.
  std::int32_t num_layers() const noexcept { return static_cast<std::int32_t>(places_.size()); }
  /// Whether the layer is in a group with K and V.
  bool has_layer(std::int32_t layer) const noexcept {
    return layer >= 0 && layer < num_layers() && places_[index(layer)].part >= 0;
  }
  /// The layer whose K and V it reads: itself, or reads_layer. Requires has_layer.
  std::int32_t owner_of(std::int32_t layer) const noexcept { return places_[index(layer)].owner; }
  /// The part with its K and V. Requires has_layer.
  std::int32_t part_of(std::int32_t layer) const noexcept { return places_[index(layer)].part; }
  /// Whether the layer has a sparse-attention index of its own.
  bool has_index(std::int32_t layer) const noexcept {
    return has_layer(layer) && owner_of(layer) == layer &&
           parts_[index(part_of(layer))].layout.plane_of(layer, PlaneKind::index) >= 0;
  }
  /// Whether the layer is in a group of states.
  bool has_state(std::int32_t layer) const noexcept {
    return layer >= 0 && layer < num_layers() && places_[index(layer)].states >= 0;
  }
  /// The pages of a sequence that grows to `length_tokens`, between steps: the sum of pages_of. In
  /// a step of up to block_size_tokens tokens each part of a window or a chunk has one page more at
  /// most, and states have a second state (pages_of_states).
  std::int64_t pages_of_sequence(std::int64_t length_tokens) const noexcept;
  /// Returns K and V of one layer in `num_pages` pages at `base`. Ids are those of its part.
  /// Returns invalid_argument (layer) when it is in no group, or (num_blocks) for more ids than
  /// KvLayout::kMaxBlocks.
  Result<KvLayerView> layer_view(std::byte* base, std::int64_t num_pages,
                                 std::int32_t layer) const noexcept;
  /// Returns the sparse-attention index of one layer in `num_pages` pages at `base`. Returns
  /// invalid_argument (layer) when the layer has none of its own, or what layer_view returns.
  Result<IndexView> index_view(std::byte* base, std::int64_t num_pages,
                               std::int32_t layer) const noexcept;
  /// Returns the states of one layer in `num_pages` pages at `base`. Returns what layer_view
  /// returns. O(planes).
  Result<StateView> state_view(std::byte* base, std::int64_t num_pages,
                               std::int32_t layer) const noexcept;

 private:
  struct Place {
    std::int32_t part = -1;    // -1: it has no K and V
    std::int32_t owner = -1;   // of K and V, or the place in States::layers
    std::int32_t states = -1;  // -1: it has no state
  };
  GroupLayout() = default;
  Status place_layers(const LayerGroup& group, std::int32_t first_part,
                      std::span<const std::int32_t> owners, std::int32_t num_parts);
  Status place_layer(std::int32_t layer, Place at);
  PlaneView plane_view(std::byte* base, const Part& part, std::int32_t plane) const noexcept;
  Result<std::int64_t> num_ids(const Part& part, std::int64_t num_pages) const noexcept;
  Status add_states(const LayerGroup& group, std::int32_t number, const PagedBlocks& blocks);
  static std::size_t index(std::int32_t i) noexcept { return static_cast<std::size_t>(i); }

  std::int64_t page_bytes_ = 0;
  std::vector<PagedGroup> groups_;
  std::vector<PagedBlocks> blocks_;  // by group
  std::vector<Part> parts_;
  std::vector<States> states_;
  std::vector<Place> places_;  // by layer
};

}  // namespace kvarena
