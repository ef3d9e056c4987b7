#pragma once

/// @file
/// What a model's numbers may be at most, whoever reads them: far past any model, and small enough
/// that products of a few of them fit 63 bits.

#include <cstdint>

namespace kvarena::capacity {

inline constexpr std::int64_t kMostLayers = 4096;                   ///< of a model
inline constexpr std::int64_t kMostHeads = 65'536;                  ///< of a layer; experts too
inline constexpr std::int64_t kMostDim = std::int64_t{1} << 20;     ///< elements of a head
inline constexpr std::int64_t kMostWidth = std::int64_t{1} << 24;   ///< of a residual or an MLP
inline constexpr std::int64_t kMostTokens = std::int64_t{1} << 40;  ///< that a model reads

}  // namespace kvarena::capacity
