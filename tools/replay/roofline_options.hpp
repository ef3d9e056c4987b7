#pragma once

/// @file
/// The options of the roofline clock: a GPU, and the shares of its peaks that kernels reach.

#include "tools/console.hpp"

#include "kvarena/capacity/step_time.hpp"

#include <optional>
#include <string>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace kvarena::tools {

/// What was given on the command line.
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

}  // namespace kvarena::tools
