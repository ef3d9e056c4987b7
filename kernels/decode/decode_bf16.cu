#include "kernels/decode/decode_launch.cuh"

namespace kvarena::kernels::decode {

#define DECODE_FP8_INSTANCE(dim, warps, per_sm, operands)
#define DECODE_INSTANCE(dim, warps, per_sm)                                                  \
  template cudaError_t launch_instance<__nv_bfloat16, __nv_bfloat16, dim, warps, per_sm, 1>( \
      const DecodeParams&, const DecodeWorkspace&, int, bool, cudaStream_t);                 \
  template Status load_instance<__nv_bfloat16, __nv_bfloat16, dim, warps, per_sm, 1>() noexcept;
#include "kernels/decode/instances.def"

}  // namespace kvarena::kernels::decode
