#pragma once

/// @file
/// What NVML tells of a GPU, for people and for programs. Pure functions. Names of processes are
/// their owners' choice: lines have no control characters.

#include "kvarena/device/memory_drift.hpp"

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <vector>

namespace kvarena::tools {

/// A line for each process.
std::vector<std::string> lines_of_processes(const NvmlMemory& nvml);

/// An array of objects: pid, name, bytes (null where they are not told).
nlohmann::ordered_json json_of_processes(const NvmlMemory& nvml);

}  // namespace kvarena::tools
