// The launches of the latent kernel, as kinds of the columns kernel.

#include "kernels/latent/latent.cuh"

#include "kernels/common/launch_kernel.h"
#include "kernels/common/load_kernel.h"

namespace kvarena::kernels::columns {

template <class T, int D, ColumnsKind kKind>
cudaError_t launch_instance(const Launch& launch, bool overlap, cudaStream_t stream);
template <class T, int D, ColumnsKind kKind>
Status load_instance() noexcept;

namespace {

/// Launches the kernel, and behind it the one that combines the parts of cut items.
template <class C>
cudaError_t launch_latent(const Launch& launch, bool overlap, cudaStream_t stream) {
  constexpr int kBytes = static_cast<int>(sizeof(latent::Shared<C>));
  static_assert(kBytes <= 227 * 1024);
  const auto kernel = latent::latent_kernel<C>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  const LaunchShape shape{dim3(static_cast<unsigned>(launch.workspace.blocks)), dim3(C::kThreads),
                          kBytes};
  const cudaError_t launched = launch_kernel(kernel, shape, overlap, stream, launch);
  if (launched != cudaSuccess) return launched;
  // The kernel before this one is ours, and it waits for the one in front of it.
  const LaunchShape combine{dim3(static_cast<unsigned>(2 * launch.workspace.blocks)),
                            dim3(latent::kCombineThreads)};
  return launch_kernel(latent::combine_latents<C>, combine, true, stream, launch);
}

template <class C>
Status load_latent() noexcept {
  return load_kernels(latent::latent_kernel<C>, latent::combine_latents<C>);
}

}  // namespace

#define KVARENA_LATENT(Pool, kind, ...)                                  \
  template <>                                                            \
  cudaError_t launch_instance<Pool, kLatentDim, ColumnsKind::kind>(      \
      const Launch& launch, bool overlap, cudaStream_t stream) {         \
    return launch_latent<latent::__VA_ARGS__>(launch, overlap, stream);  \
  }                                                                      \
  template <>                                                            \
  Status load_instance<Pool, kLatentDim, ColumnsKind::kind>() noexcept { \
    return load_latent<latent::__VA_ARGS__>();                           \
  }
KVARENA_LATENT(__nv_bfloat16, latent_16, Config<__nv_bfloat16, 16>)
KVARENA_LATENT(__nv_bfloat16, latent_32, Config<__nv_bfloat16, 32>)
KVARENA_LATENT(Fp8, latent_16, Config<Fp8, 16>)
KVARENA_LATENT(Fp8, latent_32, Config<Fp8, 32>)
KVARENA_LATENT(Fp8, latent_64, Config<Fp8, 64, true>)
KVARENA_LATENT(LatentFp8, latent_16, PackedConfig<16>)
KVARENA_LATENT(LatentFp8, latent_32, PackedConfig<32>)
KVARENA_LATENT(LatentFp8, latent_64, Config<LatentFp8, 64, true>)
#undef KVARENA_LATENT

// A row of a batch-invariant step has the same bits in all kinds, but that of halves.
#define KVARENA_LATENT_INVARIANT(Pool, columns, kind, ...)                          \
  template <>                                                                       \
  cudaError_t launch_instance<Pool, kLatentDim, ColumnsKind::kind>(                 \
      const Launch& launch, bool overlap, cudaStream_t stream) {                    \
    if (launch.params.limits.fixed_tokens > 0) {                                    \
      return launch_latent<latent::Config<Pool, columns>>(launch, overlap, stream); \
    }                                                                               \
    return launch_latent<latent::__VA_ARGS__>(launch, overlap, stream);             \
  }                                                                                 \
  template <>                                                                       \
  Status load_instance<Pool, kLatentDim, ColumnsKind::kind>() noexcept {            \
    if (Status s = load_latent<latent::Config<Pool, columns>>(); !s) return s;      \
    return load_latent<latent::__VA_ARGS__>();                                      \
  }
KVARENA_LATENT_INVARIANT(__nv_bfloat16, 64, latent_64, Config<__nv_bfloat16, 64, true>)
#undef KVARENA_LATENT_INVARIANT

}  // namespace kvarena::kernels::columns
