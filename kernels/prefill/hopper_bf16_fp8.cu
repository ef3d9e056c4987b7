#include "kernels/prefill/hopper_rows.cuh"

namespace kvarena::kernels {
namespace {

constexpr auto kBf16Fp8 = prefill::join(prefill::hopper_fp8_dims<__nv_bfloat16>());

}  // namespace

std::span<const HopperInstance> hopper_instances_bf16_fp8() noexcept { return kBf16Fp8; }

}  // namespace kvarena::kernels
