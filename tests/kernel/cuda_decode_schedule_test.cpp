// The schedule of decode attention on the GPU against plain loops over the rows, to the byte.

#include "kernel/campaign.hpp"
#include "kernel/cuda_pool.hpp"
#include "kernel/decode_schedule_case.hpp"
#include "support/status_matchers.hpp"

namespace kvarena::test {
namespace {

class CudaDecodeSchedule : public CudaTest {
 protected:
  void expect_plain(const ScheduleCase& c, std::uint64_t seed) {
    const kernels::DecodeWorkspace w = kernels::decode_workspace(c.limits);
    const DeviceArray<std::int32_t> seq_lens(c.seq_lens);
    const DeviceArray<std::int32_t> row_slots(c.row_slots);
    const DeviceArray<std::int64_t> q_offsets(c.q_offsets);
    const DeviceArray<std::int32_t> shared_tokens(c.shared_tokens);
    DeviceArray<std::byte> workspace(schedule_bytes(w));
    workspace.fill(kUnwrittenByte);
    kernels::DecodeScheduleParams p = c.params();
    p.seq_lens = seq_lens.data();
    p.row_slots = c.row_slots.empty() ? nullptr : row_slots.data();
    p.q_offsets = c.q_offsets.empty() ? nullptr : q_offsets.data();
    p.shared_tokens = c.shared_tokens.empty() ? nullptr : shared_tokens.data();
    p.workspace = workspace.data();
    p.workspace_bytes = w.bytes;
    EXPECT_OK(kernels::launch_decode_schedule(p, stream_));
    EXPECT_CUDA(cudaStreamSynchronize(stream_));
    expect_schedule(c, workspace.download(), seed);
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
