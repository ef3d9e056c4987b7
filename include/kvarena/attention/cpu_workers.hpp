#pragma once

/// @file
/// `CpuWorkers`: a small set of persistent threads that run one function together. Owns its threads
/// (joins them when destroyed); move-only. One thread at a time may call `run`. Threads sleep while
/// there is nothing to run.

#include "kvarena/base/export.hpp"
#include "kvarena/base/result.hpp"

#include <cstdint>
#include <memory>
#include <type_traits>

namespace kvarena {

/// Persistent worker threads.
class KVARENA_EXPORT CpuWorkers {
 public:
  static constexpr std::int32_t kMaxThreads = 256;  ///< largest number of threads

  /// What each worker calls: `worker` is 0 .. num_threads() - 1. Must not throw.
  using Function = void (*)(void* argument, std::int32_t worker);

  /// Starts `num_threads - 1` threads; the caller of `run` is worker 0. Returns invalid_argument
  /// (num_threads) outside 1 .. kMaxThreads, exhausted (thread) when the system has no more.
  static Result<CpuWorkers> create(std::int32_t num_threads);
  ~CpuWorkers();
  /// Takes the threads of `other`, which may then only be destroyed or assigned to.
  CpuWorkers(CpuWorkers&& other) noexcept;
  /// Ends its own threads, then takes those of `other`.
  CpuWorkers& operator=(CpuWorkers&& other) noexcept;

  /// Threads that `run` uses, the caller included.
  std::int32_t num_threads() const noexcept;

  /// Calls `function(argument, worker)` once for each worker and returns when all have returned;
  /// what they wrote is visible to the caller. No allocation. Not from within `function`.
  void run(Function function, void* argument) noexcept;

 private:
  struct Impl;
  explicit CpuWorkers(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

static_assert(std::is_nothrow_move_constructible_v<CpuWorkers>);
static_assert(!std::is_copy_constructible_v<CpuWorkers>);

}  // namespace kvarena
