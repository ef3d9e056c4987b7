#pragma once

/// @file
/// KV writes: `append_kv` stores K and V of new tokens by slot mapping, and `copy_blocks` makes the
/// block copies of copy-on-write. No allocation. Pointers are borrowed for the call. Distinct
/// threads may write distinct slots and blocks at the same time.

#include "kvarena/attention/cpu_workers.hpp"
#include "kvarena/base/export.hpp"
#include "kvarena/base/status.hpp"
#include "kvarena/base/views.hpp"

#include <cstdint>
#include <span>
#include <type_traits>

namespace kvarena {

/// K and V of new tokens of one layer, and their slots.
struct AppendArgs {
  KvLayerView kv;                           ///< on a CPU f32, f16 or bf16, rows order
  const void* key = nullptr;                ///< [num_tokens, num_kv_heads, head_dim_k]
  const void* value = nullptr;              ///< [num_tokens, num_kv_heads, head_dim_v]; may be null
                                            ///< when the V plane aliases the K plane
  DType dtype = DType::f16;                 ///< of `key` and `value`: f32, f16 or bf16
  const std::int64_t* slots = nullptr;      ///< [num_tokens] block * block_size + offset; -1: skip
  std::int64_t num_tokens = 0;              ///< 0 is valid and does nothing
  QuantScales scales = {};                  ///< of fp8 K and V; CUDA only
  std::int64_t key_token_stride_bytes = 0;  ///< from one token of `key` to the next; 0: dense. Else
                                            ///< a multiple of the element, at least a dense
                                            ///< token, at most 2^40
  std::int64_t value_token_stride_bytes = 0;  ///< of `value`; the same
};

/// Writes exactly the slots named and converts to the planes' types (round to nearest even). On
/// CUDA a number for fp8 is multiplied by the inverse of its scale first; what is beyond 448 then,
/// or infinite, becomes 448 with its sign, and NaN stays NaN. Slots must be distinct. With
/// `workers` the tokens are divided among the workers. Returns invalid_argument (`token_index` with
/// the slot and its range; pointer; alignment; span_size of a token stride; ...) or unsupported
/// (`dtype`, `tile_order`); nothing is written then. O(bytes).
KVARENA_EXPORT Status append_kv(const AppendArgs& args, CpuWorkers* workers = nullptr) noexcept;

/// A part of every block: `bytes` bytes at `base + block * block_stride`. A block-major pool is one
/// region of whole blocks. A layer-major pool has one region for each plane that is not an alias.
struct BlockRegion {
  std::byte* base = nullptr;      ///< first byte of the part in block 0
  std::int64_t block_stride = 0;  ///< bytes from one block to the next
  std::int64_t bytes = 0;         ///< bytes to copy, at most block_stride
};

/// Makes each target block equal to its source in all `regions`. Targets must be distinct, and no
/// target may be the source of another copy, because the order of copies is not defined. Returns
/// invalid_argument (`block_index` with the id and range, also for source == target; pointer;
/// block_bytes); nothing is written then. O(bytes).
KVARENA_EXPORT Status copy_blocks(std::span<const BlockCopy> copies,
                                  std::span<const BlockRegion> regions,
                                  std::int64_t num_blocks) noexcept;

static_assert(std::is_trivially_copyable_v<AppendArgs> &&
              std::is_trivially_copyable_v<BlockRegion>);

}  // namespace kvarena
