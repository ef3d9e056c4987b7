#pragma once

/// @file
/// `kvarena shapes`: bytes of KV per token and per block, for models by name or file, or numbers.

#include "tools/console.hpp"
#include "tools/exit_codes.hpp"
#include "tools/shape_options.hpp"

#include "kvarena/capacity/model_spec.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace kvarena::tools {

/// The command's options and its work.
class ShapesCommand {
 public:
  /// Declares the command below `parent` and returns it.
  CLI::App* declare(CLI::App& parent);
  /// Prints the table of all shapes, or the arithmetic of one.
  ExitCode run(const Console& console) const;

 private:
  std::string model_;
  std::string json_;
  ShapeOptions shape_;
  std::optional<std::int64_t> pool_bytes_;
  std::int64_t context_ = 0;

  ExitCode list_all(const Console& console) const;
  ExitCode show_one(const Console& console, const ChosenShape& shape) const;
  ExitCode show_model(const Console& console) const;
  ExitCode show_groups(const Console& console, const capacity::ModelSpec& model) const;
};

}  // namespace kvarena::tools
