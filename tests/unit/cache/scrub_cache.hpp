#pragma once

/// @file
/// A cache whose tests read every byte of its pool: each token's K and V are one number in all
/// layers, heads and dims, V its negative. At first every byte of the pool is 0xFF, as if another
/// process had left it.

#include "support/device_buffer.hpp"
#include "support/devices.hpp"

#include "kvarena/base/tile_order.hpp"
#include "kvarena/cache/kv_cache.hpp"

#include <cstddef>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

namespace kvarena::test {

/// What the pool looks like.
struct ScrubShape {
  const char* name;
  DeviceKind kind = DeviceKind::host;
  BlockOrder order = BlockOrder::block_major;
  DType dtype = DType::f32;
  std::int32_t head_dim_k = 8;
  std::int32_t head_dim_v = 8;
  std::int32_t block_size = 4;
};

inline void PrintTo(const ScrubShape& shape, std::ostream* out) { *out << shape.name; }
inline std::string shape_name(const ::testing::TestParamInfo<ScrubShape>& shape) {
  return shape.param.name;
}

/// Pools of every order and of elements that end anywhere, on the devices that there are.
inline std::vector<ScrubShape> scrub_shapes() {
  constexpr auto kLayerMajor = BlockOrder::layer_major;
  std::vector<ScrubShape> shapes;
  for (const DeviceKind kind : device_kinds()) {
    const bool is_host = kind == DeviceKind::host;
    shapes.push_back({is_host ? "host" : "cuda", kind});
    shapes.push_back({is_host ? "host_layer_major" : "cuda_layer_major", kind, kLayerMajor});
    shapes.push_back(
        {is_host ? "host_odd" : "cuda_odd", kind, BlockOrder::block_major, DType::f16, 5, 5, 3});
    shapes.push_back(
        {is_host ? "host_wide_v" : "cuda_wide_v", kind, kLayerMajor, DType::bf16, 8, 24, 5});
    if (is_host) continue;  // its kernels have no chunked order
    shapes.push_back({"cuda_chunked", kind, BlockOrder::block_major, DType::f16, 64, 64, 16});
    shapes.push_back({"cuda_chunked_layer_major", kind, kLayerMajor, DType::bf16, 96, 96, 32});
    shapes.push_back(
        {"cuda_chunked_fp8", kind, BlockOrder::block_major, DType::fp8_e4m3, 128, 128, 16});
  }
  return shapes;
}

/// A device, a cache of three layers on it, and the numbers that its tokens are.
class ScrubCache {
 public:
  static constexpr std::int32_t kLayers = 3;
  static constexpr std::int32_t kHeads = 2;
  static constexpr std::int64_t kMaxTokens = 512;  ///< of a step

  /// Aborts when any of it cannot be made.
  ScrubCache(const ScrubShape& shape, Scrub scrub, std::int64_t num_blocks = 8,
             std::int32_t max_sequences = 8, bool has_prefix_cache = false)
      : device(make_device(shape.kind)),
        cache(KvCache::create(*device,
                              options(shape, scrub, num_blocks, max_sequences, has_prefix_cache))
                  .value()),
        key_(DeviceBuffer::create(*device, kInputFloats * sizeof(float)).value()),
        value_(DeviceBuffer::create(*device, kInputFloats * sizeof(float)).value()) {
    static_cast<void>(device->fill(cache.arena().base(), 0xFF, pool_bytes(), cache.stream()));
    static_cast<void>(cache.synchronize());
  }

  static KvCacheOptions options(const ScrubShape& shape, Scrub scrub, std::int64_t num_blocks,
                                std::int32_t max_sequences, bool has_prefix_cache = false) {
    return {.layout = {.num_layers = kLayers,
                       .num_kv_heads = kHeads,
                       .head_dim_k = shape.head_dim_k,
                       .head_dim_v = shape.head_dim_v,
                       .dtype = shape.dtype,
                       .block_size_tokens = shape.block_size},
            .size = {.num_blocks = num_blocks},
            .order = shape.order,
            .scrub = scrub,
            .num_q_heads = kHeads,
            .max_sequences = max_sequences,
            .max_step_tokens = kMaxTokens,
            .num_threads = 1,
            .prefix_cache = {.is_on = has_prefix_cache, .hash_key = {1, 2}, .share_parts = true}};
  }

  std::int64_t block_size() const { return cache.arena().layout().block_size(); }
  SequenceId create(std::uint64_t owner) { return cache.create_sequence({.owner = owner}).value(); }
  /// begin_step and append; the tokens are not written yet, everything in front of that is done.
  Status begin(const std::vector<AppendDemand>& demands) {
    if (Status s = cache.begin_step(); !s) return s;
    const Result<StepBatch> batch = cache.append(demands);
    return batch ? cache.synchronize() : batch.status();
  }
  /// Writes the step's tokens, one number each.
  Status write(const std::vector<float>& numbers) {
    if (Status s = give_input(numbers); !s) return s;
    for (std::int32_t layer = 0; layer < kLayers; ++layer) {
      if (Status s = cache.write_kv({layer, key_.data(), value_.data(), DType::f32}); !s) return s;
    }
    return {};
  }
  /// A whole step of one sequence whose tokens are all `number`; waits.
  Status grow(SequenceId id, std::int32_t tokens, float number) {
    if (Status s = begin({{id, tokens}}); !s) return s;
    if (Status s = write(std::vector<float>(static_cast<std::size_t>(tokens), number)); !s) {
      return s;
    }
    return end();
  }
  Status end() {
    if (Status s = cache.end_step(); !s) return s;
    return cache.synchronize();
  }
  /// The numbers as K and V of the step's tokens.
  Status give_input(const std::vector<float>& numbers) {
    const KvLayerView kv = *cache.arena().layer_view(0);
    keys_.clear();
    values_.clear();
    for (const float number : numbers) {
      keys_.insert(keys_.end(), static_cast<std::size_t>(kHeads * kv.key.head_dim), number);
      values_.insert(values_.end(), static_cast<std::size_t>(kHeads * kv.value.head_dim), -number);
    }
    const StreamId home = cache.stream();
    if (Status s = device->copy(key_.data(), keys_.data(), keys_.size() * sizeof(float), home);
        !s) {
      return s;
    }
    return device->copy(value_.data(), values_.data(), values_.size() * sizeof(float), home);
  }

  /// Every byte of the pool; waits.
  std::vector<std::byte> pool() {
    std::vector<std::byte> bytes(pool_bytes());
    static_cast<void>(
        device->copy(bytes.data(), cache.arena().base(), bytes.size(), cache.stream()));
    static_cast<void>(cache.synchronize());
    return bytes;
  }
  /// The elements of one token in a block, of all layers, K then V, as bytes.
  std::vector<std::byte> token_bytes(const std::vector<std::byte>& pool, BlockId block,
                                     std::int64_t token) const {
    std::vector<std::byte> found;
    for (std::int32_t layer = 0; layer < kLayers; ++layer) {
      const KvLayerView kv = *cache.arena().layer_view(layer);
      for (const PlaneKind kind : {PlaneKind::key, PlaneKind::value}) {
        const PlaneView& plane = kind == PlaneKind::key ? kv.key : kv.value;
        const auto bytes = static_cast<std::int32_t>(bytes_of(plane.dtype));
        for (std::int32_t i = 0; i < plane.num_heads * plane.head_dim; ++i) {
          const std::int64_t at =
              (plane.base - cache.arena().base()) +
              element_offset(plane, bytes, block.value, i / plane.head_dim,
                             static_cast<std::int32_t>(token), i % plane.head_dim);
          found.insert(found.end(), pool.begin() + at, pool.begin() + at + bytes);
        }
      }
    }
    return found;
  }
  std::vector<BlockId> blocks_of(SequenceId id) const {
    std::vector<BlockId> blocks(static_cast<std::size_t>(cache.tables().info(id)->num_blocks));
    static_cast<void>(cache.tables().blocks_of(id, blocks));
    return blocks;
  }
  std::size_t pool_bytes() const { return static_cast<std::size_t>(cache.arena().bytes()); }
  const void* key() const { return key_.data(); }
  const void* value() const { return value_.data(); }

  std::unique_ptr<Device> device;
  KvCache cache;

 private:
  static constexpr std::size_t kInputFloats = kMaxTokens * kHeads * 128;

  DeviceBuffer key_;
  DeviceBuffer value_;
  std::vector<float> keys_;  // until the copies have run
  std::vector<float> values_;
};

inline bool is_zero(const std::vector<std::byte>& bytes) {
  for (const std::byte byte : bytes) {
    if (byte != std::byte{0}) return false;
  }
  return true;
}

}  // namespace kvarena::test
