#include "tools/json_output.hpp"

#include "tools/result_file.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <system_error>

namespace kvarena::tools {
namespace {

ExitCode not_written(const Console& console, const std::string& target,
                     const std::error_code& error) {
  console.error(fmt::format("--json {}: {}", target, error.message()), "a writable file",
                "check the folder, its permissions and the disk, or write to '-'");
  return ExitCode::environment;
}

// Standard output may be a terminal, and names may be of others: a process's, a server's.
std::string dump(const nlohmann::ordered_json& document, int indent) {
  return document.dump(indent, ' ', true, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace

std::string json_line(const nlohmann::ordered_json& document) { return dump(document, -1); }

std::string json_text(const nlohmann::ordered_json& document) { return dump(document, 2) + '\n'; }

void declare_json_option(CLI::App& command, std::string& target) {
  command
      .add_option("--json", target,
                  "Write the result as one JSON object to FILE, or to standard output for '-' "
                  "(everything else then goes to standard error)")
      ->type_name("FILE|-")
      ->configurable(false);  // who reads the result asks for it, once
}

ExitCode probe_json(const Console& console, const std::string& target) {
  if (target.empty() || json_on_stdout(target)) return ExitCode::ok;
  const std::error_code error = probe_write(target);
  return error ? not_written(console, target, error) : ExitCode::ok;
}

ExitCode write_json(const Console& console, const std::string& target,
                    const nlohmann::ordered_json& document) {
  if (target.empty()) return ExitCode::ok;
  if (json_on_stdout(target)) {
    console.has_json = true;
    console.out << json_text(document) << std::flush;
    return ExitCode::ok;  // run_command_line reports what could not be written
  }
  const std::error_code error = write_whole(target, json_text(document));
  return error ? not_written(console, target, error) : ExitCode::ok;
}

}  // namespace kvarena::tools
