#include "capacity/files/read_failure.hpp"

#include <cerrno>
#include <system_error>
#include <utility>

namespace kvarena::capacity {

Status status_of(const ReadFailure& failure) noexcept {
  return {failure.code, Resource::file, Option::none, failure.native, 0, 0, 0};
}

Status refuse(ReadFailure& failure, const std::string& file, Finding what) {
  what.subject = what.subject.empty() ? file : file + ": " + what.subject;
  failure = {.what = std::move(what)};
  return status_of(failure);
}

ReadFailure system_failure(const std::string& path, int error) {
  const bool is_absent = error == ENOENT || error == ENOTDIR;
  return {.code = is_absent ? StatusCode::not_found : StatusCode::io_error,
          .native = error,
          .what = {.subject = path,
                   .found = std::system_category().message(error),
                   .expected = "a file that can be read"}};
}

}  // namespace kvarena::capacity
