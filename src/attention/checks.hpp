#pragma once

/// @file
/// The checks of validation, numbered. `Status::native` has the number of the failed check, so that
/// describe_attention can name the argument.

#include "kvarena/base/status.hpp"
#include "kvarena/base/views.hpp"

#include <cstdint>

namespace kvarena::attention {

/// The check that failed. checks.cpp has a sentence for each.
enum class Check : std::int32_t {
  none = 0,
  key_pointer,
  value_pointer,
  tables_pointer,
  row_offsets_pointer,
  seq_lens_pointer,
  num_blocks_pointer,
  q_pointer,
  out_pointer,
  slots_pointer,
  region_pointer,
  key_dtype,
  value_dtype,
  q_dtype,
  out_dtype,
  input_dtype,
  key_order,
  value_order,
  key_heads,
  value_heads,
  head_dim_k,
  head_dim_v,
  block_size,
  num_blocks,
  q_heads,
  key_alignment,
  value_alignment,
  q_alignment,
  out_alignment,
  input_alignment,
  q_stride,
  out_stride,
  input_stride,
  workspace_alignment,
  scale,
  window,
  soft_cap,
  num_rows,
  page_shift,
  seq_len,
  row_blocks,
  q_count,
  table_entry,
  num_tokens,
  slot,
  copy_block,
  region_bytes,
  limit_rows,
  limit_q_tokens,
  limit_threads,
  limit_path,
  limit_shape,
  plan_rows,
  plan_q_tokens,
  plan_window,
  plan_kv_tokens,
  workspace_bytes,
  tree_mask,
  chunk,
  sees_all,
  plan_visible,
  q_offsets_alignment,
  seq_lens_alignment,
  tables_alignment,
  row_slots_alignment,
  table_stride,
};

/// Returns `status` with the number of the check.
constexpr Status with(Check check, Status status) noexcept {
  status.native = static_cast<std::int32_t>(check);
  return status;
}

/// Returns ok when smallest <= value <= largest.
constexpr Status in_range(Check check, Resource resource, std::int64_t value, std::int64_t smallest,
                          std::int64_t largest) noexcept {
  if (value >= smallest && value <= largest) return {};
  return with(check, invalid_argument(resource, value, smallest, largest));
}

/// Does the same for a field of the limits.
constexpr Status in_range(Check check, Option option, std::int64_t value, std::int64_t smallest,
                          std::int64_t largest) noexcept {
  if (value >= smallest && value <= largest) return {};
  return with(check, invalid_option(option, value, smallest, largest));
}

/// Returns ok when `pointer` is not null. The range in the Status means "not 0".
constexpr Status not_null(Check check, const void* pointer) noexcept {
  if (pointer != nullptr) return {};
  return with(check, invalid_argument(Resource::pointer, 0, 1, -1));
}

/// Returns ok when the CPU kernels compute with `dtype`.
Status cpu_dtype(Check check, DType dtype) noexcept;

/// Returns ok when `value` (an address or a stride) is a multiple of `alignment`.
Status aligned(Check check, std::int64_t value, std::int64_t alignment) noexcept;

/// Returns ok when the address of an array is a multiple of its element's alignment.
template <class T>
Status aligned(Check check, const T* array) noexcept {
  return aligned(check, static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(array)),
                 alignof(T));
}

/// Returns ok when `pointer` is not null and is aligned for `dtype`.
Status element_pointer(Check null, Check misaligned, const void* pointer, DType dtype) noexcept;

/// Returns ok when `stride`, the bytes between tokens of [num_tokens, num_heads, head_dim] memory,
/// is 0 (dense) or keeps tokens apart.
Status token_stride(Check check, std::int64_t stride, std::int64_t num_heads, std::int64_t head_dim,
                    DType dtype) noexcept;

/// Returns ok when the CPU can read and write K and V of a layer. O(1).
Status check_layer(const KvLayerView& kv) noexcept;

}  // namespace kvarena::attention
