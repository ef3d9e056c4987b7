#pragma once

/// @file
/// What a test tells the fake libnvidia-ml to answer. One object in each build of the library,
/// found by dlsym("fake_nvml").

#include <cstdint>
#include <string>
#include <vector>

namespace kvarena::test {

/// The machine as the fake sees it: one GPU at 0000:1b:00.0. Errors are NVML's numbers; 0: none.
struct FakeNvml {
  struct Process {
    unsigned int pid;
    unsigned long long bytes;  ///< ~0: not available
    std::string name;          ///< empty: NVML_ERROR_NOT_FOUND
  };
  int init_error = 0;
  int memory_error = 0;
  int memory_v2_error = 0;
  int processes_error = 0;
  int grow_between_calls = 0;  ///< so many times the list is longer than the call before was told
  std::uint64_t total = 1000, reserved = 30, used = 100;
  std::vector<Process> processes;
  int num_open = 0;  ///< nvmlInit_v2 less nvmlShutdown
};

}  // namespace kvarena::test
