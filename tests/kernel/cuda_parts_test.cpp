// Kernels of caches with groups: copies of blocks that are longer than the stride of their ids, the
// slots of a table's tokens, and the arguments of launches that take several parts.

#include "kernel/cuda_pool.hpp"
#include "kernels/copy_blocks/copy_blocks.h"
#include "kernels/scatter_step/scatter_step.h"
#include "kernels/table_slots/table_slots.h"

#include "support/status_matchers.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

namespace kvarena::test {
namespace {

using kernels::CopyBlocksParams;
using kernels::launch_copy_blocks;
using kernels::launch_copy_paged_blocks;
using kernels::launch_scatter_parts;
using kernels::launch_table_slots;
using kernels::ScatterPartsParams;
using kernels::TableSlotsParams;

// Validation needs no GPU: nothing is launched.
TEST(CudaPartsArguments, OfCopiesNameWhatIsWrong) {
  std::byte base[64] = {};
  const BlockCopy copy{BlockId(0), BlockId(2)};
  const CopyBlocksParams longer{base, 16, 32, &copy, 1, 4};
  EXPECT_TRUE(fails_with(launch_copy_blocks(longer, nullptr), StatusCode::invalid_argument,
                         Resource::block_bytes));
  CopyBlocksParams past = longer;
  past.bytes = 65;
  EXPECT_TRUE(fails_with(launch_copy_paged_blocks(past, nullptr), StatusCode::invalid_argument,
                         Resource::block_bytes));
  past = longer;
  past.copies = nullptr;
  EXPECT_TRUE(fails_with(launch_copy_paged_blocks(past, nullptr), StatusCode::invalid_argument,
                         Resource::pointer));
}

TEST(CudaPartsArguments, OfTableSlotsNameWhatIsWrong) {
  const BlockId table[1] = {BlockId(3)};
  std::int64_t slots[4] = {};
  const auto fails = [&](auto change, Resource resource) {
    TableSlotsParams params{table, slots, 4, 4};
    change(params);
    EXPECT_TRUE(
        fails_with(launch_table_slots(params, nullptr), StatusCode::invalid_argument, resource));
  };
  using P = TableSlotsParams&;
  fails([](P p) { p.table = nullptr; }, Resource::pointer);
  fails([](P p) { p.slots = nullptr; }, Resource::pointer);
  fails([](P p) { p.num_tokens = -1; }, Resource::num_tokens);
  fails([](P p) { p.block_size = 0; }, Resource::block_size);
  EXPECT_OK(launch_table_slots({nullptr, nullptr, 0, 4}, nullptr));
}

TEST(CudaPartsArguments, OfScatterNameWhatIsWrong) {
  const ScatterPartsParams nothing{};
  for (const std::int32_t parts : {0, -1, ScatterPartsParams::kMostParts + 1}) {
    EXPECT_TRUE(fails_with(launch_scatter_parts(nothing, parts, 0, nullptr),
                           StatusCode::invalid_argument, Resource::num_groups));
  }
  for (const std::int32_t states : {-1, ScatterPartsParams::kMostStates + 1}) {
    EXPECT_TRUE(fails_with(launch_scatter_parts(nothing, 1, states, nullptr),
                           StatusCode::invalid_argument, Resource::num_groups));
  }
  EXPECT_TRUE(fails_with(launch_scatter_parts(nothing, 2, 0, nullptr), StatusCode::invalid_argument,
                         Resource::pointer));
}

class CudaParts : public CudaTest {};

// Pages of 7 strides with two blocks of 3 strides: ids 0, 3, 7, 10, ..
TEST_F(CudaParts, CopiesMoveWholeBlocksOfPages) {
  for (const std::int64_t stride : {std::int64_t{16}, std::int64_t{1024}, std::int64_t{5}}) {
    const std::int64_t bytes = 3 * stride;
    std::vector<std::byte> host(static_cast<std::size_t>(7 * 4 * stride));
    for (std::size_t i = 0; i < host.size(); ++i) host[i] = static_cast<std::byte>(i * 31 + 7);
    const DeviceArray<std::byte> device(host);
    const std::vector<BlockCopy> copies{{BlockId(0), BlockId(24)},
                                        {BlockId(10), BlockId(3)},
                                        {kNoBlock, kNoBlock},
                                        {BlockId(21), BlockId(14)}};
    const DeviceArray<BlockCopy> list(copies);
    EXPECT_OK(launch_copy_paged_blocks(
        {device.data(), stride, bytes, list.data(), std::ssize(copies), 28}, stream_));
    finish();
    for (const BlockCopy& copy : copies) {
      if (copy.source == kNoBlock) continue;
      std::memcpy(host.data() + copy.target.value * stride,
                  host.data() + copy.source.value * stride, static_cast<std::size_t>(bytes));
    }
    EXPECT_EQ(device.download(), host) << "stride " << stride;
  }
}

TEST_F(CudaParts, SlotsFollowTheTable) {
  const std::vector<BlockId> table{BlockId(70), BlockId(3), BlockId(0), BlockId(1 << 30)};
  const DeviceArray<BlockId> entries(table);
  for (const std::int32_t block_size : {1, 16, 200}) {
    const std::int32_t tokens = 3 * block_size + (block_size + 1) / 2;
    DeviceArray<std::int64_t> slots(static_cast<std::size_t>(tokens) + 1);
    slots.fill(0xff);
    EXPECT_OK(launch_table_slots({entries.data(), slots.data(), tokens, block_size}, stream_));
    finish();
    const std::vector<std::int64_t> found = slots.download();
    for (std::int32_t i = 0; i < tokens; ++i) {
      const std::int64_t block = table[static_cast<std::size_t>(i / block_size)].value;
      ASSERT_EQ(found[static_cast<std::size_t>(i)], block * block_size + i % block_size) << i;
    }
    EXPECT_EQ(found.back(), -1) << "nothing behind the last token";
  }
}

}  // namespace
}  // namespace kvarena::test
