// Attention on CUDA in a build without CUDA. Every call returns unsupported. The pure functions are
// in cuda_shapes.cpp.

#include "kvarena/attention/cuda_attention.hpp"

namespace kvarena::cuda {

Status load_kernels(const KvLayerView&) noexcept { return unsupported(Resource::device); }
Status launch_reset(const AttentionStep&, void*) noexcept { return unsupported(Resource::device); }
Status launch_schedule(const AttentionStep&, const AttentionArgs&, void*) noexcept {
  return unsupported(Resource::device);
}
Status validate(const AttentionStep&, const AttentionArgs&) noexcept {
  return unsupported(Resource::device);
}
Status launch_attention(const AttentionStep&, const AttentionArgs&, void*) noexcept {
  return unsupported(Resource::device);
}
Status check_tables(const AttentionArgs&, void*, void*) noexcept {
  return unsupported(Resource::device);
}

Status launch_append(const AppendArgs&, bool, void*) noexcept {
  return unsupported(Resource::device);
}

}  // namespace kvarena::cuda
