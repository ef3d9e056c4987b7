#pragma once

/// @file
/// `CpuWorkers`: a small set of persistent threads that run one function together. It owns its
/// threads and joins them when it is destroyed. Move-only. One thread at a time may call `run`. The
/// threads sleep while there is nothing to run.

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

  /// The function that each worker calls; `worker` is 0 .. num_threads() - 1. It must not throw.
  using Function = void (*)(void* argument, std::int32_t worker);

  /// Starts `num_threads - 1` threads; the caller of `run` is worker 0. Returns invalid_argument
  /// (num_threads) outside 1 .. kMaxThreads, or exhausted (thread) when the system has no more
  /// threads.
  static Result<CpuWorkers> create(std::int32_t num_threads);
  ~CpuWorkers();
  /// Takes the threads of `other`. After that, `other` may only be destroyed or assigned to.
  CpuWorkers(CpuWorkers&& other) noexcept;
  /// Ends its own threads, then takes those of `other`.
  CpuWorkers& operator=(CpuWorkers&& other) noexcept;

  /// The number of threads that `run` uses, with the caller.
  std::int32_t num_threads() const noexcept;

  /// Calls `function(argument, worker)` once for each worker and returns when all have returned.
  /// The caller sees what they wrote. No allocation. Must not be called from `function`.
  void run(Function function, void* argument) noexcept;

 private:
  struct Impl;
  explicit CpuWorkers(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

static_assert(std::is_nothrow_move_constructible_v<CpuWorkers>);
static_assert(!std::is_copy_constructible_v<CpuWorkers>);

}  // namespace kvarena
