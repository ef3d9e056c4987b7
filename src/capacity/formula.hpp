#pragma once

/// @file
/// `Formula`: a number and the arithmetic that it came from. Operators make both at once, so that a
/// text cannot tell another number than the value. A plain value.

#include "kvarena/capacity/memory_plan.hpp"

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace kvarena::capacity {

/// Whole numbers of 128 bits; sums and products of what is >= 0 saturate.
class Formula {
 public:
  /// A number and what it is of: "24 layers", "1,024".
  Formula(std::int64_t number, std::string_view of = {});
  /// A product whose text somebody else made, of a ParameterPart.
  static Formula product(std::int64_t value, std::string text);

  /// The number, within 63 bits and a sign.
  std::int64_t value() const noexcept;
  /// How it comes about: "24 layers x (64 + 64) elements".
  const std::string& text() const noexcept { return text_; }
  /// The same, with what it is of: "(64 + 64) elements".
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
  /// The text as part of an expression that binds as strongly as `kind`.
  std::string within(Kind kind) const;
  static Formula chosen(const Formula& one, const char* name, std::initializer_list<Formula> of);
  static Formula quotient(const Formula& a, const Formula& b, __int128 value, const char* rounding);

  __int128 value_;
  std::string text_;
  Kind kind_;
};

/// a / b, rounded and said so where it does not come out even; `a` where b is 1. Requires b >= 1.
Formula rounded_up(const Formula& a, const Formula& b);
Formula rounded_down(const Formula& a, const Formula& b);
/// "min(a, b)" and "max(a, b)" of at least one.
Formula least(std::initializer_list<Formula> of);
Formula largest(std::initializer_list<Formula> of);

/// The line of a plan.
inline PlanLine line_of(std::string name, const Formula& formula, std::string unit = "B") {
  return {std::move(name), formula.text(), formula.value(), std::move(unit)};
}

}  // namespace kvarena::capacity
