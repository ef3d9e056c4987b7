#include "kernel/cuda_pool.hpp"

#include "kernels/reference/element.hpp"

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>
#include <random>

namespace kvarena::test {
namespace {

/// Arrays that tests have returned, by their size.
class ReturnedMemory : public ::testing::Environment {
 public:
  void TearDown() override {
    for (const auto& [bytes, memory] : free_) {
      for (void* array : memory) EXPECT_CUDA(cudaFree(array));
    }
    free_.clear();
  }
  void* take(std::size_t bytes) {
    std::vector<void*>& memory = free_[bytes];
    void* array = nullptr;
    if (memory.empty()) {
      EXPECT_CUDA(cudaMalloc(&array, bytes));
      return array;
    }
    array = memory.back();
    memory.pop_back();
    return array;
  }
  void put(void* array, std::size_t bytes) { free_[bytes].push_back(array); }

 private:
  std::map<std::size_t, std::vector<void*>> free_;
};

// GoogleTest deletes its environments.
ReturnedMemory& returned_memory() {
  static ReturnedMemory* const memory = new ReturnedMemory;
  return *memory;
}
[[maybe_unused]] const ::testing::Environment* const kRegistered =
    ::testing::AddGlobalTestEnvironment(&returned_memory());

std::size_t kept_size(std::size_t bytes) {
  return std::bit_ceil(std::max<std::size_t>(bytes, 256));
}

}  // namespace

void* take_device_memory(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  if (!is_watched()) return returned_memory().take(kept_size(bytes));
  void* array = nullptr;
  EXPECT_CUDA(cudaMalloc(&array, bytes));
  return array;
}

void return_device_memory(void* memory, std::size_t bytes) {
  if (memory == nullptr) return;
  EXPECT_CUDA(cudaDeviceSynchronize());
  if (is_watched()) {
    EXPECT_CUDA(cudaFree(memory));
  } else {
    returned_memory().put(memory, kept_size(bytes));
  }
}

std::vector<std::byte> gaussian_elements(std::int64_t count, DType dtype, std::uint32_t seed) {
  std::vector<std::byte> values(static_cast<std::size_t>(count * bytes_of(dtype)));
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < count; ++i) {
    kernels::reference::store_element(values.data(), dtype, i, normal(random));
  }
  return values;
}

::testing::AssertionResult same_bytes(std::span<const std::byte> actual,
                                      std::span<const std::byte> expected) {
  if (actual.size() != expected.size()) {
    return ::testing::AssertionFailure()
           << actual.size() << " bytes instead of " << expected.size();
  }
  if (std::equal(actual.begin(), actual.end(), expected.begin())) {
    return ::testing::AssertionSuccess();
  }
  std::size_t wrong = 0;
  ::testing::AssertionResult failure = ::testing::AssertionFailure();
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (actual[i] == expected[i]) continue;
    if (++wrong <= 8) {
      failure << "[" << i << "] " << std::to_integer<int>(actual[i]) << " for "
              << std::to_integer<int>(expected[i]) << "; ";
    }
  }
  return failure << wrong << " of " << actual.size() << " bytes differ";
}

std::vector<std::byte> random_bytes(std::size_t count, std::uint32_t seed) {
  std::vector<std::byte> bytes(count);
  std::uint64_t state = seed * 0x9E3779B97F4A7C15ULL + 1;
  for (std::byte& byte : bytes) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    byte = static_cast<std::byte>(state >> 56);
  }
  return bytes;
}

std::vector<std::byte> random_elements(std::int64_t count, DType dtype, std::uint32_t seed) {
  if (dtype == DType::int8) return random_bytes(static_cast<std::size_t>(count), seed);
  std::vector<std::byte> values(static_cast<std::size_t>(count * bytes_of(dtype)));
  std::uint64_t state = seed * 0x9E3779B97F4A7C15ULL + 1;
  for (std::int64_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    float value = static_cast<float>(static_cast<std::int64_t>(state >> 33)) / 4.0e8F - 2.5F;
    if (i % 97 == 3) value *= 1e-6F;
    if (i % 101 == 5) value *= 1e6F;
    if (i % 103 == 7) value *= 1e-9F;
    kernels::reference::store_element(values.data(), dtype, i, value);
  }
  return values;
}

std::vector<std::int32_t> shuffled_ids(std::int64_t count, std::uint32_t seed) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  std::iota(ids.begin(), ids.end(), 0);
  std::shuffle(ids.begin(), ids.end(), std::mt19937(seed));
  return ids;
}

TwinTables::TwinTables(const std::vector<std::vector<BlockId>>& rows, std::int32_t page_shift)
    : page_shift_(page_shift) {
  const std::size_t page = page_shift < 0 ? 1 : std::size_t{1} << page_shift;
  std::int32_t num_pages = 0;
  for (const auto& row : rows) {
    num_pages += static_cast<std::int32_t>((row.size() + page - 1) / page);
  }
  entries_.resize(page_shift < 0 ? 0 : static_cast<std::size_t>(num_pages) * page,
                  BlockId(1 << 28));
  for (const auto& row : rows) {
    offsets_.push_back(static_cast<std::int64_t>(page_shift < 0 ? entries_.size() : pages_.size()));
    for (std::size_t j = 0; page_shift < 0 && j < row.size(); ++j) entries_.push_back(row[j]);
    for (std::size_t j = 0; page_shift >= 0 && j < row.size(); ++j) {
      if (j % page == 0) pages_.push_back(--num_pages);
      entries_[static_cast<std::size_t>(pages_.back()) * page + j % page] = row[j];
    }
  }
  if (entries_.empty()) entries_.emplace_back(1 << 28);
  device_entries_ = DeviceArray<BlockId>(entries_);
  if (page_shift >= 0) device_pages_ = DeviceArray<std::int32_t>(pages_);
  device_offsets_ = DeviceArray<std::int64_t>(offsets_);
}

BlockTableView TwinTables::host() const {
  return {entries_.data(), page_shift_ < 0 ? nullptr : pages_.data(), offsets_.data(),
          std::max(0, page_shift_), static_cast<std::int32_t>(offsets_.size())};
}

BlockTableView TwinTables::device() const {
  return {device_entries_.data(), page_shift_ < 0 ? nullptr : device_pages_.data(),
          device_offsets_.data(), std::max(0, page_shift_),
          static_cast<std::int32_t>(offsets_.size())};
}

}  // namespace kvarena::test
