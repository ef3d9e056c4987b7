// How a step of decode attention is cut, on the host: the arithmetic that the schedule on the
// device uses, against plain loops over the rows.

#include "kernels/decode/decode_choice.h"

#include "kernel/decode_candidates.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

namespace kvarena::test {
namespace {

using kernels::Candidate;
using kernels::CutShape;
using kernels::DecodeLimits;
using kernels::divide_up;
using kernels::PartLength;
using kernels::RowCut;
using kernels::StepCounts;

constexpr std::int32_t kMaxUnits = 1 << 27;  // of 2^31 tokens

/// The rows of a step as the schedule counts them.
struct Steps {
  Steps(const std::vector<std::int32_t>& units, std::int32_t warps) {
    std::int32_t longest = 0;
    for (const std::int32_t count : units) longest = std::max(longest, divide_up(count, warps));
    const std::int32_t bits = kernels::step_bits(longest);
    for (const std::int32_t count : units) {
      if (count == 0) continue;
      steps.push_back(kernels::steps_of(divide_up(count, warps), bits));
      missing.push_back(kernels::missing_units(count, warps));
    }
    const std::int32_t most = kernels::steps_of(longest, bits);
    for (std::int32_t length = 0; length <= most; ++length) {
      rows.push_back(0);
      sums.push_back(0);
      missing_sums.push_back(0);
      for (std::size_t i = 0; i < steps.size(); ++i) {
        if (steps[i] > length) continue;
        ++rows.back();
        sums.back() += static_cast<std::uint32_t>(steps[i]);
        missing_sums.back() += static_cast<std::uint32_t>(missing[i]);
      }
    }
    counts = {rows.data(), sums.data(), missing_sums.data(), most, bits};
  }
  std::int64_t parts_of(std::int32_t length) const {
    std::int64_t parts = 0;
    for (const std::int32_t its : steps) parts += divide_up(its, length);
    return parts;
  }

  std::vector<std::int32_t> steps;
  std::vector<std::int32_t> missing;
  std::vector<std::uint32_t> missing_sums;
  std::vector<std::int32_t> rows;
  std::vector<std::uint32_t> sums;
  StepCounts counts{};
};

/// The same estimate as cost_of, from the rows.
double plain_cost(const Steps& steps, const CutShape& shape, std::int32_t length) {
  const double overhead = shape.cluster > 1 ? 24 * shape.cluster : shape.per_sm == 1 ? 24 : 6;
  const double unit = static_cast<double>(shape.warps) * (1 << steps.counts.bits);
  double parts = 0;
  double large = 0;
  double large_units = 0;
  double units = 0;
  for (std::size_t i = 0; i < steps.steps.size(); ++i) {
    const std::int32_t its = steps.steps[i];
    const std::int32_t pieces = divide_up(its, length);
    parts += pieces;
    units += its * unit - steps.missing[i];
    if (its <= length / 2) continue;
    large += pieces;
    large_units += its * unit - steps.missing[i];
  }
  const double waves = std::ceil(large * shape.heads / shape.places);
  const double by_waves = waves * (large_units / std::max(1.0, large) + overhead);
  const double by_work = (units + overhead * parts) * shape.heads / shape.places;
  const double longest = length * unit;
  return std::max({by_waves, by_work, longest + overhead}) + 0.25 * longest * (1 - large / parts);
}

/// Random lengths of one kind: equal, ragged, or a long row among short ones.
std::vector<std::int32_t> random_units(std::mt19937& random) {
  const auto below = [&](std::int64_t end) {
    return static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(end));
  };
  const std::int32_t limits[] = {3, 100, 2000, 30000};
  const std::int32_t most = limits[below(4)];
  std::vector<std::int32_t> units(static_cast<std::size_t>(1 + below(below(3) == 0 ? 600 : 40)));
  const std::int32_t kind = below(3);
  const std::int32_t same = 1 + below(most);
  for (std::int32_t& count : units) {
    count = kind == 0 ? same : kind == 1 ? below(most + 1) : below(most / 20 + 1);
  }
  units[0] = std::max(units[0], 1 + below(most));
  return units;
}

CutShape random_shape(std::mt19937& random) {
  const kernels::DecodeShape shapes[] = {{8, 1}, {6, 2}, {8, 2}, {4, 4}, {4, 2}, {1, 16}, {3, 4}};
  const kernels::DecodeShape shape = shapes[random() % 7];
  const std::int32_t heads[] = {1, 2, 8, 32, 300};
  const std::int32_t sms = random() % 3 == 0 ? 5 : 132;
  const std::int32_t most_parts = random() % 4 == 0 ? 700 : 1 << 20;
  return {shape.warps, shape.per_sm, sms * shape.per_sm, heads[random() % 5], most_parts};
}

TEST(DecodeChoice, FindsTheShortestLengthForEachNumberOfWavesAndItsCost) {
  std::mt19937 random(1);
  for (int round = 0; round < 400; ++round) {
    const CutShape shape = random_shape(random);
    const Steps steps(random_units(random), shape.warps);
    const StepCounts& counts = steps.counts;
    ASSERT_EQ(static_cast<std::size_t>(counts.rows()), steps.steps.size());
    for (std::int32_t waves = 1; waves <= kernels::kMaxWaves; ++waves) {
      const Candidate found = candidate_of(counts, shape, waves);
      std::int32_t wanted = std::min(counts.longest, kernels::smallest_length(shape, counts.bits));
      while (wanted < counts.longest &&
             (steps.parts_of(wanted) * shape.heads > std::int64_t{waves} * shape.places ||
              steps.parts_of(wanted) > shape.most_parts)) {
        ++wanted;
      }
      ASSERT_EQ(found.steps, wanted) << "round " << round << ", waves " << waves;
      ASSERT_EQ(kernels::count_parts(counts, found.steps), steps.parts_of(found.steps));
      const double cost = plain_cost(steps, shape, found.steps);
      ASSERT_NEAR(found.cost, cost, cost * 1e-4) << "round " << round << ", waves " << waves;
    }
  }
}

TEST(DecodeChoice, StepsAreFewEnoughForRowsOfAnyLength) {
  for (const std::int32_t rounds : {1, 2046, 2047, 2048, 2049, 4094, 4095, 1 << 20, kMaxUnits}) {
    const std::int32_t bits = kernels::step_bits(rounds);
    EXPECT_LE(kernels::steps_of(rounds, bits), kernels::kMaxSteps) << rounds;
    EXPECT_TRUE(bits == 0 || kernels::steps_of(rounds, bits - 1) > kernels::kMaxSteps) << rounds;
    EXPECT_GE(std::int64_t{kernels::steps_of(rounds, bits)} << bits, rounds);
    EXPECT_EQ(kernels::steps_of(1, bits), 1);
  }
}

TEST(DecodeChoice, PartsCoverARowAndNoneIsEmpty) {
  std::mt19937 random(3);
  for (int round = 0; round < 20000; ++round) {
    const std::int32_t warps = 4 + 2 * static_cast<std::int32_t>(random() % 3);
    const bool is_fixed = random() % 2 == 0;
    PartLength length{warps * (1 + static_cast<std::int32_t>(random() % 40)), is_fixed};
    if (is_fixed && random() % 2 == 0) {
      length.short_row = static_cast<std::int32_t>(random() % 100);
      length.short_units = warps * (1 + static_cast<std::int32_t>(random() % 40));
      length.most_parts = 64;
    }
    const std::int32_t bits = static_cast<std::int32_t>(random() % 28);
    const auto count = static_cast<std::int32_t>(1 + random() % (1U << bits));
    const RowCut cut = kernels::cut_row(length, warps, count);
    ASSERT_EQ(cut.units % warps, 0);
    ASSERT_GE(std::int64_t{cut.parts} * cut.units, count);
    ASSERT_LT(std::int64_t{cut.parts - 1} * cut.units, count);
    ASSERT_LE(cut.units, kernels::part_units(length, warps, count));
    if (is_fixed) {
      ASSERT_LE(cut.parts, length.most_parts);
    }
    const std::int32_t longest = kernels::part_units(length, warps, count);
    const std::int32_t size_class = kernels::size_class_of(count, cut, longest);
    ASSERT_GE(size_class, 0);
    ASSERT_LT(size_class, kernels::kSizeClasses);
  }
  EXPECT_EQ(kernels::cut_row({8, false}, 8, kernels::kSkippedRow).parts, 0);
  EXPECT_EQ(kernels::cut_row({8, false}, 8, 0).parts, 1);
  const PartLength fixed{64, true};
  EXPECT_EQ(kernels::cut_row(fixed, 8, kMaxUnits).parts, fixed.most_parts);
}

// Counters are where they were when a step has fewer query tokens, and the size serves all.
TEST(DecodeChoice, AWorkspaceServesEveryNumberOfStepTokens) {
  int wide = 0;
  for (const std::int32_t head_dim : {64, 96, 128, 256}) {
    for (const std::int32_t heads : {1, 2, 8, 67, 500}) {
      for (const std::int32_t group : {1, 3, 4, 9, 16}) {
        for (const std::int32_t rows : {1, 7, 64, 1000}) {
          DecodeLimits limits{.max_rows = rows,
                              .q_len = 16,
                              .num_q_heads = heads * group,
                              .num_kv_heads = heads,
                              .head_dim = head_dim,
                              .num_sms = 132,
                              .kv_dtype = DType::fp8_e4m3};
          const kernels::DecodeWorkspace whole = kernels::decode_workspace(limits);
          for (limits.step_tokens = 1; limits.step_tokens <= limits.q_len; ++limits.step_tokens) {
            const kernels::DecodeWorkspace w = kernels::decode_workspace(limits);
            EXPECT_EQ(w.counters, whole.counters);
            EXPECT_EQ(w.max_sum, whole.max_sum);
            EXPECT_EQ(w.bytes, whole.bytes);
            const kernels::DecodeSize size = kernels::decode_size(limits);
            EXPECT_LE(w.parts + size.max_parts * std::int64_t{sizeof(kernels::DecodePart)},
                      w.counters);
            EXPECT_LE(w.counters + size.slots * 8, w.max_sum);
            EXPECT_LE(w.max_sum + size.columns * 16, w.outputs);
            EXPECT_LE(w.outputs + size.columns * head_dim * 4, w.bytes);
            DecodeLimits of_rows = limits;
            of_rows.step_rows = rows;
            of_rows.step_row_tokens = of_rows.step_longest = 128;
            EXPECT_EQ(kernels::decode_workspace(of_rows).counters, w.counters);
            EXPECT_EQ(kernels::decode_workspace(of_rows).max_parts, w.max_parts);
            EXPECT_EQ(kernels::decode_workspace(of_rows).bytes, w.bytes);
            EXPECT_GE(w.chunks * kernels::kColumns * kernels::column_operands(limits),
                      limits.step_tokens * group);
            wide += kernels::column_operands(limits) == 2 ? 1 : 0;
          }
        }
      }
    }
  }
  EXPECT_GT(wide, 100);
}

// The workspace has room for what the schedule chooses.
TEST(DecodeChoice, PartsFitTheWorkspace) {
  std::mt19937 random(4);
  for (int round = 0; round < 300; ++round) {
    const std::vector<std::int32_t> units = random_units(random);
    const std::int32_t dims[] = {64, 96, 128, 256};
    DecodeLimits limits;
    limits.max_rows = static_cast<std::int32_t>(units.size());
    limits.num_kv_heads = 1 << random() % 5;
    limits.q_len = random() % 2 == 0 ? 1 : 12;
    limits.kv_dtype = random() % 2 == 0 ? DType::bf16 : DType::fp8_e4m3;
    limits.step_tokens = random() % 2 == 0 ? 0 : 1;
    limits.num_q_heads = limits.num_kv_heads;
    limits.head_dim = dims[random() % 4];
    limits.num_sms = random() % 3 == 0 ? 5 : 132;
    if (random() % 2 == 0) {
      limits.step_rows = limits.max_rows;
      limits.step_longest = 1 + static_cast<std::int32_t>(random() % 4000);
      limits.step_row_tokens = limits.step_longest / (random() % 2 == 0 ? 1 : 4);
    }
    const auto parts_of = [&](const PartLength& length, std::int32_t warps) {
      std::int64_t parts = 0;
      for (const std::int32_t count : units) parts += kernels::cut_row(length, warps, count).parts;
      return parts;
    };
    limits.has_clusters = random() % 2 == 0;
    const CutShape cut = kernels::cut_shape(limits, kernels::decode_workspace(limits));
    const Steps steps(units, cut.warps);
    const StepCounts& counts = steps.counts;
    for (std::int32_t waves = 1; waves <= kernels::kMaxWaves; ++waves) {
      const std::int32_t length = candidate_of(counts, cut, waves).steps;
      ASSERT_LE(parts_of({(length << counts.bits) * cut.warps, false}, cut.warps),
                kernels::decode_workspace(limits).max_parts);
    }
    limits.fixed_tokens = std::accumulate(units.begin(), units.end(), std::int64_t{0}) *
                          kernels::unit_tokens(limits.kv_dtype);
    if (limits.fixed_tokens == 0) continue;
    const PartLength fixed = kernels::fixed_length(limits);
    ASSERT_LE(parts_of(fixed, kernels::decode_shape(limits).warps),
              kernels::decode_workspace(limits).max_parts);
  }
}

/// A line of instances.def.
struct Instance {
  std::int32_t head_dim;
  DType kv_dtype;
  kernels::DecodeShape shape;
  std::int32_t operands;
};
constexpr Instance kInstances[] = {
#define DECODE_INSTANCE(dim, warps, per_sm, cluster) \
  {dim, DType::bf16, {warps, per_sm, cluster}, 1},
#define DECODE_FP8_INSTANCE(dim, warps, per_sm, cluster, operands) \
  {dim, DType::fp8_e4m3, {warps, per_sm, cluster}, operands},
#include "kernels/decode/instances.def"
#undef DECODE_INSTANCE
#undef DECODE_FP8_INSTANCE
};

TEST(DecodeChoice, EveryStepHasAnInstanceAndEveryInstanceHasSteps) {
  std::vector<bool> is_used(std::size(kInstances));
  std::mt19937 random(6);
  const auto one_of = [&](std::initializer_list<std::int32_t> list) {
    return *(list.begin() + static_cast<std::ptrdiff_t>(random() % list.size()));
  };
  for (int round = 0; round < 200'000; ++round) {
    const auto most_rows = static_cast<unsigned>(one_of({4, 40, 1500}));
    const std::int32_t rows = 1 + static_cast<std::int32_t>(random() % most_rows);
    DecodeLimits limits{.max_rows = rows,
                        .q_len = one_of({1, 2, 8}),
                        .num_q_heads = 16 * one_of({1, 2, 4}),
                        .num_kv_heads = one_of({1, 4, 8, 16}),
                        .head_dim = one_of({64, 96, 128, 256}),
                        .num_sms = one_of({20, 78, 132}),
                        .has_clusters = random() % 2 == 0,
                        .kv_dtype = random() % 2 == 0 ? DType::fp8_e4m3 : DType::bf16};
    if (random() % 4 == 0) limits.fixed_tokens = 1 << 20;
    if (random() % 4 != 0) {
      limits.step_rows = 1 + static_cast<std::int32_t>(random() % static_cast<unsigned>(rows));
      const auto longest = static_cast<unsigned>(one_of({6000, 6000, 100'000}));
      limits.step_longest = 1 + static_cast<std::int32_t>(random() % longest);
      limits.step_row_tokens = limits.step_longest / one_of({1, 1, 3});
    }
    const kernels::DecodeShape shape = kernels::decode_shape(limits);
    bool is_found = false;
    for (std::size_t i = 0; i < std::size(kInstances); ++i) {
      const Instance& its = kInstances[i];
      if (its.head_dim != limits.head_dim || its.kv_dtype != limits.kv_dtype ||
          its.shape != shape || its.operands != kernels::column_operands(limits)) {
        continue;
      }
      is_found = is_used[i] = true;
    }
    ASSERT_TRUE(is_found) << "round " << round;
    if ((limits.step_rows == 0 && rows > 1) || limits.fixed_tokens > 0) {
      ASSERT_EQ(shape, kernels::usual_shape(limits)) << "round " << round;
    }
    ASSERT_TRUE(limits.has_clusters || shape.cluster == 1) << "round " << round;
  }
  for (std::size_t i = 0; i < std::size(kInstances); ++i) {
    EXPECT_TRUE(is_used[i]) << "line " << i << " of instances.def";
  }
}

// The rows that were measured, and the fastest shape of each (docs/benchmarks.md).
TEST(DecodeChoice, ShortRowsHaveThreadBlocksOfFewWarps) {
  struct Measured {
    std::int32_t head_dim, kv_heads;
    DType kv_dtype;
    std::int32_t rows, mean, longest;
    kernels::DecodeShape shape;
  };
  constexpr DType kBf16 = DType::bf16;
  constexpr DType kFp8 = DType::fp8_e4m3;
  for (const Measured& its : {
           Measured{128, 8, kBf16, 512, 512, 512, {3, 4}},
           Measured{128, 8, kBf16, 512, 128, 128, {4, 3}},
           Measured{128, 8, kBf16, 48, 512, 512, {4, 3}},
           Measured{128, 8, kBf16, 32, 512, 512, {6, 2}},
           Measured{128, 8, kBf16, 64, 8192, 8192, {6, 2}},
           Measured{128, 16, kBf16, 64, 1024, 1024, {3, 4}},
           Measured{128, 8, kBf16, 200, 579, 20000, {4, 3}},
           Measured{128, 8, kFp8, 512, 128, 128, {2, 6}},
           Measured{128, 8, kFp8, 128, 1024, 1024, {3, 4}},
           Measured{64, 8, kBf16, 256, 128, 128, {1, 16}},
           Measured{64, 8, kBf16, 128, 1024, 1024, {2, 8}},
           Measured{64, 2, kBf16, 256, 1024, 1024, {4, 4}},
           Measured{96, 8, kBf16, 128, 512, 512, {2, 8}},
           Measured{96, 8, kFp8, 256, 1000, 1993, {4, 4}},
           Measured{128, 8, kBf16, 64, 892, 5295, {6, 2}},
           Measured{96, 8, kBf16, 64, 892, 5295, {4, 4}},
           Measured{96, 8, kBf16, 4, 4096, 4096, {12, 1}},
           Measured{64, 2, kBf16, 1, 4096, 4096, {8, 2}},
           Measured{64, 2, kBf16, 1, 1024, 1024, {4, 4}},
           Measured{256, 1, kBf16, 1, 32768, 32768, {8, 1}},
           Measured{256, 8, kBf16, 512, 128, 128, {4, 2}},
       }) {
    const DecodeLimits limits{.max_rows = its.rows,
                              .num_q_heads = its.kv_heads,
                              .num_kv_heads = its.kv_heads,
                              .head_dim = its.head_dim,
                              .num_sms = 132,
                              .kv_dtype = its.kv_dtype,
                              .step_rows = its.rows,
                              .step_row_tokens = its.mean,
                              .step_longest = its.longest};
    const kernels::DecodeShape shape = kernels::decode_shape(limits);
    EXPECT_EQ(shape, its.shape) << its.head_dim << " dims, " << its.rows << " rows of " << its.mean
                                << ": " << shape.warps << " warps, " << shape.per_sm;
  }
}

// The rows that were measured with and without clusters (docs/benchmarks.md).
TEST(DecodeChoice, FewEqualRowsHaveClustersWhereTheyAreFaster) {
  struct Measured {
    std::int32_t head_dim, kv_heads, rows, tokens;
    kernels::DecodeShape shape;
  };
  for (const Measured& its : {
           Measured{128, 1, 1, 128, {8, 1}},
           Measured{128, 1, 1, 1024, {8, 1, 8}},
           Measured{128, 1, 1, 8192, {8, 1, 8}},
           Measured{128, 1, 1, 32768, {10, 1, 8}},
           Measured{128, 1, 4, 8192, {8, 1, 8}},
           Measured{128, 1, 4, 65536, {8, 1}},
           Measured{128, 8, 1, 1024, {8, 1, 8}},
           Measured{128, 8, 1, 4096, {8, 1}},
           Measured{128, 8, 4, 1024, {8, 1}},
           Measured{96, 1, 1, 4096, {12, 1, 8}},
           Measured{64, 2, 1, 512, {8, 2, 8}},
           Measured{64, 2, 1, 16384, {8, 2, 8}},
           Measured{256, 1, 1, 4096, {8, 1, 8}},
           Measured{256, 8, 1, 8192, {8, 1}},
       }) {
    DecodeLimits limits{.max_rows = 100,  // of a step of few rows; the shape is that of the step
                        .num_q_heads = its.kv_heads,
                        .num_kv_heads = its.kv_heads,
                        .head_dim = its.head_dim,
                        .num_sms = 132,
                        .has_clusters = true,
                        .step_rows = its.rows,
                        .step_row_tokens = its.tokens,
                        .step_longest = its.tokens};
    const kernels::DecodeShape shape = kernels::decode_shape(limits);
    EXPECT_EQ(shape, its.shape) << its.head_dim << " dims, " << its.rows << " x " << its.tokens
                                << ": " << shape.warps << " warps, " << shape.per_sm << ", "
                                << shape.cluster;
    limits.step_longest = 4 * its.tokens;  // a cluster would wait for the longest row
    EXPECT_EQ(kernels::decode_shape(limits).cluster, 1);
  }
}

TEST(DecodeChoice, FixedPartsDoNotDependOnTheNumberOfRows) {
  for (const std::int32_t head_dim : {64, 96, 128, 256}) {
    DecodeLimits limits;
    limits.has_clusters = true;
    limits.num_kv_heads = limits.num_q_heads = 8;
    limits.head_dim = head_dim;
    limits.num_sms = 132;
    limits.fixed_tokens = 1 << 20;
    limits.max_rows = 1;
    const kernels::DecodeShape shape = kernels::decode_shape(limits);
    const PartLength length = kernels::fixed_length(limits);
    EXPECT_EQ(length.units % shape.warps, 0);
    EXPECT_EQ(length.short_units % shape.warps, 0);
    EXPECT_GE(length.units * 16, 512);
    for (std::int32_t rows = 1; rows < 5000; rows += 1 + rows / 8) {
      limits.max_rows = limits.step_rows = rows;
      limits.step_row_tokens = limits.step_longest = 4096;
      EXPECT_EQ(kernels::decode_shape(limits), shape);
      const PartLength its = kernels::fixed_length(limits);
      EXPECT_EQ(its.units, length.units);
      EXPECT_EQ(its.short_row, length.short_row);
      EXPECT_EQ(its.short_units, length.short_units);
    }
  }
}

}  // namespace
}  // namespace kvarena::test
