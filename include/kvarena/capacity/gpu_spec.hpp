#pragma once

/// @file
/// `GpuSpec`: what planning and the roofline clock need to know of a GPU, and 13 presets. Plain
/// values; the presets are made on first use, never change, and may be read by any thread.
/// Rates are the vendor's peaks in units of 10^9 and 10^12 (bytes or operations a second); sizes
/// are exact bytes.

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
  /// All of its memory, as the driver reports it (nvidia-smi), before any context.
  std::int64_t memory_bytes = 0;
  /// All of its memory as CUDA reported it in a real run, up to 2 % less; absent where nobody
  /// looked.
  std::optional<std::int64_t> cuda_memory_bytes;
  std::int64_t bandwidth_bytes_per_second = 0;  ///< peak of its memory
  /// Peak of its matrix units: bf16 in, f32 accumulated, dense (no sparsity). One multiply-add is
  /// two operations.
  std::int64_t bf16_flops_per_second = 0;
  std::int32_t num_sms = 0;      ///< its multiprocessors
  std::string memory_source;     ///< where its memory was read
  std::string bandwidth_source;  ///< where its bandwidth was read
  std::string flops_source;      ///< where the peak was read
};

/// The presets, in the order of `kvarena plan --list`.
KVARENA_EXPORT std::span<const GpuSpec> gpu_presets();

/// Their names.
KVARENA_EXPORT std::vector<std::string_view> gpu_preset_names();

/// The preset of that name in any case ("rtx-4090"), or nullptr. Valid for the whole program.
KVARENA_EXPORT const GpuSpec* find_gpu(std::string_view name);

}  // namespace kvarena::capacity
