#pragma once

/// @file
/// `GpuSpec`: the figures of a GPU that plans and the roofline clock use, and 13 presets. Specs are
/// plain values. The presets are made on first use, never change, and may be read by any thread.
/// Rates are the vendor's peaks, where G is 10^9 and T is 10^12 (bytes or operations a second).
/// Sizes are exact bytes.

#include "kvarena/base/export.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvarena::capacity {

/// One GPU.
struct GpuSpec {
  std::string name;    ///< "RTX-4090"
  std::string vendor;  ///< "NVIDIA"
  /// Its whole memory as the driver reports it (nvidia-smi), before any CUDA context.
  std::int64_t memory_bytes = 0;
  /// Its whole memory as CUDA reported it in a real run, up to 2 % less; absent when it was not
  /// measured.
  std::optional<std::int64_t> cuda_memory_bytes;
  std::int64_t bandwidth_bytes_per_second = 0;  ///< the memory's peak rate
  /// The matrix units' peak rate for dense bf16 inputs and f32 sums. One multiply-add is two
  /// operations.
  std::int64_t bf16_flops_per_second = 0;
  std::int32_t num_sms = 0;      ///< number of multiprocessors
  std::string memory_source;     ///< source of the memory's size
  std::string bandwidth_source;  ///< source of the bandwidth
  std::string flops_source;      ///< source of bf16_flops_per_second
};

/// Returns the presets, in the order of `kvarena plan --list`.
KVARENA_EXPORT std::span<const GpuSpec> gpu_presets();

/// Returns the names of the presets.
KVARENA_EXPORT std::vector<std::string_view> gpu_preset_names();

/// Returns the preset with this name, letter case ignored ("rtx-4090"), or nullptr. The preset is
/// valid until the program ends.
KVARENA_EXPORT const GpuSpec* find_gpu(std::string_view name);

}  // namespace kvarena::capacity
