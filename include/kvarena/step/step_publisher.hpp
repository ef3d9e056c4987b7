#pragma once

/// @file
/// `StepPublisher`: shows a pool that belongs to one thread to other threads. The writer publishes
/// a snapshot at the end of each step. The snapshot includes the progress of an audit, which
/// recounts a bounded slice of blocks in each step. Details that cost O(holders) are published only
/// after a reader has asked.
///
/// The pool's thread calls the writer's functions; any thread calls the readers' functions. The
/// writer never waits for a reader and does not use the heap, except for the log line of a failed
/// audit. Move-only, but not while another thread reads. It borrows the manager and the tables,
/// which must stay at their addresses and outlive it.

#include "kvarena/allocator/block_manager.hpp"
#include "kvarena/base/clock.hpp"
#include "kvarena/base/export.hpp"
#include "kvarena/base/result.hpp"
#include "kvarena/blocktable/block_tables.hpp"

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace kvarena {

/// Options of a publisher.
struct StepPublisherOptions {
  std::int64_t audit_blocks = 64;  ///< blocks checked in each step; 0: no audit
  const Clock* clock = nullptr;    ///< borrowed; nullptr: steady_clock()
};

/// The progress of the audit. Each publication checks the totals and the next slice of blocks
/// (BlockManager::check_totals, check_blocks), with groups those of pages too, and that the tables
/// have no more entries than there are references. After a complete pass the audit starts over. It
/// ends at the first failure, which is logged as critical.
struct AuditProgress {
  std::uint64_t blocks_checked = 0;  ///< since create
  std::uint64_t passes = 0;          ///< complete passes over all blocks
  Status failure;                    ///< the first failure found; it stays. ok: none
};

/// The writer's counts of steps.
struct StepFigures {
  std::uint64_t steps_ended = 0;      ///< so far, with lost and aborted ones
  std::uint64_t steps_lost = 0;       ///< ended steps that the device did not take
  std::uint64_t missed_launches = 0;  ///< launches on the device that found no step to run
  std::int64_t awaited_tickets = -1;  ///< open tickets for which a later step waits; -1: all
};

/// The figures of one moment.
struct PoolSnapshot {
  std::uint64_t step = 0;             ///< steps ended so far
  std::int64_t published_ns = 0;      ///< by the publisher's clock
  BlockStats blocks;                  ///< from the block manager
  TableStats tables;                  ///< from the block tables
  std::int64_t open_tickets = 0;      ///< tickets that have not retired
  Ticket oldest_ticket;               ///< kNoTicket when none is open
  std::int64_t oldest_ticket_ns = 0;  ///< when a publication first saw it
  AuditProgress audit;                ///< of the accounts
  std::uint64_t steps_lost = 0;       ///< as in StepFigures
  std::uint64_t missed_launches = 0;  ///< as in StepFigures
  std::int64_t awaited_tickets = 0;   ///< as in StepFigures
  std::int64_t has_prefix_cache = 0;  ///< 1: the tables have one, of which the next two tell
  PrefixStats prefix{};               ///< from the block tables
  PrefixUse prefix_use{};             ///< from the block tables
  PageStats pages{};                  ///< of a pool with groups; else all 0
  std::int64_t num_groups = 0;        ///< of the pool; used entries of the next two
  std::array<PagedKind, kMaxBlockGroups> kinds{};    ///< what the layers of each group keep
  std::array<GroupStats, kMaxBlockGroups> groups{};  ///< by group
};

/// Figures that are published only when a reader asks.
struct PoolDetails {
  std::uint64_t step = 0;             ///< steps ended when the details were taken
  std::int64_t published_ns = 0;      ///< by the publisher's clock
  Explanation explanation;            ///< for one more block for a running sequence
  std::vector<HolderReport> holders;  ///< by id: the leak report
};

/// The view of one pool for other threads.
class KVARENA_EXPORT StepPublisher {
 public:
  /// Publishes a first snapshot. Returns invalid_argument (audit_blocks) for a negative slice, or
  /// exhausted (host_memory).
  static Result<StepPublisher> create(const BlockManager& manager, const BlockTables& tables,
                                      const StepPublisherOptions& options = {});
  ~StepPublisher();
  StepPublisher(StepPublisher&&) noexcept;
  StepPublisher& operator=(StepPublisher&&) noexcept;

  // ---- the writer ----------------------------------------------------------------------------

  /// Says that a step has begun. Work is pending until publish. O(1).
  void begin_step() noexcept;
  /// Publishes at the end of a step, or when an engine that goes idle wants its last figures seen.
  /// O(audit_blocks); once after request_details also the cost of explain() and holders().
  void publish(const StepFigures& figures) noexcept;

  // ---- readers -------------------------------------------------------------------------------

  /// Returns the last publication.
  PoolSnapshot snapshot() const noexcept;
  /// Returns whether a step has begun and not been published, or a step had tickets to wait for at
  /// the last publication. A ticket that only the engine retires is not work of a step.
  bool has_pending_work() const noexcept;
  /// Returns when the unpublished step began, by the publisher's clock; nullopt when there is none.
  /// (After an idle time, published_ns says nothing about the step that has just begun.)
  std::optional<std::int64_t> step_began_ns() const noexcept;
  /// Asks the writer for details with its next publication, or with the one after it when a reader
  /// is just copying the last details.
  void request_details() noexcept;
  /// Returns the last details; their `step` says how old they are. Without a request they are those
  /// of create. `holders` is empty when there is no memory for it.
  PoolDetails details() const noexcept;

 private:
  struct Impl;
  explicit StepPublisher(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvarena
