#pragma once

/// @file
/// `StepPublisher`: how other threads see a pool that belongs to one thread. The writer publishes a
/// snapshot at the end of each step, and with it the progress of an audit that recounts a bounded
/// slice of blocks a step. Details that cost O(holders) are published only when a reader has asked.
///
/// The writer's functions belong to the pool's thread; readers' functions to any. The writer never
/// waits for a reader and takes nothing from the heap (but for the log line of a failed audit).
/// Move-only; not while another thread reads. Borrows manager and tables, which must stay at their
/// addresses and outlive it.

#include "kvarena/allocator/block_manager.hpp"
#include "kvarena/base/clock.hpp"
#include "kvarena/base/export.hpp"
#include "kvarena/base/result.hpp"
#include "kvarena/blocktable/block_tables.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace kvarena {

/// Options of a publisher.
struct StepPublisherOptions {
  std::int64_t audit_blocks = 64;  ///< checked a step; 0: no audit
  const Clock* clock = nullptr;    ///< borrowed; nullptr: steady_clock()
};

/// How far the audit is: each publication checks the totals and the next slice of blocks
/// (BlockManager::check_totals, check_blocks), and that the tables have no more entries than there
/// are references. It starts over when a pass is complete, and ends at the first failure, which is
/// logged as critical.
struct AuditProgress {
  std::uint64_t blocks_checked = 0;  ///< since the start
  std::uint64_t passes = 0;          ///< over all blocks, complete
  Status failure;                    ///< the first that was found; stays. ok: none
};

/// What the writer counts of steps.
struct StepFigures {
  std::uint64_t steps_ended = 0;      ///< so far, lost and aborted ones included
  std::uint64_t steps_lost = 0;       ///< of these, found not to have been taken by the device
  std::uint64_t missed_launches = 0;  ///< launches on the device that found no step of theirs
  std::int64_t awaited_tickets = -1;  ///< open tickets that a later step waits for; -1: all
};

/// Figures of one moment.
struct PoolSnapshot {
  std::uint64_t step = 0;             ///< steps ended so far
  std::int64_t published_ns = 0;      ///< by the publisher's clock
  BlockStats blocks;                  ///< of the block manager
  TableStats tables;                  ///< of the block tables
  std::int64_t open_tickets = 0;      ///< not retired
  Ticket oldest_ticket;               ///< kNoTicket: none is open
  std::int64_t oldest_ticket_ns = 0;  ///< when it was first seen at a publication
  AuditProgress audit;                ///< of the accounts
  std::uint64_t steps_lost = 0;       ///< as StepFigures
  std::uint64_t missed_launches = 0;  ///< as StepFigures
  std::int64_t awaited_tickets = 0;   ///< as StepFigures
};

/// What readers must ask for.
struct PoolDetails {
  std::uint64_t step = 0;             ///< steps ended when it was taken
  std::int64_t published_ns = 0;      ///< by the publisher's clock
  Explanation explanation;            ///< of one more block for a running sequence
  std::vector<HolderReport> holders;  ///< by id: the leak report
};

/// One pool's window.
class KVARENA_EXPORT StepPublisher {
 public:
  /// Publishes a first snapshot. Returns invalid_argument (audit_blocks) for a negative slice,
  /// exhausted (host_memory).
  static Result<StepPublisher> create(const BlockManager& manager, const BlockTables& tables,
                                      const StepPublisherOptions& options = {});
  ~StepPublisher();
  StepPublisher(StepPublisher&&) noexcept;
  StepPublisher& operator=(StepPublisher&&) noexcept;

  // ---- the writer ----------------------------------------------------------------------------

  /// A step has begun: until publish, work is pending. O(1).
  void begin_step() noexcept;
  /// A step has ended, or an engine that goes idle wants its last figures seen. O(audit_blocks),
  /// and as explain() and holders() once after request_details.
  void publish(const StepFigures& figures) noexcept;

  // ---- readers -------------------------------------------------------------------------------

  /// The last publication.
  PoolSnapshot snapshot() const noexcept;
  /// Whether a step has begun and not been published, or a step had tickets to wait for at the last
  /// publication. A ticket that only the engine retires is no work of a step's.
  bool has_pending_work() const noexcept;
  /// By the publisher's clock, when the step began that is not published yet; nullopt: there is
  /// none. (published_ns of an engine that was idle says nothing about the step it has just begun.)
  std::optional<std::int64_t> step_began_ns() const noexcept;
  /// Asks the writer for details with its next publication, or the one after when a reader is just
  /// copying the last.
  void request_details() noexcept;
  /// The last details; their `step` says how old they are. Those of create when nothing was asked.
  /// `holders` is empty where there is no memory for it.
  PoolDetails details() const noexcept;

 private:
  struct Impl;
  explicit StepPublisher(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvarena
