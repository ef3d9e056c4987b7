#pragma once

/// @file
/// `NaivePool`: what BlockManager promises, written as plainly as possible. Vectors and maps,
/// linear searches, no shared tricks with the real thing, so that it is right by reading. It
/// predicts ids and statuses from the documented orders; only holder ids are told to it, because no
/// order of those is documented.

#include "kvarena/allocator/block_manager.hpp"
#include "model/naive_eviction.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace kvarena::model {

/// A block reference as callers keep it.
struct Handle {
  BlockId id;             ///< block
  Generation generation;  ///< as handed out
  friend bool operator==(const Handle&, const Handle&) = default;
};

/// What an allocation hands out.
struct Grant {
  std::vector<Handle> handles;  ///< in order
  std::int64_t evicted = 0;     ///< how many of the last ones were evictable
};

/// One demand of a call for many.
struct Want {
  HolderId holder;                   ///< who
  std::int64_t count = 0;            ///< blocks
  std::optional<Urgency> urgency{};  ///< of its own
};

/// The plain model of a BlockManager.
class NaivePool {
 public:
  explicit NaivePool(const BlockManagerOptions& options);

  /// Whether one more holder fits.
  Status can_register() const;
  /// A holder was registered under this id. False when the id was issued before.
  bool adopt_holder(HolderId holder, const HolderInfo& info);
  Status unregister_holder(HolderId holder);
  Status reserve(HolderId holder, std::int64_t count);
  Status set_deadline(HolderId holder, std::int64_t deadline_ns);
  /// Counts itself when it is refused.
  Status check_available(std::int64_t count, Urgency urgency);

  Result<Grant> allocate(std::span<const Want> wants, Urgency urgency);
  Status retain(HolderId holder, std::span<const Handle> handles);
  Status release(HolderId holder, std::span<const Handle> handles);
  /// What release would return.
  Status check_release(HolderId holder, std::span<const Handle> handles) const;
  Status release_after(Ticket ticket, HolderId holder, std::span<const Handle> handles);
  Status set_content(Handle handle, BlockContent content);
  Status set_retention(Handle handle, const RetentionHint& retention);
  Status advance_clock(std::int64_t now);
  Result<bool> quarantine(BlockId id);
  Status restore(BlockId id);

  Status can_open_ticket() const;
  /// A ticket was opened under this id. False when one so high was issued before.
  bool adopt_ticket(Ticket ticket);
  Status retire(Ticket ticket);

  BlockState state(BlockId id) const;
  std::uint32_t reference_count(BlockId id) const;
  std::uint32_t claims(BlockId id) const;
  /// Whether the block is neither quarantined nor offline.
  bool can_be_found(BlockId id) const { return !at(id).leaving && !at(id).offline; }
  BlockContent content(BlockId id) const;
  Generation generation(BlockId id) const { return Generation(at(id).generation); }
  RetentionHint retention(BlockId id) const { return eviction_.retention(id); }
  std::int64_t clock() const { return eviction_.clock(); }
  /// The blocks that the last allocation evicted.
  const std::vector<BlockId>& evicted() const { return evicted_; }
  std::int64_t usable(Urgency urgency) const;
  /// The same, below 0 by what the watermark lacks.
  std::int64_t left_for(Urgency urgency) const;
  std::int64_t reserved_by(HolderId holder) const;
  std::int64_t available_after(Ticket last) const;
  BlockStats stats() const;
  std::vector<HolderReport> holders() const;
  bool has_holder(HolderId holder) const { return holders_.contains(holder); }
  bool is_open(Ticket ticket) const { return tickets_.contains(ticket); }
  std::int64_t fence_entries_left() const;
  std::vector<Ticket> open_tickets() const;
  Ticket newest_ticket() const { return newest_; }
  std::int64_t num_blocks() const { return static_cast<std::int64_t>(blocks_.size()); }
  /// Blocks whose state may have changed since the last call of this function.
  std::set<BlockId> take_touched() { return std::exchange(touched_, {}); }
  /// The blocks that were evicted since the last call of this function, in order.
  std::vector<BlockId> take_evicted() { return std::exchange(untold_evictions_, {}); }

 private:
  struct Block {
    std::uint32_t generation = 0;
    std::uint32_t live = 0;    // references that are not fenced
    std::uint32_t fenced = 0;  // references that wait for a ticket
    BlockContent content = BlockContent::unwritten;
    bool leaving = false;  // quarantined while held
    bool offline = false;
  };
  struct Holder {
    HolderInfo info;
    std::int64_t references = 0;
    std::int64_t reserved = 0;
  };

  Block& at(BlockId id) { return blocks_[static_cast<std::size_t>(id.value)]; }
  const Block& at(BlockId id) const { return blocks_[static_cast<std::size_t>(id.value)]; }
  bool exists(BlockId id) const { return id.value >= 0 && id.value < num_blocks(); }
  std::int64_t available() const;
  std::int64_t reserved() const;
  Status refuse(Handle handle) const;
  std::int64_t beyond_promise(const Want& want) const;
  void consume_reservation(Holder& holder, std::int64_t count);
  void leave_if_unused(BlockId id, std::uint64_t run = 0);
  void note_peak();

  std::vector<Block> blocks_;
  std::vector<BlockId> free_;  // handed out from the back
  EvictionPolicy policy_;
  NaiveEviction eviction_;
  std::vector<BlockId> evicted_;
  std::map<HolderId, Holder> holders_;
  std::set<HolderId> holders_ever_;
  std::map<Ticket, std::vector<BlockId>> tickets_;  // open ones, references in order of release
  Ticket newest_;
  std::int64_t watermark_;
  std::int64_t max_holders_;
  std::int64_t max_open_tickets_;
  std::int64_t max_fence_entries_;
  BlockStats counters_;  // lifetime counters and peak only
  std::set<BlockId> touched_;
  std::vector<BlockId> untold_evictions_;
};

}  // namespace kvarena::model
