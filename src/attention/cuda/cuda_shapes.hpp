#pragma once

/// @file
/// Which shapes attention on CUDA takes, and by which kernel: pure functions, compiled in builds
/// without CUDA too. cuda_shapes.cpp also has `takes_decode` and `workspace_bytes` of the public
/// header.

#include "kernels/decode/decode_limits.h"
#include "kvarena/attention/cuda_attention.hpp"

#include <cstdint>

namespace kvarena::cuda {

/// bf16 or f16.
constexpr bool is_16_bit(DType dtype) noexcept {
  return dtype == DType::bf16 || dtype == DType::f16;
}

/// The numbers of a shape, or invalid_argument naming one.
Status check_shape(const AttentionShape& shape) noexcept;
/// A layer's types, dims and tile order: what prefill, which reads most, can read.
Status check_layer(const KvLayerView& kv) noexcept;
/// What decode attention is asked for `rows` rows of `tokens` query tokens.
kernels::DecodeLimits limits_of(const AttentionShape& shape, std::int32_t rows,
                                std::int32_t tokens) noexcept;

}  // namespace kvarena::cuda
