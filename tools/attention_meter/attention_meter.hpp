#pragma once

/// @file
/// `AttentionMeter`: measures how long attention takes on a device, and how long a plain read of as
/// many bytes takes in the same run. Calls run back to back, on CUDA in a graph. The calls rotate
/// over tables of random blocks, so that no cache holds the bytes that a call reads. A time is the
/// median of the rounds divided by the calls of a round. What is compared is measured in turn,
/// round by round. Each row's result is compared with plain loops first.
///
/// Single-threaded; borrows its device, which must outlive it; owns its pool and gives it back.
/// Every call waits for the device.

#include "tools/attention_meter/attention_problem.hpp"

#include "kvarena/base/result.hpp"
#include "kvarena/device/cuda_device.hpp"

#include <atomic>
#include <cstdint>
#include <memory>

namespace kvarena::meter {

/// Options of a meter.
struct MeterOptions {
  std::int64_t pool_bytes = 0;                 ///< of KV, at least what pool_bytes(problem) says
  std::int64_t rotated_bytes = 1'000'000'000;  ///< of KV that the calls of a row go round
  std::int64_t ceiling_bytes = 0;              ///< of the large read, at most pool_bytes
  std::int32_t replays = 31;                   ///< most rounds that a median is taken of
  std::int32_t layers_per_schedule = 32;       ///< that share one schedule's time
  std::int32_t num_threads = 1;                ///< of a host meter
  /// A host meter ends a row between two calls once it is true, with failed_precondition. nullptr:
  /// never.
  const std::atomic<bool>* stop = nullptr;
};

/// The large read.
struct ReadCeiling {
  std::int64_t bytes = 0;  ///< read by one call
  double us = 0.0;         ///< its time
};

/// The measurement of a row.
struct AttentionFigures {
  std::int64_t kv_bytes = 0;     ///< of K and V that a call has to read
  double floor_us = 0.0;         ///< to only read as many bytes
  double beside_us = 0.0;        ///< of the problems beside this one, added up; 0: there are none
  double attention_us = 0.0;     ///< one layer, its share of the schedule included
  double schedule_us = 0.0;      ///< making a step's schedule, for all its layers
  Rotation rotation;             ///< tables and calls
  std::int32_t num_rounds = 0;   ///< that the medians are taken of; fewer where calls are slow
  std::int32_t num_parts = 0;    ///< that the schedule cut the batch into; 0 on a GPU
  std::int64_t num_checked = 0;  ///< (query token, head) pairs compared with plain loops
  double error = 0.0;            ///< relative L2 distance to them, each head counted alike
  double error_limit = 0.0;      ///< twice that of rounding the exact result to the output's type

  /// Whether the result is right. NaN is not.
  bool is_correct() const noexcept { return error <= error_limit; }
};

/// Measures rows of one device.
class AttentionMeter {
 public:
  virtual ~AttentionMeter() = default;
  AttentionMeter(const AttentionMeter&) = delete;
  AttentionMeter& operator=(const AttentionMeter&) = delete;

  /// The time of one read of `ceiling_bytes`.
  virtual Result<ReadCeiling> read_ceiling() = 0;
  /// Measures one row. Returns what the device and its attention return; invalid_argument
  /// (pool_bytes) when the pool is too small for the row's tables.
  virtual Result<AttentionFigures> measure(const AttentionProblem& problem) = 0;

 protected:
  AttentionMeter() = default;
};

/// A meter of the CPU attention path, its memory taken from `host`. Returns what Device::allocate
/// and CpuWorkers::create return.
Result<std::unique_ptr<AttentionMeter>> make_host_meter(Device& host, const MeterOptions& options);
/// A meter of the CUDA kernels, as KvCache calls them. Returns what the device returns, or
/// unsupported (device) in a build without CUDA.
Result<std::unique_ptr<AttentionMeter>> make_cuda_meter(CudaDevice& device,
                                                        const MeterOptions& options);

}  // namespace kvarena::meter
