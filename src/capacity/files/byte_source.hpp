#pragma once

/// @file
/// Where a reader of headers gets its bytes: a file, of which it reads only what it asks for, or
/// memory. One reader at a time.

#include "capacity/files/read_failure.hpp"
#include "kvarena/base/status.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace kvarena::capacity {

/// Bytes of known number that can be read from anywhere.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  /// The name that errors use.
  virtual const std::string& name() const noexcept = 0;
  /// How many bytes there are.
  virtual std::int64_t size_bytes() const noexcept = 0;
  /// Fills `into` from byte `offset` on. Requires offset + into.size() <= size_bytes(). Returns
  /// io_error, also when the file has become shorter; then fills `failure`.
  virtual Status read(std::int64_t offset, std::span<char> into, ReadFailure& failure) const = 0;
};

/// How much of all files of one model may be read: an index can name thousands of them, each with
/// the largest header that is allowed.
inline constexpr std::int64_t kMaxHeaderBytesOfModel = std::int64_t{512} << 20;

/// A regular file; anything else (a folder, a FIFO, a device) is refused without waiting for it.
/// Owns its descriptor.
class FileBytes final : public ByteSource {
 public:
  FileBytes() = default;
  ~FileBytes() override;
  FileBytes(const FileBytes&) = delete;
  FileBytes& operator=(const FileBytes&) = delete;

  /// Opens `path`; once per object. Returns not_found, io_error, or parse_error (no regular file).
  Status open(const std::string& path, ReadFailure& failure);

  const std::string& name() const noexcept override { return name_; }
  std::int64_t size_bytes() const noexcept override { return size_bytes_; }
  Status read(std::int64_t offset, std::span<char> into, ReadFailure& failure) const override;
  /// Takes what has been read of the file from `bytes_left`; parse_error when that is not enough.
  Status charge(std::int64_t& bytes_left, ReadFailure& failure) const;

 private:
  std::string name_;
  mutable std::int64_t bytes_read_ = 0;
  int descriptor_ = -1;
  std::int64_t size_bytes_ = 0;
};

/// Bytes that the caller keeps.
class MemoryBytes final : public ByteSource {
 public:
  /// Refers to `bytes`, which errors call `name`.
  MemoryBytes(std::string name, std::string_view bytes) : name_(std::move(name)), bytes_(bytes) {}

  const std::string& name() const noexcept override { return name_; }
  std::int64_t size_bytes() const noexcept override {
    return static_cast<std::int64_t>(bytes_.size());
  }
  Status read(std::int64_t offset, std::span<char> into, ReadFailure& failure) const override;

 private:
  std::string name_;
  std::string_view bytes_;
};

}  // namespace kvarena::capacity
