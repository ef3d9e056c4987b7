#pragma once

/// @file
/// The state of a KvCache, shared by its sources.

#include "cache/backend.hpp"
#include "cache/cache_options.hpp"
#include "cache/cache_plan.hpp"
#include "cache/cache_scrubs.hpp"
#include "cache/encoder_writes.hpp"
#include "cache/step_order.hpp"
#include "cache/step_tokens.hpp"
#include "cache/tokens_in_flight.hpp"
#include "cache/written_layers.hpp"
#include "kvarena/cache/kv_cache.hpp"
#include "step/step_ring.hpp"
#include "step/ticket_events.hpp"

#include <memory>
#include <optional>
#include <vector>

namespace kvarena {

/// A sequence whose states a step writes.
struct WrittenStates {
  SequenceId sequence;
  std::int64_t length_before = 0;
};

struct KvCache::Impl {
  static constexpr std::uint64_t kNoStep = UINT64_MAX;

  Impl(Device& its_device, const KvCacheOptions& its_options, Arena its_arena,
       BlockManager its_manager)
      : device(&its_device),
        options(its_options),
        arena(std::move(its_arena)),
        manager(std::move(its_manager)),
        serials(static_cast<std::size_t>(its_options.steps_in_flight)),
        kv_written(arena.num_layers()),
        index_written(arena.num_layers()) {
    options.name = manager.name();  // a copy that lives as long as the cache
    const GroupLayout* const groups = arena.groups();
    for (std::int32_t layer = 0; layer < arena.num_layers(); ++layer) {
      const bool has_own =
          groups == nullptr || (groups->has_layer(layer) && groups->owner_of(layer) == layer);
      kv_written.num_owners += has_own ? 1 : 0;
      index_written.num_owners += groups != nullptr && groups->has_index(layer) ? 1 : 0;
    }
  }
  ~Impl();

  Status create_parts(const CachePlan& plan);
  Status create_stream();
  Status create_backend(const BackendOptions& its);
  /// Makes work on `next` wait for all work on the last step's stream, if that is another one.
  Status order_behind_last(StreamId next);
  /// Waits for step n - k and retires the fences of that step and older ones.
  Status retire_ended();
  Status check_maximum(const SequenceOptions& sequence) const noexcept;
  SequenceOptions limited(SequenceOptions sequence) const noexcept;

  bool in_step() const noexcept {
    return phase != StepPhase::between && phase != StepPhase::recording;
  }
  /// Whether work that the step's append has begun is not ended.
  bool has_work() const noexcept {
    return phase == StepPhase::planned || phase == StepPhase::replaying;
  }
  Status check_phase(StepCall call, StepPhase expected) const noexcept {
    return phase == expected ? Status{} : out_of_order(call, phase, step);
  }
  Status check_layer(StepCall call, std::int32_t layer) const noexcept;
  /// Returns whether the layer's K and V are an encoder's.
  bool is_cross(std::int32_t layer) const noexcept;
  /// With groups: checks that the layer has K and V of its own that write_kv, or write_cross with
  /// `cross`, writes.
  Status check_writes(std::int32_t layer, bool cross) const noexcept;
  std::int32_t owner_of(std::int32_t layer) const noexcept {
    return arena.groups() == nullptr ? layer : arena.groups()->owner_of(layer);
  }
  /// Checks that the encoders of the step's sequences have K and V in a cross layer, whose owner is
  /// `owner`. With `is_written` the caller says so.
  Status check_encoders(std::int32_t layer, std::int32_t owner, bool is_written) noexcept;
  /// Checks whether the device took every ended step up to `last`; their work must have completed.
  /// When steps were lost, it continues without them and returns the error.
  Status check_taken(std::uint64_t last);
  /// Notes the tokens of the step, its rows with an encoder, and those whose states are lost if the
  /// device does not take it.
  void note_rows(std::span<const AppendDemand> demands, const AppendResult& appended);
  void note_tokens(std::span<const AppendDemand> demands, const AppendResult& appended) noexcept;
  /// Marks the states that steps `first` and later were to write as lost.
  void lose_states(std::uint64_t first) noexcept;
  Status take_back_append();
  void publish() noexcept;
  Status close_step();
  std::int64_t kept_after(const AppendDemand& demand, std::int32_t part) const noexcept;
  std::int64_t most_growth(std::int64_t rows) const noexcept;
  Status check_batch(std::span<const AppendDemand> demands);
  Status check_shape(const RecordedStep& shape) const noexcept;
  Result<StepBatch> grow(std::span<const AppendDemand> demands, Urgency urgency,
                         const RecordedStep* recorded);
  /// Keeps the figures of a batch for device_batch.
  void note_batch(const AppendResult& appended) noexcept;
  void note_batch(const RecordedStep& shape) noexcept;
  /// Whether anything depends on the work of steps being done: a prefix cache, or scrubs.
  bool watches_failures() const noexcept { return told || scrubs; }
  /// Then: looks whether work of a step has failed, whoever took the failure, and distrusts what
  /// the lost steps were to write. `num_marked` steps have a mark at their end.
  void notice_lost_steps(std::uint64_t num_marked) noexcept;
  /// The first step since the last look whose work has failed, or kNoStep.
  std::uint64_t find_lost_step(std::uint64_t num_marked) noexcept;
  /// Has the prefix cache forget all blocks, and distrust what steps `first` and later were to
  /// write. Scrubs of these steps are made again.
  void distrust(std::uint64_t first) noexcept;
  /// How many failures of the step's stream were taken so far.
  std::uint64_t failures_taken() const noexcept;
  // kv_cache_prefix.cpp
  void note_prefix(SequenceId sequence) noexcept;
  void note_sharing(SequenceId sequence) noexcept;
  void settle_tokens() noexcept;
  struct TokenRange {
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };
  Result<std::int64_t> retain_blocks(SequenceId sequence, TokenRange range, std::int64_t block_size,
                                     std::int32_t part, const RetentionHint& hint);
  std::size_t slot_index() const noexcept { return ring->index_of(step); }

  Device* device;
  KvCacheOptions options;
  Arena arena;
  BlockManager manager;
  std::optional<BlockTables> tables;  // refers to manager, which keeps its address
  std::optional<StepPublisher> publisher;
  StreamId home{};    // created or adopted, and given back at the end
  StreamId stream{};  // of the current step, or of the last one
  std::optional<StepRing> ring;
  std::optional<TicketEvents> fences;
  std::unique_ptr<Backend> backend;
  std::optional<CacheScrubs> scrubs;  // none: Scrub::never
  std::uint64_t step = 0;             // the current step, or the next one
  StepPhase phase = StepPhase::between;
  std::int64_t num_tokens = 0;  // of the current append or recording
  std::int32_t num_rows = 0;    // of the same, as are the next two
  std::int32_t max_length_tokens = 0;
  std::int32_t max_new_tokens = 0;
  std::int64_t longest_tokens = 0;  // of any sequence that the pool can hold
  std::int64_t failed_demand = -1;
  std::vector<std::uint64_t>
      serials;  // by ring slot, of the step staged there; 0: none to look for
  std::vector<std::vector<WrittenStates>>
      rows_of_steps;          // by ring slot; none: no step with states can be lost
  std::uint64_t batches = 0;  // number of appends and recordings begun
  WrittenLayers kv_written;
  WrittenLayers index_written;
  std::optional<EncoderWrites> encoders;  // none: there are no cross layers
  std::uint64_t num_steps_lost = 0;
  std::optional<StepTokens> told;           // none: there is no prefix cache
  std::optional<TokensInFlight> in_flight;  // the same
  std::uint64_t looked_at = 0;              // steps whose work has completed, or was found lost
  std::uint64_t failures_before = 0;        // that were taken of the stream before this batch
};

}  // namespace kvarena
