#include "monitor_command.hpp"

#include "json_output.hpp"
#include "monitor_sources.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <chrono>
#include <ctime>
#include <string_view>
#include <thread>

namespace kvarena::tools {
namespace {

constexpr const char* kFooter = R"(
Examples:
  kvarena monitor --url http://127.0.0.1:9400            a live view; Ctrl-C ends it
  kvarena monitor --url http://127.0.0.1:9400 --once     one look; exit code 1 when unhealthy
  kvarena monitor --url http://10.0.0.7:9400 --http-token-file token.txt --interval 10 >> log
      one line every ten seconds
  kvarena monitor --device cuda:0                        the GPU's memory and processes, by NVML

The server is an engine's HealthServer, or 'kvarena replay --http'.
)";

// Lines longer than the terminal is wide are cropped: a line of a look is a line on the screen.
constexpr std::string_view kCrop = "\x1b[?7l";
constexpr std::string_view kWrap = "\x1b[?7h";

}  // namespace

CLI::App* MonitorCommand::declare(CLI::App& parent) {
  CLI::App* command = parent.add_subcommand(
      "monitor", "Watch a kvarena process over HTTP, or a device by its driver");
  command->footer(kFooter);
  auto* url = command->add_option("--url", url_, "Of the server");
  url->type_name("http://HOST:PORT");
  url_option_ = url;
  command->add_option("--http-token-file", token_path_, "The server's token: first line of FILE")
      ->type_name("FILE")
      ->needs(url);
  add_device_option(*command, device_)->excludes(url);
  command->add_option("--interval", interval_s_, "Seconds from look to look")
      ->check(CLI::Range(0.05, 86400.0))
      ->capture_default_str();
  command->add_flag("--once", once_, "One look; exit code 1 when unhealthy");
  declare_json_option(*command, json_);
  return command;
}

std::unique_ptr<MonitorSource> MonitorCommand::open(const Console& console, ExitCode* code) const {
  if (url_option_->count() == 0) {
    auto device = open_device(console, device_);
    *code = ExitCode::environment;
    return device ? std::make_unique<DeviceSource>(std::move(*device)) : nullptr;
  }
  *code = ExitCode::usage;
  const auto address = parse_http_url(url_);
  if (!address) {
    console.error(fmt::format("--url {}", url_), "http://HOST:PORT, such as http://127.0.0.1:9400");
    return nullptr;
  }
  *code = ExitCode::bad_input;
  auto token = read_token(console, token_path_);
  if (!token) return nullptr;
  return std::make_unique<ServerSource>(url_, HealthClient(*address, std::move(*token)),
                                        steady_clock());
}

void MonitorCommand::show(const Console& console, const MonitorFrame& frame) {
  std::ostream& out = json_on_stdout(json_) ? console.err : console.out;
  const bool is_terminal =
      json_on_stdout(json_) ? console.err_is_terminal : console.out_is_terminal;
  if (console.quiet) return;
  if (!is_terminal && !once_) {
    out << fmt::format("{:%FT%TZ}  {}", fmt::gmtime(std::time(nullptr)), frame.line) << std::endl;
    return;
  }
  const bool redrawn = is_terminal && !once_;
  if (drawn_lines_ > 0) out << fmt::format("\x1b[{}A\x1b[J", drawn_lines_);
  if (redrawn) out << kCrop;
  const auto color = frame.healthy ? console.green(out) : console.red(out);
  out << color << frame.lines.front() << console.plain(out) << '\n';
  for (std::size_t n = 1; n < frame.lines.size(); ++n) out << frame.lines[n] << '\n';
  if (redrawn) out << kWrap;
  out << std::flush;
  if (redrawn) drawn_lines_ = frame.lines.size();
}

ExitCode MonitorCommand::write(const Console& console, const MonitorFrame& frame) const {
  if (once_ || !json_on_stdout(json_)) return write_json(console, json_, frame.document);
  console.out << frame.document.dump() << std::endl;  // a stream: one look, one line
  return ExitCode::ok;
}

ExitCode MonitorCommand::run(const Console& console) {
  ExitCode code = ExitCode::ok;
  const auto source = open(console, &code);
  if (!source) return code;
  for (bool first = true;; first = false) {
    const MonitorFrame frame = source->look();
    if (frame.is_ok()) {
      show(console, frame);
      const ExitCode written = write(console, frame);
      if (written != ExitCode::ok) return written;
    } else {
      console.error(frame.happened, "", frame.advice);
      drawn_lines_ = 0;
      if (first || once_) return ExitCode::environment;  // later: it may come back
    }
    if (!console.out) {
      console.error("standard output could not be written", "an open pipe, terminal or file", "");
      return ExitCode::environment;
    }
    if (once_) return frame.healthy ? ExitCode::ok : ExitCode::check_failed;
    std::this_thread::sleep_for(std::chrono::duration<double>(interval_s_));
  }
}

}  // namespace kvarena::tools
