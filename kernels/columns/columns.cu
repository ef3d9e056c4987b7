#include "kernels/columns/columns.h"

#include "kernels/columns/columns_config.cuh"
#include "kernels/columns/prefix_plan.h"
#include "kernels/columns/shared_prefixes.h"
#include "kernels/common/launch_checks.h"

#include <cmath>
#include <utility>

namespace kvarena::kernels {
namespace columns {

/// Launches the variant that the parameters need. Compiled in columns_<head_dim>.cu.
template <class T, int D, ColumnsKind kKind>
cudaError_t launch_instance(const Launch& launch, bool overlap, cudaStream_t stream);

/// Loads both variants.
template <class T, int D, ColumnsKind kKind>
Status load_instance() noexcept;

}  // namespace columns

namespace {

using columns::Launch;

/// The DType of a CUDA type.
template <class T>
constexpr DType kTypeOf = DType::bf16;
template <>
constexpr DType kTypeOf<__half> = DType::f16;
template <>
constexpr DType kTypeOf<Fp8> = DType::fp8_e4m3;
template <>
constexpr DType kTypeOf<columns::LatentFp8> = DType::latent_fp8;

/// A row of the dispatch table.
struct Instance {
  DType kv_dtype;
  std::int32_t head_dim;
  ColumnsKind kind;
  cudaError_t (*launch)(const Launch&, bool overlap, cudaStream_t stream);
  Status (*load)() noexcept;
};

constexpr Instance kInstances[] = {
#define COLUMNS_INSTANCE(type, dim, kind)                                                         \
  {kTypeOf<type>, dim, ColumnsKind::kind, columns::launch_instance<type, dim, ColumnsKind::kind>, \
   columns::load_instance<type, dim, ColumnsKind::kind>},
#include "kernels/columns/instances.def"
#undef COLUMNS_INSTANCE
};

/// Checks that the current device is one that the kernel is compiled for.
Status check_device() noexcept {
  int device = 0;
  int major = 0;
  int minor = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  }
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  }
  if (error != cudaSuccess) return launch_status(error);
  if (major == 9 && minor == 0) return {};
  return unsupported_by(SupportedList::columns_devices, Resource::device, major * 10 + minor);
}

/// Checks the numbers of `p`.
Status check_numbers(const ColumnsParams& p) noexcept {
  const auto millionths = [](float x) { return static_cast<std::int64_t>(x * 1e6F); };
  constexpr std::int64_t kMost = 0x7fffffff;
  if (!std::isfinite(p.scale) || p.scale <= 0.0F) {
    return invalid_argument(Resource::scale, std::isfinite(p.scale) ? millionths(p.scale) : 0, 1,
                            kMost);
  }
  if (!std::isfinite(p.soft_cap) || p.soft_cap < 0.0F) {
    return invalid_argument(Resource::soft_cap,
                            std::isfinite(p.soft_cap) ? millionths(p.soft_cap) : -1, 0, kMost);
  }
  if (p.soft_cap > 0.0F && p.tree_mask != nullptr) return unsupported(Resource::soft_cap);
  if (Status s = in_range(Resource::window, p.window_tokens, 0, kMost); !s) return s;
  if (p.block_size >= kTileTokens && p.block_size % kTileTokens == 0) return {};
  return unsupported_by(SupportedList::decode_block_sizes, Resource::block_size, p.block_size);
}

/// Checks whether `p` can run on some device.
Status check(const ColumnsParams& p) noexcept {
  const ColumnsLimits& limits = p.limits;
  if (Status s = check_columns_limits(limits); !s) return s;
  if (Status s = check_enum(Resource::dtype, p.dtype, DType::latent_fp8); !s) return s;
  const bool has_dtype = limits.head_dim == kLatentDim ? p.dtype == DType::bf16
                         : limits.kv_dtype == DType::fp8_e4m3
                             ? p.dtype == DType::bf16 || p.dtype == DType::f16
                             : p.dtype == limits.kv_dtype;
  if (!has_dtype) return unsupported_by(SupportedList::columns_dtypes, p.dtype);
  if (Status s = in_range(Resource::num_sequences, p.num_rows, 0, 0x7fffffff); !s) return s;
  if (Status s = check_numbers(p); !s) return s;
  struct Pointer {
    const void* address;
    std::int64_t alignment;  // of the loads and stores through the pointer
    bool is_needed;
  };
  const Pointer pointers[] = {
      {p.q, 16, true},          {p.out, 16, true},         {p.key, 16, true},
      {p.value, 16, true},      {p.lse, 4, false},         {p.block_tables, 4, true},
      {p.sinks, 4, false},      {p.tree_mask, 8, false},   {p.prefixes, 256, false},
      {p.scales.key, 4, false}, {p.scales.value, 4, false}};
  for (const Pointer& pointer : pointers) {
    if (pointer.address == nullptr && !pointer.is_needed) continue;
    if (Status s = aligned_pointer(pointer.address, pointer.alignment); !s) return s;
  }
  for (const std::int64_t stride : {p.block_stride, p.head_stride, p.value_head_stride}) {
    if (Status s = in_range(Resource::alignment, stride % kChunkBytes, 0, 0); !s) return s;
  }
  const std::int32_t out_dim = columns_value_dim(limits);
  for (const auto& [stride, dim] :
       {std::pair{p.q_token_stride, limits.head_dim}, {p.out_token_stride, out_dim}}) {
    if (Status s = check_token_stride(stride, limits.num_q_heads, dim, p.dtype); !s) return s;
    if (Status s = in_range(Resource::alignment, stride % kChunkBytes, 0, 0); !s) return s;
  }
  if (limits.head_dim == kLatentDim) {
    if (p.value != p.key) return unsupported(Resource::pointer);
    if (p.soft_cap > 0.0F) return unsupported(Resource::soft_cap);
    if (p.window_tokens > 0) return unsupported(Resource::window);
  }
  return check_columns_workspace(limits, p.workspace, p.workspace_bytes);
}

/// Returns ceil(2^32 / divisor).
std::uint64_t inverse_of(std::int32_t divisor) noexcept {
  const auto wide = static_cast<std::uint64_t>(divisor);
  return ((std::uint64_t{1} << 32) + wide - 1) / wide;
}

/// Computes what the kernel needs besides the parameters.
Launch launch_of(ColumnsParams p) noexcept {
  const std::int32_t heads = p.limits.num_q_heads;
  const std::int32_t dim = p.limits.head_dim;
  p.q_token_stride = token_stride(p.q_token_stride, heads, dim, p.dtype);
  p.out_token_stride =
      token_stride(p.out_token_stride, heads, columns_value_dim(p.limits), p.dtype);
  if (p.value_head_stride == 0) p.value_head_stride = p.head_stride;
  const std::int32_t group = p.limits.num_q_heads / p.limits.num_kv_heads;
  const std::int32_t tiles = p.block_size / kTileTokens;
  columns::Constants constants{};
  constants.group = group;
  constants.group_inverse = static_cast<std::uint32_t>(inverse_of(group));  // not used for 1
  constants.tiles_per_block = static_cast<std::uint32_t>(tiles);
  constants.block_of_tile = inverse_of(tiles);
  constants.logit_scale = p.scale * columns::kLog2e;
  constants.is_bf16 = p.dtype == DType::bf16;
  if (p.soft_cap > 0.0F) {
    constants.cap = p.soft_cap * columns::kLog2e;
    constants.cap_slope = 2.0F * columns::kLog2e * p.scale / p.soft_cap;
  }
  const char* const prefixes = static_cast<const char*>(p.prefixes);
  const auto* const tokens =
      prefixes == nullptr ? nullptr : prefixes + prefix_plan(p.limits).tokens;
  return {p, columns_workspace(p.limits), constants, reinterpret_cast<const std::int32_t*>(tokens)};
}

}  // namespace

Status load_columns(DType kv_dtype, std::int32_t head_dim) noexcept {
  for (const Instance& instance : kInstances) {
    if (instance.kv_dtype != kv_dtype || instance.head_dim != head_dim) continue;
    if (Status s = instance.load(); !s) return s;
  }
  if (Status s = load_find_prefixes(); !s) return s;
  return load_columns_schedule();
}

Status launch_columns(const ColumnsParams& params, bool overlap, cudaStream_t stream) noexcept {
  if (Status s = check(params); !s) return s;
  if (params.num_rows == 0) return {};
  if (Status s = check_device(); !s) return s;
  const ColumnsKind kind = columns_kind(params.limits);
  for (const Instance& instance : kInstances) {
    if (instance.kv_dtype != params.limits.kv_dtype ||
        instance.head_dim != params.limits.head_dim || instance.kind != kind) {
      continue;
    }
    return launch_status(instance.launch(launch_of(params), overlap, stream));
  }
  return unsupported_by(SupportedList::columns_head_dims, Resource::head_dim,
                        params.limits.head_dim);
}

}  // namespace kvarena::kernels
