#include "kvarena/capacity/model_groups.hpp"

#include "base/out_of_memory.hpp"
#include "capacity/planning.hpp"
#include "capacity/share.hpp"
#include "kvarena/base/latent_fp8.hpp"

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
Result<LayerGroup> group_of(const CacheGroup& group, const KvMemoryOptions& o, bool is_sparse_model,
                            std::int32_t rollback_tokens) {
  if (group.kind == CacheKind::recurrent) {
    return LayerGroup{
        .kind = PagedKind::state, .layers = {}, .rollback_tokens = rollback_tokens, .planes = {}};
  }
  if (group.index_dim > kIndexBlock) {
    return unsupported_option(Option::index_dim, static_cast<std::uint64_t>(group.index_dim));
  }
  std::optional<DType> dtype = dtype_of(o.format);
  if (!dtype) return unsupported_option(Option::format, 0);
  const bool has_rows = is_sparse_model && has_sparse_rows(group, o.format);
  if (has_rows) {
    if (group.latent_dim != kLatentFp8Dim || group.latent_value_dim != kLatentFp8ValueDim) {
      return unsupported_option(Option::head_dim, static_cast<std::uint64_t>(group.latent_dim));
    }
    dtype = DType::latent_fp8;
  }
  const bool has_scales = o.scale == ScaleKind::per_token_head && !has_rows;
  if (has_scales && *dtype != DType::fp8_e4m3) {
    return unsupported_option(Option::scale, static_cast<std::uint64_t>(o.scale));
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
      .limit_tokens = kind_of(group.kind) == PagedKind::full ? 0 : group.limit_tokens,
      .rollback_tokens = group.kind == CacheKind::window ? rollback_tokens : 0,
      .scale = has_scales ? ScaleKind::per_token_head : ScaleKind::none,
      .index_dim = static_cast<std::int32_t>(group.index_dim)};
}

/// What a recurrent layer keeps: the state in f32, and the convolution in the model's own type.
Result<std::vector<StatePlane>> planes_of(const ModelSpec& model, const CacheGroup& group,
                                          std::int32_t ranks) {
  std::vector<StatePlane> planes;
  const auto add = [&](std::int64_t elements, DType dtype) {
    if (elements > 0) planes.push_back({.dtype = dtype, .shape = {ceil_div(elements, ranks)}});
  };
  add(group.state_elements, DType::f32);
  const StorageFormat* const named = find_storage_format(model.kv_format);
  const std::optional<DType> own = named == nullptr ? DType::bf16 : dtype_of(*named);
  if (group.conv_elements > 0 && !own) return unsupported_option(Option::format, 0);
  add(group.conv_elements, own.value_or(DType::f32));
  return planes;
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

Result<ModelGroups> groups_of(const ModelSpec& model, const KvMemoryOptions& options,
                              std::int32_t rollback_tokens) try {
  const Result<std::vector<GroupMemory>> checked = group_memory(model, options);
  if (!checked) return checked.status();
  ModelGroups all;
  std::set<std::int32_t> taken;
  for (const CacheGroup& group : kept_groups(model, options)) {
    const Result<LayerGroup> made = group_of(group, options, is_sparse(model), rollback_tokens);
    if (!made) return made.status();
    if (group.layers.empty()) {
      return invalid_option(Option::num_layers, 0, group.num_layers, group.num_layers);
    }
    all.layers.push_back(layers_of(group, model.shape.num_layers, taken));
    all.groups.push_back(*made);
    all.groups.back().layers = all.layers.back();
    if (group.kind != CacheKind::recurrent) continue;
    Result<std::vector<StatePlane>> planes = planes_of(model, group, options.tensor_parallel);
    if (!planes) return planes.status();
    all.planes.push_back(std::move(*planes));
    all.groups.back().planes = all.planes.back();
  }
  return all;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

}  // namespace kvarena::capacity
