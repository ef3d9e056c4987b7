#pragma once

/// @file
/// `kvarena replay`: its options (replay_declarations.cpp) and its work (replay_command.cpp).

#include "tools/console.hpp"
#include "tools/device_option.hpp"
#include "tools/replay/pure_cache_command.hpp"
#include "tools/replay/replay_model.hpp"
#include "tools/replay/replay_server.hpp"
#include "tools/result_file.hpp"
#include "tools/shape_options.hpp"

#include "replay/replay_options.hpp"
#include "replay/replay_report.hpp"

#include "kvarena/capacity/step_time.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace kvarena::tools {

/// The options of the roofline clock: a GPU, and the shares of its peaks that kernels reach.
class RooflineOptions {
 public:
  /// Declares --gpu, which it returns, and --efficiency-matrices, -attention and -bandwidth.
  CLI::Option* declare(CLI::App& command);
  /// Whether a GPU was named.
  bool is_given() const { return !gpu_.empty(); }
  /// Returns the step times of the preset `model` on the GPU. On failure reports it on the console
  /// and returns nothing.
  std::optional<capacity::StepTimeModel> choose(const Console& console,
                                                const std::string& model) const;

 private:
  std::string gpu_;
  capacity::StepEfficiency efficiency_;
};

/// The command's options and its work.
class ReplayCommand {
 public:
  CLI::App* declare(CLI::App& parent);
  ExitCode run(const Console& console);

 private:
  ExitCode run_pure_cache(const Console& console);
  void declare_clock(CLI::App& command);
  void declare_engine(CLI::App& command);
  void declare_pool(CLI::App& command);
  void declare_attention(CLI::App& command);
  bool complete(const Console& console);
  bool take_device(const Console& console);
  bool take_roofline(const Console& console);
  bool take_prefix_cache(const Console& console);
  bool take_outputs(const Console& console) const;
  bool uses_stdout() const noexcept;
  ExitCode open_outputs(const Console& console);
  ExitCode report(const Console& console, const replay::ReplayOutcome& outcome);
  ExitCode write_results(const Console& console, const replay::ReplayOutcome& outcome);
  /// nullopt without an outcome, and then the exit code in `code`.
  std::optional<replay::ReplayOutcome> replay(const Console& console, ExitCode* code);
  void warn(const Console& console, const replay::ReplayReport& report) const;

  replay::ReplayOptions options_;
  PureCacheCommand pure_cache_;
  ShapeOptions shape_;
  RooflineOptions roofline_;
  ReplayModel model_;
  ChosenModel chosen_;  // its groups are borrowed by the options
  std::string format_ = "auto";
  std::string clock_ = "step";
  std::string reserve_;
  std::string preempted_ = "drop";
  std::string attention_ = "off";
  DeviceChoice device_;
  std::optional<std::int64_t> max_running_;
  std::int64_t timeline_ms_ = 1000;
  std::int32_t threads_ = 0;
  double elapsed_s_ = 0.0;
  std::string json_;
  SeriesOutput timeline_{"--timeline"};
  SeriesOutput request_times_{"--request-times"};
  HttpOptions http_;
  std::optional<OpenedDevice> opened_;
  std::unique_ptr<ReplayServer> server_;  // looks at the device
};

}  // namespace kvarena::tools
