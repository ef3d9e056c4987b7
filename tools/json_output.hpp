#pragma once

/// @file
/// `--json FILE|-`: the one way in which commands write JSON.

#include "tools/console.hpp"
#include "tools/exit_codes.hpp"

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace CLI {
class App;
}

namespace kvarena::tools {

/// Declares `--json FILE|-` on `command`.
void declare_json_option(CLI::App& command, std::string& target);

/// Whether `--json` claims standard output for itself.
inline bool json_on_stdout(const std::string& target) { return target == "-"; }

/// Whether write_json could write to `target`; leaves it as it is. For commands that work for
/// minutes before they write. Reports a failure on the console.
ExitCode probe_json(const Console& console, const std::string& target);

/// Writes json_text to `target`: "" writes nothing, "-" is standard output, anything else a file,
/// as write_whole does. Reports a failure on the console.
ExitCode write_json(const Console& console, const std::string& target,
                    const nlohmann::ordered_json& document);

/// `document` in one line. Here and in json_text text is ASCII, with escapes for the rest, and
/// bytes that are no UTF-8 are replaced.
std::string json_line(const nlohmann::ordered_json& document);
/// `document` for a file: indented, with a newline at the end.
std::string json_text(const nlohmann::ordered_json& document);

}  // namespace kvarena::tools
