#pragma once

/// @file
/// A small cache for tests of single calls: 1 layer, f32, 4 heads of 8, 8 blocks of 4 tokens.

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
  /// Aborts when either cannot be made.
  explicit SmallCache(const KvCacheOptions& options = small_options(),
                      HostStreams streams = HostStreams::manual)
      : device(HostDevice::create({.streams = streams}).value()),
        cache(KvCache::create(*device, options).value()) {}

  std::unique_ptr<HostDevice> device;
  KvCache cache;
  alignas(4) std::array<float, 32 * 32> buffer{};  ///< K, V, Q or out of a step

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
