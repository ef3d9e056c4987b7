#pragma once

/// @file
/// How numbers are stored: so many bytes for every so many elements. Plain types have one element;
/// formats of blocks carry their scales with them. A static table; pure functions, any thread.

#include "kvarena/base/dtype.hpp"
#include "kvarena/base/export.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace kvarena::capacity {

/// `bytes` for every `elements`; a rest of a block takes a whole one.
struct StorageFormat {
  std::string_view name;      ///< "bf16", "q8_0"
  std::int32_t elements = 1;  ///< of a block
  std::int32_t bytes = 0;     ///< of a block, its scales included
};

/// All formats, plain types first.
KVARENA_EXPORT std::span<const StorageFormat> storage_formats() noexcept;
/// The format of that name, letter case ignored, "bfloat16", "float16", "float32", "fp8" and the
/// like included; or nullptr. O(number of formats).
KVARENA_EXPORT const StorageFormat* find_storage_format(std::string_view name) noexcept;
/// The type of that name; none for formats that a KvLayout cannot have.
KVARENA_EXPORT std::optional<DType> dtype_of(const StorageFormat& format) noexcept;
/// Bytes of `count` elements, >= 0. Saturates at 2^63 - 1.
KVARENA_EXPORT std::int64_t stored_bytes(const StorageFormat& format, std::int64_t count) noexcept;

}  // namespace kvarena::capacity
