// KvCache::create on a GPU: what it takes and gives back, the tile order it chooses, what it
// refuses.

#include "support/faulty_device.hpp"
#include "support/gpu.hpp"
#include "support/status_matchers.hpp"

#include "kvarena/cache/kv_cache.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

namespace kvarena {
namespace {

KvCacheOptions options_of(DType dtype, std::int32_t head_dim, std::int32_t block_size) {
  return {.layout = {.num_layers = 2,
                     .num_kv_heads = 2,
                     .head_dim_k = head_dim,
                     .dtype = dtype,
                     .block_size_tokens = block_size},
          .size = {.num_blocks = 64},
          .num_q_heads = 4,
          .max_sequences = 8,
          .max_step_tokens = 64};
}

class CudaCreate : public ::testing::Test {
 protected:
  void SetUp() override {
    KVARENA_NEEDS_GPU();
    device = test::make_cuda();
    ASSERT_NE(device, nullptr);
    before = device->tracker().breakdown();
  }
  std::unique_ptr<CudaDevice> device;
  MemoryBreakdown before;
};

TEST_F(CudaCreate, ChunkedWhereItFitsUnlessTheEngineSaysOtherwise) {
  struct Choice {
    DType dtype;
    std::int32_t head_dim, block_size;
    std::optional<TileOrder> asked;
    TileOrder expected;
  };
  const Choice choices[] = {
      {DType::bf16, 64, 16, std::nullopt, TileOrder::chunked},
      {DType::f16, 160, 32, std::nullopt, TileOrder::chunked},
      {DType::fp8_e4m3, 128, 16, std::nullopt, TileOrder::chunked},
      {DType::bf16, 64, 16, TileOrder::rows, TileOrder::rows},
      {DType::bf16, 64, 24, std::nullopt, TileOrder::rows},
      {DType::bf16, 40, 16, std::nullopt, TileOrder::rows},
      {DType::f32, 64, 16, std::nullopt, TileOrder::rows},
  };
  for (std::size_t i = 0; i < std::size(choices); ++i) {
    KvCacheOptions options =
        options_of(choices[i].dtype, choices[i].head_dim, choices[i].block_size);
    options.layout.tile_order = choices[i].asked;
    const Result<KvCache> cache = KvCache::create(*device, options);
    ASSERT_OK(cache) << "choice " << i;
    EXPECT_EQ(cache->arena().layout().tile_order(), choices[i].expected) << "choice " << i;
  }
}

/// Takes all memory of the device that an allocation can get, in pieces down to 4 KiB.
std::vector<void*> fill_up(CudaDevice& device) {
  std::vector<void*> pieces;
  for (std::uint64_t bytes = std::uint64_t{1} << 36; bytes >= 4096; bytes /= 2) {
    while (true) {
      const Result<void*> piece =
          device.allocate({.bytes = bytes, .purpose = MemoryPurpose::intermediate_buffers});
      if (!piece) break;
      pieces.push_back(*piece);
    }
  }
  return pieces;
}

// CUDA loads the code of a kernel at its first launch; create does it before.
TEST_F(CudaCreate, EveryKernelRunsOnAGpuThatIsFullByThen) {
  for (const DType dtype : {DType::bf16, DType::f32}) {
    KvCacheOptions options = options_of(dtype, 128, 16);
    options.scrub = Scrub::always;
    Result<KvCache> cache = KvCache::create(*device, options);
    ASSERT_OK(cache);
    const Result<void*> tokens =
        device->allocate({.bytes = 1 << 20, .purpose = MemoryPurpose::intermediate_buffers});
    ASSERT_OK(tokens);
    std::byte* const out = static_cast<std::byte*>(*tokens) + (1 << 19);
    const std::vector<void*> pieces = fill_up(*device);
    const SequenceId parent = *cache->create_sequence();
    SequenceId child = parent;
    for (const std::int32_t count : {20, 1, 1}) {  // a prompt, a decode step, copies on write
      if (count == 1 && child == parent) {
        child = *cache->fork(parent, 20);
      }
      ASSERT_OK(cache->begin_step());
      std::vector<AppendDemand> demands{{parent, count}};
      if (child != parent) demands.push_back({child, count});
      ASSERT_OK(cache->append(demands));
      for (std::int32_t layer = 0; layer < 2; ++layer) {
        ASSERT_OK(cache->write_kv({layer, *tokens, *tokens, dtype}));
        ASSERT_OK(cache->attend({layer, *tokens, dtype, out, dtype}));
      }
      ASSERT_OK(cache->end_step());
      ASSERT_OK(cache->synchronize());
    }
    for (void* piece : pieces) ASSERT_OK(device->free(piece));
    ASSERT_OK(device->free(*tokens));
  }
}

TEST_F(CudaCreate, OnePoolAllocationAndEveryByteBackAfterEachLife) {
  for (int life = 0; life < 5; ++life) {
    KvCacheOptions options = options_of(DType::bf16, 64, 16);
    options.window_tokens = life % 2 == 0 ? 0 : 20;
    Result<KvCache> cache = KvCache::create(*device, options);
    ASSERT_OK(cache);
    const MemoryBreakdown used = device->tracker().breakdown();
    const auto pool = static_cast<std::size_t>(MemoryPurpose::kv_cache);
    EXPECT_EQ(used.by_purpose[pool].count, 1U);
    EXPECT_EQ(used.by_purpose[pool].bytes, static_cast<std::uint64_t>(cache->arena().bytes()));
    const SequenceId id = *cache->create_sequence();
    ASSERT_OK(cache->begin_step());
    ASSERT_OK(cache->append(std::vector<AppendDemand>{{id, 9}}));
    if (life < 3) {
      ASSERT_OK(cache->end_step());
    }
    ASSERT_OK(cache->fence(cache->stream()));
  }
  EXPECT_EQ(device->tracker().breakdown().total.count, before.total.count);
  EXPECT_EQ(device->tracker().breakdown().total.bytes, before.total.bytes);
}

TEST_F(CudaCreate, RefusesByNameAndLeavesNothing) {
  struct Refusal {
    StatusCode code;
    test::Blame blame;
    std::function<void(KvCacheOptions&)> spoil;
  };
  const Refusal refusals[] = {
      {StatusCode::unsupported, Option::dtype,
       [](KvCacheOptions& o) { o.layout.dtype = DType::int8; }},
      {StatusCode::unsupported, Option::head_dim_k,
       [](KvCacheOptions& o) { o.layout.head_dim_k = 2048; }},
      {StatusCode::unsupported, Option::tile_order,
       [](KvCacheOptions& o) {
         o.layout.tile_order = TileOrder::chunked;
         o.layout.block_size_tokens = 8;
       }},
      {StatusCode::invalid_argument, Option::num_q_heads,
       [](KvCacheOptions& o) { o.num_q_heads = 3; }},
      {StatusCode::insufficient_vram, Resource::device_memory,
       [](KvCacheOptions& o) { o.size = {.num_blocks = 1 << 28}; }},
  };
  for (std::size_t i = 0; i < std::size(refusals); ++i) {
    KvCacheOptions options = options_of(DType::bf16, 64, 16);
    refusals[i].spoil(options);
    const Status status = KvCache::create(*device, options).status();
    EXPECT_TRUE(test::fails_with(status, refusals[i].code, refusals[i].blame)) << i;
    EXPECT_EQ(device->tracker().breakdown().total.count, before.total.count) << i;
  }
  test::FaultyDevice wrapped(*device);
  EXPECT_FAILS(KvCache::create(wrapped, options_of(DType::bf16, 64, 16)), unsupported, device);
  EXPECT_EQ(device->tracker().breakdown().total.count, before.total.count);
}

}  // namespace
}  // namespace kvarena
