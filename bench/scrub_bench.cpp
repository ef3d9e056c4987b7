// What KvCacheOptions::scrub costs a step: the calls of a step that writes nothing, and the time
// until its work is done, by mode and by whose blocks are taken, beside the same without scrubbing.
// On the GPU where there is one, else on the host.

#include "kvarena/cache/kv_cache.hpp"
#include "kvarena/device/cuda_device.hpp"
#include "kvarena/device/host_device.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <vector>

namespace kvarena {
namespace {

constexpr int kRounds = 41;

struct Model {
  const char* name;
  std::int32_t num_layers;
  std::int32_t num_kv_heads;
  std::int32_t head_dim;
};
/// Steps of `rows` sequences that grow by `tokens` each.
struct Load {
  const char* name;
  std::int32_t rows;
  std::int32_t tokens;
  std::int32_t steps;
};
struct Mode {
  const char* name;
  Scrub scrub;
  bool changes_owner;
};

struct Times {
  double call_us = 0;  ///< begin_step, append and end_step
  double done_us = 0;  ///< the same, and its work
};

double median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double us_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
      .count();
}

/// A cache of one mode, and what its steps took.
class Meter {
 public:
  Meter(Device& device, const Model& model, const Load& load, const Mode& its_mode)
      : mode(its_mode), load_(load), cache_(create(device, model, load, its_mode)) {
    static_cast<void>(device.fill(cache_.arena().base(), 1,
                                  static_cast<std::uint64_t>(cache_.arena().bytes()),
                                  cache_.stream()));
  }

  /// New sequences take all blocks anew.
  void play(int round) {
    const std::uint64_t owner = mode.changes_owner ? 1 + static_cast<std::uint64_t>(round) : 1;
    std::vector<AppendDemand> demands;
    for (std::int32_t row = 0; row < load_.rows; ++row) {
      // Rows of a decode step are a token apart, so that as many take a block in each.
      const std::int32_t first = load_.tokens == 1 ? 1 + row % 16 : load_.tokens;
      demands.push_back({cache_.create_sequence({.owner = owner}).value(), first});
    }
    for (std::int32_t step = 0; step < load_.steps; ++step) {
      const bool is_warm = round > 0 && (step > 0 || load_.steps == 1);
      play_step(demands, is_warm);
      for (AppendDemand& demand : demands) demand.num_tokens = load_.tokens;
    }
    for (const AppendDemand& demand : demands) static_cast<void>(cache_.destroy(demand.sequence));
  }
  Times times() { return {median(calls_), median(done_)}; }

  const Mode mode;

 private:
  static KvCache create(Device& device, const Model& model, const Load& load, const Mode& mode) {
    const std::int64_t blocks_a_row = (std::int64_t{load.tokens} * load.steps + 15) / 16 + 1;
    return KvCache::create(device, {.layout = {.num_layers = model.num_layers,
                                               .num_kv_heads = model.num_kv_heads,
                                               .head_dim_k = model.head_dim,
                                               .dtype = DType::bf16},
                                    .size = {.num_blocks = load.rows * blocks_a_row},
                                    .scrub = mode.scrub,
                                    .num_q_heads = model.num_kv_heads,
                                    .max_sequences = load.rows,
                                    .max_step_tokens = 16384})
        .value();
  }
  void play_step(const std::vector<AppendDemand>& demands, bool is_warm) {
    static_cast<void>(cache_.synchronize());
    const auto start = std::chrono::steady_clock::now();
    const bool ok =
        cache_.begin_step().is_ok() && cache_.append(demands).is_ok() && cache_.end_step().is_ok();
    const double call = us_since(start);
    if (!ok || !cache_.synchronize().is_ok()) std::printf("a step failed\n");
    if (!is_warm) return;
    calls_.push_back(call);
    done_.push_back(us_since(start));
  }

  Load load_;
  KvCache cache_;
  std::vector<double> calls_;
  std::vector<double> done_;
};

/// The modes take turns, so that whatever else the machine does falls on all of them.
void print(Device& device, const Model& model, const Load& load) {
  const Mode modes[] = {{"never", Scrub::never, true},
                        {"on_owner_change, the same owner", Scrub::on_owner_change, false},
                        {"on_owner_change, another owner", Scrub::on_owner_change, true},
                        {"always", Scrub::always, false}};
  std::vector<std::unique_ptr<Meter>> meters;
  for (const Mode& mode : modes) {
    meters.push_back(std::make_unique<Meter>(device, model, load, mode));
  }
  for (int round = 0; round < kRounds; ++round) {
    for (const auto& meter : meters) meter->play(round);
  }
  const Times never = meters.front()->times();
  for (const auto& meter : meters) {
    const Times times = meter->times();
    std::printf("%-14s %-26s %-32s %8.1f us (%5.2f x)   done %9.1f us (%6.2f x)\n", model.name,
                load.name, meter->mode.name, times.call_us, times.call_us / never.call_us,
                times.done_us, times.done_us / never.done_us);
  }
}

int run() {
  constexpr Model kQwen{"Qwen2.5-0.5B", 24, 2, 64};
  constexpr Model kLlama{"Llama-3.1-8B", 32, 8, 128};
  constexpr Load kDecode{"decode, 256 rows", 256, 1, 33};
  constexpr Load kPrompts{"prompts, 16 x 512 tokens", 16, 512, 1};
  const auto cuda = CudaDevice::create();
  const auto host = HostDevice::create();
  if (!cuda && !host) return 1;
  Device& device = cuda ? static_cast<Device&>(**cuda) : **host;
  std::printf("%s\n", device.name().c_str());
  for (const Load& load : {kDecode, kPrompts}) {
    print(device, kQwen, load);
    if (cuda) print(device, kLlama, load);
  }
  return 0;
}

}  // namespace
}  // namespace kvarena

int main() { return kvarena::run(); }
