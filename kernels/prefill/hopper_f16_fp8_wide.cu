#include "kernels/prefill/hopper_rows.cuh"

namespace kvarena::kernels {
namespace {

constexpr auto kF16Fp8Wide = prefill::join(prefill::hopper_fp8_wide_dims<__half>());

}  // namespace

std::span<const HopperInstance> hopper_instances_f16_fp8_wide() noexcept { return kF16Fp8Wide; }

}  // namespace kvarena::kernels
