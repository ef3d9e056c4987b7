#include "kernels/prefill/prefill.h"

#include "kernels/common/launch_checks.h"
#include "kernels/common/load_kernel.h"
#include "kernels/prefill/prefill.cuh"
#include "kernels/prefill/prefill_plain.cuh"

#include <cmath>

namespace kvarena::kernels {
namespace {

constexpr std::int64_t kMost = 0x7fffffff;
constexpr int kSharedByDefault = 48 * 1024;

/// The tensor core kernel of one type and head_dim.
struct Instance {
  DType dtype;
  int head_dim;
  int rows;
  int threads;
  int shared_bytes;
  void (*kernel)(PrefillParams);
};

constexpr Instance kInstances[] = {
#define KVARENA_PREFILL(dtype, T, D)                    \
  {DType::dtype,           D,                           \
   PrefillTile<D>::kRows,  PrefillTile<D>::kWarps * 32, \
   PrefillTile<D>::kBytes, prefill_tensor_cores<T, D>},
#include "kernels/prefill/instances.def"
#undef KVARENA_PREFILL
};

bool has_vectors(const PlaneView& plane) noexcept {
  const std::int64_t strides = plane.block_stride | plane.head_stride | plane.token_stride;
  return is_aligned(plane.base, kChunkBytes) && strides % kChunkBytes == 0;
}

/// The tensor core kernel that takes these params, or null. An output finer than T would show that
/// the weights were rounded to T.
const Instance* find_instance(const AttentionParams& a) noexcept {
  const PlaneView& key = a.kv.key;
  const PlaneView& value = a.kv.value;
  if (key.dtype != a.q_dtype || value.dtype != a.q_dtype || a.out_dtype != a.q_dtype ||
      key.head_dim != value.head_dim || !has_vectors(key) || !has_vectors(value) ||
      !is_aligned(a.q, kChunkBytes) || !is_aligned(a.out, 4)) {
    return nullptr;
  }
  for (const Instance& instance : kInstances) {
    if (instance.dtype == a.q_dtype && instance.head_dim == key.head_dim) return &instance;
  }
  return nullptr;
}

Status check_float(DType dtype) noexcept {
  if (Status s = check_enum(Resource::dtype, dtype, DType::int8); !s) return s;
  if (dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16) return {};
  return unsupported_by(SupportedList::prefill_dtypes, dtype);
}

Status check_numbers(const AttentionParams& a) noexcept {
  const auto millionths = [](float x) { return static_cast<std::int64_t>(x * 1e6F); };
  if (!std::isfinite(a.scale) || a.scale <= 0.0F) {
    return invalid_argument(Resource::scale, std::isfinite(a.scale) ? millionths(a.scale) : 0, 1,
                            kMost);
  }
  if (!std::isfinite(a.soft_cap) || a.soft_cap < 0.0F) {
    return invalid_argument(Resource::soft_cap,
                            std::isfinite(a.soft_cap) ? millionths(a.soft_cap) : -1, 0, kMost);
  }
  return in_range(Resource::window, a.window_tokens, 0, kMost);
}

Status check_prefill(const PrefillParams& p) noexcept {
  const AttentionParams& a = p.attention;
  if (Status s = check_layer(a.kv); !s) return s;
  for (const DType dtype : {a.q_dtype, a.out_dtype}) {
    if (Status s = check_float(dtype); !s) return s;
  }
  for (const DType dtype : {a.kv.key.dtype, a.kv.value.dtype}) {
    if (dtype == DType::int8) return unsupported_by(SupportedList::prefill_kv_dtypes, dtype);
  }
  const std::int64_t heads = a.kv.key.num_heads;
  if (Status s = in_range(Resource::num_q_heads, a.num_q_heads, heads, 65535); !s) return s;
  if (a.num_q_heads % heads != 0) {
    return invalid_argument(Resource::num_q_heads, a.num_q_heads, heads, 65535);
  }
  if (Status s = check_numbers(a); !s) return s;
  if (Status s = in_range(Resource::num_sequences, a.batch.num_rows, 0, kMost); !s) return s;
  if (Status s = in_range(Resource::num_tokens, p.total_q, 0, kMost - a.batch.num_rows); !s) {
    return s;
  }
  if (a.batch.num_rows == 0 || p.total_q == 0) return {};
  if (Status s = check_tables(a.batch.tables); !s) return s;
  if (Status s = not_null(a.batch.seq_lens); !s) return s;
  if (Status s = element_pointer(a.q, a.q_dtype); !s) return s;
  return element_pointer(a.out, a.out_dtype);
}

}  // namespace

Status load_prefill(DType kv_dtype, std::int32_t head_dim) noexcept {
  for (const Instance& instance : kInstances) {
    if (instance.dtype != kv_dtype || instance.head_dim != head_dim) continue;
    if (Status s = load_kernels(instance.kernel); !s) return s;
  }
  return load_kernels(prefill_plain);
}

Status launch_prefill(const PrefillParams& p, cudaStream_t stream) noexcept {
  if (Status s = check_prefill(p); !s) return s;
  const AttentionParams& a = p.attention;
  if (a.batch.num_rows == 0 || p.total_q == 0) return {};
  const Instance* instance = find_instance(a);
  cudaLaunchConfig_t config{};
  config.stream = stream;
  const int rows = instance != nullptr ? instance->rows : 1;
  // row_of_piece gives each row one place more than its whole pieces.
  config.gridDim = dim3(static_cast<unsigned>(p.total_q / rows + a.batch.num_rows),
                        static_cast<unsigned>(a.num_q_heads), 1);
  if (instance == nullptr) {
    for (const int dim : {a.kv.key.head_dim, a.kv.value.head_dim}) {
      if (dim > kPlainMaxHeadDim) {
        return unsupported_by(SupportedList::prefill_head_dims, Resource::head_dim, dim);
      }
    }
    config.blockDim = dim3(kPlainThreads, 1, 1);
    return launch_status(cudaLaunchKernelEx(&config, prefill_plain, p));
  }
  config.blockDim = dim3(static_cast<unsigned>(instance->threads), 1, 1);
  config.dynamicSmemBytes = static_cast<std::size_t>(instance->shared_bytes);
  if (instance->shared_bytes > kSharedByDefault) {
    const cudaError_t error =
        cudaFuncSetAttribute(reinterpret_cast<const void*>(instance->kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, instance->shared_bytes);
    if (error != cudaSuccess) return launch_status(error);
  }
  return launch_status(cudaLaunchKernelEx(&config, instance->kernel, p));
}

}  // namespace kvarena::kernels
