#pragma once

/// @file
/// `run_pure_cache`: replays the block ids of a trace's prompts through a prefix cache and nothing
/// else: no engine, no clock, no bytes. Requests come one at a time, in the order of the trace. For
/// each, the cache counts the leading ids that it has. Then each id of the request is used or
/// inserted, one by one, and each id past the capacity evicts a block. Nothing is pinned, and
/// outputs are not cached. Deterministic. Prints nothing.

#include "allocator/eviction_order.hpp"
#include "replay/instruments.hpp"
#include "trace/trace_reader.hpp"
#include "verify/failure.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace kvarena::replay {

/// The ids that a cache of bounded size has. Memory is O(ids in it), and never more than the
/// capacity needs. One thread at a time.
class PureCache {
 public:
  /// Makes an empty cache. Requires 1 <= capacity_blocks <= KvLayout::kMaxBlocks. Throws
  /// std::bad_alloc, as touch does.
  PureCache(EvictionPolicy policy, std::int64_t capacity_blocks);

  /// Returns how many leading ids are in the cache, under this salt. O(that number).
  std::int64_t match(std::span<const std::int64_t> ids, std::uint64_t salt = 0) const;
  /// Uses or inserts each id, in the policy's direction. O(ids).
  void touch(std::span<const std::int64_t> ids, std::uint64_t salt = 0);

  /// Returns the number of ids in the cache.
  std::int64_t size() const noexcept { return order_.size(); }
  std::int64_t evictions() const noexcept { return evictions_; }

 private:
  /// An id under a salt.
  struct Key {
    std::int64_t id;
    std::uint64_t salt;
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const noexcept {
      return std::hash<std::uint64_t>{}(static_cast<std::uint64_t>(key.id) +
                                        key.salt * 0x9e3779b97f4a7c15U);
    }
  };
  void touch(const Key& key);

  std::int64_t capacity_;
  std::int64_t evictions_ = 0;
  EvictionOrder order_;
  std::unordered_map<Key, BlockId, KeyHash> blocks_;
  std::vector<Key> keys_;  // [size], the key that each block has
};

struct PureCacheOptions {
  trace::TraceReaderOptions trace;
  std::int64_t max_requests = 0;     ///< the first of the trace; 0: all
  std::int64_t capacity_blocks = 0;  ///< 1 .. KvLayout::kMaxBlocks
  EvictionPolicy policy = EvictionPolicy::tail_first;
};

struct PureCacheReport {
  std::string trace_format;
  std::int64_t block_tokens = 0;  ///< tokens of a block of the trace
  std::int64_t requests = 0;
  std::int64_t requests_with_hit = 0;  ///< of at least one block
  std::int64_t salts = 0;              ///< different ones; 0 without a salt column
  std::int64_t input_tokens = 0;       ///< of all prompts
  std::int64_t block_refs = 0;         ///< ids of all prompts
  std::int64_t hit_blocks = 0;         ///< leading ids that were in the cache
  std::int64_t hit_tokens = 0;         ///< in these blocks; a last block may be partial
  std::int64_t evictions = 0;
  std::int64_t cached_blocks = 0;  ///< at the end

  /// Returns hit blocks / block references, 0 .. 1; 0 without references.
  double block_hit_rate() const noexcept;
  /// Returns hit tokens / input tokens, 0 .. 1.
  double token_hit_rate() const noexcept;
};

struct PureCacheOutcome {
  verify::RunEnd end = verify::RunEnd::completed;
  Finding why;              ///< empty when completed
  PureCacheReport report;   ///< of what was done
  bool has_report = false;  ///< completed or interrupted
};

/// Reads the trace once, in memory that is O(capacity) and no more than the trace needs. A trace
/// without ids and one that cannot be read are bad_input. Want of memory is does_not_fit. `sink`
/// may be null.
PureCacheOutcome run_pure_cache(const PureCacheOptions& options, ProgressSink* sink = nullptr);

}  // namespace kvarena::replay
