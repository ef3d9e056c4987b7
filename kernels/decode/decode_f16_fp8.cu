#include "kernels/decode/decode_launch.cuh"

namespace kvarena::kernels::decode {

#define DECODE_INSTANCE(dim, warps, per_sm, cluster)
#define DECODE_FP8_INSTANCE(dim, warps, per_sm, cluster, operands) \
  KVARENA_COMPILE_DECODE(__half, __nv_fp8_e4m3, dim, warps, per_sm, cluster, operands)
#include "kernels/decode/instances.def"

}  // namespace kvarena::kernels::decode
