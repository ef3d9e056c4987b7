#include "kvarena/health/pressure.hpp"

#include <spdlog/fmt/fmt.h>

#include <algorithm>

namespace kvarena {
namespace {

/// The share at or below which `level` holds; normal holds always.
double threshold_of(PressureLevel level, const PressureThresholds& thresholds) noexcept {
  switch (level) {
    case PressureLevel::elevated: return thresholds.elevated;
    case PressureLevel::critical: return thresholds.critical;
    case PressureLevel::exhausted: return thresholds.exhausted;
    case PressureLevel::normal: break;
  }
  return 1.0;
}

PressureLevel one_less(PressureLevel level) noexcept {
  return static_cast<PressureLevel>(static_cast<int>(level) - 1);
}

/// The level of `share` after `current`. A level above `current` is entered at its threshold;
/// `current` and those below it hold up to `hysteresis` past theirs.
PressureLevel level_after(PressureLevel current, double share, const PressureThresholds& thresholds,
                          double hysteresis) noexcept {
  PressureLevel level = PressureLevel::exhausted;
  while (level != PressureLevel::normal) {
    const double slack = level <= current ? hysteresis : 0.0;
    if (share <= threshold_of(level, thresholds) + slack) break;
    level = one_less(level);
  }
  return level;
}

/// In thousandths, which is how a Status names a share.
Status out_of_range(Option option, double share, double smallest, double largest) noexcept {
  const auto thousandths = [](double value) {
    return static_cast<std::int64_t>(std::clamp(value, -1e6, 1e6) * 1000.0);
  };
  // Not a number compares false with everything, and is given as 0.
  return invalid_option(option, share == share ? thousandths(share) : 0, thousandths(smallest),
                        thousandths(largest));
}

Status check_range(Option option, double share, double smallest, double largest) noexcept {
  const bool fits = share >= smallest && share <= largest;
  return fits ? Status{} : out_of_range(option, share, smallest, largest);
}

Status check_thresholds(Option option, const PressureThresholds& thresholds,
                        double hysteresis) noexcept {
  // Past this a level that has been entered could never be left.
  const double largest = 1.0 - hysteresis;
  if (!(thresholds.elevated >= 0.0 && thresholds.elevated < largest)) {
    return out_of_range(option, thresholds.elevated, 0.0, largest);
  }
  if (Status status = check_range(option, thresholds.critical, 0.0, thresholds.elevated); !status) {
    return status;
  }
  return check_range(option, thresholds.exhausted, 0.0, thresholds.critical);
}

}  // namespace

std::string_view name_of(PressureLevel level) noexcept {
  switch (level) {
    case PressureLevel::normal: return "normal";
    case PressureLevel::elevated: return "elevated";
    case PressureLevel::critical: return "critical";
    case PressureLevel::exhausted: break;
  }
  return "exhausted";
}

std::string to_string(const PressureEvent& event) {
  const PressureFigures& figures = event.figures;
  return fmt::format(
      "level={} previous={} cause={} available_blocks={} num_blocks={} free_vram_bytes={} "
      "total_vram_bytes={}",
      name_of(event.to), name_of(event.from), event.by_vram ? "vram" : "blocks",
      figures.available_blocks, figures.num_blocks, figures.free_vram_bytes,
      figures.total_vram_bytes);
}

Result<PressureGauge> PressureGauge::create(const PressureOptions& options) {
  if (Status status = check_range(Option::hysteresis, options.hysteresis, 0.0, 0.5); !status)
    return status;
  const double slack = options.hysteresis;
  if (Status s = check_thresholds(Option::blocks, options.blocks, slack); !s) return s;
  if (Status s = check_thresholds(Option::vram, options.vram, slack); !s) return s;
  return PressureGauge(options);
}

std::optional<PressureEvent> PressureGauge::observe(const PressureFigures& figures) noexcept {
  const bool was_by_vram = by_vram();
  const PressureLevel before = level_;
  const auto share_of = [](auto part, auto whole) {
    return static_cast<double>(part) / static_cast<double>(whole);
  };
  blocks_level_ =
      figures.num_blocks <= 0
          ? PressureLevel::normal
          : level_after(blocks_level_, share_of(figures.available_blocks, figures.num_blocks),
                        options_.blocks, options_.hysteresis);
  vram_level_ =
      figures.total_vram_bytes == 0 || !options_.watch_vram
          ? PressureLevel::normal
          : level_after(vram_level_, share_of(figures.free_vram_bytes, figures.total_vram_bytes),
                        options_.vram, options_.hysteresis);
  level_ = std::max(blocks_level_, vram_level_);
  if (level_ == before) return std::nullopt;
  entered_[static_cast<std::size_t>(level_)] += 1;
  return PressureEvent{before, level_, level_ > before ? by_vram() : was_by_vram, figures};
}

}  // namespace kvarena
