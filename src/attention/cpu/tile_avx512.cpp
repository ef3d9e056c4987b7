// This file has its own AVX-512 flags, and is called only where the CPU has AVX-512. Everything
// except the one function at the end has internal linkage, and no standard library template is
// used: the linker could keep a copy of an inline function made with these flags for the whole
// program.

#include "attention/cpu/tile_ops.hpp"

#include <immintrin.h>

namespace kvarena::attention {
namespace {

/// 32 elements of a row as floats.
struct Pair {
  __m512 lo;
  __m512 hi;
};

// Loads 32 bf16 elements of a row. The bits of even elements are the low halves of the 32-bit
// words, so one shift and one mask widen all 32, in even/odd order.
struct Bf16 {
  static constexpr std::int64_t kBytes = 2;
  static Pair widen(__m512i words) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(words, 16)),
            _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(-65536)))};
  }
  static Pair load(const std::byte* p) { return widen(_mm512_loadu_si512(p)); }
  static Pair load(const std::byte* p, std::uint32_t mask) {
    return widen(_mm512_maskz_loadu_epi16(mask, p));
  }
};

/// Loads 32 f16 elements of a row, in order.
struct F16 {
  static constexpr std::int64_t kBytes = 2;
  static __m256i half_line(const std::byte* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static Pair load(const std::byte* p) {
    return {_mm512_cvtph_ps(half_line(p)), _mm512_cvtph_ps(half_line(p + 32))};
  }
  static Pair load(const std::byte* p, std::uint32_t mask) {
    const __m512i words = _mm512_maskz_loadu_epi16(mask, p);
    return {_mm512_cvtph_ps(_mm512_castsi512_si256(words)),
            _mm512_cvtph_ps(_mm512_extracti64x4_epi64(words, 1))};
  }
};

/// Loads 32 f32 elements of a row, in order.
struct F32 {
  static constexpr std::int64_t kBytes = 4;
  static Pair load(const std::byte* p) { return {_mm512_loadu_ps(p), _mm512_loadu_ps(p + 64)}; }
  static Pair load(const std::byte* p, std::uint32_t mask) {
    return {_mm512_maskz_loadu_ps(static_cast<__mmask16>(mask & 0xFFFFU), p),
            _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask >> 16), p + 64)};
  }
};

/// The lanes of the last, partial group of 32 dims.
std::uint32_t tail_mask(std::int32_t dim) { return (1U << (dim % kDimPad)) - 1U; }

/// Prefetches 32 elements.
template <class T>
void prefetch_pair(const std::byte* p) {
  _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1);
  if constexpr (T::kBytes == 4) _mm_prefetch(reinterpret_cast<const char*>(p + 64), _MM_HINT_T1);
}

// Sums 16 vectors: lane i of the result is the sum of v[i]. Halves are swapped and added, so that
// after k steps each vector has 16 / 2^k partial sums of each of 2^k inputs.
__m512 sum_each(const __m512 (&v)[16]) {
  __m512 a[8];
  for (int i = 0; i < 8; ++i) {  // 32-bit pairs
    a[i] = _mm512_add_ps(_mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]),
                         _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]));
  }
  __m512 b[4];
  for (int i = 0; i < 4;
       ++i) {  // 64-bit pairs: each 128-bit lane is now (v4i, v4i+1, v4i+2, v4i+3)
    const __m512d x = _mm512_castps_pd(a[2 * i]);
    const __m512d y = _mm512_castps_pd(a[2 * i + 1]);
    b[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)),
                         _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
  }
  const __m512 c0 =
      _mm512_add_ps(_mm512_shuffle_f32x4(b[0], b[1], 0x88), _mm512_shuffle_f32x4(b[0], b[1], 0xDD));
  const __m512 c1 =
      _mm512_add_ps(_mm512_shuffle_f32x4(b[2], b[3], 0x88), _mm512_shuffle_f32x4(b[2], b[3], 0xDD));
  return _mm512_add_ps(_mm512_shuffle_f32x4(c0, c1, 0x88), _mm512_shuffle_f32x4(c0, c1, 0xDD));
}

// Multiplies G query rows with 16 / G tokens at a time (4 for G = 3). There are 16 accumulators;
// lane g * N + t of their sums is the score of row g and token t.
template <class T, int G>
void score_rows(const float* q, std::int64_t q_stride, const TokenRows& keys, std::int32_t dim,
                float* s) {
  constexpr int N = G == 3 ? 4 : 16 / G;
  const std::int32_t whole = dim / kDimPad;
  for (std::int32_t first = 0; first < keys.count; first += N) {
    const std::byte* row[std::size_t{N}];
    const std::byte* ahead[std::size_t{N}];
    for (int t = 0; t < N; ++t) {
      row[t] = keys.rows[first + t];
      ahead[t] = keys.ahead != nullptr ? keys.ahead[first + t] : row[t];
    }
    __m512 acc[16];
    for (auto& a : acc) a = _mm512_setzero_ps();
    const auto multiply = [&](int t, const Pair& k, const float* from) {
      for (int g = 0; g < G; ++g) {
        const float* at = from + g * q_stride;
        acc[g * N + t] = _mm512_fmadd_ps(k.lo, _mm512_loadu_ps(at), acc[g * N + t]);
        acc[g * N + t] = _mm512_fmadd_ps(k.hi, _mm512_loadu_ps(at + 16), acc[g * N + t]);
      }
    };
    for (std::int32_t pair = 0; pair < whole; ++pair) {
      const std::int64_t offset = pair * kDimPad * T::kBytes;
      for (int t = 0; t < N; ++t) {
        prefetch_pair<T>(ahead[t] + offset);
        multiply(t, T::load(row[t] + offset), q + pair * kDimPad);
      }
    }
    if (dim % kDimPad != 0) {
      const std::int64_t offset = whole * kDimPad * T::kBytes;
      for (int t = 0; t < N; ++t) {
        prefetch_pair<T>(ahead[t] + offset);
        multiply(t, T::load(row[t] + offset, tail_mask(dim)), q + whole * kDimPad);
      }
    }
    alignas(64) float sums[16];
    _mm512_store_ps(sums, sum_each(acc));
    for (int g = 0; g < G; ++g) {
      for (int t = 0; t < N; ++t) s[g * kChunkTokens + first + t] = sums[g * N + t];
    }
  }
}

/// TileOps::score: takes the query rows in groups of at most four.
template <class T>
void score(const float* q, std::int64_t q_stride, std::int32_t num_q, const TokenRows& keys,
           std::int32_t dim, float* s) {
  TokenRows rows = keys;
  for (std::int32_t r = 0; r < num_q;) {
    const float* from = q + r * q_stride;
    float* to = s + r * kChunkTokens;
    const std::int32_t left = num_q - r;
    if (left >= 4) score_rows<T, 4>(from, q_stride, rows, dim, to);
    if (left == 3) score_rows<T, 3>(from, q_stride, rows, dim, to);
    if (left == 2) score_rows<T, 2>(from, q_stride, rows, dim, to);
    if (left == 1) score_rows<T, 1>(from, q_stride, rows, dim, to);
    r += left >= 4 ? 4 : left;
    rows.ahead = nullptr;
  }
}

// Adds dims [dim0, dim0 + P * 32) of all tokens to G rows, with 2 * P * G accumulators.
template <class T, int G, int P, bool kTail>
void weigh_dims(const float* p, const float* correction, const TokenRows& values, std::int32_t dim,
                std::int32_t dim0, float* acc, std::int64_t acc_stride) {
  const std::int64_t offset = dim0 * T::kBytes;
  const std::uint32_t mask = kTail ? tail_mask(dim) : 0U;
  __m512 sum[std::size_t{G}][std::size_t{2 * P}];
  for (int g = 0; g < G; ++g) {
    const __m512 factor = _mm512_set1_ps(correction[g]);
    for (int i = 0; i < 2 * P; ++i) {
      sum[g][i] = _mm512_mul_ps(factor, _mm512_loadu_ps(acc + g * acc_stride + dim0 + 16 * i));
    }
  }
  const bool prefetch = values.ahead != nullptr;
  for (std::int32_t t = 0; t < values.count; ++t) {
    const std::byte* row = values.rows[t] + offset;
    Pair v[std::size_t{P}];
    for (int i = 0; i < P; ++i) {
      const std::byte* at = row + i * kDimPad * T::kBytes;
      if (prefetch) prefetch_pair<T>(values.ahead[t] + offset + i * kDimPad * T::kBytes);
      v[i] = kTail ? T::load(at, mask) : T::load(at);
    }
    for (int g = 0; g < G; ++g) {
      const __m512 weight = _mm512_set1_ps(p[g * kChunkTokens + t]);
      for (int i = 0; i < P; ++i) {
        sum[g][2 * i] = _mm512_fmadd_ps(weight, v[i].lo, sum[g][2 * i]);
        sum[g][2 * i + 1] = _mm512_fmadd_ps(weight, v[i].hi, sum[g][2 * i + 1]);
      }
    }
  }
  for (int g = 0; g < G; ++g) {
    for (int i = 0; i < 2 * P; ++i) {
      _mm512_storeu_ps(acc + g * acc_stride + dim0 + 16 * i, sum[g][i]);
    }
  }
}

/// Adds all dims to G rows, in the widest groups that fit into the registers.
template <class T, int G>
void weigh_rows(const float* p, const float* correction, const TokenRows& values, std::int32_t dim,
                float* acc, std::int64_t acc_stride) {
  constexpr int P = G <= 2 ? 4 : 2;
  std::int32_t dim0 = 0;
  for (; dim0 + P * kDimPad <= dim; dim0 += P * kDimPad) {
    weigh_dims<T, G, P, false>(p, correction, values, dim, dim0, acc, acc_stride);
  }
  for (; dim0 + kDimPad <= dim; dim0 += kDimPad) {
    weigh_dims<T, G, 1, false>(p, correction, values, dim, dim0, acc, acc_stride);
  }
  if (dim0 < dim) weigh_dims<T, G, 1, true>(p, correction, values, dim, dim0, acc, acc_stride);
}

/// TileOps::weigh: takes the query rows in groups of at most four.
template <class T>
void weigh(const float* p, const float* correction, std::int32_t num_q, const TokenRows& values,
           std::int32_t dim, float* acc, std::int64_t acc_stride) {
  TokenRows rows = values;
  for (std::int32_t r = 0; r < num_q;) {
    const float* from = p + r * kChunkTokens;
    float* to = acc + r * acc_stride;
    const std::int32_t left = num_q - r;
    if (left >= 4) weigh_rows<T, 4>(from, correction + r, rows, dim, to, acc_stride);
    if (left == 3) weigh_rows<T, 3>(from, correction + r, rows, dim, to, acc_stride);
    if (left == 2) weigh_rows<T, 2>(from, correction + r, rows, dim, to, acc_stride);
    if (left == 1) weigh_rows<T, 1>(from, correction + r, rows, dim, to, acc_stride);
    r += left >= 4 ? 4 : left;
    rows.ahead = nullptr;
  }
}

// Returns 2^x: 2^round(x) by the exponent, times the Taylor series of exp(f ln 2), |f| <= 1/2,
// whose first omitted term is 5e-9. NaN stays NaN. Below -160 the result is 0.
__m512 exp2(__m512 x) {
  x = _mm512_max_ps(_mm512_set1_ps(-160.0F), x);
  const __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 f = _mm512_sub_ps(x, n);
  __m512 y = _mm512_set1_ps(1.5252733804e-5F);  // ln2^7 / 7!
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(1.5403530393e-4F));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(1.3333558146e-3F));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(9.6181291076e-3F));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(5.5504108665e-2F));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(2.4022650696e-1F));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(6.9314718056e-1F));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(1.0F));
  return _mm512_scalef_ps(y, n);
}

// Returns tanh(x) = 1 - 2 / (exp(2x) + 1).
__m512 tanh(__m512 x) {
  const __m512 bounded = _mm512_min_ps(_mm512_set1_ps(20.0F), x);
  const __m512 e = exp2(_mm512_mul_ps(bounded, _mm512_set1_ps(2.8853900818F)));
  const __m512 one = _mm512_set1_ps(1.0F);
  return _mm512_sub_ps(one, _mm512_div_ps(_mm512_set1_ps(2.0F), _mm512_add_ps(e, one)));
}

/// The first `count` lanes.
__mmask16 lanes(std::int32_t count) {
  return static_cast<__mmask16>(count >= 16 ? 0xFFFFU : (1U << count) - 1U);
}

/// TileOps::soften.
float soften(float* s, std::int32_t count, float cap, float* m, float* l) {
  constexpr int kVectors = kChunkTokens / 16;
  const __m512 lowest = _mm512_set1_ps(-__builtin_inff());
  __m512 x[kVectors];
  __m512 top = lowest;
  for (std::int32_t i = 0; i * 16 < count; ++i) {
    const __mmask16 mask = lanes(count - i * 16);
    x[i] = _mm512_mask_loadu_ps(lowest, mask, s + i * 16);
    if (cap > 0.0F) x[i] = _mm512_mask_mul_ps(lowest, mask, tanh(x[i]), _mm512_set1_ps(cap));
    top = _mm512_max_ps(top, x[i]);
  }
  const float largest = _mm512_reduce_max_ps(top);
  const float next = largest > *m ? largest : *m;
  const float shift = next == -__builtin_inff() ? 0.0F : next;
  __m512 total = _mm512_setzero_ps();
  for (std::int32_t i = 0; i * 16 < count; ++i) {
    const __m512 weight = exp2(_mm512_sub_ps(x[i], _mm512_set1_ps(shift)));
    const __mmask16 mask = lanes(count - i * 16);
    _mm512_mask_storeu_ps(s + i * 16, mask, weight);
    total = _mm512_mask_add_ps(total, mask, total, weight);
  }
  const float correction = _mm512_cvtss_f32(exp2(_mm512_set1_ps(*m - shift)));
  *l = *l * correction + _mm512_reduce_add_ps(total);
  *m = next;
  return correction;
}

template <class T>
constexpr TileOps kOps{score<T>, soften, weigh<T>, T::kBytes == 2 && __is_same(T, Bf16)};

}  // namespace

const TileOps& avx512_tile_ops(DType dtype) noexcept {
  switch (dtype) {
    case DType::f16: return kOps<F16>;
    case DType::bf16: return kOps<Bf16>;
    default: return kOps<F32>;
  }
}

}  // namespace kvarena::attention
