// The schedule of decode attention on the GPU against plain loops over the rows, to the byte.

#include "kernel/campaign.hpp"
#include "kernel/cuda_pool.hpp"
#include "kernel/decode_schedule_case.hpp"
#include "support/status_matchers.hpp"

#include <cstring>

namespace kvarena::test {
namespace {

using kernels::DecodeHeader;
using kernels::DecodePart;

class CudaDecodeSchedule : public CudaTest {
 protected:
  void expect_plain(const ScheduleCase& c, std::uint64_t seed) {
    const kernels::DecodeWorkspace w = kernels::decode_workspace(c.limits);
    const DeviceArray<std::int32_t> seq_lens(c.seq_lens);
    const DeviceArray<std::int32_t> row_slots(c.row_slots);
    const DeviceArray<std::int64_t> q_offsets(c.q_offsets);
    const DeviceArray<std::int32_t> shared_tokens(c.shared_tokens);
    // Only the header and the parts are written.
    DeviceArray<std::byte> workspace(static_cast<std::size_t>(w.counters + 256));
    workspace.fill(0xEE);
    kernels::DecodeScheduleParams p = c.params();
    p.seq_lens = seq_lens.data();
    p.row_slots = c.row_slots.empty() ? nullptr : row_slots.data();
    p.q_offsets = c.q_offsets.empty() ? nullptr : q_offsets.data();
    p.shared_tokens = c.shared_tokens.empty() ? nullptr : shared_tokens.data();
    p.workspace = workspace.data();
    p.workspace_bytes = w.bytes;
    EXPECT_OK(kernels::launch_decode_schedule(p, stream_));
    EXPECT_CUDA(cudaStreamSynchronize(stream_));
    const std::vector<std::byte> found = workspace.download();
    DecodeHeader header;
    std::memcpy(&header, found.data(), sizeof(header));
    const std::vector<DecodePart> parts = parts_of(c, header.part_units);
    ASSERT_EQ(static_cast<std::size_t>(header.num_parts), parts.size()) << "seed " << seed;
    EXPECT_EQ(header.next_work, 0);
    EXPECT_EQ(header.blocks_done, 0);
    EXPECT_EQ(std::memcmp(found.data() + w.parts, parts.data(), parts.size() * sizeof(DecodePart)),
              0)
        << "seed " << seed;
    for (std::int64_t at = w.parts + std::int64_t{w.max_parts} * 32; at < w.counters + 256; ++at) {
      ASSERT_EQ(found[static_cast<std::size_t>(at)], std::byte{0xEE}) << "seed " << seed;
    }
    if (!c.fixed_parts) expect_cheap(c, header.part_units, seed);
  }
  /// The chosen length is a candidate of the least cost, but for rounding.
  static void expect_cheap(const ScheduleCase& c, std::int32_t part_units, std::uint64_t seed) {
    float best = std::numeric_limits<float>::max();
    float chosen = std::numeric_limits<float>::max();
    for (const auto& [cost, units] : candidates_of(c)) {
      best = std::min(best, cost);
      if (units == part_units) chosen = std::min(chosen, cost);
    }
    EXPECT_LE(chosen, best * 1.00001F) << "seed " << seed << ", units " << part_units;
  }
};

TEST_F(CudaDecodeSchedule, EqualsThePlainOne) {
  for (int i = 0; i < rounds(1000); ++i) {
    const std::uint64_t seed = first_seed() * 100000 + static_cast<std::uint64_t>(i);
    expect_plain(random_schedule(seed), seed);
  }
}

}  // namespace
}  // namespace kvarena::test
