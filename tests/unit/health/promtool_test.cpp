// What the pages tell Prometheus, and what it scrapes, as its own checker sees them.
// KVARENA_PROMTOOL names the program.

#include "health/render/metrics.hpp"
#include "support/test_files.hpp"
#include "unit/health/sample_report.hpp"

#include "kvarena/health/health_monitor.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace kvarena {
namespace {

class Promtool : public testing::Test {
 protected:
  void SetUp() override {
    const char* named = std::getenv("KVARENA_PROMTOOL");
    promtool_ = named == nullptr || *named == '\0' ? "promtool" : named;
    if (std::system(("command -v '" + promtool_ + "' > /dev/null 2>&1").c_str()) != 0) {
      GTEST_SKIP() << "no promtool: set KVARENA_PROMTOOL, or let ./check fetch it";
    }
  }
  /// What it says of `text`; "" when it accepts it.
  std::string objections(const std::string& check, const std::string& text) const {
    const test::TempFile file(text, ".yml");
    const std::string from = check == "metrics" ? " < '" : " '";
    const std::string command =
        "'" + promtool_ + "' check " + check + from + file.path() + "' 2>&1";
    FILE* pipe = ::popen(command.c_str(), "r");
    if (pipe == nullptr) return "cannot be started";
    std::string said;
    for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) said += static_cast<char>(c);
    const bool accepted = ::pclose(pipe) == 0;
    return accepted && (check != "metrics" || said.empty()) ? "" : said + "refused";
  }

 private:
  std::string promtool_;
};

constexpr const char* kMetrics = "/reference/metrics.md";

std::string page(const std::string& name) {
  std::ifstream in(KVARENA_PAGES + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// A page's blocks of YAML that begin with `word`.
std::vector<std::string> blocks_of(const std::string& name, const std::string& word) {
  std::vector<std::string> blocks;
  const std::string text = page(name);
  const std::string begin = "\n```yaml\n";
  for (auto at = text.find(begin); at != text.npos; at = text.find(begin, at + 1)) {
    const auto from = at + begin.size();
    const std::string block = text.substr(from, text.find("\n```", from) + 1 - from);
    if (block.starts_with(word)) blocks.push_back(block);
  }
  return blocks;
}

TEST_F(Promtool, AcceptsAScrape) {
  const auto monitor = HealthMonitor::create({.run_thread = false}).value();
  EXPECT_EQ(objections("metrics", metrics_text(monitor.report())), "");
  EXPECT_EQ(objections("metrics", metrics_text(test::sample_report())), "");
  EXPECT_EQ(objections("metrics", metrics_text(test::report_with_prefix())), "");
  EXPECT_EQ(objections("metrics", metrics_text(test::report_with_groups())), "");
}

TEST_F(Promtool, AcceptsEveryRuleOfThePages) {
  const auto rules = blocks_of(kMetrics, "groups:");
  ASSERT_FALSE(rules.empty());
  for (const std::string& text : rules) EXPECT_EQ(objections("rules", text), "") << text;
  EXPECT_NE(objections("rules", "groups: [{name: a, rules: [{alert: b, expr: 'c{'}]}]"), "");
  const auto scrapes = blocks_of("/howto/embed-health.md", "scrape_configs:");
  ASSERT_FALSE(scrapes.empty());
  for (const std::string& text : scrapes) EXPECT_EQ(objections("config", text), "") << text;
}

/// Without promtool too: a metric that the page names is one that there is.
TEST(OperationsPage, NamesMetricsThatExist) {
  std::set<std::string> known;
  for (const auto& report : {test::report_with_prefix(), test::report_with_groups()}) {
    for (const auto& family : metric_families(report)) known.insert(family.name);
  }
  const std::string text = page(kMetrics);
  const std::regex name("kvarena_[a-z_]+");
  int named = 0;
  for (std::sregex_iterator at(text.begin(), text.end(), name), end; at != end; ++at) {
    // "`kvarena_`" alone is their prefix.
    EXPECT_TRUE(known.contains(at->str())) << at->str();
    ++named;
  }
  EXPECT_GT(named, 10);
}

}  // namespace
}  // namespace kvarena
