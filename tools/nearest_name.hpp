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

/// Returns "did you mean Llama-3.1-8B, Llama-3.1-70B? ". The suggestions are the `names` with the
/// longest common begin with `wanted`, without regard to punctuation and case. The common begin has
/// at least four letters, or all letters of a shorter name. Without such a name, the nearest name
/// is suggested to a name of four or more letters. Empty when there is none.
std::string similar_names(std::string_view wanted, const std::vector<std::string_view>& names);
/// The same of the built-in GPUs, and all of them: "did you mean H100-SXM? one of A10, L4, ...".
std::string expected_gpus(std::string_view wanted);
/// Returns what is wrong with `wanted` as the name of a GPU; nothing where it is one. "H100", for
/// example, fits two GPUs.
Finding gpu_finding(std::string_view wanted);
/// The built-in name of a GPU that a driver calls "NVIDIA H100 80GB HBM3"; else `name` without its
/// vendor.
std::string gpu_name_of(std::string_view name);
/// The name of `names` that "meta-llama/Llama-3.1-8B-Instruct" is but for its organisation and the
/// words for a tuning, which change no shape ("Llama-3.1-8B"); where there is none, the
/// repository's name without them.
std::string model_name_of(std::string_view repository, const std::vector<std::string_view>& names);
/// Returns the built-in shape with this name or with the name that model_name_of makes from it, or
/// nullptr.
const ModelShape* find_shape(std::string_view name);
/// Returns what is wrong with `wanted` as the name of a shape; nothing where find_shape finds one.
Finding shape_finding(std::string_view wanted);

}  // namespace kvarena::tools
