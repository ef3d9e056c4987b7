#include "kernel/cuda_pool.hpp"

#include "base/half.hpp"

#include <algorithm>
#include <numeric>

namespace kvarena::test {

std::vector<std::byte> random_elements(std::int64_t count, DType dtype, std::uint32_t seed) {
  std::vector<std::byte> values(static_cast<std::size_t>(count * bytes_of(dtype)));
  std::uint64_t state = seed * 0x9E3779B97F4A7C15ULL + 1;
  for (std::int64_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    float value = static_cast<float>(static_cast<std::int64_t>(state >> 33)) / 4.0e8F - 2.5F;
    if (i % 97 == 3) value *= 1e-6F;
    if (i % 101 == 5) value *= 1e6F;
    if (i % 103 == 7) value *= 1e-9F;
    store_f32(values.data(), dtype, i, value);
  }
  return values;
}

std::vector<std::int32_t> shuffled_ids(std::int64_t count, std::uint32_t seed) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  std::iota(ids.begin(), ids.end(), 0);
  std::shuffle(ids.begin(), ids.end(), std::mt19937(seed));
  return ids;
}

}  // namespace kvarena::test
