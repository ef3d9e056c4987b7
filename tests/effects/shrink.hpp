#pragma once

/// @file
/// Makes a failing program shorter (delta debugging): takes chunks of operations out, then single
/// ones, then makes numbers smaller, as long as it still fails.

#include "effects/program.hpp"

#include <cstddef>
#include <functional>

namespace kvarena::test {

/// Whether a program fails in the way that is looked for.
using Fails = std::function<bool(const Program&)>;

/// The shortest program found that fails; `program` itself must. No single operation of the result
/// can be left out, no two of a short one, and no number be made 0, one less or half, unless
/// `max_runs` calls of `fails` did not suffice. Deterministic when `fails` is.
Program shrink(Program program, const Fails& fails, std::size_t max_runs = 20'000);

}  // namespace kvarena::test
