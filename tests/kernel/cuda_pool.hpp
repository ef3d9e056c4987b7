#pragma once

/// @file
/// What tests of CUDA kernels stand on: a device or a skip, device memory, and a poisoned pool of
/// one layer that exists twice, on the host for the reference and on the device for the kernel.

#include "kvarena/base/tile_order.hpp"
#include "kvarena/base/views.hpp"

#include "support/environment.hpp"
#include "support/gpu.hpp"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvarena::test {

/// The CUDA call succeeded, or the test goes on failing.
#define EXPECT_CUDA(call) EXPECT_EQ((call), cudaSuccess)

/// How many random cases make a campaign: KVARENA_TEST_ROUNDS times `usual` (1 by default), few
/// under a checker.
inline int rounds(int usual) {
  const auto times = static_cast<int>(number_from_environment("KVARENA_TEST_ROUNDS", 1));
  return is_watched() ? std::max(1, usual / 64) : usual * times;
}

/// Whether case `index` of a cross product is run: all of them, one in fifty under a checker.
inline bool is_picked(std::uint64_t index) { return !is_watched() || index % 50 == 7; }

/// Where a campaign starts; KVARENA_SEED for another.
inline std::uint64_t first_seed() { return number_from_environment("KVARENA_SEED", 1); }

/// A test that needs a GPU: skipped with one line where there is none, failed when
/// KVARENA_REQUIRE_GPU=1. Has a stream of its own.
class CudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaSuccess && count > 0) {
      ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
      return;
    }
    const char* required = std::getenv("KVARENA_REQUIRE_GPU");
    if (required != nullptr && std::string(required) == "1") {
      FAIL() << "KVARENA_REQUIRE_GPU=1 and no GPU: " << cudaGetErrorString(error);
    }
    GTEST_SKIP() << "no GPU: " << cudaGetErrorString(error);
  }
  void TearDown() override {
    if (stream_ != nullptr) {
      EXPECT_CUDA(cudaStreamDestroy(stream_));
    }
  }
  /// All work of the stream has completed without an error.
  void finish() { EXPECT_CUDA(cudaStreamSynchronize(stream_)); }

  cudaStream_t stream_ = nullptr;
};

/// Device memory for tests, which make thousands of arrays: taken from the driver in sizes of
/// powers of two and kept for the next array until the program ends, with whatever it held. Under a
/// checker each array is an allocation of its own. Waits for the device when memory comes back.
void* take_device_memory(std::size_t bytes);
void return_device_memory(void* memory, std::size_t bytes);

/// Device memory, copied to and from vectors. Move-only.
template <class T>
class DeviceArray {
 public:
  DeviceArray() = default;
  explicit DeviceArray(std::size_t count)
      : data_(take_device_memory(count * sizeof(T))), count_(count) {}
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    upload(values);
  }
  ~DeviceArray() { return_device_memory(data_, count_ * sizeof(T)); }
  DeviceArray(DeviceArray&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), count_(std::exchange(other.count_, 0)) {}
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    return *this;
  }

  /// First element, on the device.
  T* data() const { return static_cast<T*>(data_); }
  /// Overwrites the first values; waits.
  void upload(std::span<const T> values) {
    if (values.empty()) return;
    EXPECT_CUDA(
        cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    // From pageable memory the copy may still be under way, and the tests' stream would not wait.
    EXPECT_CUDA(cudaDeviceSynchronize());
  }
  /// Every byte is `value`; waits.
  void fill(int value) {
    EXPECT_CUDA(cudaMemset(data_, value, count_ * sizeof(T)));
    EXPECT_CUDA(cudaDeviceSynchronize());
  }
  /// How many elements.
  std::size_t size() const { return count_; }
  /// All elements; waits.
  std::vector<T> download() const {
    std::vector<T> values(count_);
    EXPECT_CUDA(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  void* data_ = nullptr;
  std::size_t count_ = 0;
};

/// The shape of a pool of one layer.
struct PoolShape {
  std::int32_t num_heads = 2;
  std::int32_t dim_k = 64;
  std::int32_t dim_v = 64;
  DType dtype_k = DType::bf16;
  DType dtype_v = DType::bf16;
  std::int32_t block_size = 16;
  TileOrder order = TileOrder::rows;
  bool block_major = true;
  std::int64_t num_blocks = 9;
};

/// For failure messages: what tells one shape from another.
inline std::string name_of(const PoolShape& s) {
  return std::to_string(s.num_heads) + " heads, dims " + std::to_string(s.dim_k) + "/" +
         std::to_string(s.dim_v) + " " + std::string(name_of(s.dtype_k)) + "/" +
         std::string(name_of(s.dtype_v)) + ", block " + std::to_string(s.block_size) +
         (s.order == TileOrder::rows ? " rows" : " chunked") +
         (s.block_major ? " block-major" : " layer-major");
}

/// Whether the shape exists: chunked tiles have rules.
inline bool is_valid(const PoolShape& s) {
  return s.order == TileOrder::rows ||
         (s.block_size % kTileTokens == 0 && has_chunked_order(s.dtype_k, s.dim_k) &&
          has_chunked_order(s.dtype_v, s.dim_v));
}

/// K and V of a shape; `base` is where the pool lies. Returns the pool's bytes in `bytes`.
inline KvLayerView view_of(const PoolShape& s, std::byte* base, std::size_t* bytes = nullptr) {
  KvLayerView kv;
  const auto plane = [&](std::int32_t dim, DType dtype) {
    PlaneView view;
    view.num_heads = s.num_heads;
    view.head_dim = dim;
    view.dtype = dtype;
    view.token_stride = dim * bytes_of(dtype);
    view.head_stride = view.token_stride * s.block_size;
    view.tile_order = s.order;
    return view;
  };
  kv.key = plane(s.dim_k, s.dtype_k);
  kv.value = plane(s.dim_v, s.dtype_v);
  kv.block_size = s.block_size;
  kv.num_blocks = s.num_blocks;
  const std::int64_t k_bytes = (kv.key.head_stride * s.num_heads + 15) / 16 * 16;
  const std::int64_t v_bytes = (kv.value.head_stride * s.num_heads + 15) / 16 * 16;
  kv.key.base = base;
  kv.value.base = base + (s.block_major ? k_bytes : k_bytes * s.num_blocks);
  kv.key.block_stride = s.block_major ? k_bytes + v_bytes : k_bytes;
  kv.value.block_stride = s.block_major ? k_bytes + v_bytes : v_bytes;
  if (bytes != nullptr) *bytes = static_cast<std::size_t>((k_bytes + v_bytes) * s.num_blocks);
  return kv;
}

/// The same pool on the host and on the device. Every byte is 0xFF at first: a NaN in each dtype.
class TwinPool {
 public:
  explicit TwinPool(const PoolShape& shape) {
    std::size_t size = 0;
    view_of(shape, nullptr, &size);
    bytes.assign(size, std::byte{0xFF});
    device = DeviceArray<std::byte>(bytes);
    host_view = view_of(shape, bytes.data());
    device_view = view_of(shape, device.data());
  }
  /// Makes the device's bytes those of the host.
  void upload() { device.upload(bytes); }

  std::vector<std::byte> bytes;   ///< on the host
  DeviceArray<std::byte> device;  ///< on the device
  KvLayerView host_view;          ///< K and V of `bytes`
  KvLayerView device_view;        ///< K and V of `device`
};

/// `count` elements of `dtype`: ordinary, tiny and huge numbers, no NaN.
std::vector<std::byte> random_elements(std::int64_t count, DType dtype, std::uint32_t seed);

/// `count` normally distributed numbers of a float type.
std::vector<std::byte> gaussian_elements(std::int64_t count, DType dtype, std::uint32_t seed);

/// Success when both are equal; else how many bytes differ, and the first ones.
::testing::AssertionResult same_bytes(std::span<const std::byte> actual,
                                      std::span<const std::byte> expected);

/// Any bytes.
std::vector<std::byte> random_bytes(std::size_t count, std::uint32_t seed);

/// Ids 0 .. count - 1 in random order.
std::vector<std::int32_t> shuffled_ids(std::int64_t count, std::uint32_t seed);

/// Block tables on the host and on the device.
class TwinTables {
 public:
  /// Row `r` has `rows[r]`: contiguous, or in pages of `1 << page_shift` entries, in reverse order.
  explicit TwinTables(const std::vector<std::vector<BlockId>>& rows, std::int32_t page_shift = -1);
  /// For the reference.
  BlockTableView host() const;
  /// For the kernel.
  BlockTableView device() const;

 private:
  std::int32_t page_shift_;
  std::vector<BlockId> entries_;
  std::vector<std::int32_t> pages_;
  std::vector<std::int64_t> offsets_;
  DeviceArray<BlockId> device_entries_;
  DeviceArray<std::int32_t> device_pages_;
  DeviceArray<std::int64_t> device_offsets_;
};

}  // namespace kvarena::test
