#include "replay/token_content.hpp"

#include <bit>
#include <cstring>

namespace kvarena::replay {
namespace {

constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15ULL;

constexpr std::uint64_t mix(std::uint64_t x) noexcept {
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ULL;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ULL;
  return x ^ (x >> 32);
}

// Which bits of a lane are random and which are set, so that each element is a finite number with
// one of two exponents: sign, the lowest exponent bit and the mantissa are random.
struct Pattern {
  std::uint32_t random;
  std::uint32_t set;
};

constexpr Pattern pattern_of(DType dtype, RowKind kind) noexcept {
  const bool query = kind == RowKind::query;
  switch (dtype) {
    case DType::bf16: return {0x80ff80ffU, query ? 0x40004000U : 0x3e003e00U};
    case DType::f16: return {0x87ff87ffU, query ? 0x40004000U : 0x30003000U};
    default: return {0x80ffffffU, query ? 0x40000000U : 0x3e000000U};
  }
}

[[gnu::always_inline]] inline std::uint32_t lane(std::uint32_t low, std::uint32_t high,
                                                 std::uint32_t i, Pattern pattern) noexcept {
  std::uint32_t x = low + i * 0x9e3779b9U;
  x ^= x >> 15;
  x *= high;
  x ^= x >> 16;
  return (x & pattern.random) | pattern.set;
}

[[gnu::always_inline]] inline void fill_lanes(std::uint64_t seed, std::uint32_t count,
                                              Pattern pattern, std::byte* out) noexcept {
  const auto low = static_cast<std::uint32_t>(seed);
  const auto high = static_cast<std::uint32_t>(seed >> 32) | 1U;
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint32_t x = lane(low, high, i, pattern);
    std::memcpy(out + std::size_t{4} * i, &x, sizeof x);
  }
}

using FillLanes = void (*)(std::uint64_t, std::uint32_t, Pattern, std::byte*) noexcept;

void fill_lanes_portable(std::uint64_t seed, std::uint32_t count, Pattern pattern,
                         std::byte* out) noexcept {
  fill_lanes(seed, count, pattern, out);
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] void fill_lanes_avx2(std::uint64_t seed, std::uint32_t count,
                                             Pattern pattern, std::byte* out) noexcept {
  fill_lanes(seed, count, pattern, out);
}
FillLanes fastest() noexcept {
  return __builtin_cpu_supports("avx2") != 0 ? fill_lanes_avx2 : fill_lanes_portable;
}
#else
FillLanes fastest() noexcept { return fill_lanes_portable; }
#endif

}  // namespace

std::uint64_t TokenStream::token_at(std::int64_t position) const noexcept {
  const TraceRequest& request = *request_;
  if (position < request.input_tokens && request.prefix_block_tokens > 0) {
    const auto block = static_cast<std::size_t>(position / request.prefix_block_tokens);
    if (block < request.prefix_blocks.size()) {
      const auto id = static_cast<std::uint64_t>(request.prefix_blocks[block]);
      return id * kGolden + static_cast<std::uint64_t>(position % request.prefix_block_tokens);
    }
  }
  const bool output = position >= request.input_tokens;
  const auto writer = static_cast<std::uint64_t>(request.index) * 2 + (output ? 1 : 0);
  const auto sample = output ? static_cast<std::uint64_t>(sample_) : 0;
  return mix(writer * kGolden + sample) ^ static_cast<std::uint64_t>(position);
}

std::uint64_t TokenStream::next() noexcept {
  hash_ = (std::rotl(hash_, 23) ^ token_at(position_)) * kGolden;
  hash_ ^= hash_ >> 29;
  ++position_;
  return hash_;
}

void fill_row(DType dtype, std::uint64_t prefix_hash, std::int32_t layer, RowKind kind,
              std::int32_t head, std::int32_t count, std::byte* out) noexcept {
  static const FillLanes fill = fastest();
  const auto plane = (static_cast<std::uint64_t>(layer) << 32) |
                     (static_cast<std::uint64_t>(head) << 2) | static_cast<std::uint64_t>(kind);
  const std::uint64_t seed = mix(prefix_hash + plane * kGolden);
  const Pattern pattern = pattern_of(dtype, kind);
  const auto bytes = static_cast<std::uint32_t>(count * bytes_of(dtype));
  fill(seed, bytes / 4, pattern, out);
  if (bytes % 4 != 0) {
    const std::uint32_t last =
        lane(static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32) | 1U,
             bytes / 4, pattern);
    std::memcpy(out + (bytes - bytes % 4), &last, bytes % 4);
  }
}

}  // namespace kvarena::replay
