#include "kernels/prefill/hopper_rows.cuh"

namespace kvarena::kernels {
namespace {

using prefill::hopper_variants;

// Other head_dims do not fit: 256 needs more registers than four warpgroups have at their start,
// and the converting warps read pieces of 64 bytes.
constexpr auto kInstances =
    prefill::join(std::array{hopper_variants<__nv_bfloat16, __nv_fp8_e4m3, 64, 144>(),
                             hopper_variants<__nv_bfloat16, __nv_fp8_e4m3, 128, 112>(),
                             hopper_variants<__half, __nv_fp8_e4m3, 64, 144>(),
                             hopper_variants<__half, __nv_fp8_e4m3, 128, 112>()});

}  // namespace

std::span<const HopperInstance> hopper_instances_fp8() noexcept { return kInstances; }

}  // namespace kvarena::kernels
