// HealthMonitor's thread, and what it does when it is awake.

#include "health/health_monitor_impl.hpp"

#include "base/excerpt.hpp"
#include "base/log_internal.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <limits>
#include <utility>

namespace kvarena {
namespace {

/// A clock that jumps wakes the monitor; for one that runs apart this bounds how late it is seen.
constexpr std::int64_t kLongestSleepNs = 3'600'000'000'000;

/// Calls the engine's function, which may throw what it likes.
template <class Function, class... Arguments>
void call_back(const Function& function, const Arguments&... arguments) {
  if (!function) return;
  try {
    function(arguments...);
  } catch (const std::exception& error) {
    log_line(LogLevel::error, "health: a callback threw: {}", error.what());
  } catch (...) {
    log_line(LogLevel::error, "health: a callback threw something that is no exception");
  }
}

LogLevel severity_of(HealthReasonCode code) noexcept {
  switch (code) {
    case HealthReasonCode::residency_violated:
    case HealthReasonCode::accounts_violated:
    case HealthReasonCode::steps_lost:
    case HealthReasonCode::device_lost: return LogLevel::critical;
    default: return LogLevel::error;
  }
}

}  // namespace

HealthMonitor::Impl::Impl(const HealthOptions& its_options, const PressureGauge& its_gauge)
    : options(its_options),
      clock(options.clock != nullptr ? *options.clock : steady_clock()),
      gauge(its_gauge),
      state(options.period_ns, options.check_limit_ns, clock.now_ns()),
      next_look_ns(clock.now_ns()) {}

HealthMonitor::Impl::~Impl() {
  {
    const std::scoped_lock lock(mutex);
    is_stopping = true;
  }
  woken.notify_all();
  if (thread.joinable()) thread.join();
}

// ---- what is watched ----------------------------------------------------------------------------

std::vector<std::shared_ptr<DeviceWatch>> HealthMonitor::Impl::watched_devices() const {
  const std::scoped_lock lock(mutex);
  return devices;
}

std::vector<std::shared_ptr<PoolWatch>> HealthMonitor::Impl::watched_pools() const {
  const std::scoped_lock lock(mutex);
  return pools;
}

bool HealthMonitor::Impl::is_watched(const Device& device) const {
  return std::ranges::any_of(devices, [&](const auto& watch) { return &watch->device == &device; });
}

void HealthMonitor::Impl::add_device(Device& device) {
  const DriftLimits drift{options.drift_warning_bytes, options.drift_limit_bytes};
  devices.push_back(std::make_shared<DeviceWatch>(device, next_id++, drift));
  const DeviceWatch& watch = *devices.back();
  state.expect(watch.id, fmt::format("no check has seen device {} yet", watch.name),
               clock.now_ns());
  is_check_wanted = true;
}

Result<WatchId> HealthMonitor::Impl::add_pool(StepPublisher& publisher, std::string name,
                                              const Device* device) {
  if (name.empty()) return invalid_argument(Resource::name, 0, 1, 1);
  name = printable(name);
  if (std::ranges::find(pools, name, &PoolWatch::name) != pools.end()) {
    return failed_precondition(Resource::name);
  }
  pools.push_back(std::make_shared<PoolWatch>(publisher, std::move(name), device, next_id++, gauge,
                                              clock.now_ns()));
  is_check_wanted = true;
  return WatchId(pools.back()->id);
}

// ---- the thread ---------------------------------------------------------------------------------

void HealthMonitor::Impl::wake() {
  {
    const std::scoped_lock lock(mutex);
    is_woken = true;
  }
  woken.notify_all();
}

void HealthMonitor::Impl::run() noexcept {
  // What is thrown is want of host memory, of which the log line needs some too; the next period
  // brings the next try.
  const auto survive = [](auto work) noexcept {
    try {
      work();
    } catch (const std::exception& error) {
      try {
        log_line(LogLevel::error, "health: a check could not be completed: {}", error.what());
      } catch (const std::exception&) {
        log_text(LogLevel::error, "health: a check could not be completed: no host memory");
      }
    }
  };
  std::unique_lock lock(mutex);
  while (!is_stopping) {
    const std::int64_t now_ns = clock.now_ns();
    const std::int64_t check_ns = is_check_wanted ? now_ns : state.next_check_ns();
    const bool looks = options.pressure_period_ns > 0;
    const std::int64_t look_ns = looks ? next_look_ns : std::numeric_limits<std::int64_t>::max();
    const std::int64_t due_ns = std::min(check_ns, look_ns);
    if (now_ns < due_ns) {
      const auto sleep = std::chrono::nanoseconds(std::min(due_ns - now_ns, kLongestSleepNs));
      woken.wait_for(lock, sleep, [this] { return is_stopping || is_woken; });
      is_woken = false;
      continue;
    }
    lock.unlock();
    survive([&] { now_ns >= check_ns ? check() : look(); });
    lock.lock();
  }
}

// ---- checks and looks ---------------------------------------------------------------------------

void HealthMonitor::Impl::check() {
  HealthNews news;
  std::exception_ptr failure;
  {
    const std::scoped_lock my_turn(turn);
    begin_check();
    try {
      check_devices(news);
      look_at_pools(news);
      const std::scoped_lock lock(mutex);
      state.complete_check(clock.now_ns());
    } catch (...) {
      failure = std::current_exception();
      const std::scoped_lock lock(mutex);
      state.abandon_check();
    }
  }
  announce(news);
  if (failure) std::rethrow_exception(failure);
}

void HealthMonitor::Impl::begin_check() {
  const std::scoped_lock lock(mutex);
  const std::int64_t now_ns = clock.now_ns();
  state.begin_check(now_ns);
  is_check_wanted = false;
  next_look_ns = now_ns + options.pressure_period_ns;
}

// While it lives, a look is under way.
class HealthMonitor::Impl::Look {
 public:
  explicit Look(Impl& monitor) : monitor_(monitor) {
    const std::scoped_lock lock(monitor_.mutex);
    const std::int64_t now_ns = monitor_.clock.now_ns();
    monitor_.next_look_ns = now_ns + monitor_.options.pressure_period_ns;
    monitor_.state.begin_look(now_ns);
  }
  ~Look() {
    const std::scoped_lock lock(monitor_.mutex);
    monitor_.state.end_look();
  }
  Look(const Look&) = delete;
  Look& operator=(const Look&) = delete;

 private:
  Impl& monitor_;
};

void HealthMonitor::Impl::look() {
  HealthNews news;
  {
    const std::scoped_lock my_turn(turn);
    const Look under_way(*this);
    look_at_memory();
    look_at_pools(news);
  }
  announce(news);
}

void HealthMonitor::Impl::check_devices(HealthNews& news) {
  for (const auto& watch : watched_devices()) {
    const UsageGate::Use use(watch->gate);
    if (!use) continue;
    const DeviceCheck found = watch->check();
    {
      const std::scoped_lock lock(mutex);
      watch->last = found.seen;
    }
    note(watch->id, found.findings, news);
  }
}

void HealthMonitor::Impl::note(std::uint64_t watch, const std::vector<HealthFinding>& findings,
                               HealthNews& news) {
  std::vector<HealthReason> appeared;
  {
    const std::scoped_lock lock(mutex);
    appeared = state.found(watch, findings, clock.now_ns());
  }
  for (HealthReason& reason : appeared) {
    log_line(severity_of(reason.code), "unhealthy: {}: {}", name_of(reason.code), reason.text);
    news.reasons.push_back(std::move(reason));
  }
}

void HealthMonitor::Impl::look_at_memory() {
  for (const auto& watch : watched_devices()) {
    const UsageGate::Use use(watch->gate);
    if (!use) continue;
    const Result<MemoryInfo> memory = watch->device.memory_info();
    if (!memory) continue;  // for the next check to judge
    const std::scoped_lock lock(mutex);
    watch->last.memory = *memory;
  }
}

void HealthMonitor::Impl::look_at_pools(HealthNews& news) {
  const PoolLimits limits{options.ticket_limit_ns, options.holder_grace_ns, options.step_limit_ns};
  const auto memory_of = [this](const Device* device) {
    const std::scoped_lock lock(mutex);
    for (const auto& watch : devices) {
      if (&watch->device == device) return watch->last.memory;
    }
    return MemoryInfo{};
  };
  for (const auto& watch : watched_pools()) {
    const UsageGate::Use use(watch->gate);
    if (!use) continue;
    const PoolLook found = watch->look(clock.now_ns(), limits, memory_of(watch->device));
    if (found.event) news.events.emplace_back(WatchId(watch->id), *found.event);
    {
      const std::scoped_lock lock(mutex);
      watch->last = found.seen;
      watch->sighting = found.sighting;
    }
    note(watch->id, found.findings, news);
  }
}

void HealthMonitor::Impl::announce(const HealthNews& news) const {
  for (const HealthReason& reason : news.reasons) call_back(options.on_unhealthy, reason);
  for (const auto& [pool, event] : news.events) call_back(options.on_pressure, pool, event);
}

}  // namespace kvarena
