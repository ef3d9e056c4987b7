// The events of CudaStreamTable.

#include "device/cuda_stream_table.hpp"

#include <cuda_runtime_api.h>

#include <new>

namespace kvarena {

/// Returns the failure in front of a point, or ok.
Status CudaStreamTable::failure_at(const StreamPoint& point) const noexcept {
  const Stream* stream = find(point.stream);
  return stream != nullptr ? stream->failures.at(point.position) : Status{};
}

bool CudaStreamTable::can_fail(const StreamPoint& point) const noexcept {
  const Stream* stream = find(point.stream);
  if (stream == nullptr) return false;
  return stream->completed < point.position || !stream->failures.at(point.position).is_ok();
}

Status CudaStreamTable::failure_of(const Event& event) const noexcept {
  return event.failure.is_ok() ? failure_at(event.point) : event.failure;
}

Result<EventId> CudaStreamTable::create_event() {
  Event event;
  Status status = context_.call(Resource::event, 0, [&] {
    return cudaEventCreateWithFlags(&event.native, cudaEventDisableTiming);
  });
  if (!status) return status;
  try {
    const Lock lock(mutex_);
    events_.emplace(last_event_ + 1, event);
    return EventId{++last_event_};
  } catch (const std::bad_alloc&) {
    static_cast<void>(
        context_.call(Resource::event, 0, [&] { return cudaEventDestroy(event.native); }));
    return exhausted(Resource::host_memory, sizeof(Event), 0);
  }
}

Status CudaStreamTable::destroy_event(EventId event) {
  if (CudaContext::runs_host_function()) return failed_precondition(Resource::stream);
  Event gone;
  {
    const Lock lock(mutex_);
    const auto it = events_.find(event.value);
    if (it == events_.end()) return not_found(Resource::event, event.value);
    gone = it->second;
    events_.erase(it);
  }
  return context_.call(Resource::event, event.value, [&] { return cudaEventDestroy(gone.native); });
}

/// Notes the stream's point beside the native event, so that waits can find its failure.
Status CudaStreamTable::record(EventId event, StreamId stream) {
  Event* target = nullptr;
  const Stream* found = nullptr;
  {
    const Lock lock(mutex_);
    const auto it = events_.find(event.value);
    if (it == events_.end()) return not_found(Resource::event, event.value);
    target = &it->second;  // the nodes of the map keep their addresses
    found = find(stream);
    if (found == nullptr) return not_found(Resource::stream, stream.value);
    if (Status status = found->check_thread(); !status) return status;
  }
  Status status = context_.call(Resource::event, event.value,
                                [&] { return cudaEventRecord(target->native, found->native); });
  if (!status) return status;
  const Lock lock(mutex_);
  target->point = {stream, found->queued};
  target->failure = {};
  return {};
}

/// A record follows the native wait only when it may have to pass a failure on.
Status CudaStreamTable::wait(StreamId stream, EventId event) {
  const Result<Event> found_event = find_event(event);
  if (!found_event) return found_event.status();
  Stream* found = nullptr;
  bool passes_failure_on = false;
  {
    const Lock lock(mutex_);
    found = find(stream);
    if (found == nullptr) return not_found(Resource::stream, stream.value);
    if (Status status = found->check_thread(); !status) return status;
    passes_failure_on = can_fail(found_event->point);
  }
  Status status = context_.call(Resource::stream, stream.value, [&] {
    return cudaStreamWaitEvent(found->native, found_event->native, cudaEventWaitDefault);
  });
  if (!status || !passes_failure_on) return status;
  HostOperation operation;
  operation.kind = HostOperation::Kind::wait;
  operation.point = found_event->point;
  return push(*found, operation);
}

Result<bool> CudaStreamTable::is_complete(EventId event) {
  const Result<Event> found = find_event(event);
  if (!found) return found.status();
  const Result<bool> is_reached =
      context_.query(Resource::event, event.value, [&] { return cudaEventQuery(found->native); });
  if (!is_reached || !*is_reached) return is_reached;
  const Lock lock(mutex_);
  if (Status failure = failure_of(*found); !failure) return failure;
  return true;
}

Status CudaStreamTable::synchronize(EventId event) {
  const Result<Event> found = find_event(event);
  if (!found) return found.status();
  Status status = context_.call(Resource::event, event.value,
                                [&] { return cudaEventSynchronize(found->native); });
  if (!status) return status;
  const Lock lock(mutex_);
  return failure_of(*found);
}

}  // namespace kvarena
