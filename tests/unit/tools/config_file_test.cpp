// kvarena.toml as bytes: what is in it, and every way in which it can be no settings.

#include "tools/configuration/configuration.hpp"
#include "unit/tools/command_run.hpp"

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace kvarena::tools {
namespace {

using Values = std::vector<std::string>;

std::vector<ConfigEntry> parse(std::string_view text) {
  std::istringstream in{std::string(text)};
  return parse_config(in, "f");
}

std::string error_of(std::string_view text) {
  try {
    parse(text);
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.code, ExitCode::bad_input);
    EXPECT_NE(error.finding.expected, "");
    EXPECT_NE(error.finding.advice, "");
    return headline(error.finding);
  }
  return "none";
}

TEST(ConfigFile, EntriesStandInTheirOrderWithTheirLines) {
  const auto entries = parse(
      "quiet = true # said twice # so\n"
      "\n"
      "[replay]\n"
      "  block-size = 32\n"
      "prefill-us=0.5\n"
      "model = \"a#b\\n\\\"c\\\"\"\n"
      "timeline = 'a\\b\"'\n"
      "[ bench.attention ]\n"
      "batch = [8, '4k', # of them\n"
      "  \"64\",\n"
      "]\n");
  struct Expected {
    const char* table;
    const char* key;
    Values values;
    std::uint32_t line;
  };
  const std::vector<Expected> expected = {
      {"", "quiet", {"true"}, 1},
      {"replay", "", {}, 3},
      {"replay", "block-size", {"32"}, 4},
      {"replay", "prefill-us", {"0.5"}, 5},
      {"replay", "model", {"a#b\n\"c\""}, 6},
      {"replay", "timeline", {"a\\b\""}, 7},
      {"bench.attention", "", {}, 8},
      {"bench.attention", "batch", {"8", "4k", "64"}, 9},
  };
  ASSERT_EQ(entries.size(), expected.size());
  for (std::size_t n = 0; n < entries.size(); ++n) {
    EXPECT_EQ(entries[n].table, expected[n].table);
    EXPECT_EQ(entries[n].key, expected[n].key);
    EXPECT_EQ(entries[n].values, expected[n].values) << expected[n].key;
    EXPECT_EQ(entries[n].line, expected[n].line) << expected[n].key;
  }
}

TEST(ConfigFile, ByteOrderMarkLineEndsAndNothingAtAll) {
  EXPECT_TRUE(parse("").empty());
  EXPECT_TRUE(parse("# only a comment").empty());
  EXPECT_TRUE(parse("\xef\xbb\xbf").empty());
  const auto entries = parse("\xef\xbb\xbfquiet = true\r\n[shapes]\r\nlayers = 3\r\n");
  ASSERT_EQ(entries.size(), 3u);
  EXPECT_EQ(entries[0].key, "quiet");
  EXPECT_EQ(entries[2].values, Values{"3"});
}

TEST(ConfigFile, WhatIsNoSettingNamesTheLine) {
  for (const std::string& text :
       texts("ok = 1\na = ", "\na = 10GiB", "\na = \"x", "\na = 'x", "\na = \"x\" y", "\na = [1",
             "\na = [1, [2]]", "\na = []", "\na = [1] ]", "\na = [1\n2]", "\na = {b = 1}",
             "\na = 2024-01-01", "\na = 0x20", "\na = null", "\na = \"\\q\"", "\na = \"\xff\"",
             "\nkey", "\n= 3", "\n\"a b\" = 3", "\na b = 3", "\n[a", "\n[]", "\n[[a]]", "\n[[[",
             "\n[a b]", "\n[a]]", "\n.a = 3", "\na.b = 3",
             "\n\xff\xfe"
             "a",
             "a = 1\na = 2\n", "[a]\n[a]\n")) {
    EXPECT_TRUE(error_of(text).starts_with("f:2: found ")) << text << ": " << error_of(text);
  }
  EXPECT_TRUE(error_of(std::string_view("a = \"\0\"", 7)).starts_with("f:1: "));
  for (const std::string_view nul : {std::string_view("a = 3\0", 6), std::string_view("#\0", 2)}) {
    EXPECT_EQ(error_of(nul), "f:1: found a NUL byte");
  }
  EXPECT_EQ(error_of("a = 1\na = 2\n"), "f:2: found a a second time");
  EXPECT_EQ(error_of("\na = [1,\n2\n"), "f:2: found an array without its end");
  EXPECT_TRUE(error_of("a = " + std::string(200'000, '[') + "\n").starts_with("f:1: "));
}

TEST(ConfigFile, LimitOnItsSize) {
  EXPECT_EQ(error_of(std::string(kMaxConfigBytes, '\n')), "none");
  EXPECT_TRUE(
      error_of(std::string(kMaxConfigBytes + 8, '\n')).ends_with("found more than 262144 bytes"));
}

TEST(ConfigFile, NoControlCharacterOfItComesThroughAnError) {
  for (const char* control : {"\x1b", "\x7f", "\xc2\x9b"}) {  // U+009B begins sequences as ESC [
    const std::string why = error_of(std::string("a") + control + " = 1\n");
    EXPECT_TRUE(why.starts_with("f:1: ")) << why;
    EXPECT_EQ(why.find(control), std::string::npos) << why;
  }
}

TEST(ConfigFile, QuotedStringsAreReadAsTheyWere) {
  for (const std::string& text :
       {std::string(""), std::string("plain"), std::string("q\"uo\\te\n\r\t\b\f\x1b\x7f/#'"),
        std::string("\0middle", 7), std::string("\xc3\xa9\xf0\x9f\x99\x82")}) {
    const std::string quoted = toml_quoted(text);
    EXPECT_EQ(quoted.find('\n'), std::string::npos);
    EXPECT_EQ(parse("a = " + quoted).at(0).values, Values{text});
  }
  EXPECT_EQ(toml_quoted("a\xff"), "\"a\xef\xbf\xbd\"");
  const std::string c1 = "\xc2\x80\xc2\x9f\xc2\xa0";
  EXPECT_EQ(toml_quoted(c1), "\"\\u0080\\u009f\xc2\xa0\"");
}

}  // namespace
}  // namespace kvarena::tools
