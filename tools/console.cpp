#include "tools/console.hpp"

#include "base/excerpt.hpp"
#include "verify/failure.hpp"

#include <poll.h>
#include <unistd.h>

#include <cerrno>

namespace kvarena::tools {
namespace {

/// The lines of a text, each printable: names of files and devices may have anything in them.
std::string shown(std::string_view text) {
  const auto end = text.find('\n');
  const std::string line = printable(text.substr(0, end));
  return end == text.npos ? line : line + '\n' + shown(text.substr(end + 1));
}

}  // namespace

ExitCode exit_code_of(verify::RunEnd end) noexcept {
  using enum verify::RunEnd;
  switch (end) {
    case completed: return ExitCode::ok;
    case check_failed: return ExitCode::check_failed;
    case bad_options: return ExitCode::usage;
    case does_not_fit: return ExitCode::does_not_fit;
    case bad_input: return ExitCode::bad_input;
    case interrupted: return ExitCode::interrupted;
    case environment: break;
  }
  return ExitCode::environment;
}

DescriptorBuffer::int_type DescriptorBuffer::overflow(int_type c) {
  if (sync() != 0) return traits_type::eof();
  if (!traits_type::eq_int_type(c, traits_type::eof())) {
    *pptr() = traits_type::to_char_type(c);
    pbump(1);
  }
  return traits_type::not_eof(c);
}

int DescriptorBuffer::sync() {
  const char* at = pbase();
  while (at < pptr() && !error_) {
    const ssize_t written = ::write(file_, at, static_cast<std::size_t>(pptr() - at));
    if (written >= 0) {
      at += written;
    } else if (errno == EAGAIN) {
      pollfd writable{file_, POLLOUT, 0};
      ::poll(&writable, 1, -1);
    } else if (errno != EINTR) {
      error_ = {errno, std::generic_category()};
    }
  }
  clear();
  return error_ ? -1 : 0;
}

std::string_view Console::code(const std::ostream& stream, std::string_view sequence) const {
  const bool terminal = &stream == &out ? out_is_terminal : err_is_terminal;
  return color && terminal ? sequence : std::string_view{};
}

void Console::error(std::string_view happened, std::string_view expected,
                    std::string_view advice) const {
  if (failure.is_empty()) {
    failure = {.found = std::string(happened),
               .expected = std::string(expected),
               .advice = std::string(advice)};
  }
  out.flush();
  err << bold(err) << red(err) << "error: " << plain(err) << shown(happened) << '\n';
  if (!expected.empty()) err << "  expected: " << shown(expected) << '\n';
  if (!advice.empty()) err << "  to do: " << shown(advice) << '\n';
  err.flush();
}

void Console::output_error(std::string_view happened, std::string_view expected,
                           std::string_view advice) const {
  if (failure.is_empty()) return error(happened, expected, advice);
  err << "  also: " << shown(happened) << "; " << shown(advice) << std::endl;
}

void Console::warning(std::string_view message) const {
  err << yellow(err) << "warning: " << plain(err) << shown(message) << '\n';
  err.flush();
}

void Console::note(std::string_view message) const {
  if (quiet) return;
  err << shown(message) << '\n';
  err.flush();
}

}  // namespace kvarena::tools
