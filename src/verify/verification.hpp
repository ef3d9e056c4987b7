#pragma once

/// @file
/// How much is verified, and what verification and a GPU's clock found. Plain values.

#include <cstdint>
#include <string>
#include <string_view>

namespace kvarena::verify {

/// How much is verified. `off`: no bytes exist. `sample`: all KV is written; one layer of every
/// finished sequence and a sample of decode steps are verified. `full`: every byte of every
/// sequence and every decode result. A GPU computes attention of all layers in every step either
/// way.
enum class AttentionMode : std::uint8_t { off, sample, full };

/// "off", "sample", "full".
std::string_view name_of(AttentionMode mode) noexcept;

/// What verification looked at.
struct VerificationReport {
  std::int64_t kv_bytes_written = 0;    ///< K and V of all tokens
  std::int64_t kv_bytes_compared = 0;   ///< read back through the tables and compared exactly
  std::int64_t sequences_compared = 0;  ///< of which bytes were compared
  std::int64_t attention_rows = 0;      ///< query tokens compared with the reference, per layer
  double max_error = 0.0;               ///< largest relative L2 distance of a row to the reference
  double tolerance = 0.0;               ///< largest distance accepted
  std::int64_t failures = 0;            ///< checks that failed
};

/// What attention took on a GPU, by its own clock: all that differs from run to run. Every layer is
/// computed in every step.
struct MeasuredReport {
  std::string device;                ///< "cuda:0 NVIDIA H200"; empty: nothing was measured
  std::int64_t decode_steps = 0;     ///< steps in which every row decodes
  std::int64_t decode_kv_bytes = 0;  ///< K and V that their attention read
  double decode_us = 0.0;            ///< that it took
  std::int64_t prompt_steps = 0;     ///< steps that computed prompt tokens
  double prompt_us = 0.0;            ///< that their attention took

  /// Bytes a nanosecond of decode attention.
  double decode_gb_per_s() const noexcept {
    return decode_us > 0.0 ? static_cast<double>(decode_kv_bytes) / decode_us / 1e3 : 0.0;
  }
};

}  // namespace kvarena::verify
