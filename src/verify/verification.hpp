#pragma once

/// @file
/// The mode of verification, and the reports of verification and of a GPU's clock. Plain values.

#include <cstdint>
#include <string>
#include <string_view>

namespace kvarena::verify {

/// How much is verified. `off`: no bytes exist. `sample`: all KV is written, and one layer of every
/// finished sequence and a sample of decode steps are verified. `full`: every byte of every
/// sequence and every decode result are verified. A GPU computes attention of all layers in every
/// step in both modes.
enum class AttentionMode : std::uint8_t { off, sample, full };

/// Returns "off", "sample" or "full".
std::string_view name_of(AttentionMode mode) noexcept;

/// The counts and errors of verification.
struct VerificationReport {
  std::int64_t kv_bytes_written = 0;      ///< K and V of all tokens
  std::int64_t kv_bytes_compared = 0;     ///< read back through the tables and compared exactly
  std::int64_t state_bytes_written = 0;   ///< states of recurrent layers
  std::int64_t state_bytes_compared = 0;  ///< read back at the slots of steps and compared exactly
  std::int64_t index_bytes_written = 0;   ///< keys of sparse-attention indexes, with their scales
  std::int64_t index_bytes_compared = 0;  ///< read back through the tables and compared exactly
  std::int64_t sequences_compared = 0;    ///< sequences of which bytes were compared
  std::int64_t attention_rows =
      0;                      ///< query tokens compared with the reference, each layer counted
  double max_error = 0.0;     ///< largest relative L2 distance of a row to the reference
  double tolerance = 0.0;     ///< largest distance accepted
  std::int64_t failures = 0;  ///< checks that failed
};

/// The time of attention on a GPU, by the GPU's clock. These are the only figures that differ from
/// run to run. Every layer is computed in every step.
struct MeasuredReport {
  std::string device;                ///< "cuda:0 NVIDIA H200"; empty: nothing was measured
  std::int64_t decode_steps = 0;     ///< steps in which every row decodes
  std::int64_t decode_kv_bytes = 0;  ///< bytes of K and V that their attention read
  double decode_us = 0.0;            ///< time of their attention
  std::int64_t prompt_steps = 0;     ///< steps that computed prompt tokens
  double prompt_us = 0.0;            ///< time of their attention

  /// Returns bytes a nanosecond of decode attention.
  double decode_gb_per_s() const noexcept {
    return decode_us > 0.0 ? static_cast<double>(decode_kv_bytes) / decode_us / 1e3 : 0.0;
  }
};

}  // namespace kvarena::verify
