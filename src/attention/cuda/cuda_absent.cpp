// Attention on CUDA in a build without CUDA: it says so.

#include "kvarena/attention/cuda_attention.hpp"

namespace kvarena::cuda {

bool takes_decode(const KvLayerView&, std::int32_t) noexcept { return false; }
Result<std::int64_t> workspace_bytes(const AttentionShape&) noexcept {
  return unsupported(Resource::device);
}
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
