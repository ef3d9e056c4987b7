#include "kernels/columns/columns_launch.cuh"

namespace kvarena::kernels::columns {

template cudaError_t launch_instance<Fp8, 64, ColumnsKind::narrow_fp8>(const Launch&, bool,
                                                                       cudaStream_t);
template cudaError_t launch_instance<Fp8, 96, ColumnsKind::narrow_fp8>(const Launch&, bool,
                                                                       cudaStream_t);
template cudaError_t launch_instance<Fp8, 128, ColumnsKind::narrow_fp8>(const Launch&, bool,
                                                                        cudaStream_t);
template cudaError_t launch_instance<Fp8, 192, ColumnsKind::narrow_fp8>(const Launch&, bool,
                                                                        cudaStream_t);
template cudaError_t launch_instance<Fp8, 256, ColumnsKind::narrow_fp8>(const Launch&, bool,
                                                                        cudaStream_t);
template Status load_instance<Fp8, 64, ColumnsKind::narrow_fp8>() noexcept;
template Status load_instance<Fp8, 96, ColumnsKind::narrow_fp8>() noexcept;
template Status load_instance<Fp8, 128, ColumnsKind::narrow_fp8>() noexcept;
template Status load_instance<Fp8, 192, ColumnsKind::narrow_fp8>() noexcept;
template Status load_instance<Fp8, 256, ColumnsKind::narrow_fp8>() noexcept;

}  // namespace kvarena::kernels::columns
