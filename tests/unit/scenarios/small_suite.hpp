#pragma once

/// @file
/// Pressure scenarios scaled down to seconds: a model of two layers, and a device of 64 MiB.

#include "scenarios/suite.hpp"
#include "support/process_memory.hpp"

#include "kvarena/device/host_device.hpp"

#include <memory>
#include <string>
#include <string_view>
#include <variant>

namespace kvarena::test {

inline constexpr std::uint64_t kSmallDeviceBytes = std::uint64_t{64} << 20;

/// Two layers, two KV heads of 16, four query heads, a context of 256 tokens, 1 MiB of weights.
inline scenarios::ServedModel small_model() {
  scenarios::ServedModel model;
  model.name = "small";
  model.shape.num_layers = 2;
  model.shape.num_kv_heads = 2;
  model.shape.head_dim_k = 16;
  model.shape.head_dim_v = 16;
  model.shape.dtype = DType::f16;
  model.shape.block_size_tokens = 16;
  model.num_q_heads = 4;
  model.max_context_tokens = 256;
  model.weights_bytes = (1 << 20) + 77;
  return model;
}

/// A host device of so many bytes.
inline std::unique_ptr<HostDevice> small_host(std::uint64_t capacity_bytes = kSmallDeviceBytes) {
  return std::move(HostDevice::create({.capacity_bytes = capacity_bytes})).value();
}

/// Everything scaled down, on `device`.
inline scenarios::SuiteOptions small_suite(Device& device) {
  scenarios::SuiteOptions options;
  options.device = &device;
  options.model = small_model();
  if (device.kind() == DeviceKind::cuda) options.memory_bytes = std::int64_t{768} << 20;
  options.num_threads = 2;
  options.sizes.chunk_tokens = 48;
  options.sizes.decode_tokens = 40;
  options.sizes.overlong_tokens = 100;
  options.sizes.load_cycles = 3;
  options.sizes.sequence_cycles = 20;
  options.sizes.full_rounds = 2;
  options.sizes.appends = 4'000;
  options.sizes.generation_tokens = 64;
  options.sizes.generation_batch = 8;
  options.sizes.batch_blocks = 128;
  options.sizes.batch_tokens = 40;
  options.sizes.gpu_batch_tokens = 40;
  options.sizes.overload_sequences = 16;
  options.sizes.decode_steps = 4;
  options.sizes.weights_piece_bytes = 100'000;
  // Sanitizers keep what was freed.
  if (kSanitized) {
    options.sizes.resident_growth_bytes = options.sizes.leak_bytes = std::int64_t{1} << 40;
  }
  return options;
}

/// The report of one scenario.
inline scenarios::ScenarioReport report_of(scenarios::SuiteOptions options, std::string name) {
  options.scenarios = {std::move(name)};
  auto outcome = scenarios::run_suite(options, nullptr);
  if (outcome.report.scenarios.size() == 1) return outcome.report.scenarios.front();
  scenarios::ScenarioReport nothing;
  nothing.skipped = outcome.failure ? outcome.failure->why.found : "";
  return nothing;
}

/// What did not hold, for a failure message.
inline std::string failures_of(const scenarios::ScenarioReport& report) {
  std::string text = report.skipped;
  if (report.ended) text += report.ended->why.found + "\n";
  for (const auto& check : report.checks) {
    if (check.held) continue;
    text += check.what + ": expected " + check.expected + ", seen " + check.seen + "\n";
  }
  return text;
}

/// A whole figure of a report; -1 when there is none.
inline std::int64_t figure_of(const scenarios::ScenarioReport& report, std::string_view name) {
  for (const auto& figure : report.figures) {
    if (figure.name != name) continue;
    if (const auto* value = std::get_if<std::int64_t>(&figure.value)) return *value;
  }
  return -1;
}

/// The check of that name, or an empty one.
inline scenarios::Check check_of(const scenarios::ScenarioReport& report, std::string_view what) {
  for (const auto& check : report.checks) {
    if (check.what == what) return check;
  }
  return {};
}

}  // namespace kvarena::test
