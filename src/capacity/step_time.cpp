#include "kvarena/capacity/step_time.hpp"

#include "base/out_of_memory.hpp"
#include "base/range_checks.hpp"
#include "capacity/amount.hpp"
#include "capacity/share.hpp"

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <new>

namespace kvarena::capacity {
namespace {

// Numbers of tokens are exact up to 2^53.
// 1 + 2 + ... + n.
double triangle(double n) noexcept { return n * (n + 1.0) / 2.0; }

// The first `new_tokens` of a window see all before them; the others see `window` tokens.
double window_pairs(double context, double new_tokens, double window) noexcept {
  const double growing = std::clamp(window - context, 0.0, new_tokens);
  return growing * context + triangle(growing) + (new_tokens - growing) * window;
}

// Pairs of tokens 0 .. n - 1: whole chunks, and the rest of the last.
double chunked_pairs(std::int64_t n, std::int64_t chunk) noexcept {
  return static_cast<double>(n / chunk) * triangle(static_cast<double>(chunk)) +
         triangle(static_cast<double>(n % chunk));
}

/// Pairs of a new token and a token that it sees, itself included.
double attended_pairs(const AttentionLayers& layers, const StepTimeRow& row) noexcept {
  const auto context = static_cast<double>(row.context_tokens);
  const auto fresh = static_cast<double>(row.new_tokens);
  const std::int64_t limit = layers.limit_tokens;
  switch (layers.kind) {
    case CacheKind::window: return window_pairs(context, fresh, static_cast<double>(limit));
    case CacheKind::chunked:
      return chunked_pairs(row.context_tokens + row.new_tokens, limit) -
             chunked_pairs(row.context_tokens, limit);
    case CacheKind::cross: return fresh * static_cast<double>(limit);
    case CacheKind::recurrent: return 0.0;
    case CacheKind::full:
    case CacheKind::latent: break;
  }
  return fresh * context + triangle(fresh);
}

/// Tokens whose K and V a sequence's new tokens read: each once.
double attended_tokens(const AttentionLayers& layers, const StepTimeRow& row) noexcept {
  const std::int64_t end = row.context_tokens + row.new_tokens;
  const std::int64_t limit = layers.limit_tokens;
  switch (layers.kind) {
    case CacheKind::window: return static_cast<double>(std::min(end, limit + row.new_tokens - 1));
    case CacheKind::chunked: return static_cast<double>(end - row.context_tokens / limit * limit);
    case CacheKind::cross: return static_cast<double>(limit);
    case CacheKind::recurrent: return 0.0;
    case CacheKind::full:
    case CacheKind::latent: break;
  }
  return static_cast<double>(end);
}

double real(std::int64_t value) noexcept { return static_cast<double>(value); }

// base^exponent by squaring: std::pow is not the same to the last bit on every machine.
double power(double base, std::int64_t exponent) noexcept {
  double result = 1.0;
  for (; exponent > 0; exponent /= 2) {
    if (exponent % 2 == 1) result *= base;
    base *= base;
  }
  return result;
}

// Experts of a layer that at least one of `tokens` visits, on average.
double visited_experts(const ExpertLayers& layers, std::int64_t tokens) noexcept {
  const double missed = 1.0 - real(layers.experts_per_token) / real(layers.num_experts);
  return real(layers.num_experts) * (1.0 - power(missed, tokens));
}

// What a step does.
struct Work {
  double matrix_flops = 0.0;
  double attention_flops = 0.0;
  double bytes = 0.0;
};

// One multiply-add a parameter and token is two operations.
void add_matrices(const StepTimeOptions& o, std::int64_t tokens, std::int64_t sequences,
                  Work& work) noexcept {
  work.matrix_flops += 2.0 * real(o.layer_parameters) * real(tokens);
  work.matrix_flops += 2.0 * real(o.head_parameters) * real(sequences);
  work.bytes += real(o.layer_bytes) + real(o.head_bytes);
  for (const ExpertLayers& experts : o.experts) {
    const double layers = real(experts.num_layers);
    work.matrix_flops += layers * 2.0 * real(experts.parameters_each) *
                         real(experts.experts_per_token) * real(tokens);
    work.bytes += layers * real(experts.bytes_each) * visited_experts(experts, tokens);
  }
}

void add_attention(const StepTimeOptions& o, const StepTimeRow& row, Work& work) noexcept {
  for (const AttentionLayers& group : o.attention) {
    const double layers = real(group.num_layers);
    const double per_pair =
        real(row.new_tokens == 1 ? group.decode_flops_per_pair : group.prompt_flops_per_pair);
    work.attention_flops += layers * per_pair * attended_pairs(group, row);
    work.bytes += layers * (real(group.kv_bytes_per_token) * attended_tokens(group, row) +
                            real(group.state_bytes_per_sequence));
  }
}

bool any_negative(std::initializer_list<std::int64_t> values) noexcept {
  return std::ranges::any_of(values, [](std::int64_t value) { return value < 0; });
}

bool is_sound(const AttentionLayers& a) noexcept {
  const bool limited = a.kind == CacheKind::window || a.kind == CacheKind::chunked;
  return a.kind <= CacheKind::cross && a.limit_tokens >= (limited ? 1 : 0) &&
         !any_negative({a.num_layers, a.prompt_flops_per_pair, a.decode_flops_per_pair,
                        a.kv_bytes_per_token, a.state_bytes_per_sequence});
}

bool is_sound(const ExpertLayers& e) noexcept {
  return e.num_experts >= std::max<std::int64_t>(e.experts_per_token, 1) &&
         !any_negative({e.num_layers, e.experts_per_token, e.parameters_each, e.bytes_each});
}

Status check_efficiency(const StepEfficiency& efficiency) noexcept {
  for (const double share : {efficiency.matrices, efficiency.attention, efficiency.bandwidth}) {
    if (share > 0.0 && share <= 1.0) continue;
    const double thousandths = std::clamp(share * 1000.0, -1e6, 1e6);
    return invalid_option(Option::efficiency,
                          share == share ? static_cast<std::int64_t>(thousandths) : 0, 1, 1000);
  }
  return {};
}

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
    layers.kv_bytes_per_token =
        plus(stored_bytes(kv, group.latent_dim), index_row_bytes(group.index_dim));
    return layers;
  }
  const std::int64_t dims = std::int64_t{group.head_dim_k} + group.head_dim_v;
  layers.prompt_flops_per_pair = layers.decode_flops_per_pair = times(2, heads, dims);
  layers.kv_bytes_per_token = stored_bytes(kv, times(group.num_kv_heads, dims));
  return layers;
}

}  // namespace

std::int64_t StepTime::total_ns() const noexcept {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  const double longer = std::max(arithmetic_ns, traffic_ns);
  return longer < 9e18 ? static_cast<std::int64_t>(longer + 0.5) : kMost;
}

Result<StepTimeModel> StepTimeModel::create(const StepTimeOptions& o) try {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  if (Status s = check_each({
          {Option::bandwidth_bytes_per_second, o.bandwidth_bytes_per_second, 1, kMost},
          {Option::flops_per_second, o.flops_per_second, 1, kMost},
          {Option::layer_parameters, o.layer_parameters, 0, kMost},
          {Option::layer_bytes, o.layer_bytes, 0, kMost},
          {Option::head_parameters, o.head_parameters, 0, kMost},
          {Option::head_bytes, o.head_bytes, 0, kMost},
      });
      !s) {
    return s;
  }
  if (Status status = check_efficiency(o.efficiency); !status) return status;
  if (!std::ranges::all_of(o.attention, [](const auto& group) { return is_sound(group); })) {
    return invalid_option(Option::attention, -1, 0, kMost);
  }
  if (!std::ranges::all_of(o.experts, [](const auto& group) { return is_sound(group); })) {
    return invalid_option(Option::experts, -1, 0, kMost);
  }
  return StepTimeModel(o);
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

StepTime StepTimeModel::time_of(std::span<const StepTimeRow> rows) const noexcept {
  if (rows.empty()) return {};
  Work work;
  std::int64_t tokens = 0;
  for (const StepTimeRow& row : rows) {
    tokens += row.new_tokens;
    add_attention(options_, row, work);
  }
  add_matrices(options_, tokens, static_cast<std::int64_t>(rows.size()), work);
  const StepEfficiency& share = options_.efficiency;
  const double flops = real(options_.flops_per_second) / 1e9;
  const double bandwidth = real(options_.bandwidth_bytes_per_second) / 1e9;
  StepTime time;
  time.arithmetic_ns = work.matrix_flops / (flops * share.matrices) +
                       work.attention_flops / (flops * share.attention);
  time.traffic_ns = work.bytes / (bandwidth * share.bandwidth);
  return time;
}

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
