#pragma once

/// @file
/// `Result<T>`: a value, or the Status that says why there is none. Owns its value; as copyable and
/// movable as T. Accessing the value of a failed result is a programmer error and aborts.

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
  /// A success.
  Result(T value) : state_(std::in_place_index<1>, std::move(value)) {}  // NOLINT: implicit
  /// A failure. `status` must not be ok.
  Result(Status status) : state_(std::in_place_index<0>, status) {  // NOLINT: implicit
    if (status.is_ok()) std::abort();
  }

  /// True when there is a value.
  bool is_ok() const noexcept { return state_.index() == 1; }
  /// True when there is a value.
  explicit operator bool() const noexcept { return is_ok(); }
  /// Why there is no value; ok when there is one.
  Status status() const noexcept { return is_ok() ? Status{} : *std::get_if<0>(&state_); }

  /// The value; aborts when there is none.
  T& value() & { return *checked(); }
  /// The value; aborts when there is none.
  const T& value() const& { return *const_cast<Result*>(this)->checked(); }
  /// The value, moved out; aborts when there is none.
  T value() && { return std::move(*checked()); }
  /// The value; aborts when there is none.
  T& operator*() & { return *checked(); }
  /// The value; aborts when there is none.
  const T& operator*() const& { return value(); }
  /// The value; aborts when there is none.
  T* operator->() { return checked(); }
  /// The value; aborts when there is none.
  const T* operator->() const { return const_cast<Result*>(this)->checked(); }

 private:
  T* checked() {
    if (T* held = std::get_if<1>(&state_)) return held;
    std::abort();
  }
  std::variant<Status, T> state_;
};

}  // namespace kvarena
