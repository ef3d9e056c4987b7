#pragma once

/// @file
/// Properties by rapidcheck, repeatable: seeds and lengths from KVARENA_SEED and
/// KVARENA_TEST_ROUNDS, unless RC_PARAMS says otherwise.

#include "support/environment.hpp"
#include "support/process_memory.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace kvarena::test {

/// A fixture whose properties hold for `kCases` cases a round, a quarter of them under a sanitizer.
/// rapidcheck reads its parameters once, from the environment.
template <int kCases>
class SeededProperties : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const std::string parameters =
        "seed=" + std::to_string(number_from_environment("KVARENA_SEED", 1)) + " max_success=" +
        std::to_string((kSanitized ? kCases / 4 : kCases) *
                       number_from_environment("KVARENA_TEST_ROUNDS", 1));
    ::setenv("RC_PARAMS", parameters.c_str(), 0);
  }
};

}  // namespace kvarena::test
