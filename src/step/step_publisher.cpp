#include "kvarena/step/step_publisher.hpp"

#include "base/id_space.hpp"
#include "base/lazy_array.hpp"
#include "base/log_internal.hpp"
#include "step/published_value.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <limits>
#include <mutex>
#include <new>
#include <span>
#include <utility>

namespace kvarena {
namespace {

static_assert(offsetof(PoolSnapshot, groups) + sizeof(PoolSnapshot::groups) ==
              sizeof(PoolSnapshot));

constexpr std::int64_t kNoStep = std::numeric_limits<std::int64_t>::min();

}  // namespace

/// The writer's state, and the values that it shares with readers.
struct StepPublisher::Impl {
  Impl(const BlockManager& its_manager, const BlockTables& its_tables,
       const StepPublisherOptions& options)
      : manager(its_manager),
        tables(its_tables),
        clock(options.clock == nullptr ? steady_clock() : *options.clock),
        audit_blocks(std::min(options.audit_blocks, its_manager.num_blocks())),
        first_seen_ns(2 * static_cast<std::size_t>(its_manager.max_open_tickets())),
        holders(static_cast<std::size_t>(its_manager.max_holders())) {}

  void note_tickets(std::int64_t now_ns) noexcept;
  std::int64_t& first_seen_of(Ticket ticket) noexcept {
    return first_seen_ns[manager.place_of(ticket)];
  }
  Status check_slice() const noexcept;
  void advance_audit(std::uint64_t step) noexcept;
  void add_groups(PoolSnapshot& figures) const noexcept;
  void publish(const StepFigures& steps) noexcept;
  void publish_details(const PoolSnapshot& figures) noexcept;

  const BlockManager& manager;
  const BlockTables& tables;
  const Clock& clock;

  // Only the writer uses these.
  std::int64_t audit_blocks;
  std::int64_t next_block = 0;  // the next block to audit
  AuditProgress audit;
  std::uint64_t newest_seen = 0;  // tickets up to this one have been noted
  // Indexed by BlockManager::place_of.
  LazyArray<std::int64_t> first_seen_ns;

  // Shared between threads.
  PublishedValue<PoolSnapshot> published;
  std::atomic<std::int64_t> step_began_ns{kNoStep};
  std::atomic<bool> details_wanted{true};  // create publishes the first details
  mutable std::mutex details_mutex;        // the writer only tries to lock it
  PoolDetails details;                     // without the holders
  LazyArray<HolderReport> holders;
  std::size_t num_holders = 0;
};

// Notes when each new ticket was first seen. It looks at each ticket once.
void StepPublisher::Impl::note_tickets(std::int64_t now_ns) noexcept {
  const std::uint64_t newest = manager.newest_ticket().value;
  const std::uint64_t before_first = newest & ~kIdCountMask;
  for (std::uint64_t t = std::max(newest_seen, before_first) + 1; t <= newest; ++t) {
    if (manager.is_open(Ticket(t))) first_seen_of(Ticket(t)) = now_ns;
  }
  newest_seen = newest;
}

/// Checks the totals, the number of table entries, and the next slice of blocks.
Status StepPublisher::Impl::check_slice() const noexcept {
  if (Status status = manager.check_totals(); !status) return status;
  const std::int64_t references = manager.stats().references;
  const std::int64_t entries = tables.stats().entries;
  if (entries > references) {
    return {StatusCode::invariant_violated,
            Resource::table_page,
            Option::none,
            static_cast<std::int32_t>(Invariant::table_counts),
            0,
            static_cast<std::uint64_t>(references),
            static_cast<std::uint64_t>(entries)};
  }
  return manager.check_blocks(next_block, audit_blocks);
}

/// Makes one step of the audit, and logs the first failure.
void StepPublisher::Impl::advance_audit(std::uint64_t step) noexcept {
  if (audit_blocks == 0 || !audit.failure) return;
  audit.failure = check_slice();
  if (!audit.failure) {
    log_line(LogLevel::critical, "accounts violated{} at step {}, audit of blocks {} and on: {}",
             OfObject{manager.name()}, step, next_block, describe(audit.failure));
    return;
  }
  const std::int64_t end = std::min(next_block + audit_blocks, manager.num_blocks());
  audit.blocks_checked += static_cast<std::uint64_t>(end - next_block);
  next_block = end;
  if (next_block < manager.num_blocks()) return;
  next_block = 0;
  ++audit.passes;
}

void StepPublisher::Impl::add_groups(PoolSnapshot& figures) const noexcept {
  const std::span<const BlockGroup> groups = manager.groups();
  if (groups.empty()) return;
  figures.pages = manager.page_stats();
  figures.num_groups = static_cast<std::int64_t>(groups.size());
  for (std::size_t g = 0; g < groups.size(); ++g) {
    figures.kinds[g] = groups[g].kind;
    figures.groups[g] = manager.group_stats(static_cast<std::int32_t>(g));
  }
}

/// Publishes a snapshot, and the details if a reader has asked.
void StepPublisher::Impl::publish(const StepFigures& steps) noexcept {
  const std::int64_t now_ns = clock.now_ns();
  note_tickets(now_ns);
  advance_audit(steps.steps_ended);
  const Ticket oldest = manager.oldest_open_ticket();
  PoolSnapshot figures{.step = steps.steps_ended,
                       .published_ns = now_ns,
                       .blocks = manager.stats(),
                       .tables = tables.stats(),
                       .open_tickets = manager.num_open_tickets(),
                       .oldest_ticket = oldest,
                       .oldest_ticket_ns = oldest == kNoTicket ? 0 : first_seen_of(oldest),
                       .audit = audit,
                       .steps_lost = steps.steps_lost,
                       .missed_launches = steps.missed_launches,
                       .awaited_tickets = steps.awaited_tickets < 0 ? manager.num_open_tickets()
                                                                    : steps.awaited_tickets,
                       .has_prefix_cache = tables.has_prefix_cache() ? 1 : 0,
                       .prefix = tables.prefix_stats(),
                       .prefix_use = tables.prefix_use()};
  add_groups(figures);
  // The groups are last, and there are few of the most.
  const std::size_t unused = figures.groups.size() - static_cast<std::size_t>(figures.num_groups);
  published.store(figures, sizeof figures - unused * sizeof(GroupStats));
  step_began_ns.store(kNoStep, std::memory_order_release);
  if (details_wanted.load(std::memory_order_relaxed)) publish_details(figures);
}

void StepPublisher::Impl::publish_details(const PoolSnapshot& figures) noexcept {
  const std::unique_lock lock(details_mutex, std::try_to_lock);
  if (!lock) return;  // a reader is copying: publish next time
  details_wanted.store(false, std::memory_order_relaxed);
  details.step = figures.step;
  details.published_ns = figures.published_ns;
  details.explanation = tables.explain(1, Urgency::growth, false);  // within a step
  num_holders = manager.holders(std::span(holders.data(), holders.size()));
}

Result<StepPublisher> StepPublisher::create(const BlockManager& manager, const BlockTables& tables,
                                            const StepPublisherOptions& options) {
  if (options.audit_blocks < 0) {
    return invalid_option(Option::audit_blocks, options.audit_blocks, 0,
                          std::numeric_limits<std::int64_t>::max());
  }
  try {
    StepPublisher publisher(std::make_unique<Impl>(manager, tables, options));
    publisher.publish({});
    return publisher;
  } catch (const std::bad_alloc&) {
    return exhausted(Resource::host_memory, sizeof(Impl), 0);
  }
}

StepPublisher::StepPublisher(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
StepPublisher::~StepPublisher() = default;
StepPublisher::StepPublisher(StepPublisher&&) noexcept = default;
StepPublisher& StepPublisher::operator=(StepPublisher&&) noexcept = default;

void StepPublisher::begin_step() noexcept {
  impl_->step_began_ns.store(impl_->clock.now_ns(), std::memory_order_release);
}

void StepPublisher::publish(const StepFigures& figures) noexcept { impl_->publish(figures); }

PoolSnapshot StepPublisher::snapshot() const noexcept { return impl_->published.load(); }

bool StepPublisher::has_pending_work() const noexcept {
  return step_began_ns().has_value() || snapshot().awaited_tickets > 0;
}

std::optional<std::int64_t> StepPublisher::step_began_ns() const noexcept {
  const std::int64_t began = impl_->step_began_ns.load(std::memory_order_acquire);
  if (began == kNoStep) return std::nullopt;
  return began;
}

void StepPublisher::request_details() noexcept {
  impl_->details_wanted.store(true, std::memory_order_relaxed);
}

PoolDetails StepPublisher::details() const noexcept {
  const std::lock_guard lock(impl_->details_mutex);
  PoolDetails copy = impl_->details;
  try {
    copy.holders.assign(impl_->holders.data(), impl_->holders.data() + impl_->num_holders);
  } catch (const std::bad_alloc&) {
    copy.holders.clear();
  }
  return copy;
}

}  // namespace kvarena
