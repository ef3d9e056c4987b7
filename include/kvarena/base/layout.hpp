#pragma once

/// @file
/// `KvLayout`: where every byte of a block lies. The one place that computes bytes per token, per
/// block and per plane, and strides; all arithmetic is 64-bit and checked once, at create. An
/// immutable value: copy it, read it from any thread.
///
/// A layout is groups of planes. A plane is K or V of one layer: `[num_heads, block_size,
/// head_dim]` for one block. A group shares block ids and tables: `address = base + id *
/// block_stride + plane_offset`. docs/explanation/memory-layout.md works an example.

#include "kvarena/base/dtype.hpp"
#include "kvarena/base/export.hpp"
#include "kvarena/base/result.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace kvarena {

/// K or V.
enum class PlaneKind : std::uint8_t { key, value };

/// Order of elements inside one head's tile of a plane. `rows` is [block_size, head_dim]. `chunked`
/// keeps sixteen bytes of one token together in the order of the tensor cores' operands
/// (tile_order.hpp), for block sizes that are a multiple of 16, head dims that are a multiple of 32
/// and elements of one or two bytes; the CPU kernels refuse it.
enum class TileOrder : std::uint8_t { rows, chunked };

/// `block_major`: a block's bytes for all planes lie together, so moving a block is one copy.
/// `layer_major`: all blocks of one plane lie together.
enum class BlockOrder : std::uint8_t { block_major, layer_major };

/// Which scales quantised elements have. Only `per_token_head` scales (one f32 for each token and
/// head, behind the plane's elements) take bytes in the block.
enum class ScaleKind : std::uint8_t { none, per_tensor, per_head, per_token_head };

/// Which tokens stay readable: all, the last `window_tokens`, or a fixed number of bytes a
/// sequence.
enum class Retention : std::uint8_t { full, window, fixed };

/// K or V of one layer.
struct PlaneSpec {
  std::int32_t layer = 0;             ///< the model's layer, 0-based
  PlaneKind kind = PlaneKind::key;    ///< K or V
  std::int32_t num_heads = 0;         ///< KV heads
  std::int32_t head_dim = 0;          ///< elements a head
  DType dtype = DType::f16;           ///< element type
  ScaleKind scale = ScaleKind::none;  ///< scales of quantised elements
  std::int32_t alias_of = -1;         ///< index of an earlier plane whose bytes these are (V as K)
};

/// Planes that share block ids and tables.
struct GroupSpec {
  std::vector<PlaneSpec> planes;           ///< in address order for block-major
  std::int32_t block_size_tokens = 16;     ///< tokens a block, >= 1
  Retention retention = Retention::full;   ///< which tokens stay readable
  std::int32_t window_tokens = 0;          ///< for Retention::window
  TileOrder tile_order = TileOrder::rows;  ///< order inside a head's tile
};

/// The usual case: every layer alike, K and V separate.
struct UniformLayoutOptions {
  std::int32_t num_layers = 0;          ///< 1 .. 4096
  std::int32_t num_kv_heads = 0;        ///< 1 .. 4096
  std::int32_t head_dim_k = 0;          ///< 1 .. 4096
  std::int32_t head_dim_v = 0;          ///< 1 .. 4096; 0 means as K
  DType dtype = DType::f16;             ///< of K and V
  std::int32_t block_size_tokens = 16;  ///< 1 .. 65536
  /// Order inside a head's tile; none: rows, but a KvCache on CUDA takes chunked where that fits.
  std::optional<TileOrder> tile_order = std::nullopt;
};

/// Bytes and strides of the planes of one group. Immutable.
class KVARENA_EXPORT KvLayout {
 public:
  static constexpr std::int64_t kPlaneAlignment = 16;          ///< every plane starts so aligned
  static constexpr std::int64_t kMaxBlocks = (1LL << 29) - 1;  ///< block ids are 29 bits and a sign

  /// One group of identical layers. Returns invalid_argument naming the option, its value and
  /// range; exhausted (host_memory).
  static Result<KvLayout> create(const UniformLayoutOptions& options);
  /// The general form. One group in this version: more is `unsupported` (num_groups), as are
  /// retention other than full, and chunked tiles that do not fit: (tile_order) with the block
  /// size, (head_dim), (dtype), or (alias_of). Returns invalid_argument for anything outside its
  /// range, an alias that does not point to an earlier plane of the same shape, or block bytes past
  /// 2^40; exhausted (host_memory).
  static Result<KvLayout> create(std::span<const GroupSpec> groups);

  /// Tokens a block.
  std::int32_t block_size() const noexcept { return group_.block_size_tokens; }
  /// Number of layers: the largest layer index of any plane, plus one.
  std::int32_t num_layers() const noexcept { return num_layers_; }
  /// The planes, in the order given.
  std::span<const PlaneSpec> planes() const noexcept { return group_.planes; }
  /// Order inside a head's tile.
  TileOrder tile_order() const noexcept { return group_.tile_order; }

  /// Bytes of KV that one token needs over all planes, scales included, padding excluded.
  std::int64_t bytes_per_token() const noexcept { return bytes_per_token_; }
  /// Bytes from one block to the next in block-major order: planes, each padded to kPlaneAlignment.
  std::int64_t block_bytes() const noexcept { return block_bytes_; }
  /// Bytes of `plane` in one block, padding included. 0 for an alias.
  std::int64_t plane_bytes(std::int32_t plane) const noexcept { return bytes_[index(plane)]; }
  /// The plane of (layer, kind), or -1 when there is none. O(1).
  std::int32_t plane_of(std::int32_t layer, PlaneKind kind) const noexcept;

  /// Bytes from the arena's base to block 0 of `plane`, for a pool of `num_blocks`.
  std::int64_t plane_offset(std::int32_t plane, BlockOrder order,
                            std::int64_t num_blocks) const noexcept;
  /// Bytes from one block to the next within `plane`.
  std::int64_t block_stride(std::int32_t plane, BlockOrder order) const noexcept;
  /// Bytes from one head to the next within a block of `plane`: block_size * head_dim elements.
  std::int64_t head_stride(std::int32_t plane) const noexcept;
  /// Bytes from one token to the next within a head (rows order): head_dim elements.
  std::int64_t token_stride(std::int32_t plane) const noexcept;
  /// Bytes of `num_blocks` blocks. Returns invalid_argument (num_blocks) outside 1 .. kMaxBlocks,
  /// or (pool_bytes) when the product does not fit 63 bits.
  Result<std::int64_t> pool_bytes(std::int64_t num_blocks) const noexcept {
    return pool_bytes(block_bytes_, num_blocks);
  }
  /// The same for blocks of that many bytes, >= 1.
  static Result<std::int64_t> pool_bytes(std::int64_t block_bytes,
                                         std::int64_t num_blocks) noexcept;

 private:
  KvLayout() = default;
  static std::size_t index(std::int32_t plane) noexcept { return static_cast<std::size_t>(plane); }

  GroupSpec group_;
  std::vector<std::int64_t> bytes_;   // per plane, padded; 0 for an alias
  std::vector<std::int64_t> offset_;  // per plane: prefix sum of bytes_, an alias has its target's
  std::vector<std::int32_t> plane_of_;  // [num_layers, 2]
  std::int32_t num_layers_ = 0;
  std::int64_t bytes_per_token_ = 0;
  std::int64_t block_bytes_ = 0;
};

}  // namespace kvarena
