// The CUDA backend in a build without CUDA.

#include "cache/cuda_backend.hpp"

namespace kvarena {

Status load_cuda_backend(Device&, const UniformLayoutOptions&) noexcept {
  return unsupported(Resource::device);
}
Status load_cuda_backend(Device&, std::span<const LayerGroup>) noexcept {
  return unsupported(Resource::device);
}

Result<std::unique_ptr<Backend>> create_cuda_backend(Device&, const Arena&, StreamId,
                                                     const BackendOptions&) {
  return unsupported(Resource::device);
}

Result<std::unique_ptr<Backend>> create_cuda_group_backend(Device&, const Arena&, StreamId,
                                                           const BackendOptions&) {
  return unsupported(Resource::device);
}

}  // namespace kvarena
