#pragma once

/// @file
/// The slots of the first tokens of a block table on CUDA: where the K and V of an encoder go. One
/// launch, no allocation, no synchronisation.

#include "kvarena/base/ids.hpp"
#include "kvarena/base/status.hpp"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace kvarena::kernels {

/// Writes slots[i] = table[i / block_size] * block_size + i % block_size for i < num_tokens.
struct TableSlotsParams {
  const BlockId* table = nullptr;  ///< device
  std::int64_t* slots = nullptr;   ///< [num_tokens] device
  std::int32_t num_tokens = 0;     ///< at least 0
  std::int32_t block_size = 0;     ///< at least 1
};

/// Loads the kernel (load_kernel.h).
Status load_table_slots() noexcept;

/// Queues the write. Returns invalid_argument (pointer, num_tokens, block_size) or device_error;
/// nothing is queued then.
Status launch_table_slots(const TableSlotsParams& params, cudaStream_t stream) noexcept;

}  // namespace kvarena::kernels
