#pragma once

/// @file
/// Device tables whose device is the host: staged by the ring of the real ones, scattered by the
/// plain version of the kernel. Its stream is a list of operations that run when the test says so,
/// as late as it likes.

#include "kernels/reference/scatter_step.hpp"
#include "step/device_tables_memory.hpp"
#include "step/staging_ring.hpp"
#include "unit/step/step_game.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <new>

namespace kvarena::test {

/// Zeroed memory, aligned as a device's.
class AlignedMemory {
 public:
  explicit AlignedMemory(std::int64_t size)
      : bytes_(new (std::align_val_t{256}) std::byte[static_cast<std::size_t>(size)]{}) {}
  std::byte* data() const { return bytes_.get(); }

 private:
  struct Delete {
    void operator()(std::byte* bytes) const { ::operator delete[](bytes, std::align_val_t{256}); }
  };
  std::unique_ptr<std::byte[], Delete> bytes_;
};

/// As DeviceTables.
class HostTables {
 public:
  explicit HostTables(const DeviceTablesOptions& options)
      : plan(plan_memory(options)),
        memory_(plan.device_bytes),
        staging_(plan.staging_bytes),
        params(place_arrays(plan, memory_.data(), staging_.data())),
        ring(staging_.data() + plan.ring, plan.shape) {
    std::memset(memory_.data(), 0xff, static_cast<std::size_t>(plan.zeros));
  }
  Status stage(BlockTables& tables, const AppendResult& appended) {
    return ring.stage(tables, appended);
  }
  void launch() { stream_.push_back({Operation::launch, ring.expected()}); }
  void expect() { stream_.push_back({Operation::expect, ring.expected()}); }
  /// The launch of a graph that `record` was captured in.
  void replay() { stream_.push_back({Operation::replay, 0}); }
  void advance() { ring.advance(); }
  void withdraw(BlockTables& tables) { ring.withdraw(tables); }
  void resync(BlockTables& tables) { ring.resync(tables, taken_serial()); }
  std::uint64_t staged_serial() const { return ring.staged_serial(); }
  std::uint64_t taken_serial() const { return params.report->taken; }
  std::uint64_t misses() const { return params.report->misses; }

  /// Runs the oldest operation of the stream. Returns whether it was a launch.
  bool run_one() {
    const Queued next = stream_.front();
    stream_.pop_front();
    if (next.operation == Operation::expect) {
      std::memcpy(memory_.data() + plan.expected_word, &next.word, sizeof(next.word));
      return false;
    }
    kernels::ScatterStepParams its = params;
    if (next.operation == Operation::launch) {
      its.expected_word = nullptr;
      its.expected = next.word;
    }
    kernels::reference::scatter_step(its);
    return true;
  }
  void run() {
    while (!is_idle()) static_cast<void>(run_one());
  }
  bool is_idle() const { return stream_.empty(); }
  std::size_t num_queued() const { return stream_.size(); }
  void launch_and_run() {
    launch();
    run();
  }

  StepArrays arrays() const { return StepArrays::of(plan, memory_.data()); }
  /// Where the arrays differ from what they must say, or empty.
  std::string difference(const ExpectedStep& step) const { return step.difference(arrays()); }
  kernels::StagedHeader& header(std::int64_t slot) {
    return *reinterpret_cast<kernels::StagedHeader*>(staging_.data() + plan.ring +
                                                     slot * plan.shape.slot_bytes());
  }

  /// Table entries that the step staged last sends.
  std::int64_t num_sent() {
    std::int64_t sent = 0;
    for (std::int32_t slot = 0; slot < plan.shape.steps_in_flight; ++slot) {
      const kernels::StagedHeader& staged = header(slot);
      if (staged.serial != ring.staged_serial()) continue;
      const auto* rows = reinterpret_cast<const kernels::StagedRow*>(
          reinterpret_cast<const std::byte*>(&staged) + kernels::StepShape::kRowsOffset);
      for (std::int32_t r = 0; r < staged.num_rows; ++r) sent += rows[r].num_changed;
    }
    return sent;
  }

  DeviceTablesMemory plan;

 private:
  enum class Operation : std::uint8_t { launch, expect, replay };
  struct Queued {
    Operation operation;
    kernels::StepWord word;
  };

  AlignedMemory memory_;
  AlignedMemory staging_;
  std::deque<Queued> stream_;

 public:
  kernels::ScatterStepParams params;
  StagingRing ring;
};

}  // namespace kvarena::test
