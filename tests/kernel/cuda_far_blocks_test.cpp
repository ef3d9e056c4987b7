// Blocks far from the beginning of a pool of 24 GB, on both sides of 2^31 and 2^32 elements and of
// its end: every kernel gives what it gives on a small pool with the same tokens, and the blocks
// that a truncated offset would have hit stay as they are.

#include "kernel/decode_problem.hpp"
#include "kernel/prefill_problem.hpp"
#include "kernels/append/append.h"
#include "kernels/copy_blocks/copy_blocks.h"
#include "kernels/gather/gather.h"
#include "kernels/reference/kv_write.hpp"
#include "kernels/scrub/scrub.h"

#include <algorithm>
#include <set>

namespace kvarena::test {
namespace {

constexpr std::int64_t kPoolBytes = 24LL << 30;

class CudaFarBlocks : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    if (is_watched()) GTEST_SKIP() << "a checker would take minutes over 24 GB";
    void* memory = nullptr;
    if (cudaMalloc(&memory, kPoolBytes) != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      GTEST_SKIP() << "no " << kPoolBytes << " bytes of device memory";
    }
    base_ = static_cast<std::byte*>(memory);
    EXPECT_CUDA(cudaMemsetAsync(base_, 0xFF, kPoolBytes, stream_));
    finish();
  }
  void TearDown() override {
    if (base_ != nullptr) {
      EXPECT_CUDA(cudaFree(base_));
    }
    CudaTest::TearDown();
  }

  /// Where `count` blocks of `block_bytes` go: around 2^31 and 2^32 elements of two bytes, and at
  /// the end of the pool.
  static std::vector<std::int32_t> far_ids(std::int64_t count, std::int64_t block_bytes) {
    const std::int64_t last = kPoolBytes / block_bytes - 1;
    std::vector<std::int32_t> ids;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t around = (i / 3) % 2 == 0 ? i / 6 : -1 - i / 6;
      const std::int64_t at[] = {(1LL << 32) / block_bytes + around,
                                 (1LL << 33) / block_bytes + around, last - i / 3};
      ids.push_back(static_cast<std::int32_t>(at[i % 3]));
    }
    return ids;
  }
  void upload_blocks(const std::vector<std::byte>& small, const std::vector<std::int32_t>& ids,
                     std::int64_t block_bytes) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      EXPECT_CUDA(cudaMemcpy(base_ + ids[i] * block_bytes,
                             small.data() + static_cast<std::int64_t>(i) * block_bytes,
                             static_cast<std::size_t>(block_bytes), cudaMemcpyHostToDevice));
    }
    EXPECT_CUDA(cudaDeviceSynchronize());
  }
  std::vector<std::byte> download_block(std::int64_t id, std::int64_t block_bytes) const {
    std::vector<std::byte> bytes(static_cast<std::size_t>(block_bytes));
    EXPECT_CUDA(
        cudaMemcpy(bytes.data(), base_ + id * block_bytes, bytes.size(), cudaMemcpyDeviceToHost));
    return bytes;
  }
  void expect_blocks(const std::vector<std::byte>& small, const std::vector<std::int32_t>& ids,
                     std::int64_t block_bytes, const char* what) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const std::span<const std::byte> want(
          small.data() + static_cast<std::int64_t>(i) * block_bytes,
          static_cast<std::size_t>(block_bytes));
      EXPECT_TRUE(same_bytes(download_block(ids[i], block_bytes), want))
          << what << ", block " << ids[i];
    }
  }
  /// Offsets cut to 31, 32 or 33 bits would have written here.
  void expect_aliases_untouched(const std::vector<std::int32_t>& ids, std::int64_t block_bytes) {
    const std::set<std::int64_t> owned(ids.begin(), ids.end());
    const std::vector<std::byte> poison(static_cast<std::size_t>(block_bytes), std::byte{0xFF});
    for (const std::int64_t id : ids) {
      for (const int bits : {31, 32, 33}) {
        const std::int64_t alias = id * block_bytes % (1LL << bits) / block_bytes;
        if (owned.contains(alias)) continue;
        EXPECT_TRUE(same_bytes(download_block(alias, block_bytes), poison))
            << "block " << alias << " for " << id << " at " << bits << " bits";
      }
    }
  }

  std::byte* base_ = nullptr;
};

AttentionCase far_case(TileOrder order) {
  AttentionCase c;
  c.head_dim_k = c.head_dim_v = 128;
  c.num_kv_heads = 4;
  c.tile_order = order;
  c.seq_lens = {300, 17, 1, 64};
  return c;
}

TEST_F(CudaFarBlocks, DecodeReadsThem) {
  const AttentionProblem problem(far_case(TileOrder::chunked));
  const std::int64_t block_bytes = problem.args(nullptr, nullptr).kv.key.block_stride;
  const auto ids =
      far_ids(static_cast<std::int64_t>(problem.pool().size()) / block_bytes, block_bytes);
  upload_blocks(problem.pool(), ids, block_bytes);
  DecodeProblem near(problem, 1, stream_);
  DecodeProblem far(problem, 1, stream_, 132, {base_, ids});
  const AttentionOutput output = far.run();
  expect_close(problem, output, "decode of far blocks");
  EXPECT_TRUE(same_bytes(output.out, near.run().out));
}

TEST_F(CudaFarBlocks, PrefillReadsThem) {
  for (const TileOrder order : {TileOrder::rows, TileOrder::chunked}) {
    for (const DType out : {DType::bf16, DType::f32}) {  // tensor cores, and the plain kernel
      AttentionCase c = far_case(order);
      c.q_counts = {40, 17, 1, 3};
      c.out_dtype = out;
      AttentionProblem problem(c);
      const std::int64_t block_bytes = problem.args(nullptr, nullptr).kv.key.block_stride;
      const auto ids =
          far_ids(static_cast<std::int64_t>(problem.pool().size()) / block_bytes, block_bytes);
      upload_blocks(problem.pool(), ids, block_bytes);
      const AttentionOutput near = PrefillProblem(problem, stream_).run();
      SpoiledTables far(problem);
      for (BlockId& id : far.entries) {
        if (id.value >= 0) id = BlockId{ids[static_cast<std::size_t>(id.value)]};
      }
      PrefillProblem device(problem, stream_, far);
      kernels::AttentionParams& a = device.params.attention;
      a.kv.key.base = base_ + (a.kv.key.base - device.pool().data());
      a.kv.value.base = base_ + (a.kv.value.base - device.pool().data());
      a.kv.num_blocks = kPoolBytes / block_bytes;
      const AttentionOutput output = device.run();
      expect_close(problem, output, "prefill of far blocks");
      EXPECT_TRUE(same_bytes(output.out, near.out));
    }
  }
}

/// A pool of a few blocks on the host, whose blocks lie far apart on the device.
struct FarPool {
  explicit FarPool(std::byte* base) {
    shape.num_heads = 8;
    shape.dim_k = shape.dim_v = 128;
    shape.order = TileOrder::chunked;
    shape.num_blocks = 24;
    std::size_t size = 0;
    view_of(shape, nullptr, &size);
    bytes.assign(size, std::byte{0xFF});
    host = view_of(shape, bytes.data());
    far = view_of(shape, base);
    block_bytes = host.key.block_stride;
    far.num_blocks = kPoolBytes / block_bytes;
  }
  PoolShape shape;
  std::vector<std::byte> bytes;
  KvLayerView host;
  KvLayerView far;
  std::int64_t block_bytes = 0;
};

TEST_F(CudaFarBlocks, AppendWritesThem) {
  FarPool pool(base_);
  const auto ids = far_ids(pool.shape.num_blocks, pool.block_bytes);
  std::vector<std::int64_t> slots;
  std::vector<std::int64_t> far_slots;
  std::vector<std::vector<BlockId>> row(1);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    row[0].emplace_back(ids[i]);
    for (const std::int64_t at : {3, 14}) {
      slots.push_back(static_cast<std::int64_t>(i) * 16 + at);
      far_slots.push_back(std::int64_t{ids[i]} * 16 + at);
    }
  }
  const auto tokens = static_cast<std::int64_t>(slots.size());
  const auto key = random_elements(tokens * 8 * 128, DType::bf16, 3);
  const auto value = random_elements(tokens * 8 * 128, DType::bf16, 4);
  const DeviceArray<std::byte> device_key(key);
  const DeviceArray<std::byte> device_value(value);
  const DeviceArray<std::int64_t> device_slots(far_slots);
  kernels::reference::append(
      {pool.host, key.data(), value.data(), slots.data(), tokens, DType::bf16});
  ASSERT_OK(kernels::launch_append(
      {pool.far, device_key.data(), device_value.data(), device_slots.data(), tokens, DType::bf16},
      false, stream_));
  finish();
  expect_blocks(pool.bytes, ids, pool.block_bytes, "append by slots");

  const TwinTables tables(row);
  const DeviceArray<kernels::TokenRun> runs(
      std::vector<kernels::TokenRun>{{0, 16 * 4 + 5}, {0, 0}});
  const DeviceArray<std::int64_t> offsets(std::vector<std::int64_t>{0, 30, 33});
  slots.clear();
  for (std::int64_t i = 0; i < 33; ++i) slots.push_back(i < 30 ? 16 * 4 + 5 + i : i - 30);
  kernels::reference::append({pool.host, key.data(), value.data(), slots.data(), 33, DType::bf16});
  ASSERT_OK(kernels::launch_append_runs(
      {pool.far, tables.device(), device_key.data(), device_value.data(), runs.data(),
       offsets.data(), 2, 33, DType::bf16},
      false, stream_));
  finish();
  expect_blocks(pool.bytes, ids, pool.block_bytes, "append by runs");
  expect_aliases_untouched(ids, pool.block_bytes);
}

TEST_F(CudaFarBlocks, CopiesAndScrubsReachThem) {
  FarPool pool(base_);
  const std::int64_t block_bytes = pool.block_bytes;
  const auto ids = far_ids(pool.shape.num_blocks, block_bytes);
  std::ranges::copy(random_bytes(pool.bytes.size(), 9), pool.bytes.begin());
  upload_blocks(pool.bytes, ids, block_bytes);
  std::vector<BlockCopy> copies;
  std::vector<BlockCopy> far_copies;
  for (std::int32_t i = 0; i < 12; ++i) {
    const std::int32_t target = 23 - i;
    copies.push_back({BlockId(i), BlockId(target)});
    far_copies.push_back({BlockId(ids[static_cast<std::size_t>(i)]),
                          BlockId(ids[static_cast<std::size_t>(target)])});
  }
  kernels::reference::copy_blocks(
      {pool.bytes.data(), block_bytes, block_bytes, copies.data(), 12, pool.shape.num_blocks});
  const DeviceArray<BlockCopy> list(far_copies);
  ASSERT_OK(kernels::launch_copy_blocks(
      {base_, block_bytes, block_bytes, list.data(), 12, pool.far.num_blocks}, stream_));
  finish();
  expect_blocks(pool.bytes, ids, block_bytes, "copies");
  std::vector<kernels::BlockScrub> scrubs;
  std::vector<kernels::BlockScrub> far_scrubs;
  for (std::int32_t i = 0; i < 6; ++i) {
    scrubs.push_back({BlockId(i), BlockId(i), i});
    const BlockId id(ids[static_cast<std::size_t>(i)]);
    far_scrubs.push_back({id, id, i});
  }
  kernels::ScrubParams params{pool.host, block_bytes / 2, block_bytes / 2, 1, 0, scrubs.data(), 6};
  kernels::reference::scrub(params);
  params.kv = pool.far;
  params.scrubs = far_scrubs.data();
  ASSERT_OK(kernels::launch_scrub(params, stream_));
  finish();
  expect_blocks(pool.bytes, ids, block_bytes, "scrubs");
  expect_aliases_untouched(ids, block_bytes);
}

TEST_F(CudaFarBlocks, GatherReadsAndScatterWritesThem) {
  FarPool pool(base_);
  const auto ids = far_ids(pool.shape.num_blocks, pool.block_bytes);
  std::vector<std::vector<BlockId>> row(1);
  for (const std::int32_t id : ids) row[0].emplace_back(id);
  const TwinTables tables(row);
  const auto tokens = static_cast<std::int64_t>(ids.size()) * 16;
  const auto key = random_elements(tokens * 8 * 128, DType::bf16, 3);
  const auto value = random_elements(tokens * 8 * 128, DType::bf16, 4);
  std::vector<std::int64_t> slots;
  for (std::int64_t i = 0; i < tokens; ++i) slots.push_back(i);
  kernels::reference::append(
      {pool.host, key.data(), value.data(), slots.data(), tokens, DType::bf16});
  const DeviceArray<std::byte> device_key(key);
  const DeviceArray<std::byte> device_value(value);
  ASSERT_OK(kernels::launch_scatter({pool.far, tables.device(), 0, 0, tokens, device_key.data(),
                                     device_value.data(), DType::bf16},
                                    stream_));
  finish();
  expect_blocks(pool.bytes, ids, pool.block_bytes, "scatter");
  expect_aliases_untouched(ids, pool.block_bytes);
  DeviceArray<std::byte> key_out(key.size());
  DeviceArray<std::byte> value_out(value.size());
  ASSERT_OK(kernels::launch_gather(
      {pool.far, tables.device(), 0, 0, tokens, key_out.data(), value_out.data(), DType::bf16},
      stream_));
  finish();
  EXPECT_TRUE(same_bytes(key_out.download(), key));
  EXPECT_TRUE(same_bytes(value_out.download(), value));
}

}  // namespace
}  // namespace kvarena::test
