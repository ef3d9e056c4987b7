#pragma once

/// @file
/// Thread blocks of CUDA kernels on the CPU. Kernels that compute with integers alone, such as
/// schedules, are compiled for the host and checked on machines without a GPU. Each thread is a
/// coroutine (ucontext), and runs until it waits for its warp or its thread block. Which runs next
/// is random, so a result that depends on the order shows: a barrier is missing. Thread blocks run
/// one after another, and what they have in shared memory is what the last one left there; those of
/// a cluster run together, and the kernel gives each its own. All of it is for one thread of the
/// host.

#include <cstdint>
#include <functional>
#include <source_location>
#include <string>

namespace kvarena::test {

/// The size of a launch. A thread block has whole warps.
struct EmulatedLaunch {
  unsigned blocks = 1;
  unsigned threads = 1024;  ///< 32 .. 1024
  unsigned cluster = 1;     ///< thread blocks of a cluster: 1 .. 8; `blocks` are whole clusters
  std::uint64_t seed = 0;   ///< of the order of the threads
};

/// Calls kernel() as every thread of a launch. Returns what went wrong, for example threads that
/// wait for different barriers; empty: nothing.
std::string run_emulated(const EmulatedLaunch& launch, const std::function<void()>& kernel);

/// What a thread waits for.
enum class EmulatedWait : std::uint8_t { nothing, warp, block, cluster };
/// Where a kernel calls what waits.
using CallSite = std::source_location;
/// Waits until all threads of the warp, or all that have not ended of the block or cluster, wait at
/// the same place of the kernel.
void wait_emulated(EmulatedWait place, const CallSite& site);
/// A function of CUB uses temporary storage, which begin and end in all threads. It is an error to
/// use the same storage again without a barrier of the block in between.
void begin_emulated_use(const void* storage);
void end_emulated_use(const void* storage);
/// The value that thread `thread` of the block gives to the others of its warp or block. It stays
/// until that thread gives another one.
std::uint64_t& emulated_value(unsigned thread);

}  // namespace kvarena::test
