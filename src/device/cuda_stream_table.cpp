#include "device/cuda_stream_table.hpp"

#include "device/cuda_driver.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <new>

namespace kvarena {
namespace {

/// The time after which a thread that waits for room checks that the GPU is still there. A lost GPU
/// runs no records.
constexpr std::chrono::milliseconds kLookEvery{20};

}  // namespace

CudaStreamTable::CudaStreamTable(const CudaContext& context, std::uint32_t max_streams,
                                 std::uint32_t max_records)
    : context_(context), max_records_(max_records), slots_(max_streams) {}

CudaStreamTable::~CudaStreamTable() {
  for (const StreamId stream : streams()) {
    BounceBuffer bounce;
    static_cast<void>(destroy_stream(stream, &bounce, Adoptions::all));
  }
  for (const auto& [id, event] : events_) {
    static_cast<void>(
        context_.call(Resource::event, id, [&] { return cudaEventDestroy(event.native); }));
  }
}

// ---- lookups; the mutex is held -----------------------------------------------------------------

CudaStreamTable::Stream* CudaStreamTable::find(StreamId stream) const noexcept {
  if (stream.value == 0) return nullptr;
  Stream* found = slots_[slot_of(stream)].get();
  return found != nullptr && found->id == stream ? found : nullptr;
}

Status CudaStreamTable::Stream::check_thread() const noexcept {
  const bool is_here = thread == std::thread::id{} || thread == std::this_thread::get_id();
  return is_here ? Status{} : failed_precondition(Resource::stream, id.value);
}

/// Takes the stream's failure, for synchronize and destroy_stream. The events behind it keep it.
Status CudaStreamTable::take_failure(Stream& stream) noexcept {
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

// ---- lookups that lock --------------------------------------------------------------------------

Result<CudaStreamTable::Stream*> CudaStreamTable::find_for_work(StreamId stream) const {
  const Lock lock(mutex_);
  Stream* found = find(stream);
  if (found == nullptr) return not_found(Resource::stream, stream.value);
  if (Status status = found->check_thread(); !status) return status;
  if (!found->failures.current().is_ok()) found = nullptr;
  return found;
}

Result<CudaStreamTable::Event> CudaStreamTable::find_event(EventId event) const {
  const Lock lock(mutex_);
  const auto it = events_.find(event.value);
  if (it == events_.end()) return not_found(Resource::event, event.value);
  return it->second;
}

Result<CUstream_st*> CudaStreamTable::native(StreamId stream) const {
  const Lock lock(mutex_);
  const Stream* found = find(stream);
  if (found == nullptr) return not_found(Resource::stream, stream.value);
  if (Status status = found->check_thread(); !status) return status;
  return found->native;
}

Result<CUevent_st*> CudaStreamTable::native(EventId event) const {
  const Result<Event> found = find_event(event);
  if (!found) return found.status();
  return found->native;
}

std::vector<StreamId> CudaStreamTable::streams() const {
  const Lock lock(mutex_);
  std::vector<StreamId> all;
  for (const auto& stream : slots_) {
    if (stream != nullptr) all.push_back(stream->id);
  }
  return all;
}

// ---- host operations ----------------------------------------------------------------------------

/// The host function that CUDA calls for a record. A failed stream skips everything except waits.
void CudaStreamTable::run_record(void* record) noexcept {
  const Record& mine = *static_cast<const Record*>(record);
  CudaStreamTable& table = *mine.table;
  Stream& stream = *mine.stream;
  Lock lock(table.mutex_);
  Status status;
  if (mine.operation.kind == HostOperation::Kind::wait) {
    status = table.failure_at(mine.operation.point);
  } else if (stream.failures.current().is_ok()) {
    lock.unlock();
    {
      const CudaContext::InHostFunction here;
      status = run(mine.operation);
    }
    lock.lock();
  }
  ++stream.completed;
  if (!status) stream.failures.fail(status, stream.completed);
  if (table.num_waiting_ > 0) table.progress_.notify_all();
}

/// Waits for room, and asks now and then, without the lock, whether the GPU is still there.
Result<CudaStreamTable::Record*> CudaStreamTable::next_record(Stream& stream,
                                                              const HostOperation& operation) {
  Lock lock(mutex_);
  const std::uint64_t size = stream.ring.size();
  while (stream.queued - stream.completed == size) {
    ++num_waiting_;
    const bool has_room = progress_.wait_for(
        lock, kLookEvery, [&] { return stream.queued - stream.completed < size; });
    --num_waiting_;
    if (has_room) break;
    lock.unlock();
    const Result<bool> idle = context_.query(Resource::stream, stream.id.value,
                                             [&] { return cudaStreamQuery(stream.native); });
    if (!idle) return idle.status();
    lock.lock();
  }
  Record& record = stream.ring[stream.queued % size];
  record = {this, &stream, operation};
  ++stream.queued;
  return &record;
}

Result<bool> CudaStreamTable::is_captured(StreamId stream) const {
  const Result<CUstream_st*> found = native(stream);
  if (!found) return found.status();
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  const Status status = context_.call(Resource::stream, stream.value,
                                      [&] { return cudaStreamIsCapturing(*found, &capture); });
  if (!status) return status;
  return capture != cudaStreamCaptureStatusNone;
}

/// Refuses a stream that is being captured, because a graph cannot contain records.
Status CudaStreamTable::refuse_captured(const Stream& stream) const {
  const Result<bool> captured = is_captured(stream.id);
  if (!captured) return captured.status();
  return *captured ? failed_precondition(Resource::stream, stream.id.value) : Status{};
}

/// Queues a host operation through a record of the stream.
Status CudaStreamTable::push(Stream& stream, const HostOperation& operation) {
  Status status = refuse_captured(stream);
  if (!status) return status;
  const Result<Record*> record = next_record(stream, operation);
  if (!record) return record.status();
  status = context_.call(Resource::stream, stream.id.value,
                         [&] { return cudaLaunchHostFunc(stream.native, run_record, *record); });
  if (!status) {
    const Lock lock(mutex_);
    --stream.queued;
  }
  return status;
}

Status CudaStreamTable::enqueue(StreamId stream, const HostOperation& operation) {
  const Result<Stream*> found = find_for_work(stream);
  if (!found) return found.status();
  return *found == nullptr ? Status{} : push(**found, operation);
}

// ---- copies and fills ---------------------------------------------------------------------------

Status CudaStreamTable::copy(void* target, const void* source, std::uint64_t bytes,
                             StreamId stream) {
  const Result<Stream*> found = find_for_work(stream);
  if (!found) return found.status();
  if (*found == nullptr || bytes == 0) return {};
  return context_.call(Resource::stream, stream.value, [&] {
    return cudaMemcpyAsync(target, source, bytes, cudaMemcpyDefault, (*found)->native);
  });
}

/// Goes through the bounce buffer piece by piece: a host copy and a device copy for each.
Status CudaStreamTable::copy_pageable(void* target, const void* source, std::uint64_t bytes,
                                      bool to_device, StreamId stream) {
  const Result<Stream*> found = find_for_work(stream);
  if (!found) return found.status();
  if (*found == nullptr) return {};
  const BounceBuffer bounce = (*found)->bounce;
  HostOperation half;
  half.kind = HostOperation::Kind::copy;
  // In stream order, a piece has left the buffer before the next piece enters it.
  for (std::uint64_t begin = 0; begin < bytes; begin += half.bytes) {
    half.bytes = std::min(bounce.bytes, bytes - begin);
    char* const piece_target = static_cast<char*>(target) + begin;
    const char* const piece_source = static_cast<const char*>(source) + begin;
    half.target = to_device ? bounce.pointer : piece_target;
    half.source = to_device ? piece_source : bounce.pointer;
    if (!to_device) {
      if (Status s = copy(bounce.pointer, piece_source, half.bytes, stream); !s) return s;
    }
    if (Status s = push(**found, half); !s) return s;
    if (to_device) {
      if (Status s = copy(piece_target, bounce.pointer, half.bytes, stream); !s) return s;
    }
  }
  return {};
}

Status CudaStreamTable::fill(void* target, std::uint8_t value, std::uint64_t bytes,
                             StreamId stream) {
  const Result<Stream*> found = find_for_work(stream);
  if (!found) return found.status();
  if (*found == nullptr || bytes == 0) return {};
  return context_.call(Resource::stream, stream.value,
                       [&] { return cudaMemsetAsync(target, value, bytes, (*found)->native); });
}

/// Without 64-bit writes the number is written in two halves. Work that comes later on the stream
/// sees both.
Status CudaStreamTable::write_value(void* target, std::uint64_t value, StreamId stream) {
  const Result<Stream*> found = find_for_work(stream);
  if (!found) return found.status();
  if (*found == nullptr) return {};
  if (Status status = refuse_captured(**found); !status) return status;
  return context_.call(Resource::stream, stream.value, [&] {
    const CudaDriverFunctions& driver = context_.driver();
    CUstream const native = (*found)->native;
    const auto at = reinterpret_cast<CUdeviceptr>(target);
    if (context_.writes_64_bits()) {
      return driver.write_64(native, at, value, CU_STREAM_WRITE_VALUE_DEFAULT);
    }
    const auto low = static_cast<std::uint32_t>(value);
    const auto high = static_cast<std::uint32_t>(value >> 32);
    const CUresult error = driver.write_32(native, at, low, CU_STREAM_WRITE_VALUE_DEFAULT);
    if (error != CUDA_SUCCESS) return error;
    return driver.write_32(native, at + sizeof(low), high, CU_STREAM_WRITE_VALUE_DEFAULT);
  });
}

// ---- streams ------------------------------------------------------------------------------------

Result<StreamId> CudaStreamTable::create_stream(BounceBuffer bounce, CUstream_st* adopted) {
  auto stream = std::make_unique<Stream>();
  stream->ring.resize(max_records_);
  stream->bounce = bounce;
  stream->native = adopted;
  stream->num_adoptions = adopted == nullptr ? 0 : 1;
  if (adopted == cudaStreamPerThread) stream->thread = std::this_thread::get_id();
  std::size_t slot = 0;
  {
    const Lock lock(mutex_);
    while (slot < slots_.size() && slots_[slot] != nullptr) ++slot;
    if (slot == slots_.size())
      return exhausted(Resource::stream, slots_.size() + 1, slots_.size(), 0, Option::max_streams);
    stream->id = StreamId{stream_space_ + num_streams_ever_ * slots_.size() + slot + 1};
    ++num_streams_ever_;
    slots_[slot] = std::move(stream);
  }
  Stream& created = *slots_[slot];
  if (adopted != nullptr) return created.id;
  const Status status = context_.call(Resource::stream, created.id.value, [&] {
    return cudaStreamCreateWithFlags(&created.native, cudaStreamNonBlocking);
  });
  if (status.is_ok()) return created.id;
  const Lock lock(mutex_);
  slots_[slot].reset();
  return status;
}

Result<StreamId> CudaStreamTable::adopt_again(CUstream_st* adopted) {
  const Lock lock(mutex_);
  for (const auto& stream : slots_) {
    const bool is_this = stream != nullptr && stream->native == adopted &&
                         stream->num_adoptions > 0 && stream->check_thread();
    if (!is_this) continue;
    ++stream->num_adoptions;
    return stream->id;
  }
  return not_found(Resource::stream, 0);
}

/// Another thread's per-thread stream can be waited for only with the whole GPU.
Status CudaStreamTable::destroy_stream(StreamId stream, BounceBuffer* bounce, Adoptions undone) {
  if (CudaContext::runs_host_function()) {
    return failed_precondition(Resource::stream, stream.value);
  }
  Stream* found = nullptr;
  bool is_adopted = false;
  {
    const Lock lock(mutex_);
    found = find(stream);
    if (found == nullptr) return not_found(Resource::stream, stream.value);
    is_adopted = found->num_adoptions > 0;
    if (undone == Adoptions::all) found->num_adoptions = 0;
    if (is_adopted && found->num_adoptions > 0 && --found->num_adoptions > 0) return {};
  }
  // A lost device has no work to wait for. Its streams are destroyed too.
  Status status = context_.call(Resource::stream, stream.value, [&] {
    return found->check_thread() ? cudaStreamSynchronize(found->native) : cudaDeviceSynchronize();
  });
  if (!is_adopted) {
    Status destroyed = context_.call(Resource::stream, stream.value,
                                     [&] { return cudaStreamDestroy(found->native); });
    if (status.is_ok()) status = destroyed;
  }
  const Lock lock(mutex_);
  const Status failure = take_failure(*found);
  *bounce = found->bounce;
  slots_[slot_of(stream)].reset();
  return status.is_ok() ? failure : status;
}

Status CudaStreamTable::synchronize(StreamId stream) {
  const Result<CUstream_st*> found = native(stream);
  if (!found) return found.status();
  Status status =
      context_.call(Resource::stream, stream.value, [&] { return cudaStreamSynchronize(*found); });
  if (!status) return status;
  const Lock lock(mutex_);
  return take_failure(*find(stream));
}

Result<std::uint64_t> CudaStreamTable::failures_taken(StreamId stream) const {
  const Lock lock(mutex_);
  const Stream* found = find(stream);
  if (found == nullptr) return not_found(Resource::stream, stream.value);
  return found->failures.num_taken();
}

}  // namespace kvarena
