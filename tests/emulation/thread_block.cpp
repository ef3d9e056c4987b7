#include "emulation/thread_block.hpp"

#include "emulation/intrinsics.hpp"

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <vector>

EmulatedIndex threadIdx;
EmulatedIndex blockIdx;
EmulatedIndex gridDim;

namespace kvarena::test {
namespace {

constexpr unsigned kWarpThreads = 32;
constexpr unsigned kMaxThreads = 1024;
constexpr std::size_t kStackBytes = std::size_t{128} << 10;

struct Thread {
  ucontext_t start;  // the context in which it begins
  jmp_buf state;     // where it waits; jumping there makes no system call, as swapcontext does
  bool has_begun = false;
  EmulatedWait wait = EmulatedWait::nothing;
  const char* call = "";
  bool has_ended = false;
};

/// A thread block that runs.
class Block {
 public:
  Block(unsigned threads, std::mt19937_64& random, const std::function<void()>& kernel)
      : kernel_(kernel), random_(random), threads_(threads), warps_(threads / kWarpThreads) {
    std::iota(warps_.begin(), warps_.end(), 0U);
    static const std::unique_ptr<char[]> stacks(new char[kMaxThreads * kStackBytes]);
    for (unsigned i = 0; i < threads; ++i) {
      ucontext_t& context = threads_[i].start;
      getcontext(&context);
      context.uc_stack.ss_sp = stacks.get() + i * kStackBytes;
      context.uc_stack.ss_size = kStackBytes;
      context.uc_link = nullptr;
      makecontext(&context, &Block::enter, 0);
    }
  }

  /// Runs to the end. Returns what went wrong.
  std::string run() {
    current_ = this;
    while (true) {
      std::shuffle(warps_.begin(), warps_.end(), random_);
      for (const unsigned warp : warps_) {
        if (std::string error = run_warp(warp); !error.empty()) return error;
        if (!error_.empty()) return error_;
      }
      const auto waits = [](const Thread& t) { return t.wait == EmulatedWait::block; };
      const auto ended = [](const Thread& t) { return t.has_ended; };
      if (std::ranges::all_of(threads_, ended)) return {};
      if (!std::ranges::all_of(threads_, [&](const auto& t) { return waits(t) || ended(t); })) {
        continue;
      }
      const char* const call = std::ranges::find_if(threads_, waits)->call;
      ++barriers_;
      for (Thread& t : threads_) {
        if (!t.has_ended && std::strcmp(t.call, call) != 0) return differ(call, t.call);
        t.wait = EmulatedWait::nothing;
      }
    }
  }

  void wait(EmulatedWait place, const char* call) {
    Thread& t = threads_[running_];
    t.wait = place;
    t.call = call;
    leave();
  }

  void begin_use(const void* storage) {
    const auto last = last_uses_.find(storage);
    if (last == last_uses_.end() || last->second < barriers_) return;
    error_ = "temporary storage is used again without a barrier";
  }
  void end_use(const void* storage) { last_uses_[storage] = barriers_; }

  static Block& current() { return *current_; }

 private:
  static void enter() {
    Block& block = *current_;
    block.kernel_();
    block.threads_[block.running_].has_ended = true;
    block.leave();
  }
  void leave() {
    if (_setjmp(threads_[running_].state) == 0) _longjmp(scheduler_, 1);
  }

  static std::string differ(const char* one, const char* other) {
    return std::string("some threads wait in ") + one + " and others in " + other;
  }

  /// Runs the lanes of a warp to their next wait; half of the time on to a wait for the block, so
  /// that it is as far ahead of the others as it can be.
  std::string run_warp(unsigned warp) {
    const auto first = threads_.begin() + warp * kWarpThreads;
    const auto lanes = std::span(first, kWarpThreads);
    const bool goes_on = random_() % 2 == 0;
    do {
      const bool is_reverse = random_() % 2 == 0;
      for (unsigned i = 0; i < kWarpThreads; ++i) {
        const unsigned lane = is_reverse ? kWarpThreads - 1 - i : i;
        if (!lanes[lane].has_ended && lanes[lane].wait == EmulatedWait::nothing) {
          resume(warp * kWarpThreads + lane);
        }
      }
      const auto in_warp = [](const Thread& t) { return t.wait == EmulatedWait::warp; };
      if (std::ranges::none_of(lanes, in_warp)) return {};
      for (const Thread& t : lanes) {
        if (t.has_ended) return std::string("some lanes have ended and others wait in ") + t.call;
        if (!in_warp(t) || std::strcmp(t.call, lanes[0].call) != 0) {
          return differ(lanes[0].call, t.call);
        }
      }
      for (Thread& t : lanes) t.wait = EmulatedWait::nothing;
    } while (goes_on);
    return {};
  }

  void resume(unsigned thread) {
    running_ = thread;
    threadIdx.x = thread;
    Thread& t = threads_[thread];
    if (_setjmp(scheduler_) != 0) return;
    if (t.has_begun) _longjmp(t.state, 1);
    t.has_begun = true;
    setcontext(&t.start);
  }

  inline static Block* current_ = nullptr;
  const std::function<void()>& kernel_;
  std::mt19937_64& random_;
  std::vector<Thread> threads_;
  std::vector<unsigned> warps_;
  jmp_buf scheduler_;
  unsigned running_ = 0;
  std::uint64_t barriers_ = 0;                      // of the block, that all have passed
  std::map<const void*, std::uint64_t> last_uses_;  // barriers at the end of a use of storage
  std::string error_;
};

}  // namespace

std::string run_emulated(const EmulatedLaunch& launch, const std::function<void()>& kernel) {
  std::mt19937_64 random(launch.seed);
  gridDim.x = launch.blocks;
  for (unsigned block = 0; block < launch.blocks; ++block) {
    blockIdx.x = block;
    std::string error = Block(launch.threads, random, kernel).run();
    if (!error.empty()) return error;
  }
  return {};
}

void wait_emulated(EmulatedWait place, const char* call) { Block::current().wait(place, call); }

void begin_emulated_use(const void* storage) { Block::current().begin_use(storage); }
void end_emulated_use(const void* storage) { Block::current().end_use(storage); }

std::uint64_t& emulated_value(unsigned thread) {
  static std::array<std::uint64_t, kMaxThreads> values;
  return values[thread];
}

}  // namespace kvarena::test
