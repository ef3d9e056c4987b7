// What step_memory.hpp promises of GPUs in a build without CUDA.

#include "verify/step_memory.hpp"

namespace kvarena::verify {

Result<std::unique_ptr<StepMemory>> create_cuda_step_memory(Device&, KvCache&,
                                                            const StepMemoryOptions&) {
  return unsupported(Resource::device);
}

std::int64_t cuda_step_memory_bytes(const StepMemoryOptions&) noexcept { return 0; }

}  // namespace kvarena::verify
