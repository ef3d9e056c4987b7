#pragma once

/// @file
/// `ShadowEngine`: a small serving engine on a KvCache that knows what every output must be. It
/// keeps the seed of each token of each sequence, writes K and V that follow from the seeds,
/// poisons blocks with NaN as they are freed, and compares attention with contiguous attention
/// computed independently. Results of a step are looked at when the contract says they are there:
/// after begin_step `steps_in_flight` steps later, or after synchronize. On CUDA inputs and outputs
/// pass through buffers on the device, in the order of the steps; a step can be recorded
/// over these buffers and run as a graph.

#include "support/device_buffer.hpp"
#include "unit/cache/token_content.hpp"

#include "kvarena/cache/kv_cache.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace kvarena::test {

/// What an engine does besides the cache's own options.
struct EngineOptions {
  KvCacheOptions cache;
  DType io_dtype = DType::f32;  ///< of K, V and Q given, and of the outputs
  float soft_cap = 0.0F;
  float scale = 0.0F;
  bool has_sinks = false;            ///< attention sinks, of the same logits in all layers
  bool poison = true;                ///< fill freed blocks with NaN, on the cache's stream
  std::int32_t checked_outputs = 0;  ///< query tokens compared a step, all layers; 0: every one
  std::int64_t longest_tokens = 0;   ///< of a sequence, if known: comparisons then allocate nothing
  std::uint64_t seed = 1;
  std::vector<StreamId> streams{};  ///< of steps, in turn; empty: the cache's
  /// Bytes between neighbouring tokens of K and Q, half of those of V and the outputs. They hold
  /// NaN, which nobody may read or overwrite.
  std::int64_t padding_bytes = 0;
};

/// What comparisons have found.
struct Mismatches {
  std::int64_t compared = 0;  ///< numbers looked at
  std::int64_t wrong = 0;     ///< of those
  std::string first;          ///< the first one
};

/// One cache, its sequences and what they hold.
class ShadowEngine {
 public:
  using Seeds = std::vector<std::uint32_t>;

  /// The cache must be creatable: check `created()` first.
  ShadowEngine(Device& device, const EngineOptions& options);

  const Status& created() const noexcept { return created_; }
  KvCache& cache() noexcept { return *cache_; }
  const std::map<SequenceId, Seeds>& sequences() const noexcept { return sequences_; }

  // As KvCache; they also keep the shadow.
  SequenceId create_sequence();
  SequenceId fork(SequenceId parent, std::int64_t length);
  Status destroy(SequenceId sequence, Ticket ticket = kNoTicket);
  Status truncate(SequenceId sequence, std::int64_t length);

  /// One whole step. When append fails the step stays open: call it again with other demands.
  Status step(std::span<const AppendDemand> demands);
  /// Calls that a graph of this shape is to hold, between the caller's begin and end of capture.
  Status record(const RecordedStep& shape, const StepOptions& options = {});
  /// step() run by a graph: `launch` launches it on the cache's stream.
  Status replay(const RecordedStep& shape, std::span<const AppendDemand> demands,
                const std::function<Status()>& launch);
  /// synchronize, then compares what is left.
  Status finish();
  /// K and V of a sequence, read through its table, against the shadow. The cache's stream must be
  /// idle.
  void compare_bytes(SequenceId sequence);

  /// Everything compared so far.
  const Mismatches& mismatches() const noexcept { return mismatches_; }

 private:
  struct Layer {
    std::vector<std::byte> key, value, query, out, windowed_out;
    std::vector<float> lse, windowed_lse;
  };
  /// A layer's inputs and outputs where the device reads and writes them.
  struct LayerPointers {
    void *key, *value, *query, *out, *windowed_out;
    float *lse, *windowed_lse;
  };
  struct Row {
    SequenceId sequence;
    Seeds seeds;                   // of all tokens, the step's new ones included
    std::int64_t num_tokens = 0;   // new ones
    std::int64_t first_token = 0;  // index of the first in the step
  };
  /// A step's inputs and outputs.
  struct Record {
    bool is_pending = false;
    std::uint64_t step = 0;
    std::vector<Row> rows;
    std::vector<Layer> layers;
  };
  struct Output {
    const Layer* layer;
    std::int32_t layer_index;
    bool windowed;
  };

  std::size_t bytes(std::int64_t elements) const noexcept;
  /// Bytes from one token to the next.
  struct Strides {
    std::size_t key, value, query, out;
  };
  Strides strides() const noexcept;
  void check_padding(const std::vector<std::byte>& out, std::size_t index);
  Status poison(std::span<const BlockId> blocks);
  Status poison_tail(SequenceId sequence);
  Status poison_chunked_tail(const PlaneSpec& plane, std::byte* block, std::int64_t plane_bytes,
                             std::int64_t used);
  PlaneView view_of(const PlaneSpec& plane) const;
  std::int64_t offset_of(const PlaneView& view, const PlaneSpec& plane, std::int64_t token,
                         std::int64_t e) const;
  std::vector<BlockId> unshared_blocks(SequenceId sequence, std::int64_t first) const;
  void check_slots(const StepBatch& batch, std::span<const AppendDemand> demands);
  void grow(Record& record, std::span<const AppendDemand> demands);
  void resize(Record& record, std::int64_t tokens) const;
  void fill_inputs(Record& record, std::int32_t layer) const;
  Status create_buffers();
  Status create_sinks();
  LayerPointers pointers_of(Record& record, std::int32_t layer);
  Status upload(Record& record, std::int32_t layer);
  Status download(Record& record, std::int32_t layer);
  Status queue_calls(std::int32_t layer, const LayerPointers& at);
  Status begin_step();
  Status end_step(Record& record);
  std::span<const std::byte> read(const std::byte* device_bytes, std::size_t count);
  void compare(Record& record);
  void compare_token(const Row& row, std::int64_t token, const Output& output);
  /// Counts a number; `where()` names its place when it is wrong.
  template <class Where>
  void note(bool is_right, double got, double expected, const Where& where);

  Device& device_;
  EngineOptions options_;
  TokenContent inputs_;
  std::mt19937_64 random_;
  std::int64_t q_heads_, kv_heads_, dim_k_, dim_v_;
  Status created_;
  std::map<SequenceId, Seeds> sequences_;
  std::vector<Record> records_;          // steps_in_flight, used in turn
  std::vector<DeviceBuffer> buffers_;    // CUDA: of all layers
  std::vector<LayerPointers> pointers_;  // CUDA: into them, by layer
  std::vector<float> sinks_;             // logits, or none
  const float* sinks_there_ = nullptr;   // on the device, or null
  std::vector<KvCache> owner_;           // none or one; ends before the buffers that its work uses
  KvCache* cache_ = nullptr;
  std::uint64_t step_ = 0;
  bool in_step_ = false;
  Mismatches mismatches_;
  // comparison's own space
  std::vector<std::byte> keys_, values_, read_;
  std::vector<float> expected_;
};

template <class Where>
void ShadowEngine::note(bool is_right, double got, double expected, const Where& where) {
  ++mismatches_.compared;
  if (is_right || mismatches_.wrong++ > 0) return;
  mismatches_.first = "step " + std::to_string(step_) + ": " + std::string(where()) + ": got " +
                      std::to_string(got) + ", expected " + std::to_string(expected);
}

}  // namespace kvarena::test
