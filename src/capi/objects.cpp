#include "capi/objects.hpp"

#include <cstdint>
#include <new>
#include <utility>

namespace kvarena::capi {
namespace {

/// A host stream's handle is its number, moved so that no handle is one of CUDA's default streams.
constexpr int kHostStreamShift = 4;

void* host_handle(StreamId stream) noexcept {
  return reinterpret_cast<void*>(stream.value << kHostStreamShift);
}

/// Returns the stream of a handle. 0, which no stream has, for what is no handle.
StreamId host_stream(const void* handle) noexcept {
  const StreamId stream(reinterpret_cast<std::uintptr_t>(handle) >> kHostStreamShift);
  return host_handle(stream) == handle ? stream : StreamId{};
}

Status no_such_stream(const void* stream) noexcept {
  return not_found(Resource::stream, reinterpret_cast<std::uintptr_t>(stream));
}

/// cudaStreamPerThread names another stream on each thread, so its id is not remembered.
bool is_per_thread(void* stream) noexcept {
  return reinterpret_cast<std::uintptr_t>(stream) == KVARENA_STREAM_PER_THREAD;
}

}  // namespace

Status by_handle(const Status& status, StreamId id, const void* stream) noexcept {
  const bool is_missing =
      status.code == StatusCode::not_found && status.resource == Resource::stream;
  return is_missing && status.subject == id.value ? no_such_stream(stream) : status;
}

CudaDevice* DeviceObject::cuda() const noexcept {
  return device_->kind() == DeviceKind::cuda ? dynamic_cast<CudaDevice*>(device_.get()) : nullptr;
}

Result<StreamId> DeviceObject::id_of(void* stream) {
  if (stream == nullptr) return refused_null();
  CudaDevice* const gpu = cuda();
  if (gpu == nullptr) {
    const StreamId id = host_stream(stream);
    return id == StreamId{} ? no_such_stream(stream) : Result<StreamId>(id);
  }
  if (is_per_thread(stream)) return gpu->adopt_stream(stream);
  const std::lock_guard lock(mutex_);
  const auto found = streams_.find(stream);
  if (found != streams_.end()) return found->second;
  const auto place = streams_.emplace(stream, StreamId{}).first;
  const Result<StreamId> id = gpu->adopt_stream(stream);
  if (id) {
    place->second = *id;
  } else {
    streams_.erase(place);
  }
  return id;
}

Result<void*> DeviceObject::name_of(StreamId stream) const {
  const CudaDevice* const gpu = cuda();
  if (gpu == nullptr) return host_handle(stream);
  return gpu->native_stream(stream);
}

Result<void*> DeviceObject::create_stream() {
  const Result<StreamId> id = device_->create_stream();
  if (!id) return id.status();
  const Result<void*> stream = name_of(*id);
  if (!stream) return stream;
  try {
    const std::lock_guard lock(mutex_);
    streams_.insert_or_assign(*stream, *id);
  } catch (const std::bad_alloc&) {
    static_cast<void>(device_->destroy_stream(*id));
    throw;
  }
  return stream;
}

Status DeviceObject::destroy_stream(void* stream) {
  if (stream == nullptr) return refused_null();
  std::unique_lock lock(mutex_);
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return no_such_stream(stream);
  const StreamId id = found->second;
  streams_.erase(found);
  lock.unlock();
  return device_->destroy_stream(id);
}

Result<void*> DeviceObject::allocate(const AllocationRequest& request) {
  const Result<void*> memory = device_->allocate(request);
  if (!memory) return memory;
  try {
    const std::lock_guard lock(mutex_);
    memory_.insert(*memory);
  } catch (const std::bad_alloc&) {
    static_cast<void>(device_->free(*memory));
    throw;
  }
  return memory;
}

/// The address leaves the set first: once the device has the memory back, another thread may get
/// the same address.
Status DeviceObject::free(void* memory) {
  if (memory == nullptr) return refused_null();
  std::unique_lock lock(mutex_);
  auto node = memory_.extract(memory);
  lock.unlock();
  if (node.empty()) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory);
    const Result<AllocationRecord> record = device_->tracker().find(memory);
    const bool is_registered =
        record && record->pointer == memory && record->owner == AllocationOwner::engine;
    return is_registered ? failed_precondition(Resource::allocation, address)
                         : not_found(Resource::allocation, address);
  }
  const Status status = device_->free(memory);
  if (status.code == StatusCode::failed_precondition) {  // not freed
    lock.lock();
    memory_.insert(std::move(node));
  }
  return status;
}

void LogAdapter::append(const Operation& operation) {
  kvarena_operation given{};
  given.struct_size = sizeof given;
  given.holder = operation.holder.value;
  given.ticket = operation.ticket;
  given.count = operation.count;
  static_assert(sizeof(BlockId) == sizeof(std::int32_t));
  given.blocks = reinterpret_cast<const std::int32_t*>(operation.ids.data());
  given.num_blocks = operation.ids.size();
  given.kind = static_cast<std::int32_t>(operation.kind);
  given.outcome = static_cast<std::int32_t>(operation.outcome);
  given.flag = operation.flag;
  given.group = operation.group;
  given.left_in_call = operation.left_in_call;
  function_(user_, &given);
}

}  // namespace kvarena::capi
