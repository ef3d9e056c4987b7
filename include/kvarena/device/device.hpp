#pragma once

/// @file
/// `Device`: what kvarena asks of a device: memory with a purpose, memory information, asynchronous
/// copy and fill, streams, events. The only door to device memory; every allocation passes through
/// the device's VramTracker. Implementations: host_device.hpp, cuda_device.hpp.
///
/// Thread-safety: allocate, free, memory_info, place_of, policy, tracker and describe may be called
/// from any thread; operations on one stream or event by one thread at a time.
/// Ownership: the device owns its streams, events and memory; destroying it synchronises, then
/// releases everything that is still there (and logs a warning naming what was leaked).
/// Streams run their work in order, asynchronously to the caller and to one another. Events mark a
/// point in a stream; recording an event again does not change what earlier waits wait for.
/// An asynchronous operation that fails makes its stream fail: later operations are skipped until
/// the next synchronize(stream), which returns the failure and makes the stream usable again.
/// Events recorded behind the failure complete, but as failed: is_complete and synchronize(event)
/// return the failure, and a stream that waits for one fails with it, so that nobody computes with
/// what was never written.

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

/// A stream of one device; no other device of the process issues its number. 0 is never issued:
/// there is no default stream.
using StreamId = StrongId<struct StreamTag, std::uint64_t>;
/// An event of one device; no other device of the process issues its number. 0 is never issued.
using EventId = StrongId<struct EventTag, std::uint64_t>;

/// A function that a stream runs on the host.
using HostFunction = Status (*)(void* argument);

/// Which kind of device this is.
enum class DeviceKind : std::uint8_t { host, cuda };

/// Memory of a device, bytes.
struct MemoryInfo {
  std::uint64_t total_bytes = 0;  ///< all there is (the capacity limit on a host device)
  std::uint64_t free_bytes = 0;   ///< what the driver would give now, other processes considered
};

/// A request for memory.
struct AllocationRequest {
  std::uint64_t bytes = 0;                         ///< 1 .. 2^48
  std::uint64_t alignment_bytes = 256;             ///< power of two, <= 4096
  MemoryPurpose purpose = MemoryPurpose::unknown;  ///< what for
  MemoryKind kind = MemoryKind::device;            ///< what it must be
  std::string_view description = {};               ///< for reports; copied
};

/// What a device must offer. docs/explanation/design.md, room 1.
class KVARENA_EXPORT Device {
 public:
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  /// host or cuda.
  virtual DeviceKind kind() const noexcept = 0;
  /// For people: "host", "cuda:0 NVIDIA H200".
  virtual std::string name() const = 0;
  /// Total and free bytes. Returns device_error when the driver cannot tell.
  virtual Result<MemoryInfo> memory_info() const = 0;

  /// Memory, uninitialised, recorded in the tracker. Returns invalid_argument (bytes,
  /// alignment_bytes, kind, purpose), unsupported (allocation) for KV or weights in pinned staging
  /// memory, insufficient_vram{required, available} (for staging memory: exhausted (host_memory))
  /// or residency_violated (allocation) when the driver gave what policy() forbids, both with a
  /// snapshot kept for describe(), or device_error. A failed call has changed nothing.
  virtual Result<void*> allocate(const AllocationRequest& request) = 0;
  /// Frees what allocate returned. Work that uses it must have completed. nullptr is
  /// invalid_argument (pointer), a pointer never recorded not_found (allocation), memory that the
  /// engine registered failed_precondition (allocation); nothing changes then.
  virtual Status free(void* pointer) = 0;

  /// What memory for KV and weights must be.
  virtual ResidencyPolicy policy() const noexcept = 0;
  /// Asks the driver, not the tracker, what `bytes` bytes from `pointer` on are. A host device
  /// judges its own map of what it gave out. Any pointer may be asked about; nothing reads it.
  /// Returns invalid_argument (pointer) for nullptr, (span_size) for no bytes or more than lie
  /// behind the pointer, or the driver's failure. Any thread.
  virtual Result<Placement> place_of(const void* pointer, std::uint64_t bytes) const = 0;
  /// What the driver said was used when this device was opened, before it allocated: contexts, and
  /// whoever was there before. 0 on a host device.
  virtual std::uint64_t overhead_bytes() const noexcept = 0;
  /// The driver's sticky error (a cudaError_t) that the device was lost to, once a call has seen
  /// it; 0 while it is usable, and on a host device always.
  virtual std::int32_t lost_to() const noexcept { return 0; }

  /// Queues a copy of `bytes` from `source` to `target` (host or device memory, not overlapping).
  /// Both must stay valid until it has completed. Returns invalid_argument (pointer) for nullptr
  /// unless `bytes` is 0, or (span_size) for ranges that overlap; not_found (stream). Never
  /// allocates, as all that queue.
  virtual Status copy(void* target, const void* source, std::uint64_t bytes, StreamId stream) = 0;
  /// Queues setting `bytes` bytes at `target` to `value`. Returns as copy.
  virtual Status fill(void* target, std::uint8_t value, std::uint64_t bytes, StreamId stream) = 0;
  /// Queues `function(argument)`; it runs after all earlier work of the stream, on a thread of the
  /// device, and must not call the device. A failed status makes the stream fail. `argument` must
  /// stay valid until the function has returned. Returns invalid_argument (pointer) without a
  /// function, not_found (stream).
  virtual Status launch_host(HostFunction function, void* argument, StreamId stream) = 0;

  /// A new stream. Returns exhausted (stream) or device_error.
  virtual Result<StreamId> create_stream() = 0;
  /// Waits for the stream's work and destroys it. Returns not_found (stream), or a failure that no
  /// synchronize has returned yet (the stream is destroyed all the same).
  virtual Status destroy_stream(StreamId stream) = 0;
  /// Waits until all work queued on the stream has completed; returns its first failure, once, or
  /// not_found (stream), or failed_precondition (stream) when called where waiting would never end:
  /// from a function of launch_host.
  virtual Status synchronize(StreamId stream) = 0;

  /// A new event, completed until it is recorded.
  virtual Result<EventId> create_event() = 0;
  /// Destroys an event; work waiting for it is unaffected. Returns not_found (event).
  virtual Status destroy_event(EventId event) = 0;
  /// Queues the event's completion behind the stream's work so far. Returns not_found (event,
  /// stream).
  virtual Status record(EventId event, StreamId stream) = 0;
  /// Queues: the stream waits for the event's last recording so far (nothing when there is none).
  /// Returns not_found (event, stream).
  virtual Status wait(StreamId stream, EventId event) = 0;
  /// Has the event's last recording completed? Never blocks. Returns not_found (event), or the
  /// failure that the recording lies behind.
  virtual Result<bool> is_complete(EventId event) = 0;
  /// Blocks until the event's last recording has completed. Returns as is_complete, or
  /// failed_precondition (stream) as synchronize(stream).
  virtual Status synchronize(EventId event) = 0;

  /// The account of this device's memory.
  virtual VramTracker& tracker() noexcept = 0;
  /// The account of this device's memory.
  virtual const VramTracker& tracker() const noexcept = 0;
  /// kvarena::describe(status), and for every insufficient_vram and exhausted (host_memory) the
  /// tracker's breakdown. When it is the status of the last failed allocation, the breakdown is
  /// that of its moment, with what was asked for, and either how much was missing or a remark that
  /// the free memory would have sufficed (fragmentation, another process; for staging memory: a
  /// limit of this process). For residency_violated: what it is instead.
  virtual std::string describe(const Status& status) const = 0;

 protected:
  Device() = default;
};

}  // namespace kvarena
