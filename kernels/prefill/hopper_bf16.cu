#include "kernels/prefill/hopper_rows.cuh"

namespace kvarena::kernels {
namespace {

constexpr auto kBf16 = prefill::join(prefill::hopper_dims<__nv_bfloat16>());

}  // namespace

std::span<const HopperInstance> hopper_instances_bf16() noexcept { return kBf16; }

}  // namespace kvarena::kernels
