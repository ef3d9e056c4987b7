#pragma once

/// @file
/// `DeviceTables`: block tables, lengths and slot mappings of a step on the GPU, at addresses that
/// never change, so that a captured step stays right while sequences grow, join and leave. Tables
/// share a pool of entries as large as what a step can use, not as every sequence at its longest: a
/// sequence has a region there, which a step's batch names, -1 for a row to skip. Per step only
/// changes cross the bus: `stage` writes them into a pinned ring slot, and one launch copies that
/// slot to the device and scatters it. A table is sent whole when it has outgrown its region (of a
/// power of two entries), and when the pool has come to its end and all regions are given out anew
/// (table_regions.hpp): amortised a constant for each entry appended, as long as the tables in use
/// have limits.max_blocks entries together.
///
/// A launch runs exactly the step that it was launched for, or skips every row. Run call by call, a
/// step is `stage`, `launch`, `advance`. A launch can be captured once (`record`) and replayed for
/// many steps: `stage`, `expect`, the launch of the graph on the same stream, `advance`. The device
/// takes a step only after all before it: one that was lost on the way makes every later launch a
/// miss, which `taken_serial` and `misses` show, until `resync`.
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
  std::int32_t max_sequences = 0;        ///< sequences at a time
  std::int32_t max_sequence_blocks = 0;  ///< entries of the longest table
  std::int32_t block_size_tokens = 0;    ///< tokens a block
};

/// What a step's kernels read: device pointers that are the same in every step. Rows past the batch
/// are skipped rows: slot -1, length 0, no query token. Written in the order of the stream.
struct DeviceStepView {
  const BlockId* block_tables = nullptr;      ///< pool of entries; a table begins at a multiple of
  std::int64_t table_stride = 0;              ///< so many and may be longer
  const std::int32_t* row_slots = nullptr;    ///< [max_rows] which multiple, in this step; -1: skip
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
  // ---- a step --------------------------------------------------------------------------------

  /// Writes what `append` changed into the ring slot of the next step and gives the step a serial
  /// number of its own; no CUDA call. `tables` report rows (BlockTablesOptions::report_rows) and
  /// have no other mirror; `appended` is their last append. The step that used that slot last must
  /// have completed (StepRing::wait), and so must the launches of a step that was staged there and
  /// withdrawn. The rows have at most limits.max_blocks table entries together. May be called again
  /// before the launch (the last one counts). Returns limit_exceeded when rows, tokens or
  /// entries to send exceed the limits or, naming the sequence's slot, when its blocks are more
  /// than max_sequence_blocks; failed_precondition (sequence) for rows that `tables` did not
  /// report. The step staged before is still there then. O(rows + entries sent).
  Status stage(BlockTables& tables, const AppendResult& appended);
  /// Queues what brings the staged step to the device. Without one, or a second time, the launch
  /// skips every row and counts in `misses`. The GPU is the thread's current one. Returns not_found
  /// (stream), device_error.
  Status launch(StreamId stream);
  /// The same for a stream that is captured: each replay is for the step that the last `expect`
  /// before it on the stream has named, and skips every row when none has.
  Status record(StreamId stream);
  /// Queues the naming of the staged step (without one: of none) for the replays behind it on the
  /// stream, which is not being captured. Returns as launch.
  Status expect(StreamId stream);
  /// Says that the staged step has been launched or replayed: the next `stage` uses the next slot.
  /// Without a staged step: nothing. Forgotten after a launch, or called without one, every later
  /// launch misses.
  void advance() noexcept;
  /// Says that the staged step will not be launched: what it brought is staged again when its
  /// sequences come up, and a launch of it that is queued from now on, of a graph for which
  /// `expect` had named it, is a miss. The next `stage` uses the same slot. Without a staged step:
  /// nothing. O(rows).
  void withdraw(BlockTables& tables) noexcept;

  // ---- steps that were lost ------------------------------------------------------------------
  // A step has been taken when, once its launch has completed, taken_serial() is at least its
  // serial number. These wait for nothing: they say what has happened so far.

  /// Serial number of the staged step, or else of the last one that `advance` was told of. 0: none.
  std::uint64_t staged_serial() const noexcept;
  /// Serial number of the step that the device took last. 0: none.
  std::uint64_t taken_serial() const noexcept;
  /// Launches that took no step.
  std::uint64_t misses() const noexcept;
  /// Goes on from what the device took last. Every launch queued must have completed. A staged step
  /// is withdrawn; nothing counts as mirrored, so that each sequence's table is sent anew when it
  /// comes up. O(max_sequences).
  void resync(BlockTables& tables) noexcept;

  // ---- sizes ---------------------------------------------------------------------------------

  /// Bytes of device and of staging memory for `options`: pure functions, for planning.
  static std::uint64_t device_bytes(const DeviceTablesOptions& options) noexcept;
  static std::uint64_t staging_bytes(const DeviceTablesOptions& options) noexcept;

 private:
  struct Impl;
  explicit DeviceTables(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvarena
