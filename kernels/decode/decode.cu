#include "kernels/decode/decode.cuh"

namespace kvarena::kernels {
namespace {

using Launch = cudaError_t (*)(const DecodeParams&, const DecodeWorkspace&, int blocks,
                               bool overlap, cudaStream_t stream);

template <class T, int D, int W, int PerSm>
cudaError_t launch(const DecodeParams& params, const DecodeWorkspace& workspace, int blocks,
                   bool overlap, cudaStream_t stream) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = overlap ? 1 : 0;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(W * 32);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  const auto tiles = static_cast<std::uint32_t>(params.block_size / kTileTokens);
  const DecodeConstants constants{tiles, ((std::uint64_t{1} << 32) + tiles - 1) / tiles};
  const auto kernel = tiles == 1 ? decode::decode_kernel<T, D, W, PerSm, true>
                                 : decode::decode_kernel<T, D, W, PerSm, false>;
  return cudaLaunchKernelEx(&config, kernel, params, workspace, constants);
}

template <class T>
constexpr DType kTypeOf = DType::bf16;
template <>
constexpr DType kTypeOf<__half> = DType::f16;

/// A row of the dispatch table.
struct Instance {
  DType dtype;
  std::int32_t head_dim;
  DecodeShape shape;
  Launch launch;
};

constexpr Instance kInstances[] = {
#define DECODE_INSTANCE(type, dim, warps, per_sm) \
  {kTypeOf<type>, dim, {warps, per_sm}, launch<type, dim, warps, per_sm>},
#include "kernels/decode/instances.def"
#undef DECODE_INSTANCE
};

Status check(const DecodeParams& p) noexcept {
  const DecodeLimits& limits = p.limits;
  if (p.num_rows < 0 || p.num_rows > limits.max_rows) {
    return invalid_argument(Resource::num_sequences, p.num_rows, 0, limits.max_rows);
  }
  if (p.block_size < kTileTokens || p.block_size % kTileTokens != 0) {
    return unsupported(Resource::block_size, static_cast<std::uint64_t>(p.block_size));
  }
  if (limits.q_len < 1 || limits.q_len > 8) {
    return invalid_argument(Resource::num_tokens, limits.q_len, 1, 8);
  }
  if (limits.num_kv_heads < 1 || limits.num_q_heads % limits.num_kv_heads != 0) {
    return invalid_argument(Resource::num_q_heads, limits.num_q_heads, limits.num_kv_heads, 4096);
  }
  const void* const needed[] = {p.q,        p.out,      p.key, p.value, p.block_tables,
                                p.seq_lens, p.workspace};
  for (const void* pointer : needed) {
    if (pointer == nullptr) return invalid_argument(Resource::pointer, 0, 1, 1);
    if (reinterpret_cast<std::uintptr_t>(pointer) % 4 != 0) {
      return invalid_argument(Resource::alignment, 1, 4, 4096);
    }
  }
  if (p.block_stride % 16 != 0 || p.head_stride % 16 != 0) {
    return invalid_argument(Resource::alignment, p.block_stride % 16 + p.head_stride % 16, 0, 0);
  }
  return {};
}

}  // namespace

Status launch_decode(const DecodeParams& params, bool overlap, cudaStream_t stream) noexcept {
  if (params.num_rows == 0) return {};
  if (Status status = check(params); !status) return status;
  const DecodeShape shape = decode_shape(params.limits);
  for (const Instance& instance : kInstances) {
    if (instance.dtype != params.dtype || instance.head_dim != params.limits.head_dim ||
        instance.shape.warps != shape.warps || instance.shape.per_sm != shape.per_sm) {
      continue;
    }
    const cudaError_t error =
        instance.launch(params, decode_workspace(params.limits),
                        params.limits.num_sms * shape.per_sm, overlap, stream);
    if (error == cudaSuccess) return {};
    return {StatusCode::device_error, Resource::stream, static_cast<std::int32_t>(error), 0, 0, 0};
  }
  if (params.dtype != DType::bf16 && params.dtype != DType::f16) {
    return unsupported(Resource::dtype, static_cast<std::uint64_t>(params.dtype));
  }
  return unsupported(Resource::head_dim, static_cast<std::uint64_t>(params.limits.head_dim));
}

}  // namespace kvarena::kernels
