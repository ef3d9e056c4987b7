#include "kernels/prefill/hopper_rows.cuh"

namespace kvarena::kernels {
namespace {

constexpr auto kBf16Fp8Wide = prefill::join(prefill::hopper_fp8_wide_dims<__nv_bfloat16>());

}  // namespace

std::span<const HopperInstance> hopper_instances_bf16_fp8_wide() noexcept { return kBf16Fp8Wide; }

}  // namespace kvarena::kernels
