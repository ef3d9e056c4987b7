#pragma once

/// @file
/// The host device: a Device in the process's own memory. It serves machines without a GPU, tests,
/// and engines that decode on the CPU. It has a capacity limit like a card, and counts every byte.
/// Its streams are real asynchronous queues, each with its own thread. An engine that waits for
/// each result anyway has the work run in the calls instead, which saves two changes of threads for
/// each wait. Tests can run the streams by hand, in any order that streams allow. Allocations from
/// 2 MiB on ask the system for huge pages. The system commits memory when it is first touched.
///
/// Queueing blocks while a stream is full. Manual streams cannot wait: there queueing returns
/// exhausted (stream), and synchronize itself runs the operations that it needs, on any stream.

#include "kvarena/device/device.hpp"

#include <memory>

namespace kvarena {

/// The memory of the operating system as the host device uses it. Tests inject one that fails.
/// Thread-safe.
class KVARENA_EXPORT HostMemorySource {
 public:
  virtual ~HostMemorySource() = default;
  /// Returns `bytes` bytes of lazily committed memory aligned to `alignment_bytes`, or nullptr with
  /// `*native_error` set to an errno value.
  virtual void* allocate(std::uint64_t bytes, std::uint64_t alignment_bytes,
                         std::int32_t* native_error) noexcept = 0;
  /// Returns memory of allocate to the system.
  virtual void free(void* pointer, std::uint64_t bytes) noexcept = 0;
  /// Returns how many bytes the machine could still give.
  virtual std::uint64_t available_bytes() const noexcept = 0;
};

/// Returns the real operating system: one object of the process. It allocates by anonymous mmap.
/// Its available bytes are MemAvailable, or what the process's control groups leave when that is
/// less.
KVARENA_EXPORT HostMemorySource& system_memory_source() noexcept;

/// The way in which the streams of a host device run.
enum class HostStreams : std::uint8_t {
  threads,  ///< each stream has a thread
  manual,   ///< work runs only in HostDevice::run_one or a synchronize; single-threaded, for tests
  inline_calls,  ///< work runs in the call that queues it, on the caller's thread, and has
                 ///< completed when the call returns. Failures are as on other streams: the call
                 ///< returns ok, and the stream fails
};

/// Options of a host device.
struct HostDeviceOptions {
  std::uint64_t capacity_bytes = 0;            ///< <= 2^48; 0: what the machine has available
  HostStreams streams = HostStreams::threads;  ///< how streams run
  std::uint32_t max_streams = 64;      ///< 1 .. 4096; past this create_stream returns exhausted
  std::uint32_t max_queued = 4096;     ///< 1 .. 2^20 operations queued on a stream
  HostMemorySource* memory = nullptr;  ///< borrowed; nullptr: system_memory_source()
};

/// Numbers of calls that allocate and free memory, with failed calls.
struct HostCallCounts {
  std::uint64_t allocate = 0;  ///< calls of Device::allocate
  std::uint64_t free = 0;      ///< calls of Device::free
};

/// A Device in host memory. Its free memory is the rest of the capacity, or what the machine has
/// available when that is less. Pinned staging memory does not count against the capacity.
class KVARENA_EXPORT HostDevice : public Device {
 public:
  /// Opens a host device. Returns invalid_argument when an option is out of range.
  static Result<std::unique_ptr<HostDevice>> create(const HostDeviceOptions& options = {});

  /// Manual streams only: runs the next operation of `stream` (copy, fill, host function or wait)
  /// if it can run now. Returns whether one ran; false means that the stream is empty or waits for
  /// an event. A recording is not an operation of its own: it completes with the work queued before
  /// it. Returns not_found (stream), or failed_precondition (stream) when the streams are not
  /// manual.
  virtual Result<bool> run_one(StreamId stream) = 0;
  /// Returns the calls so far. Any thread.
  virtual HostCallCounts call_counts() const noexcept = 0;
};

}  // namespace kvarena
