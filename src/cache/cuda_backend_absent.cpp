// The CUDA backend in a build without CUDA.

#include "cache/cuda_backend.hpp"

namespace kvarena {

Result<std::unique_ptr<Backend>> create_cuda_backend(Device&, const Arena&, StreamId,
                                                     const BackendOptions&) {
  return unsupported(Resource::device);
}

}  // namespace kvarena
