#include "kvarena/capacity/cache_groups.hpp"

#include "base/out_of_memory.hpp"
#include "capacity/kept_groups.hpp"
#include "capacity/share.hpp"

#include <new>
#include <optional>
#include <set>
#include <utility>

namespace kvarena::capacity {
namespace {

PagedKind kind_of(CacheKind kind) noexcept {
  switch (kind) {
    case CacheKind::window: return PagedKind::window;
    case CacheKind::chunked: return PagedKind::chunk;
    case CacheKind::cross: return PagedKind::cross;
    case CacheKind::full:
    case CacheKind::latent:
    case CacheKind::recurrent: break;
  }
  return PagedKind::full;
}

/// The group without its layers, or what a cache cannot hold of it.
Result<LayerGroup> group_of(const CacheGroup& group, const KvMemoryOptions& o) {
  const auto kind = static_cast<std::uint64_t>(group.kind);
  if (group.kind == CacheKind::recurrent) return unsupported_option(Option::kind, kind);
  if (group.index_dim > 0) return unsupported(Resource::num_planes, kind);
  const std::optional<DType> dtype = dtype_of(o.format);
  if (!dtype) return unsupported(Resource::dtype);
  if (o.scale != ScaleKind::none) {
    return unsupported(Resource::scale, static_cast<std::uint64_t>(o.scale));
  }
  const bool is_latent = group.kind == CacheKind::latent;
  return LayerGroup{
      .kind = kind_of(group.kind),
      .layers = {},
      .num_kv_heads = is_latent ? 1 : heads_of_rank(group.num_kv_heads, o.tensor_parallel),
      .head_dim_k = is_latent ? group.latent_dim : group.head_dim_k,
      .head_dim_v = is_latent ? group.latent_value_dim : group.head_dim_v,
      .dtype = *dtype,
      .value_in_key = is_latent,
      .block_size_tokens = o.block_size_tokens,
      .limit_tokens = group.limit_tokens};
}

/// The places of its layers; those that `taken` has already are counted on behind all layers.
std::vector<GroupLayer> layers_of(const CacheGroup& group, std::int32_t num_layers,
                                  std::set<std::int32_t>& taken) {
  std::vector<GroupLayer> layers;
  const bool is_second = taken.contains(group.layers.front().layer);
  const std::int32_t shift = is_second ? num_layers : 0;
  for (const CacheLayer& layer : group.layers) {
    const std::int32_t reads = layer.reads_layer < 0 ? -1 : layer.reads_layer + shift;
    layers.push_back({.layer = layer.layer + shift, .reads_layer = reads});
    taken.insert(layer.layer + shift);
  }
  return layers;
}

}  // namespace

void CacheGroups::add(LayerGroup group, std::vector<GroupLayer> layers) {
  layers_.push_back(std::move(layers));
  group.layers = layers_.back();
  groups_.push_back(group);
}

Result<CacheGroups> groups_of(const ModelSpec& model, const KvMemoryOptions& options) try {
  const Result<std::vector<GroupMemory>> checked = group_memory(model, options);
  if (!checked) return checked.status();
  CacheGroups all;
  std::set<std::int32_t> taken;
  for (const CacheGroup& group : kept_groups(model, options)) {
    const Result<LayerGroup> made = group_of(group, options);
    if (!made) return made.status();
    if (group.layers.empty()) {
      return invalid_option(Option::num_layers, 0, group.num_layers, group.num_layers);
    }
    all.add(*made, layers_of(group, model.shape.num_layers, taken));
  }
  return all;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

}  // namespace kvarena::capacity
