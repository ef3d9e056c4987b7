#include "json_output.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <system_error>

namespace kvarena::tools {

void declare_json_option(CLI::App& command, std::string& target) {
  command
      .add_option("--json", target,
                  "Write the result as one JSON object to FILE, or to standard output for '-' "
                  "(everything else then goes to standard error)")
      ->type_name("FILE|-")
      ->configurable(false);  // who reads the result asks for it, once
}

ExitCode write_json(const Console& console, const std::string& target,
                    const nlohmann::ordered_json& document) {
  if (target.empty()) return ExitCode::ok;
  if (json_on_stdout(target)) {
    console.out << document.dump(2) << '\n';
    console.out.flush();
    if (console.out) return ExitCode::ok;
    console.error("standard output could not be written", "an open pipe, terminal or file",
                  "check the disk and the reader of the pipe");
    return ExitCode::environment;
  }
  errno = 0;
  std::ofstream file(target, std::ios::binary | std::ios::trunc);
  file << document.dump(2) << '\n';
  file.close();
  if (file) return ExitCode::ok;
  console.error(fmt::format("--json {}: {}", target, std::generic_category().message(errno)),
                "a writable file",
                "check the folder, its permissions and the disk, or write to '-'");
  return ExitCode::environment;
}

}  // namespace kvarena::tools
