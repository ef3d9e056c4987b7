#include "kernels/columns/columns_launch.cuh"

namespace kvarena::kernels::columns {

template cudaError_t launch_instance<__nv_bfloat16, 64, false>(const Launch&, bool, cudaStream_t);
template cudaError_t launch_instance<__nv_bfloat16, 64, true>(const Launch&, bool, cudaStream_t);
template cudaError_t launch_instance<__half, 64, false>(const Launch&, bool, cudaStream_t);
template cudaError_t launch_instance<__half, 64, true>(const Launch&, bool, cudaStream_t);
template Status load_instance<__nv_bfloat16, 64, false>() noexcept;
template Status load_instance<__nv_bfloat16, 64, true>() noexcept;
template Status load_instance<__half, 64, false>() noexcept;
template Status load_instance<__half, 64, true>() noexcept;

}  // namespace kvarena::kernels::columns
