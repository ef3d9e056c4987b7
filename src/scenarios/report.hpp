#pragma once

/// @file
/// `ScenarioReport`: the figures and checks of one pressure scenario. The scenario passes when
/// every check holds. Each check shows the expected and the seen value. Plain data; one thread at a
/// time.

#include "verify/failure.hpp"

#include <atomic>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace kvarena::scenarios {

using verify::Failure;
using verify::MaybeFailure;
using verify::RunEnd;
using verify::unexpected;

/// Returns whether the run was asked to stop; false without a flag.
inline bool is_stopped(const std::atomic<bool>* stop) noexcept { return stop != nullptr && *stop; }
/// Makes the failure of a scenario that was asked to stop.
inline Failure interruption() { return {RunEnd::interrupted, {.found = "interrupted"}}; }

/// Numbers in rows, such as readings one after another.
struct FigureTable {
  std::vector<std::string> columns;             ///< as names of figures
  std::vector<std::vector<std::int64_t>> rows;  ///< [rows, columns]
};

/// A number, a word or a table. Its name is snake_case with the unit in it: `free_bytes_before`.
struct Figure {
  using Value = std::variant<std::int64_t, double, std::string, FigureTable>;

  std::string name;
  Value value;
};

struct Check {
  std::string what;
  std::string expected;
  std::string seen;
  bool held = false;
};

/// Figures and checks of one scenario, in the order in which they came.
struct ScenarioReport {
  std::string name;   ///< as on the command line
  std::string title;  ///< for people
  std::vector<Figure> figures;
  std::vector<Check> checks;
  std::string skipped;   ///< why it could not apply; empty when it ran
  MaybeFailure ended;    ///< why it could not come to its end; absent when it did
  double seconds = 0.0;  ///< that it took

  /// Returns whether the scenario was completed with at least one check and every check held.
  bool passed() const noexcept;
  /// Returns whether the scenario was interrupted. It has then neither passed nor failed.
  bool interrupted() const noexcept { return ended && ended->end == RunEnd::interrupted; }
  /// Returns whether the scenario ran, was not interrupted, and did not pass.
  bool failed() const noexcept { return skipped.empty() && !interrupted() && !passed(); }

  void add(std::string figure, Figure::Value value);

  /// `seen` must be `expected`. Returns whether it is, as the others do.
  bool expect_equal(std::string what, std::int64_t expected, std::int64_t seen);
  bool expect_at_most(std::string what, std::int64_t limit, std::int64_t seen);
  bool expect_at_most(std::string what, double limit, double seen);
  bool expect_at_least(std::string what, std::int64_t least, std::int64_t seen);
  /// `seen` must be `expected`.
  bool expect_same(std::string what, std::string expected, std::string seen);
  bool expect(std::string what, std::string expected, std::string seen, bool held);
};

}  // namespace kvarena::scenarios
