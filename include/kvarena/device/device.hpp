#pragma once

/// @file
/// `Device`: what kvarena needs of a device: memory with a purpose, memory information,
/// asynchronous copy and fill, streams and events. Only a Device allocates device memory, and it
/// records every allocation in its VramTracker. Implementations: host_device.hpp, cuda_device.hpp.
///
/// Thread-safety: allocate, free, memory_info, place_of, policy, tracker and describe may be called
/// from any thread. One thread at a time may use a stream or an event.
/// Ownership: the device owns its streams, events and memory. Destroying the device synchronises
/// it, releases everything that is left, and logs a warning that names what was leaked.
/// Streams: a stream runs its work in order, asynchronously to the caller and to other streams
/// (unless a host device is told to run it in the calls).
/// Events: an event marks a point in a stream. Recording an event again does not change what
/// earlier waits wait for.
/// Failures: an asynchronous operation that fails makes its stream fail. The stream skips later
/// operations until the next synchronize(stream), which returns the failure and makes the stream
/// usable again. Events recorded behind the failure complete as failed: is_complete and
/// synchronize(event) return the failure until the event is recorded again, also when the stream
/// was destroyed. A stream that waits for such an event fails with it while the other one exists.
/// No stream therefore computes with data that were never written.

#include "kvarena/base/export.hpp"
#include "kvarena/base/ids.hpp"
#include "kvarena/base/result.hpp"
#include "kvarena/device/residency.hpp"
#include "kvarena/device/vram_tracker.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvarena {

/// A stream of one device. No other device of the process issues the same number. 0 is never
/// issued, because there is no default stream.
using StreamId = StrongId<struct StreamTag, std::uint64_t>;
/// An event of one device. No other device of the process issues the same number. 0 is never
/// issued.
using EventId = StrongId<struct EventTag, std::uint64_t>;

/// A function that a stream runs on the host.
using HostFunction = Status (*)(void* argument);

/// The kind of a device.
enum class DeviceKind : std::uint8_t { host, cuda };

/// The memory of a device, in bytes.
struct MemoryInfo {
  std::uint64_t total_bytes = 0;  ///< all memory; the capacity limit on a host device
  std::uint64_t free_bytes = 0;   ///< what the driver can give now, next to other processes
};

/// A request for memory.
struct AllocationRequest {
  std::uint64_t bytes = 0;                         ///< 1 .. 2^48
  std::uint64_t alignment_bytes = 256;             ///< power of two, <= 4096
  MemoryPurpose purpose = MemoryPurpose::unknown;  ///< what the memory is for
  MemoryKind kind = MemoryKind::device;            ///< which kind the memory must be
  std::string_view description = {};               ///< for reports; copied
};

/// The interface of a device.
class KVARENA_EXPORT Device {
 public:
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  /// Returns host or cuda.
  virtual DeviceKind kind() const noexcept = 0;
  /// Returns a name for people: "host", "cuda:0 NVIDIA H200".
  virtual std::string name() const = 0;
  /// Returns total and free bytes, or device_error when the driver cannot tell.
  virtual Result<MemoryInfo> memory_info() const = 0;

  /// Allocates uninitialised memory and records it in the tracker. Returns invalid_argument (bytes,
  /// alignment_bytes, kind, purpose), or unsupported (allocation) for KV or weights in pinned
  /// staging memory. Returns insufficient_vram{required, available}, or exhausted (host_memory) for
  /// staging memory, when there is too little; residency_violated (allocation) when the driver gave
  /// memory that policy() forbids; or device_error. For describe(), the device keeps a snapshot of
  /// insufficient_vram, exhausted and residency_violated. A failed call has changed nothing.
  virtual Result<void*> allocate(const AllocationRequest& request) = 0;
  /// Frees memory of allocate. The work that uses it must have completed. Returns invalid_argument
  /// (pointer) for nullptr, not_found (allocation) for a pointer that was never recorded, and
  /// failed_precondition (allocation) for memory that the engine registered. Nothing changes then.
  virtual Status free(void* pointer) = 0;

  /// Returns what memory for KV and weights must be.
  virtual ResidencyPolicy policy() const noexcept = 0;
  /// Returns what the `bytes` bytes from `pointer` on are. The driver, not the tracker, is asked; a
  /// host device looks into its own list of what it gave out. Any pointer is accepted, and nothing
  /// reads it. Returns invalid_argument (pointer) for nullptr, invalid_argument (span_size) for 0
  /// bytes or for more than lie behind the pointer, or the driver's failure. Any thread.
  virtual Result<Placement> place_of(const void* pointer, std::uint64_t bytes) const = 0;
  /// Returns the used bytes that the driver reported when this device was opened, before it
  /// allocated: contexts and other processes. 0 on a host device.
  virtual std::uint64_t overhead_bytes() const noexcept = 0;
  /// Returns the sticky error (a cudaError_t) by which the device was lost, once a call has seen
  /// it. Returns 0 while the device is usable, and always on a host device.
  virtual std::int32_t lost_to() const noexcept { return 0; }

  /// Queues a copy of `bytes` bytes from `source` to `target`. Both are host or device memory, do
  /// not overlap, and must stay valid until the copy has completed. Returns invalid_argument
  /// (pointer) for nullptr unless `bytes` is 0, invalid_argument (span_size) for ranges that
  /// overlap, or not_found (stream). No call that queues work allocates memory.
  virtual Status copy(void* target, const void* source, std::uint64_t bytes, StreamId stream) = 0;
  /// Queues setting `bytes` bytes at `target` to `value`. Returns the same as copy.
  virtual Status fill(void* target, std::uint8_t value, std::uint64_t bytes, StreamId stream) = 0;
  /// Queues `function(argument)`. It runs after all earlier work of the stream, on a thread of the
  /// device, and must not call the device. A failed status makes the stream fail. `argument` must
  /// stay valid until the function has returned. Returns invalid_argument (pointer) without a
  /// function, or not_found (stream).
  virtual Status launch_host(HostFunction function, void* argument, StreamId stream) = 0;

  /// Creates a stream. Returns exhausted (stream, host_memory), device_error, or io_error (thread)
  /// when the system has no thread for it.
  virtual Result<StreamId> create_stream() = 0;
  /// Waits for the stream's work and destroys the stream. Returns not_found (stream), or a failure
  /// that no synchronize has returned yet; the stream is destroyed then too.
  virtual Status destroy_stream(StreamId stream) = 0;
  /// Waits until all work queued on the stream has completed, and returns its first failure once.
  /// Returns not_found (stream), or failed_precondition (stream) when it is called from a function
  /// of launch_host, where the wait would never end.
  virtual Status synchronize(StreamId stream) = 0;
  /// Returns how many failures synchronize(stream) has returned so far: between two calls with the
  /// same number, nobody has made a failed stream usable again. Returns not_found (stream).
  virtual Result<std::uint64_t> failures_taken(StreamId stream) const = 0;

  /// Creates an event. It counts as completed until it is recorded.
  virtual Result<EventId> create_event() = 0;
  /// Destroys an event. Work that waits for it is unaffected. Returns not_found (event).
  virtual Status destroy_event(EventId event) = 0;
  /// Queues the event's completion behind the work that is on the stream now. Returns not_found
  /// (event, stream).
  virtual Status record(EventId event, StreamId stream) = 0;
  /// Makes the stream wait for the event's last recording so far. An event without a recording
  /// makes it wait for nothing. Returns not_found (event, stream).
  virtual Status wait(StreamId stream, EventId event) = 0;
  /// Returns whether the event's last recording has completed. Never blocks. Returns not_found
  /// (event), or the failure that lies in front of the recording.
  virtual Result<bool> is_complete(EventId event) = 0;
  /// Blocks until the event's last recording has completed. Returns what is_complete returns, or
  /// failed_precondition (stream) as synchronize(stream) does.
  virtual Status synchronize(EventId event) = 0;

  /// The account of this device's memory.
  virtual VramTracker& tracker() noexcept = 0;
  /// The account of this device's memory.
  virtual const VramTracker& tracker() const noexcept = 0;
  /// Returns kvarena::describe(status). For every insufficient_vram and exhausted (host_memory) the
  /// tracker's breakdown follows. When `status` is that of the last failed allocation, the
  /// breakdown is that of the failure's moment. It then adds what was asked for, and either how
  /// much was missing or a remark that the free memory would have sufficed (fragmentation, another
  /// process; for staging memory: a limit of this process). For residency_violated the text says
  /// what the memory is instead.
  virtual std::string describe(const Status& status) const = 0;

 protected:
  Device() = default;
};

}  // namespace kvarena
