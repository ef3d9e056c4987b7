#include "capacity/files/byte_source.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

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
    ReadFailure reason;
    reason.file = path;
    reason.found = kind_of(facts.st_mode);
    reason.expected = "a regular file";
    return refuse(std::move(reason));
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
      failure.place = "byte " + std::to_string(offset);
      if (got == 0) failure.found = "the end of a file that has become shorter";
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
  failure = {};
  failure.file = name_;
  failure.found = std::to_string(bytes_read_) + " bytes of a header";
  failure.expected = "at most " + std::to_string(bytes_left) + " more in all files of a model";
  return status_of(failure);
}

Status MemoryBytes::read(std::int64_t offset, std::span<char> into, ReadFailure&) const {
  std::copy_n(bytes_.data() + offset, into.size(), into.data());
  return {};
}

}  // namespace kvarena::capacity
