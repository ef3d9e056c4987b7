// How people see a pool with pages and groups in /stats.

#include "health/render/json.hpp"
#include "tools/monitor/stats_view.hpp"
#include "unit/health/sample_report.hpp"
#include "unit/tools/command_run.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>

namespace kvarena::tools {
namespace {

using Json = nlohmann::ordered_json;

Json grouped_stats() { return stats_json(test::report_with_groups(), test::sample_details()); }

MonitorFrame frame_of(const Json& stats) {
  return frame_of_stats("http://x", read_stats(stats), {});
}

std::string text_of(const MonitorFrame& frame) {
  std::string text;
  for (const std::string& line : frame.lines) text += line + "\n";
  return text;
}

TEST(StatsOfGroups, HaveARowForPagesAndOneForEachGroup) {
  const std::string text = text_of(frame_of(grouped_stats()));
  EXPECT_TRUE(
      contains(text,
               "  [###################+++++++++x...................]\n"
               "  40 pages of 6.00 KiB: 16 in use #, 7 evictable +, 1 offline x, 16 free .\n"
               "  group 0 (full): 11 pages, 33 blocks of 2.00 KiB: 12 referenced, 4 fenced, "
               "6 evictable, 2 offline, 9 free (8 stranded)\n"
               "  group 1 (window): 12 pages, 12 blocks of 5.00 KiB: 7 referenced, 3 "
               "fenced, 2 evictable, 0 offline, 0 free (0 stranded)\n"
               "  480 tokens"))
      << text;
  EXPECT_FALSE(contains(text, "100 blocks:")) << "blocks of several sizes are not added up";
  EXPECT_FALSE(contains(text, "add up"));
}

TEST(StatsOfGroups, ALineHasPagesInUse) {
  EXPECT_TRUE(contains(frame_of(grouped_stats()).line, " blocks=50/100 pages=24/40 tokens=480 "));
}

TEST(StatsOfGroups, DamagedAccountsAreShownAsTheyAre) {
  Json stats = grouped_stats();
  stats["pools"][0]["pages"]["free"] = 99;
  stats["pools"][0]["groups"][1]["referenced"] = -5;
  const std::string text = text_of(frame_of(stats));
  EXPECT_TRUE(contains(text, "  states add up to 123 of 40\n")) << text;
  EXPECT_TRUE(contains(text, "  states add up to 0 of 12\n")) << text;
  stats["pools"][0]["groups"][0]["pages"] = INT64_MAX;
  stats["pools"][0]["groups"][0]["blocks_per_page"] = INT64_MAX;
  EXPECT_EQ(read_stats(stats).pools[0].groups[0].blocks.total, std::int64_t{1} << 60) << "cut";
}

TEST(StatsOfGroups, ServersThatDoNotTellThemAreRead) {
  Json stats = grouped_stats();
  stats["pools"][0].erase("pages");
  stats["pools"][0].erase("groups");
  EXPECT_FALSE(read_stats(stats).pools[0].pages.has_value());
  EXPECT_TRUE(contains(text_of(frame_of(stats)), "100 blocks:"));
}

TEST(StatsOfGroups, AreAtMostAsManyAsAPoolHas) {
  Json stats = grouped_stats();
  for (int i = 0; i < 100; ++i) {
    stats["pools"][0]["groups"].push_back(stats["pools"][0]["groups"][0]);
  }
  EXPECT_EQ(read_stats(stats).pools[0].groups.size(), 32U);
  stats["pools"][0]["groups"][0]["kind"] = 7;
  EXPECT_THROW(static_cast<void>(read_stats(stats)), NotStats);
  stats["pools"][0]["groups"] = nullptr;
  EXPECT_THROW(static_cast<void>(read_stats(stats)), NotStats);
}

}  // namespace
}  // namespace kvarena::tools
