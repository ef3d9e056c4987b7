#include "kvarena/attention/cpu_workers.hpp"

#include <atomic>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace kvarena {

/// The state that the threads share. A round is one call of run: `round` wakes the threads, and
/// `busy` counts those that have not finished it.
struct CpuWorkers::Impl {
  Function function = nullptr;
  void* argument = nullptr;
  bool stopping = false;  // read after a change of `round`, like the two members above
  std::int32_t num_threads = 1;
  alignas(64) std::atomic<std::uint32_t> round{0};
  alignas(64) std::atomic<std::int32_t> busy{0};
  std::vector<std::thread> threads;

  ~Impl() {
    stopping = true;
    round.fetch_add(1, std::memory_order_release);
    round.notify_all();
    for (std::thread& thread : threads) thread.join();
  }

  // The loop of one thread.
  void serve(std::int32_t worker) noexcept {
    for (std::uint32_t seen = 0;;) {
      round.wait(seen, std::memory_order_acquire);
      seen = round.load(std::memory_order_acquire);
      if (stopping) return;
      function(argument, worker);
      if (busy.fetch_sub(1, std::memory_order_acq_rel) == 1) busy.notify_one();
    }
  }
};

CpuWorkers::CpuWorkers(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
CpuWorkers::~CpuWorkers() = default;
CpuWorkers::CpuWorkers(CpuWorkers&& other) noexcept = default;
CpuWorkers& CpuWorkers::operator=(CpuWorkers&& other) noexcept = default;

Result<CpuWorkers> CpuWorkers::create(std::int32_t num_threads) {
  if (num_threads < 1 || num_threads > kMaxThreads) {
    return invalid_argument(Resource::num_threads, num_threads, 1, kMaxThreads);
  }
  std::int32_t started = 0;
  try {
    auto impl = std::make_unique<Impl>();
    impl->num_threads = num_threads;
    impl->threads.reserve(static_cast<std::size_t>(num_threads));
    Impl* const shared = impl.get();
    for (; started + 1 < num_threads; ++started) {
      impl->threads.emplace_back([shared, worker = started + 1] { shared->serve(worker); });
    }
    return CpuWorkers(std::move(impl));
  } catch (const std::system_error& error) {
    Status status = exhausted(Resource::thread, static_cast<std::uint64_t>(num_threads - 1),
                              static_cast<std::uint64_t>(started));
    status.native = error.code().value();
    return status;
  } catch (const std::bad_alloc&) {
    return exhausted(Resource::host_memory, sizeof(Impl), 0);
  }
}

std::int32_t CpuWorkers::num_threads() const noexcept { return impl_->num_threads; }

void CpuWorkers::run(Function function, void* argument) noexcept {
  Impl& impl = *impl_;
  const std::int32_t others = impl.num_threads - 1;
  if (others == 0) return function(argument, 0);
  impl.function = function;
  impl.argument = argument;
  impl.busy.store(others, std::memory_order_relaxed);
  impl.round.fetch_add(1, std::memory_order_release);
  impl.round.notify_all();
  function(argument, 0);
  for (std::int32_t left = impl.busy.load(std::memory_order_acquire); left != 0;
       left = impl.busy.load(std::memory_order_acquire)) {
    impl.busy.wait(left, std::memory_order_acquire);
  }
}

}  // namespace kvarena
