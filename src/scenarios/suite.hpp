#pragma once

/// @file
/// The scenarios, one source file each, and their arguments: the options of the suite and the
/// receiver of progress. A scenario makes the objects that it needs on the device, writes figures
/// and checks into its report, and frees everything. It returns a Failure when it cannot be
/// completed, and has then failed. `run_suite`: runs scenarios on a device, one after another. It
/// goes on after a failed scenario.

#include "scenarios/report.hpp"
#include "scenarios/served_model.hpp"
#include "verify/failure.hpp"

#include "kvarena/base/clock.hpp"
#include "kvarena/device/host_device.hpp"

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvarena::scenarios {

/// The amount of work of the scenarios. The defaults are for real runs; tests use smaller numbers.
struct SuiteSizes {
  std::int64_t chunk_tokens = 128;       ///< prompt tokens in a step
  std::int64_t decode_tokens = 96;       ///< maximum context: decoded, the rest is prefilled
  std::int64_t overlong_tokens = 904;    ///< maximum context: of a prompt, past the context
  std::int64_t load_cycles = 10;         ///< leaks: load, run, unload
  std::int64_t sequence_cycles = 1'000;  ///< leaks: create and destroy
  std::int64_t full_rounds = 3;          ///< near-full: fill, run, release
  std::int64_t appends = 1'000'000;      ///< long generation: decoded tokens
  std::int64_t generation_tokens = 512;  ///< long generation: the longest sequence
  std::int32_t generation_batch = 64;    ///< long generation: sequences at a time
  std::int64_t batch_blocks = 512;       ///< concurrency, host: of the pool; a GPU: what fits
  std::int64_t batch_tokens = 48;        ///< concurrency, host: the longest sequence
  std::int64_t gpu_batch_tokens = 512;   ///< the same on a GPU
  std::int32_t overload_sequences = 48;  ///< concurrency: three times what the pool holds
  std::int64_t decode_steps = 10;        ///< of a batch, where nothing else is said
  std::int64_t weights_piece_bytes = 64 << 20;   ///< filled at a time, each with its own value
  std::int64_t resident_growth_bytes = 8 << 20;  ///< growth: of the process, at most
  std::int64_t leak_bytes = 32 << 10;  ///< of the process, a cycle of leaks or a reading of long
                                       ///< generation: what goes on growing by more is a leak
  std::int64_t neighbour_bytes = std::int64_t{4} << 30;  ///< that it takes at most
};

struct SuiteOptions {
  Device* device = nullptr;  ///< where, open; outlives the run. A host device has its capacity
  ServedModel model;
  /// CUDA: leave the scenarios so much of the free memory; the rest is taken away for the run.
  std::optional<std::int64_t> memory_bytes;
  std::vector<std::string> scenarios;  ///< names; none: all
  std::int64_t seed = 1;               ///< of lengths and contents
  SuiteSizes sizes;
  /// Program and arguments of a process that runs serve_neighbour on the same device; empty: there
  /// is no such program, and the scenario is skipped.
  std::vector<std::string> neighbour_command;
  /// Host: the machine that we share with the neighbour. Null: system_memory_source().
  HostMemorySource* machine = nullptr;
  std::int32_t num_threads = 0;             ///< host: of attention; 0: one a core
  const Clock* clock = &steady_clock();     ///< for durations in reports
  const std::atomic<bool>* stop = nullptr;  ///< once true, the run ends soon; may be null
};

class ProgressSink {
 public:
  virtual ~ProgressSink() = default;
  virtual void on_begin(std::string_view name, std::string_view title) = 0;
  /// The scenario reports its progress in words.
  virtual void on_progress(std::string_view name, std::string_view what) = 0;
  virtual void on_end(const ScenarioReport& report) = 0;
};

/// Borrowed for one scenario.
struct ScenarioContext {
  const SuiteOptions& options;
  std::string_view scenario;     ///< its name
  ProgressSink* sink = nullptr;  ///< may be null

  Device& device() const noexcept { return *options.device; }
  const ServedModel& model() const noexcept { return options.model; }
  const SuiteSizes& sizes() const noexcept { return options.sizes; }
  bool on_gpu() const noexcept { return options.device->kind() == DeviceKind::cuda; }
  std::int64_t now_ns() const { return options.clock->now_ns(); }
  void progress(std::string_view what) const {
    if (sink != nullptr) sink->on_progress(scenario, what);
  }
};

/// A scenario as the command line knows it.
struct Scenario {
  std::string_view name;
  std::string_view title;
  MaybeFailure (*run)(const ScenarioContext& context, ScenarioReport& report);
  /// Returns the free bytes of the device that the scenario needs. Returns what cache_footprint
  /// returns.
  Result<std::int64_t> (*required_bytes)(const ScenarioContext& context);
};

/// The longest sequence the model was made for, and what is refused past it.
Scenario maximum_context();
/// Memory and blocks while one sequence grows.
Scenario growth();
/// The device filled to the last block that fits.
Scenario near_full();
/// Budgets too small for weights, a sequence, the arena; instances until no more fits.
Scenario allocation_failure();
/// Loading and unloading, creating and destroying, over and over.
Scenario leaks();
/// Batches, as many as fit, and more than fit.
Scenario concurrency();
/// A million tokens with turnover.
Scenario long_generation();
/// Layers of several kinds in one pool: every group exhausted in turn.
Scenario groups();
/// A process that takes and frees memory meanwhile.
Scenario neighbours();

/// Returns all scenarios, in the order in which they run.
std::span<const Scenario> scenarios();

struct SuiteReport {
  std::string model;
  std::string device;                     ///< Device::name
  std::int64_t total_bytes = 0;           ///< of the device
  std::int64_t free_bytes = 0;            ///< before the first scenario
  std::vector<ScenarioReport> scenarios;  ///< that ran, in order
  std::vector<std::string> not_run;       ///< chosen, but the run was interrupted before
  double seconds = 0.0;
};

/// The end of a run, and its report up to there.
struct SuiteOutcome {
  MaybeFailure failure;             ///< absent: all came to their end, and every check held
  std::int64_t required_bytes = 0;  ///< free bytes that the scenarios chosen need
  bool has_report = false;          ///< whether a scenario was to run
  SuiteReport report;
};

/// Runs `options.scenarios`. Ends with does_not_fit, before any scenario runs, when the device has
/// fewer free bytes than they need. Ends with interrupted after `options.stop`; the report then has
/// the finished scenarios.
SuiteOutcome run_suite(const SuiteOptions& options, ProgressSink* sink);

}  // namespace kvarena::scenarios
