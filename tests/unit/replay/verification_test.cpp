// Attention inside the replay: sound runs verify, and every planted defect makes the run fail.

#include "replay/token_content.hpp"
#include "unit/replay/trace_text.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

namespace kvarena::replay {
namespace {

using test::Arrival;
using test::plain_options;
using test::replay_of;
using test::report_of;

const std::vector<Arrival> kArrivals = {{0, 37, 9}, {0, 50, 12}, {200, 16, 7}, {900, 23, 20}};

ReplayOptions full_options() {
  ReplayOptions options = plain_options();
  options.attention.mode = AttentionMode::full;
  options.attention.num_threads = 2;
  options.limits.max_running = 16;
  options.limits.max_batched_tokens = 64;
  options.pool.num_blocks = 64;
  return options;
}

TEST(Verification, FullComparesEveryByteAndRow) {
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

TEST(Verification, FullHoldsForEveryTypeBlockSizeAndSampling) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const std::int32_t block_size : {1, 7, 16, 32}) {
      for (const std::int32_t samples : {1, 3}) {
        ReplayOptions options = full_options();
        options.attention.shape.dtype = dtype;
        options.attention.shape.block_size_tokens = block_size;
        options.attention.shape.head_dim_v = 8;
        options.pool.num_blocks = 2048 / block_size;
        options.samples = samples;
        const auto report = report_of(kArrivals, options);
        EXPECT_GT(report.verification.attention_rows, 0);
      }
    }
  }
}

TEST(Verification, HoldsUnderPreemptionAndRecomputation) {
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

TEST(Verification, SharedPrefixesHaveSharedContentOnlyWhereTheyAreShared) {
  // Two agent prompts that share 2 of 3 blocks: full verification re-derives both from their ids.
  const test::TempFile file(
      R"({"timestamp":0,"session":0,"turn":1,"input_length":40,"output_length":3,"hash_ids":[1,2]})"
      "\n"
      R"({"timestamp":0,"session":0,"turn":2,"input_length":60,"output_length":3,)"
      R"("hash_ids":[1,2,3]})");
  ReplayOptions options = full_options();
  options.trace.path = file.path();
  const auto outcome = run_replay(options);
  EXPECT_EQ(outcome.end, ReplayEnd::completed) << outcome.happened;
}

struct Planted {
  const char* name;
  Fault fault;
  std::int32_t samples;
  const char* message;
};

class PlantedFault : public testing::TestWithParam<Planted> {};

TEST_P(PlantedFault, MakesTheRunFail) {
  for (const std::int64_t after : {0, 2}) {
    ReplayOptions options = full_options();
    options.samples = GetParam().samples;
    options.attention.fault = GetParam().fault;
    options.attention.fault_after = after;
    const auto outcome = replay_of(kArrivals, options);
    EXPECT_EQ(outcome.end, ReplayEnd::check_failed) << outcome.happened;
    EXPECT_NE(outcome.happened.find(GetParam().message), std::string::npos) << outcome.happened;
    ASSERT_TRUE(outcome.has_report);
    options.attention.fault = Fault::none;
    EXPECT_EQ(replay_of(kArrivals, options).end, ReplayEnd::completed);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, PlantedFault,
                         testing::Values(Planted{"flip_byte", Fault::flip_byte, 1, "request"},
                                         Planted{"swap_entries", Fault::swap_entries, 1, "request"},
                                         Planted{"drop_copy", Fault::drop_copy, 3, "request"},
                                         Planted{"lose_release", Fault::lose_release, 1,
                                                 "does not balance"}),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST(Verification, SamplingFindsWhatTouchesAllLayers) {
  for (const Fault fault : {Fault::swap_entries, Fault::drop_copy}) {
    ReplayOptions options = full_options();
    options.attention.mode = AttentionMode::sample;
    options.attention.fault = fault;
    options.samples = 3;
    EXPECT_EQ(replay_of(kArrivals, options).end, ReplayEnd::check_failed);
  }
}

TEST(Verification, SwappedFullBlocksAreFoundByTheirBytes) {
  // Attention over whole blocks does not care for their order; the bytes do.
  ReplayOptions options = full_options();
  options.attention.fault = Fault::swap_entries;
  const auto outcome = replay_of({{0, 64, 1}}, options);
  EXPECT_EQ(outcome.end, ReplayEnd::check_failed);
  EXPECT_NE(outcome.happened.find("K of request 0 sample 0, token 0"), std::string::npos)
      << outcome.happened;
}

TEST(Verification, RefusesWhatCannotBeComputed) {
  ReplayOptions options = full_options();
  options.attention.shape.dtype = DType::int8;
  EXPECT_EQ(replay_of(kArrivals, options).end, ReplayEnd::bad_options);
  options = full_options();
  options.limits.max_batched_tokens = 0;
  EXPECT_EQ(replay_of(kArrivals, options).end, ReplayEnd::bad_options);
  options = full_options();
  options.attention.shape.num_layers = 0;
  EXPECT_EQ(replay_of(kArrivals, options).end, ReplayEnd::bad_options);
}

TEST(Verification, APoolPastTheMachineDoesNotFit) {
  ReplayOptions options = full_options();
  options.pool.num_blocks = std::int64_t{1} << 28;
  options.attention.shape.num_layers = 4096;
  options.attention.shape.num_kv_heads = 64;
  options.attention.shape.head_dim_k = options.attention.shape.head_dim_v = 128;
  const auto outcome = replay_of(kArrivals, options);
  EXPECT_TRUE(outcome.end == ReplayEnd::does_not_fit || outcome.end == ReplayEnd::bad_options);
  EXPECT_FALSE(outcome.happened.empty());
}

// ---- the content itself ------------------------------------------------------------------------

std::shared_ptr<TraceRequest> request_with(std::vector<std::int64_t> ids, std::int64_t index) {
  auto request = std::make_shared<TraceRequest>();
  request->index = index;
  request->input_tokens = 40;
  request->output_tokens = 8;
  request->prefix_block_tokens = 16;
  request->prefix_blocks = std::move(ids);
  return request;
}

std::vector<std::uint64_t> hashes_of(TokenStream stream, int count) {
  std::vector<std::uint64_t> hashes;
  for (int i = 0; i < count; ++i) hashes.push_back(stream.next());
  return hashes;
}

TEST(TokenContent, PrefixDecidesAndNothingElse) {
  const auto a = hashes_of({request_with({7, 8}, 0), 0}, 48);
  const auto same = hashes_of({request_with({7, 8}, 0), 0}, 48);
  const auto other = hashes_of({request_with({7, 9}, 1), 0}, 48);
  EXPECT_EQ(a, same);
  for (std::size_t t = 0; t < 48; ++t) EXPECT_EQ(a[t] == other[t], t < 16) << t;
  const auto tail = hashes_of({request_with({7, 8}, 1), 0}, 48);
  for (std::size_t t = 0; t < 48; ++t) EXPECT_EQ(a[t] == tail[t], t < 32) << t;
  const auto sample = hashes_of({request_with({7, 8}, 0), 1}, 48);
  for (std::size_t t = 0; t < 48; ++t) EXPECT_EQ(a[t] == sample[t], t < 40) << t;
}

TEST(TokenContent, AForkContinuesAsItsOwnSample) {
  const auto request = request_with({7, 8}, 3);
  TokenStream parent(request, 0);
  for (int t = 0; t < 40; ++t) static_cast<void>(parent.next());
  TokenStream child = parent.as_sample(2);
  const auto alone = hashes_of({request, 2}, 48);
  for (std::size_t t = 40; t < 48; ++t) EXPECT_EQ(child.next(), alone[t]);
}

TEST(TokenContent, RowsDifferByLayerKindHeadAndPrefix) {
  std::set<std::vector<std::byte>> rows;
  int made = 0;
  for (const std::uint64_t hash : {1ULL, 2ULL, 1ULL << 40}) {
    for (std::int32_t layer = 0; layer < 3; ++layer) {
      for (const RowKind kind : {RowKind::key, RowKind::value}) {
        for (std::int32_t head = 0; head < 5; ++head, ++made) {
          std::vector<std::byte> row(32);
          fill_row(DType::bf16, hash, layer, kind, head, 16, row.data());
          rows.insert(row);
        }
      }
    }
  }
  EXPECT_EQ(rows.size(), static_cast<std::size_t>(made));
}

template <class Element, class ToFloat>
void expect_in_range(DType dtype, ToFloat to_float) {
  for (const int count : {1, 3, 64, 127}) {
    for (const RowKind kind : {RowKind::key, RowKind::value, RowKind::query}) {
      std::vector<std::byte> row(sizeof(Element) * static_cast<std::size_t>(count) + 4,
                                 std::byte{0xee});
      fill_row(dtype, 99, 1, kind, 2, count, row.data());
      for (int i = 0; i < count; ++i) {
        Element bits{};
        std::memcpy(&bits, row.data() + sizeof(Element) * static_cast<std::size_t>(i), sizeof bits);
        const float magnitude = std::abs(to_float(bits));
        EXPECT_GE(magnitude, kind == RowKind::query ? 2.0F : 0.125F);
        EXPECT_LT(magnitude, kind == RowKind::query ? 8.0F : 0.5F);
      }
      for (std::size_t i = sizeof(Element) * static_cast<std::size_t>(count); i < row.size(); ++i) {
        EXPECT_EQ(row[i], std::byte{0xee}) << "written past the row";
      }
    }
  }
}

TEST(TokenContent, ElementsAreFiniteAndBounded) {
  expect_in_range<float>(DType::f32, [](float x) { return x; });
  expect_in_range<std::uint16_t>(DType::bf16, [](std::uint16_t bits) {
    const std::uint32_t wide = std::uint32_t{bits} << 16;
    float value = 0.0F;
    std::memcpy(&value, &wide, sizeof value);
    return value;
  });
  expect_in_range<_Float16>(DType::f16, [](_Float16 x) { return static_cast<float>(x); });
}

}  // namespace
}  // namespace kvarena::replay
