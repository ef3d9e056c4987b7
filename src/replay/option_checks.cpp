#include "replay/replay_options.hpp"

#include "replay/pool_units.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace kvarena::replay {

ReplayFailure contradiction(std::string happened, std::string expected, std::string advice) {
  return {
      ReplayEnd::bad_options,
      {.found = std::move(happened), .expected = std::move(expected), .advice = std::move(advice)}};
}

namespace {

constexpr std::int64_t kMaxSamples = 256;

MaybeFailure check_linear(const ReplayOptions& options) {
  if (options.clock != ClockKind::linear) return std::nullopt;
  if (options.reserve != Reserve::full) {
    return contradiction(
        "the linear clock with less than everything reserved",
        "full reservation: on that clock a request holds its final length throughout",
        "reserve full, or use the step clock");
  }
  if (options.samples != 1 || options.attention.mode != AttentionMode::off) {
    return contradiction("the linear clock with samples or attention",
                         "the step clock: only it computes tokens one after another",
                         "use the step clock");
  }
  return std::nullopt;
}

MaybeFailure check_roofline(const ReplayOptions& options) {
  if (options.roofline.has_value() == (options.clock == ClockKind::roofline)) return std::nullopt;
  return contradiction(fmt::format("the {} clock {} the numbers of a GPU", name_of(options.clock),
                                   options.roofline ? "with" : "without"),
                       "the roofline clock with them, any other without",
                       "use the roofline clock with a GPU, or the step clock without");
}

// A block that forks share does not become free when one of them gives it up.
MaybeFailure check_keeping(const ReplayOptions& options) {
  const bool preempts = options.clock != ClockKind::linear && options.samples == 1;
  if (!options.keep_preempted || preempts) return std::nullopt;
  return contradiction("keeping preempted blocks with the linear clock or samples",
                       "an engine that preempts, and one sequence a request",
                       "drop what is preempted");
}

MaybeFailure check_batch(const ReplayOptions& options) {
  if (options.clock == ClockKind::linear) return std::nullopt;
  const ReplayLimits& limits = options.limits;
  if (limits.max_running > 0 && options.samples > limits.max_running) {
    return contradiction(fmt::format("{} samples a request, {} running sequences", options.samples,
                                     limits.max_running),
                         "room for all samples of one request",
                         "raise the running sequences or lower the samples");
  }
  if (limits.max_batched_tokens == 0) {
    if (options.attention.mode == AttentionMode::off) return std::nullopt;
    return contradiction("attention with an unlimited number of tokens in a step",
                         "a limit, from which its memory is sized",
                         "limit the batched tokens, for example to 2048");
  }
  if (limits.max_running > 0 && limits.max_running <= limits.max_batched_tokens)
    return std::nullopt;
  return contradiction(
      limits.max_running == 0
          ? fmt::format("unlimited running sequences, {} tokens a step", limits.max_batched_tokens)
          : fmt::format("{} running sequences, {} tokens a step", limits.max_running,
                        limits.max_batched_tokens),
      "a token of each running sequence in every step",
      "raise the batched tokens (0: unlimited) or lower the running sequences");
}

MaybeFailure check_attention(const ReplayOptions& options) {
  if (options.attention.mode == AttentionMode::off) return std::nullopt;
  if (options.attention.device == nullptr) {
    return contradiction("attention without a device", "a device to compute it on",
                         "open a device");
  }
  const DType dtype = options.attention.shape.dtype;
  if (dtype != DType::f32 && dtype != DType::f16 && dtype != DType::bf16) {
    return contradiction(fmt::format("attention over KV of type {}", name_of(dtype)),
                         "f32, f16 or bf16: what content is made in",
                         "use the type bf16, or turn attention off");
  }
  if (!options.groups.list.empty()) return std::nullopt;
  auto layout = KvLayout::create(options.attention.shape);
  if (layout) return std::nullopt;
  return contradiction(fmt::format("the model shape: {}", describe(layout.status())), "",
                       "change the model or the shape's numbers");
}

MaybeFailure check_prefix_cache(const ReplayOptions& options) {
  if (!options.prefix_cache && !options.trace.salt_column.empty()) {
    return contradiction("a salt column without a prefix cache", "salts only part cached blocks",
                         "turn the prefix cache on, or leave the salt column out");
  }
  if (options.policy == EvictionPolicy::priority) {
    return contradiction("eviction by priority", "a policy that a trace has the facts for",
                         "choose tail-first, head-first, fifo or lfu");
  }
  return std::nullopt;
}

// What a pool with groups does not do, and what no trace has.
MaybeFailure check_groups(const ReplayOptions& options) {
  if (options.groups.list.empty()) return std::nullopt;
  const char* const kinds = "a model whose layers keep different data, or only some tokens";
  for (const LayerGroup& group : options.groups.list) {
    if (group.kind != PagedKind::cross) continue;
    return contradiction("a model with an encoder", "a decoder: a trace has no encoder's tokens",
                         "choose another model");
  }
  const auto keeps_all = [](const LayerGroup& group) { return group.kind == PagedKind::full; };
  if (options.prefix_cache && std::ranges::none_of(options.groups.list, keeps_all)) {
    return contradiction("a prefix cache with a model of which no layer keeps all tokens",
                         "layers that keep K and V of all tokens", "leave the prefix cache out");
  }
  if (options.keep_preempted) {
    return contradiction(fmt::format("keeping preempted blocks with {}", kinds),
                         "layers that keep K and V of all tokens", "drop what is preempted");
  }
  if (options.samples > 1 && options.reserve == Reserve::full) {
    return contradiction(fmt::format("samples with everything reserved and {}", kinds),
                         "a reservation that forks can share", "reserve prompt or none");
  }
  const auto units = PoolUnits::create(options);
  if (units) return std::nullopt;
  return contradiction(fmt::format("the model's groups: {}", describe(units.status())), "",
                       "give more layers or larger blocks, or change the model");
}

}  // namespace

MaybeFailure check_options(const ReplayOptions& options) {
  if (options.samples < 1 || options.samples > kMaxSamples) {
    return contradiction(fmt::format("{} samples", options.samples),
                         fmt::format("1 .. {}", kMaxSamples), "change the samples");
  }
  if (auto failure = check_linear(options)) return failure;
  if (auto failure = check_roofline(options)) return failure;
  if (auto failure = check_keeping(options)) return failure;
  if (auto failure = check_batch(options)) return failure;
  if (auto failure = check_prefix_cache(options)) return failure;
  if (auto failure = check_groups(options)) return failure;
  return check_attention(options);
}

}  // namespace kvarena::replay
