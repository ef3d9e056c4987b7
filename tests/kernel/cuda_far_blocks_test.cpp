// Blocks far from the beginning of a pool of 24 GB, on both sides of 2^31 and 2^32 elements and of
// its end: every kernel gives what it gives on a small pool with the same tokens, and the blocks
// that a truncated offset would have hit stay as they are.

#include "kernel/decode_problem.hpp"
#include "kernel/prefill_problem.hpp"
#include "kernels/append/append.h"
#include "kernels/copy_blocks/copy_blocks.h"
#include "kernels/gather/gather.h"
#include "kernels/reference/gather.hpp"
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
      PrefillProblem device(problem, stream_);
      const AttentionOutput near = device.run();
      std::vector<BlockId> entries;
      for (const BlockId id : problem.entries()) {
        entries.emplace_back(ids[static_cast<std::size_t>(id.value)]);
      }
      const DeviceArray<BlockId> far_entries(entries);
      kernels::AttentionParams& a = device.params.attention;
      a.kv.key.base = base_ + (a.kv.key.base - device.pool().data());
      a.kv.value.base = base_ + (a.kv.value.base - device.pool().data());
      a.kv.num_blocks = kPoolBytes / block_bytes;
      a.batch.tables.entries = far_entries.data();
      const AttentionOutput output = device.run();
      expect_close(problem, output, "prefill of far blocks");
      EXPECT_TRUE(same_bytes(output.out, near.out));
    }
  }
}

TEST_F(CudaFarBlocks, AppendGatherCopyAndScrub) {
  PoolShape shape;
  shape.num_heads = 8;
  shape.dim_k = shape.dim_v = 128;
  shape.order = TileOrder::chunked;
  shape.num_blocks = 24;
  TwinPool small(shape);  // on the host the same blocks, close together
  const std::int64_t block_bytes = small.host_view.key.block_stride;
  const auto ids = far_ids(shape.num_blocks, block_bytes);
  KvLayerView far = view_of(shape, base_);
  far.num_blocks = kPoolBytes / block_bytes;

  // Two tokens of each block but the last six, by slots and by runs.
  const std::int64_t written = shape.num_blocks - 6;
  std::vector<std::int64_t> slots;
  std::vector<std::int64_t> far_slots;
  std::vector<std::vector<BlockId>> row(1);
  for (std::int64_t i = 0; i < written; ++i) {
    row[0].emplace_back(ids[static_cast<std::size_t>(i)]);
    for (const std::int64_t at : {3, 14}) {
      slots.push_back(i * 16 + at);
      far_slots.push_back(std::int64_t{ids[static_cast<std::size_t>(i)]} * 16 + at);
    }
  }
  const auto tokens = static_cast<std::int64_t>(slots.size());
  const auto key = random_elements(tokens * 8 * 128, DType::bf16, 3);
  const auto value = random_elements(tokens * 8 * 128, DType::bf16, 4);
  const DeviceArray<std::byte> device_key(key);
  const DeviceArray<std::byte> device_value(value);
  const DeviceArray<std::int64_t> device_slots(far_slots);
  kernels::reference::append(
      {small.host_view, key.data(), value.data(), slots.data(), tokens, DType::bf16});
  ASSERT_OK(kernels::launch_append(
      {far, device_key.data(), device_value.data(), device_slots.data(), tokens, DType::bf16},
      false, stream_));
  finish();
  expect_blocks(small.bytes, ids, block_bytes, "append by slots");

  const TwinTables tables(row);
  const DeviceArray<kernels::TokenRun> runs(
      std::vector<kernels::TokenRun>{{0, 16 * 4 + 5}, {0, 0}});
  const DeviceArray<std::int64_t> offsets(std::vector<std::int64_t>{0, 30, 33});
  slots.clear();
  for (std::int64_t i = 0; i < 33; ++i) slots.push_back(i < 30 ? 16 * 4 + 5 + i : i - 30);
  kernels::reference::append(
      {small.host_view, key.data(), value.data(), slots.data(), 33, DType::bf16});
  ASSERT_OK(
      kernels::launch_append_runs({far, tables.device(), device_key.data(), device_value.data(),
                                   runs.data(), offsets.data(), 2, 33, DType::bf16},
                                  false, stream_));
  finish();
  expect_blocks(small.bytes, ids, block_bytes, "append by runs");

  // Copies across the pool, then scrubs of two sources.
  std::vector<BlockCopy> copies;
  std::vector<BlockCopy> far_copies;
  for (std::int32_t i = 0; i < 6; ++i) {
    const auto target = static_cast<std::int32_t>(written) + i;
    copies.push_back({BlockId(i), BlockId(target)});
    far_copies.push_back({BlockId(ids[static_cast<std::size_t>(i)]),
                          BlockId(ids[static_cast<std::size_t>(target)])});
  }
  kernels::reference::copy_blocks(
      {small.bytes.data(), block_bytes, block_bytes, copies.data(), 6, shape.num_blocks});
  const DeviceArray<BlockCopy> list(far_copies);
  ASSERT_OK(kernels::launch_copy_blocks(
      {base_, block_bytes, block_bytes, list.data(), 6, far.num_blocks}, stream_));
  finish();
  expect_blocks(small.bytes, ids, block_bytes, "copies");
  const DeviceArray<BlockId> scrubbed(std::vector<BlockId>{BlockId(ids[0]), BlockId(ids[2])});
  for (const std::int64_t block : {0, 2}) {
    std::fill_n(small.bytes.begin() + block * block_bytes, block_bytes, std::byte{0x21});
  }
  ASSERT_OK(kernels::launch_scrub(
      {base_, block_bytes, block_bytes, scrubbed.data(), 2, 0x21, far.num_blocks}, stream_));
  finish();
  expect_blocks(small.bytes, ids, block_bytes, "scrubs");

  // Everything read back, and written again.
  std::vector<std::vector<BlockId>> near_row(1);
  for (std::int32_t i = 0; i < written; ++i) near_row[0].emplace_back(i);
  const TwinTables near_tables(near_row);
  const auto all = static_cast<std::int64_t>(written * 16);
  std::vector<std::byte> all_key(static_cast<std::size_t>(all * 8 * 128 * 2));
  std::vector<std::byte> all_value(all_key.size());
  kernels::reference::gather({small.host_view, near_tables.host(), 0, 0, all, all_key.data(),
                              all_value.data(), DType::bf16});
  const DeviceArray<std::byte> key_out(all_key.size());
  const DeviceArray<std::byte> value_out(all_key.size());
  ASSERT_OK(kernels::launch_gather(
      {far, tables.device(), 0, 0, all, key_out.data(), value_out.data(), DType::bf16}, stream_));
  finish();
  EXPECT_TRUE(same_bytes(key_out.download(), all_key));
  EXPECT_TRUE(same_bytes(value_out.download(), all_value));
  ASSERT_OK(kernels::launch_scatter(
      {far, tables.device(), 0, 0, all, key_out.data(), value_out.data(), DType::bf16}, stream_));
  finish();
  expect_blocks(small.bytes, ids, block_bytes, "scatter");
  expect_aliases_untouched(ids, block_bytes);
}

}  // namespace
}  // namespace kvarena::test
