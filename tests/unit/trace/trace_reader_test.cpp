// The reader against well-formed files of each format and against every way a line can be wrong.

#include "trace/trace_reader.hpp"
#include "support/test_files.hpp"
#include "support/text_matchers.hpp"
#include "unit/trace/trace_reading.hpp"

#include <gtest/gtest.h>

#include <sys/resource.h>

#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace kvarena::trace {
namespace {

using test::read_all;
using test::TempFile;

constexpr std::string_view kMooncakeLine =
    R"({"timestamp": 0, "input_length": 513, "output_length": 5, "hash_ids": [0, 1]})";
constexpr std::string_view kAgentLine =
    R"({"timestamp":1.5,"session":3,"turn":2,"input_length":33,"output_length":4,)"
    R"("hash_ids":[7,8]})";
constexpr std::string_view kVllmLine =
    R"({"id":0,"timestamp":0.0,"input_length":16,"output_length":1,"scheduled_ms":0.021,)"
    R"("hash_ids":[0]})";

TEST(TraceReader, DetectsMooncake) {
  const auto reading = read_all(std::string(kMooncakeLine) + "\n");
  ASSERT_TRUE(reading.status.is_ok()) << to_string(reading.failure);
  EXPECT_EQ(reading.format, TraceFormat::mooncake);
  ASSERT_EQ(reading.requests.size(), 1U);
  const auto& request = reading.requests[0];
  EXPECT_EQ(request.arrival_us, 0);
  EXPECT_EQ(request.input_tokens, 513);
  EXPECT_EQ(request.output_tokens, 5);
  EXPECT_EQ(request.prefix_block_tokens, 512);
  EXPECT_EQ(request.prefix_blocks, (std::vector<std::int64_t>{0, 1}));
  EXPECT_EQ(request.session, -1);
}

TEST(TraceReader, DetectsAgentAndKeepsSession) {
  const auto reading = read_all(kAgentLine);
  ASSERT_EQ(reading.requests.size(), 1U) << to_string(reading.failure);
  EXPECT_EQ(reading.format, TraceFormat::agent);
  EXPECT_EQ(reading.requests[0].session, 3);
  EXPECT_EQ(reading.requests[0].turn, 2);
  EXPECT_EQ(reading.requests[0].prefix_block_tokens, 16);
}

TEST(TraceReader, DetectsVllmRun) {
  const auto reading = read_all(kVllmLine);
  ASSERT_EQ(reading.requests.size(), 1U) << to_string(reading.failure);
  EXPECT_EQ(reading.format, TraceFormat::vllm);
}

TEST(TraceReader, ReadsAzureWithCrLfAndNoFinalNewline) {
  const auto reading = read_all(
      "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
      "2023-11-16 23:59:59.9999990,374,44\r\n"
      "2023-11-17 00:00:00.0000015,396,109\r\n"
      "2023-11-17 00:00:01,1,0");
  ASSERT_TRUE(reading.status.is_ok()) << to_string(reading.failure);
  EXPECT_EQ(reading.format, TraceFormat::azure);
  ASSERT_EQ(reading.requests.size(), 3U);
  EXPECT_EQ(reading.requests[0].arrival_us, 0);
  EXPECT_EQ(reading.requests[1].arrival_us, 2);
  EXPECT_EQ(reading.requests[2].arrival_us, 1'000'001);
  EXPECT_EQ(reading.requests[1].input_tokens, 396);
  EXPECT_EQ(reading.requests[1].output_tokens, 109);
  EXPECT_EQ(reading.requests[2].index, 2);
  EXPECT_TRUE(reading.requests[0].prefix_blocks.empty());
}

TEST(TraceReader, TimesAreExactAndSinceTheFirst) {
  const auto line = [](std::string_view stamp) {
    return R"({"timestamp": )" + std::string(stamp) +
           R"(, "input_length": 1, "output_length": 1, "hash_ids": [0]})" + "\n";
  };
  const auto reading = read_all(line("1000.1") + line("1000.1234") + line("1000.1235") +
                                line("2000") + line("99999999999.999"));
  ASSERT_EQ(reading.requests.size(), 5U) << to_string(reading.failure);
  EXPECT_EQ(reading.requests[0].arrival_us, 0);
  EXPECT_EQ(reading.requests[1].arrival_us, 23);
  EXPECT_EQ(reading.requests[2].arrival_us, 24);
  EXPECT_EQ(reading.requests[3].arrival_us, 999'900);
  EXPECT_EQ(reading.requests[4].arrival_us, 99'999'999'999'999 - 1'000'100);
}

TEST(TraceReader, BlankLinesByteOrderMarkAndUnknownFieldsAreFine) {
  const auto reading =
      read_all("\xef\xbb\xbf\n  \n" + std::string(kMooncakeLine) + "\r\n\n" +
               R"({"hash_ids": [5], "extra": {"a": [1, {"b": null}]}, "timestamp": 7, )"
               R"("note": "\u00e4 \"q\"", "output_length": 0, "input_length": 512})" +
               "\n\n");
  ASSERT_TRUE(reading.status.is_ok()) << to_string(reading.failure);
  EXPECT_EQ(reading.requests.size(), 2U);
}

TEST(TraceReader, FormatCanBeGiven) {
  EXPECT_EQ(read_all(kVllmLine, TraceFormat::vllm).requests.size(), 1U);
  const auto reading = read_all(kMooncakeLine, TraceFormat::azure);
  EXPECT_EQ(reading.status.code, StatusCode::parse_error);
  EXPECT_HAS(to_string(reading.failure), "header TIMESTAMP");
  EXPECT_EQ(trace_format_of("agent"), TraceFormat::agent);
  EXPECT_FALSE(trace_format_of("Agent").has_value());
}

// ---- malformed files: one clear error with its place -------------------------------------------

struct Malformed {
  const char* name;
  std::string content;
  std::int64_t line;
  std::int64_t column;
  const char* found;
  const char* expected;
};

std::ostream& operator<<(std::ostream& out, const Malformed& c) { return out << c.name; }

class MalformedTrace : public testing::TestWithParam<Malformed> {};

TEST_P(MalformedTrace, NamesPlaceFoundAndExpected) {
  const auto& c = GetParam();
  const auto reading = read_all(c.content);
  EXPECT_EQ(reading.status.code, StatusCode::parse_error);
  EXPECT_EQ(reading.status.subject, static_cast<std::uint64_t>(c.line));
  EXPECT_EQ(reading.status.required, static_cast<std::uint64_t>(c.column))
      << to_string(reading.failure);
  std::string place;
  if (c.line > 0) place += ":" + std::to_string(c.line);
  if (c.column > 0) place += ":" + std::to_string(c.column);
  EXPECT_TRUE(reading.failure.subject.ends_with(".txt" + place)) << to_string(reading.failure);
  EXPECT_HAS(reading.failure.found, c.found) << to_string(reading.failure);
  EXPECT_HAS(reading.failure.expected, c.expected) << to_string(reading.failure);
  EXPECT_EQ(to_string(reading.failure).find('\n'), std::string::npos);
}

std::string after_good(std::string_view bad) {
  return std::string(kMooncakeLine) + "\n" + std::string(bad) + "\n";
}
std::string csv(std::string_view row) {
  return "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n" +
         std::string(row);
}

const std::vector<Malformed> kMalformed = {
    {"empty_file", "", 0, 0, "no request", "at least one"},
    {"blank_file", "\n \n", 0, 0, "no request", "at least one"},
    {"header_only", "TIMESTAMP,ContextTokens,GeneratedTokens\r\n", 0, 0, "no request", "at least"},
    {"not_a_trace", "hello world\n", 1, 1, "hello", "JSON object"},
    {"compressed", std::string("\x1f\x8b\x08\x00", 4), 1, 0, "in its middle", "rest of the trace"},
    {"truncated", after_good(R"({"timestamp": 1, "input_length": 51)"), 2, 36, "end of the line",
     "complete JSON object"},
    {"truncated_string", after_good(R"({"timest)"), 2, 9, "end of the line", "complete"},
    {"two_objects", after_good(R"({"timestamp": 1} {})"), 2, 18, "{", "end of input"},
    {"array", after_good("[1, 2]"), 2, 1, "an array", "one JSON object"},
    {"number", after_good("17"), 2, 1, "17", "one JSON object"},
    {"wrong_type", after_good(R"({"timestamp": 1, "input_length": "many"})"), 2, 18,
     "a string in \"input_length\"", "tokens"},
    {"null_value", after_good(R"({"timestamp": null})"), 2, 2, "null in \"timestamp\"",
     "milliseconds"},
    {"fraction", after_good(R"({"timestamp": 1, "input_length": 1.5})"), 2, 18, "1.5", "whole"},
    {"negative", after_good(R"({"timestamp": 1, "input_length": -5})"), 2, 18, "-5", "1 .. "},
    {"negative_time", after_good(R"({"timestamp": -0.5})"), 2, 2, "-0.5 in \"timestamp\"",
     "milliseconds"},
    {"zero_input", after_good(R"({"input_length": 0})"), 2, 2, "0", "1 .. "},
    {"too_many_outputs", after_good(R"({"output_length": 1000000000})"), 2, 2, "1000000000",
     "0 .. 1048576"},
    {"too_many_inputs", after_good(R"({"input_length": 16777217})"), 2, 2, "16777217",
     "1 .. 16777216"},
    {"overflow_64", after_good(R"({"output_length": 18446744073709551616})"), 2, 2,
     "18446744073709551616 in \"output_length\"", "whole number"},
    {"huge_time", after_good(R"({"timestamp": 1e300})"), 2, 2, "1e300", "a number 0 .. "},
    {"huge_exponent", after_good(R"({"timestamp": 1e999})"), 2, 19, "1e999", "fits its field"},
    {"huge_id", after_good(R"({"hash_ids": [99999999999999999999999]})"), 2, 2, "9999", "ids"},
    {"negative_id", after_good(R"({"hash_ids": [3, -1]})"), 2, 2, "-1", "ids"},
    {"id_not_number", after_good(R"({"hash_ids": ["x"]})"), 2, 2, "a string", "ids"},
    {"nested_ids", after_good(R"({"hash_ids": [[1]]})"), 2, 2, "an array", "ids"},
    {"ids_object", after_good(R"({"hash_ids": {}})"), 2, 2, "an object", "ids"},
    {"duplicate", after_good(R"({"timestamp": 1, "timestamp": 2})"), 2, 18, "timestamp", "once"},
    {"missing", after_good(R"({"timestamp": 1, "input_length": 5, "hash_ids": [1]})"), 2, 52,
     "end of the object", "output_length"},
    {"missing_ids", after_good(R"({"timestamp": 1, "input_length": 5, "output_length": 1})"), 2, 55,
     "end of the object", "hash_ids"},
    {"wrong_count",
     after_good(R"({"timestamp": 1, "input_length": 5, "output_length": 1, )"
                R"("hash_ids": [1, 2]})"),
     2, 57, "2 ids", "1: one for each"},
    {"time_back",
     std::string(R"({"timestamp": 9, "input_length": 5, "output_length": 1, )"
                 R"("hash_ids": [1]})") +
         "\n" + std::string(kMooncakeLine),
     2, 1, "9000 us before", "order of arrival"},
    {"nul_byte", after_good(std::string_view("{\"timestamp\": 1\0}", 17)), 2, 16, "NUL", "text"},
    {"nul_lines", after_good(std::string_view("\0\0\0", 3)), 2, 1, "NUL", "text"},
    {"deep", after_good("{\"x\": " + std::string(100000, '[') + "}"), 2, 100007, "'}'", "literal"},
    {"bad_utf8", after_good("{\"\xff\xfe\": 1}"), 2, 3, "UTF-8", ""},
    {"agent_missing_turn",
     R"({"timestamp":0,"session":3,"input_length":3,"output_length":4,"hash_ids":[]})", 1, 76,
     "end of the object", "turn"},
    {"csv_truncated", csv("2023-11-16 18:1"), 3, 1, "2023-11-16 18:1", "time stamp"},
    {"csv_no_lengths", csv("2023-11-16 18:15:50.9951690"), 3, 28, "end of the line", "comma"},
    {"csv_short", csv("2023-11-16 18:15:50.9951690,396"), 3, 32, "end of the line", "comma"},
    {"csv_empty_cell", csv("2023-11-16 18:15:50.9951690,396,"), 3, 33, "end of the line",
     "GeneratedTokens"},
    {"csv_extra", csv("2023-11-16 18:15:50.9951690,396,109,1"), 3, 36, "", "3 columns"},
    {"csv_negative", csv("2023-11-16 18:15:50.9951690,-396,109"), 3, 29, "-396", "ContextTokens"},
    {"csv_huge", csv("2023-11-16 18:15:50.9951690,99999999999999999999999,109"), 3, 29, "9999",
     "ContextTokens"},
    {"csv_word", csv("2023-11-16 18:15:50.9951690,396,abc"), 3, 33, "abc", "GeneratedTokens"},
    {"csv_float", csv("2023-11-16 18:15:50.9951690,396,1.5"), 3, 33, "1.5", "GeneratedTokens"},
    {"csv_bad_day", csv("2023-02-29 18:15:50.9951690,396,1"), 3, 1, "2023-02-29", "time stamp"},
    {"csv_bad_hour", csv("2023-11-16 24:15:50.9951690,396,1"), 3, 1, "24:15", "time stamp"},
    {"csv_time_back", csv("2023-11-16 18:15:46.6805890,396,1"), 3, 1, "1 us before", "order"},
    {"csv_nul", csv(std::string_view("2023-11-16 18:15:50,3\0,1", 24)), 3, 22, "NUL", "text"},
    {"csv_far", csv("2093-11-16 18:15:46.6805890,396,1"), 3, 1, "after the first", "at most"},
    {"csv_header", "TIMESTAMP,Context\n", 1, 1, "TIMESTAMP,Context", "header"},
};

INSTANTIATE_TEST_SUITE_P(Lines, MalformedTrace, testing::ValuesIn(kMalformed),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST(TraceReader, MissingFileAndDirectory) {
  Finding failure;
  auto reader = TraceReader::open({"/nonexistent/trace.jsonl"}, &failure);
  ASSERT_FALSE(reader.is_ok());
  EXPECT_EQ(reader.status().code, StatusCode::io_error);
  EXPECT_EQ(reader.status().native, ENOENT);
  EXPECT_HAS(to_string(failure), "/nonexistent/trace.jsonl");
  EXPECT_EQ(TraceReader::open({"/tmp"}, &failure).status().native, EISDIR);
  EXPECT_EQ(TraceReader::open({"/tmp"}, nullptr).status().native, EISDIR);
}

TEST(TraceReader, LineLimitIsExact) {
  const std::string line(kMooncakeLine);
  for (const char* end : {"", "\n", "\r\n"}) {
    EXPECT_EQ(read_all(line + end, TraceFormat::detect, line.size()).requests.size(), 1U) << end;
    const auto reading = read_all(line + end, TraceFormat::detect, line.size() - 1);
    EXPECT_EQ(reading.status.subject, 1U);
    EXPECT_HAS(reading.failure.found, "longer than") << end;
  }
}

TEST(TraceReader, HundredMegabyteLineIsOneErrorInBoundedMemory) {
  const TempFile file(std::string(kMooncakeLine) + "\n");
  {
    std::ofstream out(file.path(), std::ios::app | std::ios::binary);
    const std::string part(std::size_t{1} << 20, 'x');
    for (int i = 0; i < 100; ++i) out << part;
  }
  rusage before{};
  getrusage(RUSAGE_SELF, &before);
  Finding failure;
  auto reader = TraceReader::open({file.path()}, &failure);
  ASSERT_TRUE(reader.is_ok());
  ASSERT_TRUE(reader->next().is_ok());
  const auto second = reader->next();
  EXPECT_EQ(second.status().code, StatusCode::parse_error);
  EXPECT_EQ(second.status().subject, 2U);
  EXPECT_HAS(to_string(reader->failure()), "longer than 8388608 bytes");
  rusage after{};
  getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 64 * 1024) << "KiB of resident memory";
}

TEST(TraceReader, RefillsAcrossBufferEdges) {
  // Lines of many lengths so that every position of a line end relative to the buffer occurs.
  std::string content;
  constexpr int kLines = 3000;
  for (int i = 0; i < kLines; ++i) {
    content += R"({"timestamp": )" + std::to_string(i) +
               R"(, "input_length": 7, "output_length": 3, "hash_ids": [1], "pad": ")" +
               std::string(static_cast<std::size_t>(i % 97), 'p') + "\"}\r\n";
  }
  const auto reading = read_all(content);
  ASSERT_EQ(reading.requests.size(), static_cast<std::size_t>(kLines));
  EXPECT_EQ(reading.requests.back().arrival_us, (kLines - 1) * 1000);
}

TEST(TraceReader, RealFilesHaveTheTotalsOfTheirReference) {
  KVARENA_REQUIRE_DATA();
  struct Total {
    const char* file;
    std::int64_t requests, input, output, span_us;
  };
  const Total totals[] = {
      {"mooncake_conversation.jsonl", 12031, 144793823, 4122048, 3536999000},
      {"azure_llm_2023_conv.csv", 19366, 22361870, 4088665, 3501721937},
      {"azure_llm_2023_code.csv", 8819, 18059974, 245896, 3435948056},
      {"agent_miniswe_blocks.jsonl", 402, 2418532, 45599, 552131510},
      {"vllm_rtx4090_llama31_8b_requests.jsonl", 300, 257239, 195753, 29100521}};
  for (const auto& total : totals) {
    auto reader = TraceReader::open({test::data_dir() + "/" + total.file}, nullptr);
    ASSERT_TRUE(reader.is_ok()) << total.file;
    std::int64_t requests = 0, input = 0, output = 0, span = 0;
    while (true) {
      auto request = reader->next();
      ASSERT_TRUE(request.is_ok()) << to_string(reader->failure());
      if (!request->has_value()) break;
      ++requests;
      input += (*request)->input_tokens;
      output += (*request)->output_tokens;
      span = (*request)->arrival_us;
    }
    EXPECT_EQ(requests, total.requests) << total.file;
    EXPECT_EQ(input, total.input) << total.file;
    EXPECT_EQ(output, total.output) << total.file;
    EXPECT_EQ(span, total.span_us) << total.file;
  }
}

// ---- the salt of each request -------------------------------------------------------------------

test::Reading read_salted(std::string_view content, std::string_view column) {
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
  const auto reading = read_salted(content, "tenant");
  ASSERT_TRUE(reading.status) << to_string(reading.failure);
  EXPECT_EQ(salts_of(reading), (std::vector<std::uint64_t>{1, 2, 3, 1, 3, 4}));
  EXPECT_EQ(salts_of(read_salted(content, {})), std::vector<std::uint64_t>(6, 0))
      << "not asked for";
}

TEST(TraceSalt, AFieldOfTheFormatCanBeTheSalt) {
  const auto reading = read_salted(agent_line(""), "session");
  ASSERT_EQ(reading.requests.size(), 1U) << to_string(reading.failure);
  EXPECT_EQ(reading.requests[0].salt, 1U);
  EXPECT_EQ(reading.requests[0].session, 3) << "and it is still what it was";
}

TEST(TraceSalt, NestedFieldsOfThatNameAreNotTheSalt) {
  const auto reading = read_salted(
      agent_line(R"(,"user":{"tenant":1},"list":[{"tenant":2}],"tenant":"a")"), "tenant");
  ASSERT_EQ(reading.requests.size(), 1U) << to_string(reading.failure);
  EXPECT_EQ(reading.requests[0].salt, 1U);
}

TEST(TraceSalt, ColumnsOfACsv) {
  const std::string content =
      "TIMESTAMP,ContextTokens,GeneratedTokens,region,tenant\n"
      "2023-11-16 00:00:00,3,4,eu,ann\n"
      "2023-11-16 00:00:01,3,4,,zoe\n"
      "2023-11-16 00:00:02,3,4,\"x\",ann\n";
  const auto reading = read_salted(content, "tenant");
  ASSERT_TRUE(reading.status) << to_string(reading.failure);
  EXPECT_EQ(salts_of(reading), (std::vector<std::uint64_t>{1, 2, 1}));
  EXPECT_FALSE(read_salted(content, {}).status) << "without salts the header has three columns";
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
    const auto reading = read_salted(one.content, "tenant");
    EXPECT_EQ(reading.status.code, StatusCode::parse_error) << one.content;
    const std::string text = to_string(reading.failure);
    EXPECT_HAS(text, one.place);
    EXPECT_HAS(reading.failure.found, one.found) << text;
    EXPECT_HAS(reading.failure.expected, one.expected) << text;
  }
}

}  // namespace
}  // namespace kvarena::trace
