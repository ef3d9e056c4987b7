#include "kvarena/cache/kv_cache.hpp"

#include "allocator/own_pages.hpp"
#include "base/log_internal.hpp"
#include "base/out_of_memory.hpp"
#include "base/range_checks.hpp"
#include "cache/cache_plan.hpp"
#include "cache/cuda_backend.hpp"
#include "cache/group_backend.hpp"
#include "cache/host_backend.hpp"
#include "cache/kv_cache_impl.hpp"
#include "device/free_bytes.hpp"
#include "kvarena/attention/attention.hpp"
#include "kvarena/device/cuda_device.hpp"

#include <algorithm>
#include <new>
#include <utility>

namespace kvarena {

/// All work that reads the arena must end before the arena is freed.
KvCache::Impl::~Impl() {
  // Each stream that a step used has waited for the one before.
  if (stream != StreamId{}) static_cast<void>(device->synchronize(stream));
  const std::size_t left = fences ? fences->wait_for_all() : 0;  // the work of open tickets reads
                                                                 // the arena
  if (left != 0) {
    log_line(
        LogLevel::warning,
        "a cache{} is freed while {} open tickets without a stream have not been retired: their "
        "work may still use its memory",
        OfObject{options.name}, left);
  }
  backend.reset();
  fences.reset();
  ring.reset();
  if (home != StreamId{}) static_cast<void>(device->destroy_stream(home));
}

/// Creates the home stream, or adopts the caller's.
Status KvCache::Impl::create_stream() {
  auto* cuda = dynamic_cast<CudaDevice*>(device);
  const Result<StreamId> created = options.home_stream == nullptr || cuda == nullptr
                                       ? device->create_stream()
                                       : cuda->adopt_stream(options.home_stream);
  if (!created) return created.status();
  home = stream = *created;
  return {};
}

Status KvCache::Impl::create_backend(const BackendOptions& its) {
  const bool has_groups = arena.groups() != nullptr;
  const bool is_host = device->kind() == DeviceKind::host;
  const auto create = has_groups ? (is_host ? GroupBackend::create : create_cuda_group_backend)
                                 : (is_host ? HostBackend::create : create_cuda_backend);
  Result<std::unique_ptr<Backend>> created = create(*device, arena, stream, its);
  if (!created) return created.status();
  backend = std::move(*created);
  return {};
}

/// Creates everything except the arena and the block manager.
Status KvCache::Impl::create_parts(const CachePlan& plan) {
  Result<BlockTables> its_tables = BlockTables::create(manager, block_tables_options(plan));
  if (!its_tables) return its_tables.status();
  tables.emplace(std::move(*its_tables));
  longest_tokens =
      plan.groups ? plan.backend.max_sequence_tokens
                  : std::int64_t{plan.backend.max_sequence_blocks} * arena.layout().block_size();
  if (options.max_sequence_tokens != 0) {
    longest_tokens = std::min(longest_tokens, options.max_sequence_tokens);
  }
  if (Status status = create_stream(); !status) return status;
  Result<StepRing> its_ring = StepRing::create(*device, options.steps_in_flight);
  if (!its_ring) return its_ring.status();
  ring.emplace(std::move(*its_ring));
  Result<TicketEvents> its_fences = TicketEvents::create(*device, options.max_open_tickets);
  if (!its_fences) return its_fences.status();
  fences.emplace(std::move(*its_fences));
  if (Status status = create_backend(plan.backend); !status) return status;
  if (device->kind() == DeviceKind::cuda && arena.groups() && !arena.groups()->states().empty()) {
    rows_of_steps.resize(serials.size());
    for (auto& rows : rows_of_steps) rows.reserve(static_cast<std::size_t>(options.max_batch_rows));
  }
  if (plan.groups && EncoderWrites::are_needed(*arena.groups())) {
    encoders.emplace(*arena.groups(), options.max_sequences, options.max_batch_rows);
  }
  if (plan.backend.scrubs && plan.groups) {
    scrubs.emplace(options.scrub, *plan.groups, OwnPages::pages(manager), options.max_sequences,
                   plan.backend.limits);
  } else if (plan.backend.scrubs) {
    scrubs.emplace(options.scrub, arena.num_blocks(), options.layout.block_size_tokens,
                   plan.backend.limits);
  }
  if (options.prefix_cache.is_on) {
    told.emplace(options.max_batch_rows, options.layout.block_size_tokens);
    in_flight.emplace(options.max_sequences, options.steps_in_flight);
    if (scrubs && options.prefix_cache.duplicates == DuplicateRule::share) {
      scrubs->note_foreign_tails();
    }
  }
  Result<StepPublisher> its_publisher = StepPublisher::create(
      manager, *tables, {.audit_blocks = options.audit_blocks_per_step, .clock = options.clock});
  if (!its_publisher) return its_publisher.status();
  publisher.emplace(std::move(*its_publisher));
  return {};
}

/// Everything is planned before the first allocation; the same plan gives cache_footprint.
Result<KvCache> KvCache::create(Device& device, const KvCacheOptions& given) try {
  const Result<CacheTarget> target = target_of(device);
  if (!target) return target.status();
  if (device.kind() == DeviceKind::cuda) {
    const Status status = given.groups.empty() ? load_cuda_backend(device, given.layout)
                                               : load_cuda_backend(device, given.groups);
    if (!status) return status;
  }
  const Result<std::int64_t> free_bytes = free_bytes_of(device);
  if (!free_bytes) return free_bytes.status();
  const Result<CachePlan> plan = plan_cache(given, *target, *free_bytes);
  if (!plan) return plan.status();
  KvCacheOptions options = plan->options;
  options.max_batch_blocks = plan->backend.limits.max_blocks;
  options.groups = {};  // they were borrowed; the arena has what is needed
  std::string description = "kv arena";
  if (!options.name.empty()) (description += " of ") += options.name;
  const ArenaOptions its{.size = {.num_blocks = plan->pool.num_blocks},
                         .order = options.order,
                         .description = description};
  Result<Arena> arena = plan->groups ? Arena::create(device, plan->groups->layout, its)
                                     : Arena::create(device, plan->layout, its);
  if (!arena) return arena.status();
  Result<BlockManager> manager = BlockManager::create(manager_options(*plan));
  if (!manager) return manager.status();
  auto impl = std::make_unique<Impl>(device, options, std::move(*arena), std::move(*manager));
  if (Status status = impl->create_parts(*plan); !status) return status;
  return KvCache(std::move(impl));
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

KvCache::KvCache(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
KvCache::~KvCache() = default;
KvCache::KvCache(KvCache&&) noexcept = default;
KvCache& KvCache::operator=(KvCache&&) noexcept = default;

// ---- sequences ---------------------------------------------------------------------------------

/// Checks a sequence's maximum length against the cache's.
Status KvCache::Impl::check_maximum(const SequenceOptions& sequence) const noexcept {
  if (options.max_sequence_tokens == 0) return {};  // the tables check the rest
  return check_option(Option::max_length_tokens, sequence.max_length_tokens, 0,
                      options.max_sequence_tokens);
}

/// Returns the options of a sequence, with the cache's maximum length when it has none.
SequenceOptions KvCache::Impl::limited(SequenceOptions sequence) const noexcept {
  if (sequence.max_length_tokens == 0) sequence.max_length_tokens = options.max_sequence_tokens;
  return sequence;
}

Result<SequenceId> KvCache::create_sequence(const SequenceOptions& options) {
  if (Status status = impl_->check_maximum(options); !status) return status;
  if (!options.tokens.empty()) impl_->notice_lost_steps(impl_->step);
  const Result<SequenceId> id = impl_->tables->create_sequence(impl_->limited(options));
  if (id && !options.tokens.empty()) impl_->note_prefix(*id);
  if (id && impl_->encoders) impl_->encoders->begin(*id, options.cross_tokens);
  return id;
}
Result<SequenceId> KvCache::fork(SequenceId parent, std::int64_t length,
                                 const SequenceOptions& options) {
  if (Status status = impl_->check_maximum(options); !status) return status;
  const Result<SequenceId> child = impl_->tables->fork(parent, length, impl_->limited(options));
  if (child && impl_->in_flight) impl_->in_flight->note_fork(parent, *child);
  if (child && impl_->encoders) impl_->encoders->inherit(parent, *child);
  if (child && impl_->scrubs) impl_->scrubs->note_fork(*impl_->tables, parent, *child);
  return child;
}
Result<SequenceId> KvCache::create_sequence_from(std::int64_t length,
                                                 std::span<const GroupBlocks> groups,
                                                 const SequenceOptions& options) {
  if (Status status = impl_->check_maximum(options); !status) return status;
  const Result<SequenceId> id =
      impl_->tables->create_sequence_from(length, groups, impl_->limited(options));
  if (id && impl_->scrubs) impl_->scrubs->note_foreign_tails();
  if (!id || !impl_->encoders) return id;
  impl_->encoders->begin(*id, options.cross_tokens);
  for (std::size_t group = 0; group < groups.size(); ++group) {
    if (groups[group].ids.empty()) continue;
    impl_->encoders->assume_part(*id, static_cast<std::int32_t>(group));
  }
  return id;
}
Status KvCache::destroy(SequenceId sequence, Ticket ticket) {
  return impl_->tables->destroy(sequence, ticket);
}
Status KvCache::destroy_many(std::span<const SequenceId> sequences, Ticket ticket) {
  return impl_->tables->destroy_many(sequences, ticket);
}
Status KvCache::truncate(SequenceId sequence, std::int64_t length, Ticket ticket) {
  return impl_->tables->truncate(sequence, length, ticket);
}
Status KvCache::checkpoint(SequenceId sequence) { return impl_->tables->checkpoint(sequence); }
Status KvCache::reserve_capacity(SequenceId sequence, std::int64_t capacity, Urgency urgency) {
  return impl_->tables->reserve_capacity(sequence, capacity, urgency);
}
Status KvCache::promise_capacity(SequenceId sequence, std::int64_t capacity) {
  return impl_->tables->promise_capacity(sequence, capacity);
}

// ---- other streams, questions ------------------------------------------------------------------

Result<Ticket> KvCache::fence(StreamId other) {
  return impl_->fences->fence(impl_->manager, other, impl_->step);
}
Result<Ticket> KvCache::open_ticket(StreamId other) {
  return impl_->fences->open(impl_->manager, other);
}
Result<Ticket> KvCache::open_ticket() { return impl_->fences->open(impl_->manager); }
Status KvCache::retire(Ticket ticket) { return impl_->fences->retire(impl_->manager, ticket); }

StreamId KvCache::stream() const noexcept { return impl_->backend->stream(); }
Device& KvCache::device() const noexcept { return *impl_->device; }
const char* KvCache::name() const noexcept { return impl_->manager.name(); }
const Arena& KvCache::arena() const noexcept { return impl_->arena; }
const BlockManager& KvCache::manager() const noexcept { return impl_->manager; }
const BlockTables& KvCache::tables() const noexcept { return *impl_->tables; }

PoolSnapshot KvCache::snapshot() const noexcept { return impl_->publisher->snapshot(); }
StepPublisher& KvCache::publisher() noexcept { return *impl_->publisher; }
const StepPublisher& KvCache::publisher() const noexcept { return *impl_->publisher; }

std::string KvCache::describe(const Status& status) const noexcept try {
  const auto is = [&status](StatusCode code, Resource resource) {
    return status.code == code && status.resource == resource;
  };
  if (is(StatusCode::exhausted, Resource::block) || is(StatusCode::exhausted, Resource::page) ||
      is(StatusCode::exhausted, Resource::reservation)) {
    return to_string(impl_->tables->explain(status));
  }
  if (is(StatusCode::failed_precondition, Resource::sequence)) {
    return status.option == Option::salt ? describe_account(status) : describe_import(status);
  }
  if (is(StatusCode::failed_precondition, Resource::step)) return describe_order(status);
  if (is(StatusCode::failed_precondition, Resource::layer)) return describe_unwritten(status);
  if (is(StatusCode::invalid_argument, Resource::layer) && status.native != 0) {
    return describe_layer(status);
  }
  if (is(StatusCode::failed_precondition, Resource::ticket)) return describe_ticket(status);
  if (is(StatusCode::device_error, Resource::step)) return describe_loss(status);
  if (status.code == StatusCode::insufficient_vram ||
      status.code == StatusCode::residency_violated) {
    return impl_->device->describe(status);
  }
  if (status.code == StatusCode::invalid_argument || status.code == StatusCode::unsupported) {
    return describe_attention(status);  // it has sentences for its own statuses and passes others
                                        // to describe
  }
  return kvarena::describe(status);
} catch (const std::bad_alloc&) {
  return out_of_memory_text();
}

Status KvCache::check_invariants() const {
  if (Status status = impl_->manager.check_invariants(); !status) return status;
  return impl_->tables->check_invariants();
}

}  // namespace kvarena
