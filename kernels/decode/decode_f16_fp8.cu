#include "kernels/decode/decode_launch.cuh"

namespace kvarena::kernels::decode {

#define DECODE_INSTANCE(dim, warps, per_sm)
#define DECODE_FP8_INSTANCE(dim, warps, per_sm, operands)                                    \
  template cudaError_t launch_instance<__half, __nv_fp8_e4m3, dim, warps, per_sm, operands>( \
      const DecodeParams&, const DecodeWorkspace&, int, bool, cudaStream_t);                 \
  template Status load_instance<__half, __nv_fp8_e4m3, dim, warps, per_sm, operands>() noexcept;
#include "kernels/decode/instances.def"

}  // namespace kvarena::kernels::decode
