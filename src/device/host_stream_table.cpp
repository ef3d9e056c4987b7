#include "device/host_stream_table.hpp"

#include "base/log_internal.hpp"

#include <new>
#include <system_error>

namespace kvarena {
namespace {

/// The table whose host function runs on this thread now.
thread_local const HostStreamTable* running_table = nullptr;

}  // namespace

HostStreamTable::HostStreamTable(const HostDeviceOptions& options)
    : mode_(options.streams), max_queued_(options.max_queued), slots_(options.max_streams) {}

HostStreamTable::~HostStreamTable() { complete_all(); }

void HostStreamTable::complete_all() {
  for (const auto& stream : slots_) {
    if (stream == nullptr) continue;
    const StreamId id = stream->id;
    const Status status = destroy_stream(id);
    if (!status) {
      log_line(LogLevel::warning, "stream {} destroyed with a failure nobody took: {}", id.value,
               describe(status));
    }
  }
}

// ---- lookups; the mutex is held -----------------------------------------------------------------

HostStreamTable::Stream* HostStreamTable::find(StreamId stream) const noexcept {
  if (stream.value == 0) return nullptr;
  Stream* found = slots_[slot_of(stream)].get();
  return found != nullptr && found->id == stream ? found : nullptr;
}

/// A point of a destroyed stream counts as reached.
bool HostStreamTable::is_reached(const StreamPoint& point) const noexcept {
  const Stream* stream = find(point.stream);
  return stream == nullptr || stream->completed >= point.position;
}

/// Whether the stream's next operation can run now.
bool HostStreamTable::is_ready(const Stream& stream) const noexcept {
  return !stream.is_empty() &&
         (stream.head().kind != HostOperation::Kind::wait || is_reached(stream.head().point));
}

/// Returns the failure in front of a point, or ok.
Status HostStreamTable::failure_at(const StreamPoint& point) const noexcept {
  const Stream* stream = find(point.stream);
  return stream != nullptr ? stream->failures.at(point.position) : Status{};
}

Status HostStreamTable::failure_of(const Event& event) const noexcept {
  return event.failure.is_ok() ? failure_at(event.point) : event.failure;
}

/// Takes the stream's failure, for synchronize and destroy_stream. The events behind it keep it.
Status HostStreamTable::take_failure(Stream& stream) noexcept {
  if (stream.failures.current().is_ok()) return {};
  for (auto& [id, event] : events_) {
    if (event.point.stream == stream.id) event.failure = failure_of(event);
  }
  const Status status = stream.failures.take(stream.queued);
  // Later points must differ from those behind the failure, even when nothing was queued in
  // between.
  ++stream.queued;
  ++stream.completed;
  return status;
}

Status HostStreamTable::check_caller(StreamId stream) const noexcept {
  return running_table == this ? failed_precondition(Resource::stream, stream.value) : Status{};
}

// ---- running operations -------------------------------------------------------------------------

/// Runs the stream's next operation, without the lock. A failed stream skips everything except
/// waits.
void HostStreamTable::run_next(Lock& lock, Stream& stream, HostOperation operation) noexcept {
  Status status;
  if (operation.kind == HostOperation::Kind::wait) {
    status = failure_at(operation.point);
  } else if (stream.failures.current().is_ok()) {
    lock.unlock();
    running_table = this;
    status = run(operation);
    running_table = nullptr;
    lock.lock();
  }
  ++stream.completed;
  if (!status) stream.failures.fail(status, stream.completed);
  if (num_waiting_ > 0) progress_.notify_all();
}

template <class Condition>
void HostStreamTable::wait_for_progress(Lock& lock, Condition condition) {
  ++num_waiting_;
  progress_.wait(lock, condition);
  --num_waiting_;
}

/// Runs an operation for inline_calls. Operations of other threads may have to end first.
void HostStreamTable::run_in_call(Lock& lock, Stream& stream, const HostOperation& operation) {
  const bool is_wait = operation.kind == HostOperation::Kind::wait;
  wait_for_progress(lock,
                    [&] { return stream.is_empty() && (!is_wait || is_reached(operation.point)); });
  ++stream.queued;
  run_next(lock, stream, operation);
}

/// The loop of a stream's thread.
void HostStreamTable::run_thread(Stream& stream) noexcept {
  Lock lock(mutex_);
  for (;;) {
    stream.work.wait(lock, [&] { return !stream.is_empty() || stream.stopping; });
    if (stream.is_empty()) return;
    wait_for_progress(lock, [&] { return is_ready(stream); });
    run_next(lock, stream, stream.head());
  }
}

/// Waits until a point is reached. Manual streams run the needed operations here.
Status HostStreamTable::complete(Lock& lock, StreamPoint point) {
  if (mode_ != HostStreams::manual) {
    wait_for_progress(lock, [&] { return is_reached(point); });
    return {};
  }
  while (!is_reached(point)) {
    // This follows the waits to a stream whose next operation can run. Waits refer only to earlier
    // points, so the loop ends.
    Stream* stream = find(point.stream);
    while (stream != nullptr && !stream->is_empty() && !is_ready(*stream)) {
      stream = find(stream->head().point.stream);
    }
    if (stream == nullptr || stream->is_empty()) {
      return failed_precondition(Resource::stream, point.stream.value);
    }
    run_next(lock, *stream, stream->head());
  }
  return {};
}

Result<bool> HostStreamTable::run_one(StreamId stream) {
  if (mode_ != HostStreams::manual) return failed_precondition(Resource::stream, stream.value);
  if (Status status = check_caller(stream); !status) return status;
  Lock lock(mutex_);
  Stream* found = find(stream);
  if (found == nullptr) return not_found(Resource::stream, stream.value);
  if (!is_ready(*found)) return false;
  run_next(lock, *found, found->head());
  return true;
}

// ---- streams ------------------------------------------------------------------------------------

Result<StreamId> HostStreamTable::create_stream() {
  const Lock lock(mutex_);
  std::size_t slot = 0;
  while (slot < slots_.size() && slots_[slot] != nullptr) ++slot;
  if (slot == slots_.size())
    return exhausted(Resource::stream, slots_.size() + 1, slots_.size(), 0, Option::max_streams);
  try {
    auto stream = std::make_unique<Stream>();
    stream->id = StreamId{stream_space_ + num_streams_ever_ * slots_.size() + slot + 1};
    if (mode_ != HostStreams::inline_calls) stream->ring.resize(max_queued_);
    if (mode_ == HostStreams::threads) {
      stream->thread = std::thread([this, raw = stream.get()] { run_thread(*raw); });
    }
    ++num_streams_ever_;
    slots_[slot] = std::move(stream);
  } catch (const std::bad_alloc&) {
    return exhausted(Resource::host_memory, max_queued_ * sizeof(HostOperation), 0);
  } catch (const std::system_error& error) {  // the system has no more threads
    return Status{
        StatusCode::io_error, Resource::thread, Option::none, error.code().value(), 0, 0, 0};
  }
  return slots_[slot]->id;
}

/// Completes the work, ends the thread, and wakes everybody who waits for a point of the stream.
Status HostStreamTable::destroy_stream(StreamId stream) {
  if (Status status = check_caller(stream); !status) return status;
  Lock lock(mutex_);
  Stream* found = find(stream);
  if (found == nullptr) return not_found(Resource::stream, stream.value);
  if (Status status = complete(lock, {stream, found->queued}); !status) return status;
  const Status failure = take_failure(*found);
  found->stopping = true;
  found->work.notify_one();
  if (found->thread.joinable()) {
    lock.unlock();
    found->thread.join();
    lock.lock();
  }
  slots_[slot_of(stream)].reset();
  progress_.notify_all();
  return failure;
}

Status HostStreamTable::synchronize(StreamId stream) {
  if (Status status = check_caller(stream); !status) return status;
  Lock lock(mutex_);
  Stream* found = find(stream);
  if (found == nullptr) return not_found(Resource::stream, stream.value);
  if (Status status = complete(lock, {stream, found->queued}); !status) return status;
  return take_failure(*found);
}

Result<std::uint64_t> HostStreamTable::failures_taken(StreamId stream) const {
  const Lock lock(mutex_);
  const Stream* found = find(stream);
  if (found == nullptr) return not_found(Resource::stream, stream.value);
  return found->failures.num_taken();
}

/// Queues an operation while the lock is held. Waits while the stream is full.
Status HostStreamTable::push(Lock& lock, StreamId stream, const HostOperation& operation) {
  if (Status status = check_caller(stream); !status) return status;
  Stream* found = find(stream);
  if (found == nullptr) return not_found(Resource::stream, stream.value);
  if (mode_ == HostStreams::inline_calls) {
    run_in_call(lock, *found, operation);
    return {};
  }
  const std::uint64_t size = found->ring.size();
  if (found->queued - found->completed == size) {
    if (mode_ == HostStreams::manual)
      return exhausted(Resource::stream, 1, 0, stream.value, Option::max_queued);
    wait_for_progress(lock, [&] { return found->queued - found->completed < size; });
  }
  found->ring[found->queued % size] = operation;
  ++found->queued;
  found->work.notify_one();
  return {};
}

Status HostStreamTable::enqueue(StreamId stream, const HostOperation& operation) {
  Lock lock(mutex_);
  return push(lock, stream, operation);
}

// ---- events -------------------------------------------------------------------------------------

Result<EventId> HostStreamTable::create_event() {
  const Lock lock(mutex_);
  try {
    events_.emplace(last_event_ + 1, Event{});
  } catch (const std::bad_alloc&) {
    return exhausted(Resource::host_memory, sizeof(Event), 0);
  }
  return EventId{++last_event_};
}

Status HostStreamTable::destroy_event(EventId event) {
  const Lock lock(mutex_);
  return events_.erase(event.value) == 1 ? Status{} : not_found(Resource::event, event.value);
}

/// Recording queues nothing: the event notes the point that the stream has now.
Status HostStreamTable::record(EventId event, StreamId stream) {
  const Lock lock(mutex_);
  const auto it = events_.find(event.value);
  if (it == events_.end()) return not_found(Resource::event, event.value);
  const Stream* found = find(stream);
  if (found == nullptr) return not_found(Resource::stream, stream.value);
  it->second = {.point = {stream, found->queued}, .failure = {}};
  return {};
}

Status HostStreamTable::wait(StreamId stream, EventId event) {
  Lock lock(mutex_);
  const auto it = events_.find(event.value);
  if (it == events_.end()) return not_found(Resource::event, event.value);
  HostOperation operation;
  operation.kind = HostOperation::Kind::wait;
  operation.point = it->second.point;
  return push(lock, stream, operation);
}

Result<bool> HostStreamTable::is_complete(EventId event) {
  const Lock lock(mutex_);
  const auto it = events_.find(event.value);
  if (it == events_.end()) return not_found(Resource::event, event.value);
  if (!is_reached(it->second.point)) return false;
  if (Status failure = failure_of(it->second); !failure) return failure;
  return true;
}

Status HostStreamTable::synchronize(EventId event) {
  if (Status status = check_caller(StreamId{}); !status) return status;
  Lock lock(mutex_);
  const auto it = events_.find(event.value);
  if (it == events_.end()) return not_found(Resource::event, event.value);
  const Event recorded = it->second;
  if (Status status = complete(lock, recorded.point); !status) return status;
  return failure_of(recorded);
}

}  // namespace kvarena
