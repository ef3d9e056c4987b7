#pragma once

/// @file
/// What validation can find, numbered: `Status::native` carries the number, so that
/// describe_attention can say which argument it was.

#include "kvarena/base/status.hpp"
#include "kvarena/base/views.hpp"

#include <cstdint>

namespace kvarena::attention {

/// Which check failed. checks.cpp has a sentence for each.
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
};

/// `status` with the check's number.
constexpr Status with(Check check, Status status) noexcept {
  status.native = static_cast<std::int32_t>(check);
  return status;
}

/// ok when smallest <= value <= largest.
constexpr Status in_range(Check check, Resource resource, std::int64_t value, std::int64_t smallest,
                          std::int64_t largest) noexcept {
  if (value >= smallest && value <= largest) return {};
  return with(check, invalid_argument(resource, value, smallest, largest));
}

/// The same of a field of the limits.
constexpr Status in_range(Check check, Option option, std::int64_t value, std::int64_t smallest,
                          std::int64_t largest) noexcept {
  if (value >= smallest && value <= largest) return {};
  return with(check, invalid_option(option, value, smallest, largest));
}

/// ok when `pointer` is not null. The range says "not 0".
constexpr Status not_null(Check check, const void* pointer) noexcept {
  if (pointer != nullptr) return {};
  return with(check, invalid_argument(Resource::pointer, 0, 1, -1));
}

/// ok when the CPU computes with `dtype`.
Status cpu_dtype(Check check, DType dtype) noexcept;

/// ok when `value` (an address or a stride) is a multiple of `alignment`.
Status aligned(Check check, std::int64_t value, std::int64_t alignment) noexcept;

/// ok when `pointer` is not null and aligned for `dtype`.
Status element_pointer(Check null, Check misaligned, const void* pointer, DType dtype) noexcept;

/// ok when K and V of a layer can be read and written by the CPU. O(1).
Status check_layer(const KvLayerView& kv) noexcept;

}  // namespace kvarena::attention
