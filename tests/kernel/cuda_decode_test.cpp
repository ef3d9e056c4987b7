// Decode attention on the GPU against the reference in double precision over K and V as stored, in
// chunked tile order: ragged lengths, permuted blocks, NaN in every slot that no token owns. Every
// case is run again over scratch full of NaN and other garbage in the pool, for the same bits.

#include "kernel/campaign.hpp"
#include "kernel/decode_problem.hpp"
#include "kernels/decode/decode_shape.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

namespace kvarena::test {
namespace {

using kernels::DecodeParams;
using kernels::DecodeScheduleParams;

constexpr std::int32_t kGroups[] = {1, 2, 3, 4, 5, 6, 7, 8, 12, 14, 16};
constexpr std::int32_t kBlockSizes[] = {16, 32, 48, 64, 128};
constexpr std::int32_t kHeadDims[] = {64, 96, 128, 256};
/// Of q and out, and of K and V.
constexpr std::pair<DType, DType> kTypes[] = {{DType::bf16, DType::bf16},
                                              {DType::f16, DType::f16},
                                              {DType::bf16, DType::fp8_e4m3},
                                              {DType::f16, DType::fp8_e4m3}};

AttentionCase chunked_case(DType dtype, std::int32_t head_dim, std::int32_t group,
                           std::int32_t block_size) {
  AttentionCase c;
  c.key_dtype = c.value_dtype = c.q_dtype = c.out_dtype = dtype;
  c.head_dim_k = c.head_dim_v = head_dim;
  c.group = group;
  c.block_size = block_size;
  c.tile_order = TileOrder::chunked;
  return c;
}

/// A launch is faster where it knows that many rows are short, and right whatever it is told.
void say_of_rows(DecodeProblem& device, std::int32_t rows, std::int32_t tokens,
                 std::int32_t longest) {
  for (kernels::DecodeLimits* limits : {&device.schedule.limits, &device.params.limits}) {
    limits->step_rows = rows;
    limits->step_row_tokens = tokens;
    limits->step_longest = longest;
  }
}

class CudaDecode : public CudaTest {
 protected:
  void expect_matches(const AttentionProblem& problem) {
    const AttentionCase& c = problem.shape();
    const std::int32_t q_len =
        c.q_counts.empty() ? 1 : *std::max_element(c.q_counts.begin(), c.q_counts.end());
    // A device of few multiprocessors cuts rows elsewhere; every seventh case has one.
    DecodeProblem device(problem, q_len, stream_, c.seed % 7 == 3 ? 5 : 132);
    if (c.seed % 3 == 1) say_of_rows(device, std::array{70, 140, 1000}[c.seed % 5 % 3], 300, 300);
    if (c.seed % 3 == 2) say_of_rows(device, std::array{1, 2, 5}[c.seed % 5 % 3], 3000, 3000);
    const AttentionOutput first = device.run();
    expect_close(problem, first, "decode");
    EXPECT_TRUE(same_bytes(device.pool().download(), problem.pool())) << "the pool is only read";
    device.pool().fill(0xFF);
    device.run();
    device.pool().upload(problem.pool_with(Poison::infinity));
    const AttentionOutput again = device.run();
    EXPECT_TRUE(same_bytes(first.out, again.out)) << "same tokens, same bits; " << to_string(c);
    EXPECT_EQ(first.lse, again.lse) << "same tokens, same bits; " << to_string(c);
  }
  void expect_all_match(const std::vector<AttentionCase>& cases) {
    for_each_problem(cases, [&](const AttentionProblem& problem) { expect_matches(problem); });
  }
};

TEST_F(CudaDecode, EveryTypeDimGroupAndBlockSizeOverRaggedLengths) {
  std::vector<AttentionCase> cases;
  std::uint64_t seed = 0;
  for (const auto& [dtype, kv_dtype] : kTypes) {
    for (const std::int32_t head_dim : kHeadDims) {
      for (const std::int32_t group : kGroups) {
        for (const std::int32_t block_size : kBlockSizes) {
          AttentionCase c = chunked_case(dtype, head_dim, group, block_size);
          c.seed = ++seed;
          c.key_dtype = c.value_dtype = kv_dtype;
          if (kv_dtype == DType::fp8_e4m3) c.scales = static_cast<ScaleKind>(seed % 3);
          c.seq_lens = {0, 1, 15, 16, 17, block_size - 1, block_size, block_size + 1, 300, 1023};
          if (is_picked(seed)) cases.push_back(c);
        }
      }
    }
  }
  expect_all_match(cases);
}

TEST_F(CudaDecode, WindowSoftCapSinksAndSeveralQueryTokens) {
  std::vector<AttentionCase> cases;
  std::uint64_t seed = 1000;
  for (const std::int32_t window : {0, 1, 16, 100}) {
    for (const float cap : {0.0F, 20.0F}) {
      for (const std::int32_t q_len : {1, 2, 3, 4, 5, 6, 7, 8}) {
        AttentionCase c = chunked_case(DType::bf16, 128, 3, 16);
        c.seed = ++seed;
        c.window_tokens = window;
        c.soft_cap = cap;
        c.has_sinks = seed % 2 == 0;
        c.seq_lens = {0, 8, 9, 16, 23, 24, 25, 160, 700};
        if (q_len > 1) c.q_counts.assign(c.seq_lens.size(), q_len);
        if (is_picked(seed)) cases.push_back(c);
      }
    }
  }
  expect_all_match(cases);
}

// Each row has its own number of query tokens, so the last columns of most rows are padding.
TEST_F(CudaDecode, RowsOfDifferentNumbersOfQueryTokens) {
  std::vector<AttentionCase> cases;
  std::uint64_t seed = 2000;
  for (const auto& [dtype, kv_dtype] :
       {std::pair{DType::bf16, DType::bf16}, std::pair{DType::f16, DType::fp8_e4m3}}) {
    for (const std::int32_t head_dim : kHeadDims) {
      for (const std::int32_t group : {1, 3, 4, 8}) {
        for (const std::int32_t window : {0, 20}) {
          AttentionCase c = chunked_case(dtype, head_dim, group, 16);
          c.seed = ++seed;
          c.key_dtype = c.value_dtype = kv_dtype;
          c.window_tokens = window;
          c.has_sinks = seed % 3 == 0;
          c.seq_lens = {16, 1, 17, 300, 2, 1023, 33, 4000};
          c.q_counts = {16, 1, 2, 8, 1, 15, 3, 5};
          if (is_picked(seed)) cases.push_back(c);
        }
      }
    }
  }
  expect_all_match(cases);
}

// More than eight query columns over fp8 have two operands for each tile.
TEST_F(CudaDecode, ManyColumnsOverFp8) {
  std::vector<AttentionCase> cases;
  std::uint64_t seed = 7003;  // and every seventh: a device of few multiprocessors
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const std::int32_t head_dim : {64, 96, 128}) {
      for (const std::int32_t group : {3, 4, 5, 8, 12, 16}) {
        for (const std::int32_t window : {0, 40}) {
          AttentionCase c = chunked_case(dtype, head_dim, group, seed % 2 == 0 ? 16 : 64);
          c.seed = seed += 7;
          c.key_dtype = c.value_dtype = DType::fp8_e4m3;
          c.scales = static_cast<ScaleKind>(seed % 3);
          c.window_tokens = window;
          c.soft_cap = seed % 5 == 0 ? 20.0F : 0.0F;
          c.has_sinks = seed % 3 == 0;
          c.seq_lens = {16, 1, 17, 300, 2, 1023, 33, 2000};
          c.q_counts = {16, 1, 2, 8, 1, 15, 3, 5};
          if (is_picked(seed)) cases.push_back(c);
        }
      }
    }
  }
  expect_all_match(cases);
}

// A step may say that its rows have fewer query tokens than the limits; the workspace serves all.
TEST_F(CudaDecode, StepsOfFewAndManyColumnsTakeTurnsInAWorkspace) {
  for (const std::int32_t group : {4, 16}) {
    for (const std::int32_t head_dim : {64, 96, 128}) {
      AttentionCase c = chunked_case(DType::bf16, head_dim, group, 16);
      c.key_dtype = c.value_dtype = DType::fp8_e4m3;
      c.seq_lens = {16, 1, 17, 300, 2, 1023, 33, 3000};
      const AttentionProblem problem(c);
      DecodeProblem device(problem, 8, stream_, 5);
      const DeviceArray<std::int64_t> offsets(problem.q_offsets());
      device.schedule.q_offsets = offsets.data();
      std::vector<AttentionOutput> outputs;
      for (const std::int32_t tokens : {0, 1, 8, 1, 0}) {
        device.schedule.limits.step_tokens = device.params.limits.step_tokens = tokens;
        device.params.max_q_len = tokens == 1 ? 1 : 8;
        outputs.push_back(device.run());
        expect_close(problem, outputs.back(), "decode");
      }
      EXPECT_TRUE(same_bytes(outputs[0].out, outputs[4].out)) << to_string(c);
      EXPECT_TRUE(same_bytes(outputs[1].out, outputs[3].out)) << to_string(c);
    }
  }
}

/// Returns how many shapes of one operand `limits` may have.
std::size_t num_shapes(const kernels::DecodeLimits& limits) {
  std::size_t count = 0;
  const auto add = [&](DType kv, std::int32_t dim, std::int32_t cluster, std::int32_t operands) {
    const bool is_fp8 = limits.kv_dtype == DType::fp8_e4m3;
    const bool has_it = dim == limits.head_dim && operands == 1 &&
                        is_fp8 == (kv == DType::fp8_e4m3) && (limits.has_clusters || cluster == 1);
    count += has_it ? 1 : 0;
  };
#define DECODE_INSTANCE(dim, warps, per_sm, cluster) add(DType::bf16, dim, cluster, 1);
#define DECODE_FP8_INSTANCE(dim, warps, per_sm, cluster, operands) \
  add(DType::fp8_e4m3, dim, cluster, operands);
#include "kernels/decode/instances.def"
#undef DECODE_INSTANCE
#undef DECODE_FP8_INSTANCE
  return count;
}

// Every shape of instances.def with one operand, in the workspaces of the usual ones.
TEST_F(CudaDecode, EveryShapeOfAStep) {
  std::uint64_t seed = 9000;
  for (const auto& [dtype, kv_dtype] : kTypes) {
    for (const std::int32_t head_dim : kHeadDims) {
      for (const bool has_many_tokens : {false, true}) {
        AttentionCase c = chunked_case(dtype, head_dim, 4, seed % 2 == 0 ? 16 : 48);
        c.seed = ++seed;
        c.key_dtype = c.value_dtype = kv_dtype;
        c.window_tokens = has_many_tokens ? 70 : 0;
        c.seq_lens = {16, 2, 17, 300, 2, 1023, 33, 700, 129};
        if (has_many_tokens) c.q_counts = {1, 2, 2, 1, 2, 2, 1, 2, 2};
        const AttentionProblem problem(c);
        DecodeProblem device(problem, has_many_tokens ? 2 : 1, stream_);
        std::vector<kernels::DecodeShape> seen;
        const auto run_once = [&] {
          const kernels::DecodeShape shape = kernels::decode_shape(device.params.limits);
          if (std::find(seen.begin(), seen.end(), shape) != seen.end()) return;
          seen.push_back(shape);
          expect_close(problem, device.run(), "decode");
        };
        kernels::DecodeLimits limits = device.params.limits;
        for (const std::int32_t max_rows : {9, 100, 600}) {  // usual shapes
          limits.max_rows = max_rows;
          device.set_limits(limits);
          run_once();
          for (const std::int32_t rows : {1, 150, 200, 260, 500, 1000, 100'000}) {
            for (const std::int32_t tokens : {16, 200, 600, 2000, 16'000, 64'000}) {
              for (const std::int32_t longest : {tokens, 4 * tokens}) {
                say_of_rows(device, rows, tokens, longest);
                run_once();
              }
            }
          }
        }
        EXPECT_EQ(seen.size(), num_shapes(limits)) << to_string(c);
      }
    }
  }
}

// More work items than thread blocks, told as they are: as on a device of few multiprocessors.
TEST_F(CudaDecode, ManyShortRows) {
  constexpr std::int32_t kRows = 40;
  constexpr std::int32_t kSms = 16;
  std::uint64_t seed = 9500;
  for (const DType kv_dtype : {DType::bf16, DType::fp8_e4m3}) {
    for (const std::int32_t head_dim : kHeadDims) {
      for (const bool is_even : {false, true}) {
        AttentionCase c = chunked_case(DType::bf16, head_dim, 4, 16);
        c.seed = ++seed;
        c.key_dtype = c.value_dtype = kv_dtype;
        c.num_kv_heads = 8;
        Dice dice(c.seed);
        c.seq_lens.resize(kRows);
        for (std::int32_t& length : c.seq_lens) length = is_even ? 100 : dice.between(0, 300);
        const AttentionProblem problem(c);
        DecodeProblem device(problem, 1, stream_, kSms);
        say_of_rows(device, kRows, is_even ? 100 : 150, is_even ? 100 : 300);
        const bool is_usual = kernels::decode_shape(device.params.limits) ==
                              kernels::usual_shape(device.params.limits);
        EXPECT_EQ(is_usual, head_dim == 256 || (head_dim == 64 && !is_even));
        expect_close(problem, device.run(), "decode");
      }
    }
  }
}

// Warps with several units, items with one part, with some, and with so many that groups of them
// are combined first; and more items than clusters.
TEST_F(CudaDecode, FewLongRowsInClusters) {
  std::uint64_t seed = 9800;
  for (const DType kv_dtype : {DType::bf16, DType::fp8_e4m3}) {
    for (const std::int32_t head_dim : kHeadDims) {
      const std::int32_t grouped = head_dim == 64 ? 1600 * kernels::unit_tokens(kv_dtype) : 5000;
      for (const std::vector<std::int32_t>& lengths :
           {std::vector{1000}, {grouped}, {head_dim == 128 ? 20'000 : 9000}, {5000, 4900, 4990}}) {
        for (const std::int32_t q_len : {1, 3}) {
          AttentionCase c = chunked_case(DType::bf16, head_dim, q_len == 1 ? 8 : 2, 16);
          c.seed = ++seed;
          c.key_dtype = c.value_dtype = kv_dtype;
          c.num_kv_heads = lengths.size() == 1 ? 1 : 5;
          c.window_tokens = q_len == 1 ? 0 : lengths[0] - 100;
          c.seq_lens = lengths;
          if (is_watched()) c.seq_lens.assign(lengths.size(), 1500);
          if (q_len > 1) c.q_counts.assign(lengths.size(), q_len);
          const AttentionProblem problem(c);
          DecodeProblem device(problem, q_len, stream_);
          const std::int32_t tokens = lengths.size() == 1 ? lengths[0] : 1000;
          say_of_rows(device, static_cast<std::int32_t>(lengths.size()), tokens, tokens);
          const kernels::DecodeLimits& limits = device.params.limits;
          EXPECT_EQ(kernels::decode_shape(limits).cluster > 1, limits.has_clusters);
          const AttentionOutput first = device.run();
          expect_close(problem, first, "decode");
          EXPECT_TRUE(same_bytes(first.out, device.run().out)) << to_string(c);
        }
      }
    }
  }
}

TEST_F(CudaDecode, LongAndManyRowsAreSplitAndCombined) {
  std::vector<AttentionCase> cases;
  for (const std::int32_t kv_heads : {1, 8}) {
    AttentionCase c = chunked_case(DType::bf16, 64, 4, 16);
    c.num_kv_heads = kv_heads;
    c.seq_lens = {is_watched() ? 2000 : 9000};
    cases.push_back(c);
    c.seq_lens.assign(150, 40);
    c.seq_lens[70] = is_watched() ? 1000 : 6000;
    cases.push_back(c);
  }
  expect_all_match(cases);
}

AttentionCase random_case(std::uint64_t seed) {
  Dice dice(seed);
  AttentionCase c =
      chunked_case(dice.one_of({DType::bf16, DType::f16}), dice.one_of({64, 96, 128, 256}),
                   dice.between(1, 16), 16 * dice.one_of({1, 2, 3, 4, 5, 8}));
  if (dice.once_in(3)) {
    c.key_dtype = c.value_dtype = DType::fp8_e4m3;
    c.scales = dice.one_of({ScaleKind::none, ScaleKind::per_tensor, ScaleKind::per_head});
  }
  c.seed = seed;
  c.num_kv_heads = dice.between(1, 8);
  c.window_tokens = dice.once_in(3) ? dice.between(1, 500) : 0;
  c.soft_cap = dice.once_in(4) ? 5.0F : 0.0F;
  c.has_sinks = dice.once_in(3);
  c.block_major = dice.once_in(2);
  const std::int32_t q_len = dice.once_in(3) ? dice.between(2, 16) : 1;
  c.seq_lens.resize(static_cast<std::size_t>(dice.between(1, dice.once_in(8) ? 40 : 8)));
  for (std::int32_t& length : c.seq_lens) {
    length = dice.length(c.block_size, dice.once_in(16) ? 4000 : 600);
    if (length > 0) length = std::max(length, q_len);
  }
  if (q_len > 1) c.q_counts.assign(c.seq_lens.size(), q_len);
  if (q_len > 1 && dice.once_in(2)) {
    for (std::int32_t& count : c.q_counts) count = dice.between(1, q_len);
  }
  return c;
}

TEST_F(CudaDecode, RandomShapes) {
  std::vector<AttentionCase> cases;
  for (int i = 0; i < rounds(2000); ++i) {
    cases.push_back(random_case(first_seed() * 100000 + static_cast<std::uint64_t>(i)));
  }
  expect_all_match(cases);
}

TEST_F(CudaDecode, BadArgumentsAreRefusedAndTheOutputStays) {
  AttentionCase c = chunked_case(DType::bf16, 128, 4, 16);
  c.seq_lens = {33};
  const AttentionProblem problem(c);
  DecodeProblem device(problem, 1, stream_);
  const AttentionOutput before = device.run();
  const auto refused = [&](auto change, StatusCode code, Resource resource) {
    DecodeParams p = device.params;
    change(p);
    EXPECT_TRUE(fails_with(kernels::launch_decode(p, false, stream_), code, resource));
  };
  using P = DecodeParams&;
  constexpr auto kInvalid = StatusCode::invalid_argument;
  constexpr auto kUnsupported = StatusCode::unsupported;
  refused([](P p) { p.limits.head_dim = 80; }, kUnsupported, Resource::head_dim);
  refused([](P p) { p.dtype = DType::int8; }, kUnsupported, Resource::dtype);
  refused([](P p) { p.block_size = 24; }, kUnsupported, Resource::block_size);
  refused([](P p) { p.block_size = 0; }, kUnsupported, Resource::block_size);
  refused([](P p) { p.q = nullptr; }, kInvalid, Resource::pointer);
  refused([](P p) { p.out = nullptr; }, kInvalid, Resource::pointer);
  refused([](P p) { p.key = nullptr; }, kInvalid, Resource::pointer);
  refused([](P p) { p.block_tables = nullptr; }, kInvalid, Resource::pointer);
  refused([](P p) { p.workspace = nullptr; }, kInvalid, Resource::pointer);
  refused([](P p) { p.q = static_cast<const std::byte*>(p.q) + 2; }, kInvalid, Resource::alignment);
  refused([](P p) { p.key = static_cast<const std::byte*>(p.key) + 8; }, kInvalid,
          Resource::alignment);
  refused([](P p) { p.limits.kv_dtype = DType::f32; }, kUnsupported, Resource::dtype);
  refused([](P p) { p.block_stride += 8; }, kInvalid, Resource::alignment);
  refused([](P p) { p.num_rows = kernels::kMaxDecodeRows + 1; }, kInvalid, Resource::num_sequences);
  refused([](P p) { p.num_rows = -1; }, kInvalid, Resource::num_sequences);
  refused([](P p) { p.limits.q_len = 17; }, kInvalid, Resource::num_tokens);
  refused([](P p) { p.limits.num_q_heads = 7; }, kInvalid, Resource::num_q_heads);
  refused([](P p) { --p.workspace_bytes; }, StatusCode::limit_exceeded, Resource::workspace);
  const auto unscheduled = [&](auto change, StatusCode code, Resource resource) {
    DecodeScheduleParams p = device.schedule;
    change(p);
    EXPECT_TRUE(fails_with(kernels::launch_decode_schedule(p, stream_), code, resource));
  };
  using S = DecodeScheduleParams&;
  unscheduled([](S p) { p.seq_lens = nullptr; }, kInvalid, Resource::pointer);
  unscheduled([](S p) { p.workspace = nullptr; }, kInvalid, Resource::pointer);
  unscheduled([](S p) { p.num_rows = kernels::kMaxDecodeRows + 1; }, kInvalid,
              Resource::num_sequences);
  unscheduled([](S p) { p.limits.head_dim = 72; }, kUnsupported, Resource::head_dim);
  unscheduled([](S p) { --p.workspace_bytes; }, StatusCode::limit_exceeded, Resource::workspace);
  finish();
  std::vector<std::byte> after(before.out.size());
  EXPECT_CUDA(cudaMemcpy(after.data(), device.params.out, after.size(), cudaMemcpyDeviceToHost));
  EXPECT_TRUE(same_bytes(after, before.out));
}

}  // namespace
}  // namespace kvarena::test
