#include "kvarena/capacity/model_groups.hpp"

#include "base/out_of_memory.hpp"

#include <algorithm>
#include <new>
#include <utility>

namespace kvarena::capacity {
namespace {

PagedKind kind_of(CacheKind kind) noexcept {
  switch (kind) {
    case CacheKind::window: return PagedKind::window;
    case CacheKind::chunked: return PagedKind::chunk;
    case CacheKind::recurrent: return PagedKind::state;
    case CacheKind::cross: return PagedKind::cross;
    case CacheKind::full:
    case CacheKind::latent: break;
  }
  return PagedKind::full;
}

/// The layers of the model that read what layers like these keep.
std::int32_t num_readers(const ModelSpec& model, const GroupMemory& memory,
                         KeptTokens kept) noexcept {
  std::int32_t readers = 0;
  for (const CacheGroup& group : model.groups) {
    const bool is_whole = kept == KeptTokens::full &&
                          (group.kind == CacheKind::window || group.kind == CacheKind::chunked);
    const CacheKind kind = is_whole ? CacheKind::full : group.kind;
    const std::int64_t limit = is_whole ? 0 : group.limit_tokens;
    const bool is_alike = kind == memory.kind && limit == memory.limit_tokens &&
                          group.head_dim_k == memory.head_dim_k &&
                          group.head_dim_v == memory.head_dim_v;
    if (is_alike) readers += group.num_sharing_layers;
  }
  return readers;
}

/// The group of the model with the latent of these layers.
const CacheGroup* latent_of(const ModelSpec& model) noexcept {
  const auto found = std::ranges::find(model.groups, CacheKind::latent, &CacheGroup::kind);
  return found == model.groups.end() ? nullptr : &*found;
}

Status check(const ModelSpec& model, const KvMemoryOptions& options) noexcept {
  for (const CacheGroup& group : model.groups) {
    if (group.kind == CacheKind::recurrent) {
      return unsupported_option(Option::kind, static_cast<std::uint64_t>(PagedKind::state));
    }
    if (group.index_dim > 0) {
      return unsupported_option(Option::index_dim, static_cast<std::uint64_t>(group.index_dim));
    }
  }
  if (options.scale == ScaleKind::per_token_head) {
    return unsupported_option(Option::scale, static_cast<std::uint64_t>(options.scale));
  }
  return {};
}

}  // namespace

Result<ModelGroups> groups_of(const ModelSpec& model, const KvMemoryOptions& options,
                              std::int32_t rollback_tokens) try {
  const Result<std::vector<GroupMemory>> memory = group_memory(model, options);
  if (!memory) return memory.status();
  if (Status s = check(model, options); !s) return s;
  const std::optional<DType> dtype = dtype_of(options.format);
  if (!dtype) return unsupported_option(Option::format, 0);
  ModelGroups made;
  std::int32_t next = 0;
  for (const GroupMemory& its : *memory) {
    std::vector<GroupLayer>& layers = made.layers.emplace_back();
    for (std::int32_t i = 0; i < its.num_layers; ++i) layers.push_back({next++});
    const std::int32_t last = next - 1;
    // On one stage of several, readers follow the layer that they read, wherever that is.
    const std::int32_t readers =
        options.pipeline_parallel == 1 ? num_readers(model, its, options.kept) : 0;
    for (std::int32_t i = 0; i < readers; ++i) layers.push_back({next++, last});
    LayerGroup group{.kind = kind_of(its.kind),
                     .layers = {},
                     .num_kv_heads = its.num_kv_heads,
                     .head_dim_k = its.head_dim_k,
                     .head_dim_v = its.head_dim_v,
                     .dtype = *dtype,
                     .block_size_tokens = options.block_size_tokens,
                     .limit_tokens = its.limit_tokens};
    if (its.kind == CacheKind::latent) {
      const CacheGroup& latent = *latent_of(model);
      group.head_dim_k = latent.latent_dim;
      group.head_dim_v = latent.latent_value_dim;
      group.value_in_key = true;
    }
    if (group.kind == PagedKind::window) group.rollback_tokens = rollback_tokens;
    made.groups.push_back(group);
  }
  for (std::size_t g = 0; g < made.groups.size(); ++g) made.groups[g].layers = made.layers[g];
  return made;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

}  // namespace kvarena::capacity
