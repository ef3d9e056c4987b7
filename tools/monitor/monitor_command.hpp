#pragma once

/// @file
/// `kvarena monitor`: a live view of a kvarena process over HTTP, or of a device by its driver.

#include "tools/console.hpp"
#include "tools/device_option.hpp"
#include "tools/exit_codes.hpp"
#include "tools/monitor/live_view.hpp"
#include "tools/monitor/monitor_frame.hpp"

#include <memory>
#include <optional>
#include <string>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace kvarena::tools {

/// The command's options and its work.
class MonitorCommand {
 public:
  /// Declares the command below `parent` and returns it.
  CLI::App* declare(CLI::App& parent);
  /// Shows one look, or looks until it is interrupted. After the first successful look, failures
  /// are shown in place of looks.
  ExitCode run(const Console& console);

 private:
  std::unique_ptr<MonitorSource> open(const Console& console, ExitCode* code) const;
  void show(const Console& console, const MonitorFrame& frame, LiveView& live) const;
  ExitCode write(const Console& console, const MonitorFrame& frame) const;

  std::string url_;
  const CLI::Option* url_option_ = nullptr;
  std::string token_path_;
  std::string ca_file_;
  DeviceChoice device_;
  double interval_s_ = 2.0;
  bool once_ = false;
  std::string json_;
};

}  // namespace kvarena::tools
