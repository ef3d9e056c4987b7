#pragma once

/// @file
/// Streams and events of the host device.
///
/// A stream is a ring of fixed-size operations with two counters: `queued` and `completed`. A point
/// of a stream is a value of `queued`: it is reached when `completed` has caught up. Recording an
/// event just notes the stream's point, and waiting for an event queues a wait for the point it
/// holds then, so that later recordings change nothing for those who wait already. Waits only look
/// back at points that exist, so no two streams can wait for each other.
///
/// An operation that fails makes its stream fail: what follows is skipped (waits are kept, so that
/// a point is never reached before what it waited for) until synchronize takes the failure. A point
/// behind a failure is a failed one: whoever waits for it fails too. Of failures already taken each
/// stream remembers the last.
///
/// Thread-safety: as Device says. One mutex guards everything; operations run without it.

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
  /// Up to `options.max_streams` streams of `options.max_queued` operations each.
  explicit HostStreamTable(const HostDeviceOptions& options);
  /// As complete_all.
  ~HostStreamTable();
  HostStreamTable(const HostStreamTable&) = delete;
  HostStreamTable& operator=(const HostStreamTable&) = delete;

  // As in Device.
  Result<StreamId> create_stream();
  Status destroy_stream(StreamId stream);
  Status synchronize(StreamId stream);
  Result<EventId> create_event();
  Status destroy_event(EventId event);
  Status record(EventId event, StreamId stream);
  Status wait(StreamId stream, EventId event);
  Result<bool> is_complete(EventId event);
  Status synchronize(EventId event);

  /// Completes all queued work and destroys the streams; logs a failure that nobody took.
  void complete_all();
  /// Queues `operation`; blocks while the stream is full. Manual streams return exhausted (stream)
  /// then. Returns not_found (stream).
  Status enqueue(StreamId stream, const HostOperation& operation);
  /// As in HostDevice.
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
    std::condition_variable work;  // threads: something was queued, or stopping
    std::thread thread;

    bool is_empty() const noexcept { return completed == queued; }
    const HostOperation& head() const noexcept { return ring[completed % ring.size()]; }
  };
  using Lock = std::unique_lock<std::mutex>;

  /// Where a stream is, if it is one of these.
  std::size_t slot_of(StreamId stream) const noexcept {
    return (stream.value - stream_space_ - 1) % slots_.size();
  }
  Stream* find(StreamId stream) const noexcept;
  bool is_reached(const StreamPoint& point) const noexcept;
  bool is_ready(const Stream& stream) const noexcept;
  Status failure_at(const StreamPoint& point) const noexcept;
  Status take_failure(Stream& stream) noexcept;
  /// Refuses a call from inside a host function of this table, which would wait for itself.
  Status check_caller(StreamId stream) const noexcept;
  Status push(Lock& lock, StreamId stream, const HostOperation& operation);
  Status complete(Lock& lock, StreamPoint point);
  void run_head(Lock& lock, Stream& stream) noexcept;
  void run_thread(Stream& stream) noexcept;
  template <class Condition>
  void wait_for_progress(Lock& lock, Condition condition);

  const HostStreams mode_;
  const std::uint32_t max_queued_;
  mutable std::mutex mutex_;
  std::condition_variable progress_;            // an operation completed, or a stream went away
  std::uint32_t num_waiting_ = 0;               // threads in wait_for_progress
  std::vector<std::unique_ptr<Stream>> slots_;  // slot_of
  const std::uint64_t stream_space_ = take_id_space(IdKind::stream);
  std::uint64_t num_streams_ever_ = 0;
  std::unordered_map<std::uint64_t, StreamPoint> events_;    // by id
  std::uint64_t last_event_ = take_id_space(IdKind::event);  // or what comes before the first
};

}  // namespace kvarena
