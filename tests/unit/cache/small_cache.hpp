#pragma once

/// @file
/// A small cache for tests of single calls: 1 layer, f32, 4 heads of 8, 8 blocks of 4 tokens. On
/// the host (streams run when somebody waits, unless told otherwise) or on another kind of device.

#include "support/device_buffer.hpp"
#include "support/devices.hpp"
#include "support/pool_snapshot.hpp"

#include "kvarena/cache/kv_cache.hpp"
#include "kvarena/device/host_device.hpp"

#include <array>
#include <memory>
#include <utility>
#include <vector>

namespace kvarena::test {

inline constexpr std::int64_t kSmallBlocks = 8;     ///< in the pool
inline constexpr std::int32_t kSmallBlockSize = 4;  ///< tokens a block

/// Options of the small cache.
inline KvCacheOptions small_options() {
  return {.layout = {.num_layers = 1,
                     .num_kv_heads = 4,
                     .head_dim_k = 8,
                     .dtype = DType::f32,
                     .block_size_tokens = kSmallBlockSize},
          .size = {.num_blocks = kSmallBlocks},
          .num_q_heads = 4,
          .max_sequences = 4,
          .max_step_tokens = 32,
          .max_open_tickets = 3,
          .num_threads = 1};
}

/// A device, and a cache on it.
struct SmallCache {
  static constexpr std::size_t kBufferFloats = 32 * 32;

  /// Aborts when any of it cannot be made.
  SmallCache(std::unique_ptr<Device> its_device, const KvCacheOptions& options)
      : device(std::move(its_device)),
        memory(DeviceBuffer::create(*device, kBufferFloats * sizeof(float)).value()),
        cache(KvCache::create(*device, options).value()) {
    static_cast<void>(device->fill(buffer(), 0, sizeof content, cache.stream()));
  }
  explicit SmallCache(DeviceKind kind, const KvCacheOptions& options = small_options())
      : SmallCache(make_device(kind, {.streams = HostStreams::manual}), options) {}
  explicit SmallCache(const KvCacheOptions& options = small_options(),
                      HostStreams streams = HostStreams::manual)
      : SmallCache(make_device(DeviceKind::host, {.streams = streams}), options) {}

  /// Of tests that run streams by hand.
  HostDevice& host() { return dynamic_cast<HostDevice&>(*device); }
  /// K, V, Q or out of a step, on the device.
  float* buffer() const { return static_cast<float*>(memory.data()); }
  /// Queues filling the buffer.
  Status fill(float value) {
    content.fill(value);
    return device->copy(buffer(), content.data(), sizeof content, cache.stream());
  }

  std::unique_ptr<Device> device;
  DeviceBuffer memory;
  std::array<float, kBufferFloats> content{};
  KvCache cache;

  /// A sequence of `tokens` tokens, grown in a step of its own.
  SequenceId sequence_of(std::int32_t tokens) {
    const SequenceId id = cache.create_sequence().value();
    step({{id, tokens}});
    return id;
  }
  /// A step that grows these and does nothing else; whether it could.
  bool step(const std::vector<AppendDemand>& demands) {
    const bool begun = cache.begin_step().is_ok();
    const bool grown = cache.append(demands).is_ok();
    return cache.end_step().is_ok() && begun && grown;
  }
  /// Empty steps.
  void steps(int count) {
    for (int i = 0; i < count; ++i) step({});
  }
  /// Everything a refused call must leave alone.
  auto state() const {
    const TableStats t = cache.tables().stats();
    const std::array<std::int64_t, 5> tables{t.sequences, t.tokens, t.entries, t.waste_tokens,
                                             t.pages_used};
    return std::pair(snapshot_of(cache.manager()), tables);
  }
};

}  // namespace kvarena::test
