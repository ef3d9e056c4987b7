#pragma once

/// @file
/// Copies and clearing of whole states of recurrent layers on CUDA, in front of a step's layers.
/// The number of copies is read on the device, so that a captured launch serves every step; a
/// launch without copies ends at once. One launch, no allocation, no synchronisation, capturable.

#include "kvarena/base/status.hpp"
#include "kvarena/base/views.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace kvarena::kernels {

/// The copies of one group of states. Arrays are device memory.
struct CopyStatesParams {
  std::byte* base = nullptr;          ///< of slot 0; 16-byte aligned
  std::int64_t slot_stride = 0;       ///< bytes from a slot to the next; a multiple of 16
  std::int64_t bytes = 0;             ///< of a slot; a multiple of 16. It may be longer than
                                      ///< slot_stride: not every number is that of a slot
  const BlockCopy* copies = nullptr;  ///< [max_copies] a negative source: the target is cleared. A
                                      ///< slot outside the pool: skip
  const std::int32_t* num_copies = nullptr;  ///< how many of them the step has, at most max_copies
  std::int64_t max_copies = 0;               ///< at least 0
  std::int64_t num_slots = 0;  ///< numbers of slots in the pool; the last slot ends inside it
  std::int32_t num_sms = 0;    ///< multiprocessors of the GPU
};

/// Loads the kernel (load_kernel.h).
Status load_copy_states() noexcept;

/// Queues the copies. Targets must be distinct, and no target may be the source of another copy.
/// Returns invalid_argument (pointer, alignment, block_bytes, num_blocks, capacity, device) or
/// device_error; nothing is queued then.
Status launch_copy_states(const CopyStatesParams& params, cudaStream_t stream) noexcept;

}  // namespace kvarena::kernels
