#pragma once

/// @file
/// `ReplayServer`: `kvarena replay --http`: a health monitor and its HTTP server over a replay's
/// pool. It keeps the pool after the run, so clients can still read it. While it lives, the
/// library's log lines from warning on go to standard error.

#include "tools/console.hpp"
#include "tools/option_values.hpp"

#include "replay/engine_pool.hpp"
#include "replay/instruments.hpp"

#include "kvarena/health/health_monitor.hpp"
#include "kvarena/health/health_server.hpp"

#include <memory>
#include <optional>
#include <string>

namespace CLI {
class App;
}

namespace kvarena::tools {

/// `--http`, `--http-token-file` and `--linger`: how a command that runs serves its health.
class HttpOptions {
 public:
  /// Declares them on `command`.
  void declare(CLI::App& command);
  /// The first line of the token's file, empty without one; nullopt where it cannot be read, which
  /// it reports.
  std::optional<std::string> token(const Console& console) const {
    return read_token(console, token_path_);
  }

  bool is_given() const noexcept { return address_.has_value(); }
  bool lingers() const noexcept { return linger_; }
  /// Requires is_given().
  const HttpAddress& address() const noexcept { return *address_; }

 private:
  std::optional<HttpAddress> address_;
  std::string token_path_;
  bool linger_ = false;
};

/// Serves a replay. Destroy it before the device.
class ReplayServer final : public replay::ReplayObserver {
 public:
  ~ReplayServer() override = default;
  ReplayServer(const ReplayServer&) = delete;
  ReplayServer& operator=(const ReplayServer&) = delete;
  /// Starts to serve before there is a pool. `device` may be nullptr. On failure reports the reason
  /// on the console, sets `code` and returns nullptr.
  static std::unique_ptr<ReplayServer> start(const Console& console, const HttpAddress& address,
                                             const std::string& token, Device* device,
                                             ExitCode* code);

  /// Runs a check at once, because earlier checks did not see the run's allocations.
  void on_pool(StepPublisher& publisher) override;
  void on_progress(const replay::ReplayProgress& progress) override;
  /// Runs a check for clients that read the pool after the run.
  void on_end(std::unique_ptr<replay::EnginePool> pool) noexcept override;
  /// After the run: publishes the pool again, with the details that were asked for meanwhile.
  void publish();

 private:
  /// The library's log lines on standard error.
  struct LogLines {
    LogLines();
    ~LogLines();
    LogLines(const LogLines&) = delete;
    LogLines& operator=(const LogLines&) = delete;
  };

  ReplayServer(HealthMonitor monitor, Device* device);

  LogLines log_lines_;  // a monitor's last lines come when it goes
  Device* device_;
  std::unique_ptr<replay::EnginePool> pool_;  // behind it are those that look at it
  HealthMonitor monitor_;
  std::unique_ptr<HealthServer> server_;
  WatchId watch_{};
  std::int64_t preemptions_ = 0;
};

}  // namespace kvarena::tools
