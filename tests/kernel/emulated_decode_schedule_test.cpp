// The kernel that makes the schedule of decode attention, on the CPU, against plain loops over the
// rows, to the byte.

#include "emulation/intrinsics.hpp"

#include "kernel/decode_schedule_case.hpp"
#include "kernels/decode/schedule_kernel.cuh"
#include "support/environment.hpp"

#include <string>
#include <utility>

namespace kvarena::test {
namespace {

namespace schedule = kernels::decode_schedule;

/// Calls the schedule for so many warps. Returns whether there is one.
template <int... kWarps>
bool make_schedule(std::integer_sequence<int, kWarps...>, int warps,
                   const kernels::DecodeScheduleParams& p, const kernels::DecodeWorkspace& w,
                   const kernels::CutShape& cut, const schedule::Limits& limits) {
  return ((warps == kWarps && (schedule::make_schedule<kWarps>(p, w, cut, limits), true)) || ...);
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
    bool is_made = true;
    const std::string error = run_emulated(launch, [&] {
      is_made = make_schedule(schedule::AttentionWarps{}, cut.warps, p, w, cut, limits) && is_made;
    });
    ASSERT_EQ(error, "") << "seed " << seed;
    ASSERT_TRUE(is_made) << "no schedule for " << cut.warps << " warps";
    expect_schedule(c, workspace, seed);
  }
}

}  // namespace
}  // namespace kvarena::test
