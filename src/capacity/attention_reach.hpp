#pragma once

/// @file
/// How many tokens a layer's attention sees, by the kind of layer. Pure functions in double
/// precision, exact up to 2^53.

#include "kvarena/capacity/step_time.hpp"

namespace kvarena::capacity {

/// Pairs of a new token and a token that it sees, itself included.
double attended_pairs(const AttentionLayers& layers, const StepTimeRow& row) noexcept;

/// Tokens whose K and V a sequence's new tokens read: each once.
double attended_tokens(const AttentionLayers& layers, const StepTimeRow& row) noexcept;

}  // namespace kvarena::capacity
