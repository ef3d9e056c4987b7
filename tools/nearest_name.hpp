#pragma once

/// @file
/// Suggestions for a name that does not exist. Pure functions.

#include "base/finding.hpp"
#include "kvarena/base/shapes.hpp"

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
/// What is wrong with `wanted`, which is no GPU's name: "H100" is those of two.
Finding gpu_finding(std::string_view wanted);
/// The built-in name of a GPU that a driver calls "NVIDIA H100 80GB HBM3"; else `name` without its
/// vendor.
std::string gpu_name_of(std::string_view name);
/// The name of `names` that "meta-llama/Llama-3.1-8B-Instruct" is but for its organisation and the
/// words for a tuning, which change no shape ("Llama-3.1-8B"); where there is none, the
/// repository's name without them.
std::string model_name_of(std::string_view repository, const std::vector<std::string_view>& names);
/// The built-in shape of that name, or of what model_name_of makes of it, or null.
const ModelShape* find_shape(std::string_view name);

}  // namespace kvarena::tools
