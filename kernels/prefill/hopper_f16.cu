#include "kernels/prefill/hopper_rows.cuh"

namespace kvarena::kernels {
namespace {

constexpr auto kF16 = prefill::join(prefill::hopper_dims<__half>());

}  // namespace

std::span<const HopperInstance> hopper_instances_f16() noexcept { return kF16; }

}  // namespace kvarena::kernels
