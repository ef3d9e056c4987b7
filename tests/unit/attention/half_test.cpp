#include "base/half.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace kvarena {
namespace {

static_assert(f16_from_f32(1.0F) == 0x3C00 && bf16_from_f32(1.0F) == 0x3F80);

TEST(Half, EveryF16SurvivesTheWayThroughF32) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = f32_from_f16(half);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(f32_from_f16(f16_from_f32(value))));
    } else {
      ASSERT_EQ(f16_from_f32(value), half) << bits;
    }
  }
}

TEST(Half, EveryBf16SurvivesTheWayThroughF32) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = f32_from_bf16(half);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(f32_from_bf16(bf16_from_f32(value))));
    } else {
      ASSERT_EQ(bf16_from_f32(value), half) << bits;
    }
  }
}

// Between any two neighbours: nearest, and the even one at the middle.
TEST(Half, RoundsToNearestEven) {
  for (std::uint32_t bits = 0; bits < 0x7BFF; ++bits) {
    const float low = f32_from_f16(static_cast<std::uint16_t>(bits));
    const float high = f32_from_f16(static_cast<std::uint16_t>(bits + 1));
    const float middle = low + (high - low) / 2;
    const std::uint32_t even = bits % 2 == 0 ? bits : bits + 1;
    ASSERT_EQ(f16_from_f32(middle), even) << bits;
    ASSERT_EQ(f16_from_f32(std::nextafter(middle, low)), bits);
    ASSERT_EQ(f16_from_f32(std::nextafter(middle, high)), bits + 1);
    ASSERT_EQ(f16_from_f32(-std::nextafter(middle, high)), 0x8000U + bits + 1);
  }
  EXPECT_EQ(bf16_from_f32(std::bit_cast<float>(0x3F808000U)), 0x3F80);
  EXPECT_EQ(bf16_from_f32(std::bit_cast<float>(0x3F818000U)), 0x3F82);
  EXPECT_EQ(bf16_from_f32(std::bit_cast<float>(0x3F808001U)), 0x3F81);
}

TEST(Half, OverflowIsInfinite) {
  EXPECT_EQ(f16_from_f32(65504.0F), 0x7BFF);
  EXPECT_EQ(f16_from_f32(65519.0F), 0x7BFF);
  EXPECT_EQ(f16_from_f32(65520.0F), 0x7C00);
  EXPECT_EQ(f16_from_f32(-std::numeric_limits<float>::infinity()), 0xFC00);
  EXPECT_EQ(bf16_from_f32(std::numeric_limits<float>::max()), 0x7F80);
}

// A NaN whose payload lies in the dropped bits alone must not become infinite.
TEST(Half, NanStaysNan) {
  const float nan = std::bit_cast<float>(0x7F800001U);
  EXPECT_TRUE(std::isnan(f32_from_f16(f16_from_f32(nan))));
  EXPECT_TRUE(std::isnan(f32_from_bf16(bf16_from_f32(nan))));
}

}  // namespace
}  // namespace kvarena
