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

/// "did you mean Llama-3.1-8B, Llama-3.1-70B? ": those of `names` that begin most like `wanted`,
/// punctuation and case aside: at least with its first four letters, or all of a shorter one; or
/// the nearest one to a name of four or more. Empty when there is none.
std::string similar_names(std::string_view wanted, const std::vector<std::string_view>& names);
/// The same of the built-in GPUs, and all of them: "did you mean H100-SXM? one of A10, L4, ...".
std::string expected_gpus(std::string_view wanted);

}  // namespace kvarena::tools
