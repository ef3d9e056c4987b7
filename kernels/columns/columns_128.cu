#include "kernels/columns/columns_launch.cuh"

namespace kvarena::kernels::columns {

template cudaError_t launch_instance<__nv_bfloat16, 128, false>(const Launch&, bool, cudaStream_t);
template cudaError_t launch_instance<__nv_bfloat16, 128, true>(const Launch&, bool, cudaStream_t);
template cudaError_t launch_instance<__half, 128, false>(const Launch&, bool, cudaStream_t);
template cudaError_t launch_instance<__half, 128, true>(const Launch&, bool, cudaStream_t);

}  // namespace kvarena::kernels::columns
