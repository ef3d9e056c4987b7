#pragma once

/// @file
/// `ByteSource`: the bytes of a file or of memory, for the readers of headers. Only the requested
/// bytes of a file are read. `ByteCursor` reads a source from front to back, little endian, through
/// a window of fixed size. Its memory does not depend on any count in the file. One reader at a
/// time. `ReadFailure` says why a model's file could not be read; every reader of model files fills
/// one beside the Status that it returns.

#include "base/finding.hpp"

#include "kvarena/base/status.hpp"

#include <array>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace kvarena::capacity {

/// The reason of a failure. A reader stops at the first.
struct ReadFailure {
  StatusCode code = StatusCode::parse_error;  ///< io_error and not_found: `native` is the errno
  std::int32_t native = 0;                    ///< errno, or 0
  Finding what;  ///< description; its subject is the file and the place in it
};

/// Returns "FILE: PLACE: found ...; expected ...; ADVICE" in one line without control characters.
inline std::string to_string(const ReadFailure& failure) { return to_string(failure.what); }

/// Returns the Status of a failure: its code and errno, about a file.
inline Status status_of(const ReadFailure& failure) noexcept {
  return {failure.code, Resource::file, Option::none, failure.native, 0, 0, 0};
}

/// Sets `failure` to a parse_error of `file` and returns its Status. The subject of `what` is a
/// place: "byte 24", "line 3, column 9", "$.num_layers"; empty: the whole file.
inline Status refuse(ReadFailure& failure, const std::string& file, Finding what) {
  what.subject = what.subject.empty() ? file : file + ": " + what.subject;
  failure = {.what = std::move(what)};
  return status_of(failure);
}

/// Makes the failure (not_found or io_error) for a `path` that the operating system refused with
/// `error` (an errno).
inline ReadFailure system_failure(const std::string& path, int error) {
  const bool is_absent = error == ENOENT || error == ENOTDIR;
  return {.code = is_absent ? StatusCode::not_found : StatusCode::io_error,
          .native = error,
          .what = {.subject = path,
                   .found = std::system_category().message(error),
                   .expected = "a file that can be read"}};
}

/// A known number of bytes that can be read at any offset.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  /// Returns the name that errors use.
  virtual const std::string& name() const noexcept = 0;
  virtual std::int64_t size_bytes() const noexcept = 0;
  /// Fills `into` from byte `offset` on. Requires offset + into.size() <= size_bytes(). On failure
  /// fills `failure` and returns io_error; a file that has become shorter is a failure too.
  virtual Status read(std::int64_t offset, std::span<char> into, ReadFailure& failure) const = 0;
};

/// The most bytes that may be read of all files of one model. The limit is needed because an index
/// can name thousands of files, each with the largest allowed header.
inline constexpr std::int64_t kMaxHeaderBytesOfModel = std::int64_t{512} << 20;

/// A regular file. A folder, a FIFO or a device is refused without waiting for it. Owns its
/// descriptor.
class FileBytes final : public ByteSource {
 public:
  FileBytes() = default;
  ~FileBytes() override;
  FileBytes(const FileBytes&) = delete;
  FileBytes& operator=(const FileBytes&) = delete;

  /// Opens `path`. Call it once per object. Returns not_found, io_error, or parse_error (not a
  /// regular file).
  Status open(const std::string& path, ReadFailure& failure);

  const std::string& name() const noexcept override { return name_; }
  std::int64_t size_bytes() const noexcept override { return size_bytes_; }
  Status read(std::int64_t offset, std::span<char> into, ReadFailure& failure) const override;
  /// Subtracts the bytes read of the file from `bytes_left`. Returns parse_error when too few are
  /// left.
  Status charge(std::int64_t& bytes_left, ReadFailure& failure) const;

 private:
  std::string name_;
  mutable std::int64_t bytes_read_ = 0;
  int descriptor_ = -1;
  std::int64_t size_bytes_ = 0;
};

/// Bytes in the caller's memory.
class MemoryBytes final : public ByteSource {
 public:
  /// Refers to `bytes`. Errors use `name`.
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

/// Reads values from front to back. A function returns false on failure, and failure() then has the
/// reason. Do not use values read after a failure. `what` says in errors what was being read.
class ByteCursor {
 public:
  /// Reads at most `max_bytes` of `source`, which must outlive the cursor.
  ByteCursor(const ByteSource& source, std::int64_t max_bytes);

  /// Returns the bytes read so far, which is the offset of the next byte.
  std::int64_t offset() const noexcept { return offset_; }
  /// Returns the reason why a function returned false.
  const ReadFailure& failure() const noexcept { return failure_; }

  template <class T>
  bool number(T& value, std::string_view what) {
    std::array<char, sizeof(T)> bytes;
    if (!copy(bytes.data(), bytes.size(), what)) return false;
    static_assert(std::endian::native == std::endian::little);
    std::memcpy(&value, bytes.data(), sizeof(T));
    return true;
  }
  /// Reads `size` bytes into `text`. Allocates memory for all of them only if the source has them.
  /// The caller must limit `size`.
  bool text(std::string& text, std::uint64_t size, std::string_view what);
  /// Returns whether `size` more bytes are present. Fewer bytes are a failure.
  bool has(std::uint64_t size, std::string_view what);
  /// Skips `size` bytes. Fewer bytes are a failure.
  bool skip(std::uint64_t size, std::string_view what);
  /// Sets the failure: `found` at byte `place`, and what was `expected`. Returns false.
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
