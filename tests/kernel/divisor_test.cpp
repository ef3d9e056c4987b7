#include "kernels/common/divisor.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace kvarena::test {
namespace {

using kernels::Divisor;
using kernels::divisor_of;
using kernels::is_exact;

TEST(Divisor, DividesExactlyWhereItSaysSo) {
  constexpr std::int64_t kMost = 0x7fffffff;
  for (std::int32_t value = 1; value <= 300; ++value) {
    const Divisor divisor = divisor_of(value);
    std::int64_t largest = kMost;
    while (!is_exact(divisor, largest)) largest /= 2;
    EXPECT_GE(largest, (std::int64_t{1} << 31) / value / 4) << value;
    for (std::int64_t x = 0; x <= largest; x += 1 + x / 50) {
      const std::int64_t whole = x / value * value;
      for (const std::int64_t near : {x, whole, whole == 0 ? 0 : whole - 1}) {
        ASSERT_EQ(divisor.divide(static_cast<std::int32_t>(near)), near / value)
            << near << " / " << value;
      }
    }
  }
}

TEST(Divisor, PowersOfTwoAreExactForEveryNumber) {
  for (std::int32_t value = 1; value <= 4096; value *= 2) {
    EXPECT_TRUE(is_exact(divisor_of(value), 0x7fffffff)) << value;
  }
  EXPECT_FALSE(is_exact(divisor_of(2), std::int64_t{1} << 31));
}

}  // namespace
}  // namespace kvarena::test
