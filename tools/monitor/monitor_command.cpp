#include "tools/command_line.hpp"
#include "tools/interrupt.hpp"
#include "tools/monitor/monitor_sources.hpp"
#include "tools/option_values.hpp"
#include "tools/result_file.hpp"

#include "base/excerpt.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <chrono>
#include <ctime>

namespace kvarena::tools {
namespace {

constexpr const char* kMonitorFooter = R"(
Examples:
  kvarena monitor --url http://127.0.0.1:15858            a live view; Ctrl-C ends it
  kvarena monitor --url http://127.0.0.1:15858 --once     one look; exit code 1 when unhealthy
  kvarena monitor --url http://10.0.0.7:15858 --http-token-file token.txt --interval 10 >> log
      one line every ten seconds
  kvarena monitor --url https://engine.example.org --http-token-file token.txt
      through a proxy that speaks TLS
  kvarena monitor --device cuda:0                        the GPU's memory and processes, by NVML

The server is an engine's HealthServer, or 'kvarena replay --http'.
)";

/// Where looks for people go.
std::ostream& view_of(const Console& console, const std::string& json) {
  return json_on_stdout(json) ? console.err : console.out;
}

/// The last look that did not fail.
struct LastLook {
  std::vector<std::string> lines;
  std::time_t at = 0;
};

std::string utc(std::time_t time) { return fmt::format("{:%FT%TZ}", fmt::gmtime(time)); }

/// A look that failed, to be shown as one that did not, above what was seen last.
MonitorFrame unreachable(const MonitorFrame& failed, const LastLook& last) {
  MonitorFrame frame;
  frame.healthy = false;
  frame.lines = {failed.happened};
  if (!failed.advice.empty()) frame.lines.push_back("  to do: " + failed.advice);
  frame.lines.push_back(fmt::format("  the last answer came at {}, {} s ago:", utc(last.at),
                                    std::time(nullptr) - last.at));
  frame.lines.insert(frame.lines.end(), last.lines.begin(), last.lines.end());
  LineFields line("unreachable");
  line.add("since", utc(last.at));
  line.add("reason", failed.happened);
  frame.line = line.text();
  return frame;
}

class MonitorCommand {
 public:
  CLI::App* declare(CLI::App& parent);
  /// Shows one look, or looks until it is interrupted. After the first successful look, failures
  /// are shown in place of looks.
  ExitCode run(const Console& console);

 private:
  std::unique_ptr<MonitorSource> open(const Console& console, ExitCode* code) const;
  void show(const Console& console, const MonitorFrame& frame, LiveView& live) const;
  ExitCode write(const Console& console, const MonitorFrame& frame) const;

  std::string url_;
  std::string token_path_;
  std::string ca_file_;
  DeviceChoice device_;
  double interval_s_ = 2.0;
  bool once_ = false;
  std::string json_;
};

CLI::App* MonitorCommand::declare(CLI::App& parent) {
  CLI::App* command = parent.add_subcommand(
      "monitor", "Watch a kvarena process over HTTP, or a device by its driver");
  command->footer(kMonitorFooter);
  const auto take_url = [this](const std::string& text) {
    const auto parsed = parse_http_url(text);
    if (!parsed) {
      throw CLI::ValidationError(
          "--url",
          refusal_text({.found = fmt::format("\"{}\" is no address of a server", printable(text)),
                        .expected = "http://HOST:PORT or https://HOST[:PORT], such as "
                                    "http://127.0.0.1:15858"}));
    }
    url_ = *parsed;
  };
  auto* url = command->add_option_function<std::string>("--url", take_url, "Of the server");
  url->type_name("http://HOST:PORT|https://HOST[:PORT]");
  command->add_option("--http-token-file", token_path_, "The server's token: first line of FILE")
      ->type_name("FILE")
      ->needs(url);
  command
      ->add_option("--http-ca-file", ca_file_,
                   "Trust the certificate authorities in FILE (PEM) in place of the system's")
      ->type_name("FILE")
      ->needs(url);
  add_device_option(*command, device_)
      ->description("What to watch. auto: the first GPU, or with a warning the host")
      ->excludes(url);
  add_number_option(*command, "--interval", interval_s_, 0.05, 86400.0,
                    "Seconds from look to look");
  command->add_flag("--once", once_, "One look; exit code 1 when unhealthy");
  declare_json_option(*command, json_);
  command->get_option("--json")->description(
      "Write what is seen to FILE or to standard output for '-': with --once one JSON object, "
      "without it the last look to FILE, or one look a line to '-'");
  return command;
}

std::unique_ptr<MonitorSource> MonitorCommand::open(const Console& console, ExitCode* code) const {
  if (url_.empty()) {
    *code = ExitCode::environment;
    return open_device_source(console, device_, identify_devices(),
                              [](const CudaDeviceInfo& gpu) { return nvml_memory(gpu); });
  }
  *code = ExitCode::bad_input;
  auto token = read_token(console, token_path_);
  if (!token) return nullptr;
  return std::make_unique<ServerSource>(HealthServerAddress{url_, std::move(*token), ca_file_},
                                        steady_clock());
}

void MonitorCommand::show(const Console& console, const MonitorFrame& frame, LiveView& live) const {
  if (console.quiet) return;
  std::ostream& out = view_of(console, json_);
  const bool is_terminal = &out == &console.out ? console.out_is_terminal : console.err_is_terminal;
  if (once_) {
    out << (frame.healthy ? console.green(out) : console.red(out)) << frame.lines.front()
        << console.plain(out) << '\n';
    for (std::size_t n = 1; n < frame.lines.size(); ++n) out << frame.lines[n] << '\n';
    out << std::flush;
  } else if (is_terminal) {
    live.draw(frame.lines, frame.healthy);
  } else {
    out << utc(std::time(nullptr)) << ' ' << frame.line << std::endl;
  }
}

ExitCode MonitorCommand::write(const Console& console, const MonitorFrame& frame) const {
  if (once_ || !json_on_stdout(json_)) return write_json(console, json_, frame.document);
  console.has_json = true;
  console.out << json_line(frame.document) << std::endl;  // a stream: one look, one line
  return ExitCode::ok;
}

ExitCode MonitorCommand::run(const Console& console) {
  ExitCode code = ExitCode::ok;
  const auto source = open(console, &code);
  if (!source) return code;
  // Between looks, never in the middle of a view or of a file; one look ends as the signal has it.
  std::optional<Interrupt> interrupt;
  if (!once_) interrupt.emplace();
  const std::chrono::duration<double> interval(interval_s_);
  LiveView live(console, view_of(console, json_));
  LastLook last;
  for (bool first = true;; first = false) {
    const MonitorFrame frame = source->look();
    if (frame.is_ok()) {
      show(console, frame, live);
      const ExitCode written = write(console, frame);
      if (written != ExitCode::ok) return written;
      last = {frame.lines, std::time(nullptr)};
    } else if (first || once_ || console.quiet) {
      console.error(frame.happened, "", frame.advice);
      if (first || once_) return ExitCode::environment;  // later: it may come back
    } else {
      show(console, unreachable(frame, last), live);
    }
    if (!console.out) return ExitCode::environment;  // run_command_line says why
    if (once_) return frame.healthy ? ExitCode::ok : ExitCode::check_failed;
    if (interrupt->wait_for(std::chrono::round<std::chrono::milliseconds>(interval))) {
      return ExitCode::ok;
    }
  }
}

}  // namespace

Command monitor_command(CLI::App& parent) { return make_command<MonitorCommand>(parent); }

}  // namespace kvarena::tools
