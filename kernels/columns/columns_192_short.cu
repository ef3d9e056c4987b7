#include "kernels/columns/columns_launch.cuh"

namespace kvarena::kernels::columns {

template cudaError_t launch_instance<__nv_bfloat16, 192, ColumnsKind::narrow_short>(const Launch&,
                                                                                    bool,
                                                                                    cudaStream_t);
template cudaError_t launch_instance<__nv_bfloat16, 192, ColumnsKind::wide_short>(const Launch&,
                                                                                  bool,
                                                                                  cudaStream_t);
template cudaError_t launch_instance<__half, 192, ColumnsKind::narrow_short>(const Launch&, bool,
                                                                             cudaStream_t);
template cudaError_t launch_instance<__half, 192, ColumnsKind::wide_short>(const Launch&, bool,
                                                                           cudaStream_t);
template Status load_instance<__nv_bfloat16, 192, ColumnsKind::narrow_short>() noexcept;
template Status load_instance<__nv_bfloat16, 192, ColumnsKind::wide_short>() noexcept;
template Status load_instance<__half, 192, ColumnsKind::narrow_short>() noexcept;
template Status load_instance<__half, 192, ColumnsKind::wide_short>() noexcept;

}  // namespace kvarena::kernels::columns
