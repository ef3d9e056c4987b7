#include "capacity/files/bounded_json.hpp"

#include "support/test_files.hpp"
#include "support/text_matchers.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <sys/stat.h>

#include <filesystem>
#include <string>

namespace kvarena::capacity {
namespace {

using Json = nlohmann::json;

struct Outcome {
  Json value;
  std::string failure;  // "" when it was read
};

Outcome parse(std::string_view text, const JsonLimits& limits = {}, std::int64_t first_byte = -1) {
  Outcome outcome;
  ReadFailure failure;
  const Status status = parse_json({text, "x.json", first_byte}, limits, outcome.value, failure);
  if (!status) {
    outcome.failure = to_string(failure);
    EXPECT_EQ(status, status_of(failure));
    EXPECT_EQ(status.code, StatusCode::parse_error);
  }
  return outcome;
}

std::string failure_of(std::string_view text, const JsonLimits& limits = {}) {
  return parse(text, limits).failure;
}

TEST(BoundedJson, ReadsWhatNlohmannReads) {
  const std::string_view texts[] = {
      "{}",
      "[]",
      "null",
      "true",
      "-7",
      "18446744073709551615",
      "1e-7",
      "\"a\\u00e4\\n\"",
      R"( {"a": [1, -2, 3.5, [], {}, {"b": null, "c": [false, "x"]}], "d": {"e": {"f": 1}}} )",
      R"([[[[1], 2], 3], {"k": [{"l": 4}]}])"};
  for (const std::string_view text : texts) {
    const Outcome outcome = parse(text);
    EXPECT_EQ(outcome.failure, "") << text;
    EXPECT_EQ(outcome.value, Json::parse(text)) << text;
    EXPECT_EQ(outcome.value.dump(), Json::parse(text).dump()) << text;
  }
}

TEST(BoundedJson, SaysWhereAndWhat) {
  EXPECT_EQ(failure_of(""), "x.json: line 1, column 1: found nothing; expected JSON");
  EXPECT_EQ(failure_of("{\n \"a\": 1,\n \"a\": 2}"),
            "x.json: line 3, column 2, $.a: found the key \"a\" again; expected each key of an "
            "object once");
  EXPECT_EQ(failure_of("{\"a\": [1, 2 3]}"),
            "x.json: line 1, column 13, $.a[1]: found \"3]}\"; expected a value, ',' or ']'");
  EXPECT_EQ(
      failure_of("{\"a\": {\"b c\": [0, x]}}"),
      "x.json: line 1, column 19, $.a[\"b c\"][0]: found \"x]}}\"; expected a value, ',' or ']'");
}

TEST(BoundedJson, RefusesWhatIsNoJson) {
  EXPECT_HAS(failure_of("{\"a\": 1"), "the end of the text; expected the rest");
  EXPECT_HAS(failure_of(std::string_view("{}\0junk", 7)), "column 3: found a NUL byte");
  EXPECT_HAS(failure_of("{} {}"), "expected the end of the text");
  EXPECT_HAS(failure_of("{\"a\": \"\xff\"}"), "expected text in UTF-8");
  EXPECT_HAS(failure_of("[1e999]"), "expected what a double holds");
  EXPECT_EQ(failure_of("[-x]"),
            "x.json: line 1, column 3: found \"x]\"; expected a value, ',' or ']'");
  EXPECT_EQ(failure_of("[1 \xff\x01 - ; expected '"),
            "x.json: line 1, column 4, $[0]: found \"\\xff\\x01 - ; expec\"...; expected a value, "
            "',' or ']'");
  EXPECT_NE(failure_of("{\"a\": 1,}"), "");
  EXPECT_NE(failure_of("// no\n{}"), "");
  EXPECT_NE(failure_of("NaN"), "");
}

// Ordinary texts, and those that miss being JSON by one character.
TEST(BoundedJson, ReadsWhatTheLibraryReads) {
  const std::string_view texts[] = {
      R"({"a":1,"b":[0,23,456],"c":{"d":"x y~","":""},"e":[],"f":{}})",
      " [ 1 , \"a\" ,\t[ ] , { \"b\" :\r\n 2 } ] ",
      "[999999999999999999]",
      "[1000000000000000000]",
      "[-1]",
      "[1.5]",
      "[1e3]",
      "[0]",
      "[true]",
      "[null]",
      R"(["\n"])",
      "[\"\x7f\"]",
      "[\"\xc3\xa4\"]",
      "7",
      "\"x\""};
  for (const std::string_view text : texts) {
    const Outcome outcome = parse(text);
    EXPECT_EQ(outcome.failure, "") << text;
    EXPECT_EQ(outcome.value, Json::parse(text)) << text;
  }
  const std::string_view broken[] = {"[1,]",    "[,1]",     "[1 2]", "[01]",       "[1",
                                     "{\"a\"}", "{\"a\":}", "{1:2}", "{\"a\":1,}", "[1]]",
                                     "[\"a]",   "[\"\t\"]", "[1}",   "{\"a\":1]",  "[1] 2",
                                     "[1.]",    "[1e]",     "[+1]",  "1 1",        ""};
  for (const std::string_view text : broken) EXPECT_NE(failure_of(text), "") << text;
}

TEST(BoundedJson, EscapedKeysAreCompared) {
  EXPECT_HAS(failure_of(R"({"a": 1, "\u0061": 2})"), "the key \"a\" again");
  EXPECT_EQ(failure_of(R"({"a": {"a": {"a": 1}}, "b": [{"a": 1}, {"a": 2}]})"), "");
}

TEST(BoundedJson, KeepsItsLimits) {
  const JsonLimits limits{.max_bytes = 64, .max_depth = 3, .max_values = 6};
  EXPECT_EQ(failure_of("[[[]]]", limits), "");
  EXPECT_HAS(failure_of("[[{\"a\":[]}]]", limits), "at most 3 levels");
  EXPECT_EQ(failure_of("[1,2,3,4,5]", limits), "");
  EXPECT_HAS(failure_of("[1,2,3,4,5,6]", limits), "$[5]: found one value more; expected at most 6");
  EXPECT_EQ(failure_of(std::string(62, ' ') + "[]", limits), "");
  EXPECT_HAS(failure_of(std::string(63, ' ') + "[]", limits), "65 bytes of JSON");
}

TEST(BoundedJson, DeepNestingEndsAtOnce) {
  EXPECT_HAS(failure_of(std::string(std::size_t{1} << 20, '[')), "levels of nesting");
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  EXPECT_HAS(failure_of(objects), "levels of nesting");
}

TEST(BoundedJson, CountsBytesOfTheFileWhereTheTextIsAPart) {
  EXPECT_EQ(parse("{\"a\": 1, \"a\": 2}", {}, 8).failure,
            "x.json: byte 17, $.a: found the key \"a\" again; expected each key of an object once");
}

TEST(BoundedJson, EveryPrefixIsRefusedAndNamesAPlaceInside) {
  const std::string_view text = R"({"a": [1, {"b": "c"}], "d": {"e": null, "f": "\u00e4"}})";
  for (std::size_t size = 0; size < text.size(); ++size) {
    const std::string failure = failure_of(text.substr(0, size));
    EXPECT_NE(failure, "") << size;
    EXPECT_TRUE(failure.starts_with("x.json: line 1, column ")) << failure;
  }
}

TEST(BoundedJsonFile, ReadsARegularFileOnly) {
  const test::TempFile file("{\"a\": 1}", ".json");
  std::string text;
  ReadFailure failure;
  ASSERT_TRUE(read_json_text(file.path(), {}, text, failure)) << to_string(failure);
  EXPECT_EQ(text, "{\"a\": 1}");

  EXPECT_EQ(read_json_text("/nonexistent/x.json", {}, text, failure).code, StatusCode::not_found);
  EXPECT_EQ(
      to_string(failure),
      "/nonexistent/x.json: found No such file or directory; expected a file that can be read");
  EXPECT_EQ(read_json_text("/tmp", {}, text, failure).code, StatusCode::parse_error);
  EXPECT_EQ(to_string(failure), "/tmp: found a folder; expected a regular file");
  EXPECT_EQ(read_json_text("/dev/null", {}, text, failure).code, StatusCode::parse_error);
  EXPECT_EQ(to_string(failure), "/dev/null: found a device; expected a regular file");

  const std::string fifo = file.path() + ".fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_EQ(read_json_text(fifo, {}, text, failure).code, StatusCode::parse_error);
  EXPECT_EQ(to_string(failure), fifo + ": found a FIFO; expected a regular file");
  std::filesystem::remove(fifo);

  EXPECT_EQ(read_json_text(file.path(), {.max_bytes = 7}, text, failure).code,
            StatusCode::parse_error);
  EXPECT_EQ(to_string(failure), file.path() + ": found 8 bytes of JSON; expected at most 7");
}

}  // namespace
}  // namespace kvarena::capacity
