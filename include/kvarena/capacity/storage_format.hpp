#pragma once

/// @file
/// Storage formats of numbers. A format stores a block of elements in a number of bytes. A plain
/// type has one element in a block. A block format stores its scales in the block. A static table;
/// pure functions for any thread.

#include "kvarena/base/dtype.hpp"
#include "kvarena/base/export.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace kvarena::capacity {

/// A format that stores `elements` elements in `bytes` bytes. A partly filled block takes the bytes
/// of a whole one.
struct StorageFormat {
  std::string_view name;      ///< "bf16", "q8_0"
  std::int32_t elements = 1;  ///< elements of a block
  std::int32_t bytes = 0;     ///< bytes of a block with its scales
};

/// Returns all formats, plain types first.
KVARENA_EXPORT std::span<const StorageFormat> storage_formats() noexcept;
/// Returns the format with this name, or nullptr. Letter case is ignored. Other common names, such
/// as "bfloat16", "float16", "float32" and "fp8", are known too. O(number of formats).
KVARENA_EXPORT const StorageFormat* find_storage_format(std::string_view name) noexcept;
/// Returns the type of the format, or nullopt for a format that a KvLayout cannot have.
KVARENA_EXPORT std::optional<DType> dtype_of(const StorageFormat& format) noexcept;
/// Returns the bytes of `count` >= 0 elements. Saturates at 2^63 - 1.
KVARENA_EXPORT std::int64_t stored_bytes(const StorageFormat& format, std::int64_t count) noexcept;

}  // namespace kvarena::capacity
