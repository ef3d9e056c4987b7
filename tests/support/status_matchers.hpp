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

/// Success when `outcome` failed with that code about that resource.
template <class Outcome>
::testing::AssertionResult fails_with(const Outcome& outcome, StatusCode code, Resource resource) {
  const Status status = status_of(outcome);
  if (status.code == code && status.resource == resource) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "got " << name_of(status.code) << " (" << name_of(status.resource)
         << "): " << describe(status) << "; expected " << name_of(code) << " (" << name_of(resource)
         << ")";
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
