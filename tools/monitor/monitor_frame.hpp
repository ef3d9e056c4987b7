#pragma once

/// @file
/// `MonitorFrame`: one look of `kvarena monitor`, ready to be shown; `MonitorSource` makes them.

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace kvarena::tools {

/// One look.
struct MonitorFrame {
  std::vector<std::string> lines;   ///< for a terminal, without escapes; the first is the title
  std::string line;                 ///< the same in one line, for logs
  nlohmann::ordered_json document;  ///< the same for programs
  bool healthy = true;              ///< false: --once fails, the title is red
  std::string happened;             ///< why there is nothing of the above; empty: there is
  std::string advice;               ///< what to do then

  bool is_ok() const noexcept { return happened.empty(); }
};

/// Looks again and again.
class MonitorSource {
 public:
  virtual ~MonitorSource() = default;
  /// What there is now.
  virtual MonitorFrame look() = 0;
};

}  // namespace kvarena::tools
