#pragma once

/// @file
/// The toy recurrences of toy_recurrence.hpp as kernels: a thread for each row of a step. They have
/// the bits of the functions on the host.

#include "kvarena/base/state_layout.hpp"
#include "kvarena/cache/kv_cache_step.hpp"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace kvarena::test {

enum class Recurrence;

/// One recurrent layer of a step. Device memory.
struct ToyLayer {
  StateView view;
  DeviceStateSlots slots;
  const std::int64_t* q_offsets = nullptr;  ///< [num_rows + 1] first new token of each row
  const std::int32_t* tokens = nullptr;     ///< new ones
  float* out = nullptr;                     ///< [tokens, ToyShape::kOut]
  std::int32_t num_rows = 0;
  std::int32_t layer = 0;
  Recurrence kind{};
  bool in_place = false;  ///< works on the slot that it writes, without reading another
};

/// Queues the layer.
cudaError_t launch_toy(const ToyLayer& layer, cudaStream_t stream);

}  // namespace kvarena::test
