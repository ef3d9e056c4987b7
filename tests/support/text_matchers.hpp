#pragma once

/// @file
/// An assertion on texts that shows the whole text when it fails.

#include <gtest/gtest.h>

#include <string_view>

namespace kvarena::test {

/// Success when `part` occurs in `text`.
inline ::testing::AssertionResult has(std::string_view text, std::string_view part) {
  if (text.find(part) != text.npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "\"" << part << "\" is not in: " << text;
}

}  // namespace kvarena::test

#define EXPECT_HAS(text, part) EXPECT_TRUE(::kvarena::test::has(text, part))
