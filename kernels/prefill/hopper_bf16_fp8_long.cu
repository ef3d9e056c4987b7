#include "kernels/prefill/hopper_rows.cuh"

namespace kvarena::kernels {
namespace {

constexpr auto kBf16Fp8Long = prefill::join(prefill::hopper_fp8_long_dims());

}  // namespace

std::span<const HopperInstance> hopper_instances_bf16_fp8_long() noexcept { return kBf16Fp8Long; }

}  // namespace kvarena::kernels
