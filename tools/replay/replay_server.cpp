#include "tools/replay/replay_server.hpp"

#include "base/excerpt.hpp"

#include "kvarena/base/log.hpp"

#include <fmt/format.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <cerrno>
#include <exception>
#include <string_view>
#include <system_error>
#include <utility>

namespace kvarena::tools {

namespace {

/// An error as Console::error takes it.
struct Refusal {
  std::string happened;
  std::string advice;
};

Refusal refusal_of_token(const std::string& host, const std::string& token) {
  const std::string happened =
      token.empty() ? fmt::format("{} is not loopback and needs a token; none was given", host)
                    : fmt::format("the token of {} characters is none", token.size());
  return {happened,
          "give --http-token-file with a line of 16 to 256 letters, digits and -._~+/=, which "
          "every address but loopback needs"};
}

Refusal refusal_of(const HttpAddress& address, const std::string& token, const Status& status) {
  if (status.option == Option::token) return refusal_of_token(address.host, token);
  if (status.option == Option::address) {
    return {fmt::format("\"{}\" is no numeric address and not localhost", address.host),
            "give --http ADDRESS:PORT with a numeric address or localhost"};
  }
  const bool is_of_address = status.resource == Resource::address;
  const std::string advice = "choose another address or port (0: any free one)";
  if (!is_of_address || status.code != StatusCode::io_error) return {describe(status), advice};
  const std::string host =
      address.host.find(':') == address.host.npos ? address.host : "[" + address.host + "]";
  if (status.native == EADDRINUSE) {
    return {fmt::format("{}:{} is in use by another process", host, address.port), advice};
  }
  return {fmt::format("{}:{} cannot be listened on: {}", host, address.port,
                      std::generic_category().message(status.native)),
          advice};
}

std::string_view name_of(LogLevel level) noexcept {
  switch (level) {
    case LogLevel::critical: return "critical";
    case LogLevel::error: return "error";
    default: return "warning";
  }
}

// From whatever thread logs, beside whatever the command prints: one write a line. Of a text of
// several lines the first: the command's own error has the others.
void print_line(LogLevel level, std::string_view message) {
  const std::string line =
      fmt::format("{}: {}\n", name_of(level), message.substr(0, message.find('\n')));
  static_cast<void>(!::write(STDERR_FILENO, line.data(), line.size()));
}

}  // namespace

void HttpOptions::declare(CLI::App& command) {
  const OptionGroup group(command, "Health over HTTP");
  const auto take = [this](const std::string& text) {
    address_ = parse_http_address(text);
    if (address_) return;
    throw CLI::ValidationError(
        "--http", refusal_text({.found = fmt::format("\"{}\" is no address", printable(text)),
                                .expected = "ADDRESS:PORT, such as 127.0.0.1:15858"}));
  };
  auto* http = command.add_option_function<std::string>(
      "--http", take, "Serve /health, /metrics and /stats during the run; port 0: any free one");
  http->type_name("ADDRESS:PORT");
  command
      .add_option("--http-token-file", token_path_,
                  "Ask for the token in the first line of FILE; loopback alone may do without")
      ->type_name("FILE")
      ->needs(http);
  command.add_flag("--linger", linger_, "Serve on after the run, until SIGINT or SIGTERM")
      ->needs(http);
}

ReplayServer::LogLines::LogLines() { set_log_sink(print_line, LogLevel::warning); }
ReplayServer::LogLines::~LogLines() { set_log_sink({}); }

ReplayServer::ReplayServer(HealthMonitor monitor, Device* device)
    : device_(device), monitor_(std::move(monitor)) {}

std::unique_ptr<ReplayServer> ReplayServer::start(const Console& console,
                                                  const HttpAddress& address,
                                                  const std::string& token, Device* device,
                                                  ExitCode* code) {
  *code = ExitCode::environment;
  auto monitor = HealthMonitor::create();
  if (!monitor) {
    console.error(fmt::format("the health monitor: {}", describe(monitor.status())));
    return nullptr;
  }
  std::unique_ptr<ReplayServer> made(new ReplayServer(std::move(*monitor), device));
  if (device != nullptr) static_cast<void>(made->monitor_.watch(*device));
  auto server = HealthServer::start(
      made->monitor_, {.address = address.host, .port = address.port, .token = token});
  if (!server) {
    const Status status = server.status();
    if (status.code == StatusCode::invalid_argument) *code = ExitCode::usage;
    const Refusal refusal = refusal_of(address, token, status);
    console.error("--http: " + refusal.happened, "", refusal.advice);
    return nullptr;
  }
  made->server_ = std::make_unique<HealthServer>(std::move(*server));
  // Quiet or not: without it nobody knows a port that was chosen here.
  console.err << fmt::format("serving {}/health, /metrics and /stats\n", made->server_->url())
              << std::flush;
  return made;
}

void ReplayServer::on_pool(StepPublisher& publisher) {
  if (auto watch = monitor_.watch(publisher, "replay", device_)) watch_ = *watch;
  static_cast<void>(monitor_.check_now());
}

void ReplayServer::on_progress(const replay::ReplayProgress& progress) {
  static_cast<void>(
      monitor_.report_engine(watch_, progress.waiting, progress.preemptions - preemptions_));
  preemptions_ = progress.preemptions;
}

void ReplayServer::on_end(std::unique_ptr<replay::EnginePool> pool) noexcept {
  pool_ = std::move(pool);
  try {
    static_cast<void>(monitor_.report_engine(watch_, 0, 0));
    publish();
    static_cast<void>(monitor_.check_now());
  } catch (const std::exception&) {
    // Want of host memory: the monitor's own thread tries again.
  }
}

void ReplayServer::publish() {
  if (pool_) static_cast<void>(pool_->publish());
}

}  // namespace kvarena::tools
