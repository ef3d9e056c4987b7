#pragma once

/// @file
/// Checks of numbers and enumerators that come from outside. Pure functions. An enumerator may have
/// any value of its type, because bindings cast integers to enums.

#include "kvarena/base/status.hpp"

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace kvarena {

/// Returns ok when `value` lies within `smallest`..`largest`, else invalid_argument with the
/// option.
constexpr Status check_option(Option option, std::int64_t value, std::int64_t smallest,
                              std::int64_t largest) noexcept {
  if (value >= smallest && value <= largest) return {};
  return invalid_option(option, value, smallest, largest);
}

/// Returns ok for an enumerator up to `last`, else invalid_argument with the option.
template <class Enum>
requires std::is_enum_v<Enum>
constexpr Status check_enum(Option option, Enum value, Enum last) noexcept {
  return check_option(option, static_cast<std::int64_t>(value), 0, static_cast<std::int64_t>(last));
}

/// Does the same for an argument.
template <class Enum>
requires std::is_enum_v<Enum>
constexpr Status check_enum(Resource argument, Enum value, Enum last) noexcept {
  const auto number = static_cast<std::int64_t>(value);
  const auto largest = static_cast<std::int64_t>(last);
  return number <= largest ? Status{} : invalid_argument(argument, number, 0, largest);
}

/// An option with its value and range.
struct OptionRange {
  Option option;
  std::int64_t value, smallest, largest;
};

/// Returns the error of the first option that is outside its range, or ok.
template <std::size_t kCount>
constexpr Status check_each(const OptionRange (&ranges)[kCount]) noexcept {
  for (const OptionRange& r : ranges) {
    if (Status s = check_option(r.option, r.value, r.smallest, r.largest); !s) return s;
  }
  return {};
}

}  // namespace kvarena
