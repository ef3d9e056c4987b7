#include "capacity/planning.hpp"

#include "capacity/share.hpp"

#include <algorithm>
#include <cstddef>

namespace kvarena::capacity {
namespace {

bool is_attention(CacheKind kind) noexcept {
  return kind == CacheKind::full || kind == CacheKind::window || kind == CacheKind::chunked;
}

bool is_alike(const CacheGroup& a, const CacheGroup& b) noexcept {
  return a.kind == b.kind && a.num_kv_heads == b.num_kv_heads && a.head_dim_k == b.head_dim_k &&
         a.head_dim_v == b.head_dim_v && a.limit_tokens == b.limit_tokens &&
         a.latent_dim == b.latent_dim && a.index_dim == b.index_dim &&
         a.state_elements == b.state_elements && a.conv_elements == b.conv_elements;
}

/// Leaves `count` of a group's layers that keep data, from number `first` on, and the layers that
/// read those.
void take_layers(CacheGroup& group, std::int32_t first, std::int32_t count) {
  std::vector<CacheLayer> taken;
  std::vector<std::int32_t> owners;
  std::int32_t number = 0;
  for (const CacheLayer& layer : group.layers) {
    if (layer.reads_layer < 0 && number++ >= first && number <= first + count) {
      owners.push_back(layer.layer);
      taken.push_back(layer);
    } else if (layer.reads_layer >= 0 && std::ranges::count(owners, layer.reads_layer) > 0) {
      taken.push_back(layer);
    }
  }
  const bool are_known = !group.layers.empty();
  group.layers = std::move(taken);
  group.num_layers = count;
  if (are_known) {
    group.num_sharing_layers = static_cast<std::int32_t>(group.layers.size()) - count;
  }
}

/// The groups with the layers that a stage has of them, without those of which it has none.
std::vector<CacheGroup> groups_of_stage(const ModelSpec& model, const KvMemoryOptions& o) {
  std::vector<CacheGroup> groups = model.groups;
  if (o.pipeline_parallel == 1) return groups;
  const auto shares = layers_by_stage(groups, o.pipeline_parallel);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    std::int32_t first = 0;
    for (std::int32_t stage = 0; stage < o.stage; ++stage) {
      first += shares[static_cast<std::size_t>(stage)][i];
    }
    take_layers(groups[i], first, shares[static_cast<std::size_t>(o.stage)][i]);
  }
  std::erase_if(groups, [](const CacheGroup& group) { return group.num_layers == 0; });
  return groups;
}

/// Adds the layers of a group to one that keeps alike. Their places are known when both are.
void join(CacheGroup& to, const CacheGroup& from) {
  const bool are_known = !to.layers.empty() && !from.layers.empty();
  to.num_layers += from.num_layers;
  to.num_sharing_layers += from.num_sharing_layers;
  to.layers.insert(to.layers.end(), from.layers.begin(), from.layers.end());
  std::ranges::sort(to.layers, {}, &CacheLayer::layer);
  if (!are_known) to.layers.clear();
}

}  // namespace

std::vector<CacheGroup> kept_groups(const ModelSpec& model, const KvMemoryOptions& options) {
  std::vector<CacheGroup> groups;
  for (CacheGroup group : groups_of_stage(model, options)) {
    if (options.kept == KeptTokens::full && is_attention(group.kind)) {
      group.kind = CacheKind::full;
      group.limit_tokens = 0;
    }
    const auto alike = std::ranges::find_if(
        groups, [&](const CacheGroup& other) { return is_alike(group, other); });
    if (alike == groups.end()) {
      groups.push_back(std::move(group));
    } else {
      join(*alike, group);
    }
  }
  return groups;
}

}  // namespace kvarena::capacity
