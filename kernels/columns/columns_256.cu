#include "kernels/columns/columns_launch.cuh"

namespace kvarena::kernels::columns {

template cudaError_t launch_instance<__nv_bfloat16, 256, ColumnsKind::narrow>(const Launch&, bool,
                                                                              cudaStream_t);
template cudaError_t launch_instance<__nv_bfloat16, 256, ColumnsKind::wide>(const Launch&, bool,
                                                                            cudaStream_t);
template cudaError_t launch_instance<__half, 256, ColumnsKind::narrow>(const Launch&, bool,
                                                                       cudaStream_t);
template cudaError_t launch_instance<__half, 256, ColumnsKind::wide>(const Launch&, bool,
                                                                     cudaStream_t);
template Status load_instance<__nv_bfloat16, 256, ColumnsKind::narrow>() noexcept;
template Status load_instance<__nv_bfloat16, 256, ColumnsKind::wide>() noexcept;
template Status load_instance<__half, 256, ColumnsKind::narrow>() noexcept;
template Status load_instance<__half, 256, ColumnsKind::wide>() noexcept;

}  // namespace kvarena::kernels::columns
