#include "kvarena/base/log.hpp"

#include "base/log_internal.hpp"
#include "kvarena/allocator/block_manager.hpp"
#include "kvarena/base/clock.hpp"
#include "kvarena/base/violation.hpp"
#include "support/log_capture.hpp"
#include "support/violations.hpp"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace kvarena {
namespace {

TEST(Log, IsSilentByDefaultAndFormatsForTheInstalledSink) {
  EXPECT_FALSE(log_enabled(LogLevel::critical));
  {
    const test::LogCapture capture(LogLevel::warning);
    log_line(LogLevel::info, "not {}", "this");
    log_line(LogLevel::warning, "arena of {} bytes", 17);
    ASSERT_EQ(capture.lines().size(), 1U);
    EXPECT_EQ(capture.lines()[0].text, "arena of 17 bytes");
    EXPECT_EQ(capture.lines()[0].level, LogLevel::warning);
  }
  EXPECT_FALSE(log_enabled(LogLevel::critical));
}

TEST(Log, KeepsLevelsApart) {
  const test::LogCapture capture(LogLevel::debug);
  for (const LogLevel level :
       {LogLevel::debug, LogLevel::info, LogLevel::warning, LogLevel::error, LogLevel::critical}) {
    log_line(level, "x");
    EXPECT_EQ(capture.lines().back().level, level);
  }
}

TEST(Log, BracesInTheTextAreNotFormatsAgain) {
  const test::LogCapture capture(LogLevel::info);
  log_line(LogLevel::info, "{}", "{not} {a} {format}");
  EXPECT_TRUE(capture.contains(LogLevel::info, "{not} {a} {format}"));
}

TEST(Log, LinesOfManyThreadsStayWhole) {
  const test::LogCapture capture(LogLevel::info);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 200; ++i) log_line(LogLevel::info, "line {}", "abcdefgh");
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(capture.lines().size(), 800U);
  for (const test::LogCapture::Line& line : capture.lines()) EXPECT_EQ(line.text, "line abcdefgh");
}

TEST(Violation, TheHandlerIsToldAndTheStatusComesBack) {
  test::ViolationRecorder recorder;
  const Status given{StatusCode::double_release, Resource::block, Option::none, 0, 5, 0, 0};
  EXPECT_EQ(report_violation(given, "call"), given);
  ASSERT_EQ(recorder.entries().size(), 1U);
  EXPECT_EQ(recorder.entries()[0].status, given);
  EXPECT_EQ(recorder.entries()[0].call, "call");
}

TEST(Violation, TheDefaultHandlerLogsAtCritical) {
  const ViolationHandler former = set_violation_handler(nullptr);
  const test::LogCapture capture(LogLevel::critical);
  static_cast<void>(report_violation(
      {StatusCode::stale_handle, Resource::block, Option::none, 0, 77, 0, 0}, "Some::call"));
  EXPECT_TRUE(capture.contains(LogLevel::critical, "Some::call"));
  EXPECT_TRUE(capture.contains(LogLevel::critical, "77"));
  set_violation_handler(former);
}

TEST(Violation, TheObjectIsNamed) {
  {
    test::ViolationRecorder recorder;
    static_cast<void>(report_violation(not_found(Resource::block, 1), "call", "llama"));
    EXPECT_EQ(recorder.entries()[0].object, "llama");
  }
  const ViolationHandler former = set_violation_handler(nullptr);
  const test::LogCapture capture(LogLevel::critical);
  static_cast<void>(report_violation(not_found(Resource::block, 1), "Some::call", "lla\nma"));
  static_cast<void>(report_violation(not_found(Resource::block, 1), "Other::call"));
  EXPECT_TRUE(capture.contains(LogLevel::critical, "violation in Some::call of lla?ma: "));
  EXPECT_TRUE(capture.contains(LogLevel::critical, "violation in Other::call: "));
  set_violation_handler(former);
}

TEST(Violation, SettingReturnsTheFormerHandler) {
  const ViolationHandler mine = [](const Status&, const char*, const char*) {};
  const ViolationHandler former = set_violation_handler(mine);
  EXPECT_EQ(set_violation_handler(former), mine);
}

TEST(Clock, NeverGoesBack) {
  std::int64_t last = steady_clock().now_ns();
  for (int i = 0; i < 1000; ++i) {
    const std::int64_t now = steady_clock().now_ns();
    ASSERT_GE(now, last);
    last = now;
  }
}

}  // namespace
}  // namespace kvarena
