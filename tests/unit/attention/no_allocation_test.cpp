// Plan, run, append and copies take nothing from the heap.

#include "kvarena/attention/attention.hpp"
#include "kvarena/attention/kv_write.hpp"
#include "support/heap_counter.hpp"

#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <vector>

namespace kvarena {
namespace {

TEST(AttentionAllocation, NoneInTheSteadyState) {
  constexpr std::int32_t kTokens = 4000;
  constexpr std::int32_t kBlocks = kTokens / 16;
  std::vector<float> pool(std::size_t{kBlocks} * 2 * 2 * 16 * 8);
  std::vector<BlockId> entries;
  for (std::int32_t j = 0; j < kBlocks; ++j) entries.emplace_back(kBlocks - 1 - j);
  const std::int64_t row_offset = 0;
  const std::int32_t seq_len = kTokens;
  const std::int32_t num_blocks = kBlocks;
  std::array<float, 4 * 8> q{};
  std::array<float, 4 * 8> out{};
  AttentionArgs args;
  auto* base = reinterpret_cast<std::byte*>(pool.data());
  args.kv.key = {base, 2 * 2 * 16 * 8 * 4, 16 * 8 * 4, 8 * 4, 2, 8, DType::f32, TileOrder::rows};
  args.kv.value = args.kv.key;
  args.kv.value.base = base + 2 * 16 * 8 * 4;
  args.kv.block_size = 16;
  args.kv.num_blocks = kBlocks;
  args.batch = {{entries.data(), nullptr, &row_offset, 0, 1}, &seq_len, &num_blocks, 1};
  args.q = q.data();
  args.q_dtype = DType::f32;
  args.out = out.data();
  args.out_dtype = DType::f32;
  args.num_q_heads = 4;
  args.scale = 1.0F;
  const AttentionLimits limits{1, 1, 4, 2, 8, 8, 3, CpuPath::best};
  std::vector<std::byte> storage(
      static_cast<std::size_t>(attention_workspace_bytes(limits).value()) + 64);
  const std::size_t skip = (64 - reinterpret_cast<std::uintptr_t>(storage.data()) % 64) % 64;
  auto workers = CpuWorkers::create(3);
  const std::vector<float> fresh(2 * 8, 1.0F);
  const std::int64_t slot = 5;
  const BlockCopy copy{BlockId{0}, BlockId{1}};
  const BlockRegion region{base, 4096, 4096};

  const test::HeapCounter heap;
  bool ok = true;
  for (int i = 0; i < 20; ++i) {
    const auto plan = plan_attention(args, limits, std::span(storage).subspan(skip));
    ok = ok && plan.is_ok() && run_attention(*plan, args, *workers).is_ok();
    ok = ok &&
         append_kv({args.kv, fresh.data(), fresh.data(), DType::f32, &slot, 1}, &*workers).is_ok();
    ok = ok && copy_blocks({&copy, 1}, {&region, 1}, kBlocks).is_ok();
  }
  EXPECT_EQ(heap.count(), 0);
  EXPECT_TRUE(ok);
}

}  // namespace
}  // namespace kvarena
