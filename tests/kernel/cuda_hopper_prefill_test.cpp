// The Hopper kernel of prefill against double precision over the KV as stored, with NaN and
// infinity in every slot and -1 in every table entry that no query token sees. On other GPUs the
// same cases run on the kernels for every GPU.

#include "kernel/campaign.hpp"
#include "kernel/prefill_problem.hpp"

#include <algorithm>

namespace kvarena::test {
namespace {

/// A case that the Hopper kernel takes, with the options that `seed` picks.
AttentionCase hopper_case(std::uint64_t seed, DType dtype, std::int32_t dim) {
  AttentionCase c;
  c.seed = seed;
  c.key_dtype = c.value_dtype = c.q_dtype = c.out_dtype = dtype;
  c.head_dim_k = c.head_dim_v = dim;
  c.tile_order = TileOrder::chunked;
  c.window_tokens = seed % 4 == 1 ? 20 : 0;
  c.soft_cap = seed % 4 == 2 ? 3.0F : 0.0F;
  if (seed % 8 == 6) c.window_tokens = 33;
  c.has_sinks = seed % 3 == 0;
  c.block_major = seed % 2 == 0;
  return c;
}

/// Stores K and V as fp8. Tokens of 80 dims then have no chunked order.
void store_fp8(AttentionCase& c) {
  c.key_dtype = c.value_dtype = DType::fp8_e4m3;
  if (!has_chunked_order(DType::fp8_e4m3, c.head_dim_k)) c.tile_order = TileOrder::rows;
}

/// Rows of every kind: empty, shorter than their query tokens, without query tokens, of one token,
/// at the edges of tiles, and with cached tokens.
void add_ragged_rows(AttentionCase& c) {
  c.seq_lens = {0, 5, 1, 15, 16, 17, 130, 70, 33};
  c.q_counts = {2, 9, 1, 15, 1, 17, 100, 65, 0};
}

class CudaHopperPrefill : public CudaTest {
 protected:
  /// `is_long` asks for the instances that serve rows of many query tokens.
  void expect_matches(AttentionProblem& problem, bool is_long) {
    PrefillProblem device(problem, stream_);
    if (is_long) device.params.num_prompts = 1;
    expect_takes_hopper(device);
    const AttentionOutput first = device.run();
    // Sums of products of fp8 with split queries keep about 14 bits of their largest term.
    const AttentionCase& shape = problem.shape();
    const bool is_split =
        is_long && shape.key_dtype == DType::fp8_e4m3 && shape.q_dtype == DType::bf16;
    expect_close(problem, first, "prefill", is_split ? 2e-3F : 1e-4F);
    EXPECT_TRUE(same_bytes(device.pool().download(), problem.pool())) << "the pool is only read";
    device.pool().upload(problem.pool_with(Poison::infinity));
    const AttentionOutput again = device.run();
    EXPECT_TRUE(same_bytes(first.out, again.out))
        << "same tokens, same bits; " << to_string(problem.shape());
    EXPECT_EQ(first.lse, again.lse) << "same tokens, same bits; " << to_string(problem.shape());
  }
  void expect_all_match(const std::vector<AttentionCase>& cases, bool is_long = false) {
    for_each_problem(cases, [&](AttentionProblem& problem) { expect_matches(problem, is_long); });
  }
  static void expect_takes_hopper(const PrefillProblem& device) {
    if (device.params.compute_capability / 10 != 9) return;
    EXPECT_TRUE(kernels::takes_hopper_kernel(device.params));
  }
};

TEST_F(CudaHopperPrefill, AllDimsBlocksAndGroups) {
  constexpr std::int32_t kGroups[] = {1, 2, 3, 4, 5, 6, 7, 8, 12, 14, 16};
  std::vector<AttentionCase> cases;
  std::uint64_t seed = 0;
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const std::int32_t dim : {64, 80, 96, 128, 192, 256}) {
      for (const std::int32_t block_size : {16, 32, 48, 64, 80, 128}) {
        for (int variant = 0; variant < 4; ++variant) {
          AttentionCase c = hopper_case(++seed, dtype, dim);
          add_ragged_rows(c);
          c.block_size = block_size;
          c.group = kGroups[seed % std::size(kGroups)];
          c.num_kv_heads = c.group > 8 ? 1 : 2;
          if (is_picked(seed)) cases.push_back(c);
        }
      }
    }
  }
  expect_all_match(cases);
}

TEST_F(CudaHopperPrefill, Fp8WithEveryKindOfScales) {
  std::vector<AttentionCase> cases;
  std::uint64_t seed = 500;
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const std::int32_t dim : {64, 80, 96, 128, 192, 256}) {
      for (const std::int32_t block_size : {16, 48, 64, 128}) {
        for (const ScaleKind scales :
             {ScaleKind::none, ScaleKind::per_tensor, ScaleKind::per_head}) {
          AttentionCase c = hopper_case(++seed, dtype, dim);
          store_fp8(c);
          c.scales = scales;
          c.block_size = block_size;
          c.group = 1 + static_cast<std::int32_t>(seed % 9);
          add_ragged_rows(c);
          if (seed % 3 == 0) {
            c.seq_lens.push_back(700);
            c.q_counts.push_back(60);
          }
          if (is_picked(seed)) cases.push_back(c);
        }
      }
    }
  }
  expect_all_match(cases);
}

// All of them under compute-sanitizer too.
TEST_F(CudaHopperPrefill, Fp8InEveryInstance) {
  std::vector<AttentionCase> cases;
  std::uint64_t seed = 700;
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const std::int32_t dim : {64, 80, 96, 128, 192, 256}) {
      for (const int variant : {0, 1, 2}) {
        AttentionCase c = hopper_case(++seed, dtype, dim);
        store_fp8(c);
        c.window_tokens = variant == 1 ? 20 : 0;
        c.soft_cap = variant == 2 ? 3.0F : 0.0F;
        c.block_size = variant == 0 ? 32 : 16;
        c.seq_lens = {130, 17, 300};
        c.q_counts = {100, 17, 2};
        c.num_kv_heads = 2;
        c.group = 3;
        cases.push_back(c);
      }
    }
  }
  expect_all_match(cases);
}

// Q of bf16 is split where a batch has many query tokens. All instances, with every kind of scales.
TEST_F(CudaHopperPrefill, Fp8WithSplitQueries) {
  std::vector<AttentionCase> cases;
  std::uint64_t seed = 800;
  for (const std::int32_t dim : {64, 96, 128}) {
    for (const int variant : {0, 1, 2, 3}) {
      AttentionCase c = hopper_case(++seed, DType::bf16, dim);
      store_fp8(c);
      c.window_tokens = variant == 1 ? 20 : variant == 3 ? 300 : 0;
      c.soft_cap = variant == 2 ? 3.0F : 0.0F;
      c.block_size = variant == 0 ? 32 : 16;
      c.scales = variant == 3 ? ScaleKind::per_head : ScaleKind::per_tensor;
      c.has_sinks = variant == 1;
      c.seq_lens = {900, 16, 640, 0, 17, 130, 33};
      c.q_counts = {840, 15, 620, 3, 17, 100, 0};
      c.num_kv_heads = 2;
      c.group = 1 + static_cast<std::int32_t>(seed % 3);
      if (is_picked(seed)) cases.push_back(c);
    }
  }
  expect_all_match(cases, true);
}

TEST_F(CudaHopperPrefill, ManyTilesOfTokens) {
  std::vector<AttentionCase> cases;
  std::uint64_t seed = 1000;
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const std::int32_t dim : {64, 80, 96, 128, 192, 256}) {
      for (const std::int32_t window : {0, 150, 400}) {
        AttentionCase c = hopper_case(++seed, dtype, dim);
        c.window_tokens = window;
        c.seq_lens = {900, 640, 513};
        c.q_counts = {70, 1, 129};
        c.num_kv_heads = 1;
        if (is_picked(seed)) cases.push_back(c);
        store_fp8(c);
        if (is_picked(seed)) cases.push_back(c);
      }
    }
  }
  expect_all_match(cases);
}

// The larger tile of head_dim 128, and split queries.
TEST_F(CudaHopperPrefill, LongRows) {
  std::vector<AttentionCase> cases;
  std::uint64_t seed = 1100;
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (int variant = 0; variant < 4; ++variant) {
      AttentionCase c = hopper_case(++seed, dtype, 128);
      c.seq_lens = {1650};
      c.q_counts = {1600};
      c.num_kv_heads = c.group = 1;
      if (is_picked(seed)) cases.push_back(c);
      store_fp8(c);
      if (is_picked(seed)) cases.push_back(c);
    }
  }
  expect_all_match(cases, true);
}

TEST_F(CudaHopperPrefill, MoreRowsThanAWarpOrders) {
  std::vector<AttentionCase> cases;
  for (const std::int32_t num_rows : {32, 33, 64, 250, 1100}) {
    AttentionCase c = hopper_case(static_cast<std::uint64_t>(num_rows), DType::bf16, 64);
    c.seq_lens.clear();
    for (std::int32_t row = 0; row < num_rows; ++row) {
      const std::int32_t most = num_rows > 100 ? 9 : 90;
      c.seq_lens.push_back(row * 37 % most);
      c.q_counts.push_back(std::min(c.seq_lens.back(), row * 13 % 40));
    }
    c.q_counts.back() = c.seq_lens.back() = 3;
    cases.push_back(c);
  }
  expect_all_match(cases);
}

TEST_F(CudaHopperPrefill, OneQueryTokenARowWithoutOffsets) {
  AttentionCase c = hopper_case(7, DType::f16, 128);
  add_ragged_rows(c);
  c.q_counts.clear();
  expect_all_match({c});
}

TEST_F(CudaHopperPrefill, TheLastRowsOfALargerBatch) {
  for (const std::int32_t dim : {64, 80, 128, 256}) {
    AttentionCase c = hopper_case(11, DType::bf16, dim);
    add_ragged_rows(c);
    AttentionProblem problem(c);
    PrefillProblem device(problem, stream_);
    const AttentionOutput all = device.run();
    device.skip_rows(4);
    expect_takes_hopper(device);
    const AttentionOutput some = device.run();
    const auto skipped = static_cast<std::ptrdiff_t>(problem.q_offsets()[4]) * c.num_kv_heads *
                         c.group * dim * bytes_of(c.out_dtype);
    EXPECT_TRUE(std::all_of(some.out.begin(), some.out.begin() + skipped, [](std::byte b) {
      return b == std::byte{0xFF};
    })) << "rows of another kernel";
    EXPECT_TRUE(std::equal(some.out.begin() + skipped, some.out.end(), all.out.begin() + skipped));
  }
}

AttentionCase random_case(std::uint64_t seed) {
  Dice dice(seed);
  AttentionCase c = hopper_case(seed, dice.one_of({DType::bf16, DType::f16}),
                                dice.one_of({64, 80, 96, 128, 192, 256}));
  c.block_size = 16 * dice.one_of({1, 2, 3, 4, 8});
  c.num_kv_heads = dice.between(1, 3);
  c.group = dice.between(1, 16);
  c.window_tokens = dice.once_in(3) ? dice.between(1, 300) : 0;
  c.soft_cap = dice.once_in(4) ? 5.0F : 0.0F;
  c.has_sinks = dice.once_in(3);
  if (dice.once_in(3)) store_fp8(c);
  for (std::int32_t row = dice.between(0, dice.once_in(10) ? 50 : 4); row >= 0; --row) {
    c.seq_lens.push_back(dice.length(c.block_size, 500));
    c.q_counts.push_back(std::min(c.seq_lens.back(), dice.between(0, dice.once_in(3) ? 130 : 12)));
  }
  if (c.q_counts.back() == 0) c.q_counts.back() = 1;
  return c;
}

TEST_F(CudaHopperPrefill, RandomShapes) {
  std::vector<AttentionCase> cases;
  for (int i = 0; i < rounds(600); ++i) {
    cases.push_back(random_case(first_seed() * 100000 + static_cast<std::uint64_t>(i)));
  }
  expect_all_match(cases);
}

TEST_F(CudaHopperPrefill, OtherTablesTypesAndOrdersAreForTheOtherKernels) {
  AttentionCase c = hopper_case(1, DType::bf16, 128);
  add_ragged_rows(c);
  AttentionProblem problem(c);
  const PrefillProblem device(problem, stream_);
  const auto takes = [&](auto change) {
    kernels::PrefillParams params = device.params;
    params.compute_capability = 90;
    change(params, params.attention);
    return kernels::takes_hopper_kernel(params);
  };
  using P = kernels::PrefillParams&;
  using A = kernels::AttentionParams&;
  EXPECT_TRUE(takes([](P, A) {}));
  EXPECT_FALSE(takes([](P p, A) { p.compute_capability = 100; }));
  EXPECT_FALSE(takes([](P p, A) { p.compute_capability = 0; }));
  EXPECT_FALSE(takes([](P p, A) { p.counters = nullptr; }));
  EXPECT_FALSE(takes([](P p, A) { p.num_sms = 0; }));
  EXPECT_FALSE(takes([](P, A a) { a.kv.value.tile_order = TileOrder::rows; }));
  const auto store = [](DType dtype, TileOrder order, std::int32_t dim, std::int64_t token_stride) {
    return [=](P, A a) {
      for (PlaneView* plane : {&a.kv.key, &a.kv.value}) {
        plane->dtype = dtype;
        plane->tile_order = order;
        plane->head_dim = dim;
        plane->token_stride = token_stride;
      }
    };
  };
  EXPECT_TRUE(takes(store(DType::fp8_e4m3, TileOrder::rows, 80, 80)));
  EXPECT_FALSE(takes(store(DType::fp8_e4m3, TileOrder::chunked, 80, 80)));
  EXPECT_FALSE(takes(store(DType::fp8_e4m3, TileOrder::rows, 80, 96)));
  EXPECT_FALSE(takes(store(DType::fp8_e4m3, TileOrder::rows, 96, 96)));
  EXPECT_FALSE(takes(store(DType::bf16, TileOrder::rows, 80, 160)));
  EXPECT_FALSE(takes([](P, A a) { a.out_dtype = DType::f32; }));
  EXPECT_FALSE(takes([](P, A a) { a.q_dtype = a.out_dtype = DType::f16; }));
  EXPECT_FALSE(takes([](P, A a) { a.kv.key.head_dim = 64; }));
  EXPECT_FALSE(takes([](P, A a) { a.kv.key.base += 8; }));
  EXPECT_FALSE(takes([](P, A a) { a.q = static_cast<const std::byte*>(a.q) + 8; }));
  const auto many = [](P p, A a) {
    a.batch.num_rows = 33;
    p.plan = nullptr;
  };
  EXPECT_FALSE(takes(many));
}

}  // namespace
}  // namespace kvarena::test
