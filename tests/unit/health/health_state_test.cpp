// The pure part: which reasons last, what only the time tells, and what is counted.

#include "health/health_state.hpp"
#include "health/pressure_log.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvarena {
namespace {

using enum HealthReasonCode;

constexpr std::int64_t kPeriod = 60;
constexpr std::int64_t kLimit = 30;

std::vector<HealthReasonCode> codes(const HealthState& state, std::int64_t now_ns) {
  std::vector<HealthReasonCode> all;
  for (const HealthReason& reason : state.reasons(now_ns)) all.push_back(reason.code);
  return all;
}
using Codes = std::vector<HealthReasonCode>;

/// A state that was checked from 1000 to 1001 and found well.
HealthState checked() {
  HealthState state(kPeriod, kLimit, 1000);
  state.begin_check(1000);
  state.complete_check(1001);
  return state;
}

TEST(HealthStateTest, IsNotHealthyBeforeTheFirstCheckIsComplete) {
  HealthState state(kPeriod, kLimit, 1000);
  EXPECT_EQ(codes(state, 1000), Codes{not_checked});
  state.begin_check(1000);
  EXPECT_EQ(codes(state, 1010), Codes{not_checked});
  state.complete_check(1010);
  EXPECT_EQ(codes(state, 1010), Codes{});
}

TEST(HealthStateTest, ChecksThatNeverComeAreAReason) {
  HealthState state(kPeriod, kLimit, 1000);
  EXPECT_EQ(codes(state, 1000 + kPeriod + kLimit), Codes{not_checked});
  EXPECT_EQ(codes(state, 1001 + kPeriod + kLimit), (Codes{not_checked, monitor_stopped}));
}

TEST(HealthStateTest, ChecksThatStopAreAReasonCountedFromTheLastBegin) {
  const HealthState state = checked();
  EXPECT_EQ(codes(state, 1000 + kPeriod + kLimit), Codes{});
  const auto reasons = state.reasons(1001 + kPeriod + kLimit);
  ASSERT_EQ(reasons.size(), 1U);
  EXPECT_EQ(reasons[0].code, monitor_stopped);
  EXPECT_EQ(reasons[0].since_ns, 1000 + kPeriod + kLimit);
}

TEST(HealthStateTest, ACheckThatRunsTooLongIsAReasonUntilItEnds) {
  HealthState state = checked();
  state.begin_check(1060);
  EXPECT_EQ(codes(state, 1060 + kLimit), Codes{});
  // The check before that began at 1000, so both say so by now.
  EXPECT_EQ(codes(state, 1061 + kLimit), (Codes{check_stuck, monitor_stopped}));
  state.complete_check(1100);
  EXPECT_EQ(codes(state, 1100), Codes{});
  EXPECT_EQ(state.checks().last_duration_ns, 40);
}

TEST(HealthStateTest, ALookThatHangsIsStuckAsACheckIs) {
  HealthState state = checked();
  state.begin_look(1010);
  EXPECT_EQ(codes(state, 1010 + kLimit), Codes{});
  EXPECT_EQ(codes(state, 1011 + kLimit), Codes{check_stuck});
  state.end_look();
  EXPECT_EQ(codes(state, 1011 + kLimit), Codes{});
}

TEST(HealthStateTest, AnAbandonedCheckHasNotLooked) {
  HealthState state = checked();
  state.begin_check(1060);
  state.abandon_check();
  EXPECT_EQ(state.checks().completed, 1U);
  EXPECT_EQ(state.next_check_ns(), 1060 + kPeriod) << "the next try comes with the next period";
  EXPECT_EQ(codes(state, 1091), Codes{monitor_stopped});
}

TEST(HealthStateTest, ViolationsLastUntilTheyAreAcknowledged) {
  HealthState state = checked();
  const std::vector<HealthFinding> bad = {{{residency_violated, 7, 1}, "one"},
                                          {{accounts_violated, 7, 1}, "two"},
                                          {{device_unreachable, 7}, "three"}};
  EXPECT_EQ(state.found(7, bad, 1010).size(), 3U);
  EXPECT_EQ(codes(state, 1010), (Codes{residency_violated, accounts_violated, device_unreachable}));
  EXPECT_TRUE(state.found(7, {}, 1020).empty());
  EXPECT_EQ(codes(state, 1020), (Codes{residency_violated, accounts_violated}));
  state.forget(7);
  EXPECT_EQ(codes(state, 1030), (Codes{residency_violated, accounts_violated}));
  state.acknowledge();
  EXPECT_EQ(codes(state, 1030), Codes{});
}

TEST(HealthStateTest, AReasonAppearsOnceAndKeepsItsTime) {
  HealthState state = checked();
  const auto late = [](std::string text) {
    return std::vector<HealthFinding>{{{ticket_late, 7, 42}, std::move(text)}};
  };
  ASSERT_EQ(state.found(7, late("for 3 s"), 1010).size(), 1U);
  EXPECT_TRUE(state.found(7, late("for 4 s"), 1011).empty());
  const auto reasons = state.reasons(1012);
  ASSERT_EQ(reasons.size(), 1U);
  EXPECT_EQ(reasons[0].text, "for 4 s");
  EXPECT_EQ(reasons[0].since_ns, 1010);
  EXPECT_TRUE(state.found(7, {}, 1013).empty());
  EXPECT_EQ(state.found(7, late("again"), 1014).size(), 1U);
}

TEST(HealthStateTest, TheSameViolationComesBackAfterAcknowledge) {
  HealthState state = checked();
  const std::vector<HealthFinding> bad = {{{residency_violated, 7, 1, 3}, "managed"}};
  const std::vector<HealthFinding> worse = {{{residency_violated, 7, 1, 4}, "pinned"}};
  EXPECT_EQ(state.found(7, bad, 1010).size(), 1U);
  EXPECT_EQ(state.found(7, worse, 1020).size(), 1U) << "another place is another violation";
  state.acknowledge();
  EXPECT_EQ(state.found(7, worse, 1030).size(), 1U);
  EXPECT_EQ(codes(state, 1030), Codes{residency_violated});
}

TEST(HealthStateTest, FindingsOfOneWatchLeaveTheOthersAlone) {
  HealthState state = checked();
  const std::vector<HealthFinding> lost = {{{device_lost, 1}, "one"}};
  const std::vector<HealthFinding> stuck = {{{engine_stuck, 2}, "two"}};
  static_cast<void>(state.found(1, lost, 1010));
  static_cast<void>(state.found(2, stuck, 1010));
  static_cast<void>(state.found(1, {}, 1011));
  EXPECT_EQ(codes(state, 1011), Codes{engine_stuck});
  state.forget(2);
  EXPECT_EQ(codes(state, 1011), Codes{});
}

TEST(HealthStateTest, WhatIsExpectedCountsAsNotCheckedUntilItIsFoundWell) {
  HealthState state = checked();
  state.expect(3, "no check has seen device x yet", 1010);
  EXPECT_EQ(codes(state, 1010), Codes{not_checked});
  static_cast<void>(state.found(3, {}, 1020));
  EXPECT_EQ(codes(state, 1020), Codes{});
}

TEST(HealthStateTest, CountsChecks) {
  HealthState state = checked();
  const std::vector<HealthFinding> lost = {{{device_lost, 1}, "one"}};
  state.begin_check(1060);
  static_cast<void>(state.found(1, lost, 1062));
  state.complete_check(1065);
  EXPECT_EQ(state.checks().completed, 2U);
  EXPECT_EQ(state.checks().failed, 1U);
  EXPECT_EQ(state.checks().last_ended_ns, 1065);
  EXPECT_EQ(state.checks().last_duration_ns, 5);
  EXPECT_EQ(state.checks().total_duration_ns, 6);
}

TEST(HealthStateTest, ACheckFailsByWhatItFindsItself) {
  HealthState state = checked();
  const std::vector<HealthFinding> violation = {{{residency_violated, 1}, "one"}};
  const auto check = [&](const std::vector<HealthFinding>& findings) {
    state.begin_check(1060);
    static_cast<void>(state.found(1, findings, 1061));
    static_cast<void>(state.found(2, {}, 1061));
    state.complete_check(1062);
  };
  check(violation);
  EXPECT_EQ(state.checks().failed, 1U);
  check({});
  EXPECT_EQ(codes(state, 1062), Codes{residency_violated}) << "it awaits acknowledge";
  EXPECT_EQ(state.checks().failed, 1U);
  static_cast<void>(state.found(1, violation, 1070));  // by a look between checks
  check({});
  EXPECT_EQ(state.checks().failed, 1U);
}

TEST(LineBudgetTest, WritesAFewLinesOfABurstAndCountsTheRest) {
  LineBudget budget;
  std::int64_t written = 0;
  for (int i = 0; i < 100; ++i) written += budget.admit(1000 + i) ? 1 : 0;
  EXPECT_EQ(written, LineBudget::kLines);
  EXPECT_EQ(budget.take_left_out(1100), 0) << "the burst may go on";
  const std::int64_t after = 1000 + LineBudget::kWindowNs;
  EXPECT_EQ(budget.take_left_out(after), 100 - LineBudget::kLines);
  EXPECT_EQ(budget.take_left_out(after), 0);
  EXPECT_TRUE(budget.admit(after));
}

TEST(LineBudgetTest, RareEventsAreAllWritten) {
  LineBudget budget;
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(budget.admit(i * LineBudget::kWindowNs));
  EXPECT_EQ(budget.take_left_out(1000 * LineBudget::kWindowNs), 0);
}

}  // namespace
}  // namespace kvarena
