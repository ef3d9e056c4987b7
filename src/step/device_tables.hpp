#pragma once

/// @file
/// `DeviceTables`: block tables, lengths and slot mappings of a step on the GPU. Their addresses
/// never change, so a captured step stays right while sequences grow, join and leave. The tables
/// share a pool of entries, which is as large as what a step can use, not as all sequences at their
/// longest. A sequence has a region in the pool. A step's batch names the region of each row; -1
/// means that the row is skipped.
///
/// Only changes cross the bus in a step: `stage` writes them into a slot of a pinned ring, and one
/// launch copies the slot to the device and scatters it. A whole table is sent in two cases: it has
/// outgrown its region (of a power of two entries), or the pool is full and all regions are given
/// out anew (table_regions.hpp). The amortised cost is a constant for each appended entry, as long
/// as the tables in use have limits.max_blocks entries together.
///
/// A launch runs exactly the step for which it was launched, or skips every row. Without a graph, a
/// step is `stage`, `launch`, `advance`. With a graph, the launch is captured once (`record`) and
/// replayed for many steps; a step is then `stage`, `expect`, the launch of the graph on the same
/// stream, `advance`. The device takes a step only after all steps before it. After a lost step
/// every later launch is a miss, which `taken_serial` and `misses` show, until `resync`.
///
/// One thread at a time. Owns its device memory (IntermediateBuffers) and its staging memory. No
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
  std::int32_t block_size_tokens = 0;    ///< tokens in a block
};

/// The device pointers that a step's kernels read. They are the same in every step. Rows behind the
/// batch are skipped rows: slot -1, length 0, no query token. The arrays are written in the order
/// of the stream.
struct DeviceStepView {
  const BlockId* block_tables = nullptr;      ///< pool of entries
  std::int64_t num_table_entries = 0;         ///< of the pool
  std::int64_t table_stride = 0;              ///< each table begins at a multiple of this many
                                              ///< entries, and may be longer
  const std::int32_t* row_slots = nullptr;    ///< [max_rows] the multiple, in this step; -1: skip
  const std::int64_t* row_offsets = nullptr;  ///< [max_rows] row_slots * table_stride; 0: skipped
  const std::int32_t* seq_lens = nullptr;     ///< [max_rows] with new tokens; 0: skipped
  const std::int32_t* num_blocks = nullptr;   ///< [max_rows] blocks that hold the tokens
  const std::int64_t* q_offsets = nullptr;    ///< [max_rows + 1] first new token of each row
  const std::int64_t* slots = nullptr;        ///< [max_tokens] block * block_size + offset; -1
                                              ///< behind the last
  const BlockCopy* copies = nullptr;  ///< [max_rows] copies on write; source -1 behind the last
};

/// The mirror of block tables on a GPU.
class DeviceTables {
 public:
  /// Allocates everything. Returns invalid_argument with the option, insufficient_vram, or
  /// exhausted (host_memory).
  static Result<DeviceTables> create(CudaDevice& device, const DeviceTablesOptions& options);
  ~DeviceTables();
  DeviceTables(DeviceTables&& other) noexcept;
  DeviceTables& operator=(DeviceTables&&) = delete;

  /// The device pointers. They stay the same.
  const DeviceStepView& view() const noexcept;
  // ---- a step --------------------------------------------------------------------------------

  /// Writes what `append` changed into the ring slot of the next step, and gives the step its own
  /// serial number. Makes no CUDA call. `appended` is the last append of `tables`, which report
  /// rows (BlockTablesOptions::report_rows) and have no other mirror. The step that used the slot
  /// last must have completed (StepRing::wait), and so must the launches of a step that was staged
  /// there and withdrawn. All rows together have at most limits.max_blocks table entries. stage may
  /// be called again before the launch; the last call counts. Returns limit_exceeded when rows,
  /// tokens or entries to send exceed the limits, or when a sequence has more than
  /// max_sequence_blocks blocks; the status then has the sequence's slot. Returns
  /// failed_precondition (sequence) for rows that `tables` did not report. On failure the step
  /// staged before is still there. O(rows + entries sent).
  Status stage(BlockTables& tables, const AppendResult& appended);
  /// Queues the launch that brings the staged step to the device. Without a staged step, or a
  /// second time, the launch skips every row and counts in `misses`. The GPU must be the thread's
  /// current one. Returns not_found (stream) or device_error.
  Status launch(StreamId stream);
  /// Does the same on a stream that is being captured. Each replay runs the step that the last
  /// `expect` before it on the stream named. It skips every row when no step was named.
  Status record(StreamId stream);
  /// Queues the name of the staged step, or of no step, for the replays behind it on the stream.
  /// The stream must not be captured. Returns what launch returns.
  Status expect(StreamId stream);
  /// Says that the staged step has been launched or replayed, so that the next `stage` uses the
  /// next slot. Does nothing without a staged step. When advance is forgotten after a launch, or
  /// called without one, every later launch misses.
  void advance() noexcept;
  /// Says that the staged step will not be launched. Its changes are staged again when its
  /// sequences come up. A graph for which `expect` named the step misses when it is launched from
  /// now on. The next `stage` uses the same slot. Does nothing without a staged step. O(rows).
  void withdraw(BlockTables& tables) noexcept;

  // ---- steps that were lost ------------------------------------------------------------------
  // The device has taken a step when the step's launch has completed and taken_serial() is at least
  // the step's serial number. The functions here wait for nothing; they report what has happened so
  // far.

  /// The serial number of the staged step, or else of the last step that was advanced. 0: none.
  std::uint64_t staged_serial() const noexcept;
  /// The serial number of the step that the device took last. 0: none.
  std::uint64_t taken_serial() const noexcept;
  /// The number of launches that took no step.
  std::uint64_t misses() const noexcept;
  /// Continues from the step that the device took last. Every queued launch must have completed. A
  /// staged step is withdrawn. Nothing counts as mirrored any more, so the table of each sequence
  /// is sent again when the sequence comes up. O(max_sequences).
  void resync(BlockTables& tables) noexcept;

  // ---- sizes ---------------------------------------------------------------------------------

  /// Returns the bytes of device memory for `options`: a pure function, for planning.
  static std::uint64_t device_bytes(const DeviceTablesOptions& options) noexcept;
  /// Returns the bytes of staging memory for `options`: a pure function, for planning.
  static std::uint64_t staging_bytes(const DeviceTablesOptions& options) noexcept;

 private:
  struct Impl;
  explicit DeviceTables(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvarena
