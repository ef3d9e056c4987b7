#pragma once

/// @file
/// `groups_of`: the layers of a model as the groups of a KvCache. Pure functions for any thread.

#include "kvarena/base/export.hpp"
#include "kvarena/base/group_layout.hpp"
#include "kvarena/base/result.hpp"
#include "kvarena/capacity/kv_memory.hpp"
#include "kvarena/capacity/model_spec.hpp"

#include <span>
#include <vector>

namespace kvarena::capacity {

/// Groups for KvCacheOptions::groups, with the layers that they borrow. Move-only.
class KVARENA_EXPORT CacheGroups {
 public:
  CacheGroups() = default;
  CacheGroups(CacheGroups&&) noexcept = default;
  CacheGroups& operator=(CacheGroups&&) noexcept = default;
  CacheGroups(const CacheGroups&) = delete;
  CacheGroups& operator=(const CacheGroups&) = delete;

  /// The groups, in the order of group_memory. Valid as long as this object.
  std::span<const LayerGroup> groups() const noexcept { return groups_; }
  /// Adds a group with these layers, in place of group.layers.
  void add(LayerGroup group, std::vector<GroupLayer> layers);

 private:
  std::vector<LayerGroup> groups_;
  std::vector<std::vector<GroupLayer>> layers_;  // by group
};

/// Returns the groups of a rank's layers, as group_memory counts them. A layer has its number in
/// the model. Where a layer keeps data of two kinds, as decoders beside an encoder do, the second
/// kind has num_layers added to its number. Returns what group_memory returns; invalid_argument
/// (num_layers) for a group whose layers have no known places; or unsupported with the part that a
/// KvCache cannot hold: (kind) states, (num_planes) an index of sparse attention, (dtype) block
/// formats, (scale) scales of quantised K and V.
KVARENA_EXPORT Result<CacheGroups> groups_of(const ModelSpec& model,
                                             const KvMemoryOptions& options);

}  // namespace kvarena::capacity
