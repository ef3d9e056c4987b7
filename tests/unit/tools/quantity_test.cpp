// Numbers of the command line: strict about what they accept.

#include "tools/quantity.hpp"
#include "tools/progress_bar.hpp"

#include <gtest/gtest.h>

namespace kvarena::tools {
namespace {

TEST(ParseBytes, AcceptsNumbersWithSuffixes) {
  EXPECT_EQ(parse_bytes("4096"), 4096);
  EXPECT_EQ(parse_bytes("0"), 0);
  EXPECT_EQ(parse_bytes("1B"), 1);
  EXPECT_EQ(parse_bytes("512KiB"), 512 * 1024);
  EXPECT_EQ(parse_bytes("24GiB"), std::int64_t{24} << 30);
  EXPECT_EQ(parse_bytes("24 GiB"), std::int64_t{24} << 30);
  EXPECT_EQ(parse_bytes("1.5GiB"), std::int64_t{3} << 29);
  EXPECT_EQ(parse_bytes("80GB"), 80'000'000'000);
  EXPECT_EQ(parse_bytes("2kB"), 2000);
  EXPECT_EQ(parse_bytes("2KB"), 2000);
  EXPECT_EQ(parse_bytes("1TiB"), std::int64_t{1} << 40);
  EXPECT_EQ(parse_bytes("9223372036854775807"), INT64_MAX);
}

TEST(ParseBytes, UnitsInAnyCaseAndFractionsRoundedDown) {
  EXPECT_EQ(parse_bytes("24gib"), std::int64_t{24} << 30);
  EXPECT_EQ(parse_bytes("1Gib"), std::int64_t{1} << 30);
  EXPECT_EQ(parse_bytes("80gb"), 80'000'000'000);
  bool is_rounded = false;
  EXPECT_EQ(parse_bytes("79.18GiB", &is_rounded), 85'018'877'624);  // .32 B less
  EXPECT_TRUE(is_rounded);
  EXPECT_EQ(parse_bytes("1.5GiB", &is_rounded), std::int64_t{3} << 29);
  EXPECT_FALSE(is_rounded);
  EXPECT_EQ(parse_bytes("0.3KiB"), 307);
  EXPECT_EQ(parse_bytes("1.5B"), 1);
}

TEST(ParseBytes, RefusesEverythingElse) {
  for (const char* text : {"",
                           " ",
                           "GiB",
                           "-1",
                           "+1",
                           "1.",
                           ".5GiB",
                           "1..5GiB",
                           "1,5GiB",
                           "1e9",
                           "0x10",
                           "1G",
                           "1GiB ",
                           " 1GiB",
                           "1 GiB x",
                           "1  GiB",
                           "9223372036854775808",
                           "9999999999TiB",
                           "99999999999999999999999999",
                           "0.0000000001TB",
                           "1GiBGiB",
                           "nan",
                           "inf"}) {
    EXPECT_FALSE(parse_bytes(text).has_value()) << '"' << text << '"';
  }
}

TEST(ParseMicroseconds, ThreeDecimalsAtMost) {
  EXPECT_EQ(parse_microseconds("20000"), 20'000'000);
  EXPECT_EQ(parse_microseconds("0.5"), 500);
  EXPECT_EQ(parse_microseconds("0"), 0);
  EXPECT_EQ(parse_microseconds("1.234"), 1234);
  EXPECT_EQ(parse_microseconds("1000000000"), 1'000'000'000'000);
  for (const char* text :
       {"", "-1", "1.2345", "1000000001", "1us", "1 ", "1.", "99999999999999999999"}) {
    EXPECT_FALSE(parse_microseconds(text).has_value()) << text;
  }
}

TEST(HumanNumbers, Read) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1536), "1.50 KiB");
  EXPECT_EQ(human_bytes(std::int64_t{3} << 29), "1.50 GiB");
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1000), "1,000");
  EXPECT_EQ(grouped(-1234567), "-1,234,567");
  EXPECT_EQ(grouped(144793823), "144,793,823");
}

TEST(ProgressLine, HasShareRateAndTimeLeft) {
  replay::ReplayProgress progress;
  progress.requests_done = 1200;
  progress.requests_total = 4800;
  progress.tokens_done = 1'000'000;
  progress.tokens_total = 4'000'000;
  EXPECT_EQ(progress_line(progress, 2.0),
            "[######..................]  25.0 %  1,200/4,800 requests  500.0k tokens/s  6 s left");
  progress.tokens_done = 9'000'000;  // with recomputation
  EXPECT_NE(progress_line(progress, 2.0).find("100.0 %"), std::string::npos);
  progress.tokens_done = 0;
  EXPECT_NE(progress_line(progress, 0.0).find("0.0 %"), std::string::npos);
}

}  // namespace
}  // namespace kvarena::tools
