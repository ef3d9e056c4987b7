#pragma once

/// @file
/// `kvarena replay`: its options (replay_declarations.cpp) and its work (replay_command.cpp);
/// --pure-cache, the hit rate of a prefix cache alone (pure_cache_command.cpp); the model
/// (replay_model.cpp). Layers of a model are all alike, and the numbers of a shape describe them;
/// or they keep different data, and groups of layers do.

#include "tools/console.hpp"
#include "tools/device_option.hpp"
#include "tools/replay/replay_server.hpp"
#include "tools/result_file.hpp"
#include "tools/shape_options.hpp"

#include "base/finding.hpp"
#include "replay/pure_cache.hpp"
#include "replay/replay_options.hpp"
#include "replay/replay_report.hpp"

#include "kvarena/capacity/model_groups.hpp"
#include "kvarena/capacity/model_spec.hpp"
#include "kvarena/capacity/step_time.hpp"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace kvarena::tools {

/// The options --pure-cache, --policy and --salt-column of `replay`, and the run that the first
/// asks for. An engine with a prefix cache takes the other two as well.
class PureCacheCommand {
 public:
  /// Declares them on `command`. The salt's column goes to `salt_column`.
  void declare(CLI::App& command, std::string& salt_column);
  /// After all options of `command` are declared: those of engine, clock, pool and bytes exclude
  /// --pure-cache.
  void exclude_engine(CLI::App& command);
  bool is_given() const noexcept { return capacity_.has_value(); }
  EvictionPolicy policy() const { return *eviction_policy_of(policy_); }
  /// Returns an option that was given and needs a prefix cache, or "".
  std::string cache_option_given() const;
  /// Replays the trace. Prints the table, and writes the JSON object to `json`.
  ExitCode run(const Console& console, replay::PureCacheOptions options,
               const std::string& json) const;

 private:
  std::optional<std::int64_t> capacity_;
  std::string policy_{name_of(EvictionPolicy::tail_first)};
  CLI::Option* option_ = nullptr;
  CLI::Option* policy_option_ = nullptr;
  CLI::Option* salt_option_ = nullptr;
};

/// One object; docs/reference/command.md describes every field.
nlohmann::ordered_json json_of(const replay::PureCacheOptions& options,
                               const replay::PureCacheOutcome& outcome);

/// The table for people, with colours as `stream` (one of the console's) allows.
std::string table_of(const Console& console, const std::ostream& stream,
                     const replay::PureCacheOptions& options,
                     const replay::PureCacheOutcome& outcome);

/// A model as replay needs it. The groups are those of `groups`; none: all layers are as `shape`.
struct ChosenModel {
  ChosenShape shape;                 ///< with groups: the heads of the first with K and V
  capacity::ModelGroups groups;      ///< none: all layers are alike
  std::int64_t longest_context = 0;  ///< tokens; with groups the page is chosen for so many
};

/// The options --model and --retention, and the shape's options that may change a model.
class ReplayModel {
 public:
  /// Declares --model and --retention on `command`. The shape's options are declared apart.
  void declare(CLI::App& command);
  const std::string& name() const noexcept { return name_; }
  /// Returns the model, in which the given numbers replace its own. On failure reports it on the
  /// console and returns nothing.
  std::optional<ChosenModel> choose(const Console& console, const ShapeOptions& numbers) const;

 private:
  std::optional<ChosenModel> choose_groups(const Console& console, const ShapeOptions& numbers,
                                           capacity::ModelSpec model) const;

  std::string name_ = "Qwen2.5-0.5B";
  std::string retention_ = "model";
  CLI::Option* retention_option_ = nullptr;
};

/// Returns what is wrong with `text` as the name of a model; nothing: it is a preset or a shape.
Finding replay_model_finding(const std::string& text);

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
