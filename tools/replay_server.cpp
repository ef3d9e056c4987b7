#include "replay_server.hpp"

#include "kvarena/base/log.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <utility>

namespace kvarena::tools {

namespace {

std::string advice_for(const Status& status) {
  if (status.resource == Resource::token) {
    return "give --http-token-file with a line of 16 to 256 letters, digits and -._~+/=, which "
           "every address but loopback needs";
  }
  if (status.code == StatusCode::invalid_argument) {
    return "give --http ADDRESS:PORT with a numeric address or localhost";
  }
  return "choose another port (0: any free one)";
}

// From whatever thread logs, beside whatever the command prints: one write a line.
void print_line(LogLevel level, std::string_view message) {
  const std::string line =
      fmt::format("{}: {}\n", level >= LogLevel::error ? "error" : "warning", message);
  static_cast<void>(!::write(STDERR_FILENO, line.data(), line.size()));
}

}  // namespace

ReplayServer::ReplayServer(HealthMonitor monitor, Device* device)
    : device_(device), monitor_(std::move(monitor)) {
  set_log_sink(print_line, LogLevel::warning);
}

ReplayServer::~ReplayServer() { set_log_sink({}); }

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
    console.error(fmt::format("--http {}:{}: {}", address.host, address.port, describe(status)), "",
                  advice_for(status));
    return nullptr;
  }
  made->server_ = std::make_unique<HealthServer>(std::move(*server));
  console.note(fmt::format("serving {}/health, /metrics and /stats", made->server_->url()));
  return made;
}

void ReplayServer::on_pool(StepPublisher& publisher) {
  if (auto watch = monitor_.watch(publisher, "replay", device_)) watch_ = *watch;
}

void ReplayServer::on_progress(const replay::ReplayProgress& progress) {
  static_cast<void>(
      monitor_.report_engine(watch_, progress.waiting, progress.preemptions - preemptions_));
  preemptions_ = progress.preemptions;
}

void ReplayServer::on_end(std::unique_ptr<replay::EnginePool> pool) {
  static_cast<void>(monitor_.report_engine(watch_, 0, 0));
  pool_ = std::move(pool);
  publish();
}

void ReplayServer::publish() {
  if (pool_) static_cast<void>(pool_->publish());
}

}  // namespace kvarena::tools
