#include "kvarena/capacity/storage_format.hpp"

#include "capacity/amount.hpp"
#include "capacity/ascii.hpp"

#include <algorithm>
#include <array>

namespace kvarena::capacity {
namespace {

// Blocks of q8_0, q4_0, q4_K and q6_K: ggml's block structures. mxfp4 and nvfp4: the OCP
// Microscaling Formats specification and NVIDIA's variant of it.
constexpr std::array<StorageFormat, 14> kFormats = {{
    {"f32", 1, 4},
    {"f16", 1, 2},
    {"bf16", 1, 2},
    {"fp8_e4m3", 1, 1},
    {"fp8_e5m2", 1, 1},
    {"int8", 1, 1},
    {"int4", 2, 1},      // two elements a byte, scales apart
    {"q8_0", 32, 34},    // 32 x int8 and an f16 scale
    {"q6_K", 256, 210},  // 256 x 6 bits, 16 int8 scales and an f16 scale
    {"q5_0", 32, 22},    // 32 x 5 bits and an f16 scale
    {"q4_K", 256, 144},  // 256 x 4 bits, 12 B of scales and two f16 scales
    {"q4_0", 32, 18},    // 32 x 4 bits and an f16 scale
    {"mxfp4", 32, 17},   // 32 x 4 bits and an e8m0 scale
    {"nvfp4", 16, 9},    // 16 x 4 bits and an e4m3 scale
}};

struct Alias {
  std::string_view name, meant;
};

constexpr std::array<Alias, 12> kAliases = {{
    {"float32", "f32"},
    {"fp32", "f32"},
    {"float16", "f16"},
    {"fp16", "f16"},
    {"half", "f16"},
    {"bfloat16", "bf16"},
    {"fp8", "fp8_e4m3"},
    {"f8_e4m3", "fp8_e4m3"},
    {"float8_e4m3fn", "fp8_e4m3"},
    {"f8_e5m2", "fp8_e5m2"},
    {"float8_e5m2", "fp8_e5m2"},
    {"i8", "int8"},
}};

}  // namespace

std::span<const StorageFormat> storage_formats() noexcept { return kFormats; }

const StorageFormat* find_storage_format(std::string_view name) noexcept {
  for (const Alias& alias : kAliases) {
    if (same_letters(alias.name, name)) name = alias.meant;
  }
  const auto* found = std::find_if(kFormats.begin(), kFormats.end(), [name](const auto& format) {
    return same_letters(format.name, name);
  });
  return found == kFormats.end() ? nullptr : found;
}

std::optional<DType> dtype_of(const StorageFormat& format) noexcept {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::fp8_e4m3, DType::int8}) {
    if (name_of(dtype) == format.name) return dtype;
  }
  return std::nullopt;
}

std::int64_t stored_bytes(const StorageFormat& format, std::int64_t count) noexcept {
  return times(ceil_div(count, format.elements), format.bytes);
}

}  // namespace kvarena::capacity
