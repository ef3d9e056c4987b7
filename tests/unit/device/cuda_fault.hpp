#pragma once

/// @file
/// A kernel that breaks the process's use of the GPU on purpose.

#include <cstdint>

namespace kvarena::test {

/// Queues a kernel that writes where nothing is. Returns the launch's cudaError_t.
std::int32_t launch_illegal_write(void* native_stream);

}  // namespace kvarena::test
