#pragma once

/// @file
/// The instances of the Hopper kernel of prefill.h: a list for each type of K and V, which has a
/// source file of its own.

#include "kernels/prefill/hopper_launch.h"

#include "kvarena/base/dtype.hpp"

#include <atomic>
#include <cstdint>
#include <span>

namespace kvarena::kernels {

/// An instance.
struct HopperInstance {
  DType dtype;     ///< of q and out
  DType kv_dtype;  ///< of K and V
  int head_dim;    ///< of K and V
  int tile_tokens;
  bool has_window;
  bool has_cap;  ///< and any window
  int threads;
  int shared_bytes;
  void (*kernel)(PrefillParams, HopperLaunch);
  std::atomic<std::uint64_t>* devices;  ///< bit i: device i has been told of `shared_bytes`
};

std::span<const HopperInstance> hopper_instances_bf16() noexcept;
std::span<const HopperInstance> hopper_instances_f16() noexcept;
std::span<const HopperInstance> hopper_instances_fp8() noexcept;

}  // namespace kvarena::kernels
