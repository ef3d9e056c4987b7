#pragma once

/// @file
/// A machine whose memory is shared with a neighbour alone, so that the scenario of neighbours does
/// not depend on who else runs.

#include "small_suite.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

namespace kvarena::test {

inline const std::vector<std::string> kNeighbourProgram = {KVARENA_NEIGHBOUR_PROGRAM};

/// Where Linux lists the children of this process's first thread.
inline std::string list_of_children() {
  const std::string self = std::to_string(::getpid());
  return "/proc/" + self + "/task/" + self + "/children";
}

/// A machine that has so much, less what the resident memory of this process's children takes.
class SharedMachine final : public HostMemorySource {
 public:
  explicit SharedMachine(std::uint64_t bytes) : bytes_(bytes) {}
  void* allocate(std::uint64_t bytes, std::uint64_t alignment_bytes,
                 std::int32_t* native_error) noexcept override {
    return system_memory_source().allocate(bytes, alignment_bytes, native_error);
  }
  void free(void* pointer, std::uint64_t bytes) noexcept override {
    system_memory_source().free(pointer, bytes);
  }
  std::uint64_t available_bytes() const noexcept override {
    std::ifstream children(list_of_children());
    std::uint64_t taken = 0;
    for (std::string pid; children >> pid;) {
      std::ifstream statm("/proc/" + pid + "/statm");
      std::uint64_t total = 0;
      std::uint64_t resident = 0;
      statm >> total >> resident;
      taken += resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    }
    return bytes_ - std::min(bytes_, taken);
  }

 private:
  const std::uint64_t bytes_;
};

/// Everything scaled down, with a neighbour on `machine`.
inline scenarios::SuiteOptions neighbour_options(Device& device, HostMemorySource& machine) {
  scenarios::SuiteOptions options = small_suite(device);
  options.neighbour_command = kNeighbourProgram;
  options.machine = &machine;
  return options;
}

}  // namespace kvarena::test
