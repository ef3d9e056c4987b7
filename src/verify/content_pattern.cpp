#include "verify/content_pattern.hpp"

#include <cmath>
#include <cstring>

namespace kvarena::verify {
namespace {

[[gnu::always_inline]] inline void fill_lanes(RowSeed seed, std::uint32_t count, Pattern pattern,
                                              std::byte* out) noexcept {
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint32_t x = lane(seed, i, pattern);
    std::memcpy(out + std::size_t{4} * i, &x, sizeof x);
  }
}

using FillLanes = void (*)(RowSeed, std::uint32_t, Pattern, std::byte*) noexcept;

void fill_lanes_portable(RowSeed seed, std::uint32_t count, Pattern pattern,
                         std::byte* out) noexcept {
  fill_lanes(seed, count, pattern, out);
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] void fill_lanes_avx2(RowSeed seed, std::uint32_t count, Pattern pattern,
                                             std::byte* out) noexcept {
  fill_lanes(seed, count, pattern, out);
}
FillLanes fastest() noexcept {
  return __builtin_cpu_supports("avx2") != 0 ? fill_lanes_avx2 : fill_lanes_portable;
}
#else
FillLanes fastest() noexcept { return fill_lanes_portable; }
#endif

}  // namespace

void fill_row(DType dtype, std::uint64_t prefix_hash, std::int32_t layer, RowKind kind,
              std::int32_t head, std::int32_t count, std::byte* out) noexcept {
  static const FillLanes fill = fastest();
  const RowSeed seed = row_seed(prefix_hash, layer, kind, head);
  const Pattern pattern = pattern_of(dtype, kind);
  const auto bytes = static_cast<std::uint32_t>(count * bytes_of(dtype));
  fill(seed, bytes / 4, pattern, out);
  if (bytes % 4 != 0) {
    const std::uint32_t last = lane(seed, bytes / 4, pattern);
    std::memcpy(out + (bytes - bytes % 4), &last, bytes % 4);
  }
}

// Exponents are 6 or 14 of 15, so an element is at most 240 and never a NaN. The first has exponent
// 15 and no mantissa bit 2: at least 256 and at most 352, so no smaller scale is enough.
float fill_index_row(std::uint64_t prefix_hash, std::int32_t layer, std::int32_t count,
                     std::byte* out) noexcept {
  constexpr Pattern kElements{.random = 0xc7c7c7c7U, .set = 0x30303030U};
  const RowSeed seed = row_seed(prefix_hash, layer, RowKind::index, 0);
  fill_lanes_portable(seed, static_cast<std::uint32_t>(count / 4), kElements, out);
  out[0] = (out[0] & std::byte{0x83}) | std::byte{0x78};
  return std::ldexp(1.0F, static_cast<int>(seed.high >> 29) - 4);
}

}  // namespace kvarena::verify
