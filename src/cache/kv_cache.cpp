#include "kvarena/cache/kv_cache.hpp"

#include "base/half.hpp"
#include "cache/cache_options.hpp"
#include "cache/host_backend.hpp"
#include "step/step_ring.hpp"
#include "step/ticket_events.hpp"

#include <cmath>
#include <limits>
#include <mutex>
#include <new>
#include <optional>
#include <utility>

namespace kvarena {
namespace {

constexpr std::int64_t kMaxTokens = std::numeric_limits<std::int32_t>::max();

/// K or V of new tokens: there, and aligned to its elements.
Status check_input(const void* input, DType dtype) noexcept {
  if (input == nullptr) return invalid_argument(Resource::pointer, 0, 1, 1);
  const auto element = static_cast<std::uintptr_t>(bytes_of(dtype));
  const auto past = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(input) % element);
  return check_range(Resource::alignment, past, 0, 0);
}

}  // namespace

struct KvCache::Impl {
  Impl(Device& its_device, const KvCacheOptions& its_options, Arena its_arena,
       BlockManager its_manager)
      : device(&its_device),
        options(its_options),
        arena(std::move(its_arena)),
        manager(std::move(its_manager)) {}

  Status create_parts();
  ~Impl() {
    if (stream != StreamId{}) static_cast<void>(device->synchronize(stream));
    if (fences) fences->wait_for_all();  // they read the arena
    backend.reset();
    fences.reset();
    ring.reset();
    if (stream != StreamId{}) static_cast<void>(device->destroy_stream(stream));
  }

  Status check_batch(std::span<const AppendDemand> demands);
  Status check_layer(std::int32_t layer) const {
    if (!in_step || !planned) return failed_precondition(Resource::event, step, 1, 0);
    return check_range(Resource::layer, layer, 0, arena.layout().num_layers() - 1);
  }
  std::size_t slot_index() const noexcept { return ring->index_of(step); }

  Device* device;
  KvCacheOptions options;
  Arena arena;
  BlockManager manager;
  std::optional<BlockTables> tables;  // refers to manager, which stays where it is
  StreamId stream{};
  std::optional<StepRing> ring;
  std::optional<TicketEvents> fences;
  std::optional<HostBackend> backend;
  std::uint64_t step = 0;  // the step at work, or the next one
  bool in_step = false;
  bool appended = false;  // in this step the tables have grown
  bool planned = false;   // and the device knows it
  std::int64_t failed_demand = -1;
  mutable std::mutex snapshot_mutex;
  CacheSnapshot published;
};

Status KvCache::Impl::create_parts() {
  Result<BlockTables> its_tables =
      BlockTables::create(manager, {.block_size_tokens = options.layout.block_size_tokens,
                                    .max_sequences = options.max_sequences,
                                    .max_append_tokens = options.max_step_tokens});
  if (!its_tables) return its_tables.status();
  tables.emplace(std::move(*its_tables));
  const Result<StreamId> its_stream = device->create_stream();
  if (!its_stream) return its_stream.status();
  stream = *its_stream;
  const StepLimits limits{.steps_in_flight = options.steps_in_flight,
                          .max_rows = options.max_batch_rows,
                          .max_tokens = options.max_step_tokens,
                          .max_blocks = options.max_batch_blocks};
  Result<StepRing> its_ring = StepRing::create(*device, limits);
  if (!its_ring) return its_ring.status();
  ring.emplace(std::move(*its_ring));
  Result<TicketEvents> its_fences = TicketEvents::create(*device, options.max_open_tickets);
  if (!its_fences) return its_fences.status();
  fences.emplace(std::move(*its_fences));
  Result<HostBackend> its_backend = HostBackend::create(*device, arena,
                                                        {.num_q_heads = options.num_q_heads,
                                                         .window_tokens = options.window_tokens,
                                                         .num_threads = options.num_threads,
                                                         .limits = limits});
  if (!its_backend) return its_backend.status();
  backend.emplace(std::move(*its_backend));
  published.blocks = manager.stats();
  published.tables = tables->stats();
  return {};
}

Result<KvCache> KvCache::create(Device& device, const KvCacheOptions& given) {
  if (device.kind() != DeviceKind::host) return unsupported(Resource::device_memory);
  KvCacheOptions options = given;
  const Result<KvLayout> layout = KvLayout::create(options.layout);
  if (!layout) return layout.status();
  if (Status status = complete(options); !status) return status;
  Result<Arena> arena =
      Arena::create(device, *layout, {.size = options.size, .order = options.order});
  if (!arena) return arena.status();
  if (options.max_batch_blocks == 0) options.max_batch_blocks = 4 * arena->num_blocks();
  if (Status s = check_range(Resource::table_page, options.max_batch_blocks, 1, kMaxTokens * 4);
      !s) {
    return s;
  }
  Result<BlockManager> manager = BlockManager::create({.num_blocks = arena->num_blocks(),
                                                       .watermark_blocks = options.watermark_blocks,
                                                       .max_holders = options.max_sequences,
                                                       .max_open_tickets = options.max_open_tickets,
                                                       .log = options.log});
  if (!manager) return manager.status();
  try {
    auto impl = std::make_unique<Impl>(device, options, std::move(*arena), std::move(*manager));
    if (Status status = impl->create_parts(); !status) return status;
    return KvCache(std::move(impl));
  } catch (const std::bad_alloc&) {
    return exhausted(Resource::host_memory, sizeof(Impl), 0);
  }
}

KvCache::KvCache(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
KvCache::~KvCache() = default;
KvCache::KvCache(KvCache&&) noexcept = default;
KvCache& KvCache::operator=(KvCache&&) noexcept = default;

// ---- sequences
// -----------------------------------------------------------------------------------

Result<SequenceId> KvCache::create_sequence(const SequenceOptions& options) {
  return impl_->tables->create_sequence(options);
}
Result<SequenceId> KvCache::fork(SequenceId parent, std::int64_t length,
                                 const SequenceOptions& options) {
  return impl_->tables->fork(parent, length, options);
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
Status KvCache::reserve_capacity(SequenceId sequence, std::int64_t capacity) {
  return impl_->tables->reserve_capacity(sequence, capacity);
}
Status KvCache::promise_capacity(SequenceId sequence, std::int64_t capacity) {
  return impl_->tables->promise_capacity(sequence, capacity);
}

// ---- a step
// --------------------------------------------------------------------------------------

Status KvCache::begin_step() {
  Impl& c = *impl_;
  if (c.in_step) return failed_precondition(Resource::event, c.step, 0, 1);
  if (Status status = c.ring->wait(c.slot_index()); !status) return status;
  const auto k = static_cast<std::uint64_t>(c.options.steps_in_flight);
  if (c.step >= k) {
    if (Status status = c.fences->retire_through(c.manager, c.step - k); !status) return status;
  }
  if (c.options.eager_retire) {
    if (Status status = c.fences->retire_completed(c.manager); !status) return status;
  }
  c.in_step = true;
  c.appended = c.planned = false;
  return {};
}

Status KvCache::Impl::check_batch(std::span<const AppendDemand> demands) {
  const auto num_rows = static_cast<std::int64_t>(demands.size());
  if (Status s = check_range(Resource::num_sequences, num_rows, 0, options.max_batch_rows); !s)
    return s;
  std::int64_t blocks = 0;
  const std::int64_t block_size = options.layout.block_size_tokens;
  for (std::size_t i = 0; i < demands.size(); ++i) {
    const AppendDemand& demand = demands[i];
    const Result<SequenceInfo> info = tables->info(demand.sequence);
    if (!info || demand.num_tokens < 0) continue;  // the tables name it
    blocks += (info->length_tokens + demand.num_tokens + block_size - 1) / block_size;
    if (blocks <= options.max_batch_blocks) continue;
    failed_demand = static_cast<std::int64_t>(i);
    return exhausted(Resource::workspace, static_cast<std::uint64_t>(blocks),
                     static_cast<std::uint64_t>(options.max_batch_blocks), demand.sequence.value);
  }
  return {};
}

Result<StepBatch> KvCache::append(std::span<const AppendDemand> demands, Urgency urgency) {
  Impl& c = *impl_;
  c.failed_demand = -1;
  if (!c.in_step || c.appended) return failed_precondition(Resource::event, c.step, 1, 0);
  if (Status status = c.check_batch(demands); !status) return status;
  const Result<AppendResult> appended = c.tables->append(demands, urgency);
  if (!appended) {
    c.failed_demand = c.tables->failed_demand();
    return appended.status();
  }
  c.appended = true;
  StepSlot& slot = c.ring->slot(c.slot_index());
  if (Status status = capture_step(slot, *c.tables, demands, *appended); !status) return status;
  if (Status status = c.backend->begin(c.slot_index(), slot, c.stream); !status) return status;
  c.planned = true;
  return StepBatch{.slots = std::span(slot.slots.data(), static_cast<std::size_t>(slot.num_tokens)),
                   .num_tokens = slot.num_tokens,
                   .num_copies = static_cast<std::int64_t>(slot.num_copies),
                   .new_blocks = appended->new_blocks};
}

std::int64_t KvCache::failed_demand() const noexcept { return impl_->failed_demand; }

Status KvCache::write_kv(const WriteKvArgs& args) {
  Impl& c = *impl_;
  if (Status status = c.check_layer(args.layer); !status) return status;
  if (!is_cpu_float(args.dtype)) {
    return unsupported(Resource::dtype, static_cast<std::uint64_t>(args.dtype));
  }
  const StepSlot& slot = c.ring->slot(c.slot_index());
  for (const void* input : {args.key, args.value}) {
    if (slot.num_tokens == 0) break;
    if (Status status = check_input(input, args.dtype); !status) return status;
  }
  const Result<KvLayerView> view = c.arena.layer_view(args.layer);
  if (!view) return view.status();
  return c.backend->write_kv(c.slot_index(),
                             {.kv = *view,
                              .key = args.key,
                              .value = args.value,
                              .dtype = args.dtype,
                              .slots = slot.slots.data(),
                              .num_tokens = slot.num_tokens},
                             c.stream);
}

Status KvCache::attend(const AttendArgs& args) {
  Impl& c = *impl_;
  if (Status status = c.check_layer(args.layer); !status) return status;
  if (args.windowed && c.options.window_tokens == 0) {
    return invalid_argument(Resource::window, 0, 1, kMaxTokens);
  }
  const Result<KvLayerView> view = c.arena.layer_view(args.layer);
  if (!view) return view.status();
  const StepSlot& slot = c.ring->slot(c.slot_index());
  const float default_scale = 1.0F / std::sqrt(static_cast<float>(view->key.head_dim));
  return c.backend->attend(c.slot_index(),
                           {.kv = *view,
                            .batch = slot.batch(),
                            .q_offsets = slot.q_offsets.data(),
                            .q = args.q,
                            .q_dtype = args.q_dtype,
                            .out = args.out,
                            .out_dtype = args.out_dtype,
                            .lse = args.lse,
                            .num_q_heads = c.options.num_q_heads,
                            .scale = args.scale == 0.0F ? default_scale : args.scale,
                            .window_tokens = args.windowed ? c.options.window_tokens : 0,
                            .soft_cap = args.soft_cap},
                           c.stream);
}

Status KvCache::end_step() {
  Impl& c = *impl_;
  if (!c.in_step) return failed_precondition(Resource::event, c.step, 1, 0);
  if (Status status = c.ring->mark(c.slot_index(), c.stream); !status) return status;
  c.in_step = false;
  ++c.step;
  const std::lock_guard lock(c.snapshot_mutex);
  c.published = {c.step, c.manager.stats(), c.tables->stats()};
  return {};
}

Status KvCache::synchronize() { return impl_->device->synchronize(impl_->stream); }

// ---- other streams, questions
// --------------------------------------------------------------------

Result<Ticket> KvCache::fence(StreamId other) {
  return impl_->fences->fence(impl_->manager, other, impl_->step);
}

StreamId KvCache::home_stream() const noexcept { return impl_->stream; }
const Arena& KvCache::arena() const noexcept { return impl_->arena; }
const BlockManager& KvCache::manager() const noexcept { return impl_->manager; }
const BlockTables& KvCache::tables() const noexcept { return *impl_->tables; }

CacheSnapshot KvCache::snapshot() const {
  const std::lock_guard lock(impl_->snapshot_mutex);
  return impl_->published;
}

std::string KvCache::describe(const Status& status) const {
  if (status.code == StatusCode::exhausted && status.resource == Resource::block) {
    return to_string(impl_->manager.explain(static_cast<std::int64_t>(status.required)));
  }
  if (status.code == StatusCode::insufficient_vram) return impl_->device->describe(status);
  if (status.code == StatusCode::invalid_argument || status.code == StatusCode::unsupported) {
    return describe_attention(status);  // knows the sentence of its own, describes others plainly
  }
  return kvarena::describe(status);
}

Status KvCache::check_invariants() const {
  if (Status status = impl_->manager.check_invariants(); !status) return status;
  return impl_->tables->check_invariants();
}

}  // namespace kvarena
