#pragma once

/// @file
/// The host device: a Device in the process's own memory, for machines without a GPU, for tests,
/// and for engines that decode on the CPU. It has a capacity limit like a card, counts every byte,
/// and its streams are real asynchronous queues, each with a thread of its own (or, for tests, run
/// by hand in any order that streams allow). Allocations from 2 MiB on ask the system for big
/// pages. Memory is committed when it is first touched.
///
/// Queueing blocks while a stream is full. Manual streams have nobody to wait for: there it returns
/// exhausted (stream), and synchronize runs what it needs itself, on whichever streams that is.

#include "kvarena/device/device.hpp"

#include <memory>

namespace kvarena {

/// The operating system as the host device sees it; injected so that tests can make it fail.
/// Thread-safe.
class KVARENA_EXPORT HostMemorySource {
 public:
  virtual ~HostMemorySource() = default;
  /// `bytes` of lazily committed memory aligned to `alignment_bytes`, or nullptr with
  /// `*native_error` set to an errno value.
  virtual void* allocate(std::uint64_t bytes, std::uint64_t alignment_bytes,
                         std::int32_t* native_error) noexcept = 0;
  /// Returns memory of allocate to the system.
  virtual void free(void* pointer, std::uint64_t bytes) noexcept = 0;
  /// What the machine could still give, bytes.
  virtual std::uint64_t available_bytes() const noexcept = 0;
};

/// The real operating system: anonymous mmap; available is MemAvailable, or what the process's
/// control groups leave when that is less. One process-wide object.
KVARENA_EXPORT HostMemorySource& system_memory_source() noexcept;

/// How streams of a host device run.
enum class HostStreams : std::uint8_t {
  threads,  ///< a thread for each stream
  manual,   ///< nothing runs until HostDevice::run_one or a synchronize; single-threaded, for tests
};

/// Options of a host device.
struct HostDeviceOptions {
  std::uint64_t capacity_bytes = 0;            ///< <= 2^48; 0: what the machine has available
  HostStreams streams = HostStreams::threads;  ///< how streams run
  std::uint32_t max_streams = 64;              ///< 1 .. 4096; create_stream: exhausted past this
  std::uint32_t max_queued = 4096;             ///< 1 .. 2^20 operations that a stream holds
  HostMemorySource* memory = nullptr;          ///< borrowed; nullptr: system_memory_source()
};

/// How often memory was asked for and given back, failed calls included.
struct HostCallCounts {
  std::uint64_t allocate = 0;  ///< calls of Device::allocate
  std::uint64_t free = 0;      ///< calls of Device::free
};

/// A Device in host memory. Free memory is the smaller of what is left of the capacity and what the
/// machine has available. Pinned staging memory does not count against the capacity.
class KVARENA_EXPORT HostDevice : public Device {
 public:
  /// Returns invalid_argument when the options are out of range.
  static Result<std::unique_ptr<HostDevice>> create(const HostDeviceOptions& options = {});

  /// Manual streams only: runs the next operation of `stream` (copy, fill, host function or wait)
  /// if it can run now. Returns whether one ran; false means empty or waiting for an event. A
  /// recording is no operation of its own: it completes with what was queued before it. Returns
  /// not_found (stream), or failed_precondition (stream) when streams are threads.
  virtual Result<bool> run_one(StreamId stream) = 0;
  /// Calls so far. Any thread.
  virtual HostCallCounts call_counts() const noexcept = 0;
};

}  // namespace kvarena
