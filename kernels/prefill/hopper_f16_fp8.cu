#include "kernels/prefill/hopper_rows.cuh"

namespace kvarena::kernels {
namespace {

constexpr auto kF16Fp8 = prefill::join(prefill::hopper_fp8_dims<__half>());

}  // namespace

std::span<const HopperInstance> hopper_instances_f16_fp8() noexcept { return kF16Fp8; }

}  // namespace kvarena::kernels
