#include "kvarena/capacity/model_spec.hpp"

#include "base/range_checks.hpp"
#include "capacity/amount.hpp"

namespace kvarena::capacity {
namespace {

bool has_heads(CacheKind kind) noexcept {
  return kind != CacheKind::latent && kind != CacheKind::recurrent;
}

bool has_limit(CacheKind kind) noexcept {
  return kind == CacheKind::window || kind == CacheKind::chunked || kind == CacheKind::cross;
}

Status validate(const CacheGroup& g) noexcept {
  const std::int64_t heads = has_heads(g.kind) ? 1 : 0;
  const std::int64_t latent = g.kind == CacheKind::latent ? 1 : 0;
  const std::int64_t state = g.kind == CacheKind::recurrent && g.conv_elements == 0 ? 1 : 0;
  if (Status s = check_enum(Option::kind, g.kind, CacheKind::cross); !s) return s;
  return check_each({
      {Option::num_layers, g.num_layers, 1, kMostLayers},
      {Option::num_sharing_layers, g.num_sharing_layers, 0, kMostLayers},
      {Option::num_kv_heads, g.num_kv_heads, heads, kMostHeads},
      {Option::head_dim_k, g.head_dim_k, heads, kMostDim},
      {Option::head_dim_v, g.head_dim_v, heads, kMostDim},
      {Option::limit_tokens, g.limit_tokens, has_limit(g.kind) ? 1 : 0, kMostTokens},
      {Option::latent_dim, g.latent_dim, latent, kMostDim},
      {Option::latent_value_dim, g.latent_value_dim, 0, g.latent_dim},
      {Option::index_dim, g.index_dim, 0, kMostDim},
      {Option::state_elements, g.state_elements, state, kMostAmount},
      {Option::conv_elements, g.conv_elements, 0, kMostAmount},
  });
}

}  // namespace

std::string_view name_of(CacheKind kind) noexcept {
  switch (kind) {
    case CacheKind::full: return "full attention";
    case CacheKind::window: return "sliding window";
    case CacheKind::chunked: return "chunked attention";
    case CacheKind::latent: return "latent (MLA)";
    case CacheKind::recurrent: return "recurrent state";
    case CacheKind::cross: return "cross attention";
  }
  return "unknown";
}

std::int64_t ParameterPart::total() const noexcept { return times(each, num_layers); }

std::int64_t kv_elements_per_token(const ModelSpec& model) noexcept {
  std::int64_t sum = 0;
  for (const CacheGroup& group : model.groups) {
    if (group.kind == CacheKind::recurrent || group.kind == CacheKind::cross) continue;
    const std::int64_t layer = group.kind == CacheKind::latent
                                   ? group.latent_dim
                                   : times(group.num_kv_heads, group.head_dim_k + group.head_dim_v);
    sum = plus(sum, times(layer, group.num_layers));
  }
  return sum;
}

Status validate(const ModelSpec& model) noexcept {
  const TransformerShape& s = model.shape;
  if (Status status = check_each({
          {Option::num_layers, s.num_layers, 1, kMostLayers},
          {Option::num_q_heads, s.num_q_heads, 0, kMostHeads},
          {Option::num_kv_heads, s.num_kv_heads, 0, kMostHeads},
          {Option::head_dim, s.head_dim, 0, kMostDim},
          {Option::hidden, s.hidden, 0, kMostWidth},
          {Option::ffn, s.ffn, 0, kMostWidth},
          {Option::ffn, s.moe.ffn, 0, kMostWidth},
          {Option::experts_per_token, s.moe.experts_per_token, 0, kMostHeads},
          {Option::kv_lora_rank, s.mla.kv_lora_rank, 0, kMostDim},
          {Option::nope_dim, s.mla.nope_dim, 0, kMostDim},
          {Option::rope_dim, s.mla.rope_dim, 0, kMostDim},
          {Option::vocab, s.vocab, 0, kMostTokens},
          {Option::max_position, s.max_position, 0, kMostTokens},
          {Option::weights_bytes, model.weights_bytes.value_or(0), 0, kMostAmount},
          {Option::parameters, model.parameters.value_or(0), 0, kMostAmount},
          {Option::groups, static_cast<std::int64_t>(model.groups.size()), 1, kMostLayers},
      });
      !status) {
    return status;
  }
  for (const CacheGroup& group : model.groups) {
    if (Status status = validate(group); !status) return status;
  }
  return {};
}

}  // namespace kvarena::capacity
