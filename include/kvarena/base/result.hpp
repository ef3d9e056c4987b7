#pragma once

/// @file
/// `Result<T>`: a value, or the Status that says why there is no value. A Result owns its value and
/// is as copyable and movable as T. To access the value of a failed result is a programmer error:
/// the log gets a line with the Status, and the process aborts.

#include "kvarena/base/status.hpp"

#include <cstdlib>
#include <type_traits>
#include <utility>
#include <variant>

namespace kvarena {

/// A `T` or a failed Status.
template <class T>
class [[nodiscard]] Result {
  static_assert(!std::is_same_v<std::remove_cv_t<T>, Status>, "return Status itself");

 public:
  /// Makes a success.
  Result(T value) : state_(std::in_place_index<1>, std::move(value)) {}  // NOLINT: implicit
  /// Makes a failure. Aborts when `status` is ok.
  Result(Status status) : state_(std::in_place_index<0>, status) {  // NOLINT: implicit
    if (status.is_ok()) std::abort();
  }

  /// Returns true when there is a value.
  bool is_ok() const noexcept { return state_.index() == 1; }
  /// Returns true when there is a value.
  explicit operator bool() const noexcept { return is_ok(); }
  /// Returns why there is no value, or ok when there is one.
  Status status() const noexcept { return is_ok() ? Status{} : *std::get_if<0>(&state_); }

  /// Returns the value. Aborts when there is none.
  T& value() & { return *checked(); }
  /// Returns the value. Aborts when there is none.
  const T& value() const& { return *const_cast<Result*>(this)->checked(); }
  /// Moves the value out. Aborts when there is none.
  T value() && { return std::move(*checked()); }
  /// Returns the value. Aborts when there is none.
  T& operator*() & { return *checked(); }
  /// Returns the value. Aborts when there is none.
  const T& operator*() const& { return value(); }
  /// Returns the value. Aborts when there is none.
  T* operator->() { return checked(); }
  /// Returns the value. Aborts when there is none.
  const T* operator->() const { return const_cast<Result*>(this)->checked(); }

 private:
  T* checked() {
    if (T* held = std::get_if<1>(&state_)) return held;
    report_missing_value(*std::get_if<0>(&state_));
    std::abort();
  }
  std::variant<Status, T> state_;
};

}  // namespace kvarena
