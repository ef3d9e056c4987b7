// A writer churns a pool as fast as its readers can follow: what it published at each step is
// recounted, and every scrape, rendered here or served, equals the recount of the step it names.

#include "health/render/metrics.hpp"

#include "support/process_memory.hpp"
#include "support/raw_client.hpp"

#include "kvarena/health/health_monitor.hpp"
#include "kvarena/health/health_server.hpp"
#include "kvarena/step/step_publisher.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <string_view>
#include <thread>

namespace kvarena {
namespace {

constexpr std::int64_t kBlocks = 300;
constexpr std::int32_t kBlockSize = 4;
constexpr std::uint64_t kEver = std::numeric_limits<std::uint64_t>::max();

/// What a step left behind: tokens and sequences by our own count, blocks one by one.
struct Recount {
  std::int64_t tokens = 0;
  std::int64_t sequences = 0;
  std::array<std::int64_t, 5> blocks{};  // by BlockState

  std::int64_t of(BlockState state) const { return blocks.at(static_cast<std::size_t>(state)); }
};

/// The recounts of the steps that a reader may still be shown. Each reader says how far it is; the
/// writer waits for the slowest, so that the steps it keeps are bounded and none is missed.
class Recounts {
 public:
  static constexpr std::size_t kMaxSteps = 4096;
  static constexpr std::size_t kReaders = 2;

  /// The writer, before it publishes `step`.
  void add(std::uint64_t step, const Recount& recount) {
    std::unique_lock lock(mutex_);
    follow_.wait(lock, [this] { return steps_.size() < kMaxSteps; });
    if (step >= floor_) steps_.emplace(step, recount);
    latest_ = step;
    lead_.notify_all();
  }
  /// A reader: waits until the writer is at `step` or past it.
  void await(std::uint64_t step) {
    std::unique_lock lock(mutex_);
    lead_.wait(lock, [&] { return latest_ >= step; });
  }
  /// What `step` left. `reader` is shown no earlier step from now on.
  Recount take(std::size_t reader, std::uint64_t step) {
    const std::scoped_lock lock(mutex_);
    const auto found = steps_.find(step);
    if (found == steps_.end()) {
      ADD_FAILURE() << "reader " << reader << " was shown step " << step << ", never published";
      return {};
    }
    const Recount recount = found->second;
    advance(reader, step);
    return recount;
  }
  /// `reader` scrapes no more.
  void leave(std::size_t reader) {
    const std::scoped_lock lock(mutex_);
    advance(reader, kEver);
  }

 private:
  void advance(std::size_t reader, std::uint64_t step) {
    reached_.at(reader) = step;
    floor_ = *std::ranges::min_element(reached_);
    steps_.erase(steps_.begin(), steps_.lower_bound(floor_));
    follow_.notify_one();
  }

  std::mutex mutex_;
  std::condition_variable follow_;  // a reader has advanced
  std::condition_variable lead_;    // the writer has
  std::map<std::uint64_t, Recount> steps_;
  std::array<std::uint64_t, kReaders> reached_{};
  std::uint64_t floor_ = 0;  // no reader is shown an earlier step
  std::uint64_t latest_ = 0;
};

/// The churned pool: sequences come, grow and go; what does not fit is refused.
class Churn {
 public:
  explicit Churn(std::uint64_t seed) : random_(seed) { recounts.add(0, recount()); }

  void step() {
    publisher.begin_step();
    for (int n = 0; n < 4; ++n) change();
    recounts.add(++steps, recount());
    publisher.publish({.steps_ended = steps});
  }
  /// Of now.
  Recount recount() const {
    Recount now;
    for (const auto& [sequence, length] : lengths_) now.tokens += length;
    now.sequences = static_cast<std::int64_t>(lengths_.size());
    for (std::int32_t id = 0; id < kBlocks; ++id) {
      ++now.blocks.at(static_cast<std::size_t>(manager.state(BlockId{id})));
    }
    return now;
  }

  BlockManager manager = BlockManager::create({.num_blocks = kBlocks, .max_holders = 40}).value();
  BlockTables tables =
      BlockTables::create(manager, {.block_size_tokens = kBlockSize, .max_sequences = 32}).value();
  StepPublisher publisher = StepPublisher::create(manager, tables, {.audit_blocks = 16}).value();
  std::uint64_t steps = 0;
  Recounts recounts;

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

/// The exposition of a pool's figures, as one reader is shown it again and again.
class Scrape {
 public:
  /// Reads the next one over the last. Series stay, and none that counts goes back.
  void read(std::string_view text) {
    std::size_t num_read = 0;
    while (!text.empty()) {
      const std::string_view line = text.substr(0, text.find('\n'));
      text.remove_prefix(std::min(text.size(), line.size() + 1));
      if (line.starts_with('#')) continue;
      const std::size_t space = line.rfind(' ');
      ASSERT_NE(space, line.npos) << line;
      ++num_read;
      take(line.substr(0, space), line.substr(space + 1));
    }
    ASSERT_EQ(num_read, series_.size()) << "a series is missing, or doubled";
  }
  /// The value of a figure of the pool, e.g. "tokens", or of it by state.
  std::int64_t at(const std::string& figure, std::string_view state = {}) const {
    const std::string by_state = state.empty() ? "" : ",state=\"" + std::string(state) + "\"";
    return static_cast<std::int64_t>(
        series_.at("kvarena_" + figure + "{pool=\"default\"" + by_state + "}"));
  }

 private:
  void take(std::string_view name, std::string_view number) {
    double value = 0;
    std::from_chars(number.data(), number.data() + number.size(), value);
    const auto known = series_.find(name);
    if (known == series_.end()) {
      series_.emplace(name, value);
      return;
    }
    const bool counts = name.find("_total") != name.npos;
    ASSERT_TRUE(!counts || value >= known->second) << name << " went back";
    known->second = value;
  }

  std::map<std::string, double, std::less<>> series_;
};

void expect_equal(const Scrape& scrape, const Recount& recount) {
  EXPECT_EQ(scrape.at("tokens"), recount.tokens);
  EXPECT_EQ(scrape.at("sequences"), recount.sequences);
  for (const BlockState state : {BlockState::free, BlockState::referenced, BlockState::fenced,
                                 BlockState::evictable, BlockState::offline}) {
    EXPECT_EQ(scrape.at("blocks", name_of(state)), recount.of(state)) << name_of(state);
  }
  EXPECT_EQ(scrape.at("block_references"), recount.of(BlockState::referenced)) << "none is shared";
  EXPECT_EQ(scrape.at("table_entries"), recount.of(BlockState::referenced));
  EXPECT_EQ(scrape.at("table_entries") * kBlockSize,
            scrape.at("tokens") + scrape.at("waste_tokens"));
  EXPECT_EQ(scrape.at("audit_failed"), 0);
}

/// Judges the scrapes of one reader, in the order in which it takes them.
class Judge {
 public:
  Judge(Recounts& recounts, std::size_t reader) : recounts_(recounts), reader_(reader) {}
  ~Judge() { recounts_.leave(reader_); }
  Judge(const Judge&) = delete;
  Judge& operator=(const Judge&) = delete;

  void take(std::string_view text) {
    scrape_.read(text);
    const auto step = static_cast<std::uint64_t>(scrape_.at("steps_total"));
    expect_equal(scrape_, recounts_.take(reader_, step));
    ASSERT_FALSE(testing::Test::HasFailure()) << "at step " << step;
  }

 private:
  Recounts& recounts_;
  const std::size_t reader_;
  Scrape scrape_;
};

TEST(ScrapeChurn, EveryScrapeEqualsTheRecountOfItsStep) {
  const int rendered = test::kThreadSanitizer ? 2'000 : test::kAddressSanitizer ? 3'000 : 100'000;
  const int served = rendered / 50;
  Churn churn(7);
  HealthMonitor monitor = HealthMonitor::create({.run_thread = false}).value();
  ASSERT_TRUE(monitor.watch(churn.publisher));
  const HealthServer server = HealthServer::start(monitor, {.request_limit_ms = 60'000}).value();
  const auto scrape_served = [&] {
    const std::string response = test::ask(server.port(), test::get_request("/metrics"));
    EXPECT_EQ(test::status_of(response), 200) << response;
    return test::body_of(response);
  };

  std::atomic<bool> stop{false};
  std::thread writer([&] {
    while (!stop.load()) churn.step();
  });
  std::thread over_http([&] {
    Judge judge(churn.recounts, 0);
    for (int n = 0; n < served && !testing::Test::HasFailure(); ++n) judge.take(scrape_served());
  });
  {
    Judge judge(churn.recounts, 1);
    for (int n = 0; n < rendered && !testing::Test::HasFailure(); ++n) {
      churn.recounts.await(static_cast<std::uint64_t>(n) / 8);  // however they are scheduled
      judge.take(metrics_text(monitor.report()));
    }
  }
  over_http.join();
  stop.store(true);
  writer.join();

  churn.publisher.publish({.steps_ended = churn.steps});
  ASSERT_TRUE(churn.tables.check_invariants());
  Scrape last;
  last.read(scrape_served());
  expect_equal(last, churn.recount());
  EXPECT_EQ(last.at("steps_total"), static_cast<std::int64_t>(churn.steps));
  EXPECT_GT(last.at("exhaustions_total"), 0) << "the pool was never full";
  EXPECT_GT(last.at("audit_passes_total"), 0);
}

}  // namespace
}  // namespace kvarena
