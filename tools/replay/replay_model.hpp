#pragma once

/// @file
/// `ReplayModel`: the model of `kvarena replay`. Its layers are all alike, and the numbers of a
/// shape describe them; or they keep different data, and groups of layers do.

#include "tools/console.hpp"
#include "tools/shape_options.hpp"

#include "base/finding.hpp"
#include "kvarena/capacity/model_groups.hpp"
#include "kvarena/capacity/model_spec.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace kvarena::tools {

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

}  // namespace kvarena::tools
