#pragma once

/// @file
/// Streams and events of the CUDA device.
///
/// Device work is queued directly on CUDA streams. Host work (functions, and copies to and from
/// pageable memory) is queued by cudaLaunchHostFunc with a record from the stream's ring, so no
/// call allocates. `queued` and `completed` count the records, as on the host device, and a point
/// of a stream is a value of `queued`. Only records can make a stream fail. A wait for an event
/// therefore needs its own record, which passes a failure on in stream order, only when records
/// before the event have failed or not run yet. Without host functions no wait needs a record.
///
/// Thread-safety: as in Device. One mutex guards the tables. No CUDA call is made while it is held:
/// a full CUDA queue waits for records to run, and records take the mutex.

#include "base/id_space.hpp"
#include "device/cuda_context.hpp"
#include "device/host_operation.hpp"
#include "device/stream_failures.hpp"

#include "kvarena/device/device.hpp"

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

struct CUstream_st;
struct CUevent_st;

namespace kvarena {

/// Pinned memory of one stream, for copies to and from pageable memory.
struct BounceBuffer {
  void* pointer = nullptr;  ///< first byte
  std::uint64_t bytes = 0;  ///< its size
};

/// How many adoptions of a stream a call undoes.
enum class Adoptions : std::uint8_t { one, all };

/// All streams and events of one CUDA device.
class CudaStreamTable {
 public:
  /// Makes a table of up to `max_streams` streams. Each has room for `max_records` host operations.
  /// `context` must outlive the table.
  CudaStreamTable(const CudaContext& context, std::uint32_t max_streams, std::uint32_t max_records);
  ~CudaStreamTable();
  CudaStreamTable(const CudaStreamTable&) = delete;
  CudaStreamTable& operator=(const CudaStreamTable&) = delete;

  // These are as in Device.
  Status synchronize(StreamId stream);
  Result<std::uint64_t> failures_taken(StreamId stream) const;
  Result<EventId> create_event();
  Status destroy_event(EventId event);
  Status record(EventId event, StreamId stream);
  Status wait(StreamId stream, EventId event);
  Result<bool> is_complete(EventId event);
  Status synchronize(EventId event);

  /// Creates a stream that owns its native stream, or with `adopted` one that borrows it and has
  /// one adoption. `bounce` stays the caller's.
  Result<StreamId> create_stream(BounceBuffer bounce, CUstream_st* adopted);
  /// Counts one more adoption of a native stream that was adopted before, and returns its id.
  /// Returns not_found (stream). The per-thread stream of another thread is another stream.
  Result<StreamId> adopt_again(CUstream_st* adopted);
  /// Does what Device::destroy_stream does, and sets `*bounce` to the stream's bounce buffer when
  /// the stream is gone.
  Status destroy_stream(StreamId stream, BounceBuffer* bounce, Adoptions undone);
  /// Returns all existing streams.
  std::vector<StreamId> streams() const;

  /// Does what CudaDevice::is_captured does.
  Result<bool> is_captured(StreamId stream) const;
  /// Queues an operation that runs on the host. Blocks while the stream's ring is full. Returns
  /// not_found (stream), failed_precondition (stream) while the stream is captured, or
  /// device_error.
  Status enqueue(StreamId stream, const HostOperation& operation);
  /// Queues a copy that CUDA makes by itself, because neither side is pageable. Skipped on a failed
  /// stream.
  Status copy(void* target, const void* source, std::uint64_t bytes, StreamId stream);
  /// Queues a copy between the GPU and pageable host memory through the bounce buffer.
  Status copy_pageable(void* target, const void* source, std::uint64_t bytes, bool to_device,
                       StreamId stream);
  /// Queues a fill of pinned or device memory. Skipped on a failed stream.
  Status fill(void* target, std::uint8_t value, std::uint64_t bytes, StreamId stream);
  /// Queues the write of a number to 8-byte aligned device memory. Skipped on a failed stream.
  Status write_value(void* target, std::uint64_t value, StreamId stream);

  /// Return the native handles, or not_found.
  Result<CUstream_st*> native(StreamId stream) const;
  Result<CUevent_st*> native(EventId event) const;

 private:
  struct Stream;
  /// One host operation. CUDA gets its address.
  struct Record {
    CudaStreamTable* table = nullptr;
    Stream* stream = nullptr;
    HostOperation operation;
  };
  /// Invariant: completed <= queued <= completed + ring.size(). Record n is ring[n % size].
  struct Stream {
    StreamId id;
    CUstream_st* native = nullptr;
    std::int64_t num_adoptions = 0;  // 0: the stream is owned, or about to be forgotten
    std::thread::id thread;          // the one whose per-thread default stream this is, or none
    BounceBuffer bounce;
    std::vector<Record> ring;
    std::uint64_t queued = 0;
    std::uint64_t completed = 0;
    StreamFailures failures;

    /// Returns failed_precondition (stream) when another thread's per-thread stream is meant.
    Status check_thread() const noexcept;
  };
  struct Event {
    CUevent_st* native = nullptr;
    StreamPoint point;  // of the last recording
    Status failure;     // in front of the point, once it was taken
  };
  using Lock = std::unique_lock<std::mutex>;

  static void run_record(void* record) noexcept;
  /// Returns the slot in which a stream lies when it belongs to this table.
  std::size_t slot_of(StreamId stream) const noexcept {
    return (stream.value - stream_space_ - 1) % slots_.size();
  }
  Stream* find(StreamId stream) const noexcept;
  Status failure_at(const StreamPoint& point) const noexcept;
  Status failure_of(const Event& event) const noexcept;
  /// Whether a stream that waits for `point` may have to fail with it.
  bool can_fail(const StreamPoint& point) const noexcept;
  /// Returns a stream that takes work, not_found, or nullptr when the stream has failed and work is
  /// to be skipped.
  Result<Stream*> find_for_work(StreamId stream) const;
  Result<Event> find_event(EventId event) const;
  Status push(Stream& stream, const HostOperation& operation);
  Status refuse_captured(const Stream& stream) const;
  /// Returns a free record of the stream, and waits for one if necessary.
  Result<Record*> next_record(Stream& stream, const HostOperation& operation);
  Status take_failure(Stream& stream) noexcept;

  const CudaContext& context_;
  const std::uint32_t max_records_;
  mutable std::mutex mutex_;
  std::condition_variable progress_;            // notified when a record has completed
  std::uint32_t num_waiting_ = 0;               // threads that wait in next_record
  std::vector<std::unique_ptr<Stream>> slots_;  // by slot_of
  const std::uint64_t stream_space_ = take_id_space(IdKind::stream);
  std::uint64_t num_streams_ever_ = 0;
  std::unordered_map<std::uint64_t, Event> events_;          // by id
  std::uint64_t last_event_ = take_id_space(IdKind::event);  // the id issued last, or the begin of
                                                             // the range
};

}  // namespace kvarena
