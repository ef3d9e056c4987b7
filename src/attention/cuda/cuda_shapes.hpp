#pragma once

/// @file
/// The shapes that attention on CUDA accepts, and the kernel for each. Pure functions, compiled in
/// builds without CUDA too. cuda_shapes.cpp also defines `takes_decode` and `workspace_bytes` of
/// the public header.

#include "kernels/columns/columns_limits.h"
#include "kernels/decode/decode_limits.h"
#include "kvarena/attention/cuda_attention.hpp"

#include <cstdint>

namespace kvarena::cuda {

/// Whether the type is bf16 or f16.
constexpr bool is_16_bit(DType dtype) noexcept {
  return dtype == DType::bf16 || dtype == DType::f16;
}

/// Checks the numbers of a shape. Returns invalid_argument with one of them.
Status check_shape(const AttentionShape& shape) noexcept;
/// Checks a layer's types, dims and tile order. It accepts what prefill can read, which reads the
/// most.
Status check_layer(const KvLayerView& kv) noexcept;
/// Returns whether a workspace for this K and V has room for the counters and the plan of prompts:
/// both planes have one type of one or two bytes, one head_dim and an order that the Hopper kernel
/// reads. Decode attention takes no other.
bool has_prompt_plan(const KvLayerView& kv) noexcept;
/// Returns the limits of decode attention for `rows` rows of at most `tokens` query tokens.
kernels::DecodeLimits decode_limits(const AttentionShape& shape, std::int32_t rows,
                                    std::int32_t tokens) noexcept;
/// Returns the limits of attention with many query columns for `rows` rows of at most `tokens`
/// query tokens, which may share prefixes. They are those of the smallest launch shape that serves
/// them.
kernels::ColumnsLimits columns_limits(const AttentionShape& shape, std::int32_t rows,
                                      std::int32_t tokens, bool shares_prefixes) noexcept;
/// Returns whether the kernel for many query columns can serve this shape on a GPU that it runs on.
bool takes_columns(const AttentionShape& shape) noexcept;
/// Returns the bytes for the groups of rows that share prefixes, in steps of at most `rows` rows; 0
/// when none may.
std::int64_t prefixes_bytes(const AttentionShape& shape, std::int32_t rows) noexcept;
/// Returns the bytes for the shared tokens of each row.
constexpr std::int64_t shared_tokens_bytes(std::int64_t rows) noexcept {
  return (rows * 4 + 255) / 256 * 256;
}
/// Returns the bytes of both.
std::int64_t shared_bytes(const AttentionShape& shape, std::int32_t rows) noexcept;
/// Returns the bytes of both kernels' parts of a workspace for steps of at most `rows` rows.
std::int64_t rows_bytes(const AttentionShape& shape, std::int32_t rows) noexcept;

}  // namespace kvarena::cuda
