// Dispatch on CUDA as far as the host decides it: which shapes decode attention takes, how large
// its workspace is, and that every bad argument is refused by name before anything is queued. Needs
// no GPU: no address is read.

#include "kvarena/attention/cuda_attention.hpp"

#include "attention/cuda/cuda_step.hpp"
#include "kvarena/base/latent_fp8.hpp"

#include "support/status_matchers.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <vector>

namespace kvarena {
namespace {

constexpr auto kInvalid = StatusCode::invalid_argument;
constexpr auto kUnsupported = StatusCode::unsupported;

/// Addresses that are aligned and never read.
template <class T>
T* address(std::uintptr_t value) {
  return reinterpret_cast<T*>(value);
}

/// Four rows, of which two are decode rows of one token and two have 10 tokens each, on a GPU that
/// has no kernel for many query columns.
struct Small {
  cuda::AttentionStep step;
  AttentionArgs args;

  Small() {
    args.kv.key = {address<std::byte>(1 << 20), 8192, 2048, 128, 2, 64, DType::bf16,
                   TileOrder::chunked};
    args.kv.value = args.kv.key;
    args.kv.value.base += 4096;
    args.kv.block_size = 16;
    args.kv.num_blocks = 50;
    args.batch.tables.entries = address<BlockId>(1 << 12);
    args.batch.tables.row_offsets = address<std::int64_t>(1 << 12);
    args.batch.tables.num_rows = args.batch.num_rows = 4;
    args.batch.seq_lens = address<std::int32_t>(1 << 12);
    args.q_offsets = address<std::int64_t>(1 << 12);
    args.q = address<void>(1 << 12);
    args.out = address<void>(1 << 12);
    args.q_dtype = args.out_dtype = DType::bf16;
    args.num_q_heads = 8;
    args.scale = 0.125F;
    step.shape = {
        .kv = args.kv, .num_q_heads = 8, .max_rows = 4, .max_decode_tokens = 2, .num_sms = 132};
    step.total_q = 22;
    step.rows.decode = 2;
    step.table_stride = 50;
    step.row_slots = address<std::int32_t>(1 << 12);
    step.workspace = address<void>(1 << 16);
    step.workspace_bytes = cuda::workspace_bytes(step.shape).value();
  }
};

TEST(CudaAttention, DecodeTakesChunkedTypesOfFourDims) {
  const auto takes = [](const std::function<void(KvLayerView&)>& change) {
    KvLayerView kv = Small().args.kv;
    kv.key.token_stride = kv.value.token_stride = 0;  // that of their elements
    change(kv);
    return cuda::takes_decode(kv, 8);
  };
  const auto both = [](KvLayerView& kv, auto change) {
    change(kv.key);
    change(kv.value);
  };
  EXPECT_TRUE(takes([](KvLayerView&) {}));
  for (const DType dtype : {DType::f16, DType::fp8_e4m3}) {
    EXPECT_TRUE(takes([&](KvLayerView& kv) { both(kv, [&](PlaneView& p) { p.dtype = dtype; }); }));
  }
  for (std::int32_t dim = 32; dim <= 512; dim += 32) {
    const bool expected = dim == 64 || dim == 96 || dim == 128 || dim == 256;
    EXPECT_EQ(takes([&](KvLayerView& kv) { both(kv, [&](PlaneView& p) { p.head_dim = dim; }); }),
              expected)
        << dim;
  }
  EXPECT_FALSE(takes(
      [&](KvLayerView& kv) { both(kv, [](PlaneView& p) { p.tile_order = TileOrder::rows; }); }));
  EXPECT_FALSE(
      takes([&](KvLayerView& kv) { both(kv, [](PlaneView& p) { p.dtype = DType::f32; }); }));
  EXPECT_FALSE(takes([](KvLayerView& kv) { kv.value.dtype = DType::f16; }));
  EXPECT_FALSE(takes([](KvLayerView& kv) { kv.value.head_dim = 96; }));
  EXPECT_FALSE(takes([](KvLayerView& kv) { kv.key.base += 8; }));
  EXPECT_FALSE(takes([](KvLayerView& kv) { kv.block_size = 24; }));
}

TEST(CudaAttention, MoreThan16QueryHeadsAKvHeadArePrefills) {
  Small s;
  const std::int32_t kv_heads = s.args.kv.key.num_heads;
  EXPECT_TRUE(cuda::takes_decode(s.args.kv, 16 * kv_heads));
  EXPECT_FALSE(cuda::takes_decode(s.args.kv, 17 * kv_heads));
  s.step.shape.num_q_heads = s.args.num_q_heads = 17 * kv_heads;
  EXPECT_LT(cuda::workspace_bytes(s.step.shape).value(), s.step.workspace_bytes)
      << "the plan of prompts alone";
  s.step.workspace = nullptr;
  s.step.workspace_bytes = 0;
  EXPECT_OK(cuda::launch_reset(s.step, nullptr)) << "nothing to make ready";
  EXPECT_OK(cuda::launch_schedule(s.step, s.args, nullptr)) << "nothing to schedule";
  EXPECT_OK(cuda::validate(s.step, s.args)) << "prefill takes the rows";
}

TEST(CudaAttention, PromptsOnHopperNeedAWorkspace) {
  Small s;
  s.step.rows = {.prompts = 4};
  s.step.workspace = nullptr;
  EXPECT_OK(cuda::validate(s.step, s.args)) << "the kernels for every GPU need none";
  s.step.shape.compute_capability = 90;
  EXPECT_TRUE(test::fails_with(cuda::validate(s.step, s.args), kInvalid, Resource::pointer));
}

TEST(CudaAttention, AWorkspaceServesEverySmallerStep) {
  Small s;
  s.step.shape.max_rows = 300;
  s.step.shape.max_decode_tokens = 16;
  s.step.workspace_bytes = cuda::workspace_bytes(s.step.shape).value();
  EXPECT_GT(s.step.workspace_bytes, 0);
  for (const std::int32_t capability : {0, 80, 90}) {
    s.step.shape.compute_capability = capability;
    for (std::int32_t rows = 1; rows <= 300; rows += 13) {
      s.step.shape.max_rows = rows;
      s.step.rows = {.decode = 1, .columns = capability == 90 && rows > 1 ? 1 : 0};
      ASSERT_OK(cuda::validate(s.step, s.args)) << rows << " rows, capability " << capability;
    }
  }
  s.step.shape.kv.key.tile_order = s.step.shape.kv.value.tile_order = TileOrder::rows;
  EXPECT_EQ(cuda::workspace_bytes(s.step.shape).value(), 0) << "prefill needs none";
}

// Decode attention over fp8 serves rows of more query tokens than max_decode_tokens on Hopper.
TEST(CudaAttention, AWorkspaceServesEveryStepOverFp8) {
  Small s;
  for (PlaneView* plane : {&s.args.kv.key, &s.args.kv.value}) {
    plane->dtype = DType::fp8_e4m3;
    plane->block_stride /= 2;
    plane->head_stride /= 2;
    plane->token_stride /= 2;
  }
  s.step.shape.kv = s.args.kv;
  s.step.shape.max_rows = 300;
  s.step.shape.max_decode_tokens = 1;
  s.step.workspace_bytes = cuda::workspace_bytes(s.step.shape).value();
  s.step.shape.compute_capability = 90;
  for (std::int32_t rows = 2; rows <= 300; rows += 13) {
    s.step.shape.max_rows = rows;
    const cuda::RowClasses classes = cuda::row_classes(s.step.shape);
    EXPECT_EQ(classes, (cuda::RowClasses{rows > 33 ? 4 : 2, 32}));
    for (std::int32_t tokens = 1; tokens <= classes.decode_tokens; ++tokens) {
      s.step.rows = {.decode = 1, .decode_tokens = tokens, .columns = 1, .column_tokens = 32};
      ASSERT_OK(cuda::validate(s.step, s.args)) << rows << " rows, " << tokens << " tokens";
    }
  }
}

TEST(CudaAttention, ARowsQueryTokensDecideItsKernel) {
  Small s;
  cuda::AttentionShape shape = s.step.shape;
  shape.kv.key.token_stride = shape.kv.value.token_stride = 0;  // that of their elements
  shape.max_decode_tokens = 5;
  EXPECT_EQ(cuda::row_classes(shape), (cuda::RowClasses{5, 0})) << "on every GPU";
  shape.compute_capability = 90;
  const auto on_hopper = [&](std::int32_t group) {
    cuda::AttentionShape other = shape;
    other.num_q_heads = group * shape.kv.key.num_heads;
    return cuda::row_classes(other);
  };
  EXPECT_EQ(on_hopper(1), (cuda::RowClasses{8, 64}));
  EXPECT_EQ(on_hopper(4), (cuda::RowClasses{2, 32}));
  EXPECT_EQ(on_hopper(7), (cuda::RowClasses{1, 18}));
  EXPECT_EQ(on_hopper(16), (cuda::RowClasses{0, 8})) << "one token has more than 8 columns";
  EXPECT_EQ(on_hopper(128), (cuda::RowClasses{0, 1}));
  EXPECT_EQ(on_hopper(129), (cuda::RowClasses{0, 0}));
  shape.draft_trees = true;
  EXPECT_EQ(on_hopper(4), (cuda::RowClasses{0, 32})) << "one kernel has masks";
  shape.draft_trees = false;
  shape.batch_invariant_tokens = 100000;
  EXPECT_EQ(on_hopper(4), (cuda::RowClasses{2, 16})) << "one launch shape";
  shape.batch_invariant_tokens = 0;
  shape.kv.key.dtype = shape.kv.value.dtype = DType::fp8_e4m3;
  EXPECT_EQ(on_hopper(4), (cuda::RowClasses{2, 32})) << "few rows";
  shape.max_rows = 300;
  EXPECT_EQ(on_hopper(4), (cuda::RowClasses{4, 32})) << "two operands for each tile";
  EXPECT_EQ(on_hopper(16), (cuda::RowClasses{1, 8}));
  shape.batch_invariant_tokens = 100000;
  EXPECT_EQ(on_hopper(4), (cuda::RowClasses{2, 16}));
  shape.batch_invariant_tokens = 0;
  shape.draft_trees = true;
  EXPECT_EQ(on_hopper(4), (cuda::RowClasses{0, 32}));
  shape.draft_trees = false;
  shape.kv.key.head_dim = shape.kv.value.head_dim = 256;
  EXPECT_EQ(on_hopper(4), (cuda::RowClasses{2, 32}));
  shape.kv.key.head_dim = shape.kv.value.head_dim = 80;
  EXPECT_EQ(on_hopper(4), (cuda::RowClasses{0, 0})) << "tokens of 80 bytes have no chunks";
  shape.kv.key.dtype = shape.kv.value.dtype = DType::f16;
  shape.kv.key.head_dim = shape.kv.value.head_dim = 80;
  EXPECT_EQ(on_hopper(4), (cuda::RowClasses{0, 32})) << "decode attention does not take 80";
  shape.compute_capability = 100;
  EXPECT_EQ(on_hopper(4), (cuda::RowClasses{0, 0}));
}

TEST(CudaAttention, ARowsKernelDoesNotDependOnTheSizeOfItsStep) {
  Small s;
  s.step.shape.compute_capability = 90;
  const cuda::RowClasses classes = cuda::row_classes(s.step.shape);
  for (const std::int32_t rows : {1, 8192, 16384, 16385, 1 << 20}) {
    s.step.shape.max_rows = rows;
    EXPECT_EQ(cuda::row_classes(s.step.shape), classes) << rows;
  }
}

TEST(CudaAttention, AStepOfAnyNumberOfRowsHasItsWorkspace) {
  Small s;
  s.step.shape.compute_capability = 90;
  s.step.shape.max_shared_rows = 4096;
  s.step.shape.max_rows = 100'000;
  s.step.workspace_bytes = cuda::workspace_bytes(s.step.shape).value();
  s.step.shares_prefixes = true;
  for (const std::int32_t rows : {1, 100, 12'288, 12'289, 16'384, 16'385, 100'000}) {
    s.step.shape.max_rows = rows;
    s.args.batch.num_rows = s.args.batch.tables.num_rows = rows;
    s.step.rows = {.columns = rows, .column_tokens = 8};
    s.step.total_q = 8 * std::int64_t{rows};
    EXPECT_OK(cuda::validate(s.step, s.args)) << rows;
  }
}

TEST(CudaAttention, RowsThatNoOtherKernelMayServeAreLimited) {
  Small s;
  s.step.shape.draft_trees = true;
  s.step.shape.max_rows = 16'384;
  EXPECT_TRUE(cuda::workspace_bytes(s.step.shape));
  s.step.shape.max_rows = 16'385;
  EXPECT_EQ(cuda::workspace_bytes(s.step.shape).status(),
            invalid_option(Option::max_rows, 16'385, 1, 16'384));
  s.step.shape.draft_trees = false;
  s.step.shape.batch_invariant_tokens = 100'000;
  EXPECT_EQ(cuda::workspace_bytes(s.step.shape).status(),
            invalid_option(Option::max_rows, 16'385, 1, 16'384));
}

TEST(CudaAttention, TreesNeedTheirKernelForEveryRow) {
  Small s;
  s.step.shape.compute_capability = 90;
  s.step.shape.draft_trees = true;
  s.step.rows = {.decode = 0, .columns = 4};
  s.step.workspace_bytes = cuda::workspace_bytes(s.step.shape).value();
  s.args.tree_mask = address<std::uint64_t>(1 << 12);
  EXPECT_OK(cuda::validate(s.step, s.args));
  const auto refused = [&](auto change) {
    Small other = s;
    change(other);
    return test::fails_with(cuda::validate(other.step, other.args), kUnsupported,
                            Resource::pointer);
  };
  s.args.batch.num_rows = s.args.batch.tables.num_rows = s.step.shape.max_rows = 5;
  s.step.workspace_bytes = cuda::workspace_bytes(s.step.shape).value();
  EXPECT_OK(cuda::validate(s.step, s.args)) << "a row without query tokens is no prompt";
  EXPECT_TRUE(refused([](Small& x) { x.step.rows.prompts = 1; })) << "a prompt";
  EXPECT_TRUE(refused([](Small& x) { x.step.shape.draft_trees = false; }));
  EXPECT_TRUE(refused([](Small& x) { x.step.shape.compute_capability = 80; }));
  EXPECT_TRUE(refused([](Small& x) { x.args.soft_cap = 30.0F; }));
  EXPECT_TRUE(refused([](Small& x) { x.args.q_dtype = x.args.out_dtype = DType::f32; }));
  s.args.tree_mask = address<std::uint64_t>(4100);
  EXPECT_TRUE(test::fails_with(cuda::validate(s.step, s.args), kInvalid, Resource::alignment));
}

struct BadArgument {
  StatusCode code;
  test::Blame blame;
  std::function<void(Small&)> spoil;
};

const std::vector<BadArgument>& bad_arguments() {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  static const std::vector<BadArgument> list{
      {kUnsupported, Resource::dtype, [](Small& s) { s.args.kv.key.dtype = DType::int8; }},
      {kUnsupported, Resource::dtype, [](Small& s) { s.args.q_dtype = DType::fp8_e4m3; }},
      {kUnsupported, Resource::dtype, [](Small& s) { s.args.out_dtype = DType::int8; }},
      {kUnsupported, Resource::tile_order, [](Small& s) { s.args.kv.block_size = 15; }},
      {kUnsupported, Resource::head_dim, [](Small& s) { s.args.kv.key.head_dim = 40; }},
      {kUnsupported, Resource::head_dim,
       [](Small& s) {
         s.args.kv.value.head_dim = 2048;
         s.args.kv.value.token_stride = 0;
       }},
      {kUnsupported, Resource::table_page,
       [](Small& s) { s.args.batch.tables.pages = address<std::int32_t>(64); }},
      {kUnsupported, Resource::pointer,
       [](Small& s) { s.args.tree_mask = address<std::uint64_t>(64); }},
      {kInvalid, Resource::pointer, [](Small& s) { s.args.kv.key.base = nullptr; }},
      {kInvalid, Resource::pointer, [](Small& s) { s.args.q = nullptr; }},
      {kInvalid, Resource::pointer, [](Small& s) { s.args.out = nullptr; }},
      {kInvalid, Resource::pointer, [](Small& s) { s.args.q_offsets = nullptr; }},
      {kInvalid, Resource::pointer, [](Small& s) { s.args.batch.seq_lens = nullptr; }},
      {kInvalid, Resource::pointer, [](Small& s) { s.args.batch.tables.entries = nullptr; }},
      {kInvalid, Resource::pointer, [](Small& s) { s.args.batch.tables.row_offsets = nullptr; }},
      {kInvalid, Resource::pointer, [](Small& s) { s.step.workspace = nullptr; }},
      {kInvalid, Resource::alignment, [](Small& s) { s.args.q = address<void>(4097); }},
      {kInvalid, Resource::alignment, [](Small& s) { s.args.lse = address<float>(4098); }},
      {kInvalid, Resource::alignment, [](Small& s) { s.step.workspace = address<void>(65664); }},
      {kInvalid, Resource::alignment, [](Small& s) { s.args.q_token_stride_bytes = 1025; }},
      {kInvalid, Resource::span_size, [](Small& s) { s.args.out_token_stride_bytes = 512; }},
      {kInvalid, Resource::alignment,
       [](Small& s) { s.args.q_offsets = address<std::int64_t>(4100); }},
      {kInvalid, Resource::alignment,
       [](Small& s) { s.args.batch.seq_lens = address<std::int32_t>(4097); }},
      {kInvalid, Resource::alignment,
       [](Small& s) { s.args.batch.tables.entries = address<BlockId>(4098); }},
      {kInvalid, Resource::alignment,
       [](Small& s) { s.args.batch.tables.row_offsets = address<std::int64_t>(4100); }},
      {kInvalid, Resource::alignment,
       [](Small& s) { s.step.row_slots = address<std::int32_t>(4097); }},
      {kInvalid, Resource::span_size, [](Small& s) { s.step.table_stride = -1; }},
      {kInvalid, Resource::num_kv_heads,
       [](Small& s) { s.step.shape.kv.key.num_heads = s.step.shape.kv.value.num_heads = 0; }},
      {kInvalid, Resource::num_kv_heads, [](Small& s) { s.step.shape.kv.key.num_heads = -2; }},
      {kInvalid, Resource::head_dim, [](Small& s) { s.step.shape.kv.value.head_dim = 0; }},
      {kInvalid, Resource::num_q_heads, [](Small& s) { s.args.num_q_heads = 7; }},
      {kInvalid, Resource::num_q_heads, [](Small& s) { s.step.shape.num_q_heads = 0; }},
      {kInvalid, Resource::scale, [](Small& s) { s.args.scale = 0.0F; }},
      {kInvalid, Resource::scale, [=](Small& s) { s.args.scale = kNaN; }},
      {kInvalid, Resource::soft_cap, [](Small& s) { s.args.soft_cap = -1.0F; }},
      {kInvalid, Resource::window, [](Small& s) { s.args.window_tokens = -1; }},
      {kInvalid, Resource::num_sequences, [](Small& s) { s.args.batch.num_rows = 5; }},
      {kInvalid, Resource::num_sequences, [](Small& s) { s.step.rows.decode = 5; }},
      {kInvalid, Resource::num_sequences, [](Small& s) { s.step.rows.decode = -1; }},
      {kInvalid, Resource::num_sequences, [](Small& s) { s.step.rows.columns = 3; }},
      {kInvalid, Resource::num_sequences, [](Small& s) { s.step.rows.columns = -1; }},
      {kInvalid, Option::max_rows, [](Small& s) { s.step.shape.max_rows = 0; }},
      {kInvalid, Option::max_decode_tokens, [](Small& s) { s.step.shape.max_decode_tokens = 17; }},
      {kInvalid, Option::batch_invariant_tokens,
       [](Small& s) { s.step.shape.batch_invariant_tokens = -1; }},
      {kInvalid, Resource::num_tokens, [](Small& s) { s.step.total_q = 1; }},
      {kInvalid, Option::num_sms, [](Small& s) { s.step.shape.num_sms = 0; }},
      {StatusCode::limit_exceeded, Resource::workspace,
       [](Small& s) { s.step.workspace_bytes = 4096; }},
  };
  return list;
}

TEST(CudaAttention, EveryBadArgumentIsRefusedByNameAndNothingIsQueued) {
  ASSERT_OK(cuda::validate(Small().step, Small().args));
  for (std::size_t i = 0; i < bad_arguments().size(); ++i) {
    const BadArgument& bad = bad_arguments()[i];
    Small s;
    bad.spoil(s);
    EXPECT_TRUE(test::fails_with(cuda::validate(s.step, s.args), bad.code, bad.blame)) << i;
    // The null stream is never reached.
    EXPECT_TRUE(
        test::fails_with(cuda::launch_attention(s.step, s.args, nullptr), bad.code, bad.blame))
        << i;
  }
}

// The numbers of the kernels' lists are not those of the checks of arguments.
TEST(CudaAttention, UnsupportedOnesComeWithTheirList) {
  Small s;
  s.args.kv.block_size = 24;
  EXPECT_EQ(
      describe_attention(cuda::validate(s.step, s.args)),
      "unsupported tile_order: got chunked with block_size 24; supported: rows; chunked where "
      "block_size is a multiple of 16");
  s = Small();
  s.args.kv.key.head_dim = 40;
  EXPECT_EQ(
      describe_attention(cuda::validate(s.step, s.args)),
      "unsupported head_dim: got 40; supported: multiples of 32 bytes a token in chunked order");
  s = Small();
  s.args.q_offsets = address<std::int64_t>(4100);
  EXPECT_EQ(describe_attention(cuda::validate(s.step, s.args)),
            "misaligned q_offsets: its address must be a multiple of 8; got 4 bytes past one");
}

TEST(CudaAttention, AShapeWithoutHeadsHasNoClasses) {
  for (const std::int32_t heads : {0, -1}) {
    cuda::AttentionShape shape = Small().step.shape;
    shape.compute_capability = 90;
    shape.num_q_heads = heads;
    EXPECT_EQ(cuda::row_classes(shape), cuda::RowClasses{}) << heads;
    EXPECT_TRUE(test::fails_with(cuda::workspace_bytes(shape), kInvalid, Resource::num_q_heads));
    shape = Small().step.shape;
    shape.compute_capability = 90;
    shape.kv.key.num_heads = shape.kv.value.num_heads = heads;
    EXPECT_EQ(cuda::row_classes(shape), cuda::RowClasses{}) << heads;
    EXPECT_TRUE(test::fails_with(cuda::workspace_bytes(shape), kInvalid, Resource::num_kv_heads));
  }
}

// The kernel for latents has no soft cap and no window.
TEST(CudaAttention, LatentsWithASoftCapTakeThePlainKernel) {
  for (const DType dtype : {DType::bf16, DType::fp8_e4m3, DType::latent_fp8}) {
    const std::int64_t row = row_bytes(dtype, 576);
    Small s;
    s.args.kv.key = {address<std::byte>(1 << 20),
                     16 * row,
                     16 * row,
                     row,
                     1,
                     576,
                     dtype,
                     dtype == DType::latent_fp8 ? TileOrder::rows : TileOrder::chunked};
    s.args.kv.value = s.args.kv.key;
    s.args.kv.value.head_dim = 512;
    s.step.shape.kv = s.args.kv;
    s.step.shape.compute_capability = 90;
    s.step.rows = {.columns = 4, .column_tokens = 10};
    s.step.workspace_bytes = cuda::workspace_bytes(s.step.shape).value();
    EXPECT_OK(cuda::validate(s.step, s.args));
    const cuda::StepPlan plan = cuda::plan_step(s.step, 4, 0);
    EXPECT_TRUE(cuda::layer_kernels(plan, s.args).has_columns) << name_of(dtype);
    s.args.soft_cap = 30.0F;
    EXPECT_OK(cuda::validate(s.step, s.args));
    const cuda::StepKernels capped = cuda::layer_kernels(plan, s.args);
    EXPECT_FALSE(capped.has_columns) << name_of(dtype);
    EXPECT_EQ(capped.num_prompts, 4) << name_of(dtype);
    EXPECT_EQ(cuda::plan_step(s.step, 4, 512).kernels.num_prompts, 4) << name_of(dtype);
  }
}

TEST(CudaAttention, AStepWithoutTokensQueuesNothing) {
  Small s;
  s.step.total_q = s.step.rows.decode = 0;
  s.args.q = s.args.out = nullptr;
  EXPECT_OK(cuda::launch_schedule(s.step, s.args, nullptr));
  EXPECT_OK(cuda::launch_attention(s.step, s.args, nullptr));
  EXPECT_OK(cuda::launch_append({.kv = s.args.kv, .dtype = DType::bf16}, false, nullptr));
}

TEST(CudaAttention, TokensApartByNoMultipleOf16BytesGoToTheKernelsForAll) {
  for (std::int64_t AttentionArgs::*stride :
       {&AttentionArgs::q_token_stride_bytes, &AttentionArgs::out_token_stride_bytes}) {
    Small s;
    s.args.*stride = 1024 + 16;
    EXPECT_OK(cuda::validate(s.step, s.args));
    s.step.workspace = nullptr;
    s.step.workspace_bytes = 0;
    EXPECT_TRUE(test::fails_with(cuda::validate(s.step, s.args), kInvalid, Resource::pointer))
        << "decode attention needs a workspace";
    s.args.*stride = 1024 + 8;
    EXPECT_OK(cuda::validate(s.step, s.args));
  }
}

TEST(CudaAttention, DecodeRowsOfOtherTypesNeedNoWorkspace) {
  Small s;
  s.step.workspace = nullptr;
  s.step.workspace_bytes = 0;
  s.args.q_dtype = DType::f32;
  EXPECT_OK(cuda::validate(s.step, s.args));
}

}  // namespace
}  // namespace kvarena
