#pragma once

/// @file
/// `PressureGauge`: how close a pool and its device are to running out, as one of four levels. A
/// level is entered at its threshold and left only when the figure has recovered past the threshold
/// by `hysteresis`, so that a figure that trembles makes no events. Pure arithmetic on injected
/// figures; no clock of its own, no thread. One thread at a time.

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

/// Thresholds of one figure; a level holds at or below its threshold. Each at most the one before,
/// and the first less than 1 - hysteresis.
struct PressureThresholds {
  double elevated = 0.0;   ///< share of the total, 0 .. 1
  double critical = 0.0;   ///< share of the total
  double exhausted = 0.0;  ///< share of the total
};

/// Options of a gauge.
struct PressureOptions {
  PressureThresholds blocks{0.20, 0.05, 0.0};  ///< of available blocks in num_blocks
  PressureThresholds vram{0.05, 0.01, 0.001};  ///< of free VRAM in total VRAM
  double hysteresis = 0.02;                    ///< share of the total, 0 .. 0.5
  /// A pool takes what it can at create: little free VRAM is then as intended.
  bool watch_vram = true;
};

/// What is measured.
struct PressureFigures {
  std::int64_t available_blocks = 0;   ///< free + evictable, not promised
  std::int64_t num_blocks = 0;         ///< 0: no pool
  std::uint64_t free_vram_bytes = 0;   ///< as the driver says
  std::uint64_t total_vram_bytes = 0;  ///< 0: unknown
};

/// A change of level.
struct PressureEvent {
  PressureLevel from = PressureLevel::normal;  ///< before
  PressureLevel to = PressureLevel::normal;    ///< now
  bool by_vram = false;     ///< whether VRAM, not blocks, decided the higher of `from` and `to`
  PressureFigures figures;  ///< measured now
};

/// One line with key=value pairs: level, previous, cause, figures.
KVARENA_EXPORT std::string to_string(const PressureEvent& event);

/// Turns figures into levels.
class KVARENA_EXPORT PressureGauge {
 public:
  /// Returns invalid_argument (hysteresis, blocks, vram), in thousandths, for a share out of range
  /// or order.
  static Result<PressureGauge> create(const PressureOptions& options = {});

  /// Takes the figures of now; a figure whose total is 0 counts as normal. Returns how the level
  /// changed, if it did. O(1).
  std::optional<PressureEvent> observe(const PressureFigures& figures) noexcept;
  /// The level of the last observation.
  PressureLevel level() const noexcept { return level_; }
  /// Whether VRAM, not blocks, decided it; false when it is normal.
  bool by_vram() const noexcept { return vram_level_ > blocks_level_; }
  /// How often each level was entered since create, indexed by PressureLevel.
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
