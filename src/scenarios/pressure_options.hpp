#pragma once

/// @file
/// What a run of pressure scenarios is to do. A plain value with units in its names.

#include "scenarios/pressure_model.hpp"

#include "kvarena/base/clock.hpp"
#include "kvarena/device/host_device.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvarena::replay::pressure {

/// A defect planted on purpose, so that tests prove that the matching scenario finds it. On a host
/// device only: see FaultyMemoryDevice.
enum class PressureFault : std::uint8_t {
  none,
  leak,        ///< now and then KV memory that is freed does not go back
  byte_count,  ///< KV memory is an eighth larger than was asked for
  residency,   ///< KV memory is said to lie elsewhere
};

/// How much work the scenarios are. The defaults are the real thing; tests scale them down.
struct PressureSizes {
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

/// All of it.
struct PressureOptions {
  Device* device = nullptr;  ///< where, open; outlives the run. A host device has its capacity
  PressureModel model;
  /// CUDA: leave the scenarios so much of the free memory; the rest is taken away for the run.
  std::optional<std::int64_t> memory_bytes;
  std::vector<std::string> scenarios;  ///< names; none: all
  std::int64_t seed = 1;               ///< of lengths and contents
  PressureFault fault = PressureFault::none;
  PressureSizes sizes;
  /// Program and arguments of a process that runs serve_neighbour on the same device; empty: there
  /// is no such program, and the scenario is skipped.
  std::vector<std::string> neighbour_command;
  /// Host: the machine that we share with the neighbour. Null: system_memory_source().
  HostMemorySource* machine = nullptr;
  std::int32_t num_threads = 0;          ///< host: of attention; 0: one a core
  const Clock* clock = &steady_clock();  ///< for durations in reports
};

}  // namespace kvarena::replay::pressure
