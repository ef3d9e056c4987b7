// The reference's own fp8 against CUDA's conversions, which run on the host as well.

#include "kernels/reference/element.hpp"

#include <cuda_fp8.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>

namespace kvarena::test {
namespace {

TEST(ReferenceFp8, EqualsCuda) {
  using kernels::reference::f32_from_fp8;
  using kernels::reference::fp8_from_f32;
  for (int bits = 0; bits < 256; ++bits) {
    const auto fp8 = static_cast<std::uint8_t>(bits);
    const float cuda = f32_from_f16(__nv_cvt_fp8_to_halfraw(fp8, __NV_E4M3).x);
    const float ours = f32_from_fp8(fp8);
    EXPECT_TRUE(ours == cuda || (std::isnan(ours) && std::isnan(cuda))) << bits;
  }
  // Every 4,099th f32: all exponents, ties among them.
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 4099) {
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    ASSERT_EQ(fp8_from_f32(value), __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3))
        << value;
  }
  for (int bits = 0; bits < 0x7E; ++bits) {
    const float middle = (f32_from_fp8(static_cast<std::uint8_t>(bits)) +
                          f32_from_fp8(static_cast<std::uint8_t>(bits + 1))) /
                         2.0F;
    ASSERT_EQ(fp8_from_f32(middle), __nv_cvt_float_to_fp8(middle, __NV_SATFINITE, __NV_E4M3))
        << middle;
  }
}

}  // namespace
}  // namespace kvarena::test
