#pragma once

/// @file
/// `PressureGauge`: turns the free memory of a pool and its device into one of four levels. A level
/// is entered at its threshold. It is left only when the figure is above the threshold by
/// `hysteresis`, so a small fluctuation makes no events. The gauge is pure arithmetic on the
/// caller's figures, without a clock or a thread. One thread at a time.

#include "kvarena/base/export.hpp"
#include "kvarena/base/result.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvarena {

/// How short memory is.
enum class PressureLevel : std::uint8_t { normal, elevated, critical, exhausted };
inline constexpr std::size_t kNumPressureLevels = 4;  ///< number of PressureLevel values

/// "normal", "elevated", "critical", "exhausted".
KVARENA_EXPORT std::string_view name_of(PressureLevel level) noexcept;

/// Thresholds of one figure. A level holds at or below its threshold. Each threshold is at most the
/// one before it, and the first is less than 1 - hysteresis.
struct PressureThresholds {
  double elevated = 0.0;   ///< share of the total, 0 .. 1
  double critical = 0.0;   ///< share of the total
  double exhausted = 0.0;  ///< share of the total
};

/// Options of a gauge.
struct PressureOptions {
  PressureThresholds blocks{0.20, 0.05, 0.0};  ///< share of available blocks in num_blocks; with
                                               ///< groups of pages
  PressureThresholds vram{0.05, 0.01, 0.001};  ///< share of free VRAM in total VRAM
  double hysteresis = 0.02;                    ///< share of the total, 0 .. 0.5
  /// Whether free VRAM counts. Set it to false when a pool takes all free VRAM on purpose.
  bool watch_vram = true;
};

/// The measured figures.
struct PressureFigures {
  std::int64_t available_blocks = 0;   ///< free + evictable, not promised; with groups pages
  std::int64_t num_blocks = 0;         ///< 0: no pool; with groups pages
  std::uint64_t free_vram_bytes = 0;   ///< from the driver
  std::uint64_t total_vram_bytes = 0;  ///< 0: unknown
};

/// A change of level.
struct PressureEvent {
  PressureLevel from = PressureLevel::normal;  ///< before
  PressureLevel to = PressureLevel::normal;    ///< now
  bool by_vram = false;     ///< whether VRAM, not blocks, decided the higher of `from` and `to`
  PressureFigures figures;  ///< measured now
};

/// Returns one line with key=value pairs: level, previous, cause, figures.
KVARENA_EXPORT std::string to_string(const PressureEvent& event);

/// Turns figures into pressure levels.
class KVARENA_EXPORT PressureGauge {
 public:
  /// Makes a gauge. Returns invalid_argument (hysteresis, blocks, vram), in thousandths, for a
  /// share that is out of range or out of order.
  static Result<PressureGauge> create(const PressureOptions& options = {});

  /// Takes the present figures. A figure whose total is 0 counts as normal. Returns the change of
  /// the level, or nullopt when it stays. O(1).
  std::optional<PressureEvent> observe(const PressureFigures& figures) noexcept;
  /// Returns the level of the last observation.
  PressureLevel level() const noexcept { return level_; }
  /// Returns whether VRAM, not blocks, decided the level; false when the level is normal.
  bool by_vram() const noexcept { return vram_level_ > blocks_level_; }
  /// Returns how often each level was entered since create, indexed by PressureLevel.
  const std::array<std::uint64_t, kNumPressureLevels>& entered() const noexcept { return entered_; }

 private:
  explicit PressureGauge(const PressureOptions& options) noexcept : options_(options) {}

  PressureOptions options_;
  PressureLevel blocks_level_ = PressureLevel::normal;
  PressureLevel vram_level_ = PressureLevel::normal;
  PressureLevel level_ = PressureLevel::normal;
  std::array<std::uint64_t, kNumPressureLevels> entered_{};
};

}  // namespace kvarena
