#include "kernels/columns/columns_launch.cuh"

namespace kvarena::kernels::columns {

template cudaError_t launch_instance<Fp8, 64, ColumnsKind::wide_fp8>(const Launch&, bool,
                                                                     cudaStream_t);
template cudaError_t launch_instance<Fp8, 96, ColumnsKind::wide_fp8>(const Launch&, bool,
                                                                     cudaStream_t);
template cudaError_t launch_instance<Fp8, 128, ColumnsKind::wide_fp8>(const Launch&, bool,
                                                                      cudaStream_t);
template cudaError_t launch_instance<Fp8, 192, ColumnsKind::wide_fp8>(const Launch&, bool,
                                                                      cudaStream_t);
template cudaError_t launch_instance<Fp8, 256, ColumnsKind::wide_fp8>(const Launch&, bool,
                                                                      cudaStream_t);
template Status load_instance<Fp8, 64, ColumnsKind::wide_fp8>() noexcept;
template Status load_instance<Fp8, 96, ColumnsKind::wide_fp8>() noexcept;
template Status load_instance<Fp8, 128, ColumnsKind::wide_fp8>() noexcept;
template Status load_instance<Fp8, 192, ColumnsKind::wide_fp8>() noexcept;
template Status load_instance<Fp8, 256, ColumnsKind::wide_fp8>() noexcept;

}  // namespace kvarena::kernels::columns
