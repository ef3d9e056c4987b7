#pragma once

/// @file
/// The places of the arrays of device tables in their two allocations. Pure functions of the
/// options, without a device.

#include "kernels/params.h"
#include "kvarena/base/result.hpp"
#include "step/device_tables.hpp"

#include <cstddef>
#include <cstdint>

namespace kvarena {

/// Offsets in bytes. Each is a multiple of 256 except that of the word behind the state. Arrays
/// whose empty value is -1 come first; those whose empty value is 0 come after `zeros`.
struct DeviceTablesMemory {
  kernels::StepShape shape;
  std::int64_t block_tables = 0;
  std::int64_t row_slots = 0;
  std::int64_t slots = 0;
  std::int64_t copies = 0;
  std::int64_t zeros = 0;
  std::int64_t row_offsets = 0;
  std::int64_t seq_lens = 0;
  std::int64_t num_blocks = 0;
  std::int64_t q_offsets = 0;
  std::int64_t state = 0;
  std::int64_t expected_word = 0;
  std::int64_t device_bytes = 0;
  std::int64_t ring = 0;  ///< in staging memory; the device's report is in front of it
  std::int64_t staging_bytes = 0;
};

/// Returns ok, or invalid_argument with the option.
Status check_options(const DeviceTablesOptions& options) noexcept;
/// Plans the memory for valid options.
DeviceTablesMemory plan_memory(const DeviceTablesOptions& options) noexcept;
/// Returns the plan as pointers into memory, for a launch that expects the step named by the
/// device's word.
kernels::ScatterStepParams place_arrays(const DeviceTablesMemory& plan, std::byte* device,
                                        std::byte* staging) noexcept;

}  // namespace kvarena
