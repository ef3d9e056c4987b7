#pragma once

/// @file
/// `KvWriter`: moves jobs' token streams on and has K and V of a step's new tokens written, of all
/// layers or of some. Borrows the memory. One thread at a time.

#include "replay/job.hpp"
#include "replay/step_memory.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace kvarena::replay {

/// Some layers of a model, one after the other.
struct LayerRange {
  std::int32_t first = 0;
  std::int32_t count = 0;

  /// The layer past the last.
  std::int32_t end() const noexcept { return first + count; }
};

/// A job and the tokens by which it grew in this step.
struct StepRow {
  Job* job = nullptr;
  std::int32_t tokens = 0;
};

/// Writes the content of new tokens.
class KvWriter {
 public:
  /// `max_step_tokens`: the most new tokens in a step. `layers`: those that are written.
  KvWriter(StepMemory& memory, const UniformLayoutOptions& shape, std::int64_t max_step_tokens,
           LayerRange layers);

  /// After a successful append: moves each job's stream on by its new tokens and queues their K and
  /// V for its layers. Returns what StepMemory::begin and write return.
  Status write(std::span<const StepRow> rows);

  /// Bytes of K and V written so far.
  std::int64_t bytes_written() const noexcept { return bytes_written_; }

 private:
  std::int64_t decode_kv_bytes(std::span<const StepRow> rows) const noexcept;

  StepMemory& memory_;
  LayerRange layers_;
  std::int64_t token_bytes_;           // of K and V in those layers
  std::vector<std::uint64_t> hashes_;  // of the new tokens, row by row
  std::int64_t bytes_written_ = 0;
};

}  // namespace kvarena::replay
