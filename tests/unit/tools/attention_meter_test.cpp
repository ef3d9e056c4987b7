// The arithmetic behind a measured row, and the rows that are known.

#include "tools/attention_meter/attention_meter.hpp"
#include "tools/attention_meter/comparison.hpp"
#include "tools/attention_meter/host_batch.hpp"
#include "tools/attention_meter/known_rows.hpp"
#include "tools/attention_meter/series.hpp"
#include "tools/attention_meter/work_rows.hpp"

#include "kvarena/device/host_device.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <set>
#include <string>
#include <vector>

namespace kvarena::meter {
namespace {

AttentionProblem llama(std::vector<std::int32_t> lengths) {
  AttentionProblem problem;
  problem.lengths = std::move(lengths);
  return problem;
}

TEST(AttentionProblem, BytesThatACallReads) {
  AttentionProblem problem = llama(std::vector<std::int32_t>(64, 1024));
  EXPECT_EQ(block_bytes(problem.shape), 65536);
  EXPECT_EQ(kv_bytes(problem), 268435456);
  problem.lengths = {1, 17};
  EXPECT_EQ(num_blocks(problem), 3);
  EXPECT_EQ(kv_bytes(problem), 18 * 4096);
  problem.lengths = {1, 1000};
  problem.shape.window_tokens = 128;
  EXPECT_EQ(kv_bytes(problem), 129 * 4096);
  problem.shape.q_len = 4;
  problem.lengths = {4, 1000};
  EXPECT_EQ(kv_bytes(problem), (4 + 131) * 4096) << "the oldest query token sees three more";
  problem.shape.dtype = DType::fp8_e4m3;
  EXPECT_EQ(kv_bytes(problem), (4 + 131) * 2048);
  EXPECT_EQ(problem.shape.q_dtype(), DType::bf16);
}

TEST(AttentionProblem, RotationCoversTheBytesAskedForWithinItsLimits) {
  const AttentionProblem small = llama({1024});  // 4.2 MB
  EXPECT_EQ(rotation_of(small, 1'000'000'000, 2).num_tables, 64);
  EXPECT_EQ(rotation_of(small, 1'000'000'000, 2).num_calls, 64);
  const AttentionProblem middle = llama(std::vector<std::int32_t>(64, 1024));  // 268 MB
  EXPECT_EQ(rotation_of(middle, 1'000'000'000, 1).num_tables, 4);
  EXPECT_EQ(rotation_of(middle, 1'000'000'000, 1).num_calls, 4);
  EXPECT_EQ(rotation_of(middle, 1'000'000'000, 2).num_calls, 8);
  const AttentionProblem large = llama(std::vector<std::int32_t>(256, 4096));  // 4.3 GB
  EXPECT_EQ(rotation_of(large, 1'000'000'000, 2).num_tables, 1);
  EXPECT_EQ(rotation_of(large, 1'000'000'000, 2).num_calls, 1);
  EXPECT_GE(pool_bytes(middle, 1'000'000'000), 4 * 268435456LL);
}

TEST(AttentionProblem, OperationsOfTheTokensThatAreSeen) {
  AttentionProblem problem = llama({100, 7});
  EXPECT_EQ(flops(problem), 4.0 * 128 * 32 * 107);
  problem.query_tokens = {3, 7};
  EXPECT_EQ(num_query_tokens(problem), 10);
  EXPECT_EQ(most_columns(problem), 28);
  EXPECT_EQ(flops(problem), 4.0 * 128 * 32 * (98 + 99 + 100 + 28));
  EXPECT_EQ(tokens_seen(problem, 0, 2), 100);
  problem.shape.window_tokens = 5;
  EXPECT_EQ(flops(problem), 4.0 * 128 * 32 * (3 * 5 + 1 + 2 + 3 + 4 + 3 * 5));
  EXPECT_EQ(kv_bytes(problem), (7 + 7) * 4096);
  EXPECT_EQ(q_offsets(problem), (std::vector<std::int64_t>{0, 3, 10}));
  EXPECT_EQ(row_offsets(problem, 9), (std::vector<std::int64_t>{0, 9}));
}

TEST(AttentionProblem, APromptOfAsMuchWork) {
  EXPECT_EQ(prompt_of_equal_work(4096, 0), 4096);
  EXPECT_EQ(prompt_of_equal_work(1, 0), 16);
  EXPECT_EQ(prompt_of_equal_work(512, 8192), 2944);
  AttentionProblem chunk = llama({2048 + 32768});
  chunk.shape.q_len = 2048;
  chunk = with_comparison(chunk);
  ASSERT_EQ(chunk.beside.size(), 1U);
  EXPECT_EQ(chunk.beside[0].lengths, chunk.beside[0].query_tokens);
  EXPECT_NEAR(flops(chunk.beside[0]) / flops(chunk), 1.0, 0.003);
}

TEST(AttentionProblem, TablesOfSharedBlocks) {
  AttentionProblem problem = llama({49, 64, 33, 50});  // 4, 4, 3, 4 blocks, 2 of them shared
  problem.shared_tokens = 32;
  problem.num_groups = 2;
  EXPECT_EQ(num_blocks(problem), 2 * 2 + 2 + 2 + 1 + 2);
  EXPECT_EQ(kv_bytes(problem), (2 * 32 + 17 + 32 + 1 + 18) * 4096);
  EXPECT_EQ(flops(problem), 4.0 * 128 * 32 * (49 + 64 + 33 + 50));
  std::vector<BlockId> ids;
  for (std::int32_t i = 0; i < 22; ++i) ids.emplace_back(i);
  const auto tables = block_tables(problem, 2, 4, ids, kNoBlock);
  std::vector<std::int32_t> values;
  for (const BlockId id : tables) values.push_back(id.value);
  EXPECT_EQ(values, (std::vector<std::int32_t>{0,  1,  4,  5,  2,  3,  6,  7,  0,  1,  8,
                                               -1, 2,  3,  9,  10, 11, 12, 15, 16, 13, 14,
                                               17, 18, 11, 12, 19, -1, 13, 14, 20, 21}));
}

TEST(WorkRows, HaveUniqueNamesAndComparisonsOfAsMuchWork) {
  std::set<std::string> names;
  for (const auto& rows : {prefill_rows(), columns_rows(), shared_prefix_rows()}) {
    for (const AttentionProblem& row : rows) {
      EXPECT_TRUE(names.insert(row.name).second) << row.name;
      EXPECT_TRUE(row.query_tokens.empty() || row.query_tokens.size() == row.lengths.size());
      for (std::size_t i = 0; i < row.lengths.size(); ++i) {
        EXPECT_LE(row.queries_of(i), row.lengths[i]) << row.name;
      }
      double beside = 0.0;
      for (const AttentionProblem& other : row.beside) beside += flops(other);
      EXPECT_NEAR(row.beside.empty() ? 1.0 : beside / flops(row), 1.0, 0.003) << row.name;
    }
  }
  for (const AttentionProblem& row : columns_rows()) {
    EXPECT_TRUE(row.beside.empty()) << row.name;
    EXPECT_LE(most_columns(row), kMostColumns) << row.name;
  }
  EXPECT_EQ(find_known_row(columns_rows().front()), nullptr);
}

TEST(Series, SlowCallsAreFewer) {
  const TimeLimits limits{.round_us = 8000, .all_us = 600'000};
  EXPECT_EQ(calls_within(limits, 64, 20.0), 64);
  EXPECT_EQ(calls_within(limits, 64, 1000.0), 8);
  EXPECT_EQ(calls_within(limits, 64, 1e6), 1);
  EXPECT_EQ(rounds_within(limits, 31, 8000.0), 31);
  EXPECT_EQ(rounds_within(limits, 31, 60'000.0), 10);
  EXPECT_EQ(rounds_within(limits, 31, 1e6), kFewestRounds);
  EXPECT_EQ(rounds_within(limits, 3, 1e6), 3);
  std::vector<int> values = {5, 1, 9};
  EXPECT_EQ(median(values), 5);
}

TEST(KnownRows, AreThoseOfTheReports) {
  EXPECT_EQ(known_rows().size(), 24U);
  EXPECT_EQ(skewed_lengths().size(), 64U);
  EXPECT_EQ(std::accumulate(skewed_lengths().begin(), skewed_lengths().end(), 0), 129328);
  std::set<std::string_view> names;
  for (const KnownRow& row : known_rows()) {
    const Preset* preset = find_preset(row.preset);
    ASSERT_NE(preset, nullptr) << row.name;
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    AttentionProblem problem;
    problem.shape.num_q_heads = preset->num_q_heads;
    problem.shape.num_kv_heads = preset->num_kv_heads;
    problem.shape.head_dim = preset->head_dim;
    problem.shape.dtype = row.dtype;
    problem.lengths = lengths_of(row);
    EXPECT_EQ(find_known_row(problem), &row) << row.name;
    const double gb_per_s = static_cast<double>(kv_bytes(problem)) / row.floor_us / 1e3;
    EXPECT_GT(gb_per_s, 1000.0) << row.name << ": the floor belongs to another row";
    EXPECT_LT(gb_per_s, 4800.0) << row.name << ": faster than the card reads";
    EXPECT_GT(row.public_us / row.floor_us, row.target_ratio) << row.name;
    problem.shape.block_size = 32;
    EXPECT_EQ(find_known_row(problem), nullptr);
  }
}

TEST(Comparison, TheLimitIsTwiceTheRounding) {
  Comparison rounded(DType::bf16);
  Comparison wrong(DType::bf16);
  Comparison poisoned(DType::bf16);
  for (int i = 0; i < 1000; ++i) {
    const double exact = 1.0 + i / 1000.0;
    const auto near = bf16_from_f32(static_cast<float>(exact));
    const auto off = bf16_from_f32(static_cast<float>(exact * (i % 2 == 0 ? 1.01 : 0.99)));
    const std::uint16_t nan = 0xffff;
    rounded.add(exact, &near, 0);
    wrong.add(exact, &off, 0);
    poisoned.add(exact, i == 500 ? &nan : &near, 0);
  }
  const auto is_correct = [](const Comparison& c) {
    AttentionFigures figures;
    figures.error = c.error();
    figures.error_limit = c.error_limit();
    return figures.is_correct();
  };
  EXPECT_NEAR(rounded.error_limit(), 2 * rounded.error(), 1e-12);
  EXPECT_NEAR(rounded.error(), 0.0016, 0.0004);
  EXPECT_TRUE(is_correct(rounded));
  EXPECT_NEAR(wrong.error(), 0.01, 0.001);
  EXPECT_FALSE(is_correct(wrong));
  EXPECT_FALSE(is_correct(poisoned));
}

TEST(Comparison, SmallHeadsCountAsMuchAsLargeOnes) {
  Comparison comparison(DType::f32);
  const std::vector<float> results = {1000.0F, 2000.0F, 0.001F, 0.0015F};
  comparison.add_head(std::vector<double>{1000.0, 2000.0}, results.data(), 0);
  comparison.add_head(std::vector<double>{0.001, 0.001}, results.data(), 2);
  EXPECT_NEAR(comparison.error(), std::sqrt(0.125 / 2), 1e-6);
  double error = 0.0;
  double limit = 0.0;
  comparison.keep_worse(error, limit);
  EXPECT_EQ(error, comparison.error());
  Comparison exact(DType::f32);
  exact.add_head(std::vector<double>{1.1, 3.3}, std::vector<float>{1.1F, 3.3F}.data(), 0);
  exact.keep_worse(error, limit);
  EXPECT_EQ(error, comparison.error()) << "what is worse stays";
}

TEST(Comparison, SamplesTheDearestFirstWithinTheBudget) {
  const std::vector<std::int64_t> costs = {5, 1, 70, 3, 8, 2};
  EXPECT_EQ(sampled(costs, 1).size(), 1U);
  EXPECT_EQ(sampled(costs, 1).front(), 2);
  auto all = sampled(costs, 1000);
  EXPECT_EQ(all.front(), 2);
  std::sort(all.begin(), all.end());
  EXPECT_EQ(all, (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5}));
  std::int64_t spent = 0;
  for (const std::int64_t i : sampled(costs, 80)) spent += costs[static_cast<std::size_t>(i)];
  EXPECT_LE(spent, 80);
  EXPECT_GT(spent, 70);
}

TEST(HostRead, EveryLoopReadsEveryByteOnce) {
  auto workers = CpuWorkers::create(3);
  ASSERT_TRUE(workers.is_ok());
  std::vector<std::byte> memory(64 << 10, std::byte{0});
  const auto bytes = static_cast<std::int64_t>(memory.size());
  EXPECT_EQ(read_together(*workers, read_kernels().front(), memory.data(), 3 * 8192), 3 * 8192);
  EXPECT_EQ(read_together(*workers, read_kernels().front(), memory.data(), 1), 3 * kReadUnit);
  for (const ReadKernel kernel : read_kernels()) {
    for (std::size_t at = 0; at < memory.size(); at += 997) {
      memory[at] = std::byte{1};
      EXPECT_NE(kernel(memory.data(), bytes), 0U) << at;
      memory[at] = std::byte{0};
    }
    EXPECT_EQ(kernel(memory.data(), bytes), 0U);
  }
}

TEST(HostMeter, RefusesAPoolBelowItsTablesAndTypesItDoesNotCompute) {
  auto host = HostDevice::create();
  ASSERT_TRUE(host.is_ok());
  AttentionProblem problem = llama({100});
  MeterOptions options;
  options.rotated_bytes = 1 << 20;
  options.ceiling_bytes = 4096;
  options.replays = 1;
  options.pool_bytes = block_bytes(problem.shape);
  auto meter = make_host_meter(**host, options);
  ASSERT_TRUE(meter.is_ok());
  const Status small = (*meter)->measure(problem).status();
  EXPECT_EQ(small.code, StatusCode::invalid_argument);
  EXPECT_EQ(small.resource, Resource::pool_bytes);
  problem.shape.dtype = DType::fp8_e4m3;
  const Status type = (*meter)->measure(problem).status();
  EXPECT_EQ(type.code, StatusCode::unsupported);
  EXPECT_EQ(type.resource, Resource::dtype);
}

TEST(HostMeter, StopsBetweenTwoCalls) {
  auto host = HostDevice::create();
  ASSERT_TRUE(host.is_ok());
  const std::atomic<bool> stop{true};
  MeterOptions options{.pool_bytes = 1 << 20, .rotated_bytes = 1, .ceiling_bytes = 1 << 16};
  const AttentionProblem problem = llama({16});
  auto free_meter = make_host_meter(**host, options).value();
  ASSERT_TRUE(free_meter->measure(problem).is_ok());
  options.stop = &stop;
  auto stopped = make_host_meter(**host, options).value();
  EXPECT_EQ(stopped->read_ceiling().status().code, StatusCode::failed_precondition);
  EXPECT_EQ(stopped->measure(problem).status().code, StatusCode::failed_precondition);
}

}  // namespace
}  // namespace kvarena::meter
