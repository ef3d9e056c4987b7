// The salt of each request, from a field of the JSON or a column of the CSV.

#include "support/text_matchers.hpp"
#include "unit/trace/trace_reading.hpp"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace kvarena::trace {
namespace {

test::Reading read(std::string_view content, std::string_view column) {
  return test::read_all(content, TraceFormat::detect, 8 << 20, column);
}

std::string agent_line(std::string_view members) {
  return R"({"timestamp":0,"session":3,"turn":2,"input_length":3,"output_length":4,"hash_ids":[])" +
         std::string(members) + "}\n";
}

std::vector<std::uint64_t> salts_of(const test::Reading& reading) {
  std::vector<std::uint64_t> salts;
  for (const TraceRequest& request : reading.requests) salts.push_back(request.salt);
  return salts;
}

TEST(TraceSalt, NumbersFollowTheFirstOccurrence) {
  const std::string content = agent_line(R"(,"tenant":"zoe")") + agent_line(R"(,"tenant":"ann")") +
                              agent_line(R"(,"tenant":7)") + agent_line(R"(,"tenant":"zoe")") +
                              agent_line(R"(,"tenant":"7")") + agent_line(R"(,"tenant":-7)");
  const auto reading = read(content, "tenant");
  ASSERT_TRUE(reading.status) << to_string(reading.failure);
  EXPECT_EQ(salts_of(reading), (std::vector<std::uint64_t>{1, 2, 3, 1, 3, 4}));
  EXPECT_EQ(salts_of(read(content, {})), std::vector<std::uint64_t>(6, 0)) << "not asked for";
}

TEST(TraceSalt, AFieldOfTheFormatCanBeTheSalt) {
  const auto reading = read(agent_line(""), "session");
  ASSERT_EQ(reading.requests.size(), 1U) << to_string(reading.failure);
  EXPECT_EQ(reading.requests[0].salt, 1U);
  EXPECT_EQ(reading.requests[0].session, 3) << "and it is still what it was";
}

TEST(TraceSalt, NestedFieldsOfThatNameAreNotTheSalt) {
  const auto reading =
      read(agent_line(R"(,"user":{"tenant":1},"list":[{"tenant":2}],"tenant":"a")"), "tenant");
  ASSERT_EQ(reading.requests.size(), 1U) << to_string(reading.failure);
  EXPECT_EQ(reading.requests[0].salt, 1U);
}

TEST(TraceSalt, ColumnsOfACsv) {
  const std::string content =
      "TIMESTAMP,ContextTokens,GeneratedTokens,region,tenant\n"
      "2023-11-16 00:00:00,3,4,eu,ann\n"
      "2023-11-16 00:00:01,3,4,,zoe\n"
      "2023-11-16 00:00:02,3,4,\"x\",ann\n";
  const auto reading = read(content, "tenant");
  ASSERT_TRUE(reading.status) << to_string(reading.failure);
  EXPECT_EQ(salts_of(reading), (std::vector<std::uint64_t>{1, 2, 1}));
  EXPECT_FALSE(read(content, {}).status) << "without salts the header has three columns";
}

TEST(TraceSalt, WhatIsNoSaltIsRefusedWithItsPlace) {
  const std::string header = "TIMESTAMP,ContextTokens,GeneratedTokens";
  const std::string row = "\n2023-11-16 00:00:00,3,4";
  const std::string long_text(257, 'x');
  struct Case {
    std::string content;
    const char* place;
    const char* found;
    const char* expected;
  };
  const std::vector<Case> cases{
      {agent_line(""), ":1:", "the end of the object", "the field \"tenant\""},
      {agent_line(R"(,"tenant":null)"), ":1:86", "null in \"tenant\"",
       "a whole number or a string"},
      {agent_line(R"(,"tenant":1.5)"), ":1:86", "1.5 in", "a salt"},
      {agent_line(R"(,"tenant":true)"), ":1:86", "true in", "a salt"},
      {agent_line(R"(,"tenant":[1])"), ":1:86", "an array in", "a salt"},
      {agent_line(R"(,"tenant":{"a":1})"), ":1:86", "an object in", "a salt"},
      {agent_line(R"(,"tenant":"")"), ":1:86", "a text of 0 bytes", "1 .. 256 bytes"},
      {agent_line(",\"tenant\":\"" + long_text + "\""), ":1:86", "257 bytes", "1 .. 256 bytes"},
      {agent_line(R"(,"tenant":1,"tenant":1)"), ":1:97", "again", "it once"},
      {header + row, ":1:1", "TIMESTAMP", "the column \"tenant\""},
      {header + ",Tenant" + row + ",a", ":1:1", "TIMESTAMP", "the column \"tenant\""},
      {header + "tenant" + row + ",a", ":1:1", "TIMESTAMP", "the column \"tenant\""},
      {header + ",tenant" + row, ":2:24", "the end of the line", "a comma and 1 more columns"},
      {header + ",tenant" + row + ",", ":2:25", "the end of the line", "a salt"},
      {header + ",tenant" + row + ",\"a\"", ":2:25", "a", "without quotes"},
      {header + ",tenant" + row + ",a,b", ":2:26", ",b", "4 columns"},
  };
  for (const Case& one : cases) {
    const auto reading = read(one.content, "tenant");
    EXPECT_EQ(reading.status.code, StatusCode::parse_error) << one.content;
    const std::string text = to_string(reading.failure);
    EXPECT_HAS(text, one.place);
    EXPECT_HAS(reading.failure.found, one.found) << text;
    EXPECT_HAS(reading.failure.expected, one.expected) << text;
  }
}

}  // namespace
}  // namespace kvarena::trace
