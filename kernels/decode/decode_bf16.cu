#include "kernels/decode/decode_launch.cuh"

namespace kvarena::kernels::decode {

#define DECODE_FP8_INSTANCE(dim, warps, per_sm, cluster, operands)
#define DECODE_INSTANCE(dim, warps, per_sm, cluster) \
  KVARENA_COMPILE_DECODE(__nv_bfloat16, __nv_bfloat16, dim, warps, per_sm, cluster, 1)
#include "kernels/decode/instances.def"

}  // namespace kvarena::kernels::decode
