#include "capacity/formula.hpp"

#include "base/grouped.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace kvarena::capacity {
namespace {

constexpr __int128 kMost = static_cast<__int128>(~static_cast<unsigned __int128>(0) >> 1);

}  // namespace

Formula::Formula(std::int64_t number, std::string_view of)
    : Formula(number, of.empty() ? grouped(number) : grouped(number) + ' ' + std::string(of),
              Kind::atom) {}

Formula Formula::product(std::int64_t value, std::string text) {
  return {value, std::move(text), Kind::product};
}

std::int64_t Formula::value() const noexcept {
  using Limits = std::numeric_limits<std::int64_t>;
  return static_cast<std::int64_t>(std::clamp<__int128>(value_, -Limits::max(), Limits::max()));
}

std::string Formula::within(Kind kind) const { return kind_ > kind ? '(' + text_ + ')' : text_; }

Formula Formula::of(std::string_view what) const {
  return {value_, within(Kind::atom) + ' ' + std::string(what), Kind::atom};
}

Formula operator+(const Formula& a, const Formula& b) {
  using Kind = Formula::Kind;
  __int128 sum = 0;
  if (__builtin_add_overflow(a.value_, b.value_, &sum)) sum = kMost;
  return {sum, a.text_ + " + " + b.text_, Kind::sum};
}

Formula operator-(const Formula& a, const Formula& b) {
  using Kind = Formula::Kind;
  return {a.value_ - b.value_, a.text_ + " - " + b.within(Kind::product), Kind::sum};
}

Formula operator*(const Formula& a, const Formula& b) {
  using Kind = Formula::Kind;
  __int128 product = 0;
  if (__builtin_mul_overflow(a.value_, b.value_, &product)) product = kMost;
  return {product, a.within(Kind::product) + " x " + b.within(Kind::product), Kind::product};
}

Formula Formula::quotient(const Formula& a, const Formula& b, __int128 value,
                          const char* rounding) {
  if (b.value_ == 1) return a;
  std::string text = a.within(Kind::product) + " / " + b.within(Kind::atom);
  if (value * b.value_ == a.value_) return {value, std::move(text), Kind::product};
  return {value, fmt::format("{}({})", rounding, text), Kind::atom};
}

Formula rounded_up(const Formula& a, const Formula& b) {
  const __int128 whole = a.value_ / b.value_;
  return Formula::quotient(a, b, whole + (whole * b.value_ < a.value_ ? 1 : 0), "ceil");
}

Formula rounded_down(const Formula& a, const Formula& b) {
  const __int128 whole = a.value_ / b.value_;
  return Formula::quotient(a, b, whole - (whole * b.value_ > a.value_ ? 1 : 0), "floor");
}

Formula Formula::chosen(const Formula& one, const char* name, std::initializer_list<Formula> of) {
  std::string text;
  for (const Formula& each : of) text += text.empty() ? each.text_ : ", " + each.text_;
  return {one.value_, fmt::format("{}({})", name, text), Kind::atom};
}

Formula least(std::initializer_list<Formula> of) {
  return Formula::chosen(*std::ranges::min_element(of, {}, &Formula::value_), "min", of);
}

Formula largest(std::initializer_list<Formula> of) {
  return Formula::chosen(*std::ranges::max_element(of, {}, &Formula::value_), "max", of);
}

}  // namespace kvarena::capacity
