#include "tools/replay/series_output.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cerrno>

namespace kvarena::tools {

void SeriesOutput::declare(CLI::App& command, const char* help) {
  command.add_option(option_, path_, help)->type_name("FILE|-");
}

ExitCode SeriesOutput::fail(const Console& console, const std::error_code& error) const {
  console.error(fmt::format("{} {}: {}", option_, path_, error.message()), "a writable file",
                "check the folder, its permissions and the disk, or write to '-'");
  return ExitCode::environment;
}

ExitCode SeriesOutput::open(const Console& console) {
  if (path_.empty()) return ExitCode::ok;
  stream_ = &console.out;
  if (is_on_stdout()) return ExitCode::ok;
  if (const std::error_code error = result_.open(path_)) return fail(console, error);
  errno = 0;
  file_.open(result_.place(), std::ios::binary | std::ios::trunc);
  if (!file_) return fail(console, {errno, std::generic_category()});
  stream_ = &file_;
  return ExitCode::ok;
}

ExitCode SeriesOutput::commit(const Console& console) {
  if (path_.empty() || is_on_stdout()) return ExitCode::ok;
  errno = 0;
  file_.close();
  if (!file_) return fail(console, {errno != 0 ? errno : EIO, std::generic_category()});
  const std::error_code error = result_.commit();
  return error ? fail(console, error) : ExitCode::ok;
}

}  // namespace kvarena::tools
