#include "kernels/common/launch_checks.h"
#include "kernels/decode/decode_launch.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>

namespace kvarena::kernels {
namespace {

/// The DType of a CUDA type.
template <class T>
constexpr DType kTypeOf = DType::bf16;
template <>
constexpr DType kTypeOf<__half> = DType::f16;
template <>
constexpr DType kTypeOf<__nv_fp8_e4m3> = DType::fp8_e4m3;

/// A row of the dispatch table.
struct Instance {
  DType dtype;
  DType kv_dtype;
  std::int32_t head_dim;
  DecodeShape shape;
  std::int32_t operands;
  decode::LaunchInstance launch;
  decode::LoadInstance load;
};

template <class T, class S, int D, int W, int PerSm, int kCluster, int kOperands>
constexpr Instance kInstance{kTypeOf<T>,
                             kTypeOf<S>,
                             D,
                             {W, PerSm, kCluster},
                             kOperands,
                             decode::launch_instance<T, S, D, W, PerSm, kCluster, kOperands>,
                             decode::load_instance<T, S, D, W, PerSm, kCluster, kOperands>};

constexpr Instance kInstances[] = {
#define DECODE_INSTANCE(dim, warps, per_sm, cluster)                       \
  kInstance<__nv_bfloat16, __nv_bfloat16, dim, warps, per_sm, cluster, 1>, \
      kInstance<__half, __half, dim, warps, per_sm, cluster, 1>,
#define DECODE_FP8_INSTANCE(dim, warps, per_sm, cluster, operands)                \
  kInstance<__nv_bfloat16, __nv_fp8_e4m3, dim, warps, per_sm, cluster, operands>, \
      kInstance<__half, __nv_fp8_e4m3, dim, warps, per_sm, cluster, operands>,
#include "kernels/decode/instances.def"
#undef DECODE_INSTANCE
#undef DECODE_FP8_INSTANCE
};

/// Checks whether `p` can run. The instance is looked up later.
Status check(const DecodeParams& p) noexcept {
  const DecodeLimits& limits = p.limits;
  if (Status s = check_decode_limits(limits); !s) return s;
  if (Status s = in_range(Resource::num_sequences, p.num_rows, 0, kMaxDecodeRows); !s) return s;
  if (p.block_size < kTileTokens || p.block_size % kTileTokens != 0) {
    return unsupported_by(SupportedList::decode_block_sizes, Resource::block_size, p.block_size);
  }
  struct Pointer {
    const void* address;
    std::int64_t alignment;  // of the loads and stores through the pointer
  };
  const Pointer pointers[] = {
      {p.q, 8}, {p.out, 8}, {p.key, kChunkBytes}, {p.value, kChunkBytes}, {p.block_tables, 4}};
  for (const Pointer& pointer : pointers) {
    if (Status s = aligned_pointer(pointer.address, pointer.alignment); !s) return s;
  }
  for (const std::int64_t stride : {p.block_stride, p.head_stride}) {
    if (Status s = in_range(Resource::alignment, stride % kChunkBytes, 0, 0); !s) return s;
  }
  for (const std::int64_t stride : {p.q_token_stride, p.out_token_stride}) {
    if (Status s = check_token_stride(stride, limits.num_q_heads, limits.head_dim, p.dtype); !s) {
      return s;
    }
    if (Status s = in_range(Resource::alignment, stride % 8, 0, 0); !s) return s;
  }
  return check_decode_workspace(limits, p.workspace, p.workspace_bytes);
}

}  // namespace

Status load_decode(DType kv_dtype, std::int32_t head_dim) noexcept {
  for (const Instance& instance : kInstances) {
    if (instance.kv_dtype != kv_dtype || instance.head_dim != head_dim) continue;
    if (Status s = instance.load(); !s) return s;
  }
  return load_decode_schedule();
}

Status launch_decode(const DecodeParams& given, bool overlap, cudaStream_t stream) noexcept {
  if (Status s = check(given); !s) return s;
  if (given.num_rows == 0) return {};
  const DecodeLimits& limits = given.limits;
  DecodeParams params = given;
  for (std::int64_t* stride : {&params.q_token_stride, &params.out_token_stride}) {
    *stride = token_stride(*stride, limits.num_q_heads, limits.head_dim, params.dtype);
  }
  const DecodeShape shape = decode_shape(limits);
  const DecodeWorkspace workspace = decode_workspace(limits);
  const std::int64_t items =
      std::int64_t{workspace.max_parts} * limits.num_kv_heads * workspace.chunks;
  const auto turns =
      static_cast<int>(std::min<std::int64_t>(places_of(shape, limits.num_sms), items));
  for (const Instance& instance : kInstances) {
    if (instance.dtype != params.dtype || instance.kv_dtype != limits.kv_dtype ||
        instance.head_dim != limits.head_dim || instance.shape != shape ||
        instance.operands != column_operands(limits)) {
      continue;
    }
    return launch_status(instance.launch(params, workspace, turns, overlap, stream));
  }
  if (Status s = check_enum(Resource::dtype, params.dtype, DType::latent_fp8); !s) return s;
  const bool is_16_bit = params.dtype == DType::bf16 || params.dtype == DType::f16;
  return is_16_bit ? unsupported_by(SupportedList::decode_kv_dtypes, limits.kv_dtype)
                   : unsupported_by(SupportedList::decode_dtypes, params.dtype);
}

}  // namespace kvarena::kernels
