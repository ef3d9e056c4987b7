#include "kvarena/device/host_device.hpp"

#include "base/log_internal.hpp"
#include "base/out_of_memory.hpp"
#include "base/range_checks.hpp"
#include "device/allocation_failure.hpp"
#include "device/host_stream_table.hpp"
#include "device/memory_report.hpp"
#include "device/request_checks.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <map>
#include <mutex>
#include <new>

namespace kvarena {
namespace {

constexpr std::uint32_t kMaxStreams = 4096;
constexpr std::uint32_t kMaxQueued = 1U << 20;

/// The host device behind the public interface.
class HostDeviceImpl final : public HostDevice {
 public:
  HostDeviceImpl(const HostDeviceOptions& options, HostMemorySource& memory,
                 std::uint64_t capacity_bytes)
      : memory_(memory), capacity_bytes_(capacity_bytes), streams_(options) {}
  ~HostDeviceImpl() override;

  DeviceKind kind() const noexcept override { return DeviceKind::host; }
  std::string name() const noexcept override { return "host"; }
  Result<MemoryInfo> memory_info() const override {
    const std::scoped_lock lock(mutex_);
    return memory_locked();
  }

  Result<void*> allocate(const AllocationRequest& request) override;
  Status free(void* pointer) override;
  ResidencyPolicy policy() const noexcept override { return ResidencyPolicy::allow_host; }
  Result<Placement> place_of(const void* pointer, std::uint64_t bytes) const override;
  std::uint64_t overhead_bytes() const noexcept override { return 0; }

  Status copy(void* target, const void* source, std::uint64_t bytes, StreamId stream) override;
  Status fill(void* target, std::uint8_t value, std::uint64_t bytes, StreamId stream) override;
  Status launch_host(HostFunction function, void* argument, StreamId stream) override;

  Result<StreamId> create_stream() override { return streams_.create_stream(); }
  Status destroy_stream(StreamId stream) override { return streams_.destroy_stream(stream); }
  Status synchronize(StreamId stream) override { return streams_.synchronize(stream); }
  Result<std::uint64_t> failures_taken(StreamId stream) const override {
    return streams_.failures_taken(stream);
  }
  Result<EventId> create_event() override { return streams_.create_event(); }
  Status destroy_event(EventId event) override { return streams_.destroy_event(event); }
  Status record(EventId event, StreamId stream) override { return streams_.record(event, stream); }
  Status wait(StreamId stream, EventId event) override { return streams_.wait(stream, event); }
  Result<bool> is_complete(EventId event) override { return streams_.is_complete(event); }
  Status synchronize(EventId event) override { return streams_.synchronize(event); }
  Result<bool> run_one(StreamId stream) override { return streams_.run_one(stream); }

  VramTracker& tracker() noexcept override { return tracker_; }
  const VramTracker& tracker() const noexcept override { return tracker_; }
  std::string describe(const Status& status) const noexcept override {
    return failure_.describe(status, tracker_.breakdown());
  }
  HostCallCounts call_counts() const noexcept override {
    return {num_allocate_.load(std::memory_order_relaxed),
            num_free_.load(std::memory_order_relaxed)};
  }

 private:
  MemoryInfo memory_locked() const noexcept {
    return {capacity_bytes_, std::min(capacity_bytes_ - used_bytes_, memory_.available_bytes())};
  }
  /// Charges `request` against the capacity if it fits. `seen` becomes the memory with which it was
  /// compared. Staging memory is not the device's, so only the machine's memory limits it.
  bool charge(const AllocationRequest& request, MemoryInfo& seen) noexcept;
  // Takes a charge back.
  void refund(MemoryKind kind, std::uint64_t bytes) noexcept;
  /// Records an allocation in the map and in the tracker, or in neither when that fails.
  Status note(void* pointer, const AllocationRequest& request);
  // Returns memory to the source, and removes it from the map first.
  void give_back(void* pointer, std::uint64_t bytes) noexcept;

  HostMemorySource& memory_;
  const std::uint64_t capacity_bytes_;
  mutable std::mutex mutex_;      // guards used_bytes_ and given_
  std::uint64_t used_bytes_ = 0;  // kind device; <= capacity_bytes_
  /// The memory that memory_ gave and has not got back: bytes by first byte. It is separate from
  /// the tracker, which also has the records of an engine, so that the two can be compared.
  std::map<std::uintptr_t, std::uint64_t> given_;
  std::atomic<std::uint64_t> num_allocate_{0};
  std::atomic<std::uint64_t> num_free_{0};
  VramTracker tracker_;
  AllocationFailure failure_;
  HostStreamTable streams_;  // last: its threads end before the other members are destroyed
};

HostDeviceImpl::~HostDeviceImpl() {
  streams_.complete_all();
  if (given_.empty()) return;
  log_made(LogLevel::warning, [this] { return leak_report("host", leaked_allocations(tracker_)); });
  for (const auto& [address, bytes] : given_) {
    memory_.free(reinterpret_cast<void*>(address), bytes);
  }
}

bool HostDeviceImpl::charge(const AllocationRequest& request, MemoryInfo& seen) noexcept {
  if (request.kind == MemoryKind::pinned_staging) {
    const std::uint64_t machine = memory_.available_bytes();
    seen = {machine, machine};
    return request.bytes <= machine;
  }
  const std::scoped_lock lock(mutex_);
  seen = memory_locked();
  if (request.bytes > seen.free_bytes) return false;
  used_bytes_ += request.bytes;
  return true;
}

void HostDeviceImpl::refund(MemoryKind kind, std::uint64_t bytes) noexcept {
  if (kind == MemoryKind::pinned_staging) return;
  const std::scoped_lock lock(mutex_);
  used_bytes_ -= bytes;
}

/// Charges first, so that two threads cannot both take the last bytes.
Result<void*> HostDeviceImpl::allocate(const AllocationRequest& request) {
  num_allocate_.fetch_add(1, std::memory_order_relaxed);
  if (Status status = check_request(request); !status) return status;
  MemoryInfo seen;
  const bool fits = charge(request, seen);
  Status failed = insufficient_vram(request.bytes, seen.free_bytes);
  if (request.kind == MemoryKind::pinned_staging) {
    failed = exhausted(Resource::host_memory, request.bytes, seen.free_bytes);
  }
  if (!fits) return failure_.keep(failed, request, seen, tracker_.breakdown());
  void* pointer = memory_.allocate(request.bytes, request.alignment_bytes, &failed.native);
  if (pointer == nullptr) {
    refund(request.kind, request.bytes);
    if (failed.native != ENOMEM) failed.code = StatusCode::device_error;
    return failure_.keep(failed, request, seen, tracker_.breakdown());
  }
  if (Status noted = note(pointer, request); !noted) {
    give_back(pointer, request.bytes);
    refund(request.kind, request.bytes);
    return noted;
  }
  return pointer;
}

Status HostDeviceImpl::note(void* pointer, const AllocationRequest& request) {
  try {
    {
      const std::scoped_lock lock(mutex_);
      given_.emplace(reinterpret_cast<std::uintptr_t>(pointer), request.bytes);
    }
    return tracker_.record(record_of(pointer, request));
  } catch (const std::bad_alloc&) {
    return exhausted(Resource::host_memory, sizeof(AllocationRecord), 0);
  }
}

void HostDeviceImpl::give_back(void* pointer, std::uint64_t bytes) noexcept {
  {
    const std::scoped_lock lock(mutex_);
    given_.erase(reinterpret_cast<std::uintptr_t>(pointer));
  }
  memory_.free(pointer, bytes);
}

Status HostDeviceImpl::free(void* pointer) {
  num_free_.fetch_add(1, std::memory_order_relaxed);
  if (pointer == nullptr) return null_pointer();
  // The record is erased first: once the system has the memory back, another thread may get the
  // address.
  const Result<AllocationRecord> erased = tracker_.erase(pointer);
  if (!erased) return erased.status();
  give_back(pointer, erased->bytes);
  refund(erased->kind, erased->bytes);
  return {};
}

/// Looks the range up in the map of what was allocated, not in the tracker.
Result<Placement> HostDeviceImpl::place_of(const void* pointer, std::uint64_t bytes) const try {
  if (Status status = check_range(pointer, bytes); !status) return status;
  const auto first = reinterpret_cast<std::uintptr_t>(pointer);
  Placement placement{MemoryPlace::pageable_host, -1, pointer, "no allocation of this host device"};
  const std::scoped_lock lock(mutex_);
  auto it = given_.upper_bound(first);
  if (it == given_.begin()) return placement;
  --it;
  const std::uint64_t offset = first - it->first;
  if (offset >= it->second) return placement;
  const std::uint64_t left = it->second - offset;
  placement.driver_said = fmt::format("allocation of {} bytes at {:#x}", it->second, it->first);
  placement.place = bytes <= left ? MemoryPlace::host_device : MemoryPlace::mixed;
  if (bytes > left) placement.pointer = static_cast<const char*>(pointer) + left;
  return placement;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Status HostDeviceImpl::copy(void* target, const void* source, std::uint64_t bytes,
                            StreamId stream) {
  if (Status status = check_copy(target, source, bytes); !status) return status;
  HostOperation operation;
  operation.kind = HostOperation::Kind::copy;
  operation.target = target;
  operation.source = source;
  operation.bytes = bytes;
  return streams_.enqueue(stream, operation);
}

Status HostDeviceImpl::fill(void* target, std::uint8_t value, std::uint64_t bytes,
                            StreamId stream) {
  if (Status status = check_fill(target, bytes); !status) return status;
  HostOperation operation;
  operation.kind = HostOperation::Kind::fill;
  operation.target = target;
  operation.value = value;
  operation.bytes = bytes;
  return streams_.enqueue(stream, operation);
}

Status HostDeviceImpl::launch_host(HostFunction function, void* argument, StreamId stream) {
  if (function == nullptr) return null_pointer();
  HostOperation operation;
  operation.kind = HostOperation::Kind::host_function;
  operation.function = function;
  operation.argument = argument;
  return streams_.enqueue(stream, operation);
}

}  // namespace

Result<std::unique_ptr<HostDevice>> HostDevice::create(const HostDeviceOptions& options) {
  if (Status s = check_each({{Option::max_streams, options.max_streams, 1, kMaxStreams},
                             {Option::max_queued, options.max_queued, 1, kMaxQueued}});
      !s) {
    return s;
  }
  if (Status s = check_enum(Option::streams, options.streams, HostStreams::inline_calls); !s)
    return s;
  HostMemorySource& memory = options.memory != nullptr ? *options.memory : system_memory_source();
  const std::uint64_t capacity =
      options.capacity_bytes != 0 ? options.capacity_bytes : memory.available_bytes();
  if (capacity > kMaxAllocationBytes) {
    return invalid_option(Option::capacity_bytes, static_cast<std::int64_t>(capacity), 1,
                          static_cast<std::int64_t>(kMaxAllocationBytes));
  }
  try {
    log_line(LogLevel::info, "host accepts host memory for KV and weights (allow_host), {} of it",
             bytes_text(capacity));
    return std::unique_ptr<HostDevice>(std::make_unique<HostDeviceImpl>(options, memory, capacity));
  } catch (const std::bad_alloc&) {
    return exhausted(Resource::host_memory, sizeof(HostDeviceImpl), 0);
  }
}

}  // namespace kvarena
