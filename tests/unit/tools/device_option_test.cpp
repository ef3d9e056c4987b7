// --device: what parses, what opens, what falls back and what does not.

#include "tools/device_option.hpp"
#include "support/gpu.hpp"

#include <gtest/gtest.h>

#include <sstream>
#include <string>

namespace kvarena::tools {
namespace {

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
  std::ostringstream out;
  std::ostringstream err;
  const auto opened = open_device(Console{out, err}, {Kind::cpu, 0});
  ASSERT_TRUE(opened.has_value());
  EXPECT_EQ(opened->device->kind(), DeviceKind::host);
  EXPECT_EQ(opened->cuda, nullptr);
  EXPECT_EQ(out.str() + err.str(), "");
}

TEST(DeviceOption, AutoTakesTheHostWithOneLineOfWarningWhereThereIsNoGpu) {
  std::ostringstream out;
  std::ostringstream err;
  const bool has_gpu = test::why_no_gpu().empty();
  const auto opened = open_device(Console{out, err}, {Kind::automatic, 0});
  ASSERT_TRUE(opened.has_value());
  EXPECT_EQ(opened->device->kind(), has_gpu ? DeviceKind::cuda : DeviceKind::host);
  EXPECT_EQ(opened->cuda != nullptr, has_gpu);
  if (has_gpu) {
    EXPECT_EQ(err.str(), "");
  } else {
    EXPECT_TRUE(err.str().starts_with("warning: --device auto: no GPU, running on the CPU: "));
    EXPECT_TRUE(err.str().find("; ") != std::string::npos) << "what is missing; what to do";
    EXPECT_EQ(err.str().find('\n'), err.str().size() - 1) << err.str();
  }
}

TEST(DeviceOption, AGpuThatIsNotThereNeverFallsBack) {
  std::ostringstream out;
  std::ostringstream err;
  EXPECT_FALSE(open_device(Console{out, err}, {Kind::cuda, 1023}).has_value());
  EXPECT_TRUE(err.str().starts_with("error: --device cuda:1023: ")) << err.str();
  EXPECT_NE(err.str().find("expected: a GPU that 'kvarena devices' lists"), std::string::npos);
}

TEST(DeviceOption, TheGpuThatWasNamedOpens) {
  KVARENA_NEEDS_GPU();
  std::ostringstream out;
  std::ostringstream err;
  const auto opened = open_device(Console{out, err}, {Kind::cuda, 0});
  ASSERT_TRUE(opened.has_value()) << err.str();
  ASSERT_NE(opened->cuda, nullptr);
  EXPECT_EQ(opened->cuda, opened->device.get());
  EXPECT_EQ(opened->cuda->ordinal(), 0);
}

}  // namespace
}  // namespace kvarena::tools
