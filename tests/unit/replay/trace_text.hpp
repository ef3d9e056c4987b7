#pragma once

/// @file
/// Small traces as text, and replays of them.

#include "replay/replay.hpp"
#include "support/test_files.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace kvarena::test {

/// One request of a test trace.
struct Arrival {
  std::int64_t ms;
  std::int64_t input;
  std::int64_t output;
};

/// A Mooncake trace whose requests share no block.
inline std::string mooncake_trace(const std::vector<Arrival>& arrivals) {
  std::string text;
  std::int64_t id = 0;
  for (const Arrival& a : arrivals) {
    text += "{\"timestamp\": " + std::to_string(a.ms) +
            ", \"input_length\": " + std::to_string(a.input) +
            ", \"output_length\": " + std::to_string(a.output) + ", \"hash_ids\": [";
    for (std::int64_t i = 0; i < (a.input + 511) / 512; ++i) {
      text += (i == 0 ? "" : ", ") + std::to_string(id++);
    }
    text += "]}\n";
  }
  return text;
}

/// Options with an unlimited pool of blocks of 16 and costs of 1 ms a prompt token, 1 s a decode
/// step.
inline replay::ReplayOptions plain_options() {
  replay::ReplayOptions options;
  options.costs = {1'000'000, 1'000'000'000, 0};
  options.attention.shape.num_layers = 2;
  options.attention.shape.num_kv_heads = 2;
  options.attention.shape.head_dim_k = options.attention.shape.head_dim_v = 16;
  options.attention.shape.dtype = DType::bf16;
  options.attention.shape.block_size_tokens = 16;
  options.attention.num_q_heads = 4;
  options.limits.max_batched_tokens = 2048;
  return options;
}

/// A small model on a slow machine: 1 ms to read the weights, 10 us of arithmetic a token, 1 us to
/// read a token's KV.
inline capacity::StepTimeModel small_model() {
  capacity::StepTimeOptions o;
  o.layer_parameters = 50'000;
  o.layer_bytes = 1'000'000;
  o.attention = {{.num_layers = 2, .kv_bytes_per_token = 500}};
  o.bandwidth_bytes_per_second = 1'000'000'000;
  o.flops_per_second = 10'000'000'000;
  o.efficiency = {.matrices = 1.0, .attention = 1.0, .bandwidth = 1.0};
  return *capacity::StepTimeModel::create(o);
}

/// Replays `arrivals`.
inline replay::ReplayOutcome replay_of(const std::vector<Arrival>& arrivals,
                                       replay::ReplayOptions options,
                                       replay::ReplayObserver* observer = nullptr) {
  const TempFile file(mooncake_trace(arrivals));
  options.trace.path = file.path();
  return run_replay(options, nullptr, observer);
}

/// Replays and expects that every check holds.
inline replay::ReplayReport report_of(const std::vector<Arrival>& arrivals,
                                      const replay::ReplayOptions& options) {
  const auto outcome = replay_of(arrivals, options);
  EXPECT_EQ(outcome.end, replay::ReplayEnd::completed) << outcome.why.found;
  EXPECT_TRUE(outcome.has_report);
  EXPECT_TRUE(outcome.report.balanced);
  EXPECT_EQ(outcome.report.account.free, outcome.report.account.num_blocks);
  return outcome.report;
}

}  // namespace kvarena::test
