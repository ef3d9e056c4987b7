#pragma once

/// @file
/// `GgufHeader`: what a GGUF file says before its tensors' data: metadata and tensor infos. Only
/// the header is read, and of the metadata only what fits a planner is kept: a tokenizer's arrays
/// are passed over. A plain value. Format: ggml/docs/gguf.md of llama.cpp, versions 2 and 3, little
/// endian.

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

/// A header, or those of a model that is split over several files.
struct GgufHeader {
  std::uint32_t version = 0;      ///< of the first file
  std::int64_t header_bytes = 0;  ///< of the first file, up to its tensors' data
  GgufMetadata metadata;          ///< of the first file
  TensorIndex weights;            ///< of all files; types as ggml_types() has them

  /// The value of `key`, or nullptr.
  const GgufValue* find(std::string_view key) const noexcept;
  /// The whole number of `key`; nothing when it is absent or something else.
  std::optional<std::int64_t> number(std::string_view key) const noexcept;
  /// The text of `key`; nothing when it is absent or something else.
  std::optional<std::string_view> text(std::string_view key) const noexcept;
  /// The length of the array `key`; nothing when it is absent or something else.
  std::optional<std::int64_t> length(std::string_view key) const noexcept;
};

/// Reads one file's header from `source`. On failure fills `failure` and returns its Status:
/// parse_error, io_error. Memory: a small multiple of the header, which has at most 256 MiB.
Status parse_gguf(const ByteSource& source, GgufHeader& header, ReadFailure& failure);

/// Reads the header of the regular file `path`, and where the file is the first of a split model
/// ("NAME-00001-of-00003.gguf") those of all its parts, which must lie beside it; stops at the
/// part with which they are larger than `max_bytes`. Also returns not_found.
Status read_gguf(const std::string& path, GgufHeader& header, ReadFailure& failure,
                 std::int64_t max_bytes = kMaxHeaderBytesOfModel);

/// Whether a file of that name is a part of a split model other than the first, which stands for
/// all of them.
bool is_later_gguf_part(std::string_view file_name) noexcept;

}  // namespace kvarena::capacity
