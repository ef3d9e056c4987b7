// The roofline clock beside a real engine: vLLM 0.19 with Llama-3.1-8B on an RTX 4090
// (docs/explanation/capacity.md). Nothing is fitted to the run: the GPU's and the model's numbers
// are presets, the efficiencies are published ones.

#include "replay/replay.hpp"

#include "kvarena/capacity/gpu_spec.hpp"
#include "kvarena/capacity/model_presets.hpp"
#include "support/test_files.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <sstream>
#include <vector>

namespace kvarena::replay {
namespace {

using Series = std::map<std::int64_t, double>;  // second -> value

/// Columns of a CSV file by name.
std::map<std::string, std::vector<double>> columns_of(std::istream&& in) {
  std::string line;
  std::getline(in, line);
  if (line.ends_with('\r')) line.pop_back();
  std::vector<std::string> names;
  std::stringstream header(line);
  for (std::string name; std::getline(header, name, ',');) names.push_back(name);
  std::map<std::string, std::vector<double>> columns;
  while (std::getline(in, line)) {
    if (line.ends_with('\r')) line.pop_back();
    std::stringstream row(line);
    for (const std::string& name : names) {
      std::string cell;
      std::getline(row, cell, ',');
      columns[name].push_back(cell.empty() ? 0.0 : std::stod(cell));
    }
  }
  return columns;
}

std::string run_file(const char* suffix) {
  return test::data_dir() + "/vllm_rtx4090_llama31_8b_" + suffix;
}

/// A column of the run's time series.
Series measured(const char* column) {
  const auto columns = columns_of(std::ifstream(run_file("timeseries.csv")));
  Series series;
  for (std::size_t i = 0; i < columns.at("t").size(); ++i) {
    series[std::llround(columns.at("t")[i])] = columns.at(column)[i];
  }
  return series;
}

/// A column of a replay's timeline at every full second: between two rows the last row holds.
Series replayed(const std::string& timeline, const char* column) {
  const auto columns = columns_of(std::istringstream(timeline));
  Series series;
  std::size_t row = 0;
  const std::vector<double>& times = columns.at("time_s");
  for (std::int64_t second = 0; second <= static_cast<std::int64_t>(times.back()); ++second) {
    while (row + 1 < times.size() && times[row + 1] <= static_cast<double>(second)) ++row;
    series[second] = columns.at(column)[row];
  }
  return series;
}

double peak_of(const Series& series) {
  double peak = 0.0;
  for (const auto& [second, value] : series) peak = std::max(peak, value);
  return peak;
}

double mean_of(const Series& series, std::int64_t from, std::int64_t to) {
  double sum = 0.0;
  for (std::int64_t second = from; second <= to; ++second) sum += series.at(second);
  return sum / static_cast<double>(to - from + 1);
}

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.at(values.size() / 2);
}

/// The engine's limits from the run's own metadata; admission as vLLM V1 does it: the prompt has to
/// fit, nothing is held back.
ReplayOptions engine_of_the_run() {
  std::ifstream file(run_file("meta.json"));
  const auto meta = nlohmann::json::parse(file);
  const auto& limits = meta.at("engine_kwargs");
  ReplayOptions options;
  options.trace.path = run_file("requests.jsonl");
  options.clock = ClockKind::roofline;
  options.reserve = Reserve::prompt;
  options.limits.max_running = limits.at("max_num_seqs");
  options.limits.max_batched_tokens = limits.at("max_num_batched_tokens");
  options.limits.max_context_tokens = limits.at("max_model_len");
  options.pool.num_blocks = meta.at("kv_cache").at("num_gpu_blocks").get<std::int64_t>() - 1;
  options.pool.watermark_blocks = 0;
  options.keep_preempted = true;
  options.attention.shape.block_size_tokens = meta.at("kv_cache").at("block_size");
  const auto numbers = capacity::step_time_options(*capacity::find_model_preset("Llama-3.1-8B"),
                                                   *capacity::find_gpu("RTX-4090"));
  options.roofline = *capacity::StepTimeModel::create(*numbers);
  return options;
}

class VllmRun : public testing::Test {
 protected:
  void SetUp() override {
    KVARENA_REQUIRE_DATA();
    ReplayOptions options = engine_of_the_run();
    options.timeline = &timeline_;
    options.request_times = &times_;
    const auto outcome = run_replay(options);
    ASSERT_EQ(outcome.end, ReplayEnd::completed) << outcome.why.found;
    report_ = outcome.report;
  }
  Series replay_series(const char* column) const { return replayed(timeline_.str(), column); }

  std::ostringstream timeline_;
  std::ostringstream times_;
  ReplayReport report_;
};

TEST_F(VllmRun, OccupancyPeaksAndEndAreThoseOfTheEngine) {
  Series occupancy = replay_series("blocks");
  for (auto& [second, blocks] : occupancy) {
    blocks *= 100.0 / static_cast<double>(report_.num_blocks);
  }
  const double real_occupancy = mean_of(measured("kv_cache_pct"), 5, 165);
  EXPECT_NEAR(real_occupancy, 98.14, 0.005) << "the run is the published one";
  EXPECT_NEAR(mean_of(occupancy, 5, 165), real_occupancy, 2.0);
  EXPECT_NEAR(peak_of(replay_series("running")), peak_of(measured("running")), 4.9);
  EXPECT_NEAR(peak_of(replay_series("waiting")), peak_of(measured("waiting")), 23.4);
  EXPECT_NEAR(static_cast<double>(report_.virtual_us) / 1e6, 183.6, 183.6 * 0.05);
  EXPECT_EQ(report_.completed, 300);
}

// Not asked for, and what docs/explanation/capacity.md reports.
TEST_F(VllmRun, SchedulingAndRunningFollowTheEngine) {
  const auto times = columns_of(std::istringstream(times_.str()));
  std::ifstream requests(run_file("requests.jsonl"));
  std::vector<double> late_s;
  for (std::string line; std::getline(requests, line);) {
    const double scheduled_s = nlohmann::json::parse(line).at("scheduled_ms").get<double>() / 1e3;
    late_s.push_back(std::abs(times.at("started_s").at(late_s.size()) - scheduled_s));
  }
  ASSERT_EQ(late_s.size(), 300U);
  const Series running = replay_series("running");
  ASSERT_GE(running.rbegin()->first, measured("running").rbegin()->first);
  std::vector<double> apart;
  for (const auto& [second, value] : measured("running")) {
    apart.push_back(std::abs(running.at(second) - value));
  }
  RecordProperty("median_scheduled_error_s", std::to_string(median_of(late_s)));
  RecordProperty("median_running_error", std::to_string(median_of(apart)));
  EXPECT_LT(median_of(late_s), 1.0);
  EXPECT_LE(median_of(apart), 1.0);
  EXPECT_EQ(report_.preemptions, 188);
}

}  // namespace
}  // namespace kvarena::replay
