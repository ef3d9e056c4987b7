// Block copies and scrubbing on the GPU: exactly the blocks named change.

#include "kernel/cuda_pool.hpp"
#include "kernels/copy_blocks/copy_blocks.h"
#include "kernels/reference/kv_write.hpp"
#include "kernels/scrub/scrub.h"

#include <algorithm>

#include "support/status_matchers.hpp"

namespace kvarena::test {
namespace {

using kernels::BlockScrub;
using kernels::CopyBlocksParams;
using kernels::launch_copy_blocks;
using kernels::launch_scrub;
using kernels::ScrubParams;

/// A region of a pool: block-major when there is one plane, layer-major else.
struct Region {
  std::int64_t bytes;
  std::int64_t block_stride;
  std::int64_t num_planes;
  std::int64_t offset = 0;
};

constexpr std::int64_t kBlocks = 23;
constexpr Region kRegions[] = {{64, 64, 1},   {16384, 16384, 1},  {16384 + 48, 32768, 1},
                               {100, 112, 1}, {7, 7, 1},          {2048, 2048, 6},
                               {48, 64, 5},   {4096, 4096, 1, 4}, {70000, 70000, 2}};

class CudaBlocks : public CudaTest {
 protected:
  static std::int64_t plane_stride(const Region& r) { return r.block_stride * kBlocks; }
  static std::vector<std::byte> region_bytes(const Region& r) {
    const std::int64_t bytes = r.offset + plane_stride(r) * r.num_planes;
    return random_elements((bytes + 3) / 4, DType::f32, 5);
  }
};

TEST_F(CudaBlocks, CopiesEqualTheReference) {
  for (const Region& r : kRegions) {
    std::vector<std::byte> host = region_bytes(r);
    const DeviceArray<std::byte> device(host);
    const auto ids = shuffled_ids(kBlocks, 9);
    std::vector<BlockCopy> copies;
    for (std::size_t i = 0; i < 8; ++i) {
      copies.push_back({BlockId(ids[i]), BlockId(ids[22 - i])});
    }
    copies[2].source = kNoBlock;
    CopyBlocksParams params{
        host.data() + r.offset, r.block_stride, r.bytes, copies.data(), 8, kBlocks,
        r.num_planes,           plane_stride(r)};
    kernels::reference::copy_blocks(params);
    // What lies outside the pool is skipped.
    copies.push_back({BlockId(0), BlockId(23)});
    copies.push_back({BlockId(23), BlockId(0)});
    copies.push_back({BlockId(0), kNoBlock});
    const DeviceArray<BlockCopy> list(copies);
    params.base = device.data() + r.offset;
    params.copies = list.data();
    params.num_copies = static_cast<std::int64_t>(copies.size());
    ASSERT_OK(launch_copy_blocks(params, stream_));
    finish();
    EXPECT_TRUE(same_bytes(device.download(), host))
        << r.bytes << " bytes, " << r.num_planes << " planes";
  }
}

// More copies than a grid has rows: thread blocks take several.
TEST_F(CudaBlocks, SeventyThousandCopies) {
  constexpr std::int64_t kMany = 70000;
  auto host = random_elements(2 * kMany * 4, DType::f32, 5);
  const DeviceArray<std::byte> device(host);
  std::vector<BlockCopy> copies;
  for (std::int32_t i = 0; i < kMany; ++i) copies.push_back({BlockId(2 * i), BlockId(2 * i + 1)});
  CopyBlocksParams params{host.data(), 16, 16, copies.data(), kMany, 2 * kMany};
  kernels::reference::copy_blocks(params);
  const DeviceArray<BlockCopy> list(copies);
  params.base = device.data();
  params.copies = list.data();
  ASSERT_OK(launch_copy_blocks(params, stream_));
  finish();
  EXPECT_TRUE(same_bytes(device.download(), host));
}

/// Pools whose scrub takes 16 bytes at a time, or single bytes; chunked tiles of each width.
std::vector<PoolShape> scrub_pools() {
  constexpr auto kChunked = TileOrder::chunked;
  std::vector<PoolShape> shapes = {
      {.num_heads = 2, .dim_k = 64, .dim_v = 64},
      {.num_heads = 3, .dim_k = 40, .dim_v = 8, .block_size = 5},
      {.num_heads = 3, .dim_k = 5, .dim_v = 7, .block_size = 3},
      {.num_heads = 8, .dim_k = 128, .dim_v = 128, .dtype_k = DType::f32, .dtype_v = DType::f32},
      {.num_heads = 2, .dim_k = 96, .dim_v = 128, .block_size = 32, .order = kChunked},
      {.num_heads = 5, .dim_k = 128, .dim_v = 64, .order = kChunked, .num_blocks = 40},
  };
  for (const std::int32_t dim : {32, 64, 96, 224}) {
    shapes.push_back({.num_heads = 1,
                      .dim_k = dim,
                      .dim_v = dim,
                      .dtype_k = DType::fp8_e4m3,
                      .dtype_v = DType::fp8_e4m3,
                      .order = kChunked});
  }
  for (std::size_t i = shapes.size(); i-- > 0;) {
    shapes.push_back(shapes[i]);
    shapes.back().block_major = false;
  }
  return shapes;
}

/// The scrub of a pool of one layer.
ScrubParams scrub_of(const KvLayerView& kv, const std::vector<BlockScrub>& scrubs) {
  const auto padded = [](const PlaneView& plane) {
    return (plane.head_stride * plane.num_heads + 15) / 16 * 16;
  };
  return {kv,
          padded(kv.key),
          padded(kv.value),
          1,
          0,
          scrubs.data(),
          static_cast<std::int64_t>(scrubs.size())};
}

TEST_F(CudaBlocks, ScrubsEqualTheReference) {
  for (const PoolShape& shape : scrub_pools()) {
    ASSERT_TRUE(is_valid(shape)) << name_of(shape);
    TwinPool pool(shape);
    std::ranges::copy(random_bytes(pool.bytes.size(), 11), pool.bytes.begin());
    pool.upload();
    const std::int32_t size = shape.block_size;
    const std::vector<BlockScrub> scrubs = {
        {BlockId(8), BlockId(8), 0},    {BlockId(0), BlockId(1), 1},
        {BlockId(0), BlockId(2), size}, {BlockId(3), BlockId(3), size - 1},
        {BlockId(5), BlockId(4), 2},    {BlockId(6), BlockId(6), 1}};
    kernels::reference::scrub(scrub_of(pool.host_view, scrubs));
    ASSERT_OK(launch_scrub(scrub_of(pool.device_view, scrubs), stream_));
    finish();
    EXPECT_TRUE(same_bytes(pool.device.download(), pool.bytes)) << name_of(shape);
  }
}

// A page of a pool with groups is a block of KiB.
TEST_F(CudaBlocks, ScrubsOfPagesEqualTheReference) {
  constexpr std::int32_t kUnits = 13;
  constexpr std::int64_t kPageBytes = kUnits * 1024;
  auto host = random_bytes(8 * kPageBytes, 17);
  const DeviceArray<std::byte> device(host);
  const std::vector<BlockScrub> scrubs = {{BlockId(1), BlockId(1), 0},
                                          {BlockId(3), BlockId(3), 1},
                                          {BlockId(4), BlockId(4), kUnits - 1},
                                          {BlockId(7), BlockId(7), 6}};
  const auto params_of = [&](std::byte* base) {
    const PlaneView page{.base = base,
                         .block_stride = kPageBytes,
                         .head_stride = kPageBytes,
                         .token_stride = 1024,
                         .num_heads = 1,
                         .head_dim = 1024,
                         .dtype = DType::fp8_e4m3};
    return ScrubParams{.kv = {.key = page, .value = page, .block_size = kUnits, .num_blocks = 8},
                       .key_bytes = kPageBytes,
                       .value_bytes = 0,
                       .num_layers = 1,
                       .layer_stride = kPageBytes,
                       .scrubs = scrubs.data(),
                       .num_scrubs = std::ssize(scrubs)};
  };
  const std::vector<std::byte> before = host;
  kernels::reference::scrub(params_of(host.data()));
  for (std::int64_t i = 0; i < std::ssize(host); ++i) {
    const std::int64_t unit = i % kPageBytes / 1024;
    const auto scrub = std::ranges::find(scrubs, BlockId(static_cast<std::int32_t>(i / kPageBytes)),
                                         &BlockScrub::target);
    const bool is_kept = scrub == scrubs.end() || unit < scrub->kept_tokens;
    const auto at = static_cast<std::size_t>(i);
    ASSERT_EQ(host[at], is_kept ? before[at] : std::byte{0}) << i;
  }
  ASSERT_OK(launch_scrub(params_of(device.data()), stream_));
  finish();
  EXPECT_TRUE(same_bytes(device.download(), host));
}

// Layers at a distance, and more entries than a launch takes.
TEST_F(CudaBlocks, ScrubsOfManyBlocksInManyLayers) {
  PoolShape shape{.num_heads = 1, .dim_k = 8, .dim_v = 16, .block_size = 2, .num_blocks = 1000};
  std::size_t layer_bytes = 0;
  view_of(shape, nullptr, &layer_bytes);
  for (const bool block_major : {true, false}) {
    shape.block_major = block_major;
    auto host = random_bytes(3 * layer_bytes + 100, 13);
    const DeviceArray<std::byte> device(host);
    std::vector<BlockScrub> scrubs;
    for (std::int32_t i = 0; i < 999; i += 2) {
      scrubs.push_back({BlockId(i % 4 == 0 ? i : i + 1), BlockId(i), i % 3});
    }
    ASSERT_GT(scrubs.size(), static_cast<std::size_t>(kernels::kMaxScrubs));
    ScrubParams params = scrub_of(view_of(shape, host.data()), scrubs);
    params.num_layers = 3;
    params.layer_stride = static_cast<std::int64_t>(layer_bytes);
    kernels::reference::scrub(params);
    params.kv = view_of(shape, device.data());
    ASSERT_OK(launch_scrub(params, stream_));
    scrubs.clear();  // its list has been read
    finish();
    EXPECT_TRUE(same_bytes(device.download(), host)) << "block-major " << block_major;
  }
}

TEST_F(CudaBlocks, AreCapturedAndReplayed) {
  auto host = random_elements(kBlocks * 1024, DType::f32, 5);
  const DeviceArray<std::byte> device(host);
  DeviceArray<BlockCopy> copies(1);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  EXPECT_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
  EXPECT_OK(launch_copy_blocks({device.data(), 4096, 4096, copies.data(), 1, kBlocks}, stream_));
  EXPECT_CUDA(cudaStreamEndCapture(stream_, &graph));
  EXPECT_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  for (std::int32_t i = 0; i + 2 < kBlocks; ++i) {
    const std::vector<BlockCopy> copy = {{BlockId(i), BlockId(i + 2)}};
    copies.upload(copy);
    EXPECT_CUDA(cudaGraphLaunch(exec, stream_));
    finish();
    kernels::reference::copy_blocks({host.data(), 4096, 4096, copy.data(), 1, kBlocks});
  }
  EXPECT_TRUE(same_bytes(device.download(), host));
  EXPECT_CUDA(cudaGraphExecDestroy(exec));
  EXPECT_CUDA(cudaGraphDestroy(graph));
}

}  // namespace
}  // namespace kvarena::test
