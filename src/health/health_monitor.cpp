#include "kvarena/health/health_monitor.hpp"

#include "health/health_monitor_impl.hpp"

#include "base/range_checks.hpp"

#include "kvarena/cache/kv_cache.hpp"

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

namespace kvarena {
namespace {

constexpr std::int64_t kLongestNs = 366LL * 24 * 3600 * 1'000'000'000;

Status check_options(const HealthOptions& options) noexcept {
  const std::int64_t period = options.period_ns;
  return check_each({{Option::period_ns, period, 1, kLongestNs},
                     {Option::pressure_period_ns, options.pressure_period_ns, 0, period},
                     {Option::check_limit_ns, options.check_limit_ns, 1, period},
                     {Option::ticket_limit_ns, options.ticket_limit_ns, 1, kLongestNs},
                     {Option::holder_grace_ns, options.holder_grace_ns, 0, kLongestNs},
                     {Option::step_limit_ns, options.step_limit_ns, 1, kLongestNs}});
}

/// Largest first, then by address.
bool is_listed_before(const AllocationRecord& a, const AllocationRecord& b) noexcept {
  return a.bytes != b.bytes ? a.bytes > b.bytes : a.pointer < b.pointer;
}

std::vector<AllocationRecord> largest_of(std::vector<AllocationRecord> records) {
  const std::size_t kept = std::min(records.size(), HealthDetails::kMaxAllocations);
  const auto end = records.begin() + static_cast<std::ptrdiff_t>(kept);
  std::partial_sort(records.begin(), end, records.end(), is_listed_before);
  records.resize(kept);
  return records;
}

/// What can be said without the monitor's lock; nothing when the device is no longer watched.
std::optional<DeviceHealth> ask(DeviceWatch& watch) {
  const UsageGate::Use use(watch.gate);
  if (!use) return std::nullopt;
  DeviceHealth health;
  health.name = watch.name;
  health.policy = watch.policy;
  health.usage = watch.device.tracker().breakdown();
  return health;
}

/// The same of a pool.
std::optional<PoolHealth> ask(PoolWatch& watch) {
  const UsageGate::Use use(watch.gate);
  if (!use) return std::nullopt;
  PoolHealth health;
  health.name = watch.name;
  health.snapshot = watch.publisher.snapshot();
  health.has_pending_work = watch.has_pending_work();
  health.preemptions = watch.preemptions.load(std::memory_order_relaxed);
  health.waiting_requests = watch.waiting_requests.load(std::memory_order_relaxed);
  return health;
}

/// What the last look at a watch gave. Requires the monitor's lock.
void add_last(DeviceHealth& health, const DeviceWatch& watch, std::int64_t /*now_ns*/) {
  static_cast<LastDeviceCheck&>(health) = watch.last;
}

void add_last(PoolHealth& health, const PoolWatch& watch, std::int64_t now_ns) {
  static_cast<LastPoolLook&>(health) = watch.last;
  Sighting sighting = watch.sighting;
  sighting.see(health.snapshot, now_ns);
  health.published_ns = sighting.published_ns();
  health.oldest_ticket_ns = sighting.ticket_ns();
}

/// Asks all of `watches`; those that are no longer watched leave it.
template <class Watch, class Health>
void ask_all(std::vector<std::shared_ptr<Watch>>& watches, std::vector<Health>& answers) {
  std::erase_if(watches, [&](const std::shared_ptr<Watch>& watch) {
    std::optional<Health> answer = ask(*watch);
    if (answer) answers.push_back(std::move(*answer));
    return !answer;
  });
}

/// Adds to each answer what the last look at its watch gave. Requires the monitor's lock.
template <class Watch, class Health>
void add_last(const std::vector<std::shared_ptr<Watch>>& watches, std::int64_t now_ns,
              std::vector<Health>& answers) {
  for (std::size_t i = 0; i < watches.size(); ++i) add_last(answers[i], *watches[i], now_ns);
}

}  // namespace

Result<HealthMonitor> HealthMonitor::create(const HealthOptions& options) {
  if (Status status = check_options(options); !status) return status;
  const Result<PressureGauge> gauge = PressureGauge::create(options.pressure);
  if (!gauge) return gauge.status();
  auto impl = std::make_unique<Impl>(options, *gauge);
  if (options.run_thread) {
    try {
      impl->thread = std::thread([&monitor = *impl] { monitor.run(); });
    } catch (const std::system_error&) {
      return exhausted(Resource::thread, 1, 0);
    }
  }
  return HealthMonitor(std::move(impl));
}

HealthMonitor::HealthMonitor(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
HealthMonitor::~HealthMonitor() = default;
HealthMonitor::HealthMonitor(HealthMonitor&&) noexcept = default;
HealthMonitor& HealthMonitor::operator=(HealthMonitor&&) noexcept = default;

// ---- what is watched ----------------------------------------------------------------------------

Status HealthMonitor::watch(Device& device) {
  {
    const std::scoped_lock lock(impl_->mutex);
    if (impl_->is_watched(device)) return failed_precondition(Resource::device);
    impl_->add_device(device);
  }
  impl_->wake();
  return {};
}

Result<WatchId> HealthMonitor::watch(KvCache& cache, std::string name) {
  Device& device = cache.device();
  Result<WatchId> pool = [&] {
    const std::scoped_lock lock(impl_->mutex);
    Result<WatchId> added = impl_->add_pool(cache.publisher(), std::move(name), &device);
    if (added && !impl_->is_watched(device)) impl_->add_device(device);
    return added;
  }();
  if (pool) impl_->wake();
  return pool;
}

Result<WatchId> HealthMonitor::watch(StepPublisher& publisher, std::string name,
                                     const Device* device) {
  Result<WatchId> pool = [&] {
    const std::scoped_lock lock(impl_->mutex);
    return impl_->add_pool(publisher, std::move(name), device);
  }();
  if (pool) impl_->wake();
  return pool;
}

Status HealthMonitor::unwatch(WatchId pool) {
  std::shared_ptr<PoolWatch> watch;
  {
    const std::scoped_lock lock(impl_->mutex);
    const auto found = std::ranges::find(impl_->pools, pool.value, &PoolWatch::id);
    if (found == impl_->pools.end()) return not_found(Resource::name, pool.value);
    watch = std::move(*found);
    impl_->pools.erase(found);
  }
  watch->gate.close();
  const std::scoped_lock lock(impl_->mutex);
  impl_->state.forget(watch->id);
  return {};
}

Status HealthMonitor::unwatch(Device& device) {
  std::shared_ptr<DeviceWatch> watch;
  {
    const std::scoped_lock lock(impl_->mutex);
    const auto found = std::ranges::find_if(
        impl_->devices, [&](const auto& watched) { return &watched->device == &device; });
    if (found == impl_->devices.end()) return not_found(Resource::device, 0);
    watch = std::move(*found);
    impl_->devices.erase(found);
  }
  watch->gate.close();
  const std::scoped_lock lock(impl_->mutex);
  impl_->state.forget(watch->id);
  return {};
}

Status HealthMonitor::report_engine(WatchId pool, std::int64_t waiting_requests,
                                    std::int64_t new_preemptions) {
  if (waiting_requests < 0 || new_preemptions < 0) {
    return invalid_argument(Resource::num_sequences, std::min(waiting_requests, new_preemptions), 0,
                            std::numeric_limits<std::int64_t>::max());
  }
  const std::scoped_lock lock(impl_->mutex);
  const auto found = std::ranges::find(impl_->pools, pool.value, &PoolWatch::id);
  if (found == impl_->pools.end()) return not_found(Resource::name, pool.value);
  (*found)->waiting_requests.store(waiting_requests, std::memory_order_relaxed);
  (*found)->preemptions.fetch_add(static_cast<std::uint64_t>(new_preemptions),
                                  std::memory_order_relaxed);
  return {};
}

// ---- what is known ------------------------------------------------------------------------------

HealthReport HealthMonitor::check_now() {
  impl_->check();
  return report();
}

void HealthMonitor::wake() { impl_->wake(); }

HealthReport HealthMonitor::report() const {
  HealthReport report;
  auto devices = impl_->watched_devices();
  auto pools = impl_->watched_pools();
  ask_all(devices, report.devices);
  ask_all(pools, report.pools);
  const std::scoped_lock lock(impl_->mutex);
  report.now_ns = impl_->clock.now_ns();
  add_last(devices, report.now_ns, report.devices);
  add_last(pools, report.now_ns, report.pools);
  report.reasons = impl_->state.reasons(report.now_ns);
  report.checks = impl_->state.checks();
  report.healthy = report.reasons.empty();
  report.resident =
      !report.devices.empty() && std::ranges::all_of(report.devices, &DeviceHealth::resident);
  return report;
}

HealthDetails HealthMonitor::details() const {
  HealthDetails details;
  for (const auto& watch : impl_->watched_pools()) {
    const UsageGate::Use use(watch->gate);
    if (!use) continue;
    watch->publisher.request_details();
    details.pools.push_back({watch->name, watch->publisher.details()});
  }
  for (const auto& watch : impl_->watched_devices()) {
    const UsageGate::Use use(watch->gate);
    if (!use) continue;
    details.devices.push_back({watch->name, largest_of(watch->device.tracker().allocations())});
  }
  return details;
}

void HealthMonitor::acknowledge() {
  const std::scoped_lock lock(impl_->mutex);
  impl_->state.acknowledge();
}

}  // namespace kvarena
