#pragma once

/// @file
/// Where a reader of headers gets its bytes: a file, of which it reads only what it asks for, or
/// memory. `ByteCursor` reads from front to back, little endian, through a window of fixed size:
/// what it holds does not depend on any count in the file. One reader at a time.

#include "capacity/files/read_failure.hpp"
#include "kvarena/base/status.hpp"

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
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

/// Each function returns false after a failure, which failure() then tells; what follows one is
/// not to be relied on. `what` names in errors what was being read.
class ByteCursor {
 public:
  /// Reads `source`, which must stay, up to `max_bytes` of it.
  ByteCursor(const ByteSource& source, std::int64_t max_bytes);

  /// Bytes read so far: where the next one is.
  std::int64_t offset() const noexcept { return offset_; }
  /// The reason why a function returned false.
  const ReadFailure& failure() const noexcept { return failure_; }

  /// A number as stored.
  template <class T>
  bool number(T& value, std::string_view what) {
    std::array<char, sizeof(T)> bytes;
    if (!copy(bytes.data(), bytes.size(), what)) return false;
    static_assert(std::endian::native == std::endian::little);
    std::memcpy(&value, bytes.data(), sizeof(T));
    return true;
  }
  /// `size` bytes into `text`, which takes memory for all of them, but only if the source has as
  /// many. Requires a bound on `size`.
  bool text(std::string& text, std::uint64_t size, std::string_view what);
  /// Whether `size` bytes more are there; a failure when not.
  bool has(std::uint64_t size, std::string_view what);
  /// Passes over `size` bytes, which must be there.
  bool skip(std::uint64_t size, std::string_view what);
  /// Ends with: `found` at byte `place`, `expected`. Returns false.
  bool refuse(std::int64_t place, std::string found, std::string expected, std::string advice = "");

 private:
  bool copy(char* into, std::size_t size, std::string_view what);

  const ByteSource& source_;
  std::int64_t end_;  // of what may be read
  bool limited_;      // there is more behind it
  std::int64_t offset_ = 0;
  std::array<char, 16384> window_;
  std::int64_t window_begin_ = 0;
  std::int64_t window_end_ = 0;
  ReadFailure failure_;
};

}  // namespace kvarena::capacity
