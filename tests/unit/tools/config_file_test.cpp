// kvarena.toml as bytes: what is in it, and every way in which it can be no TOML.

#include "tools/configuration/config_file.hpp"
#include "tools/configuration/config_error.hpp"
#include "tools/nearest_name.hpp"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace kvarena::tools {
namespace {

std::string error_of(std::string_view text) {
  try {
    parse_config(text, "f");
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_input);
    EXPECT_NE(error.expected(), "");
    EXPECT_NE(error.advice(), "");
    return error.what();
  }
  return "none";
}

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += "/" + part;
  return text;
}

TEST(ConfigFile, EntriesStandInTheirOrderWithTheirPlaces) {
  const auto entries = parse_config(
      "quiet = true\n"
      "[replay]\n"
      "  block-size = 0x20\n"
      "prefill-us = 0.5\n"
      "[bench.attention]\n"
      "batch = [8, \"4k\"]\n"
      "when = 2024-01-01\n",
      "f");
  struct Expected {
    const char* path;
    ConfigPlace key;
    ConfigKind kind;
    const char* text;
    ConfigPlace value;
  };
  const std::vector<Expected> expected = {
      {"/quiet", {1, 1}, ConfigKind::boolean, "true", {1, 9}},
      {"/replay", {2, 2}, ConfigKind::table, "", {2, 1}},
      {"/replay/block-size", {3, 3}, ConfigKind::integer, "32", {3, 16}},
      {"/replay/prefill-us", {4, 1}, ConfigKind::real, "0.5", {4, 14}},
      {"/bench", {5, 2}, ConfigKind::table, "", {5, 1}},
      {"/bench/attention", {5, 8}, ConfigKind::table, "", {5, 1}},
      {"/bench/attention/batch", {6, 1}, ConfigKind::list, "", {6, 9}},
      {"/bench/attention/when", {7, 1}, ConfigKind::time, "", {7, 8}},
  };
  ASSERT_EQ(entries.size(), expected.size());
  for (std::size_t n = 0; n < entries.size(); ++n) {
    EXPECT_EQ(joined(entries[n].path), expected[n].path);
    EXPECT_EQ(entries[n].place, expected[n].key) << expected[n].path;
    EXPECT_EQ(entries[n].value.kind, expected[n].kind) << expected[n].path;
    EXPECT_EQ(entries[n].value.text, expected[n].text) << expected[n].path;
    EXPECT_EQ(entries[n].value.place, expected[n].value) << expected[n].path;
  }
  ASSERT_EQ(entries[6].value.items.size(), 2u);
  EXPECT_EQ(entries[6].value.items[0].text, "8");
  EXPECT_EQ(entries[6].value.items[1].kind, ConfigKind::text);
}

TEST(ConfigFile, ByteOrderMarkLineEndsAndNothingAtAll) {
  EXPECT_TRUE(parse_config("", "f").empty());
  EXPECT_TRUE(parse_config("# only a comment", "f").empty());
  EXPECT_TRUE(parse_config("\xef\xbb\xbf", "f").empty());
  const auto entries = parse_config("\xef\xbb\xbfquiet = true\r\n[shapes]\r\nlayers = 3\r\n", "f");
  ASSERT_EQ(entries.size(), 3u);
  EXPECT_EQ(entries[0].path, std::vector<std::string>{"quiet"});
  EXPECT_EQ(entries[2].place.line, 3u);
  EXPECT_EQ(entries[2].value.text, "3");
}

TEST(ConfigFile, WhatIsNotTomlNamesLineAndColumn) {
  EXPECT_TRUE(error_of("a = ").starts_with("f:1:")) << error_of("a = ");
  EXPECT_TRUE(error_of("a = 1\na = 2\n").starts_with("f:2:"));
  EXPECT_TRUE(error_of("[a]\n[a]\n").starts_with("f:2:"));
  EXPECT_TRUE(error_of("a = 1\n[a]\n").starts_with("f:2:"));
  EXPECT_TRUE(error_of("ok = 1\nkey\n").starts_with("f:2:"));
  EXPECT_TRUE(error_of("a = 10GiB").starts_with("f:1:"));
  EXPECT_TRUE(error_of("a = 99999999999999999999").starts_with("f:1:"));
  EXPECT_TRUE(error_of("a = \"\xff\"").starts_with("f:1:"));
  EXPECT_TRUE(error_of(std::string_view("a = \"\0\"", 7)).starts_with("f:1:"));
  EXPECT_TRUE(error_of("\xff\xfe"
                       "a")
                  .starts_with("f:1:"));
  EXPECT_TRUE(error_of("[[[").starts_with("f: ")) << error_of("[[[");  // toml++ asserts
  EXPECT_EQ(error_of("a = \x1b[31m").find('\x1b'), std::string::npos);
}

TEST(ConfigFile, LimitsOnSizeDepthAndLength) {
  EXPECT_EQ(error_of(std::string(kMaxConfigBytes, '\n')), "none");
  EXPECT_EQ(error_of(std::string(kMaxConfigBytes + 1, '\n')), "f: more than 262144 bytes");
  EXPECT_EQ(error_of("a = " + std::string(kMaxConfigDepth - 1, '[') +
                     std::string(kMaxConfigDepth - 1, ']')),
            "none");
  EXPECT_TRUE(error_of("a = " + std::string(200'000, '[')).starts_with("f:1:"));
  const std::string dots(kMaxConfigDots, '.');
  EXPECT_EQ(error_of("a = '" + dots + "'\nb = '.'\n"), "none");
  EXPECT_EQ(error_of("\na = '" + dots + ".'\n"), "f:2: more than 64 dots in a line");
  std::string deep = "[";
  for (int n = 0; n < 100'000; ++n) deep += "a.";
  EXPECT_EQ(error_of(deep + "a]"), "f:1: more than 64 dots in a line");
  const std::string longest(kMaxConfigText, 'x');
  EXPECT_EQ(error_of("a = '" + longest + "'\n" + longest + " = 1\n"), "none");
  EXPECT_EQ(error_of("\na = '" + longest + "x'"), "f:2:5: more than 4096 bytes");
  EXPECT_EQ(error_of("a = [1,\n '" + longest + "x']"), "f:2:2: more than 4096 bytes");
  EXPECT_EQ(error_of(longest + "x = 1"), "f:1:1: more than 4096 bytes");
}

TEST(ConfigFile, LimitsOnPartsOfAKeyAndOnEntries) {
  EXPECT_EQ(error_of("[a.b.c.d]\ne.f.g.h = 1\n"), "none");
  EXPECT_EQ(error_of("[a.b.c.d]\ne.f.g.h.i = 1\n"), "f:2:9: a key of more than 8 parts");
  EXPECT_EQ(error_of("[a.b.c.d.e.f.g.h.i]"), "f:1:18: a key of more than 8 parts");
  EXPECT_EQ(error_of("a.b.c.d.e = {f.g.h = {i = 1}}"), "f:1:23: a key of more than 8 parts");
  std::string deep;
  while (deep.size() < kMaxConfigBytes - 200) {
    deep += "k" + std::to_string(deep.size());
    for (std::size_t n = 0; n < kMaxConfigDots; ++n) deep += ".a";
    deep += "=1\n";
  }
  EXPECT_TRUE(error_of(deep).ends_with(": a key of more than 8 parts")) << error_of(deep);
  std::string many;
  for (std::size_t n = 0; n < kMaxConfigEntries; ++n) many += "k" + std::to_string(n) + " = 1\n";
  EXPECT_EQ(parse_config(many, "f").size(), kMaxConfigEntries);
  EXPECT_EQ(error_of(many + "[x]\n"), "f: more than 4096 keys and tables");
}

TEST(ConfigFile, NoControlCharacterOfItComesThroughAnError) {
  for (const char* control : {"\x1b", "\x7f", "\xc2\x9b"}) {  // U+009B begins sequences as ESC [
    const std::string why = error_of(std::string("'a") + control + "' = 1\n'a" + control + "' = 2");
    EXPECT_TRUE(why.starts_with("f:")) << why;
    EXPECT_EQ(why.find(control), std::string::npos) << why;
  }
}

TEST(ConfigFile, QuotedStringsAreReadAsTheyWere) {
  for (const std::string& text :
       {std::string(""), std::string("plain"), std::string("q\"uo\\te\n\r\t\b\f\x1b\x7f/"),
        std::string("\0middle", 7), std::string("\xc3\xa9\xf0\x9f\x99\x82")}) {
    const std::string quoted = toml_quoted(text);
    EXPECT_EQ(quoted.find('\n'), std::string::npos);
    EXPECT_EQ(parse_config("a = " + quoted, "f").at(0).value.text, text);
  }
  EXPECT_EQ(toml_quoted("a\xff"), "\"a\xef\xbf\xbd\"");
  const std::string c1 = "\xc2\x80\xc2\x9f\xc2\xa0";
  EXPECT_EQ(toml_quoted(c1), "\"\\u0080\\u009f\xc2\xa0\"");
  EXPECT_EQ(parse_config("a = " + toml_quoted(c1), "f").at(0).value.text, c1);
}

TEST(NearestName, IsTheOneWithTheFewestChanges) {
  const std::vector<std::string> names = {"block-size", "blocks", "batch", "clock"};
  EXPECT_EQ(nearest_name("block_size", names), "block-size");
  EXPECT_EQ(nearest_name("bloks", names), "blocks");
  EXPECT_EQ(nearest_name("lock", names), "clock");
  EXPECT_EQ(nearest_name("temperature", names), "");
  EXPECT_EQ(nearest_name("", names), "");
  EXPECT_EQ(nearest_name(std::string(100'000, 'b'), names), "");
  EXPECT_EQ(nearest_name("x", {}), "");
}

TEST(SimilarNames, BeginAlikeOrAreNear) {
  const std::vector<std::string_view> names = {"Llama-2-7B", "Llama-3.1-8B", "Qwen3-8B"};
  EXPECT_EQ(similar_names("llama3", names), "did you mean Llama-3.1-8B, Llama-2-7B? ");
  EXPECT_EQ(similar_names("lama-3.1-8b", names), "did you mean Llama-3.1-8B? ");
  EXPECT_EQ(similar_names("gpt", names), "") << "too short for a typing error";
  EXPECT_EQ(similar_names("", names), "");
  EXPECT_TRUE(expected_gpus("rtx 4090").starts_with("did you mean RTX-4090? one of A10, L4, "));
  EXPECT_TRUE(expected_gpus("").starts_with("one of A10, "));
}

}  // namespace
}  // namespace kvarena::tools
