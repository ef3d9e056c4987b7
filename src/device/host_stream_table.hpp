#pragma once

/// @file
/// Streams and events of the host device.
///
/// A stream is a ring of fixed-size operations with two counters, `queued` and `completed`. A point
/// of a stream is a value of `queued`, and is reached when `completed` has that value. Recording an
/// event notes the stream's point. Waiting for an event queues a wait for the point that the event
/// has now, so a later recording does not change earlier waits. A wait refers only to a point that
/// exists already, so no two streams can wait for each other.
///
/// An operation that fails makes its stream fail. The stream then skips operations until
/// synchronize takes the failure. Waits are not skipped, so that no point is reached before the
/// points it waited for. A point behind a failure is a failed point, and a stream that waits for it
/// fails too. Each stream remembers the last of the failures that were taken. Events keep theirs.
///
/// With inline_calls nothing stays queued: a call runs its operation, with both counters one
/// further.
///
/// Thread-safety: as in Device. One mutex guards everything. Operations run without it.

#include "base/id_space.hpp"
#include "device/host_operation.hpp"
#include "device/stream_failures.hpp"

#include "kvarena/device/device.hpp"
#include "kvarena/device/host_device.hpp"

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

namespace kvarena {

/// All streams and events of one host device.
class HostStreamTable {
 public:
  /// Makes a table of up to `options.max_streams` streams with `options.max_queued` operations
  /// each.
  explicit HostStreamTable(const HostDeviceOptions& options);
  /// Does what complete_all does.
  ~HostStreamTable();
  HostStreamTable(const HostStreamTable&) = delete;
  HostStreamTable& operator=(const HostStreamTable&) = delete;

  // These are as in Device.
  Result<StreamId> create_stream();
  Status destroy_stream(StreamId stream);
  Status synchronize(StreamId stream);
  Result<std::uint64_t> failures_taken(StreamId stream) const;
  Result<EventId> create_event();
  Status destroy_event(EventId event);
  Status record(EventId event, StreamId stream);
  Status wait(StreamId stream, EventId event);
  Result<bool> is_complete(EventId event);
  Status synchronize(EventId event);

  /// Completes all queued work and destroys the streams. Logs failures that nobody took.
  void complete_all();
  /// Queues `operation`, or with inline_calls runs it. Blocks while the stream is full; a full
  /// manual stream returns exhausted (stream) instead. Returns not_found (stream).
  Status enqueue(StreamId stream, const HostOperation& operation);
  /// Does what HostDevice::run_one does.
  Result<bool> run_one(StreamId stream);

 private:
  /// Invariant: completed <= queued <= completed + ring.size(). Operation n is ring[n % size].
  struct Stream {
    StreamId id;
    std::vector<HostOperation> ring;
    std::uint64_t queued = 0;
    std::uint64_t completed = 0;
    StreamFailures failures;
    bool stopping = false;
    std::condition_variable work;  // notified when something was queued, or when stopping is set
    std::thread thread;

    bool is_empty() const noexcept { return completed == queued; }
    const HostOperation& head() const noexcept { return ring[completed % ring.size()]; }
  };
  /// The last recording of an event.
  struct Event {
    StreamPoint point;
    Status failure;  // in front of the point, once it was taken
  };
  using Lock = std::unique_lock<std::mutex>;

  /// Returns the slot in which a stream lies when it belongs to this table.
  std::size_t slot_of(StreamId stream) const noexcept {
    return (stream.value - stream_space_ - 1) % slots_.size();
  }
  Stream* find(StreamId stream) const noexcept;
  bool is_reached(const StreamPoint& point) const noexcept;
  bool is_ready(const Stream& stream) const noexcept;
  Status failure_at(const StreamPoint& point) const noexcept;
  Status failure_of(const Event& event) const noexcept;
  Status take_failure(Stream& stream) noexcept;
  /// Refuses a call from inside a host function of this table, because the call would wait for
  /// itself.
  Status check_caller(StreamId stream) const noexcept;
  Status push(Lock& lock, StreamId stream, const HostOperation& operation);
  Status complete(Lock& lock, StreamPoint point);
  void run_next(Lock& lock, Stream& stream, HostOperation operation) noexcept;
  void run_in_call(Lock& lock, Stream& stream, const HostOperation& operation);
  void run_thread(Stream& stream) noexcept;
  template <class Condition>
  void wait_for_progress(Lock& lock, Condition condition);

  const HostStreams mode_;
  const std::uint32_t max_queued_;
  mutable std::mutex mutex_;
  std::condition_variable progress_;            // notified when an operation has completed or a
                                                // stream was destroyed
  std::uint32_t num_waiting_ = 0;               // threads that wait in wait_for_progress
  std::vector<std::unique_ptr<Stream>> slots_;  // by slot_of
  const std::uint64_t stream_space_ = take_id_space(IdKind::stream);
  std::uint64_t num_streams_ever_ = 0;
  std::unordered_map<std::uint64_t, Event> events_;          // by id
  std::uint64_t last_event_ = take_id_space(IdKind::event);  // the id issued last, or the begin of
                                                             // the range
};

}  // namespace kvarena
