// Changes of pressure in the log: bursts are brief, and nothing harmless hides a shortage.

#include "health/pressure_log.hpp"

#include "support/log_capture.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>

namespace kvarena::test {
namespace {

using enum PressureLevel;

constexpr std::int64_t kSecond = 1'000'000'000;

/// A pool's level and its log.
struct Pool {
  void to(PressureLevel next, std::int64_t seconds = 0) {
    now_ns += seconds * kSecond;
    std::optional<PressureEvent> event;
    if (next != level) event = PressureEvent{.from = level, .to = next, .figures = {}};
    log.write(event, next, now_ns);
    level = next;
  }
  void tremble(PressureLevel there, int times) {
    const PressureLevel here = level;
    for (int i = 0; i < times; ++i) to(there), to(here);
  }

  PressureLog log{"main"};
  PressureLevel level = normal;
  std::int64_t now_ns = 1'000 * kSecond;
};

TEST(PressureLogTest, ALevelIsAsSevereAsTheWorseOfWhatItEntersAndLeaves) {
  const LogCapture log(LogLevel::info);
  Pool pool;
  for (const auto& [next, severity] : {std::pair{elevated, LogLevel::info},
                                       {critical, LogLevel::warning},
                                       {exhausted, LogLevel::warning},
                                       {elevated, LogLevel::warning},
                                       {normal, LogLevel::info}}) {
    pool.to(next, 100);
    const LogCapture::Line line = log.lines().back();
    EXPECT_EQ(line.level, severity) << line.text;
    EXPECT_TRUE(line.text.starts_with("pressure pool=\"main\" level=" + std::string(name_of(next))))
        << line.text;
  }
  EXPECT_EQ(log.lines().size(), 5U);
}

TEST(PressureLogTest, HarmlessChangesDoNotUseUpTheLinesOfAShortage) {
  const LogCapture log(LogLevel::warning);
  Pool pool;
  pool.tremble(elevated, 20);
  pool.to(critical);
  pool.to(normal);
  ASSERT_EQ(log.lines().size(), 2U) << "it came, and it went";
  EXPECT_TRUE(log.contains(LogLevel::warning, "level=critical previous=normal"));
  EXPECT_TRUE(log.contains(LogLevel::warning, "level=normal previous=critical"));
  pool.to(normal, 10);
  EXPECT_EQ(log.lines().size(), 2U) << "of what was left out nothing was severe";
}

TEST(PressureLogTest, ASummaryIsAsSevereAsWhatWasLeftOut) {
  const LogCapture log(LogLevel::info);
  Pool pool;
  pool.tremble(critical, 2);
  pool.to(exhausted);
  pool.to(normal);
  pool.tremble(elevated, 3);
  ASSERT_EQ(log.lines().size(), 6U);
  pool.to(normal, 9);
  ASSERT_EQ(log.lines().size(), 6U) << "the window is not over";
  pool.to(normal, 1);
  ASSERT_EQ(log.lines().size(), 8U);
  EXPECT_TRUE(log.contains(LogLevel::warning,
                           "pressure pool=\"main\" level=normal changes_not_logged=3 "
                           "worst=exhausted"));
  EXPECT_TRUE(log.contains(LogLevel::info,
                           "pressure pool=\"main\" level=normal changes_not_logged=3 "
                           "worst=elevated"));
  pool.to(normal, 100);
  EXPECT_EQ(log.lines().size(), 8U) << "once";
}

TEST(PressureLogTest, TheWorstOfOneWindowIsNotThatOfTheNext) {
  const LogCapture log(LogLevel::warning);
  Pool pool;
  pool.tremble(critical, 1);
  pool.tremble(exhausted, 2);
  pool.to(normal, 10);
  EXPECT_TRUE(log.contains(LogLevel::warning, "changes_not_logged=3 worst=exhausted"));
  pool.tremble(critical, 2);
  pool.to(normal, 10);
  EXPECT_TRUE(log.contains(LogLevel::warning, "changes_not_logged=1 worst=critical"));
}

TEST(PressureLogTest, WhatWasLeftOutIsSummedUpWhenNoLookFollows) {
  const LogCapture log(LogLevel::warning);
  Pool pool;
  pool.tremble(critical, 2);
  ASSERT_EQ(log.lines().size(), 3U);
  pool.log.close(pool.level);
  EXPECT_TRUE(log.contains(LogLevel::warning, "level=normal changes_not_logged=1 worst=critical"));
  pool.log.close(pool.level);
  EXPECT_EQ(log.lines().size(), 4U) << "once";
}

}  // namespace
}  // namespace kvarena::test
