// The committed reports of docs/reports have the figures that scenarios write today.

#include "shared_machine.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <variant>

namespace kvarena::replay::pressure {
namespace {

using Json = nlohmann::ordered_json;
using Names = std::vector<std::string>;

/// "memory: tokens tracked_bytes": a figure, and its columns where it is a table. NVML's, which
/// only a GPU has, are left out.
void add(std::string figure, const Names& columns, Names& names) {
  const auto is_nvml = [](const std::string& name) { return name.starts_with("nvml_"); };
  if (is_nvml(figure)) return;
  for (const std::string& column : columns) {
    if (!is_nvml(column)) figure += (&column == columns.data() ? ": " : " ") + column;
  }
  names.push_back(std::move(figure));
}

Names figures_of(const ScenarioReport& scenario) {
  Names names;
  for (const Figure& figure : scenario.figures) {
    const auto* table = std::get_if<FigureTable>(&figure.value);
    add(figure.name, table != nullptr ? table->columns : Names{}, names);
  }
  return names;
}

Names figures_of(const Json& scenario) {
  Names names;
  for (const auto& [name, value] : scenario.at("figures").items()) {
    Names columns;
    if (value.is_array()) {
      for (const auto& [column, cell] : value.at(0).items()) columns.push_back(column);
    }
    add(name, columns, names);
  }
  return names;
}

TEST(CommittedReports, HaveTodaysFigures) {
  const std::filesystem::path folder = KVARENA_REPORTS;
  if (!std::filesystem::is_directory(folder)) GTEST_SKIP() << "no " << folder;
  if (!std::ifstream(test::list_of_children())) GTEST_SKIP() << "no " << test::list_of_children();
  const auto device = test::small_host(256 << 20);
  test::SharedMachine machine(std::uint64_t{1} << 30);
  PressureOptions options = test::neighbour_options(*device, machine);
  const PressureSizes real;  // what decides which figures there are
  options.sizes.full_rounds = real.full_rounds;
  options.sizes.batch_blocks = real.batch_blocks;
  const PressureReport fresh = run_pressure(options, nullptr).report;
  ASSERT_EQ(fresh.num_failed(), 0);
  int read = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (!name.ends_with(".json")) continue;
    ++read;
    std::ifstream file(entry.path());
    const Json scenarios = Json::parse(file).at("scenarios");
    ASSERT_EQ(scenarios.size(), fresh.scenarios.size()) << name;
    for (std::size_t n = 0; n < scenarios.size(); ++n) {
      EXPECT_EQ(scenarios[n].at("name"), fresh.scenarios[n].name) << name;
      EXPECT_EQ(figures_of(scenarios[n]), figures_of(fresh.scenarios[n]))
          << name << ", " << fresh.scenarios[n].name << ": run 'kvarena pressure' again";
    }
  }
  EXPECT_GT(read, 0);
}

}  // namespace
}  // namespace kvarena::replay::pressure
