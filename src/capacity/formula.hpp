#pragma once

/// @file
/// `Formula`: a number and the text of its arithmetic. Operators compute both together, so the text
/// always agrees with the value. A plain value.

#include "kvarena/capacity/memory_plan.hpp"

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace kvarena::capacity {

/// A whole number of 128 bits with its text. Sums and products of numbers >= 0 saturate.
class Formula {
 public:
  /// Makes a number with an optional noun: "24 layers", "1,024".
  Formula(std::int64_t number, std::string_view of = {});
  /// Makes a product with a given text, such as that of a ParameterPart.
  static Formula product(std::int64_t value, std::string text);

  /// Returns the number, limited to 63 bits and a sign.
  std::int64_t value() const noexcept;
  /// Returns the text: "24 layers x (64 + 64) elements".
  const std::string& text() const noexcept { return text_; }
  /// Returns the same formula with a noun: "(64 + 64) elements".
  Formula of(std::string_view what) const;

  friend Formula operator+(const Formula& a, const Formula& b);
  friend Formula operator-(const Formula& a, const Formula& b);
  friend Formula operator*(const Formula& a, const Formula& b);
  friend Formula rounded_up(const Formula& a, const Formula& b);
  friend Formula rounded_down(const Formula& a, const Formula& b);
  friend Formula least(std::initializer_list<Formula> of);
  friend Formula largest(std::initializer_list<Formula> of);

 private:
  enum class Kind : std::uint8_t { atom, product, sum };
  Formula(__int128 value, std::string text, Kind kind)
      : value_(value), text_(std::move(text)), kind_(kind) {}
  /// Returns the text for use inside an expression of `kind`, with parentheses when it needs them.
  std::string within(Kind kind) const;
  static Formula chosen(const Formula& one, const char* name, std::initializer_list<Formula> of);
  static Formula quotient(const Formula& a, const Formula& b, __int128 value, const char* rounding);

  __int128 value_;
  std::string text_;
  Kind kind_;
};

/// Return a / b, rounded. The text names the rounding when there is a remainder, and is that of `a`
/// when b is 1. Require b >= 1.
Formula rounded_up(const Formula& a, const Formula& b);
Formula rounded_down(const Formula& a, const Formula& b);
/// Return "min(a, b)" and "max(a, b)" of at least one formula.
Formula least(std::initializer_list<Formula> of);
Formula largest(std::initializer_list<Formula> of);

inline PlanLine line_of(std::string name, const Formula& formula, std::string unit = "B") {
  return {std::move(name), formula.text(), formula.value(), std::move(unit)};
}

}  // namespace kvarena::capacity
