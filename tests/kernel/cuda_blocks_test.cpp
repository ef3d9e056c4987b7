// Block copies and scrubbing on the GPU: exactly the blocks named change.

#include "kernel/cuda_pool.hpp"
#include "kernels/copy_blocks/copy_blocks.h"
#include "kernels/reference/kv_write.hpp"
#include "kernels/scrub/scrub.h"

#include "support/status_matchers.hpp"

namespace kvarena::test {
namespace {

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

TEST_F(CudaBlocks, ScrubFillsItsBlocksOnly) {
  for (const Region& r : kRegions) {
    std::vector<std::byte> host = region_bytes(r);
    const DeviceArray<std::byte> device(host);
    const std::vector<BlockId> blocks = {BlockId(3), kNoBlock, BlockId(22), BlockId(0),
                                         BlockId(23)};
    for (const std::int64_t block : {3, 22, 0}) {
      for (std::int64_t plane = 0; plane < r.num_planes; ++plane) {
        const auto at = host.begin() + r.offset + plane * plane_stride(r) + block * r.block_stride;
        std::fill_n(at, r.bytes, std::byte{0xA5});
      }
    }
    const DeviceArray<BlockId> list(blocks);
    ASSERT_OK(launch_scrub({device.data() + r.offset, r.block_stride, r.bytes, list.data(), 5, 0xA5,
                            kBlocks, r.num_planes, plane_stride(r)},
                           stream_));
    finish();
    EXPECT_TRUE(same_bytes(device.download(), host))
        << r.bytes << " bytes, " << r.num_planes << " planes";
  }
}

TEST_F(CudaBlocks, AreCapturedAndReplayed) {
  auto host = random_elements(kBlocks * 1024, DType::f32, 5);
  const DeviceArray<std::byte> device(host);
  DeviceArray<BlockCopy> copies(1);
  DeviceArray<BlockId> scrubbed(1);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  EXPECT_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
  EXPECT_OK(launch_copy_blocks({device.data(), 4096, 4096, copies.data(), 1, kBlocks}, stream_));
  EXPECT_OK(launch_scrub({device.data(), 4096, 4096, scrubbed.data(), 1, 0, kBlocks}, stream_));
  EXPECT_CUDA(cudaStreamEndCapture(stream_, &graph));
  EXPECT_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  for (std::int32_t i = 0; i + 2 < kBlocks; ++i) {
    const std::vector<BlockCopy> copy = {{BlockId(i), BlockId(i + 2)}};
    const std::vector<BlockId> scrub = {BlockId(i)};
    copies.upload(copy);
    scrubbed.upload(scrub);
    EXPECT_CUDA(cudaGraphLaunch(exec, stream_));
    finish();
    kernels::reference::copy_blocks({host.data(), 4096, 4096, copy.data(), 1, kBlocks});
    std::fill_n(host.begin() + i * 4096, 4096, std::byte{0});
  }
  EXPECT_TRUE(same_bytes(device.download(), host));
  EXPECT_CUDA(cudaGraphExecDestroy(exec));
  EXPECT_CUDA(cudaGraphDestroy(graph));
}

}  // namespace
}  // namespace kvarena::test
