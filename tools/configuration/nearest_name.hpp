#pragma once

/// @file
/// What somebody may have meant by a name that does not exist. Pure.

#include <string>
#include <string_view>
#include <vector>

namespace kvarena::tools {

/// The name of `names` with the fewest letters to insert, remove or replace; the first of equals.
/// Empty when none is near: more than a third of `wanted`'s letters, and more than two. O(letters
/// of wanted x letters of all names).
std::string nearest_name(std::string_view wanted, const std::vector<std::string>& names);

}  // namespace kvarena::tools
