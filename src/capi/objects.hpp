#pragma once

/// @file
/// What stands behind the handles of devices, caches and pools, and how a call of the C interface
/// reaches it.

#include "capi/handles.hpp"
#include "capi/structs.hpp"

#include "kvarena/allocator/block_manager.hpp"
#include "kvarena/allocator/operation_log.hpp"
#include "kvarena/blocktable/prefix_pool.hpp"
#include "kvarena/cache/kv_cache.hpp"
#include "kvarena/device/cuda_device.hpp"
#include "kvarena/device/device.hpp"
#include "kvarena/kvarena.h"

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace kvarena::capi {

/// A device, and the memory and streams that callers have of it.
class DeviceObject {
 public:
  explicit DeviceObject(std::unique_ptr<Device> device) noexcept : device_(std::move(device)) {}

  Device& device() const noexcept { return *device_; }
  /// Returns the CUDA device, or nullptr on the host.
  CudaDevice* cuda() const noexcept;
  /// Returns the id of a stream of the C interface. Returns invalid_argument (pointer) for NULL; on
  /// the host not_found (stream) for what is no handle, on CUDA what CudaDevice::adopt_stream
  /// returns.
  Result<StreamId> id_of(void* stream);
  /// Returns the C interface's name of a stream.
  Result<void*> name_of(StreamId stream) const;
  /// Creates a stream.
  Result<void*> create_stream();
  /// Destroys or forgets a stream. Returns not_found (stream) for one that no caller has.
  Status destroy_stream(void* stream);
  /// Allocates memory for the caller.
  Result<void*> allocate(const AllocationRequest& request);
  /// Frees it. Returns not_found (allocation) for memory that an object of the library allocated
  /// for itself.
  Status free(void* memory);

 private:
  std::unique_ptr<Device> device_;
  std::mutex mutex_;
  std::unordered_map<void*, StreamId> streams_;  // created, or on CUDA adopted once
  std::unordered_set<void*> memory_;             // allocated for callers
};

/// Returns the status of a call on stream `id`. Where it says that there is no such stream, it
/// names the handle that the caller gave.
Status by_handle(const Status& status, StreamId id, const void* stream) noexcept;

/// Passes operations on to the caller's function.
class LogAdapter final : public OperationLog {
 public:
  LogAdapter(kvarena_operation_function function, void* user) noexcept
      : function_(function), user_(user) {}
  void append(const Operation& operation) override;

 private:
  kvarena_operation_function function_;
  void* user_;
};

/// Passes events of a prefix cache on to the caller's function.
class EventAdapter {
 public:
  EventAdapter(kvarena_prefix_event_function function, void* user) noexcept
      : function_(function), user_(user) {}
  /// The sink, whose context is this object.
  PrefixEventSink sink() noexcept { return {tell, this}; }

 private:
  static void tell(const PrefixEvent& event, void* adapter);

  kvarena_prefix_event_function function_;
  void* user_;
};

/// Strings that live as long as their object, each once.
class Names {
 public:
  /// Returns the stored string, or `standard` for NULL.
  const char* keep(const char* given, const char* standard) {
    return given == nullptr ? standard : names_.emplace(given).first->c_str();
  }

 private:
  std::set<std::string, std::less<>> names_;
};

/// Returns invalid_argument (num_groups) for a part that the cache's pool does not have.
Status check_part(const KvCache& cache, std::int32_t part) noexcept;

class MonitorObject;

/// A cache, and what must live as long.
struct CacheObject {
  std::shared_ptr<DeviceObject> device;
  std::unique_ptr<LogAdapter> log;
  std::unique_ptr<EventAdapter> events;
  Names names;
  std::string name;
  KvCacheOptions options;  ///< as given
  std::optional<KvCache> cache;
  std::vector<AppendDemand> demands;                     ///< the room of one append
  std::span<const StateSlots> states{};                  ///< of the last append
  std::span<const DeviceStateSlots> device_states{};     ///< of the last append or recording
  std::vector<std::weak_ptr<MonitorObject>> watchers{};  ///< monitors that watch it

  KvCache& get() noexcept { return *cache; }
};

/// A block manager, and what must live as long.
struct PoolObject {
  std::unique_ptr<LogAdapter> log;
  std::unique_ptr<EventAdapter> events;
  Names names;
  std::string name;
  std::optional<BlockManager> manager;
  std::optional<PrefixPool> prefix{};  ///< none without a prefix cache

  /// These blocks were allocated, freed or given another content.
  void notice(std::span<const BlockId> ids) noexcept {
    if (prefix) prefix->notice(ids);
  }
};

template <class Object>
inline constexpr Kind kKindOf = Kind::none;
template <>
inline constexpr Kind kKindOf<DeviceObject> = Kind::device;
template <>
inline constexpr Kind kKindOf<CacheObject> = Kind::cache;
template <>
inline constexpr Kind kKindOf<PoolObject> = Kind::pool;

/// Runs `body(object)` with this thread alone inside the object.
template <class Object, class Body>
kvarena_status enter(const void* handle, Body&& body) noexcept {
  const Entry entry(handle, kKindOf<Object>);
  if (!entry) return to_c(entry.status());
  return guarded([&]() -> Status { return body(*static_cast<Object*>(entry.object())); });
}

/// Runs `body(object)` beside other threads, for calls that any thread may make.
template <class Object, class Body>
kvarena_status visit(const void* handle, Body&& body) noexcept {
  const Visit visit(handle, kKindOf<Object>);
  if (!visit) return to_c(visit.status());
  return guarded([&]() -> Status { return body(*static_cast<Object*>(visit.object())); });
}

/// Writes the text that `body(object)` returns, with this thread alone inside the object.
template <class Object, class Body>
kvarena_status enter_text(const void* handle, const TextTarget& target, Body&& body) noexcept {
  return enter<Object>(handle, [&](Object& object) -> Status {
    if (Status s = target.check(); !s) return s;
    target.write(body(object));
    return {};
  });
}

/// Does the same beside other threads.
template <class Object, class Body>
kvarena_status visit_text(const void* handle, const TextTarget& target, Body&& body) noexcept {
  return visit<Object>(handle, [&](Object& object) -> Status {
    if (Status s = target.check(); !s) return s;
    target.write(body(object));
    return {};
  });
}

/// Makes the handle of a new object and writes it.
template <class Handle, class Object>
Status open(std::shared_ptr<Object> object, Handle** handle) noexcept {
  void* const opened = open_handle(kKindOf<Object>, std::move(object));
  if (opened == nullptr) return exhausted(Resource::host_memory, 1, 0);
  *handle = static_cast<Handle*>(opened);
  return {};
}

/// Closes a handle; NULL does nothing. `end` has the object for the last time.
template <class Object, class End>
kvarena_status close(void* handle, End&& end) noexcept {
  if (handle == nullptr) return {};
  std::shared_ptr<void> object;
  if (const Status status = close_handle(handle, kKindOf<Object>, object); !status) {
    return to_c(status);
  }
  return guarded([&]() -> Status {
    end(*static_cast<Object*>(object.get()));
    object.reset();
    return {};
  });
}

}  // namespace kvarena::capi
