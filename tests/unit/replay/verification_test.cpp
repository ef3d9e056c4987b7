// Attention inside the replay, on every kind of device: sound runs verify, and every planted defect
// makes the run fail.

#include "support/devices.hpp"
#include "support/text_matchers.hpp"
#include "unit/replay/fault_planter.hpp"
#include "unit/replay/trace_text.hpp"

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

namespace kvarena::replay {
namespace {

using test::Arrival;
using test::plain_options;
using test::replay_of;
using test::report_of;

const std::vector<Arrival> kArrivals = {{0, 37, 9}, {0, 50, 12}, {200, 16, 7}, {900, 23, 20}};

ReplayOptions full_options(Device& device) {
  ReplayOptions options = plain_options();
  options.attention.device = &device;
  options.attention.mode = AttentionMode::full;
  options.attention.num_threads = 2;
  options.limits.max_running = 16;
  options.limits.max_batched_tokens = 64;
  options.pool.num_blocks = 64;
  return options;
}

/// A device of one kind, one for all tests of it.
Device& device_of(DeviceKind kind) {
  static const std::unique_ptr<Device> host = test::make_device(DeviceKind::host);
  static const std::unique_ptr<Device> cuda =
      test::why_no_gpu().empty() ? test::make_device(DeviceKind::cuda) : nullptr;
  return kind == DeviceKind::host ? *host : *cuda;
}

class Verification : public testing::TestWithParam<DeviceKind> {
 protected:
  void SetUp() override { KVARENA_NEEDS_DEVICE(GetParam()); }
  static ReplayOptions full_options() { return replay::full_options(device_of(GetParam())); }
};

INSTANTIATE_TEST_SUITE_P(Devices, Verification, testing::ValuesIn(test::device_kinds()),
                         test::kind_name);

TEST_P(Verification, FullComparesEveryByteAndRow) {
  const auto report = report_of(kArrivals, full_options());
  const std::int64_t tokens = 37 + 9 + 50 + 12 + 16 + 7 + 23 + 20;
  const std::int64_t bytes_per_token = 2 * 2 * (16 + 16) * 2;
  EXPECT_EQ(report.verification.kv_bytes_written, tokens * bytes_per_token);
  EXPECT_EQ(report.verification.kv_bytes_compared, tokens * bytes_per_token);
  EXPECT_EQ(report.verification.sequences_compared, 4);
  EXPECT_GE(report.verification.attention_rows, 2 * (9 + 12 + 7 + 20));
  EXPECT_LT(report.verification.max_error, report.verification.tolerance);
  EXPECT_EQ(report.verification.failures, 0);
  EXPECT_EQ(report.pool_bytes, 64 * 4096);
}

TEST_P(Verification, FullHoldsForEveryTypeBlockSizeAndSampling) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const std::int32_t block_size : {1, 7, 16, 32}) {
      for (const std::int32_t samples : {1, 3}) {
        ReplayOptions options = full_options();
        options.attention.shape.dtype = dtype;
        options.attention.shape.block_size_tokens = block_size;
        options.attention.shape.head_dim_v = 8;
        options.pool.num_blocks = 2048 / block_size;
        options.samples = samples;
        options.reserve = samples == 1 ? Reserve::prompt : Reserve::full;
        const auto report = report_of(kArrivals, options);
        EXPECT_GT(report.verification.attention_rows, 0);
      }
    }
  }
}

TEST_P(Verification, FullHoldsForShapesOfDecodeAttention) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const std::int32_t head_dim : {64, 96, 128, 256}) {
      ReplayOptions options = full_options();
      options.attention.shape.dtype = dtype;
      options.attention.shape.head_dim_k = options.attention.shape.head_dim_v = head_dim;
      options.attention.num_q_heads = 14;
      options.samples = 2;
      const auto report = report_of(kArrivals, options);
      EXPECT_GE(report.verification.attention_rows, 2 * 2 * (9 + 12 + 7 + 20));
      EXPECT_LT(report.verification.max_error, report.verification.tolerance)
          << name_of(dtype) << ' ' << head_dim;
    }
  }
}

TEST_P(Verification, HoldsForLongSequences) {
  // Several parts of exact attention, and chunks of prompts beside decodes.
  ReplayOptions options = full_options();
  options.attention.shape.head_dim_k = options.attention.shape.head_dim_v = 64;
  options.limits.max_batched_tokens = 512;
  options.pool.num_blocks = 256;
  const auto report = report_of({{0, 700, 4}, {0, 1300, 3}, {1, 511, 2}}, options);
  EXPECT_EQ(report.verification.kv_bytes_compared, report.verification.kv_bytes_written);
  EXPECT_GE(report.verification.attention_rows, 2 * (4 + 3 + 2));
}

TEST_P(Verification, AGpuMeasuresItsAttentionAndNothingElseDiffers) {
  for (const AttentionMode mode : {AttentionMode::sample, AttentionMode::full}) {
    ReplayOptions options = full_options();
    options.attention.mode = mode;
    options.attention.sample_every = 2;
    // Prompts of 10 and 20 in one step, then 3 steps of both and 2 of the second.
    const auto report = report_of({{0, 10, 3}, {0, 20, 5}}, options);
    const verify::MeasuredReport& measured = report.measured;
    const auto on_host = replay::full_options(device_of(DeviceKind::host));
    options.attention.device = on_host.attention.device;
    const auto expected = report_of({{0, 10, 3}, {0, 20, 5}}, options);
    EXPECT_EQ(report.verification.kv_bytes_compared, expected.verification.kv_bytes_compared);
    EXPECT_EQ(report.verification.attention_rows, expected.verification.attention_rows);
    EXPECT_EQ(report.virtual_us, expected.virtual_us);
    if (GetParam() == DeviceKind::host) {
      EXPECT_EQ(measured.device, "");
      EXPECT_EQ(measured.decode_steps, 0);
      continue;
    }
    EXPECT_TRUE(measured.device.starts_with("cuda:0 ")) << measured.device;
    EXPECT_EQ(measured.decode_steps, 5);
    EXPECT_EQ(measured.prompt_steps, 1);
    const std::int64_t tokens_read = 11 + 12 + 13 + 21 + 22 + 23 + 24 + 25;
    EXPECT_EQ(measured.decode_kv_bytes, tokens_read * 2 * 2 * (16 + 16) * 2);
    EXPECT_GT(measured.decode_us, 0.0);
    EXPECT_GT(measured.prompt_us, 0.0);
    EXPECT_GT(measured.decode_gb_per_s(), 0.0);
  }
}

TEST(VerificationOnAGpu, AnUnlimitedPoolGetsWhatFits) {
  KVARENA_NEEDS_GPU();
  ReplayOptions options = full_options(device_of(DeviceKind::cuda));
  options.attention.mode = AttentionMode::sample;
  options.pool.num_blocks = std::nullopt;
  options.limits.max_running = options.limits.max_batched_tokens = 1024;
  const auto memory = device_of(DeviceKind::cuda).memory_info();
  ASSERT_TRUE(memory);
  // Blocks of half a gigabyte; twice as many as the whole GPU holds, two to a request.
  options.attention.shape.num_layers = 1024;
  options.attention.shape.num_kv_heads = options.attention.num_q_heads = 64;
  options.attention.shape.head_dim_k = options.attention.shape.head_dim_v = 128;
  const std::int64_t block_bytes = std::int64_t{1024} * 64 * 256 * 2 * 16;
  const auto requests = static_cast<std::size_t>(memory->total_bytes) / block_bytes + 1;
  const auto report = report_of(std::vector<Arrival>(requests, {0, 16, 1}), options);
  EXPECT_EQ(report.worst_case_blocks, static_cast<std::int64_t>(2 * requests));
  EXPECT_LT(report.pool_bytes, static_cast<std::int64_t>(memory->free_bytes));
  EXPECT_GT(report.pool_bytes, static_cast<std::int64_t>(memory->free_bytes) / 2);
  EXPECT_GT(report.watermark_blocks, 0);
}

TEST_P(Verification, HoldsUnderPreemptionAndRecomputation) {
  for (const Reserve reserve : {Reserve::none, Reserve::prompt}) {
    for (const AttentionMode mode : {AttentionMode::full, AttentionMode::sample}) {
      ReplayOptions options = full_options();
      options.reserve = reserve;
      options.attention.mode = mode;
      options.attention.sample_every = 3;
      options.samples = 2;
      options.pool.num_blocks = 8;
      options.pool.watermark_blocks = 0;
      const auto report = report_of(kArrivals, options);
      EXPECT_GT(report.preemptions, 0);
      EXPECT_GT(report.verification.attention_rows, 0);
      EXPECT_EQ(report.verification.sequences_compared, 8);
    }
  }
}

TEST_P(Verification, SharedPrefixesHaveSharedContentOnlyWhereTheyAreShared) {
  // Two agent prompts that share 2 of 3 blocks: full verification re-derives both from their ids.
  const test::TempFile file(
      R"({"timestamp":0,"session":0,"turn":1,"input_length":40,"output_length":3,"hash_ids":[1,2]})"
      "\n"
      R"({"timestamp":0,"session":0,"turn":2,"input_length":60,"output_length":3,)"
      R"("hash_ids":[1,2,3]})");
  ReplayOptions options = full_options();
  options.trace.path = file.path();
  const auto outcome = run_replay(options);
  EXPECT_EQ(outcome.end, ReplayEnd::completed) << outcome.why.found;
}

struct Planted {
  const char* name;
  test::Fault fault;
  std::int32_t samples;
  const char* message;
};

class PlantedFault : public testing::TestWithParam<std::tuple<DeviceKind, Planted>> {
 protected:
  void SetUp() override { KVARENA_NEEDS_DEVICE(std::get<0>(GetParam())); }
};

TEST_P(PlantedFault, MakesTheRunFail) {
  const auto& [kind, planted] = GetParam();
  for (const std::int64_t after : {0, 2}) {
    ReplayOptions options = full_options(device_of(kind));
    options.samples = planted.samples;
    test::FaultPlanter planter(planted.fault, after);
    const auto outcome = replay_of(kArrivals, options, &planter);
    EXPECT_EQ(outcome.end, ReplayEnd::check_failed) << outcome.why.found;
    EXPECT_HAS(outcome.why.found, planted.message);
    EXPECT_EQ(outcome.why.found.find("the host finds nothing"), std::string::npos)
        << outcome.why.found;
    ASSERT_TRUE(outcome.has_report);
    EXPECT_EQ(replay_of(kArrivals, options).end, ReplayEnd::completed);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, PlantedFault,
    testing::Combine(
        testing::ValuesIn(test::device_kinds()),
        testing::Values(Planted{"flip_byte", test::Fault::flip_byte, 1, "K of request"},
                        Planted{"swap_entries", test::Fault::swap_entries, 1, "request"},
                        Planted{"drop_copy", test::Fault::drop_copy, 3, "request"},
                        Planted{"lose_release", test::Fault::lose_release, 1, "does not balance"})),
    [](const auto& tested) {
      const bool host = std::get<0>(tested.param) == DeviceKind::host;
      return std::string(host ? "host_" : "cuda_") + std::get<1>(tested.param).name;
    });

TEST_P(Verification, SamplingFindsWhatTouchesAllLayers) {
  for (const test::Fault fault : {test::Fault::swap_entries, test::Fault::drop_copy}) {
    ReplayOptions options = full_options();
    options.attention.mode = AttentionMode::sample;
    options.samples = 3;
    test::FaultPlanter planter(fault);
    EXPECT_EQ(replay_of(kArrivals, options, &planter).end, ReplayEnd::check_failed);
  }
}

TEST_P(Verification, SwappedFullBlocksAreFoundByTheirBytes) {
  // Attention over whole blocks does not care for their order; the bytes do.
  ReplayOptions options = full_options();
  test::FaultPlanter planter(test::Fault::swap_entries);
  const auto outcome = replay_of({{0, 64, 1}}, options, &planter);
  EXPECT_EQ(outcome.end, ReplayEnd::check_failed);
  EXPECT_HAS(outcome.why.found, "K of request 0 sample 0, token 0");
}

TEST_P(Verification, RefusesWhatCannotBeComputed) {
  ReplayOptions options = full_options();
  options.attention.shape.dtype = DType::int8;
  EXPECT_EQ(replay_of(kArrivals, options).end, ReplayEnd::bad_options);
  options = full_options();
  options.limits.max_batched_tokens = 0;
  EXPECT_EQ(replay_of(kArrivals, options).end, ReplayEnd::bad_options);
  options = full_options();
  options.attention.device = nullptr;
  EXPECT_EQ(replay_of(kArrivals, options).end, ReplayEnd::bad_options);
  options = full_options();
  options.attention.shape.num_layers = 0;
  EXPECT_EQ(replay_of(kArrivals, options).end, ReplayEnd::bad_options);
}

TEST_P(Verification, APoolPastTheMachineDoesNotFit) {
  ReplayOptions options = full_options();
  options.pool.num_blocks = std::int64_t{1} << 28;
  options.attention.shape.num_layers = 4096;
  options.attention.shape.num_kv_heads = 64;
  options.attention.shape.head_dim_k = options.attention.shape.head_dim_v = 128;
  const auto outcome = replay_of(kArrivals, options);
  EXPECT_TRUE(outcome.end == ReplayEnd::does_not_fit || outcome.end == ReplayEnd::bad_options);
  EXPECT_FALSE(outcome.why.found.empty());
}

}  // namespace
}  // namespace kvarena::replay
