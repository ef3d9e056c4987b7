#pragma once

/// @file
/// `ByteCursor`: reads a binary header from front to back, little endian, through a window of fixed
/// size: what it holds does not depend on any count in the file. One thread.

#include "capacity/files/byte_source.hpp"
#include "capacity/files/read_failure.hpp"

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace kvarena::capacity {

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
