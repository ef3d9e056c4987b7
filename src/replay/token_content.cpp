#include "replay/token_content.hpp"

#include <bit>
#include <cstring>

namespace kvarena::replay {
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
  const RowSeed seed = row_seed(prefix_hash, layer, kind, head);
  const Pattern pattern = pattern_of(dtype, kind);
  const auto bytes = static_cast<std::uint32_t>(count * bytes_of(dtype));
  fill(seed, bytes / 4, pattern, out);
  if (bytes % 4 != 0) {
    const std::uint32_t last = lane(seed, bytes / 4, pattern);
    std::memcpy(out + (bytes - bytes % 4), &last, bytes % 4);
  }
}

}  // namespace kvarena::replay
