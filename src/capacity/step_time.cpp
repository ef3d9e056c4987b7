#include "kvarena/capacity/step_time.hpp"

#include "base/out_of_memory.hpp"
#include "base/range_checks.hpp"
#include "capacity/attention_reach.hpp"

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <new>

namespace kvarena::capacity {
namespace {

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

}  // namespace kvarena::capacity
