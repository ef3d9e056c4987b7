// Steps that are lost, withdrawn, launched twice or late: every launch that runs has the rows of
// the step that it was launched for, or none; the host can tell; and after a resync the next step
// is right. Judged by what the launches leave in the arrays, on a stream that runs late.

#include "support/status_matchers.hpp"
#include "unit/step/host_tables.hpp"
#include "unit/step/step_game.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

namespace kvarena {
namespace {

using test::ExpectedStep;
using test::HostTables;
using test::nothing;
using test::StepGame;

// ---- one fault at a time ------------------------------------------------------------------------

class LostSteps : public ::testing::Test {
 protected:
  ExpectedStep stage() {
    const AppendResult appended = game.next();
    EXPECT_OK(host.stage(game.tables(), appended));
    return game.expected();
  }
  void replay() {
    host.expect();
    host.replay();
  }
  void expect_left(const ExpectedStep& step, std::uint64_t misses) {
    EXPECT_EQ(host.difference(step), "");
    EXPECT_EQ(host.misses(), misses);
  }
  /// A step whose launch must take it.
  void expect_right_step() {
    const std::uint64_t misses = host.misses();
    const ExpectedStep step = stage();
    replay();
    host.advance();
    host.run();
    expect_left(step, misses);
    EXPECT_EQ(host.taken_serial(), host.staged_serial());
  }

  DeviceTablesOptions options = test::small_tables(4);
  StepGame game{{.seed = 7, .tables = options}};
  HostTables host{options};
};

TEST_F(LostSteps, AGraphThatWasNotLaunchedMakesEveryLaterOneAMissUntilTheResync) {
  expect_right_step();
  static_cast<void>(stage());
  host.expect();  // the launch of the graph fails
  host.advance();
  for (std::uint64_t misses = 1; misses < 6; ++misses) {
    static_cast<void>(stage());
    replay();
    host.advance();
    host.run();
    expect_left(nothing(), misses);
    EXPECT_LT(host.taken_serial(), host.staged_serial()) << "the host can tell";
  }
  host.resync(game.tables());
  EXPECT_EQ(host.taken_serial(), host.staged_serial());
  for (int i = 0; i < 5; ++i) expect_right_step();
}

TEST_F(LostSteps, AStepLaunchedTwiceIsTakenOnceAndTheNextIsFound) {
  for (std::uint64_t misses = 1; misses < 6; ++misses) {
    const ExpectedStep step = stage();
    replay();
    host.run();
    expect_left(step, misses - 1);
    host.replay();
    host.advance();
    host.run();
    expect_left(nothing(), misses);
  }
}

TEST_F(LostSteps, ALaunchOfAWithdrawnStepIsAMiss) {
  for (std::uint64_t misses = 1; misses < 6; ++misses) {
    static_cast<void>(stage());
    host.expect();
    host.withdraw(game.tables());
    host.replay();
    host.run();
    expect_left(nothing(), misses);
    expect_right_step();
  }
}

TEST_F(LostSteps, AWithdrawnStepLaunchedWhileTheNextIsStagedIsAMiss) {
  static_cast<void>(stage());
  host.expect();
  host.withdraw(game.tables());
  const ExpectedStep next = stage();  // in the same slot
  host.replay();
  host.run();
  expect_left(nothing(), 1);
  replay();
  host.run();
  expect_left(next, 1);
}

TEST_F(LostSteps, WhatAWithdrawnStepBroughtIsStagedAgainThoughTheNextAppendCameBefore) {
  expect_right_step();
  static_cast<void>(stage());
  const AppendResult appended = game.next();  // counts the withdrawn changes as mirrored
  host.withdraw(game.tables());
  ASSERT_OK(host.stage(game.tables(), appended));
  host.launch_and_run();
  host.advance();
  expect_left(game.expected(), 0);
  expect_right_step();
}

TEST_F(LostSteps, AfterAResyncTablesAreSentAnewThoughTheNextAppendCameBefore) {
  for (int i = 0; i < 5; ++i) expect_right_step();
  const AppendResult appended = game.next();  // most rows have no changes to report
  host.resync(game.tables());
  std::fill_n(host.params.block_tables, host.plan.shape.table_entries, kNoBlock);
  ASSERT_OK(host.stage(game.tables(), appended));
  host.launch_and_run();
  host.advance();
  expect_left(game.expected(), 0);
  expect_right_step();
}

TEST_F(LostSteps, AStepStagedAgainAfterItsLaunchMakesEveryLaterLaunchAMiss) {
  static_cast<void>(stage());
  host.launch_and_run();
  static_cast<void>(stage());  // the host believes that nothing was launched
  for (std::uint64_t misses = 1; misses < 6; ++misses) {
    host.launch_and_run();
    host.advance();
    expect_left(nothing(), misses);
    static_cast<void>(stage());
  }
  host.resync(game.tables());
  expect_right_step();
}

TEST_F(LostSteps, ALaunchThatRunsWhenItsSlotHoldsALaterStepIsAMiss) {
  for (int i = 0; i < 3; ++i) {  // one more than there are slots; nobody waits for them
    static_cast<void>(stage());
    host.launch();
    host.advance();
  }
  host.run();
  expect_left(nothing(), 3);
  host.resync(game.tables());
  expect_right_step();
}

TEST_F(LostSteps, WithdrawingAndResyncingWithoutAStepLoseNothing) {
  for (int i = 0; i < 4; ++i) {
    host.withdraw(game.tables());
    expect_right_step();
    if (i % 2 == 0) host.resync(game.tables());
  }
  EXPECT_EQ(host.misses(), 0U);
}

// ---- all of them, late --------------------------------------------------------------------------

/// Steps with random faults on a stream that runs as late as the ring allows.
class FaultyGame {
 public:
  FaultyGame(std::uint64_t seed, const DeviceTablesOptions& options)
      : steps_in_flight_(static_cast<std::size_t>(options.limits.steps_in_flight)),
        game_({.seed = seed, .tables = options}),
        host_(options) {}

  void play(int steps) {
    for (step_ = 0; step_ < steps; ++step_) {
      if (marks_.size() == steps_in_flight_) {
        ASSERT_NO_FATAL_FAILURE(run_past_oldest_mark());
      }
      ASSERT_NO_FATAL_FAILURE(play_step());
      while (!host_.is_idle() && game_.one_in(2)) ASSERT_NO_FATAL_FAILURE(run_one());
      if (game_.one_in(is_healthy_ ? 60 : 8)) {
        ASSERT_NO_FATAL_FAILURE(look());
      }
    }
  }
  std::uint64_t num_restarts() const { return host_.ring.regions().num_restarts(); }
  int num_taken() const { return num_taken_; }
  int num_missed() const { return num_missed_; }
  int num_resyncs() const { return num_resyncs_; }

 private:
  enum class Outcome : std::uint8_t { taken, missed, either };
  /// A launch on the stream, and the step that it is for.
  struct Launch {
    ExpectedStep step;
    Outcome outcome = Outcome::either;
  };

  void play_step() {
    const AppendResult appended = game_.next();
    ASSERT_OK(host_.stage(game_.tables(), appended));
    const ExpectedStep step = game_.expected();
    switch (game_.below(24)) {
      case 0:  // lost: named, never launched
        host_.expect();
        is_healthy_ = false;
        break;
      case 1:  // launched twice
        queue(step, usual());
        queue(step, Outcome::missed);
        break;
      case 2:  // staged, then another one in its place
        return;
      case 3: host_.withdraw(game_.tables()); return;
      case 4: {  // withdrawn, launched all the same
        host_.expect();
        host_.withdraw(game_.tables());
        launches_.push_back({step, Outcome::missed});
        host_.replay();
        return;
      }
      case 5:  // launched, and withdrawn before or after that ran
        queue(step, Outcome::either);
        is_healthy_ = false;
        if (game_.one_in(2)) {
          ASSERT_NO_FATAL_FAILURE(run_all());
        }
        host_.withdraw(game_.tables());
        return;
      default: queue(step, usual());
    }
    host_.advance();
    marks_.push_back(num_run_ + host_.num_queued());
  }
  Outcome usual() const { return is_healthy_ ? Outcome::taken : Outcome::either; }
  void queue(const ExpectedStep& step, Outcome outcome) {
    launches_.push_back({step, outcome});
    if (game_.one_in(3)) {
      host_.launch();
    } else {
      host_.expect();
      host_.replay();
    }
  }

  void run_one() {
    ++num_run_;
    const std::uint64_t misses = host_.misses();
    if (!host_.run_one()) return;
    const Launch launch = std::move(launches_.front());
    launches_.pop_front();
    const bool is_taken = host_.misses() == misses;
    const Outcome outcome = is_taken ? Outcome::taken : Outcome::missed;
    ASSERT_TRUE(launch.outcome == Outcome::either || launch.outcome == outcome)
        << (is_taken ? "taken" : "missed") << " at step " << step_;
    ASSERT_EQ(host_.difference(is_taken ? launch.step : nothing()), "") << "step " << step_;
    ++(is_taken ? num_taken_ : num_missed_);
  }
  void run_all() {
    while (!host_.is_idle()) ASSERT_NO_FATAL_FAILURE(run_one());
  }
  void run_past_oldest_mark() {
    while (num_run_ < marks_.front()) ASSERT_NO_FATAL_FAILURE(run_one());
    marks_.pop_front();
  }
  /// What an engine does now and then: waits, and goes on from where the device is.
  void look() {
    ASSERT_NO_FATAL_FAILURE(run_all());
    marks_.clear();
    host_.withdraw(game_.tables());  // what was staged last and not launched
    if (is_healthy_) {
      ASSERT_EQ(host_.taken_serial(), host_.staged_serial()) << "step " << step_;
    }
    if (is_healthy_ && !game_.one_in(4)) return;
    host_.resync(game_.tables());
    ASSERT_EQ(host_.taken_serial(), host_.staged_serial()) << "step " << step_;
    is_healthy_ = true;
    ++num_resyncs_;
  }

  std::size_t steps_in_flight_;
  StepGame game_;
  HostTables host_;
  std::deque<Launch> launches_;    // queued
  std::deque<std::size_t> marks_;  // operations that end a step in flight, counted from the first
  std::size_t num_run_ = 0;
  bool is_healthy_ = true;  // every step launched must be taken
  int step_ = 0;
  int num_taken_ = 0;
  int num_missed_ = 0;
  int num_resyncs_ = 0;
};

class LostStepsGame : public ::testing::TestWithParam<std::int32_t> {};

TEST_P(LostStepsGame, EveryLaunchHasItsOwnStepOrNone) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    FaultyGame game(seed, test::small_tables(seed % 2 == 0 ? 3 : 16, GetParam()));
    game.play(2000);
    if (HasFatalFailure()) return;
    EXPECT_GT(game.num_taken(), 500);
    EXPECT_GT(game.num_missed(), 50);
    EXPECT_GT(game.num_resyncs(), 20);
  }
}

TEST_P(LostStepsGame, AlsoWhereTablesShareASmallPool) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    FaultyGame game(seed, test::pooled_tables(1, GetParam()));
    game.play(2000);
    if (HasFatalFailure()) return;
    EXPECT_GT(game.num_restarts(), 10U);
  }
}

INSTANTIATE_TEST_SUITE_P(StepsInFlight, LostStepsGame, ::testing::Values(1, 2, 4),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace kvarena
