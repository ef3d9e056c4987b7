#pragma once

/// @file
/// Where the arrays of device tables lie in their two allocations. Pure functions of the options;
/// no device.

#include "kernels/params.h"
#include "kvarena/base/result.hpp"
#include "step/device_tables.hpp"

#include <cstddef>
#include <cstdint>

namespace kvarena {

/// Offsets in bytes, each a multiple of 256 but for the word behind the state. Arrays that are -1
/// where nothing is come first, those that are 0 there after `zeros`.
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
  std::int64_t ring = 0;  ///< staging memory; the device's report comes before it
  std::int64_t staging_bytes = 0;
};

/// ok, or invalid_argument naming the option.
Status check_options(const DeviceTablesOptions& options) noexcept;
/// The plan for options that are ok.
DeviceTablesMemory plan_memory(const DeviceTablesOptions& options) noexcept;
/// The plan as pointers into memory, for a launch that expects what the device's word names.
kernels::ScatterStepParams place_arrays(const DeviceTablesMemory& plan, std::byte* device,
                                        std::byte* staging) noexcept;

}  // namespace kvarena
