// Values of options: strict about what they accept. --device: what opens, what falls back and what
// does not.

#include "tools/option_values.hpp"
#include "support/gpu.hpp"
#include "tools/device_option.hpp"
#include "tools/replay/replay_output.hpp"
#include "unit/tools/command_run.hpp"

#include <gtest/gtest.h>

#include <string>

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
  for (const std::string& text :
       texts("", " ", "GiB", "-1", "+1", "1.", ".5GiB", "1..5GiB", "1,5GiB", "1e9", "0x10", "1G",
             "1GiB ", " 1GiB", "1 GiB x", "1  GiB", "9223372036854775808", "9999999999TiB",
             "99999999999999999999999999", "0.0000000001TB", "1GiBGiB", "nan", "inf")) {
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

using Kind = DeviceChoice::Kind;

TEST(DeviceOption, Parses) {
  EXPECT_EQ(parse_device("auto"), (DeviceChoice{Kind::automatic, 0}));
  EXPECT_EQ(parse_device("cpu"), (DeviceChoice{Kind::cpu, 0}));
  EXPECT_EQ(parse_device("cuda:0"), (DeviceChoice{Kind::cuda, 0}));
  EXPECT_EQ(parse_device("cuda:17"), (DeviceChoice{Kind::cuda, 17}));
  for (const char* wrong : {"", "gpu", "CPU", "cuda", "cuda:", "cuda:-1", "cuda:1x", "cuda: 1",
                            "cuda:+1", "cuda:1024", "cuda:99999999999", "auto ", "cpu:0"}) {
    EXPECT_FALSE(parse_device(wrong).has_value()) << wrong;
  }
}

TEST(DeviceOption, TheHostOpensWithoutAWord) {
  TestConsole test;
  const auto opened = open_device(test.console, {Kind::cpu, 0});
  ASSERT_TRUE(opened.has_value());
  EXPECT_EQ(opened->device->kind(), DeviceKind::host);
  EXPECT_EQ(opened->cuda, nullptr);
  EXPECT_EQ(test.out.str() + test.err.str(), "");
}

TEST(DeviceOption, AutoTakesTheHostWithOneLineOfWarningWhereThereIsNoGpu) {
  TestConsole test;
  const bool has_gpu = test::why_no_gpu().empty();
  const auto opened = open_device(test.console, {Kind::automatic, 0});
  ASSERT_TRUE(opened.has_value());
  EXPECT_EQ(opened->device->kind(), has_gpu ? DeviceKind::cuda : DeviceKind::host);
  EXPECT_EQ(opened->cuda != nullptr, has_gpu);
  if (has_gpu) {
    EXPECT_EQ(test.err.str(), "");
  } else {
    EXPECT_TRUE(test.err.str().starts_with("warning: --device auto: no GPU, running on the CPU: "));
    EXPECT_TRUE(test.err.str().find("; ") != std::string::npos) << "what is missing; what to do";
    EXPECT_EQ(test.err.str().find('\n'), test.err.str().size() - 1) << test.err.str();
  }
}

TEST(DeviceOption, AGpuThatIsNotThereNeverFallsBack) {
  TestConsole test;
  EXPECT_FALSE(open_device(test.console, {Kind::cuda, 1023}).has_value());
  EXPECT_TRUE(test.err.str().starts_with("error: --device cuda:1023: ")) << test.err.str();
  EXPECT_NE(test.err.str().find("expected: a GPU that 'kvarena devices' lists"), std::string::npos);
}

TEST(DeviceOption, TheGpuThatWasNamedOpens) {
  KVARENA_NEEDS_GPU();
  TestConsole test;
  const auto opened = open_device(test.console, {Kind::cuda, 0});
  ASSERT_TRUE(opened.has_value()) << test.err.str();
  ASSERT_NE(opened->cuda, nullptr);
  EXPECT_EQ(opened->cuda, opened->device.get());
  EXPECT_EQ(opened->cuda->ordinal(), 0);
}

TEST(ParseBytes, NeverWraps) {
  EXPECT_FALSE(parse_bytes("309485009821345069.724781056TiB").has_value());
  EXPECT_FALSE(parse_bytes("9999999999999999999.999999999TiB").has_value());
  EXPECT_TRUE(ended(run_line("shapes Qwen2.5-0.5B --pool-bytes 309485009821345069.724781056TiB"),
                    ExitCode::usage, {"is no size"}));
}

TEST(Counts, AreDecimalWhateverTheyBeginWith) {
  const auto context = [](const std::string& digits) {
    return run_line("plan --model Qwen2.5-0.5B --gpu L4 -q --json - --context " + digits);
  };
  EXPECT_EQ(parsed(context("010")).at("context"), 10);
  EXPECT_TRUE(ended(context("0x10"), ExitCode::usage, {"--context", "0x10", "2147483647"}));
  for (const std::string& words :
       texts("bench attention --peers --batch 0x10", "bench attention --peers --batch 8,,8",
             "bench attention --peers --batch , --context 4",
             "bench attention --peers --heads 0x20/8", "monitor --device cpu --interval 0x1p3")) {
    EXPECT_EQ(run_line(words).code, ExitCode::usage) << words;
  }
  const auto bench = run_line("bench attention --peers --heads 032/08 --batch 010,1k --json -");
  EXPECT_EQ(bench.code, ExitCode::ok) << bench.err;
}

TEST(Numbers, NanIsNone) {
  struct Case {
    const char* words;
    const char* option;
    const char* range;
  };
  for (const Case& wrong :
       {Case{"monitor --device cpu --once --interval nan", "--interval", "0.05"},
        {"plan --list --percentile nan", "--percentile", "0 .. 100"},
        {"plan --list --utilization nan", "--utilization", "0.001 .. 1"},
        {"replay x --efficiency-bandwidth nan", "--efficiency-bandwidth", "0.01 .. 1"}}) {
    EXPECT_TRUE(ended(run_line(wrong.words), ExitCode::usage, {wrong.option, "nan", wrong.range}));
  }
}

TEST(ParseHttpUrl, HasAHostAndNothingElse) {
  EXPECT_EQ(parse_http_url("http://127.0.0.1:80/"), "http://127.0.0.1:80");
  EXPECT_EQ(parse_http_url("https://example.org"), "https://example.org:443");
  for (const std::string& url :
       texts("http://127.0.0.1#x:80", "http://127.0.0.1?x:80", "http://a b:80", "http://a@b:80",
             "http://a\tb:80", "http://a:80#x", "https://a?b", "http://a\n:80")) {
    EXPECT_FALSE(parse_http_url(url).has_value()) << url;
  }
}

TEST(ReadToken, OneWithoutEndIsReadNoFurtherThanItsLimit) {
  EXPECT_TRUE(ended(run_line("monitor --url http://127.0.0.1:1 --http-token-file /dev/zero --once"),
                    ExitCode::bad_input, {"--http-token-file /dev/zero", "4096"}));
}

}  // namespace
}  // namespace kvarena::tools
