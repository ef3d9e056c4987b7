#pragma once

/// @file
/// What KvCache is made of; shared by its sources.

#include "cache/backend.hpp"
#include "cache/cache_options.hpp"
#include "kvarena/cache/kv_cache.hpp"
#include "step/step_ring.hpp"
#include "step/ticket_events.hpp"

#include <memory>
#include <optional>

namespace kvarena {

struct KvCache::Impl {
  /// What the calls of a step are waiting for.
  enum class Phase : std::uint8_t {
    between,    ///< steps
    begun,      ///< an append
    grown,      ///< nothing: the append succeeded, the device did not take its work
    planned,    ///< write_kv, attend
    replaying,  ///< the end: a graph has the layers
    recording,  ///< write_kv, attend, end_recording; no step
  };

  Impl(Device& its_device, const KvCacheOptions& its_options, Arena its_arena,
       BlockManager its_manager)
      : device(&its_device),
        options(its_options),
        arena(std::move(its_arena)),
        manager(std::move(its_manager)) {}
  ~Impl();

  Status create_parts(const BackendOptions& its_backend);
  Status create_stream();
  Status create_backend(const BackendOptions& its);
  /// Waits for step n - k and retires the fences of that step and older ones.
  Status retire_ended();
  Status check_maximum(const SequenceOptions& sequence) const noexcept;
  SequenceOptions limited(SequenceOptions sequence) const noexcept;

  bool in_step() const noexcept { return phase != Phase::between && phase != Phase::recording; }
  Status check_phase(Phase expected) const noexcept;
  Status check_layer(std::int32_t layer) const noexcept;
  Status check_batch_blocks(std::span<const AppendDemand> demands);
  Status check_shape(const RecordedStep& shape) const noexcept;
  Result<StepBatch> grow(std::span<const AppendDemand> demands, Urgency urgency,
                         const RecordedStep* recorded);
  std::size_t slot_index() const noexcept { return ring->index_of(step); }

  Device* device;
  KvCacheOptions options;
  Arena arena;
  BlockManager manager;
  std::optional<BlockTables> tables;  // refers to manager, which stays where it is
  std::optional<StepPublisher> publisher;
  StreamId stream{};
  std::optional<StepRing> ring;
  std::optional<TicketEvents> fences;
  std::unique_ptr<Backend> backend;
  std::uint64_t step = 0;  // the step at work, or the next one
  Phase phase = Phase::between;
  std::int64_t num_tokens = 0;  // of the append or the recording
  std::int64_t failed_demand = -1;
};

}  // namespace kvarena
