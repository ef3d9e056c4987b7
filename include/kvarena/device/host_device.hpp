#pragma once

/// @file
/// The host device: a Device in the process's own memory, for machines without a GPU, for tests, and
/// for engines that decode on the CPU. It has a capacity limit like a card, counts every byte, and its
/// streams are real asynchronous queues, each with a thread of its own (or, for tests, run by hand in
/// any order that streams allow).

#include "kvarena/device/device.hpp"

#include <memory>

namespace kvarena {

/// The operating system as the host device sees it; injected so that tests can make it fail.
class KVARENA_EXPORT HostMemorySource {
 public:
  virtual ~HostMemorySource() = default;
  /// `bytes` of zero-filled, lazily committed memory aligned to `alignment_bytes`, or nullptr with
  /// `*native_error` set to an errno value.
  virtual void* allocate(std::uint64_t bytes, std::uint64_t alignment_bytes,
                         std::int32_t* native_error) noexcept = 0;
  /// Returns memory of allocate to the system.
  virtual void free(void* pointer, std::uint64_t bytes) noexcept = 0;
  /// What the machine could still give, bytes.
  virtual std::uint64_t available_bytes() const noexcept = 0;
};

/// The real operating system (anonymous mmap; MemAvailable). One process-wide object.
KVARENA_EXPORT HostMemorySource& system_memory_source() noexcept;

/// How streams of a host device run.
enum class HostStreams : std::uint8_t {
  threads,  ///< a thread for each stream
  manual,   ///< nothing runs until HostDevice::run_one or a synchronize; single-threaded, for tests
};

/// Options of a host device.
struct HostDeviceOptions {
  std::uint64_t capacity_bytes = 0;           ///< 0: what the machine has available at create
  HostStreams streams = HostStreams::threads; ///< how streams run
  std::uint32_t max_streams = 64;             ///< create_stream fails with exhausted past this
  std::uint32_t max_queued = 4096;            ///< operations a stream holds; queueing more blocks
  HostMemorySource* memory = nullptr;         ///< borrowed; nullptr: system_memory_source()
};

/// A Device in host memory. Free memory is the smaller of what is left of the capacity and what the
/// machine has available.
class KVARENA_EXPORT HostDevice : public Device {
 public:
  /// Returns invalid_argument when the options are out of range.
  static Result<std::unique_ptr<HostDevice>> create(const HostDeviceOptions& options = {});

  /// Manual streams only: runs the next operation of `stream` if it can run now. Returns whether one
  /// ran; false means empty or waiting for an event. not_found (stream), or failed_precondition when
  /// streams are threads.
  virtual Result<bool> run_one(StreamId stream) = 0;
};

}  // namespace kvarena
