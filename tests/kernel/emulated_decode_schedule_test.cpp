// The kernel that makes the schedule of decode attention, on the CPU, against plain loops over the
// rows, to the byte.

#include "emulation/intrinsics.hpp"

#include "kernel/decode_schedule_case.hpp"
#include "kernels/decode/schedule_kernel.cuh"
#include "support/environment.hpp"

namespace kvarena::test {
namespace {

namespace schedule = kernels::decode_schedule;

/// The kernel for so many warps.
void call(int warps, const kernels::DecodeScheduleParams& p, const kernels::DecodeWorkspace& w,
          const kernels::CutShape& cut, const schedule::Limits& limits) {
  switch (warps) {
    case 1: return schedule::make_schedule<1>(p, w, cut, limits);
    case 2: return schedule::make_schedule<2>(p, w, cut, limits);
    case 3: return schedule::make_schedule<3>(p, w, cut, limits);
    case 4: return schedule::make_schedule<4>(p, w, cut, limits);
    case 6: return schedule::make_schedule<6>(p, w, cut, limits);
    case 8: return schedule::make_schedule<8>(p, w, cut, limits);
    case 12: return schedule::make_schedule<12>(p, w, cut, limits);
    case 64: return schedule::make_schedule<64>(p, w, cut, limits);
    case 80: return schedule::make_schedule<80>(p, w, cut, limits);
    case 96: return schedule::make_schedule<96>(p, w, cut, limits);
    default: ADD_FAILURE() << "no schedule for " << warps << " warps";
  }
}

TEST(EmulatedDecodeSchedule, EqualsThePlainOne) {
  const std::uint64_t first = number_from_environment("KVARENA_SEED", 1) * 100000;
  const std::uint64_t rounds = 100 * number_from_environment("KVARENA_TEST_ROUNDS", 1);
  for (std::uint64_t seed = first; seed < first + rounds && !HasFailure(); ++seed) {
    const ScheduleCase c = random_schedule(seed);
    const kernels::DecodeWorkspace w = kernels::decode_workspace(c.limits);
    const kernels::CutShape cut = kernels::cut_shape(c.limits, w);
    std::vector<std::byte> workspace(schedule_bytes(w), std::byte{kUnwrittenByte});
    const auto pointer = [](const auto& list) { return list.empty() ? nullptr : list.data(); };
    kernels::DecodeScheduleParams p = c.params();
    p.seq_lens = c.seq_lens.data();
    p.row_slots = pointer(c.row_slots);
    p.q_offsets = pointer(c.q_offsets);
    p.shared_tokens = pointer(c.shared_tokens);
    p.workspace = workspace.data();
    p.workspace_bytes = w.bytes;
    const schedule::Limits limits = schedule::limits_of(c.limits, cut);
    const EmulatedLaunch launch{.blocks = static_cast<unsigned>(schedule::blocks_for(w)),
                                .threads = schedule::kThreads,
                                .seed = seed};
    ASSERT_EQ(run_emulated(launch, [&] { call(cut.warps, p, w, cut, limits); }), "")
        << "seed " << seed;
    expect_schedule(c, workspace, seed);
  }
}

}  // namespace
}  // namespace kvarena::test
