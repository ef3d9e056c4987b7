#pragma once

/// @file
/// What a decode step does to device tables, simulated: device memory, a staging ring, and a stream
/// that runs launches later than the host stages their steps. A launch names its step itself or, as
/// a captured one, takes the step that was named on the stream before. It knows the step that it
/// was launched for and is judged against it when it runs.

#include "effects/program.hpp"

#include "kernels/params.h"
#include "step/device_tables_memory.hpp"
#include "step/staging_ring.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvarena::test {

/// A row of a step.
struct StepRow {
  std::int32_t slot = -1;
  std::int32_t length = 0;
  std::int32_t num_new = 0;
  std::vector<std::int32_t> blocks{};  // those that hold its tokens

  friend bool operator==(const StepRow&, const StepRow&) = default;
};

/// What the kernels of a step read.
struct StepContent {
  std::vector<StepRow> rows;
  std::vector<std::int64_t> slots;                            // of new tokens
  std::vector<std::pair<std::int32_t, std::int32_t>> copies;  // source, target; sorted

  friend bool operator==(const StepContent&, const StepContent&) = default;
};

/// A step as the host had it when it was staged.
struct StagedContent {
  std::uint64_t number = 0;
  StepContent content;
};

/// How a launch knows its step.
enum class Naming : std::uint8_t {
  by_stream,  ///< a replay of a graph behind the naming of its step
  by_launch,  ///< a launch that is not captured
};

/// The device's side of steps.
class StepDevice {
 public:
  StepDevice(const DeviceTablesOptions& options, Story& story);
  StepDevice(const StepDevice&) = delete;
  StepDevice& operator=(const StepDevice&) = delete;

  StagingRing& ring() noexcept { return ring_; }
  /// Waits for the step that used the next slot of the ring last.
  void wait_for_slot();
  /// Queues the launch of the staged step, and its naming.
  void launch(const StagedContent& step, Naming naming);
  /// Queues the naming of the staged step, without a launch.
  void name_step();
  /// Queues a launch that must skip every row: for a step taken already, withdrawn, or none.
  void launch_in_vain(Naming naming);
  /// A launch that is queued may be for a step that was withdrawn: the next one waits for it.
  void wait_for_late_launches() noexcept { waits_for_all_ = true; }
  /// The launch of a step was lost; the host does not know.
  void lose(const StagedContent& step);
  /// The step ends, launched or not: the host waits for it steps_in_flight steps later.
  void mark_end() { ends_.push_back(queue_.size()); }
  /// The host forgot the end of a step that was launched. From now on, as when a launch was lost,
  /// launches may skip every row.
  void forget_end() noexcept { may_skip_ = true; }
  /// Runs the next launch; false when there is none.
  bool run_one();
  /// Runs all that are queued.
  void run_all();
  /// Runs all that are queued, then one that no step was staged for: it must skip every row.
  void launch_without_step();
  /// Runs all that are queued; then every launch must find its step again, whatever was lost.
  void resync(BlockTables& tables);

  /// The first launch that ran with rows that are not its own.
  const std::optional<Failure>& failure() const noexcept { return failure_; }

 private:
  enum class Task : std::uint8_t { name, replay, launch };
  struct Entry {
    Task task = Task::name;
    kernels::StepWord word = 0;  // that is named, or that a launch names itself
    std::uint64_t serial = 0;    // of the step
    StagedContent step{};        // of no number: the launch is in vain
  };

  void carry_out(const Entry& entry);
  void judge_report(const Entry& entry, const kernels::ScatterReport& before);
  /// What the arrays hold; none when they contradict one another.
  std::optional<StepContent> found() const;
  StepRow row_at(std::int32_t row) const;
  void judge(std::uint64_t number, const StepContent& expected);

  Story& story_;
  DeviceTablesMemory plan_;
  std::vector<std::byte> device_;
  std::vector<std::byte> staging_;
  kernels::ScatterStepParams params_;
  StagingRing ring_;
  std::vector<Entry> queue_;
  std::vector<StagedContent> lost_;
  std::size_t num_run_ = 0;
  bool may_skip_ = false;         // a launch may find no step
  bool waits_for_all_ = false;    // before a step is staged
  std::deque<std::size_t> ends_;  // entries in front of the end of each of the last steps
  std::optional<Failure> failure_;
};

}  // namespace kvarena::test
