#include "capacity/files/byte_source.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace kvarena::capacity {
namespace {

std::string_view kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

}  // namespace

FileBytes::~FileBytes() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Status FileBytes::open(const std::string& path, ReadFailure& failure) {
  const auto refuse = [&](ReadFailure reason) {
    failure = std::move(reason);
    return status_of(failure);
  };
  name_ = path;
  if (path.find('\0') != path.npos) return refuse(system_failure(path.c_str(), ENOENT));
  // Opening a FIFO would wait for a writer.
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) return refuse(system_failure(path, errno));
  struct stat facts {};
  if (::fstat(descriptor_, &facts) != 0) return refuse(system_failure(path, errno));
  if (!S_ISREG(facts.st_mode)) {
    return capacity::refuse(
        failure, path,
        {.found = std::string(kind_of(facts.st_mode)), .expected = "a regular file"});
  }
  size_bytes_ = facts.st_size;
  return {};
}

Status FileBytes::read(std::int64_t offset, std::span<char> into, ReadFailure& failure) const {
  while (!into.empty()) {
    const ssize_t got = ::pread(descriptor_, into.data(), into.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      failure = system_failure(name_, got < 0 ? errno : EIO);
      failure.what.subject += ": byte " + std::to_string(offset);
      if (got == 0) failure.what.found = "the end of a file that has become shorter";
      return status_of(failure);
    }
    into = into.subspan(static_cast<std::size_t>(got));
    offset += got;
    bytes_read_ += got;
  }
  return {};
}

Status FileBytes::charge(std::int64_t& bytes_left, ReadFailure& failure) const {
  if (bytes_read_ <= bytes_left) {
    bytes_left -= bytes_read_;
    return {};
  }
  return refuse(
      failure, name_,
      {.found = std::to_string(bytes_read_) + " bytes of a header",
       .expected = "at most " + std::to_string(bytes_left) + " more in all files of a model"});
}

Status MemoryBytes::read(std::int64_t offset, std::span<char> into, ReadFailure&) const {
  std::copy_n(bytes_.data() + offset, into.size(), into.data());
  return {};
}

ByteCursor::ByteCursor(const ByteSource& source, std::int64_t max_bytes)
    : source_(source),
      end_(std::min(source.size_bytes(), max_bytes)),
      limited_(end_ < source.size_bytes()) {}

bool ByteCursor::refuse(std::int64_t place, std::string found, std::string expected,
                        std::string advice) {
  static_cast<void>(capacity::refuse(failure_, source_.name(),
                                     {.subject = fmt::format("byte {}", place),
                                      .found = std::move(found),
                                      .expected = std::move(expected),
                                      .advice = std::move(advice)}));
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
