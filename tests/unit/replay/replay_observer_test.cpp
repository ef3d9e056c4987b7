// What an observer of a replay is told, however the replay ends.

#include "replay/engine_pool.hpp"
#include "support/devices.hpp"
#include "support/text_matchers.hpp"
#include "unit/replay/trace_text.hpp"

#include "kvarena/step/step_publisher.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

namespace kvarena::replay {
namespace {

using test::plain_options;

/// Notes everything.
class Notes final : public ReplayObserver {
 public:
  void on_pool(StepPublisher& publisher) override { publisher_ = &publisher; }
  void on_progress(const ReplayProgress& progress) override {
    most_waiting_ = std::max(most_waiting_, progress.waiting);
    last_ = progress;
  }
  void on_end(std::unique_ptr<EnginePool> pool) noexcept override { pool_ = std::move(pool); }

  StepPublisher* publisher_ = nullptr;
  ReplayProgress last_;
  std::int64_t most_waiting_ = 0;
  std::unique_ptr<EnginePool> pool_;
};

ReplayOutcome observe(const std::string& trace, ReplayOptions options, Notes& notes) {
  const test::TempFile file(trace);
  options.trace.path = file.path();
  return run_replay(options, nullptr, &notes);
}

ReplayOptions tight_options() {
  ReplayOptions options = plain_options();
  options.pool.num_blocks = 30;
  options.pool.watermark_blocks = 0;
  options.reserve = Reserve::none;
  return options;
}

TEST(ReplayObserver, SeesWaitingPreemptionsAndTheEmptyPool) {
  Notes notes;
  const auto outcome = observe(test::mooncake_trace({{0, 100, 200}, {0, 100, 200}, {0, 100, 200}}),
                               tight_options(), notes);
  ASSERT_EQ(outcome.end, ReplayEnd::completed) << outcome.why.found;
  EXPECT_GT(notes.most_waiting_, 0);
  EXPECT_EQ(notes.last_.waiting, 0);
  EXPECT_EQ(notes.last_.requests_done, 3);
  EXPECT_GT(notes.last_.preemptions, 0);
  EXPECT_EQ(notes.last_.preemptions, outcome.report.preemptions);
  ASSERT_NE(notes.pool_, nullptr);
  EXPECT_EQ(&notes.pool_->publisher(), notes.publisher_);
  EXPECT_EQ(notes.pool_->manager().stats().free, 30);
}

/// Keeps an explanation of what holds the pool.
class Explainer final : public ReplayObserver {
 public:
  void on_pool(StepPublisher&) override {}
  void on_progress(const ReplayProgress&) override {}
  void on_end(std::unique_ptr<EnginePool>) noexcept override {}
  void after_append(EnginePool& pool) override { text = pool.explain(1000, Urgency::growth); }
  std::string text;
};

TEST(ReplayObserver, ExplanationsNameRequests) {
  Explainer explainer;
  static_cast<void>(
      test::replay_of({{0, 10, 1}, {0, 10, 1}, {5000, 10, 1}}, plain_options(), &explainer));
  EXPECT_HAS(explainer.text, "owner 2");
}

TEST(ReplayObserver, GetsThePoolOfARunWithRealBytes) {
  const auto device = test::make_device(DeviceKind::host);
  Notes notes;
  ReplayOptions options = plain_options();
  options.attention.device = device.get();
  options.attention.mode = AttentionMode::sample;
  const auto outcome = observe(test::mooncake_trace({{0, 40, 3}}), options, notes);
  ASSERT_EQ(outcome.end, ReplayEnd::completed) << outcome.why.found;
  ASSERT_NE(notes.pool_, nullptr);
  EXPECT_NE(notes.pool_->cache(), nullptr);
  EXPECT_EQ(&notes.pool_->publisher(), notes.publisher_);
}

TEST(ReplayObserver, IsToldNothingOfATraceThatIsNone) {
  Notes notes;
  EXPECT_EQ(observe("no trace\n", plain_options(), notes).end, ReplayEnd::bad_input);
  EXPECT_EQ(notes.publisher_, nullptr);
  EXPECT_EQ(notes.pool_, nullptr);
}

}  // namespace
}  // namespace kvarena::replay
