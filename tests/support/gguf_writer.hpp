#pragma once

/// @file
/// Writes GGUF headers for tests, well-formed or not. Data is never written: HollowBytes stands for
/// a file whose data nobody reads.

#include "capacity/files/byte_source.hpp"
#include "capacity/files/gguf.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvarena::test {

/// The bytes of a number as stored.
template <class T>
std::string little_endian(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

/// One GGUF header. What is added last comes last.
class GgufWriter {
 public:
  static constexpr std::uint32_t kU8 = 0, kI8 = 1, kU16 = 2, kI16 = 3, kU32 = 4, kI32 = 5, kF32 = 6,
                                 kBool = 7, kText = 8, kArray = 9, kU64 = 10, kI64 = 11, kF64 = 12;

  std::uint32_t version = 3;       ///< written as it is
  std::uint64_t alignment = 32;    ///< of offsets; write the key too where it is another
  std::uint64_t more_keys = 0;     ///< claimed beside those there are
  std::uint64_t more_tensors = 0;  ///< claimed beside those there are

  static std::string text(std::string_view text) {
    return little_endian<std::uint64_t>(text.size()) + std::string(text);
  }

  GgufWriter& raw(std::string_view key, std::uint32_t type, std::string_view bytes) {
    keys_ += text(key) + little_endian(type) + std::string(bytes);
    ++num_keys_;
    return *this;
  }
  GgufWriter& number(std::string_view key, std::uint32_t value) {
    return raw(key, kU32, little_endian(value));
  }
  GgufWriter& string(std::string_view key, std::string_view value) {
    return raw(key, kText, text(value));
  }
  GgufWriter& flag(std::string_view key, bool value) {
    return raw(key, kBool, little_endian<std::uint8_t>(value));
  }
  template <class T>
  GgufWriter& array(std::string_view key, std::uint32_t type, const std::vector<T>& values) {
    std::string bytes = little_endian(type) + little_endian<std::uint64_t>(values.size());
    for (const T value : values) bytes += little_endian(value);
    return raw(key, kArray, bytes);
  }
  GgufWriter& texts(std::string_view key, std::uint64_t count, std::string_view each) {
    std::string bytes = little_endian(kText) + little_endian(count);
    for (std::uint64_t i = 0; i < count; ++i) bytes += text(each);
    return raw(key, kArray, bytes);
  }

  /// A tensor of a type of that name, behind the last one.
  GgufWriter& tensor(std::string_view name, std::string_view type_name,
                     const std::vector<std::uint64_t>& shape) {
    for (const capacity::GgmlType& type : capacity::ggml_types()) {
      if (type.name != type_name) continue;
      std::uint64_t elements = 1;
      for (const std::uint64_t dimension : shape) elements *= dimension;
      raw_tensor(name, shape, type.number, data_bytes_);
      const auto bytes = elements / static_cast<std::uint64_t>(type.block_elements) *
                         static_cast<std::uint64_t>(type.block_bytes);
      data_bytes_ += (bytes + alignment - 1) / alignment * alignment;
    }
    return *this;
  }
  GgufWriter& raw_tensor(std::string_view name, const std::vector<std::uint64_t>& shape,
                         std::uint32_t type, std::uint64_t offset) {
    tensors_ += text(name) + little_endian(static_cast<std::uint32_t>(shape.size()));
    for (const std::uint64_t dimension : shape) tensors_ += little_endian(dimension);
    tensors_ += little_endian(type) + little_endian(offset);
    ++num_tensors_;
    return *this;
  }

  /// Everything before the data, padded.
  std::string header() const {
    std::string bytes = "GGUF" + little_endian(version) +
                        little_endian(num_tensors_ + more_tensors) +
                        little_endian(num_keys_ + more_keys) + keys_ + tensors_;
    bytes.resize((bytes.size() + alignment - 1) / alignment * alignment);
    return bytes;
  }
  /// Of the tensors added with tensor().
  std::int64_t data_bytes() const { return static_cast<std::int64_t>(data_bytes_); }
  /// Header and zeros; for small ones.
  std::string file() const { return header() + std::string(data_bytes_, '\0'); }

 private:
  std::string keys_;
  std::string tensors_;
  std::uint64_t num_keys_ = 0;
  std::uint64_t num_tensors_ = 0;
  std::uint64_t data_bytes_ = 0;
};

/// A header and then zeros that take no memory; counts what is read.
class HollowBytes final : public capacity::ByteSource {
 public:
  HollowBytes(std::string header, std::int64_t data_bytes)
      : header_(std::move(header)), data_bytes_(data_bytes) {}

  const std::string& name() const noexcept override { return name_; }
  std::int64_t size_bytes() const noexcept override {
    return static_cast<std::int64_t>(header_.size()) + data_bytes_;
  }
  Status read(std::int64_t offset, std::span<char> into, capacity::ReadFailure&) const override {
    const auto begin = std::min(static_cast<std::size_t>(offset), header_.size());
    const std::size_t there = std::min(into.size(), header_.size() - begin);
    std::fill(
        std::copy_n(header_.begin() + static_cast<std::ptrdiff_t>(begin), there, into.begin()),
        into.end(), '\0');
    bytes_read_ += static_cast<std::int64_t>(into.size());
    return {};
  }
  /// So far.
  std::int64_t bytes_read() const { return bytes_read_; }

 private:
  std::string name_ = "model.gguf";
  std::string header_;
  std::int64_t data_bytes_;
  mutable std::int64_t bytes_read_ = 0;
};

}  // namespace kvarena::test
