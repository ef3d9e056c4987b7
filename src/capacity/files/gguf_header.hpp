#pragma once

/// @file
/// `GgufHeader`: the metadata and tensor infos of a GGUF file, which come before its tensors' data.
/// Only the header is read. Only metadata that planning uses is kept; a tokenizer's arrays are
/// skipped. A plain value. Format: ggml/docs/gguf.md of llama.cpp, versions 2 and 3, little endian.

#include "capacity/files/byte_source.hpp"
#include "capacity/files/gguf_value.hpp"
#include "capacity/files/read_failure.hpp"
#include "capacity/files/tensor_index.hpp"
#include "kvarena/base/status.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace kvarena::capacity {

/// A type of tensors: a block of elements takes a number of bytes, with its scales.
struct GgmlType {
  std::uint32_t number = 0;         ///< its number in files
  std::string_view name;            ///< ggml's name, "q4_K"
  std::int64_t block_elements = 1;  ///< a row has whole blocks
  std::int64_t block_bytes = 0;     ///< of one block
};

/// Returns all types that a file may have, by number. Types that ggml has removed are missing.
std::span<const GgmlType> ggml_types() noexcept;
/// Returns the type with this number, or nullptr. O(number of types).
const GgmlType* find_ggml_type(std::uint32_t number) noexcept;

/// The header of a file, or the headers of a model that is split over several files.
struct GgufHeader {
  std::uint32_t version = 0;      ///< of the first file
  std::int64_t header_bytes = 0;  ///< of the first file, up to its tensors' data
  GgufMetadata metadata;          ///< of the first file
  TensorIndex weights;            ///< tensors of all files; types are named as in ggml_types()

  /// Returns the value of `key`, or nullptr.
  const GgufValue* find(std::string_view key) const noexcept;
  /// Returns the whole number of `key`; nullopt when the key is missing or has another type.
  std::optional<std::int64_t> number(std::string_view key) const noexcept;
  /// Returns the text of `key`; nullopt when the key is missing or has another type.
  std::optional<std::string_view> text(std::string_view key) const noexcept;
  /// Returns the length of the array `key`; nullopt when the key is missing or has another type.
  std::optional<std::int64_t> length(std::string_view key) const noexcept;
};

/// Reads one file's header from `source`. On failure fills `failure` and returns its Status:
/// parse_error, io_error. Memory: a small multiple of the header, which has at most 256 MiB.
Status parse_gguf(const ByteSource& source, GgufHeader& header, ReadFailure& failure);

/// Reads the header of the regular file `path`. When the file is the first of a split model
/// ("NAME-00001-of-00003.gguf"), also reads the headers of all other parts, which must be in the
/// same folder. Fails at the part with which the headers exceed `max_bytes`. Also returns
/// not_found.
Status read_gguf(const std::string& path, GgufHeader& header, ReadFailure& failure,
                 std::int64_t max_bytes = kMaxHeaderBytesOfModel);

/// Returns whether a file with this name is a part of a split model, but not its first part.
bool is_later_gguf_part(std::string_view file_name) noexcept;

}  // namespace kvarena::capacity
