#include "emulation/thread_block.hpp"

#include "emulation/intrinsics.hpp"

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <new>
#include <numeric>
#include <random>
#include <span>
#include <vector>

EmulatedIndex threadIdx;
EmulatedIndex blockIdx;
EmulatedIndex gridDim;
EmulatedIndex clusterDim;

namespace kvarena::test {
namespace {

constexpr unsigned kWarpThreads = 32;
constexpr unsigned kMaxThreads = 1024;
constexpr unsigned kMaxCluster = 8;
constexpr std::size_t kStackBytes = std::size_t{128} << 10;
constexpr std::size_t kGuardBytes = std::size_t{4} << 10;  // of these, the lowest

struct Thread {
  ucontext_t start;  // the context in which it begins
  jmp_buf state;     // where it waits; jumping there makes no system call, as swapcontext does
  bool has_begun = false;
  EmulatedWait wait = EmulatedWait::nothing;
  CallSite site;
  bool has_ended = false;
};

/// The stacks of threads, which take memory where they are used. What goes beyond one faults.
class Stacks {
 public:
  Stacks() = default;
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;
  ~Stacks() { release(); }

  /// Makes room for so many threads.
  void have(std::size_t threads) {
    if (threads <= threads_) return;
    release();
    threads_ = threads;
    void* const all = mmap(nullptr, threads * kStackBytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) throw std::bad_alloc();
    base_ = static_cast<char*>(all);
    static_cast<void>(madvise(base_, threads * kStackBytes, MADV_NOHUGEPAGE));
    for (std::size_t i = 0; i < threads; ++i) {
      static_cast<void>(mprotect(base_ + i * kStackBytes, kGuardBytes, PROT_NONE));
    }
  }
  char* at(std::size_t thread) const { return base_ + thread * kStackBytes; }

 private:
  void release() {
    if (base_ != nullptr) munmap(base_, threads_ * kStackBytes);
    base_ = nullptr;
  }
  char* base_ = nullptr;
  std::size_t threads_ = 0;
};

/// A cluster of thread blocks that run together.
class Cluster {
 public:
  Cluster(const EmulatedLaunch& launch, unsigned first_block, std::mt19937_64& random,
          const std::function<void()>& kernel)
      : kernel_(kernel),
        random_(random),
        first_block_(first_block),
        block_threads_(launch.threads),
        threads_(std::size_t{launch.cluster} * launch.threads),
        warps_(threads_.size() / kWarpThreads),
        barriers_(launch.cluster) {
    std::iota(warps_.begin(), warps_.end(), 0U);
    static Stacks stacks;
    stacks.have(threads_.size());
    for (std::size_t i = 0; i < threads_.size(); ++i) {
      ucontext_t& context = threads_[i].start;
      getcontext(&context);
      context.uc_stack.ss_sp = stacks.at(i);
      context.uc_stack.ss_size = kStackBytes;
      context.uc_link = nullptr;
      makecontext(&context, &Cluster::enter, 0);
    }
  }

  /// Runs to the end. Returns what went wrong. Now and then a block runs on alone, until it waits
  /// for the others.
  std::string run() {
    current_ = this;
    while (!has_ended(threads_)) {
      const bool is_alone = barriers_.size() > 1 && random_() % 2 == 0;
      const std::size_t block = is_alone ? random_() % barriers_.size() : 0;
      bool goes_on = false;
      do {
        if (std::string error = run_warps(is_alone, block); !error.empty()) return error;
      } while (is_alone && release_block(block));
      for (std::size_t b = 0; b < barriers_.size() && !is_alone; ++b) {
        goes_on = release_block(b) || goes_on;
      }
      goes_on = release(threads_, EmulatedWait::cluster) || goes_on;
      if (!goes_on && !is_alone && !has_ended(threads_)) return stuck();
    }
    return {};
  }

  void wait(EmulatedWait place, const CallSite& site) {
    Thread& t = threads_[running_];
    t.wait = place;
    t.site = site;
    leave();
  }

  void begin_use(const void* storage) {
    const auto last = last_uses_.find(storage);
    if (last == last_uses_.end() || last->second < barriers_[block()]) return;
    error_ = "temporary storage is used again without a barrier";
  }
  void end_use(const void* storage) { last_uses_[storage] = barriers_[block()]; }
  /// The block of the running thread, in its cluster.
  std::size_t block() const { return running_ / block_threads_; }

  static Cluster& current() { return *current_; }

 private:
  static void enter() {
    Cluster& cluster = *current_;
    cluster.kernel_();
    cluster.threads_[cluster.running_].has_ended = true;
    cluster.leave();
  }
  void leave() {
    if (_setjmp(threads_[running_].state) == 0) _longjmp(scheduler_, 1);
  }

  /// Runs all warps to their next wait, or those of one block.
  std::string run_warps(bool is_alone, std::size_t block) {
    std::shuffle(warps_.begin(), warps_.end(), random_);
    for (const unsigned warp : warps_) {
      if (is_alone && warp * kWarpThreads / block_threads_ != block) continue;
      if (std::string error = run_warp(warp); !error.empty()) return error;
      if (!error_.empty()) return error_;
    }
    return {};
  }
  /// Lets the threads of a block go on that all wait at a barrier. Returns whether they do, or some
  /// of them can run.
  bool release_block(std::size_t block) {
    const auto its = std::span(threads_).subspan(block * block_threads_, block_threads_);
    if (release(its, EmulatedWait::block)) {
      ++barriers_[block];
      return true;
    }
    return std::ranges::any_of(
        its, [](const Thread& t) { return !t.has_ended && t.wait == EmulatedWait::nothing; });
  }

  static bool has_ended(std::span<const Thread> threads) {
    return std::ranges::all_of(threads, [](const Thread& t) { return t.has_ended; });
  }
  /// Lets threads go on if all that have not ended wait for each other. Returns whether they do.
  static bool release(std::span<Thread> threads, EmulatedWait place) {
    const auto waits = [&](const Thread& t) { return t.wait == place && !t.has_ended; };
    const auto first = std::ranges::find_if(threads, waits);
    if (first == threads.end()) return false;
    for (const Thread& t : threads) {
      if (!t.has_ended && (t.wait != place || !is_same(t.site, first->site))) return false;
    }
    for (Thread& t : threads) t.wait = EmulatedWait::nothing;
    return true;
  }
  /// Names two calls in which threads wait for ever.
  std::string stuck() const {
    const auto alive = [](const Thread& t) { return !t.has_ended; };
    const CallSite one = std::ranges::find_if(threads_, alive)->site;
    for (const Thread& t : threads_) {
      if (!t.has_ended && !is_same(t.site, one)) return differ(one, t.site);
    }
    return "some threads wait at " + text_of(one) + " for others that do not come";
  }

  static std::string text_of(const CallSite& site) {
    return std::string(site.file_name()) + ":" + std::to_string(site.line());
  }
  static bool is_same(const CallSite& one, const CallSite& other) {
    return one.line() == other.line() && one.column() == other.column() &&
           std::strcmp(one.file_name(), other.file_name()) == 0;
  }
  static std::string differ(const CallSite& one, const CallSite& other) {
    return "some threads wait at " + text_of(one) + " and others at " + text_of(other);
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
        if (t.has_ended) return "some lanes have ended and others have not";
        if (!in_warp(t) || !is_same(t.site, lanes[0].site)) return differ(lanes[0].site, t.site);
      }
      for (Thread& t : lanes) t.wait = EmulatedWait::nothing;
    } while (goes_on);
    return {};
  }

  void resume(unsigned thread) {
    running_ = thread;
    threadIdx.x = thread % block_threads_;
    blockIdx.x = first_block_ + thread / block_threads_;
    Thread& t = threads_[thread];
    if (_setjmp(scheduler_) != 0) return;
    if (t.has_begun) _longjmp(t.state, 1);
    t.has_begun = true;
    setcontext(&t.start);
  }

  inline static Cluster* current_ = nullptr;
  const std::function<void()>& kernel_;
  std::mt19937_64& random_;
  unsigned first_block_;
  unsigned block_threads_;
  std::vector<Thread> threads_;
  std::vector<unsigned> warps_;
  std::vector<std::uint64_t> barriers_;  // of each block, that all of its threads have passed
  jmp_buf scheduler_;
  unsigned running_ = 0;
  std::map<const void*, std::uint64_t> last_uses_;  // barriers at the end of a use of storage
  std::string error_;
};

}  // namespace

std::string run_emulated(const EmulatedLaunch& launch, const std::function<void()>& kernel) {
  std::mt19937_64 random(launch.seed);
  gridDim.x = launch.blocks;
  clusterDim.x = launch.cluster;
  for (unsigned block = 0; block < launch.blocks; block += launch.cluster) {
    std::string error = Cluster(launch, block, random, kernel).run();
    if (!error.empty()) return error;
  }
  return {};
}

void wait_emulated(EmulatedWait place, const CallSite& site) {
  Cluster::current().wait(place, site);
}

void begin_emulated_use(const void* storage) { Cluster::current().begin_use(storage); }
void end_emulated_use(const void* storage) { Cluster::current().end_use(storage); }

std::uint64_t& emulated_value(unsigned thread) {
  static std::array<std::uint64_t, kMaxCluster * kMaxThreads> values;
  return values[Cluster::current().block() * kMaxThreads + thread];
}

}  // namespace kvarena::test
