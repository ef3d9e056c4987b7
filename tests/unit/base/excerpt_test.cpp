#include "base/excerpt.hpp"

#include "base/finding.hpp"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace kvarena {
namespace {

TEST(Excerpt, QuotesEscapesAndCuts) {
  EXPECT_EQ(excerpt_of("a b"), "\"a b\"");
  EXPECT_EQ(excerpt_of("\x1b[2J\n\x7f\xc3\xa4"), "\"\\x1b[2J\\x0a\\x7f\\xc3\\xa4\"");
  EXPECT_EQ(excerpt_of("abcdef", 3), "\"abc\"...");
}

TEST(Printable, KeepsWhatIsText) {
  constexpr std::string_view kText = "a\\\"~ \xc2\xa0\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80";
  EXPECT_EQ(printable(kText), kText);
  EXPECT_EQ(printable(""), "");
}

TEST(Printable, NoControlCharacterPasses) {
  EXPECT_EQ(printable(std::string_view("a\0b\x1b[31m\r\n\t\x7f", 12)), "a?b?[31m????");
  for (int code = 0; code < 0xa0; ++code) {
    const bool is_control = code < 0x20 || code > 0x7e;
    std::string text(1, static_cast<char>(code));
    if (code > 0x7f) text = std::string("\xc2") + text;
    EXPECT_EQ(printable(text), is_control ? "?" : text) << code;
  }
}

TEST(Printable, NoFormatCharacterPasses) {
  for (const char* text : {"\xc2\xad", "\xd8\x9c", "\xe2\x80\x8b", "\xe2\x80\xa8", "\xe2\x80\xa9",
                           "\xe2\x80\xae", "\xe2\x81\xa9", "\xef\xbb\xbf", "\xf3\xa0\x80\x81"}) {
    EXPECT_EQ(printable(text), "?") << excerpt_of(text);
  }
  for (const char* text : {"\xe2\x80\xaf", "\xe2\x80\x90", "\xef\xbf\xbc", "\xd9\x80"}) {
    EXPECT_EQ(printable(text), text);
  }
}

TEST(Printable, NoByteOutsideUtf8Passes) {
  EXPECT_EQ(printable("\x9b"
                      "31m"),
            "?31m")
      << "a control sequence on a terminal of 8 bits";
  EXPECT_EQ(printable("\xc0\x9b"), "??") << "overlong";
  EXPECT_EQ(printable("a\xe2\x82"), "a??") << "cut";
  EXPECT_EQ(printable("\xff\xc3\xa4"), "?\xc3\xa4");
}

TEST(Finding, SaysOnlyThePartsThatThereAre) {
  EXPECT_TRUE(Finding{}.is_empty());
  EXPECT_EQ(to_string(Finding{}), "");
  const Finding whole{"a.json: byte 7", "the number 1", "a string", "write \"1\""};
  EXPECT_EQ(headline(whole), "a.json: byte 7: found the number 1");
  EXPECT_EQ(to_string(whole), "a.json: byte 7: found the number 1; expected a string; write \"1\"");
  EXPECT_EQ(to_string({.found = "request 3 ends too late", .advice = "lower decode_us"}),
            "request 3 ends too late; lower decode_us");
  EXPECT_EQ(to_string({.subject = "a\x1b[2J\n", .found = "x"}), "a?[2J?: found x");
}

}  // namespace
}  // namespace kvarena
