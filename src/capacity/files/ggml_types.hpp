#pragma once

/// @file
/// The tensor types that GGUF files name by number. A static table; pure functions, any thread.

#include <cstdint>
#include <span>
#include <string_view>

namespace kvarena::capacity {

/// A type: so many bytes for every block of so many elements, scales included.
struct GgmlType {
  std::uint32_t number = 0;         ///< in files
  std::string_view name;            ///< ggml's name, "q4_K"
  std::int64_t block_elements = 1;  ///< a row has whole blocks
  std::int64_t block_bytes = 0;     ///< of one block
};

/// All types that a file may have, by number. Numbers of types that ggml has given up are missing.
std::span<const GgmlType> ggml_types() noexcept;
/// The type with that number, or nullptr. O(number of types).
const GgmlType* find_ggml_type(std::uint32_t number) noexcept;

}  // namespace kvarena::capacity
