#include "kernels/columns/columns_launch.cuh"

namespace kvarena::kernels::columns {

template cudaError_t launch_instance<__nv_bfloat16, 128, false>(const Launch&, bool, cudaStream_t);
template cudaError_t launch_instance<__nv_bfloat16, 128, true>(const Launch&, bool, cudaStream_t);
template cudaError_t launch_instance<__half, 128, false>(const Launch&, bool, cudaStream_t);
template cudaError_t launch_instance<__half, 128, true>(const Launch&, bool, cudaStream_t);
template Status load_instance<__nv_bfloat16, 128, false>() noexcept;
template Status load_instance<__nv_bfloat16, 128, true>() noexcept;
template Status load_instance<__half, 128, false>() noexcept;
template Status load_instance<__half, 128, true>() noexcept;

}  // namespace kvarena::kernels::columns
