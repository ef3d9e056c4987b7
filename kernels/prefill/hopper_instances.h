#pragma once

/// @file
/// The instances of the Hopper kernel of prefill.h: a list for each type of q and out, and of K and
/// V. A list has a source file of its own; that of fp8 is in two, and with bf16 in three.

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
std::span<const HopperInstance> hopper_instances_bf16_fp8() noexcept;
std::span<const HopperInstance> hopper_instances_bf16_fp8_wide() noexcept;
std::span<const HopperInstance> hopper_instances_bf16_fp8_long() noexcept;
std::span<const HopperInstance> hopper_instances_f16_fp8() noexcept;
std::span<const HopperInstance> hopper_instances_f16_fp8_wide() noexcept;

}  // namespace kvarena::kernels
