#include "kernels/columns/columns_launch.cuh"

namespace kvarena::kernels::columns {

template cudaError_t launch_instance<__nv_bfloat16, 128, ColumnsKind::narrow>(const Launch&, bool,
                                                                              cudaStream_t);
template cudaError_t launch_instance<__nv_bfloat16, 128, ColumnsKind::shared>(const Launch&, bool,
                                                                              cudaStream_t);
template cudaError_t launch_instance<__nv_bfloat16, 128, ColumnsKind::wide>(const Launch&, bool,
                                                                            cudaStream_t);
template cudaError_t launch_instance<__half, 128, ColumnsKind::narrow>(const Launch&, bool,
                                                                       cudaStream_t);
template cudaError_t launch_instance<__half, 128, ColumnsKind::shared>(const Launch&, bool,
                                                                       cudaStream_t);
template cudaError_t launch_instance<__half, 128, ColumnsKind::wide>(const Launch&, bool,
                                                                     cudaStream_t);
template Status load_instance<__nv_bfloat16, 128, ColumnsKind::narrow>() noexcept;
template Status load_instance<__nv_bfloat16, 128, ColumnsKind::shared>() noexcept;
template Status load_instance<__nv_bfloat16, 128, ColumnsKind::wide>() noexcept;
template Status load_instance<__half, 128, ColumnsKind::narrow>() noexcept;
template Status load_instance<__half, 128, ColumnsKind::shared>() noexcept;
template Status load_instance<__half, 128, ColumnsKind::wide>() noexcept;

}  // namespace kvarena::kernels::columns
