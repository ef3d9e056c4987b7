// A view that is redrawn in its place, on terminals of any size; and kvarena monitor --device: a
// GPU by NVML alone, the host by itself.

#include "tools/monitor/monitor_frame.hpp"
#include "tools/monitor/monitor_sources.hpp"
#include "unit/tools/command_run.hpp"

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

namespace kvarena::tools {
namespace {

using Lines = std::vector<std::string>;

TEST(FitLines, LeavesWhatFits) {
  const Lines lines{"title", "one", "two"};
  EXPECT_EQ(fit_lines(lines, {4, 5}), lines) << "three lines and the cursor's";
  EXPECT_EQ(fit_lines(lines, {}), lines) << "a size that is not known";
  EXPECT_EQ(fit_lines({}, {3, 3}), Lines{});
}

TEST(FitLines, TheLastLineSaysHowManyAreHidden) {
  const Lines lines{"title", "one", "two", "three", "four"};
  EXPECT_EQ(fit_lines(lines, {5, 80}), (Lines{"title", "one", "two", "  ... 2 more lines"}));
  EXPECT_EQ(fit_lines(lines, {3, 80}), (Lines{"title", "  ... 4 more lines"}));
  EXPECT_EQ(fit_lines(lines, {2, 80}), (Lines{"title"}));
  EXPECT_EQ(fit_lines(lines, {1, 80}), (Lines{"title"}));
}

TEST(FitLines, LinesAreCutBetweenCharacters) {
  EXPECT_EQ(fit_lines({"abcdef", "abc", "\xc3\xa4\xc3\xb6\xc3\xbc\xe2\x82\xac"}, {24, 3}),
            (Lines{"abc", "abc", "\xc3\xa4\xc3\xb6\xc3\xbc"}));
}

/// A screen that obeys what the view writes, and holds `rows` lines.
class Screen {
 public:
  explicit Screen(std::size_t rows) : rows_(rows), lines_(1) {}
  void write(const std::string& text) {
    for (std::size_t at = 0; at < text.size(); ++at) {
      if (text[at] == '\x1b') {
        at = obey(text, at);
      } else if (text[at] == '\n') {
        if (++row_ == lines_.size()) lines_.emplace_back();
      } else {
        lines_[row_] += text[at];
      }
    }
  }
  /// All lines ever, those that left the screen at its top too.
  Lines lines() const { return {lines_.begin(), lines_.end() - 1}; }

 private:
  std::size_t top() const { return lines_.size() > rows_ ? lines_.size() - rows_ : 0; }
  std::size_t obey(const std::string& text, std::size_t at) {
    const std::size_t end = text.find_first_of("AJHhlm", at);
    const std::string command = text.substr(at + 2, end - at - 1);
    if (command.ends_with('A')) {
      const std::size_t up = std::stoul(command);
      row_ = row_ - top() < up ? top() : row_ - up;
    } else if (command == "H") {
      row_ = top();
    } else if (command == "J") {
      lines_.resize(row_ + 1);
      lines_[row_].clear();
    }
    return end;
  }

  std::size_t rows_;
  std::size_t row_ = 0;
  Lines lines_;
};

/// What is left of `looks` on a terminal of that many rows, under a line that was there before.
Lines seen_after(int rows, const std::vector<Lines>& looks) {
  std::ostringstream out;
  Console console{out, out};
  console.out_is_terminal = true;
  console.terminal_size = [rows] { return TerminalSize{rows, 80}; };
  LiveView view(console, out);
  Screen screen(static_cast<std::size_t>(rows));
  screen.write("$ kvarena monitor\n");
  for (const Lines& look : looks) {
    out.str("");
    view.draw(look, true);
    screen.write(out.str());
  }
  return screen.lines();
}

TEST(LiveView, EachLookTakesThePlaceOfTheOneBefore) {
  const Lines shown = seen_after(24, {{"title 1", "a", "b"}, {"title 2", "a"}, {"title 3", "c"}});
  EXPECT_EQ(shown, (Lines{"$ kvarena monitor", "title 3", "c"}));
}

TEST(LiveView, ALookHigherThanTheTerminalLeavesNoDuplicate) {
  const Lines look{"title", "a", "b", "c", "d", "e", "f", "g"};
  for (const int rows : {2, 3, 4, 8, 9}) {
    const Lines shown = seen_after(rows, {look, look, look});
    EXPECT_EQ(std::count(shown.begin(), shown.end(), "title"), 1) << rows << " rows";
    EXPECT_EQ(shown.front(), "$ kvarena monitor");
  }
  EXPECT_EQ(seen_after(4, {look, look}),
            (Lines{"$ kvarena monitor", "title", "a", "  ... 6 more lines"}));
}

TEST(LiveView, AfterAChangeOfSizeItStartsAtTheTop) {
  std::ostringstream out;
  Console console{out, out};
  TerminalSize size{24, 80};
  console.terminal_size = [&size] { return size; };
  LiveView view(console, out);
  view.draw({"title", "a"}, true);
  view.draw({"title", "a"}, true);
  EXPECT_TRUE(contains(out.str(), "\x1b[2A\x1b[J"));
  EXPECT_FALSE(contains(out.str(), "\x1b[H"));
  size = {10, 80};
  out.str("");
  view.draw({"title", "a"}, true);
  EXPECT_TRUE(out.str().starts_with("\x1b[H\x1b[J")) << out.str();
  out.str("");
  view.draw({"title", "a"}, true);
  EXPECT_TRUE(out.str().starts_with("\x1b[2A\x1b[J")) << out.str();
}

TEST(LiveView, TheTitleHasTheColourOfHealth) {
  std::ostringstream out;
  Console console{out, out};
  console.out_is_terminal = true;
  LiveView view(console, out);
  view.draw({"title", "a"}, false);
  EXPECT_TRUE(contains(out.str(), "\x1b[31mtitle\x1b[0m\na\n"));
}

using Json = nlohmann::ordered_json;
using Kind = DeviceChoice::Kind;

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

CudaDeviceInfo gpu_number(std::int32_t ordinal) {
  CudaDeviceInfo gpu;
  gpu.ordinal = ordinal;
  gpu.name = "NVIDIA H200";
  gpu.pci_bus_id = "0000:1b:00.0";
  return gpu;
}

NvmlMemory full_card() {
  NvmlMemory nvml;
  nvml.total_bytes = 140 * kGiB;
  nvml.used_bytes = 139 * kGiB;
  nvml.reserved_bytes = kGiB;
  nvml.driver_version = "580.65.06";
  nvml.processes = {{17, 138 * kGiB, "server"}, {42, std::nullopt, "evil\x1b[2J\r\xff"}};
  return nvml;
}

TEST(GpuSource, ShowsAFullCardAndWhoFilledIt) {
  std::string asked;
  GpuSource source(gpu_number(1), [&asked](const CudaDeviceInfo& gpu) -> Result<NvmlMemory> {
    asked = gpu.pci_bus_id;
    return full_card();
  });
  const MonitorFrame frame = source.look();
  ASSERT_TRUE(frame.is_ok()) << frame.happened;
  EXPECT_EQ(asked, "0000:1b:00.0");
  EXPECT_EQ(frame.lines,
            (std::vector<std::string>{"cuda:1 NVIDIA H200  139.00 GiB used, 0 B free of 140.00 GiB",
                                      "  driver 580.65.06: 1.00 GiB reserved; 2 processes by NVML",
                                      "  process 17 server: 138.00 GiB",
                                      "  process 42 evil?[2J??: bytes not told"}));
  EXPECT_EQ(frame.line,
            "memory device=\"cuda:1 NVIDIA H200\" used=139.00GiB free=0B total=140.00GiB "
            "processes=2");
  EXPECT_EQ(frame.document["free_bytes"], 0);
  EXPECT_EQ(frame.document["processes"][0]["bytes"], 138 * kGiB);
  EXPECT_TRUE(frame.document["processes"][1]["bytes"].is_null());
}

TEST(GpuSource, ReservedCountedAsUsedLeavesNothingBelowZero) {
  GpuSource source(gpu_number(0), [](const CudaDeviceInfo&) -> Result<NvmlMemory> {
    NvmlMemory nvml = full_card();
    nvml.used_bytes = nvml.total_bytes;
    return nvml;
  });
  EXPECT_EQ(source.look().document["free_bytes"], 0);
}

TEST(GpuSource, SaysWhyNvmlTellsNothingAnyMore) {
  GpuSource source(gpu_number(0), [](const CudaDeviceInfo&) -> Result<NvmlMemory> {
    return Status{StatusCode::device_error, Resource::device, Option::none, 15, 0, 0, 0};
  });
  const MonitorFrame frame = source.look();
  EXPECT_FALSE(frame.is_ok());
  EXPECT_TRUE(frame.happened.starts_with("cuda:0 NVIDIA H200, by NVML: ")) << frame.happened;
  EXPECT_FALSE(contains(frame.happened, "\n"));
}

/// What open_device_source says and returns.
struct Opened {
  std::unique_ptr<MonitorSource> source;
  std::string err;
};

Opened open(const DeviceChoice& choice, const CudaDeviceList& gpus, bool has_nvml) {
  TestConsole test;
  auto source = open_device_source(test.console, choice, gpus,
                                   [has_nvml](const CudaDeviceInfo&) -> Result<NvmlMemory> {
                                     if (!has_nvml) return Status{StatusCode::unsupported};
                                     return full_card();
                                   });
  return {std::move(source), test.err.str()};
}

TEST(OpenDeviceSource, AGpuThatNvmlKnowsIsNotOpened) {
  CudaDeviceList gpus;
  gpus.devices = {gpu_number(0), gpu_number(1000)};  // which no machine has: it could not be opened
  const Opened second = open({Kind::cuda, 1000}, gpus, true);
  ASSERT_NE(second.source, nullptr) << second.err;
  EXPECT_EQ(second.err, "");
  EXPECT_TRUE(contains(second.source->look().line, "cuda:1000 NVIDIA H200"));
  const Opened automatic = open({Kind::automatic, 0}, gpus, true);
  ASSERT_NE(automatic.source, nullptr);
  EXPECT_TRUE(contains(automatic.source->look().line, "cuda:0 NVIDIA H200"));
}

TEST(OpenDeviceSource, WithoutNvmlItHasToBeOpened) {
  CudaDeviceList gpus;
  gpus.devices = {gpu_number(1000)};
  const Opened opened = open({Kind::cuda, 1000}, gpus, false);
  EXPECT_EQ(opened.source, nullptr);
  EXPECT_TRUE(contains(opened.err, "--device cuda:1000: "));
}

TEST(OpenDeviceSource, TheHostWithAWarningOfItsOwn) {
  EXPECT_EQ(open({Kind::cpu, 0}, {}, true).err, "");
  const Opened opened = open({Kind::cpu, 0}, {}, true);
  const MonitorFrame frame = opened.source->look();
  EXPECT_TRUE(frame.line.starts_with("memory device=host used=")) << frame.line;
  EXPECT_TRUE(frame.document["processes"].is_null());
  if (!list_devices().devices.empty()) return;
  const Opened automatic = open({Kind::automatic, 0}, {}, true);
  ASSERT_NE(automatic.source, nullptr);
  EXPECT_TRUE(automatic.err.starts_with("warning: --device auto: no GPU, watching the host: "))
      << automatic.err;
}

}  // namespace
}  // namespace kvarena::tools
