#pragma once

/// @file
/// What reaches the CUDA runtime. The program is linked with -Wl,--wrap for every call that takes
/// or gives back memory, and for the look-up of the driver's functions; the wrappers note the call
/// and pass it on. Thread-safe.

#include <cstdint>
#include <string>
#include <vector>

namespace kvarena::test {

/// One call that the runtime answered with success.
struct CudaCall {
  enum class Kind : std::uint8_t { allocate, free };
  Kind kind;
  const char* function;     ///< "cudaMalloc"
  void* pointer;            ///< given out or given back
  std::uint64_t bytes = 0;  ///< 0 for a free
};

/// Everything seen since the last call of this; empties the list.
std::vector<CudaCall> take_cuda_calls();
/// The driver functions that anybody in the process looked up so far.
std::vector<std::string> driver_functions_looked_up();
/// From now on cudaMalloc gives managed memory instead, as a broken driver layer might.
void lie_about_device_memory(bool lie);

}  // namespace kvarena::test
