// Every bad argument is refused, named with its value, and nothing runs.

#include "kvarena/attention/attention.hpp"
#include "support/status_matchers.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace kvarena {
namespace {

/// Two rows of 3 and 20 tokens: 4 query heads, 2 kv heads, D = 8, f32, blocks of 16.
struct Small {
  std::array<float, 3 * 2 * 2 * 16 * 8> pool{};
  std::array<BlockId, 3> entries{BlockId{2}, BlockId{0}, BlockId{1}};
  std::array<std::int64_t, 2> row_offsets{0, 1};
  std::array<std::int32_t, 2> seq_lens{3, 20};
  std::array<std::int32_t, 2> num_blocks{1, 2};
  std::array<std::int64_t, 3> q_offsets{0, 1, 2};
  std::array<float, 2 * 4 * 8> q{};
  std::array<float, 2 * 4 * 8> out{};
  AttentionArgs args;
  AttentionLimits limits;
  alignas(64) std::array<std::byte, 1 << 20> workspace{};

  Small() {
    auto* base = reinterpret_cast<std::byte*>(pool.data());
    args.kv.key = {base, 2 * 2 * 16 * 8 * 4, 16 * 8 * 4, 8 * 4, 2, 8, DType::f32, TileOrder::rows};
    args.kv.value = args.kv.key;
    args.kv.value.base = base + 2 * 16 * 8 * 4;
    args.kv.block_size = 16;
    args.kv.num_blocks = 3;
    args.batch = {
        {entries.data(), nullptr, row_offsets.data(), 0, 2}, seq_lens.data(), num_blocks.data(), 2};
    args.q_offsets = q_offsets.data();
    args.q = q.data();
    args.q_dtype = DType::f32;
    args.out = out.data();
    args.out_dtype = DType::f32;
    args.num_q_heads = 4;
    args.scale = 0.5F;
    limits = {2, 2, 4, 2, 8, 8, 2, CpuPath::best};
  }
  Result<AttentionPlan> plan() { return plan_attention(args, limits, workspace); }
};

struct BadArgument {
  const char* name;
  std::function<void(Small&)> spoil;
  StatusCode code;
  Resource resource;
  const char* text;  // what describe_attention must contain
};

const std::vector<BadArgument>& bad_arguments() {
  constexpr auto kInvalid = StatusCode::invalid_argument;
  constexpr auto kUnsupported = StatusCode::unsupported;
  static const std::vector<BadArgument> cases{
      {"key null", [](Small& s) { s.args.kv.key.base = nullptr; }, kInvalid, Resource::pointer,
       "K plane"},
      {"value null", [](Small& s) { s.args.kv.value.base = nullptr; }, kInvalid, Resource::pointer,
       "V is null"},
      {"key fp8", [](Small& s) { s.args.kv.key.dtype = DType::fp8_e4m3; }, kUnsupported,
       Resource::dtype, "dtype of K: got fp8_e4m3; supported: f32, f16, bf16"},
      {"value int8", [](Small& s) { s.args.kv.value.dtype = DType::int8; }, kUnsupported,
       Resource::dtype, "dtype of V: got int8"},
      {"k of no type", [](Small& s) { s.args.kv.key.dtype = static_cast<DType>(99); }, kInvalid,
       Resource::dtype, "dtype of K: got 99"},
      {"v in no order", [](Small& s) { s.args.kv.value.tile_order = static_cast<TileOrder>(99); },
       kInvalid, Resource::tile_order, "got 99"},
      {"q int8", [](Small& s) { s.args.q_dtype = DType::int8; }, kUnsupported, Resource::dtype,
       "dtype of q"},
      {"out fp8", [](Small& s) { s.args.out_dtype = DType::fp8_e4m3; }, kUnsupported,
       Resource::dtype, "dtype of out"},
      {"chunked", [](Small& s) { s.args.kv.key.tile_order = TileOrder::chunked; }, kUnsupported,
       Resource::tile_order, "`rows` only"},
      {"no kv heads", [](Small& s) { s.args.kv.key.num_heads = 0; }, kInvalid,
       Resource::num_kv_heads, "got 0"},
      {"v heads", [](Small& s) { s.args.kv.value.num_heads = 1; }, kInvalid, Resource::num_kv_heads,
       "heads of V"},
      {"head_dim", [](Small& s) { s.args.kv.key.head_dim = 5000; }, kInvalid, Resource::head_dim,
       "got 5000, expected 1 to 4096"},
      {"block size", [](Small& s) { s.args.kv.block_size = 0; }, kInvalid, Resource::block_size,
       "got 0"},
      {"num_blocks", [](Small& s) { s.args.kv.num_blocks = 0; }, kInvalid, Resource::num_blocks,
       "got 0"},
      {"q heads", [](Small& s) { s.args.num_q_heads = 5; }, kInvalid, Resource::num_q_heads,
       "got 5"},
      {"misaligned key", [](Small& s) { s.args.kv.key.base += 2; }, kInvalid, Resource::alignment,
       "misaligned K plane"},
      {"misaligned stride", [](Small& s) { s.args.kv.value.token_stride = 33; }, kInvalid,
       Resource::alignment, "misaligned V plane"},
      {"zero scale", [](Small& s) { s.args.scale = 0.0F; }, kInvalid, Resource::scale, "got 0"},
      {"negative scale", [](Small& s) { s.args.scale = -0.5F; }, kInvalid, Resource::scale,
       "got -500000"},
      {"nan scale", [](Small& s) { s.args.scale = std::nanf(""); }, kInvalid, Resource::scale,
       "got a number that is not finite or too large, expected at least 1"},
      {"infinite cap", [](Small& s) { s.args.soft_cap = std::numeric_limits<float>::infinity(); },
       kInvalid, Resource::soft_cap, "soft_cap"},
      {"window", [](Small& s) { s.args.window_tokens = -1; }, kInvalid, Resource::window, "got -1"},
      {"rows", [](Small& s) { s.args.batch.num_rows = 3; }, kInvalid, Resource::num_sequences,
       "got 3"},
      {"no lengths", [](Small& s) { s.args.batch.seq_lens = nullptr; }, kInvalid, Resource::pointer,
       "seq_lens"},
      {"no counts", [](Small& s) { s.args.batch.num_blocks = nullptr; }, kInvalid,
       Resource::pointer, "num_blocks"},
      {"no offsets", [](Small& s) { s.args.batch.tables.row_offsets = nullptr; }, kInvalid,
       Resource::pointer, "row_offsets"},
      {"no entries", [](Small& s) { s.args.batch.tables.entries = nullptr; }, kInvalid,
       Resource::pointer, "entries"},
      {"long row", [](Small& s) { s.seq_lens[1] = 33; }, kInvalid, Resource::sequence_length,
       "got 33, expected 0 to 32"},
      {"negative row", [](Small& s) { s.seq_lens[0] = -1; }, kInvalid, Resource::sequence_length,
       "got -1"},
      {"negative blocks", [](Small& s) { s.num_blocks[0] = -1; }, kInvalid, Resource::num_blocks,
       "got -1"},
      {"q offsets fall", [](Small& s) { s.q_offsets[1] = 3; }, kInvalid, Resource::num_tokens,
       "got -1"},
      {"more q than tokens",
       [](Small& s) {
         s.q_offsets = {0, 4, 5};
         s.limits.max_q_tokens = 9;
       },
       kInvalid, Resource::num_tokens, "got 4, expected 0 to 3"},
      {"page shift",
       [](Small& s) {
         s.args.batch.tables.pages = s.seq_lens.data();
         s.args.batch.tables.page_shift = 31;
       },
       kInvalid, Resource::block_index, "page_shift"},
  };
  return cases;
}

const std::vector<BadArgument>& bad_strides() {
  constexpr auto kInvalid = StatusCode::invalid_argument;
  static const std::vector<BadArgument> cases{
      {"q tokens overlap", [](Small& s) { s.args.q_token_stride_bytes = 4; }, kInvalid,
       Resource::span_size, "q_token_stride_bytes"},
      {"negative out stride", [](Small& s) { s.args.out_token_stride_bytes = -4; }, kInvalid,
       Resource::span_size, "out_token_stride_bytes"},
      {"odd q stride", [](Small& s) { s.args.q_token_stride_bytes = (1 << 20) + 1; }, kInvalid,
       Resource::alignment, "misaligned q_token_stride_bytes"},
      {"odd out stride", [](Small& s) { s.args.out_token_stride_bytes = (1 << 20) + 1; }, kInvalid,
       Resource::alignment, "misaligned out_token_stride_bytes"},
      {"endless q stride", [](Small& s) { s.args.q_token_stride_bytes = std::int64_t{1} << 41; },
       kInvalid, Resource::span_size, "got 2199023255552"},
  };
  return cases;
}

TEST(AttentionValidate, AcceptsGoodArguments) {
  Small small;
  EXPECT_TRUE(validate(small.args, Validation::checked).is_ok());
  EXPECT_TRUE(small.plan().is_ok());
}

TEST(AttentionValidate, NamesEachBadArgumentAndRunsNothing) {
  std::vector<BadArgument> all = bad_arguments();
  all.insert(all.end(), bad_strides().begin(), bad_strides().end());
  for (const BadArgument& bad : all) {
    Small small;
    const auto plan = small.plan();
    ASSERT_TRUE(plan.is_ok());
    bad.spoil(small);
    const Status status = validate(small.args);
    EXPECT_EQ(status.code, bad.code) << bad.name;
    EXPECT_EQ(status.resource, bad.resource) << bad.name;
    EXPECT_NE(describe_attention(status).find(bad.text), std::string::npos)
        << bad.name << ": " << describe_attention(status);
  }
}

TEST(AttentionValidate, TreesHaveAtMost64QueryTokensARow) {
  Small small;
  const std::vector<std::uint64_t> masks(65, 1);
  small.args.tree_mask = masks.data();
  EXPECT_OK(validate(small.args));
  const std::vector<std::int64_t> offsets{0, 65, 66};
  const std::vector<std::int32_t> lengths{65, 1};
  const std::vector<std::int32_t> blocks{65, 65};
  small.args.q_offsets = offsets.data();
  small.args.batch.seq_lens = lengths.data();
  small.args.batch.num_blocks = blocks.data();
  small.args.batch.num_rows = 2;
  EXPECT_EQ(validate(small.args).resource, Resource::num_tokens);
}

TEST(AttentionValidate, APlanWithoutTreesRefusesThem) {
  Small small;
  auto workers = CpuWorkers::create(1);
  const auto plan = small.plan();
  ASSERT_TRUE(plan.is_ok());
  const std::vector<std::uint64_t> masks(8, 1);
  small.args.tree_mask = masks.data();
  const Status status = run_attention(*plan, small.args, *workers);
  EXPECT_EQ(status.code, StatusCode::unsupported);
  EXPECT_NE(describe_attention(status).find("tree_mask"), std::string::npos);
}

TEST(AttentionValidate, RunRefusesWithoutWriting) {
  Small small;
  auto workers = CpuWorkers::create(2);
  const auto plan = small.plan();
  ASSERT_TRUE(plan.is_ok());
  small.out.fill(7.0F);
  const auto refused = [&](const std::function<void(Small&)>& spoil, Resource resource) {
    const AttentionArgs saved = small.args;
    spoil(small);
    const Status status = run_attention(*plan, small.args, *workers);
    EXPECT_EQ(status.resource, resource) << describe_attention(status);
    small.args = saved;
    for (const float value : small.out) ASSERT_EQ(value, 7.0F);
  };
  refused([](Small& s) { s.args.q = nullptr; }, Resource::pointer);
  refused([](Small& s) { s.args.out = nullptr; }, Resource::pointer);
  refused([](Small& s) { s.args.out = reinterpret_cast<std::byte*>(s.out.data()) + 1; },
          Resource::alignment);
  refused([](Small& s) { s.args.kv.key.dtype = DType::int8; }, Resource::dtype);
  refused([](Small& s) { s.args.num_q_heads = 8; }, Resource::num_q_heads);
  refused([](Small& s) { s.args.window_tokens = 4; }, Resource::window);
  refused([](Small& s) { s.args.batch.num_rows = 1; }, Resource::num_sequences);
  small.seq_lens[1] = 21;  // grown since the plan was made
  refused([](Small&) {}, Resource::num_tokens);
  small.seq_lens[1] = 20;
  auto crowd = CpuWorkers::create(3);
  EXPECT_EQ(run_attention(*plan, small.args, *crowd).resource, Resource::num_threads);
  EXPECT_TRUE(run_attention(*plan, small.args, *workers).is_ok());
}

TEST(AttentionValidate, CheckedModeFindsEntriesOutsideThePool) {
  for (const std::int32_t id : {-1, 3, 1 << 28}) {
    Small small;
    small.entries[2] = BlockId{id};
    EXPECT_TRUE(validate(small.args).is_ok());
    const Status status = validate(small.args, Validation::checked);
    EXPECT_EQ(status.resource, Resource::block_index);
    EXPECT_EQ(static_cast<std::int64_t>(status.subject), id);
    EXPECT_EQ(status.available, 2U);
  }
}

TEST(AttentionPlanning, RefusesBadLimitsAndWorkspaces) {
  Small small;
  const auto refused = [&small](const std::function<void(AttentionLimits&)>& spoil,
                                test::Blame blame) {
    AttentionLimits limits = small.limits;
    spoil(limits);
    const auto plan = plan_attention(small.args, limits, small.workspace);
    ASSERT_FALSE(plan.is_ok());
    EXPECT_TRUE(blame.is_on(plan.status())) << describe_attention(plan.status());
  };
  refused([](AttentionLimits& l) { l.path = static_cast<CpuPath>(99); }, Option::path);
  refused([](AttentionLimits& l) { l.max_rows = 1; }, Resource::num_sequences);
  refused([](AttentionLimits& l) { l.max_q_tokens = 1; }, Resource::num_tokens);
  refused([](AttentionLimits& l) { l.num_threads = 0; }, Option::num_threads);
  refused([](AttentionLimits& l) { l.num_q_heads = 3; }, Option::num_q_heads);
  refused([](AttentionLimits& l) { l.num_kv_heads = 4; }, Resource::num_kv_heads);
  refused([](AttentionLimits& l) { l.head_dim_v = 16; }, Resource::head_dim);
  const auto bytes = static_cast<std::size_t>(attention_workspace_bytes(small.limits).value());
  const std::span<std::byte> all(small.workspace);
  EXPECT_TRUE(plan_attention(small.args, small.limits, all.first(bytes)).is_ok());
  const Status small_one = plan_attention(small.args, small.limits, all.first(bytes - 1)).status();
  EXPECT_EQ(small_one.code, StatusCode::limit_exceeded);
  EXPECT_EQ(small_one.required, bytes);
  EXPECT_EQ(small_one.available, bytes - 1);
  EXPECT_EQ(describe_attention(small_one),
            "workspace is too small; ask attention_workspace_bytes(limits): " +
                std::to_string(bytes) + " bytes needed, " + std::to_string(bytes - 1) + " given");
  EXPECT_EQ(plan_attention(small.args, small.limits, all.subspan(8)).status().resource,
            Resource::alignment);
}

TEST(AttentionPlanning, AnEmptyBatchDoesNothing) {
  Small small;
  small.args.batch = {};
  small.args.q_offsets = nullptr;
  const auto plan = small.plan();
  ASSERT_TRUE(plan.is_ok()) << describe_attention(plan.status());
  auto workers = CpuWorkers::create(2);
  EXPECT_TRUE(run_attention(*plan, small.args, *workers).is_ok());
}

}  // namespace
}  // namespace kvarena
