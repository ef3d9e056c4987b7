#include "attention/cpu/tile_ops.hpp"
#include "base/half.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

namespace kvarena::attention {
namespace {

// The loops run over kLanes independent sums, because the compiler can vectorise those without
// reordering additions.
constexpr std::int32_t kLanes = 16;

struct Bf16 {
  using Bits = std::uint16_t;
  static float widen(Bits bits) { return f32_from_bf16(bits); }
};
struct F16 {
  using Bits = std::uint16_t;
  static float widen(Bits bits) { return f32_from_f16(bits); }
};
struct F32 {
  using Bits = float;
  static float widen(float value) { return value; }
};

// Widens `dim` <= kDimPad elements of a row to floats, with zeros behind them.
template <class T>
void widen_row(const std::byte* row, std::int32_t dim, float* to) {
  typename T::Bits bits[kDimPad] = {};
  std::memcpy(bits, row, static_cast<std::size_t>(dim) * sizeof bits[0]);
  for (std::int32_t d = 0; d < kDimPad; ++d) to[d] = T::widen(bits[d]);
}

void prefetch_row(const std::byte* row, std::int64_t bytes) {
  for (std::int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at, 0, 2);
}

/// TileOps::score.
template <class T>
void score(const float* q, std::int64_t q_stride, std::int32_t num_q, const TokenRows& keys,
           std::int32_t dim, float* s) {
  constexpr std::int64_t kBytes = sizeof(typename T::Bits);
  for (std::int32_t t = 0; t < keys.count; ++t) {
    if (keys.ahead != nullptr) prefetch_row(keys.ahead[t], dim * kBytes);
    for (std::int32_t r = 0; r < num_q; ++r) s[r * kChunkTokens + t] = 0.0F;
    for (std::int32_t dim0 = 0; dim0 < dim; dim0 += kDimPad) {
      alignas(64) float key[kDimPad];
      widen_row<T>(keys.rows[t] + dim0 * kBytes, std::min(kDimPad, dim - dim0), key);
      for (std::int32_t r = 0; r < num_q; ++r) {
        const float* from = q + r * q_stride + dim0;
        float sum[kLanes];
        for (std::int32_t i = 0; i < kLanes; ++i) {
          sum[i] = from[i] * key[i] + from[kLanes + i] * key[kLanes + i];
        }
        for (std::int32_t width = kLanes / 2; width > 0; width /= 2) {
          for (std::int32_t i = 0; i < width; ++i) sum[i] += sum[i + width];
        }
        s[r * kChunkTokens + t] += sum[0];
      }
    }
  }
}

/// TileOps::weigh.
template <class T>
void weigh(const float* p, const float* correction, std::int32_t num_q, const TokenRows& values,
           std::int32_t dim, float* acc, std::int64_t acc_stride) {
  constexpr std::int64_t kBytes = sizeof(typename T::Bits);
  for (std::int32_t r = 0; r < num_q; ++r) {
    for (std::int32_t d = 0; d < dim; ++d) acc[r * acc_stride + d] *= correction[r];
  }
  for (std::int32_t t = 0; t < values.count; ++t) {
    if (values.ahead != nullptr) prefetch_row(values.ahead[t], dim * kBytes);
    for (std::int32_t dim0 = 0; dim0 < dim; dim0 += kDimPad) {
      alignas(64) float value[kDimPad];
      widen_row<T>(values.rows[t] + dim0 * kBytes, std::min(kDimPad, dim - dim0), value);
      for (std::int32_t r = 0; r < num_q; ++r) {
        const float weight = p[r * kChunkTokens + t];
        float* to = acc + r * acc_stride + dim0;
        for (std::int32_t d = 0; d < kDimPad; ++d) to[d] += weight * value[d];
      }
    }
  }
}

// Returns 2^x: 2^round(x) by the exponent bits, times the Taylor series of exp(f ln 2), |f| <= 1/2,
// whose first omitted term is 5e-9. Adding and subtracting 1.5 * 2^23 rounds to the nearest
// integer. Results below 2^-126 are 0. NaN stays NaN.
inline float exp2_of(float x) {
  const float bounded = x < -127.0F ? -127.0F : x;
  const float n = (bounded + 12582912.0F) - 12582912.0F;
  const float f = bounded - n;
  float y = 1.5252733804e-5F;  // ln2^7 / 7!
  y = y * f + 1.5403530393e-4F;
  y = y * f + 1.3333558146e-3F;
  y = y * f + 9.6181291076e-3F;
  y = y * f + 5.5504108665e-2F;
  y = y * f + 2.4022650696e-1F;
  y = y * f + 6.9314718056e-1F;
  y = y * f + 1.0F;
  const auto exponent = std::bit_cast<std::uint32_t>(n + 12582912.0F) - 0x4B400000U + 127U;
  return y * std::bit_cast<float>(exponent << 23);
}

/// TileOps::soften.
float soften(float* s, std::int32_t count, float cap, float* m, float* l) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  if (cap > 0.0F) {
    for (std::int32_t t = 0; t < count; ++t) s[t] = cap * std::tanh(s[t]);
  }
  std::fill(s + count, s + kChunkTokens, kLowest);
  std::array<float, kLanes> top;
  top.fill(*m);
  for (std::int32_t t = 0; t < kChunkTokens; t += kLanes) {
    for (std::int32_t i = 0; i < kLanes; ++i) {
      const auto lane = static_cast<std::size_t>(i);
      top[lane] = s[t + i] > top[lane] ? s[t + i] : top[lane];
    }
  }
  const float next = *std::max_element(top.begin(), top.end());
  const float shift = next == kLowest ? 0.0F : next;
  std::array<float, kLanes> total{};
  for (std::int32_t t = 0; t < kChunkTokens; t += kLanes) {
    for (std::int32_t i = 0; i < kLanes; ++i) {
      s[t + i] = exp2_of(s[t + i] - shift);
      total[static_cast<std::size_t>(i)] += s[t + i];
    }
  }
  float sum = 0.0F;
  for (const float lane : total) sum += lane;
  const float correction = exp2_of(*m - shift);
  *l = *l * correction + sum;
  *m = next;
  return correction;
}

template <class T>
constexpr TileOps kOps{score<T>, soften, weigh<T>, false};

}  // namespace

const TileOps& portable_tile_ops(DType dtype) noexcept {
  switch (dtype) {
    case DType::f16: return kOps<F16>;
    case DType::bf16: return kOps<Bf16>;
    default: return kOps<F32>;
  }
}

}  // namespace kvarena::attention
