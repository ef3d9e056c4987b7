#include "kernels/prefill/hopper_rows.cuh"

namespace kvarena::kernels {
namespace {

using prefill::hopper_row;

constexpr HopperInstance kInstances[] = {
#define KVARENA_HOPPER(D, N)                               \
  hopper_row<__half, DType::f16, D, N, false, false>(),    \
      hopper_row<__half, DType::f16, D, N, true, false>(), \
      hopper_row<__half, DType::f16, D, N, true, true>(),
#include "kernels/prefill/hopper_instances.def"
#undef KVARENA_HOPPER
};

}  // namespace

std::span<const HopperInstance> hopper_instances_f16() noexcept { return kInstances; }

}  // namespace kvarena::kernels
