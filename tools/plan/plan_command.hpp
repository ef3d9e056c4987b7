#pragma once

/// @file
/// `kvarena plan`: prints how much of a GPU's memory models take, how many requests fit, what
/// limits their number, and which options to set.

#include "tools/console.hpp"
#include "tools/exit_codes.hpp"
#include "tools/plan/model_numbers.hpp"
#include "tools/plan/plan_inputs.hpp"
#include "tools/plan/plan_output.hpp"

#include "kvarena/capacity/memory_plan.hpp"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvarena::tools {

/// The command's options and its work.
class PlanCommand {
 public:
  /// Declares the command below `parent` and returns it.
  CLI::App* declare(CLI::App& parent);
  /// Plans and reports.
  ExitCode run(const Console& console);

 private:
  void declare_engine(CLI::App& command);
  bool take_formats(Finding& refusal);
  std::optional<std::vector<capacity::ModelSpec>> models(PlanRefusal& refusal) const;
  std::optional<std::vector<PlannedCase>> cases(PlanRefusal& refusal);
  ExitCode list(const Console& console) const;
  ExitCode report(const Console& console, const std::vector<PlannedCase>& cases) const;

  capacity::PlanOptions options_;
  std::vector<std::string> model_names_;
  std::vector<std::string> gpu_names_;
  ModelNumbers numbers_;
  std::string weights_;
  std::string kv_;
  std::string scales_ = "none";
  std::string kept_ = "full";
  double utilization_ = 0.9;
  std::optional<std::int64_t> context_overhead_;
  std::optional<std::int64_t> graph_bytes_;
  std::string trace_path_;
  std::string trace_format_ = "auto";
  double percentile_ = 95.0;
  std::optional<TraceLengths> lengths_;
  std::string json_;
  bool explain_ = false;
  bool list_ = false;
};

}  // namespace kvarena::tools
