// Health: a monitor of devices and caches, with an HTTP server if asked.

#include "capi/monitor_options.hpp"
#include "capi/objects.hpp"
#include "capi/watching.hpp"

#include "kvarena/health/health_answers.hpp"
#include "kvarena/health/health_monitor.hpp"
#include "kvarena/health/health_server.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvarena::capi {

/// A monitor, its server, and what they watch.
class MonitorObject {
 public:
  /// A watched cache. The cache's object removes its watch when it ends.
  struct Watch {
    std::string name;
    WatchId id;
    const CacheObject* cache;
  };

  explicit MonitorObject(const kvarena_monitor_options& given) noexcept : given_(given) {}
  Status start();

  HealthMonitor& monitor() noexcept { return *monitor_; }
  const std::optional<HealthServer>& server() const noexcept { return server_; }

  Status watch(const std::shared_ptr<DeviceObject>& device);
  Status unwatch(const std::shared_ptr<DeviceObject>& device);
  Status watch(CacheObject& cache, const std::string& name);
  Status unwatch(const std::string& name);
  void unwatch(const CacheObject& cache) noexcept;
  Result<WatchId> find(const std::string& name);

 private:
  void keep(const std::shared_ptr<DeviceObject>& device);

  kvarena_monitor_options given_;
  std::mutex mutex_;
  // Devices end after the monitor that watches them, and the monitor after its server.
  std::vector<std::shared_ptr<DeviceObject>> devices_;
  std::vector<Watch> watches_;
  std::optional<HealthMonitor> monitor_;
  std::optional<HealthServer> server_;
};

template <>
inline constexpr Kind kKindOf<MonitorObject> = Kind::monitor;

Status MonitorObject::start() {
  if (Status s = check_members(given_); !s) return s;
  HealthOptions chosen = health_options(given_);
  if (given_.on_unhealthy != nullptr) {
    chosen.on_unhealthy = [function = given_.on_unhealthy,
                           user = given_.user](const HealthReason& reason) {
      function(user, std::string(name_of(reason.code)).c_str(), reason.text.c_str());
    };
  }
  if (given_.on_pressure != nullptr) {
    chosen.on_pressure = [this](WatchId id, const PressureEvent& event) {
      std::string name;
      {
        const std::lock_guard lock(mutex_);
        const auto found = std::ranges::find(watches_, id, &Watch::id);
        if (found != watches_.end()) name = found->name;
      }
      given_.on_pressure(given_.user, name.c_str(), static_cast<std::int32_t>(event.from),
                         static_cast<std::int32_t>(event.to), to_string(event).c_str());
    };
  }
  Result<HealthMonitor> monitor = HealthMonitor::create(chosen);
  if (!monitor) return as_member(monitor.status());
  monitor_.emplace(std::move(*monitor));
  if (given_.serve_http == 0) return {};
  Result<HealthServer> server = HealthServer::start(*monitor_, server_options(given_));
  if (server) server_.emplace(std::move(*server));
  return as_member(server.status());
}

/// Keeps a device for as long as this monitor may look at it.
void MonitorObject::keep(const std::shared_ptr<DeviceObject>& device) {
  const std::lock_guard lock(mutex_);
  if (std::ranges::find(devices_, device) == devices_.end()) devices_.push_back(device);
}

Status MonitorObject::watch(const std::shared_ptr<DeviceObject>& device) {
  keep(device);
  return monitor_->watch(device->device());
}

Status MonitorObject::unwatch(const std::shared_ptr<DeviceObject>& device) {
  if (Status s = monitor_->unwatch(device->device()); !s) return s;
  const std::lock_guard lock(mutex_);
  std::erase(devices_, device);
  return {};
}

Status MonitorObject::watch(CacheObject& cache, const std::string& name) {
  keep(cache.device);
  const Result<WatchId> id = monitor_->watch(cache.get(), name);
  if (!id) return id.status();
  const std::lock_guard lock(mutex_);
  watches_.push_back({name, *id, &cache});
  return {};
}

Result<WatchId> MonitorObject::find(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(watches_, name, &Watch::name);
  if (found == watches_.end()) return not_found(Resource::name, 0);
  return found->id;
}

Status MonitorObject::unwatch(const std::string& name) {
  const Result<WatchId> id = find(name);
  if (!id) return id.status();
  const Status status = monitor_->unwatch(*id);
  const std::lock_guard lock(mutex_);
  std::erase_if(watches_, [&](const Watch& watch) { return watch.id == *id; });
  return status;
}

void MonitorObject::unwatch(const CacheObject& cache) noexcept {
  std::unique_lock lock(mutex_);
  const auto is_the_caches = [&](const Watch& watch) { return watch.cache == &cache; };
  for (;;) {
    const auto found = std::ranges::find_if(watches_, is_the_caches);
    if (found == watches_.end()) return;
    const WatchId id = found->id;
    watches_.erase(found);
    lock.unlock();  // a callback of the look that unwatch waits for may want it
    static_cast<void>(monitor_->unwatch(id));
    lock.lock();
  }
}

void end_watches(CacheObject& cache) noexcept {
  for (const std::weak_ptr<MonitorObject>& watcher : cache.watchers) {
    if (const std::shared_ptr<MonitorObject> monitor = watcher.lock()) monitor->unwatch(cache);
  }
  cache.watchers.clear();
}

}  // namespace kvarena::capi

using namespace kvarena;
using namespace kvarena::capi;

namespace {

std::shared_ptr<DeviceObject> share_of(const Visit& visit) {
  return std::static_pointer_cast<DeviceObject>(visit.share());
}

/// Runs `body(monitor, device)`.
template <class Body>
kvarena_status with_device(kvarena_monitor* monitor, kvarena_device* device, Body&& body) {
  const Visit visited(device, Kind::device);
  if (monitor == nullptr || !visited) {
    return capi::to_c(monitor == nullptr ? refused_null() : visited.status());
  }
  return visit<MonitorObject>(
      monitor, [&](MonitorObject& object) { return body(object, share_of(visited)); });
}

}  // namespace

kvarena_status kvarena_monitor_start(const kvarena_monitor_options* options,
                                     kvarena_monitor** monitor) {
  return guarded([&]() -> Status {
    kvarena_monitor_options given;
    if (Status s = read_optional_struct(options, given); !s) return s;
    if (monitor == nullptr) return refused_null();
    auto object = std::make_shared<MonitorObject>(given);
    if (Status s = object->start(); !s) return s;
    return open(std::move(object), monitor);
  });
}

kvarena_status kvarena_monitor_release(kvarena_monitor* monitor) {
  return close<MonitorObject>(monitor, [](MonitorObject&) {});
}

kvarena_status kvarena_monitor_watch_device(kvarena_monitor* monitor, kvarena_device* device) {
  return with_device(monitor, device, [](MonitorObject& object, const auto& watched) {
    return object.watch(watched);
  });
}

kvarena_status kvarena_monitor_unwatch_device(kvarena_monitor* monitor, kvarena_device* device) {
  return with_device(monitor, device, [](MonitorObject& object, const auto& watched) {
    return object.unwatch(watched);
  });
}

kvarena_status kvarena_monitor_watch(kvarena_monitor* monitor, kvarena_cache* cache,
                                     const char* name) {
  return enter<CacheObject>(cache, [&](CacheObject& watched) -> Status {
    const Visit visited(monitor, Kind::monitor);
    if (!visited) return visited.status();
    if (name == nullptr) return refused_null();
    const auto object = std::static_pointer_cast<MonitorObject>(visited.share());
    watched.watchers.push_back(object);
    const Status status = object->watch(watched, name);
    if (!status) watched.watchers.pop_back();
    return status;
  });
}

kvarena_status kvarena_monitor_unwatch(kvarena_monitor* monitor, const char* name) {
  return visit<MonitorObject>(monitor, [&](MonitorObject& object) -> Status {
    return name == nullptr ? refused_null() : object.unwatch(std::string(name));
  });
}

kvarena_status kvarena_monitor_report_engine(kvarena_monitor* monitor, const char* name,
                                             int64_t waiting_requests, int64_t new_preemptions) {
  return visit<MonitorObject>(monitor, [&](MonitorObject& object) -> Status {
    if (name == nullptr) return refused_null();
    const Result<WatchId> id = object.find(name);
    if (!id) return id.status();
    return object.monitor().report_engine(*id, waiting_requests, new_preemptions);
  });
}

kvarena_status kvarena_monitor_check(kvarena_monitor* monitor, bool* healthy) {
  return visit<MonitorObject>(monitor, [&](MonitorObject& object) -> Status {
    const bool is_healthy = object.monitor().check_now().healthy;
    if (healthy != nullptr) *healthy = is_healthy;
    return {};
  });
}

kvarena_status kvarena_monitor_is_healthy(kvarena_monitor* monitor, bool* healthy) {
  return visit<MonitorObject>(monitor, [&](MonitorObject& object) -> Status {
    if (healthy == nullptr) return refused_null();
    *healthy = object.monitor().report().healthy;
    return {};
  });
}

kvarena_status kvarena_monitor_acknowledge(kvarena_monitor* monitor) {
  return visit<MonitorObject>(monitor, [](MonitorObject& object) -> Status {
    object.monitor().acknowledge();
    return {};
  });
}

kvarena_status kvarena_monitor_port(kvarena_monitor* monitor, int32_t* port) {
  return visit<MonitorObject>(monitor, [&](MonitorObject& object) -> Status {
    if (port == nullptr) return refused_null();
    if (!object.server()) return failed_precondition(Resource::address);
    *port = object.server()->port();
    return {};
  });
}

kvarena_status kvarena_monitor_health_json(kvarena_monitor* monitor, char* out, size_t size,
                                           size_t* length) {
  return visit_text<MonitorObject>(monitor, {out, size, length}, [](MonitorObject& object) {
    return health_answer(object.monitor().report());
  });
}

kvarena_status kvarena_monitor_stats_json(kvarena_monitor* monitor, char* out, size_t size,
                                          size_t* length) {
  return visit_text<MonitorObject>(monitor, {out, size, length}, [](MonitorObject& object) {
    const HealthDetails details = object.monitor().details();
    return stats_answer(object.monitor().report(), details);
  });
}

kvarena_status kvarena_monitor_metrics(kvarena_monitor* monitor, char* out, size_t size,
                                       size_t* length) {
  return visit_text<MonitorObject>(monitor, {out, size, length}, [](MonitorObject& object) {
    return metrics_answer(object.monitor().report());
  });
}
