#include "trace/line_source.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace kvarena::trace {
namespace {

constexpr std::size_t kFirstBufferBytes = std::size_t{1} << 16;

Status os_failure(int error) noexcept {
  return {StatusCode::io_error, Resource::file, Option::none, error, 0, 0, 0};
}

}  // namespace

Result<LineSource> LineSource::open(const std::string& path, std::size_t max_line_bytes) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return os_failure(errno);
  struct stat info {};
  if (::fstat(descriptor, &info) != 0 || S_ISDIR(info.st_mode)) {
    const int error = S_ISDIR(info.st_mode) ? EISDIR : errno;
    ::close(descriptor);
    return os_failure(error);
  }
  const std::int64_t total = S_ISREG(info.st_mode) ? std::int64_t{info.st_size} : -1;
  return LineSource(descriptor, total, max_line_bytes);
}

LineSource::LineSource(int descriptor, std::int64_t total, std::size_t max_line_bytes)
    : descriptor_(descriptor),
      total_(total),
      max_line_bytes_(max_line_bytes),
      buffer_(std::min(kFirstBufferBytes, max_line_bytes + 2)) {}

LineSource::~LineSource() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

LineSource::LineSource(LineSource&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      total_(other.total_),
      max_line_bytes_(other.max_line_bytes_),
      buffer_(std::move(other.buffer_)),
      begin_(other.begin_),
      end_(other.end_),
      at_end_(other.at_end_),
      native_(other.native_),
      consumed_(other.consumed_),
      number_(other.number_),
      spent_(other.spent_) {}

LineSource& LineSource::operator=(LineSource&& other) noexcept {
  if (this != &other) {
    this->~LineSource();
    new (this) LineSource(std::move(other));
  }
  return *this;
}

// Reads more bytes behind end_, making room first. The buffer never exceeds the longest line plus
// its line end. Returns false at the end of the file, on an error, or when the buffer is full.
bool LineSource::fill() {
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  if (end_ == buffer_.size()) {
    const std::size_t most = max_line_bytes_ + 2;
    if (buffer_.size() == most) return false;
    buffer_.resize(std::min(most, buffer_.size() * 2));
  }
  ssize_t got = 0;
  do {
    got = ::read(descriptor_, buffer_.data() + end_, buffer_.size() - end_);
  } while (got < 0 && errno == EINTR);
  if (got < 0) native_ = errno;
  at_end_ = got <= 0;
  if (got > 0) end_ += static_cast<std::size_t>(got);
  return got > 0;
}

Line LineSource::next() {
  if (spent_ != LineOutcome::line) return {spent_, {}, number_, native_};
  std::size_t searched = 0;
  const char* feed = nullptr;
  while (true) {
    const char* first = buffer_.data() + begin_;
    const std::size_t have = end_ - begin_;
    feed = static_cast<const char*>(std::memchr(first + searched, '\n', have - searched));
    if (feed != nullptr) break;
    searched = have;
    if (at_end_ || !fill()) break;
  }
  const char* first = buffer_.data() + begin_;
  const std::size_t have = end_ - begin_;
  std::string_view text(first, feed != nullptr ? static_cast<std::size_t>(feed - first) : have);
  const std::size_t used = text.size() + (feed != nullptr ? 1 : 0);
  if (text.ends_with('\r')) text.remove_suffix(1);
  if (native_ != 0) {
    spent_ = LineOutcome::read_failed;
  } else if (text.size() > max_line_bytes_ || (feed == nullptr && !at_end_)) {
    spent_ = LineOutcome::too_long;
    ++number_;
  } else if (feed == nullptr && have == 0) {
    spent_ = LineOutcome::end_of_file;
  }
  if (spent_ != LineOutcome::line) return {spent_, {}, number_, native_};

  begin_ += used;
  consumed_ += static_cast<std::int64_t>(used);
  return {LineOutcome::line, text, ++number_, 0};
}

}  // namespace kvarena::trace
