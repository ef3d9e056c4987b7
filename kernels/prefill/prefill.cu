#include "kernels/prefill/prefill.h"

#include "kernels/common/launch_checks.h"
#include "kernels/common/launch_kernel.h"
#include "kernels/common/load_kernel.h"
#include "kernels/prefill/hopper_instances.h"
#include "kernels/prefill/prefill.cuh"
#include "kernels/prefill/prefill_order.h"
#include "kernels/prefill/prefill_plain.cuh"

#include <algorithm>
#include <array>
#include <cmath>

namespace kvarena::kernels {
namespace {

constexpr std::int64_t kMost = 0x7fffffff;
constexpr int kSharedByDefault = 48 * 1024;
/// Query tokens of a row, on average, from which larger tiles and split queries are faster:
/// measured.
constexpr std::int64_t kLongRow = 1536;

/// The tensor core kernel of one type and head_dim.
struct Instance {
  DType dtype;     ///< of q and out
  DType kv_dtype;  ///< of K and V
  int head_dim;
  int rows;
  int threads;
  int shared_bytes;
  void (*kernel)(PrefillParams);
};

constexpr Instance kInstances[] = {
#define KVARENA_PREFILL(dtype, T, kv_dtype, S, D) \
  {DType::dtype,                                  \
   DType::kv_dtype,                               \
   D,                                             \
   PrefillTile<D>::kRows,                         \
   PrefillTile<D>::kWarps * 32,                   \
   PrefillTile<D>::kBytes,                        \
   prefill_tensor_cores<T, S, D>},
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
  if (has_own_scales(a.kv) || value.dtype != key.dtype || a.out_dtype != a.q_dtype ||
      key.head_dim != value.head_dim || !has_vectors(key) || !has_vectors(value) ||
      !is_aligned(a.q, kChunkBytes) || a.q_stride() % kChunkBytes != 0 || !is_aligned(a.out, 4) ||
      a.out_stride() % 4 != 0) {
    return nullptr;
  }
  for (const Instance& instance : kInstances) {
    if (instance.dtype == a.q_dtype && instance.kv_dtype == key.dtype &&
        instance.head_dim == key.head_dim) {
      return &instance;
    }
  }
  return nullptr;
}

/// The lists of all Hopper kernels.
std::array<std::span<const HopperInstance>, 7> hopper_lists() noexcept {
  return {hopper_instances_bf16(),          hopper_instances_f16(),
          hopper_instances_bf16_fp8(),      hopper_instances_f16_fp8(),
          hopper_instances_bf16_fp8_wide(), hopper_instances_f16_fp8_wide(),
          hopper_instances_bf16_fp8_long()};
}

/// The Hopper kernel that takes these params, or null.
const HopperInstance* find_hopper_instance(const PrefillParams& p,
                                           const HopperLaunch& launch) noexcept {
  const AttentionParams& a = p.attention;
  const PlaneView& key = a.kv.key;
  const PlaneView& value = a.kv.value;
  const bool has_room = p.num_sms > 0 && p.counters != nullptr &&
                        (a.batch.num_rows <= kRowsWithoutPlan || p.plan != nullptr);
  const bool has_order = has_hopper_order(a.kv) && a.batch.tables.pages == nullptr;
  const bool has_pieces = has_vectors(key) && has_vectors(value) && is_aligned(a.q, kChunkBytes) &&
                          is_aligned(a.out, kChunkBytes) &&
                          (a.q_stride() | a.out_stride()) % kChunkBytes == 0;
  const bool has_divisors = is_exact(launch.group, p.total_q * launch.group.value + kPlanRows) &&
                            is_exact(launch.tiles_per_block, kMost / kTileTokens);
  if (p.compute_capability / 10 != 9 || !has_room || !has_order || !has_pieces || !has_divisors ||
      a.out_dtype != a.q_dtype) {
    return nullptr;
  }
  const bool has_cap = a.soft_cap > 0.0F;
  const bool has_window = has_cap || a.window_tokens > 0;
  // Where several instances fit, the first is for rows of fewer query tokens.
  const std::int64_t prompts = p.num_prompts > 0 ? p.num_prompts : a.batch.num_rows;
  const bool is_long = !p.has_fixed_tiles && p.total_q / prompts >= kLongRow;
  const HopperInstance* found = nullptr;
  for (const auto& list : hopper_lists()) {
    for (const HopperInstance& instance : list) {
      if (instance.dtype != a.q_dtype || instance.kv_dtype != key.dtype ||
          instance.head_dim != key.head_dim || instance.has_window != has_window ||
          instance.has_cap != has_cap) {
        continue;
      }
      if (found == nullptr || is_long) found = &instance;
    }
  }
  return found;
}

HopperLaunch hopper_launch(const AttentionParams& a) noexcept {
  constexpr float kLog2e = 1.4426950408889634F;
  const float cap_slope = a.soft_cap > 0.0F ? 2.0F * kLog2e * a.scale / a.soft_cap : 0.0F;
  return {.group = divisor_of(a.num_q_heads / a.kv.key.num_heads),
          .tiles_per_block = divisor_of(std::max(1, a.kv.block_size / kTileTokens)),
          .scale_log2 = a.scale * kLog2e,
          .cap_log2 = a.soft_cap * kLog2e,
          .cap_slope = cap_slope};
}

/// Tells the current device how much shared memory an instance takes, once. Threads that come
/// together may tell it twice.
cudaError_t prepare(const HopperInstance& instance) noexcept {
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  const std::uint64_t bit = device < 64 ? std::uint64_t{1} << device : 0;
  if ((instance.devices->load(std::memory_order_acquire) & bit) != 0) return cudaSuccess;
  const cudaError_t error =
      cudaFuncSetAttribute(reinterpret_cast<const void*>(instance.kernel),
                           cudaFuncAttributeMaxDynamicSharedMemorySize, instance.shared_bytes);
  if (error == cudaSuccess) instance.devices->fetch_or(bit, std::memory_order_release);
  return error;
}

/// Queues the Hopper kernel. It may begin while the kernel in front ends, because it waits for that
/// one's results before it reads anything.
Status launch_hopper(const HopperInstance& instance, const PrefillParams& p,
                     const HopperLaunch& launch, cudaStream_t stream) noexcept {
  if (Status s = launch_status(prepare(instance)); !s) return s;
  const AttentionParams& a = p.attention;
  const std::int64_t tiles = p.total_q * launch.group.value / kPlanRows + a.batch.num_rows;
  const std::int64_t blocks = std::min<std::int64_t>(p.num_sms, tiles * a.kv.key.num_heads);
  const LaunchShape shape{dim3(static_cast<unsigned>(blocks)),
                          dim3(static_cast<unsigned>(instance.threads)),
                          static_cast<std::size_t>(instance.shared_bytes)};
  return launch_status(launch_kernel(instance.kernel, shape, true, stream, p, launch));
}

Status check_float(DType dtype) noexcept {
  if (Status s = check_enum(Resource::dtype, dtype, DType::latent_fp8); !s) return s;
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
  if (Status s = element_pointer(a.out, a.out_dtype); !s) return s;
  if (Status s = check_token_stride(a.q_token_stride, a.num_q_heads, a.kv.key.head_dim, a.q_dtype);
      !s) {
    return s;
  }
  return check_token_stride(a.out_token_stride, a.num_q_heads, a.kv.value.head_dim, a.out_dtype);
}

}  // namespace

bool takes_hopper_kernel(const PrefillParams& p) noexcept {
  const bool has_rows = p.attention.batch.num_rows > 0 && p.attention.kv.key.num_heads > 0;
  return has_rows && find_hopper_instance(p, hopper_launch(p.attention)) != nullptr;
}

Status load_prefill(DType kv_dtype, std::int32_t head_dim) noexcept {
  for (const Instance& instance : kInstances) {
    if (instance.kv_dtype != kv_dtype || instance.head_dim != head_dim) continue;
    if (Status s = load_kernels(instance.kernel); !s) return s;
  }
  for (const auto& list : hopper_lists()) {
    for (const HopperInstance& instance : list) {
      if (instance.kv_dtype != kv_dtype || instance.head_dim != head_dim) continue;
      if (Status s = load_kernels(instance.kernel); !s) return s;
    }
  }
  if (Status s = load_prefill_plan(); !s) return s;
  return load_kernels(prefill_plain);
}

Status launch_prefill(const PrefillParams& given, cudaStream_t stream) noexcept {
  if (Status s = check_prefill(given); !s) return s;
  PrefillParams p = given;
  const AttentionParams& a = p.attention;
  if (a.batch.num_rows == 0 || p.total_q == 0) return {};
  p.attention.q_token_stride = a.q_stride();
  p.attention.out_token_stride = a.out_stride();
  const HopperLaunch hopper = hopper_launch(a);
  if (const HopperInstance* instance = find_hopper_instance(p, hopper); instance != nullptr) {
    return launch_hopper(*instance, p, hopper, stream);
  }
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
