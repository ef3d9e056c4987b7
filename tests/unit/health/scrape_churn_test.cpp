// A writer churns a pool as fast as it can while two readers scrape it: every scrape is a state
// that the pool was in, and the last one equals a recount.

#include "health/render/metrics_text.hpp"

#include "support/process_memory.hpp"
#include "support/raw_client.hpp"

#include "kvarena/health/health_monitor.hpp"
#include "kvarena/health/health_server.hpp"
#include "kvarena/step/step_publisher.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace kvarena {
namespace {

constexpr std::int64_t kBlocks = 300;
constexpr std::int32_t kBlockSize = 4;

/// The churned pool: sequences come, fork, grow and go; what does not fit is refused.
class Churn {
 public:
  explicit Churn(std::uint64_t seed) : random_(seed) {}

  void step() {
    publisher.begin_step();
    for (int n = 0; n < 4; ++n) change();
    publisher.publish(++steps);
  }
  /// Tokens that were appended and not destroyed, by our own count.
  std::int64_t tokens() const {
    std::int64_t sum = 0;
    for (const auto& [sequence, length] : lengths_) sum += length;
    return sum;
  }
  std::int64_t sequences() const { return static_cast<std::int64_t>(lengths_.size()); }

  BlockManager manager = BlockManager::create({.num_blocks = kBlocks, .max_holders = 40}).value();
  BlockTables tables =
      BlockTables::create(manager, {.block_size_tokens = kBlockSize, .max_sequences = 32}).value();
  StepPublisher publisher = StepPublisher::create(manager, tables, {.audit_blocks = 16}).value();
  std::uint64_t steps = 0;

 private:
  void change() {
    const std::uint64_t choice = random_() % 10;
    if (choice < 2 && lengths_.size() < 32) {
      lengths_[tables.create_sequence().value()] = 0;
    } else if (choice < 8 && !lengths_.empty()) {
      auto& [sequence, length] = *any();
      const AppendDemand demand{sequence, static_cast<std::int32_t>(1 + random_() % 30)};
      if (tables.append({&demand, 1})) length += demand.num_tokens;
    } else if (!lengths_.empty()) {
      const auto gone = any();
      ASSERT_TRUE(tables.destroy(gone->first));
      lengths_.erase(gone);
    }
  }
  std::map<SequenceId, std::int64_t>::iterator any() {
    return std::next(lengths_.begin(), static_cast<std::ptrdiff_t>(random_() % lengths_.size()));
  }

  std::mt19937_64 random_;
  std::map<SequenceId, std::int64_t> lengths_;
};

/// Series by name with labels, e.g. `kvarena_tokens{pool="default"}`.
using Series = std::map<std::string, double>;

Series series_of(const std::string& text) {
  Series all;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t space = line.rfind(' ');
    if (line.starts_with('#') || space == line.npos) continue;
    all[line.substr(0, space)] = std::stod(line.substr(space + 1));
  }
  return all;
}

/// Judges scrapes in the order in which one reader takes them.
class Judge {
 public:
  void take(const Series& scrape) {
    double sum = 0;
    for (const auto& [name, value] : scrape) {
      if (name.starts_with("kvarena_blocks{")) sum += value;
      if (name.find("_total") == name.npos) continue;
      const auto [before, is_new] = counters_.try_emplace(name, value);
      ASSERT_GE(value, before->second) << name << " went back";
      before->second = value;
    }
    ASSERT_EQ(sum, kBlocks) << "states do not add up";
    ASSERT_EQ(scrape.at("kvarena_blocks{pool=\"default\",state=\"referenced\"}"),
              scrape.at("kvarena_block_references{pool=\"default\"}"))
        << "nothing is shared here";
    ASSERT_EQ(scrape.at("kvarena_table_entries{pool=\"default\"}") * kBlockSize,
              scrape.at("kvarena_tokens{pool=\"default\"}") +
                  scrape.at("kvarena_waste_tokens{pool=\"default\"}"));
    ASSERT_EQ(scrape.at("kvarena_audit_failed{pool=\"default\"}"), 0);
  }

 private:
  Series counters_;
};

void expect_recount(const Series& scrape, const Churn& churn) {
  std::map<std::string, double> states;
  for (std::int32_t id = 0; id < kBlocks; ++id) {
    ++states[std::string(name_of(churn.manager.state(BlockId{id})))];
  }
  for (const char* state : {"free", "referenced", "fenced", "evictable", "offline"}) {
    const std::string series =
        "kvarena_blocks{pool=\"default\",state=\"" + std::string(state) + "\"}";
    EXPECT_EQ(scrape.at(series), states[state]) << state;
  }
  const auto at = [&](const std::string& name) { return scrape.at(name + "{pool=\"default\"}"); };
  EXPECT_EQ(at("kvarena_tokens"), static_cast<double>(churn.tokens()));
  EXPECT_EQ(at("kvarena_sequences"), static_cast<double>(churn.sequences()));
  EXPECT_EQ(at("kvarena_steps_total"), static_cast<double>(churn.steps));
  EXPECT_GT(at("kvarena_exhaustions_total"), 0.0) << "the pool was never full";
  EXPECT_GT(at("kvarena_audit_passes_total"), 0.0);
}

TEST(ScrapeChurn, EveryScrapeIsBalancedAndTheLastEqualsARecount) {
  const int rendered = test::kThreadSanitizer ? 2'000 : test::kAddressSanitizer ? 10'000 : 100'000;
  const int served = rendered / 50;
  Churn churn(7);
  HealthMonitor monitor = HealthMonitor::create({.run_thread = false}).value();
  ASSERT_TRUE(monitor.watch(churn.publisher));
  const HealthServer server = HealthServer::start(monitor, {.request_limit_ms = 60'000}).value();
  const auto scrape_served = [&] {
    const std::string response = test::ask(server.port(), test::get_request("/metrics"));
    EXPECT_EQ(test::status_of(response), 200) << response;
    return series_of(test::body_of(response));
  };

  std::atomic<bool> stop{false};
  std::thread writer([&] {
    while (!stop.load()) churn.step();
  });
  std::thread over_http([&] {
    Judge judge;
    for (int n = 0; n < served && !testing::Test::HasFatalFailure(); ++n) {
      judge.take(scrape_served());
    }
  });
  Judge judge;
  for (int n = 0; n < rendered && !testing::Test::HasFatalFailure(); ++n) {
    judge.take(series_of(metrics_text(monitor.report())));
  }
  over_http.join();
  stop.store(true);
  writer.join();

  churn.publisher.publish(churn.steps);
  ASSERT_TRUE(churn.tables.check_invariants());
  expect_recount(series_of(metrics_text(monitor.report())), churn);
  expect_recount(scrape_served(), churn);
}

}  // namespace
}  // namespace kvarena
