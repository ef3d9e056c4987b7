#include "tools/command_line.hpp"

#include "tools/configuration/configuration.hpp"
#include "tools/interrupt.hpp"
#include "tools/option_values.hpp"
#include "tools/result_file.hpp"
#include "tools/usage.hpp"

#include "kvarena/base/version.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace kvarena::tools {
namespace {

constexpr const char* kFooter = R"(
Examples:
  kvarena shapes Llama-3.1-8B                     what a token of that model's KV cache takes
  kvarena replay trace.jsonl                      serve a request trace, memory as it needs
  kvarena replay trace.csv --blocks 4096          serve it from a pool of 4096 blocks
  kvarena plan --model Llama-3.1-8B --gpu L40S    how many requests fit, and what to set
  kvarena devices                                 the host and every GPU, or why there is no GPU
  kvarena pressure --device cpu                   memory run to its limits, and what happens
  kvarena bench attention                         how fast decode attention reads its K and V
  kvarena monitor --url http://127.0.0.1:15858     watch an engine's health, memory and blocks
  kvarena config show --origin                    every option's value, and where it came from
  kvarena COMMAND --help                          the options of one command, with examples

Options may also be set in kvarena.toml and KVARENA_* variables: 'kvarena config show --help'.

Exit codes: 0 done; 1 a check failed; 2 wrong usage; 3 does not fit into memory; 4 bad input file;
5 the operating system refused, or a bug; 129 and 130 interrupted; 141 nobody reads standard
output any more. Data goes to standard output, messages to standard error.
)";

/// The target of the chosen command's `--json`; empty: none. Without a value it is standard output.
std::string json_target(const CLI::App& app) {
  const CLI::Option* json = chosen_command(app).get_option_no_throw("--json");
  if (json == nullptr || json->count() == 0) return {};
  const std::string target = json->results().back();
  return target.empty() ? "-" : target;
}

/// Whether every word of the command line was taken, none is missing, and only --json names the
/// file `json`.
bool is_understood(const CLI::App& app, const std::string& json) {
  const auto is_file = [&json](const std::string& text) {
    std::error_code absent;
    return text == json || std::filesystem::equivalent(text, json, absent);
  };
  return app.remaining_size(true) == 0 &&
         std::ranges::all_of(chosen_command(app).get_options(), [&](const CLI::Option* option) {
           if (option->check_name("--json")) return true;
           return (!option->get_required() || option->count() > 0) &&
                  std::ranges::none_of(option->results(), is_file);
         });
}

/// The code to end with at once, or nothing: then a command is to be run. Leaves in `json` where
/// the refusal of a value goes.
std::optional<ExitCode> parse(CLI::App& app, int argc, const char* const* argv,
                              const Configuration& configuration, const Console& console,
                              std::string& json) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    static_cast<void>(app.exit(help, console.out, console.err));
    return ExitCode::ok;
  } catch (const CLI::CallForVersion& version) {
    static_cast<void>(app.exit(version, console.out, console.err));
    return ExitCode::ok;
  } catch (const CLI::FileError& error) {
    console.error(printable(error.what()), "a TOML file", "check --config, or use --no-config");
    return ExitCode::bad_input;
  } catch (const CLI::ParseError& error) {
    Finding finding = usage_finding(app, error);
    const ConfigOrigin origin = configuration.origin_of_refused(error.what());
    const bool is_value =
        error.get_name() == "ValidationError" || error.get_name() == "ConversionError";
    const std::string target = json_target(app);
    if (is_value && is_understood(app, target)) json = target;
    const bool is_configured = is_value && origin.source != ConfigOrigin::Source::default_value;
    if (is_configured)
      finding.found = fmt::format("{}: {}", printable(origin.place), finding.found);
    console.error(finding);
    if (!is_configured) console.err << configuration.remark() << std::flush;
    const bool is_file = is_configured && origin.source < ConfigOrigin::Source::environment;
    return is_file ? ExitCode::bad_input : ExitCode::usage;
  } catch (const ConfigError& error) {
    console.error(error.finding);
    return error.code;
  }
  return std::nullopt;
}

/// What commands refuse together with a choice, where excludes() cannot say it.
void exclude_choices(CLI::App& app, Configuration& configuration) {
  CLI::App& replay = *app.get_subcommand("replay");
  CLI::Option& clock = *replay.get_option("--clock");
  configuration.exclude_choice(*replay.get_option("--gpu"), clock, {"step", "linear"});
  configuration.exclude_choice(*replay.get_option("--prefill-us"), clock, {"roofline"});
  configuration.exclude_choice(*replay.get_option("--decode-us"), clock, {"roofline"});
  configuration.exclude_choice(*replay.get_option("--device"), *replay.get_option("--attention"),
                               {"off"});
  for (const char* of_cache : {"--policy", "--salt-column"}) {
    configuration.need_any(*replay.get_option(of_cache), {replay.get_option("--pure-cache"),
                                                          replay.get_option("--prefix-cache")});
  }
}

/// Says which sizes of the command chosen have a fraction of a byte.
void note_rounded_sizes(const CLI::App& app, const Console& console) {
  for (const CLI::Option* option : chosen_command(app).get_options()) {
    if (option->get_type_name().find("SIZE") == std::string::npos) continue;
    for (const std::string& text : option->results()) {
      bool is_rounded = false;
      const auto bytes = parse_bytes(text, &is_rounded);
      if (!bytes || !is_rounded) continue;
      console.note(
          fmt::format("{} {} is rounded down to {} B", option->get_name(), text, grouped(*bytes)));
    }
  }
}

/// Whether standard output was asked for one JSON object.
bool asks_for_json(int argc, const char* const* argv) {
  for (int n = 1; n < argc; ++n) {
    const std::string_view word = argv[n];
    const std::string_view value = n + 1 < argc ? argv[n + 1] : "--";
    if (word == "--json" && (value.starts_with("--") || is_standard_output(std::string(value)))) {
      return true;
    }
    if (word.starts_with("--json=") && is_standard_output(std::string(word.substr(7)))) return true;
  }
  return false;
}

/// The refusal as programs read it.
nlohmann::ordered_json refusal_json(const Finding& failure, ExitCode code) {
  return {{"ok", false},
          {"exit_code", static_cast<int>(code)},
          {"failure", headline(failure)},
          {"expected", failure.expected},
          {"advice", failure.advice}};
}

/// Flushes standard output and reports when it cannot be written. A reader that has closed it is
/// not reported, because `kvarena ... | head -1` is not an error.
ExitCode finish_output(const Console& console, ExitCode code) {
  console.out.flush();
  if (code == ExitCode::interrupted && Interrupt::hung_up()) code = ExitCode::hung_up;
  if (console.out) return code;
  const bool is_explained = !console.failure.is_empty();
  if (console.is_unread()) return is_explained ? code : ExitCode::reader_gone;
  const std::error_code why =
      console.out_error ? console.out_error() : std::make_error_code(std::errc::io_error);
  console.output_error(fmt::format("standard output could not be written: {}", why.message()),
                       "an open file, pipe or terminal with room",
                       "what was printed is not complete; look at where it goes, and at the disk");
  return ExitCode::environment;
}

/// Leaves in `json` where a refusal goes as JSON. A file is named only by a command line that has
/// been understood: a word behind a misplaced --json may be anything.
ExitCode parse_and_run(int argc, const char* const* argv, Console& console,
                       const ConfigSources& sources, std::string& json) {
  CLI::App app{"kvarena: a paged KV-cache memory manager for engines that serve language models",
               "kvarena"};
  app.set_version_flag("--version", "kvarena " KVARENA_VERSION_STRING,
                       "Print the version and exit");
  app.footer(kFooter);
  app.require_subcommand(1);
  app.fallthrough();
  const int columns = console.terminal_size ? console.terminal_size().columns : 0;
  const int width = columns > 0 ? std::clamp(columns, 40, 100) : 80;
  app.formatter(make_help_formatter(static_cast<std::size_t>(width)));
  Configuration configuration(console, sources);
  configuration.declare(app);
  bool no_color = false;
  app.add_flag("--no-color", no_color, "No colours (also: NO_COLOR set in the environment)");
  app.add_flag("--quiet,-q", console.quiet, "Only errors, warnings and the data asked for");

  const std::vector<Command> commands = {
      replay_command(app),    devices_command(app), bench_command(app),
      monitor_command(app),   plan_command(app),    pressure_command(app),
      neighbour_command(app), shapes_command(app),  config_command(app, configuration)};
  exclude_choices(app, configuration);
  if (const auto ended = parse(app, argc, argv, configuration, console, json)) return *ended;
  json = json_target(app);
  if (no_color) console.color = false;
  note_rounded_sizes(app, console);
  const auto chosen =
      std::ranges::find_if(commands, [](const Command& command) { return command.app->parsed(); });
  const ExitCode code = chosen->run(console);
  if (code == ExitCode::usage) console.err << configuration.remark() << std::flush;
  return code;
}

}  // namespace

ExitCode run_command_line(int argc, const char* const* argv, Console& console,
                          const ConfigSources& sources) noexcept {
  ExitCode code = ExitCode::environment;
  std::string json = asks_for_json(argc, argv) ? "-" : "";
  try {
    code = parse_and_run(argc, argv, console, sources, json);
  } catch (const std::exception& error) {
    console.error(fmt::format("unexpected: {}", error.what()), "",
                  "this is a bug in kvarena, or the machine is out of memory; please report it");
  }
  if (!console.failure.is_empty() && !console.has_json && code != ExitCode::ok) {
    static_cast<void>(write_json(console, json, refusal_json(console.failure, code)));
  }
  return finish_output(console, code);
}

}  // namespace kvarena::tools
