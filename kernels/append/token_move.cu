#include "kernels/append/token_move.cuh"

#include "kernels/common/launch_checks.h"
#include "kernels/common/launch_kernel.h"
#include "kernels/common/load_kernel.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

namespace kvarena::kernels {
namespace {

// Tokens that a thread moves when there is work for several.
constexpr int kManyTokens = 2;
// Below this many threads each thread takes one token, because the device is not full and latency
// counts.
constexpr std::int64_t kManyThreads = 132 * 2048;

using Kernel = void (*)(TokenMove);

/// The kernels of one Unit, by TokenMap: for one token a thread and for several.
struct Instance {
  DType from;
  DType to;
  int width;
  Kernel one[kNumTokenMaps];
  Kernel many[kNumTokenMaps];
};

/// Collects the kernels of a Unit for all maps.
template <class Unit>
constexpr Instance make_instance(DType from, DType to) noexcept {
  Instance instance{from, to, Unit::kWidth, {}, {}};
  [&]<int... kMaps>(std::integer_sequence<int, kMaps...>) {
    ((instance.one[kMaps] = move_tokens<Unit, 1, static_cast<TokenMap>(kMaps)>), ...);
    ((instance.many[kMaps] = move_tokens<Unit, kManyTokens, static_cast<TokenMap>(kMaps)>), ...);
  }
  (std::make_integer_sequence<int, kNumTokenMaps>());
  return instance;
}

constexpr Instance kInstances[] = {
#define KVARENA_TOKEN_MOVE(from, to, From, To) \
  make_instance<VectorUnit<From, To>>(DType::from, DType::to),
#include "kernels/append/instances.def"
#undef KVARENA_TOKEN_MOVE
};
/// The kernels that move single elements of any type.
constexpr Instance kElementInstance = make_instance<ElementUnit>(DType::f32, DType::f32);

/// Returns the kernels for a pair of types, or nullptr.
const Instance* find_instance(DType from, DType to) noexcept {
  for (const Instance& instance : kInstances) {
    if (instance.from == from && instance.to == to) return &instance;
  }
  return nullptr;
}

/// Whether this side can be read and written in units of 16 bytes and more.
bool is_vectorisable(const PlaneView& side, int width) noexcept {
  const std::int64_t strides = side.block_stride | side.head_stride | side.token_stride;
  return side.head_dim % width == 0 && strides % kChunkBytes == 0 &&
         is_aligned(side.base, kChunkBytes);
}

/// Launches a move whose planes all use the same kernel.
Status launch_planes(TokenMove m, const Instance& instance, bool vectors,
                     cudaStream_t stream) noexcept {
  const PlaneView& plane = m.planes[0].to;
  const std::int64_t units =
      std::int64_t{plane.num_heads} * (plane.head_dim / (vectors ? instance.width : 1));
  const std::int64_t slices = (units + kMoveThreads - 1) / kMoveThreads;
  if (Status s = in_range(Resource::head_dim, slices, 1, 65535); !s) return s;
  // A thread block has blockDim.x units of blockDim.y tokens: whole warps of units, and whole
  // tokens.
  const std::int64_t wide = ((units + slices - 1) / slices + 31) / 32 * 32;
  const auto x = static_cast<unsigned>(std::min<std::int64_t>(wide, units));
  const unsigned y = std::max(1U, kMoveThreads / x);
  const bool many = m.num_tokens * units * m.num_planes >= kManyTokens * kManyThreads;
  const std::int64_t per_block = std::int64_t{y} * (many ? kManyTokens : 1);
  const LaunchShape shape{
      dim3(static_cast<unsigned>((m.num_tokens + per_block - 1) / per_block),
           static_cast<unsigned>((units + x - 1) / x), static_cast<unsigned>(m.num_planes)),
      dim3(x, y)};
  const std::int64_t per_head = units / plane.num_heads;
  // The upper half of a unit times ceil(2^32 / per_head) is exact while units * per_head <= 2^32.
  const bool exact = per_head > 1 && units * per_head <= (std::int64_t{1} << 32);
  m.head_reciprocal =
      exact ? static_cast<std::uint32_t>(((std::int64_t{1} << 32) + per_head - 1) / per_head) : 0;
  const Instance& chosen = vectors ? instance : kElementInstance;
  const Kernel kernel = (many ? chosen.many : chosen.one)[static_cast<int>(m.map)];
  return launch_status(launch_kernel(kernel, shape, m.overlap, stream, m));
}

/// Returns contiguous [tokens, heads, dim] memory as a plane of one block.
PlaneView contiguous_plane(void* base, const PlaneView& pool, DType dtype,
                           std::int64_t stride) noexcept {
  PlaneView plane;
  plane.base = static_cast<std::byte*>(base);
  plane.head_stride = pool.head_dim * bytes_of(dtype);
  plane.token_stride = token_stride(stride, pool.num_heads, pool.head_dim, dtype);
  plane.num_heads = pool.num_heads;
  plane.head_dim = pool.head_dim;
  plane.dtype = dtype;
  return plane;
}

}  // namespace

Status load_token_move(TokenMap map, DType to) noexcept {
  const auto index = static_cast<int>(map);
  for (const Instance& instance : kInstances) {
    if (instance.to != to) continue;
    if (Status s = load_kernels(instance.one[index], instance.many[index]); !s) return s;
  }
  return load_kernels(kElementInstance.one[index], kElementInstance.many[index]);
}

TokenMove make_token_move(TokenMap map, const KvLayerView& kv, void* key, void* value, DType dtype,
                          const QuantScales& scales, const FlatStrides& strides) noexcept {
  TokenMove move{};
  move.map = map;
  const bool to_pool = map != TokenMap::gather && map != TokenMap::copies;
  const auto add = [&](void* flat, const PlaneView& pool, const float* scale, std::int64_t stride) {
    if (flat == nullptr) return;
    const PlaneView other = contiguous_plane(flat, pool, dtype, stride);
    move.planes[move.num_planes++] = {to_pool ? other : pool, to_pool ? pool : other, scale};
  };
  add(key, kv.key, scales.key, strides.key);
  add(value, kv.value, scales.value, strides.value);
  move.scale_per_head = scales.per_head;
  move.block_size = kv.block_size;
  const auto size = static_cast<unsigned>(kv.block_size);
  move.block_shift = std::has_single_bit(size) ? std::countr_zero(size) : -1;
  move.num_blocks = kv.num_blocks;
  return move;
}

Status launch_token_move(const TokenMove& move, cudaStream_t stream) noexcept {
  if (Status s = in_range(Resource::num_tokens, move.num_tokens, 0,
                          std::numeric_limits<std::int32_t>::max());
      !s) {
    return s;
  }
  const Instance* instances[2] = {};
  bool vectors[2] = {};
  for (int i = 0; i < move.num_planes; ++i) {
    const PlaneMove& plane = move.planes[i];
    if (plane.from.scales_offset != 0 || plane.to.scales_offset != 0) {
      return unsupported(Resource::scale);
    }
    instances[i] = find_instance(plane.from.dtype, plane.to.dtype);
    if (instances[i] == nullptr) {
      return unsupported_by(SupportedList::moved_dtypes, plane.to.dtype);
    }
    vectors[i] = is_vectorisable(plane.from, instances[i]->width) &&
                 is_vectorisable(plane.to, instances[i]->width);
  }
  if (move.num_tokens == 0 || move.num_planes == 0) return {};
  const bool alike = move.num_planes == 2 && instances[0] == instances[1] &&
                     vectors[0] == vectors[1] &&
                     move.planes[0].to.head_dim == move.planes[1].to.head_dim;
  if (alike) return launch_planes(move, *instances[0], vectors[0], stream);
  for (int i = 0; i < move.num_planes; ++i) {
    TokenMove one = move;
    one.planes[0] = move.planes[i];
    one.num_planes = 1;
    if (Status s = launch_planes(one, *instances[i], vectors[i], stream); !s) return s;
  }
  return {};
}

}  // namespace kvarena::kernels
