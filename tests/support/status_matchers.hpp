#pragma once

/// @file
/// Assertions on Status and Result that print `describe(status)`.

#include "kvarena/base/result.hpp"
#include "kvarena/base/status.hpp"

#include <gtest/gtest.h>

namespace kvarena {

/// How GoogleTest prints a Status.
inline void PrintTo(const Status& status, std::ostream* out) {
  *out << name_of(status.code) << " (" << describe(status) << ")";
}

namespace test {

/// The status of a Status.
inline Status status_of(const Status& status) { return status; }
/// The status of a Result.
template <class T>
Status status_of(const Result<T>& result) {
  return result.status();
}

/// Success when `outcome` is ok.
template <class Outcome>
::testing::AssertionResult is_ok(const Outcome& outcome) {
  const Status status = status_of(outcome);
  if (status.is_ok()) return ::testing::AssertionSuccess() << "ok";
  return ::testing::AssertionFailure() << name_of(status.code) << ": " << describe(status);
}

/// What a Status is to be about: a resource, or an option.
struct Blame {
  constexpr Blame(Resource of_resource) noexcept : resource(of_resource) {}
  constexpr Blame(Option of_option) noexcept : option(of_option) {}
  std::string_view name() const noexcept {
    return option == Option::none ? name_of(resource) : name_of(option);
  }
  bool is_on(const Status& status) const noexcept {
    return option == Option::none ? status.resource == resource : status.option == option;
  }

  Resource resource = Resource::none;
  Option option = Option::none;
};

/// Success when `outcome` failed with that code about that resource or option.
template <class Outcome>
::testing::AssertionResult fails_with(const Outcome& outcome, StatusCode code, Blame blame) {
  const Status status = status_of(outcome);
  if (status.code == code && blame.is_on(status)) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "got " << name_of(status.code) << " (" << name_of(status.resource) << ", "
         << name_of(status.option) << "): " << describe(status) << "; expected " << name_of(code)
         << " (" << blame.name() << ")";
}

}  // namespace test
}  // namespace kvarena

/// The outcome is ok, or the test goes on failing.
#define EXPECT_OK(outcome) EXPECT_TRUE(::kvarena::test::is_ok(outcome))
/// The outcome is ok, or the test ends.
#define ASSERT_OK(outcome) ASSERT_TRUE(::kvarena::test::is_ok(outcome))
/// The outcome failed with this code about this resource.
#define EXPECT_FAILS(outcome, code, resource) \
  EXPECT_TRUE(::kvarena::test::fails_with(outcome, StatusCode::code, Resource::resource))
/// The outcome failed with this code about this option.
#define EXPECT_REFUSES(outcome, code, name) \
  EXPECT_TRUE(::kvarena::test::fails_with(outcome, StatusCode::code, Option::name))
