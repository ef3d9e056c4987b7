#pragma once

/// @file
/// `KvLayout`: where every byte of a block lies. Only this class computes strides and the bytes per
/// token, per block and per plane. All arithmetic is 64-bit and is checked once, at create. A
/// layout is an immutable value: it can be copied, and read from any thread.
///
/// A layout has groups, and a group has planes. A plane is K, V or the index of one layer:
/// `[num_heads, block_size, head_dim]` for one block. The planes of a group share block ids and
/// tables: `address = base + id * block_stride + plane_offset`. docs/explanation/memory-layout.md
/// works an example.

#include "kvarena/base/dtype.hpp"
#include "kvarena/base/export.hpp"
#include "kvarena/base/result.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace kvarena {

/// What a plane keeps: K, V, or the keys of a sparse-attention index.
enum class PlaneKind : std::uint8_t { key, value, index };

/// The order of elements inside one head's tile of a plane. `rows` is [block_size, head_dim].
/// `chunked` keeps sixteen bytes of one token together, in the order of the tensor cores' operands
/// (tile_order.hpp). It needs a block size that is a multiple of 16, elements of one or two bytes,
/// and a multiple of 32 bytes a token and head. The CPU kernels refuse it.
enum class TileOrder : std::uint8_t { rows, chunked };

/// The order of planes and blocks in the arena. In `block_major` order a block's bytes for all
/// planes lie together, so moving a block is one copy. In `layer_major` order all blocks of one
/// plane lie together.
enum class BlockOrder : std::uint8_t { block_major, layer_major };

/// The scales that quantised elements have. Only `per_token_head` scales take bytes in the block:
/// one f32 for each token and head, [num_heads, block_size], behind the plane's elements.
enum class ScaleKind : std::uint8_t { none, per_tensor, per_head, per_token_head };

/// The tokens that stay readable: all, the last `window_tokens`, or a fixed number of bytes a
/// sequence.
enum class Retention : std::uint8_t { full, window, fixed };

/// One plane: K, V or the index of one layer. An index has rows order, whatever the group has.
struct PlaneSpec {
  std::int32_t layer = 0;             ///< the model's layer, 0-based
  PlaneKind kind = PlaneKind::key;    ///< what it keeps
  std::int32_t num_heads = 0;         ///< KV heads
  std::int32_t head_dim = 0;          ///< elements a head
  DType dtype = DType::f16;           ///< element type; latent_fp8: head_dim is 576, rows order,
                                      ///< without other scales, and V is an alias of 512
  ScaleKind scale = ScaleKind::none;  ///< scales of quantised elements; with per_token_head a row
                                      ///< is a multiple of 4 bytes
  std::int32_t alias_of = -1;  ///< index of an earlier plane that has the same bytes (V as K)
};

/// Planes that share block ids and tables.
struct GroupSpec {
  std::vector<PlaneSpec> planes;           ///< in address order for block-major
  std::int32_t block_size_tokens = 16;     ///< tokens a block, >= 1
  Retention retention = Retention::full;   ///< which tokens stay readable
  std::int32_t window_tokens = 0;          ///< with Retention::window
  TileOrder tile_order = TileOrder::rows;  ///< order inside a head's tile
};

/// The usual case: all layers are alike, and K and V are separate.
struct UniformLayoutOptions {
  std::int32_t num_layers = 0;          ///< 1 .. 4096
  std::int32_t num_kv_heads = 0;        ///< 1 .. 4096
  std::int32_t head_dim_k = 0;          ///< 1 .. 4096
  std::int32_t head_dim_v = 0;          ///< 1 .. 4096; 0: the same as head_dim_k
  DType dtype = DType::f16;             ///< of K and V
  std::int32_t block_size_tokens = 16;  ///< 1 .. 65536
  /// The order inside a head's tile. Without a value it is rows; a KvCache on CUDA takes chunked
  /// where the layout permits it.
  std::optional<TileOrder> tile_order = std::nullopt;
};

/// The bytes and strides of the planes of one group. Immutable.
class KVARENA_EXPORT KvLayout {
 public:
  static constexpr std::int64_t kPlaneAlignment = 16;          ///< the offset of every plane is a
                                                               ///< multiple of this
  static constexpr std::int64_t kMaxBlocks = (1LL << 29) - 1;  ///< block ids are 29 bits and a sign

  /// Makes a layout of one group of identical layers. Returns invalid_argument with the option, its
  /// value and its range, or exhausted (host_memory).
  static Result<KvLayout> create(const UniformLayoutOptions& options);
  /// Makes a layout of any planes. This version has one group. Returns `unsupported` (num_groups)
  /// for more groups, `unsupported` for a retention other than full, and `unsupported` for chunked
  /// tiles that do not fit: (tile_order) with the block size, (head_dim) or (dtype).
  /// Returns invalid_argument for a value outside its range, for an alias that does not point to an
  /// earlier plane of the same shape, and for block bytes past 2^40. Returns exhausted
  /// (host_memory) when memory is out.
  static Result<KvLayout> create(std::span<const GroupSpec> groups);

  /// Tokens in a block.
  std::int32_t block_size() const noexcept { return group_.block_size_tokens; }
  /// Number of layers: the largest layer index of any plane, plus one.
  std::int32_t num_layers() const noexcept { return num_layers_; }
  /// The planes, in the order in which create got them.
  std::span<const PlaneSpec> planes() const noexcept { return group_.planes; }
  /// The order of elements inside a head's tile of K and V.
  TileOrder tile_order() const noexcept { return group_.tile_order; }

  /// Bytes of KV that one token needs in all planes, with scales and without padding.
  std::int64_t bytes_per_token() const noexcept { return bytes_per_token_; }
  /// Bytes from one block to the next in block-major order. Each plane is padded to
  /// kPlaneAlignment.
  std::int64_t block_bytes() const noexcept { return block_bytes_; }
  /// Bytes of `plane` in one block, with padding. 0 for an alias.
  std::int64_t plane_bytes(std::int32_t plane) const noexcept { return bytes_[index(plane)]; }
  /// Returns the index of the plane of (layer, kind), or -1 when there is none. O(1).
  std::int32_t plane_of(std::int32_t layer, PlaneKind kind) const noexcept;

  /// Bytes from the arena's base to block 0 of `plane` in a pool of `num_blocks` blocks.
  std::int64_t plane_offset(std::int32_t plane, BlockOrder order,
                            std::int64_t num_blocks) const noexcept;
  /// Bytes from one block to the next within `plane`.
  std::int64_t block_stride(std::int32_t plane, BlockOrder order) const noexcept;
  /// Bytes from one head to the next within a block of `plane`: block_size rows.
  std::int64_t head_stride(std::int32_t plane) const noexcept;
  /// Bytes from one token to the next within a head (rows order): a row of head_dim elements.
  std::int64_t token_stride(std::int32_t plane) const noexcept;
  /// Bytes from a plane's first byte in a block to its scales per token and head; 0: it has none.
  std::int64_t scales_offset(std::int32_t plane) const noexcept;
  /// The order of elements inside a head's tile of `plane`.
  TileOrder tile_order_of(std::int32_t plane) const noexcept;
  /// Returns the bytes of `num_blocks` blocks. Returns invalid_argument (num_blocks) outside 1 ..
  /// kMaxBlocks, and invalid_argument (pool_bytes) when the product does not fit 63 bits.
  Result<std::int64_t> pool_bytes(std::int64_t num_blocks) const noexcept {
    return pool_bytes(block_bytes_, num_blocks);
  }
  /// Does the same for blocks of `block_bytes` bytes, >= 1.
  static Result<std::int64_t> pool_bytes(std::int64_t block_bytes,
                                         std::int64_t num_blocks) noexcept;

 private:
  KvLayout() = default;
  static std::size_t index(std::int32_t plane) noexcept { return static_cast<std::size_t>(plane); }

  GroupSpec group_;
  std::vector<std::int64_t> bytes_;   // per plane, padded; 0 for an alias
  std::vector<std::int64_t> offset_;  // per plane: prefix sum of bytes_; an alias has the offset of
                                      // its target
  std::vector<std::int32_t> plane_of_;  // [num_layers, kPlaneKinds]
  std::int32_t num_layers_ = 0;
  std::int64_t bytes_per_token_ = 0;
  std::int64_t block_bytes_ = 0;
};

}  // namespace kvarena
