// What launchers refuse: the status names the argument, its value and what is supported, and
// nothing is launched, so that these tests need no GPU. Pointers are the host's: a launch would
// fault.

#include "kernel/cuda_pool.hpp"
#include "kernels/append/append.h"
#include "kernels/common/launch_checks.h"
#include "kernels/copy_blocks/copy_blocks.h"
#include "kernels/gather/gather.h"
#include "kernels/prefill/prefill.h"
#include "kernels/scrub/scrub.h"

#include "support/status_matchers.hpp"

#include <vector>

namespace kvarena::test {
namespace {

using kernels::AppendParams;
using kernels::AppendRunsParams;
using kernels::AttentionParams;
using kernels::CopyBlocksParams;
using kernels::GatherParams;
using kernels::launch_append;
using kernels::launch_append_runs;
using kernels::launch_convert_blocks;
using kernels::launch_copy_blocks;
using kernels::launch_gather;
using kernels::launch_prefill;
using kernels::launch_scatter;
using kernels::launch_scrub;
using kernels::PrefillParams;
using kernels::ScrubParams;
using kernels::TokenRun;

// Validation needs no GPU: nothing is launched.
struct BadAppend {
  AppendParams params;
  BadAppend() {
    params.kv = view_of(PoolShape{}, memory.data());
    params.key = params.value = memory.data();
    params.slots = &slot;
    params.num_tokens = 1;
    params.dtype = DType::bf16;
  }
  std::vector<std::byte> memory = std::vector<std::byte>(std::size_t{1} << 17);
  std::int64_t slot = 0;
  Status launch() const { return launch_append(params, false, nullptr); }
};

TEST(CudaAppendArguments, NameWhatIsWrong) {
  const auto fails = [](auto change, StatusCode code, Resource resource) {
    BadAppend bad;
    change(bad.params);
    const Status status = bad.launch();
    EXPECT_EQ(status.code, code) << describe(status);
    EXPECT_EQ(status.resource, resource) << describe(status);
  };
  using P = AppendParams&;
  constexpr auto kInvalid = StatusCode::invalid_argument;
  constexpr auto kUnsupported = StatusCode::unsupported;
  fails([](P p) { p.key = nullptr; }, kInvalid, Resource::pointer);
  fails([](P p) { p.value = nullptr; }, kInvalid, Resource::pointer);
  fails([](P p) { p.slots = nullptr; }, kInvalid, Resource::pointer);
  fails([](P p) { p.kv.key.base = nullptr; }, kInvalid, Resource::pointer);
  fails([](P p) { p.key = static_cast<const std::byte*>(p.key) + 1; }, kInvalid,
        Resource::alignment);
  fails([](P p) { p.kv.value.head_stride += 1; }, kInvalid, Resource::alignment);
  fails([](P p) { p.num_tokens = -1; }, kInvalid, Resource::num_tokens);
  fails([](P p) { p.num_tokens = 1LL << 31; }, kInvalid, Resource::num_tokens);
  fails([](P p) { p.kv.block_size = 0; }, kInvalid, Resource::block_size);
  fails([](P p) { p.kv.num_blocks = 0; }, kInvalid, Resource::num_blocks);
  fails([](P p) { p.kv.key.num_heads = 0; }, kInvalid, Resource::num_kv_heads);
  fails([](P p) { p.kv.value.num_heads = 1; }, kInvalid, Resource::num_kv_heads);
  fails([](P p) { p.kv.key.head_dim = 0; }, kInvalid, Resource::head_dim);
  fails([](P p) { p.dtype = DType::int8; }, kUnsupported, Resource::dtype);
  fails([](P p) { p.kv.key.dtype = DType::int8; }, kUnsupported, Resource::dtype);
  fails([](P p) { p.kv.key.tile_order = TileOrder::chunked, p.kv.block_size = 8; }, kUnsupported,
        Resource::tile_order);
  fails([](P p) { p.kv.key.tile_order = TileOrder::chunked, p.kv.key.head_dim = 40; }, kUnsupported,
        Resource::head_dim);
}

TEST(CudaAppendArguments, NoTokensIsNothingToDo) {
  BadAppend bad;
  bad.params.num_tokens = 0;
  bad.params.key = bad.params.value = nullptr;
  EXPECT_OK(bad.launch());
}

TEST(CudaAppendArguments, OfRunsNameWhatIsWrong) {
  BadAppend good;
  const BlockId entry(0);
  const std::int64_t offsets[] = {0, 1};
  const TokenRun run{0, 0};
  const auto fails = [&](auto change, StatusCode code, Resource resource) {
    AppendRunsParams params{};
    params.kv = good.params.kv;
    params.key = params.value = good.params.key;
    params.tables = {&entry, nullptr, offsets, 0, 1};
    params.runs = &run;
    params.run_offsets = offsets;
    params.num_runs = params.num_tokens = 1;
    params.dtype = DType::bf16;
    change(params);
    EXPECT_TRUE(fails_with(launch_append_runs(params, false, nullptr), code, resource));
  };
  using P = AppendRunsParams&;
  constexpr auto kInvalid = StatusCode::invalid_argument;
  fails([](P p) { p.runs = nullptr; }, kInvalid, Resource::pointer);
  fails([](P p) { p.run_offsets = nullptr; }, kInvalid, Resource::pointer);
  fails([](P p) { p.tables.entries = nullptr; }, kInvalid, Resource::pointer);
  fails([](P p) { p.tables.row_offsets = nullptr; }, kInvalid, Resource::pointer);
  fails([](P p) { p.tables.num_rows = 0; }, kInvalid, Resource::num_sequences);
  fails([](P p) { p.num_runs = -1; }, kInvalid, Resource::num_sequences);
  fails([](P p) { p.num_tokens = -1; }, kInvalid, Resource::num_tokens);
  fails([](P p) { p.kv.num_blocks = -1; }, kInvalid, Resource::num_blocks);
  fails([](P p) { p.value = static_cast<const std::byte*>(p.value) + 1; }, kInvalid,
        Resource::alignment);
  fails([](P p) { p.dtype = DType::int8; }, StatusCode::unsupported, Resource::dtype);
}

// The value that was given and the list of what would do, in one line.
TEST(CudaArguments, UnsupportedOnesComeWithTheList) {
  BadAppend bad;
  bad.params.dtype = DType::int8;
  EXPECT_EQ(kernels::describe_launch(bad.launch()),
            "unsupported dtype: got bf16; supported: equal types; f32, f16 and bf16 to each other; "
            "fp8_e4m3 from and to those three; from those three to latent_fp8");
  bad.params.dtype = DType::bf16;
  bad.params.kv.key.tile_order = TileOrder::chunked;
  bad.params.kv.block_size = 24;
  EXPECT_EQ(
      kernels::describe_launch(bad.launch()),
      "unsupported tile_order: got chunked with block_size 24; supported: rows; chunked where "
      "block_size is a multiple of 16");
  bad.params.kv.block_size = 16;
  bad.params.kv.key.head_dim = 40;
  EXPECT_EQ(
      kernels::describe_launch(bad.launch()),
      "unsupported head_dim: got 40; supported: multiples of 32 bytes a token in chunked order");
  bad.params.kv.key.head_dim = 64;
  bad.params.kv.key.dtype = DType::f32;
  EXPECT_EQ(kernels::describe_launch(bad.launch()),
            "unsupported dtype: got f32; supported: f16, bf16, fp8_e4m3, int8 in chunked order");
  bad.params.num_tokens = -3;
  bad.params.kv.key.dtype = DType::bf16;
  EXPECT_EQ(kernels::describe_launch(bad.launch()),
            "invalid num_tokens: got -3, expected 0 to 2147483647");
}

TEST(CudaBlocksArguments, NameWhatIsWrong) {
  std::byte base[16] = {};
  const BlockCopy copy{BlockId(0), BlockId(1)};
  const auto fails = [&](auto change, Resource resource) {
    CopyBlocksParams params{base, 16, 16, &copy, 1, 2};
    change(params);
    const Status status = launch_copy_blocks(params, nullptr);
    EXPECT_EQ(status.code, StatusCode::invalid_argument) << describe(status);
    EXPECT_EQ(status.resource, resource) << describe(status);
  };
  using P = CopyBlocksParams&;
  fails([](P p) { p.base = nullptr; }, Resource::pointer);
  fails([](P p) { p.copies = nullptr; }, Resource::pointer);
  fails([](P p) { p.bytes = 17; }, Resource::block_bytes);
  fails([](P p) { p.num_blocks = 0; }, Resource::num_blocks);
  fails([](P p) { p.num_planes = 0; }, Resource::num_planes);
  fails([](P p) { p.num_copies = -1; }, Resource::capacity);
  EXPECT_OK(launch_copy_blocks({base, 16, 16, nullptr, 0, 2}, nullptr));
}

TEST(CudaBlocksArguments, OfScrubNameWhatIsWrong) {
  std::vector<std::byte> memory(std::size_t{1} << 16);
  const std::int64_t plane = 2 * 16 * 64 * 2;
  const auto fails = [&](auto change, Resource resource) {
    kernels::BlockScrub scrub{BlockId(0), BlockId(0), 0};
    ScrubParams params{view_of(PoolShape{}, memory.data()), plane, plane, 1, 0, &scrub, 1};
    change(params, scrub);
    EXPECT_TRUE(fails_with(launch_scrub(params, nullptr), StatusCode::invalid_argument, resource));
  };
  using P = ScrubParams&;
  using S = kernels::BlockScrub&;
  fails([](P p, S) { p.kv.key.base = nullptr; }, Resource::pointer);
  fails([](P p, S) { p.scrubs = nullptr; }, Resource::pointer);
  fails([](P p, S) { p.key_bytes -= 1; }, Resource::block_bytes);
  fails([](P p, S) { p.value_bytes = p.kv.value.block_stride + 1; }, Resource::block_bytes);
  fails([](P p, S) { p.kv.key.token_stride += 2; }, Resource::alignment);
  fails([](P p, S) { p.kv.value.head_stride += 2; }, Resource::alignment);
  fails([](P p, S) { p.kv.num_blocks = 0; }, Resource::num_blocks);
  fails([](P p, S) { p.num_layers = 0; }, Resource::num_planes);
  fails([](P p, S) { p.num_scrubs = -1; }, Resource::capacity);
  fails([](P p, S s) { s.target = BlockId(static_cast<std::int32_t>(p.kv.num_blocks)); },
        Resource::block_index);
  fails([](P, S s) { s.source = kNoBlock; }, Resource::block_index);
  fails([](P, S s) { s.kept_tokens = 17; }, Resource::num_tokens);
  fails([](P, S s) { s.kept_tokens = -1; }, Resource::num_tokens);
  EXPECT_OK(
      launch_scrub({view_of(PoolShape{}, memory.data()), plane, plane, 1, 0, nullptr, 0}, nullptr));
}

TEST(CudaGatherArguments, NameWhatIsWrong) {
  std::vector<std::byte> memory(std::size_t{1} << 17);
  std::byte* base = memory.data();
  const std::int64_t offset = 0;
  const BlockId entry(0);
  const auto fails = [&](auto change, StatusCode code, Resource resource) {
    GatherParams params{view_of(PoolShape{}, base),
                        {&entry, nullptr, &offset, 0, 1},
                        0,
                        0,
                        1,
                        base,
                        base,
                        DType::bf16};
    change(params);
    const Status status = launch_gather(params, nullptr);
    EXPECT_EQ(status.code, code) << describe(status);
    EXPECT_EQ(status.resource, resource) << describe(status);
    const Status back = launch_scatter({params.kv, params.tables, params.row, params.first_token,
                                        params.num_tokens, params.key, params.value, params.dtype},
                                       nullptr);
    EXPECT_EQ(back.code, code) << describe(back);
    EXPECT_EQ(back.resource, resource) << describe(back);
  };
  using P = GatherParams&;
  constexpr auto kInvalid = StatusCode::invalid_argument;
  fails([](P p) { p.tables.entries = nullptr; }, kInvalid, Resource::pointer);
  fails([](P p) { p.tables.row_offsets = nullptr; }, kInvalid, Resource::pointer);
  fails([](P p) { p.key = p.value = nullptr; }, kInvalid, Resource::pointer);
  fails([](P p) { p.key = static_cast<std::byte*>(p.key) + 1; }, kInvalid, Resource::alignment);
  fails([](P p) { p.row = 1; }, kInvalid, Resource::num_sequences);
  fails([](P p) { p.first_token = -1; }, kInvalid, Resource::token_index);
  fails([](P p) { p.num_tokens = -1; }, kInvalid, Resource::num_tokens);
  fails([](P p) { p.kv.block_size = 0; }, kInvalid, Resource::block_size);
  fails([](P p) { p.dtype = DType::int8; }, StatusCode::unsupported, Resource::dtype);

  PoolShape other;
  const BlockCopy copy{BlockId(0), BlockId(0)};
  const KvLayerView kv = view_of(other, base);
  other.block_size = 32;
  EXPECT_FAILS(launch_convert_blocks({kv, view_of(other, base), &copy, 1}, nullptr),
               invalid_argument, block_size);
  other = {};
  other.dim_v = 96;
  EXPECT_FAILS(launch_convert_blocks({kv, view_of(other, base), &copy, 1}, nullptr),
               invalid_argument, head_dim);
  EXPECT_FAILS(launch_convert_blocks({kv, kv, nullptr, 1}, nullptr), invalid_argument, pointer);
}

TEST(CudaPrefillArguments, NameWhatIsWrong) {
  std::vector<std::byte> memory(std::size_t{1} << 17);
  std::byte* base = memory.data();
  const std::int64_t offset = 0;
  const BlockId entry(0);
  const std::int32_t len = 1;
  float lse = 0.0F;
  const auto fails = [&](auto change, StatusCode code, Resource resource) {
    PrefillParams params;
    params.attention = {view_of(PoolShape{}, base),
                        {{&entry, nullptr, &offset, 0, 1}, &len, nullptr, 1},
                        nullptr,
                        base,
                        base,
                        &lse,
                        4,
                        0,
                        1.0F,
                        0.0F,
                        DType::bf16,
                        DType::bf16};
    params.total_q = 1;
    change(params, params.attention);
    const Status status = launch_prefill(params, nullptr);
    EXPECT_EQ(status.code, code) << describe(status);
    EXPECT_EQ(status.resource, resource) << describe(status);
  };
  using P = PrefillParams&;
  using A = AttentionParams&;
  constexpr auto kInvalid = StatusCode::invalid_argument;
  constexpr auto kUnsupported = StatusCode::unsupported;
  fails([](P, A a) { a.q = nullptr; }, kInvalid, Resource::pointer);
  fails([](P, A a) { a.out = nullptr; }, kInvalid, Resource::pointer);
  fails([](P, A a) { a.batch.seq_lens = nullptr; }, kInvalid, Resource::pointer);
  fails([](P, A a) { a.batch.tables.entries = nullptr; }, kInvalid, Resource::pointer);
  fails([](P, A a) { a.q = static_cast<const std::byte*>(a.q) + 1; }, kInvalid,
        Resource::alignment);
  fails([](P, A a) { a.q_token_stride = (1 << 20) + 1; }, kInvalid, Resource::alignment);
  fails([](P, A a) { a.out_token_stride = (1 << 20) + 1; }, kInvalid, Resource::alignment);
  fails([](P, A a) { a.q_token_stride = 2; }, kInvalid, Resource::span_size);
  fails([](P, A a) { a.out_token_stride = -2; }, kInvalid, Resource::span_size);
  fails([](P, A a) { a.num_q_heads = 3; }, kInvalid, Resource::num_q_heads);
  fails([](P, A a) { a.num_q_heads = 0; }, kInvalid, Resource::num_q_heads);
  fails([](P, A a) { a.scale = 0.0F; }, kInvalid, Resource::scale);
  fails([](P, A a) { a.soft_cap = -1.0F; }, kInvalid, Resource::soft_cap);
  fails([](P, A a) { a.window_tokens = -1; }, kInvalid, Resource::window);
  fails([](P p, A) { p.total_q = -1; }, kInvalid, Resource::num_tokens);
  fails([](P, A a) { a.q_dtype = DType::int8; }, kUnsupported, Resource::dtype);
  fails([](P, A a) { a.kv.key.dtype = DType::int8; }, kUnsupported, Resource::dtype);
  fails([](P, A a) { a.kv.key.head_dim = a.kv.value.head_dim = 2048; }, kUnsupported,
        Resource::head_dim);
}

}  // namespace
}  // namespace kvarena::test
