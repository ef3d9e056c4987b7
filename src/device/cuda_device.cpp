#include "kvarena/device/cuda_device.hpp"

#include "base/log_internal.hpp"
#include "base/out_of_memory.hpp"
#include "base/range_checks.hpp"
#include "device/allocation_failure.hpp"
#include "device/cuda_capture.hpp"
#include "device/cuda_device_list.hpp"
#include "device/cuda_memory.hpp"
#include "device/cuda_placement.hpp"
#include "device/cuda_stream_table.hpp"
#include "device/memory_report.hpp"
#include "device/request_checks.hpp"

#include "kvarena/device/host_device.hpp"

#include <cuda_runtime_api.h>

#include <mutex>
#include <new>
#include <utility>

namespace kvarena {
namespace {

constexpr std::uint32_t kMaxStreams = 4096;
constexpr std::uint32_t kMaxHostFunctions = 1U << 20;
constexpr std::uint64_t kMinBounceBytes = 4096;
constexpr std::uint64_t kMaxBounceBytes = std::uint64_t{64} << 20;

/// Whether the memory is host memory, pinned or not.
bool is_host(MemoryPlace place) noexcept {
  return place == MemoryPlace::pageable_host || place == MemoryPlace::pinned_host;
}

/// The CUDA device behind the public interface.
class CudaDeviceImpl final : public CudaDevice {
 public:
  CudaDeviceImpl(const CudaDeviceOptions& options, std::unique_ptr<CudaContext> context,
                 std::string name, std::uint64_t overhead_bytes)
      : context_(std::move(context)),
        name_(std::move(name)),
        policy_(options.policy),
        overhead_bytes_(overhead_bytes),
        bounce_bytes_(options.bounce_bytes),
        memory_(*context_),
        streams_(*context_, options.max_streams, options.max_host_functions) {}
  ~CudaDeviceImpl() override;

  DeviceKind kind() const noexcept override { return DeviceKind::cuda; }
  std::string name() const noexcept override try { return name_; } catch (const std::bad_alloc&) {
    return out_of_memory_text();
  }
  Result<MemoryInfo> memory_info() const override { return memory_.info(); }

  Result<void*> allocate(const AllocationRequest& request) override;
  Status free(void* pointer) override;
  ResidencyPolicy policy() const noexcept override { return policy_; }
  Result<Placement> place_of(const void* pointer, std::uint64_t bytes) const override;
  std::uint64_t overhead_bytes() const noexcept override { return overhead_bytes_; }

  Status copy(void* target, const void* source, std::uint64_t bytes, StreamId stream) override;
  Status fill(void* target, std::uint8_t value, std::uint64_t bytes, StreamId stream) override;
  Status launch_host(HostFunction function, void* argument, StreamId stream) override;

  Result<StreamId> create_stream() override { return create_stream_on(nullptr); }
  Status destroy_stream(StreamId stream) override { return destroy_stream(stream, Adoptions::one); }
  Status synchronize(StreamId stream) override { return streams_.synchronize(stream); }
  Result<std::uint64_t> failures_taken(StreamId its) const override {
    return streams_.failures_taken(its);
  }
  Result<EventId> create_event() override { return streams_.create_event(); }
  Status destroy_event(EventId event) override { return streams_.destroy_event(event); }
  Status record(EventId event, StreamId stream) override { return streams_.record(event, stream); }
  Status wait(StreamId stream, EventId event) override { return streams_.wait(stream, event); }
  Result<bool> is_complete(EventId event) override { return streams_.is_complete(event); }
  Status synchronize(EventId event) override { return streams_.synchronize(event); }

  VramTracker& tracker() noexcept override { return tracker_; }
  const VramTracker& tracker() const noexcept override { return tracker_; }
  std::string describe(const Status& status) const noexcept override {
    return with_cuda_remark(failure_.describe(status, tracker_.breakdown()), status);
  }

  std::int32_t ordinal() const noexcept override { return context_->ordinal(); }
  CudaDeviceInfo info() const override { return cuda_device_info(*context_); }
  std::uint64_t bounce_bytes() const noexcept override { return bounce_bytes_; }
  std::int32_t lost_to() const noexcept override { return context_->lost_to(); }
  Result<void*> native_stream(StreamId stream) const override {
    return opaque(streams_.native(stream));
  }
  Result<void*> native_event(EventId event) const override {
    return opaque(streams_.native(event));
  }
  Result<StreamId> adopt_stream(void* native_stream) override;
  Result<bool> is_captured(StreamId stream) const override { return streams_.is_captured(stream); }
  Status write_value(void* target, std::uint64_t value, StreamId stream) override;
  Status check(std::int32_t cuda_error, Resource resource) const override {
    const auto subject = static_cast<std::uint64_t>(ordinal());
    return cuda_error == 0 ? Status{} : context_->failure(cuda_error, resource, subject);
  }

 private:
  // A native handle as void*, for the public header.
  template <class Handle>
  static Result<void*> opaque(const Result<Handle>& handle) {
    if (!handle) return handle.status();
    return static_cast<void*>(*handle);
  }
  /// Explains why the driver gave no memory, and keeps the explanation.
  Status refused(const AllocationRequest& request, const Status& status);
  /// Asks the driver what memory it gave, and records it. Refuses memory that the policy forbids.
  Status record_verified(void* pointer, const AllocationRequest& request);
  // Creates a stream with its bounce buffer.
  Result<StreamId> create_stream_on(CUstream_st* adopted);
  // Destroys a stream and its bounce buffer.
  Status destroy_stream(StreamId stream, Adoptions undone);

  std::unique_ptr<CudaContext> context_;
  const std::string name_;
  const ResidencyPolicy policy_;
  const std::uint64_t overhead_bytes_;
  const std::uint64_t bounce_bytes_;
  CudaMemory memory_;
  VramTracker tracker_;
  AllocationFailure failure_;
  std::mutex adopting_;      // one stream at a time, so that it gets one id
  CudaStreamTable streams_;  // last: its work ends before the other members are destroyed
};

CudaDeviceImpl::~CudaDeviceImpl() {
  for (const StreamId stream : streams_.streams()) {
    const Status status = destroy_stream(stream, Adoptions::all);
    if (!status) {
      log_line(LogLevel::warning, "stream {} destroyed with a failure nobody took: {}",
               stream.value, describe(status));
    }
  }
  const std::vector<AllocationRecord> leaked = leaked_allocations(tracker_);
  if (leaked.empty()) return;
  log_made(LogLevel::warning, [&] { return leak_report(name_, leaked); });
  for (const AllocationRecord& record : leaked) {
    static_cast<void>(memory_.free(record.kind, record.pointer));
  }
}

// ---- memory -------------------------------------------------------------------------------------

Status CudaDeviceImpl::refused(const AllocationRequest& request, const Status& status) {
  if (status.code != StatusCode::device_error || status.native != cudaErrorMemoryAllocation) {
    return status;
  }
  const Result<MemoryInfo> asked = memory_.info();
  MemoryInfo seen = asked ? *asked : MemoryInfo{};
  Status failed = insufficient_vram(request.bytes, seen.free_bytes);
  if (request.kind == MemoryKind::pinned_staging) {
    const std::uint64_t machine = system_memory_source().available_bytes();
    seen = {machine, machine};
    failed = exhausted(Resource::host_memory, request.bytes, machine);
  }
  failed.native = status.native;
  return failure_.keep(failed, request, seen, tracker_.breakdown());
}

Result<void*> CudaDeviceImpl::allocate(const AllocationRequest& request) {
  if (Status status = check_request(request); !status) return status;
  const Result<void*> pointer =
      memory_.allocate(request.kind, request.bytes, request.alignment_bytes);
  if (!pointer) return refused(request, pointer.status());
  Status recorded;
  try {
    recorded = record_verified(*pointer, request);
  } catch (const std::bad_alloc&) {
    recorded = exhausted(Resource::host_memory, sizeof(AllocationRecord), 0);
  }
  if (recorded.is_ok()) return pointer;
  static_cast<void>(memory_.free(request.kind, *pointer));
  return recorded;
}

Status CudaDeviceImpl::record_verified(void* pointer, const AllocationRequest& request) {
  const Result<Placement> placement = place_of(pointer, request.bytes);
  if (!placement) return placement.status();
  AllocationRecord record = record_of(pointer, request);
  if (!is_permitted(placement->place, request.kind, policy_)) {
    const Status status = residency_violated(reinterpret_cast<std::uintptr_t>(pointer));
    return failure_.keep(status, kvarena::describe(ResidencyViolation{record, *placement}));
  }
  return tracker_.record(std::move(record));
}

Result<Placement> CudaDeviceImpl::place_of(const void* pointer, std::uint64_t bytes) const try {
  if (Status status = check_range(pointer, bytes); !status) return status;
  return cuda_place_of(*context_, pointer, bytes);
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Status CudaDeviceImpl::free(void* pointer) {
  if (pointer == nullptr) return null_pointer();
  if (CudaContext::runs_host_function()) return failed_precondition(Resource::stream);
  // The record is erased first: once the driver has the memory back, another thread may get the
  // address.
  const Result<AllocationRecord> erased = tracker_.erase(pointer);
  if (!erased) return erased.status();
  return memory_.free(erased->kind, pointer);
}

// ---- work ---------------------------------------------------------------------------------------

Status CudaDeviceImpl::copy(void* target, const void* source, std::uint64_t bytes,
                            StreamId stream) {
  if (Status status = check_copy(target, source, bytes); !status) return status;
  if (bytes == 0) return streams_.copy(target, source, bytes, stream);
  const Result<MemoryPlace> to = cuda_place_at(*context_, target);
  if (!to) return to.status();
  const Result<MemoryPlace> from = cuda_place_at(*context_, source);
  if (!from) return from.status();
  if (is_host(*to) && is_host(*from)) {
    HostOperation operation;
    operation.kind = HostOperation::Kind::copy;
    operation.target = target;
    operation.source = source;
    operation.bytes = bytes;
    return streams_.enqueue(stream, operation);
  }
  if (*to == MemoryPlace::pageable_host || *from == MemoryPlace::pageable_host) {
    return streams_.copy_pageable(target, source, bytes, !is_host(*to), stream);
  }
  return streams_.copy(target, source, bytes, stream);
}

Status CudaDeviceImpl::fill(void* target, std::uint8_t value, std::uint64_t bytes,
                            StreamId stream) {
  if (Status status = check_fill(target, bytes); !status) return status;
  if (bytes == 0) return streams_.fill(target, value, bytes, stream);
  const Result<MemoryPlace> place = cuda_place_at(*context_, target);
  if (!place) return place.status();
  if (*place != MemoryPlace::pageable_host) return streams_.fill(target, value, bytes, stream);
  HostOperation operation;
  operation.kind = HostOperation::Kind::fill;
  operation.target = target;
  operation.value = value;
  operation.bytes = bytes;
  return streams_.enqueue(stream, operation);
}

Status CudaDeviceImpl::write_value(void* target, std::uint64_t value, StreamId stream) {
  if (target == nullptr) return null_pointer();
  const std::uintptr_t past = reinterpret_cast<std::uintptr_t>(target) % sizeof(value);
  if (past != 0)
    return invalid_argument(Resource::alignment, static_cast<std::int64_t>(past), 0, 0);
  return streams_.write_value(target, value, stream);
}

Status CudaDeviceImpl::launch_host(HostFunction function, void* argument, StreamId stream) {
  if (function == nullptr) return null_pointer();
  HostOperation operation;
  operation.kind = HostOperation::Kind::host_function;
  operation.function = function;
  operation.argument = argument;
  return streams_.enqueue(stream, operation);
}

// ---- streams ------------------------------------------------------------------------------------

Result<StreamId> CudaDeviceImpl::create_stream_on(CUstream_st* adopted) {
  const Result<void*> bounce = allocate({.bytes = bounce_bytes_,
                                         .purpose = MemoryPurpose::intermediate_buffers,
                                         .kind = MemoryKind::pinned_staging,
                                         .description = "a stream's pageable copies"});
  if (!bounce) return bounce.status();
  Status failed;
  try {
    const Result<StreamId> created = streams_.create_stream({*bounce, bounce_bytes_}, adopted);
    if (created) return created;
    failed = created.status();
  } catch (const std::bad_alloc&) {
    failed = exhausted(Resource::host_memory, sizeof(HostOperation), 0);
  }
  static_cast<void>(free(*bounce));
  return failed;
}

Result<StreamId> CudaDeviceImpl::adopt_stream(void* native_stream) {
  const cudaStream_t native =
      native_stream == nullptr ? cudaStreamLegacy : static_cast<cudaStream_t>(native_stream);
  const std::scoped_lock lock(adopting_);
  if (const Result<StreamId> known = streams_.adopt_again(native)) return known;
  if (native == cudaStreamLegacy || native == cudaStreamPerThread) return create_stream_on(native);
  int owner = ordinal();
  const Status asked =
      context_->call(Resource::stream, 0, [&] { return ask_for_gpu(native, &owner); });
  if (!asked) return asked;
  if (owner != ordinal()) return unsupported(Resource::device, static_cast<std::uint64_t>(owner));
  const AllocatingInCapture permitted;
  return create_stream_on(native);
}

Status CudaDeviceImpl::destroy_stream(StreamId stream, Adoptions undone) {
  BounceBuffer bounce;
  const Status status = streams_.destroy_stream(stream, &bounce, undone);
  if (bounce.pointer == nullptr) return status;
  const Status freed = free(bounce.pointer);
  return status.is_ok() ? freed : status;
}

/// Logs the choices and facts that weaken residency.
void log_policy(const std::string& name, ResidencyPolicy policy, bool is_integrated) {
  if (policy == ResidencyPolicy::allow_host) {
    log_line(LogLevel::warning, "{} accepts host memory for KV and weights (allow_host)", name);
  }
  if (is_integrated) {
    log_line(LogLevel::warning,
             "{} is integrated: its memory is the machine's; vram_only refuses it", name);
  }
}

Status check_options(const CudaDeviceOptions& options) {
  const auto bounce_bytes = static_cast<std::int64_t>(options.bounce_bytes);
  if (Status s = check_each({
          {Option::max_streams, options.max_streams, 1, kMaxStreams},
          {Option::max_host_functions, options.max_host_functions, 1, kMaxHostFunctions},
          {Option::bounce_bytes, bounce_bytes, kMinBounceBytes, kMaxBounceBytes},
      });
      !s) {
    return s;
  }
  return check_enum(Option::policy, options.policy, ResidencyPolicy::allow_host);
}

}  // namespace

Result<std::unique_ptr<CudaDevice>> CudaDevice::create(const CudaDeviceOptions& options) {
  if (Status status = check_options(options); !status) return status;
  try {
    auto context = CudaContext::open(options.ordinal);
    if (!context) return context.status();
    const CudaDeviceInfo info = cuda_device_info(**context);
    if (!info.status) return info.status;
    std::string name = fmt::format("cuda:{} {}", options.ordinal, info.name);
    log_policy(name, options.policy, info.is_integrated);
    return std::unique_ptr<CudaDevice>(
        std::make_unique<CudaDeviceImpl>(options, std::move(context).value(), std::move(name),
                                         info.memory.total_bytes - info.memory.free_bytes));
  } catch (const std::bad_alloc&) {
    return exhausted(Resource::host_memory, sizeof(CudaDeviceImpl), 0);
  }
}

}  // namespace kvarena
