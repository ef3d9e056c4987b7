#include "capacity/files/byte_cursor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

namespace kvarena::capacity {

ByteCursor::ByteCursor(const ByteSource& source, std::int64_t max_bytes)
    : source_(source),
      end_(std::min(source.size_bytes(), max_bytes)),
      limited_(end_ < source.size_bytes()) {}

bool ByteCursor::refuse(std::int64_t place, std::string found, std::string expected,
                        std::string advice) {
  failure_ = {};
  failure_.file = source_.name();
  failure_.place = fmt::format("byte {}", place);
  failure_.found = std::move(found);
  failure_.expected = std::move(expected);
  failure_.advice = std::move(advice);
  return false;
}

bool ByteCursor::has(std::uint64_t size, std::string_view what) {
  if (size <= static_cast<std::uint64_t>(end_ - offset_)) return true;
  if (limited_) {
    return refuse(offset_, fmt::format("{} of {} bytes", what, size),
                  fmt::format("a header of at most {} bytes", end_));
  }
  return refuse(offset_, fmt::format("{} bytes up to the end of the file", end_ - offset_),
                fmt::format("{} of {} bytes", what, size), "the file is cut off or damaged");
}

bool ByteCursor::copy(char* into, std::size_t size, std::string_view what) {
  if (!has(size, what)) return false;
  while (size > 0) {
    const bool is_outside = offset_ < window_begin_ || offset_ >= window_end_;
    if (is_outside && size >= window_.size()) {
      if (!source_.read(offset_, std::span(into, size), failure_)) return false;
      offset_ += static_cast<std::int64_t>(size);
      return true;
    }
    if (is_outside) {
      window_begin_ = window_end_ = offset_;
      const auto bytes = std::min(end_ - offset_, static_cast<std::int64_t>(window_.size()));
      const std::span<char> part(window_.data(), static_cast<std::size_t>(bytes));
      if (!source_.read(offset_, part, failure_)) return false;
      window_end_ = offset_ + bytes;
    }
    const std::size_t there = std::min(size, static_cast<std::size_t>(window_end_ - offset_));
    std::memcpy(into, window_.data() + (offset_ - window_begin_), there);
    into += there;
    size -= there;
    offset_ += static_cast<std::int64_t>(there);
  }
  return true;
}

bool ByteCursor::text(std::string& text, std::uint64_t size, std::string_view what) {
  if (!has(size, what)) return false;
  text.resize(size);
  return copy(text.data(), text.size(), what);
}

bool ByteCursor::skip(std::uint64_t size, std::string_view what) {
  if (!has(size, what)) return false;
  offset_ += static_cast<std::int64_t>(size);
  return true;
}

}  // namespace kvarena::capacity
