#pragma once

/// @file
/// `DeviceTables`: block tables, lengths and slot mappings of a step on the GPU, at addresses that
/// never change, so that a captured step stays right while sequences grow, join and leave. A
/// sequence has one table row for its whole life (a stable slot: its index among the block tables'
/// sequences); a step's batch is a list of such slots, -1 for a row to skip. Per step only changes
/// cross the bus: `stage` writes them into a pinned ring slot, and one launch copies that slot to
/// the device, chosen by a counter there, and scatters it.
///
/// One thread at a time. Owns its device memory (IntermediateBuffers) and its staging memory; no
/// allocation and no synchronisation after create. Move-only. The device must outlive it.

#include "kvarena/base/result.hpp"
#include "kvarena/base/views.hpp"
#include "kvarena/blocktable/block_tables.hpp"
#include "kvarena/device/cuda_device.hpp"
#include "step/step_ring.hpp"

#include <cstdint>
#include <memory>
#include <span>

namespace kvarena {

/// Options of device tables.
struct DeviceTablesOptions {
  StepLimits limits;                     ///< ring slots, rows and new tokens of a step
  std::int32_t max_sequences = 0;        ///< table rows: sequences at a time
  std::int32_t max_sequence_blocks = 0;  ///< entries of a table row
  std::int32_t block_size_tokens = 0;    ///< tokens a block
};

/// What a step's kernels read: device pointers that are the same in every step. Rows past the batch
/// are skipped rows: slot -1, length 0, no query token. Written in the order of the stream.
struct DeviceStepView {
  const BlockId* block_tables = nullptr;      ///< [max_sequences, table_stride]
  std::int64_t table_stride = 0;              ///< entries
  const std::int32_t* row_slots = nullptr;    ///< [max_rows] table row of each batch row; -1: skip
  const std::int64_t* row_offsets = nullptr;  ///< [max_rows] row_slots * table_stride; 0: skipped
  const std::int32_t* seq_lens = nullptr;     ///< [max_rows] new tokens included; 0: skipped
  const std::int32_t* num_blocks = nullptr;   ///< [max_rows] blocks that hold them
  const std::int64_t* q_offsets = nullptr;    ///< [max_rows + 1] first new token of each row
  const std::int64_t* slots = nullptr;        ///< [max_tokens] block * block_size + offset; -1 past
  const BlockCopy* copies = nullptr;          ///< [max_rows] copies on write; source -1 past
};

/// Block tables' mirror on a GPU.
class DeviceTables {
 public:
  /// Returns invalid_argument naming the option, insufficient_vram, exhausted (host_memory).
  static Result<DeviceTables> create(CudaDevice& device, const DeviceTablesOptions& options);
  ~DeviceTables();
  DeviceTables(DeviceTables&& other) noexcept;
  DeviceTables& operator=(DeviceTables&&) = delete;

  /// The same for life.
  const DeviceStepView& view() const noexcept;
  /// Writes what `append` changed into the ring slot of the next step; no CUDA call. `tables`
  /// report rows (BlockTablesOptions::report_rows) and have no other mirror; `appended` is their
  /// last append. The step that used that slot last must have completed (StepRing::wait), and so
  /// must any launch without a step: it would take this one, perhaps half written. May be called
  /// again before the launch (the last one counts). Returns exhausted (workspace) when rows, tokens
  /// or changed entries exceed the limits or, naming the table row, when a sequence's blocks do not
  /// fit it; failed_precondition (sequence) for rows that `tables` did not report. Nothing has
  /// changed then. O(rows + changed entries).
  Status stage(BlockTables& tables, const AppendResult& appended);
  /// Queues what brings the staged step to the device: a launch that can be captured, and reads the
  /// slot that the device's own count of steps names. The GPU is the thread's current one. A replay
  /// without a staged step skips every row, counts in `misses` and leaves the device waiting for
  /// the same step, so that the next one staged is found.
  Status launch(StreamId stream);
  /// Says that the staged step has been launched or replayed: the next `stage` uses the next slot.
  /// Without a staged step: nothing. Each step names the one before it, so when this is forgotten
  /// after a launch, every later launch misses and none reads a wrong table. Called without a
  /// launch, later launches run a step late until the ring comes round, then miss.
  void advance() noexcept;
  /// Replays that found no staged step. Waits for nothing; what has completed so far.
  std::uint64_t misses() const noexcept;
  /// Bytes of device and of staging memory for `options`: pure functions, for planning.
  static std::uint64_t device_bytes(const DeviceTablesOptions& options) noexcept;
  static std::uint64_t staging_bytes(const DeviceTablesOptions& options) noexcept;

 private:
  struct Impl;
  explicit DeviceTables(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvarena
