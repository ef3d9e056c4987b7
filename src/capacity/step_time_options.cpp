#include "kvarena/capacity/step_time.hpp"

#include "base/out_of_memory.hpp"
#include "capacity/amount.hpp"

#include <new>

namespace kvarena::capacity {
namespace {

constexpr std::int64_t kStateBytes = 4;  // an element of a recurrent state: f32

bool is_head(const ParameterPart& part) noexcept {
  return part.place == PartPlace::last_stage || part.place == PartPlace::both_ends;
}

void add_experts(const ParameterPart& part, const StorageFormat& format, StepTimeOptions& o) {
  const std::int64_t each = part.each / part.num_experts;
  o.experts.push_back({.num_layers = part.num_layers,
                       .num_experts = part.num_experts,
                       .experts_per_token = part.experts_per_token,
                       .parameters_each = each,
                       .bytes_each = stored_bytes(format, each)});
}

// An embedding on its own is only looked up.
Status add_weights(const ModelSpec& model, StepTimeOptions& o) {
  const StorageFormat* format = find_storage_format(model.weights_format);
  const StorageFormat* experts = model.expert_weights_format.empty()
                                     ? format
                                     : find_storage_format(model.expert_weights_format);
  const StorageFormat* ends =
      model.ends_weights_format.empty() ? format : find_storage_format(model.ends_weights_format);
  if (model.parts.empty() || format == nullptr || experts == nullptr || ends == nullptr) {
    return unsupported(Resource::name);
  }
  for (const ParameterPart& part : model.parts) {
    if (part.place == PartPlace::first_stage) continue;
    if (part.num_experts > 0) {
      add_experts(part, *experts, o);
      continue;
    }
    std::int64_t& parameters = is_head(part) ? o.head_parameters : o.layer_parameters;
    std::int64_t& bytes = is_head(part) ? o.head_bytes : o.layer_bytes;
    parameters = plus(parameters, part.total());
    bytes = plus(bytes, stored_bytes(is_head(part) ? *ends : *format, part.total()));
  }
  // Every token would be multiplied by every expert.
  if (model.shape.moe.num_experts > 0 && o.experts.empty()) return unsupported(Resource::name);
  return {};
}

// Two operations for each element of a query and key, two for each of a value. Latent attention
// expands the latent for prompts, where its head dims are known, and works on it as it is for
// single tokens.
AttentionLayers layers_of(const CacheGroup& group, const TransformerShape& shape,
                          const StorageFormat& kv) {
  AttentionLayers layers;
  layers.kind = group.kind;
  layers.num_layers = group.num_layers + group.num_sharing_layers;
  layers.limit_tokens = group.limit_tokens;
  if (group.kind == CacheKind::recurrent) {
    layers.state_bytes_per_sequence = times(
        2, plus(times(kStateBytes, group.state_elements), stored_bytes(kv, group.conv_elements)));
    return layers;
  }
  const std::int64_t heads = shape.num_q_heads;
  if (group.kind == CacheKind::latent) {
    const MlaShape& mla = shape.mla;
    layers.decode_flops_per_pair =
        times(2, heads, std::int64_t{group.latent_dim} + group.latent_value_dim);
    layers.prompt_flops_per_pair =
        mla.nope_dim > 0 && mla.value_dim > 0
            ? times(2, heads, std::int64_t{mla.nope_dim} + mla.rope_dim + mla.value_dim)
            : layers.decode_flops_per_pair;
    layers.kv_bytes_per_token = stored_bytes(kv, std::int64_t{group.latent_dim} + group.index_dim);
    return layers;
  }
  const std::int64_t dims = std::int64_t{group.head_dim_k} + group.head_dim_v;
  layers.prompt_flops_per_pair = layers.decode_flops_per_pair = times(2, heads, dims);
  layers.kv_bytes_per_token = stored_bytes(kv, times(group.num_kv_heads, dims));
  return layers;
}

}  // namespace

Result<StepTimeOptions> step_time_options(const ModelSpec& model, const GpuSpec& gpu) try {
  if (Status status = validate(model); !status) return status;
  StepTimeOptions o;
  if (Status status = add_weights(model, o); !status) return status;
  const StorageFormat* kv = find_storage_format(model.kv_format);
  if (kv == nullptr) return unsupported(Resource::name);
  for (const CacheGroup& group : model.groups) {
    o.attention.push_back(layers_of(group, model.shape, *kv));
  }
  o.bandwidth_bytes_per_second = gpu.bandwidth_bytes_per_second;
  o.flops_per_second = gpu.bf16_flops_per_second;
  return o;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

}  // namespace kvarena::capacity
