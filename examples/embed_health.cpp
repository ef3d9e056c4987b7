// An engine with a health monitor. docs/howto/embed-health.md explains each part of this program.

#include <kvarena/cache/kv_cache.hpp>
#include <kvarena/device/host_device.hpp>
#include <kvarena/health/health_monitor.hpp>
#include <kvarena/health/health_server.hpp>

#include <atomic>
#include <cstdio>
#include <string>
#include <vector>

using namespace kvarena;

namespace {

constexpr std::uint64_t kWeightBytes = 988'065'536;

std::atomic<bool> admitting{true};  // the scheduler reads it before it takes a request

Status run_step(KvCache& cache, SequenceId sequence) {
  if (Status status = cache.begin_step(); !status) return status;
  const std::vector<AppendDemand> demands{{sequence, 1}};
  if (auto batch = cache.append(demands); !batch) return batch.status();
  return cache.end_step();
}

Status serve(KvCache& cache, HealthMonitor& monitor, WatchId pool) {
  const Result<SequenceId> sequence = cache.create_sequence({.owner = 7});
  if (!sequence) return sequence.status();
  for (int step = 0; step < 3; ++step) {
    if (Status status = run_step(cache, *sequence); !status) return status;
    const std::int64_t waiting = 0, preemptions = 0;  // since the last call
    if (Status s = monitor.report_engine(pool, waiting, preemptions); !s) return s;
  }
  if (Status status = cache.destroy(*sequence); !status) return status;
  return cache.publish();  // the engine goes idle
}

}  // namespace

int main() {
  const auto device = HostDevice::create().value();
  KvCacheOptions cache_options;
  cache_options.layout = {.num_layers = 2, .num_kv_heads = 2, .head_dim_k = 64};
  cache_options.size.num_blocks = 64;
  cache_options.num_q_heads = 4;
  auto cache = KvCache::create(*device, cache_options).value();

  HealthOptions options;
  options.on_unhealthy = [](const HealthReason& reason) {
    admitting = false;
    std::printf("stop admitting: %s\n", std::string(name_of(reason.code)).c_str());
  };
  options.step_limit_ns = 1;  // for this demonstration; the default is 30 seconds
  options.run_thread = false;
  auto monitor = HealthMonitor::create(options).value();
  const WatchId pool = monitor.watch(cache, "kv").value();
  if (!device->tracker().set_total("torch", MemoryPurpose::model_weights, kWeightBytes)) return 1;
  const auto server = HealthServer::start(monitor, {.address = "127.0.0.1", .port = 0});
  if (!server) {
    std::printf("no health server: %s\n", describe(server.status()).c_str());
    return 1;
  }

  if (const Status status = serve(cache, monitor, pool); !status) {
    std::printf("%s\n", cache.describe(status).c_str());
    return 1;
  }
  std::printf("healthy after 3 steps: %s\n", monitor.check_now().healthy ? "yes" : "no");

  // A request waits, and the engine computes no step.
  if (!monitor.report_engine(pool, 1, 0)) return 1;
  monitor.check_now();
  std::printf("healthy while a request waits: %s\n", monitor.check_now().healthy ? "yes" : "no");
  return admitting ? 1 : 0;
}
