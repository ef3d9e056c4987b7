// The answer of /stats for people.

#include "tools/stats_view.hpp"

#include "unit/health/sample_report.hpp"
#include "unit/tools/command_run.hpp"

#include "health/render/stats_json.hpp"

#include <gtest/gtest.h>

#include <string>

namespace kvarena::tools {
namespace {

using Json = nlohmann::ordered_json;

Json sample_stats() { return stats_json(test::sample_report(), test::sample_details()); }

bool has_line(const MonitorFrame& frame, const std::string& part) {
  for (const std::string& line : frame.lines) {
    if (contains(line, part)) return true;
  }
  return false;
}

std::string text_of(const MonitorFrame& frame) {
  std::string text;
  for (const std::string& line : frame.lines) text += line + "\n";
  return text;
}

TEST(StatsView, ShowsHealthUsageBlocksAndPressure) {
  const MonitorFrame frame = frame_of_stats("http://x", sample_stats(), nullptr, 0.0);
  EXPECT_TRUE(frame.healthy);
  EXPECT_EQ(frame.lines.front(), "http://x  healthy  resident yes (vram_only)  checked 5.0 s ago");
  EXPECT_TRUE(has_line(frame, "pool default  step 41  pressure elevated")) << text_of(frame);
  EXPECT_TRUE(has_line(frame,
                       "100 blocks: 30 referenced #, 10 fenced ~, 8 evictable +, "
                       "2 offline x, 50 free ."));
  EXPECT_TRUE(has_line(frame,
                       "480 tokens in 9 sequences, 12 requests wait; 6 open tickets, "
                       "the oldest 10.0 s"));
  EXPECT_TRUE(has_line(frame, "KVCache")) << text_of(frame);
  EXPECT_FALSE(has_line(frame, "a second:")) << "no rate without an earlier look";
  EXPECT_EQ(frame.line,
            "healthy  default: step 41 pressure elevated blocks 50/100 tokens 480 "
            "sequences 9 waiting 12");
}

TEST(StatsView, RatesAreDifferencesOfCounters) {
  const Json before = sample_stats();
  Json now = before;
  now["pools"][0]["step"] = 141;
  now["pools"][0]["preemptions"] = 56;
  now["pools"][0]["blocks"]["allocations"] = 1501;
  EXPECT_TRUE(has_line(frame_of_stats("x", now, before, 4.0),
                       "a second: 25.0 steps, 125.0 blocks handed out, 0.0 evictions, "
                       "0.0 exhaustions, 0.2 preemptions"))
      << text_of(frame_of_stats("x", now, before, 4.0));
  EXPECT_TRUE(has_line(frame_of_stats("x", before, now, 4.0), "a second: - steps"))
      << "a server that started anew";
}

TEST(StatsView, ReasonsAreNamed) {
  HealthReport report = test::sample_report();
  report.healthy = false;
  report.reasons = {{HealthReasonCode::ticket_late, "ticket 77 of default", 90 * test::kSecond}};
  const MonitorFrame frame =
      frame_of_stats("x", stats_json(report, test::sample_details()), nullptr, 0.0);
  EXPECT_FALSE(frame.healthy);
  EXPECT_TRUE(has_line(frame, "ticket_late for 10.0 s: ticket 77 of default")) << text_of(frame);
  EXPECT_TRUE(frame.line.starts_with("unhealthy ticket_late  default: step 41")) << frame.line;
}

TEST(StatsView, NotCheckedYet) {
  Json stats = sample_stats();
  stats["health"]["last_check_secs"] = nullptr;
  EXPECT_TRUE(frame_of_stats("x", stats, nullptr, 0.0).lines.front().ends_with("not checked yet"));
}

TEST(StatsView, BarHasOneCharacterForEachShare) {
  const Json blocks = sample_stats()["pools"][0]["blocks"];
  EXPECT_EQ(block_bar(blocks, 10), "###~+.....");
  EXPECT_EQ(block_bar(blocks, 100), std::string(30, '#') + std::string(10, '~') +
                                        std::string(8, '+') + "xx" + std::string(50, '.'));
}

}  // namespace
}  // namespace kvarena::tools
