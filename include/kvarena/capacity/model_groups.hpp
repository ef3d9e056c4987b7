#pragma once

/// @file
/// The groups of layers of a model, as a KvCache takes them (KvCacheOptions::groups). Any thread.

#include "kvarena/base/export.hpp"
#include "kvarena/base/group_layout.hpp"
#include "kvarena/base/result.hpp"
#include "kvarena/capacity/kv_memory.hpp"
#include "kvarena/capacity/model_spec.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace kvarena::capacity {

/// Groups and the layers that they borrow. Move-only, so that the groups stay valid.
struct ModelGroups {
  std::vector<LayerGroup> groups;               ///< for KvCacheOptions::groups
  std::vector<std::vector<GroupLayer>> layers;  ///< by group
  std::vector<std::vector<StatePlane>> planes;  ///< by group of states
  ModelGroups() = default;
  ModelGroups(ModelGroups&&) noexcept = default;             ///< The groups stay valid.
  ModelGroups& operator=(ModelGroups&&) noexcept = default;  ///< The groups stay valid.
  ModelGroups(const ModelGroups&) = delete;
  ModelGroups& operator=(const ModelGroups&) = delete;
};

/// Returns the groups of a rank's layers, as group_memory counts them. `options.kept` says whether
/// windows and chunks are kept whole; they are full attention then. A layer has its number in the
/// model. Where a layer keeps data of two kinds, as decoders beside an encoder do, the second kind
/// has num_layers added to its number. `rollback_tokens` are those of every window and every state.
/// A recurrent layer has a plane for its state, in f32, and one for its convolution, in the model's
/// own type, each with one dimension. Returns what group_memory returns; invalid_argument
/// (num_layers) for a group whose layers have no known places; unsupported (index_dim) for a
/// sparse-attention index, (format) for a format that no layout has, or (scale) for scales in
/// blocks.
KVARENA_EXPORT Result<ModelGroups> groups_of(const ModelSpec& model, const KvMemoryOptions& options,
                                             std::int32_t rollback_tokens = 0);

}  // namespace kvarena::capacity
