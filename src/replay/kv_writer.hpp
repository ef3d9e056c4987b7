#pragma once

/// @file
/// `KvWriter`: makes K and V of a step's new tokens and hands them to the cache, layer by layer.
/// Owns a ring of staging memory that the cache's queued work reads; the cache must outlive it or
/// be synchronised first. One thread at a time.

#include "replay/job.hpp"

#include "kvarena/cache/kv_cache.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace kvarena::replay {

/// A job and the tokens by which it grew in this step.
struct StepRow {
  Job* job = nullptr;
  std::int32_t tokens = 0;
};

/// Writes the content of new tokens.
class KvWriter {
 public:
  /// `max_step_tokens`: the most new tokens in a step.
  KvWriter(KvCache& cache, const UniformLayoutOptions& shape, std::int64_t max_step_tokens);

  /// After a successful append: moves each job's stream on by its new tokens and queues their K and
  /// V for all layers. Returns what KvCache::write_kv and synchronize return.
  Status write(std::span<const StepRow> rows);

  /// Prefix hashes of the new tokens of the latest write, row by row.
  std::span<const std::uint64_t> hashes() const noexcept { return hashes_; }
  /// Bytes of K and V written so far.
  std::int64_t bytes_written() const noexcept { return bytes_written_; }

 private:
  Status write_layer(std::int32_t layer, std::span<std::byte> staging);

  KvCache& cache_;
  UniformLayoutOptions shape_;
  std::int64_t key_bytes_;  // of one token in one layer
  std::int64_t value_bytes_;
  std::int64_t slots_;  // layers of staging in the ring
  std::vector<std::byte> ring_;
  std::vector<std::uint64_t> hashes_;
  std::int64_t next_slot_ = 0;
  std::int64_t bytes_written_ = 0;
};

}  // namespace kvarena::replay
