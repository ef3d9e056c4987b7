#pragma once

/// @file
/// The rows of docs/benchmarks.md: shapes of public models with batches of one length, and one
/// skewed batch. Each row has the measured time of the best public kernel. Static data.

#include "tools/attention_meter/attention_problem.hpp"

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace kvarena::meter {

/// A model's attention heads under a short name.
struct Preset {
  std::string_view name;      ///< "llama-3-8b"
  std::int32_t num_q_heads;   ///< a multiple of num_kv_heads
  std::int32_t num_kv_heads;  ///< KV heads
  std::int32_t head_dim;      ///< elements
};

/// One row. The times were measured on one H200 on 2026-11-20; cards differ, ratios hardly.
struct KnownRow {
  std::string_view preset;       ///< a Preset's name
  std::string_view name;         ///< "A 64x1k"
  DType dtype;                   ///< of K and V
  std::int32_t batch;            ///< sequences
  std::int32_t context;          ///< tokens of each; 0: skewed_lengths
  double floor_us;               ///< to only read as many bytes
  double public_us;              ///< the best public kernel
  std::string_view public_name;  ///< which
  double target_ratio;           ///< the project's target for the ratio to the floor
};

/// All presets.
std::span<const Preset> presets() noexcept;
/// The preset of that name, or nullptr.
const Preset* find_preset(std::string_view name) noexcept;
/// All rows, in the order of the reports.
std::span<const KnownRow> known_rows() noexcept;
/// The 64 lengths of the skewed row: one of 65,536, the others log-normal around 1,000.
std::span<const std::int32_t> skewed_lengths() noexcept;

/// A row's lengths.
std::vector<std::int32_t> lengths_of(const KnownRow& row);
/// Returns the row with the heads, type and lengths of `problem`, or nullptr. Rows have blocks of
/// 16, one query token and no window.
const KnownRow* find_known_row(const AttentionProblem& problem);

}  // namespace kvarena::meter
