#pragma once

/// @file
/// `NaiveTables`: what BlockTables promises, over a NaivePool, written as plainly as possible: a
/// sequence is a length and a vector of handles.

#include "kvarena/blocktable/block_tables.hpp"
#include "model/naive_pool.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <vector>

namespace kvarena::model {

/// What an append changed.
struct Growth {
  std::vector<std::int64_t> slots;  ///< of the new tokens, demand by demand
  std::vector<BlockCopy> copies;    ///< copy-on-write copies
  std::int64_t new_blocks = 0;      ///< blocks taken
};

/// The plain model of BlockTables.
class NaiveTables {
 public:
  struct Sequence {
    HolderId holder;
    std::vector<Handle> blocks;
    std::int64_t length = 0;
    std::int64_t max_length = 0;
    ImportState import_state = ImportState::none;
  };
  struct Pin {
    std::vector<Handle> blocks;
  };

  /// `total_pages` is told, because the default number of pages is not documented exactly.
  NaiveTables(NaivePool& pool, const BlockTablesOptions& options, std::int64_t total_pages);

  /// Whether a sequence can be created with these options.
  Status can_create(const SequenceOptions& options) const;
  /// A sequence was created under this id. False when the id was issued before.
  bool adopt(SequenceId sequence, HolderId holder, const SequenceOptions& options);
  Status can_fork(SequenceId parent, std::int64_t length, const SequenceOptions& options) const;
  bool adopt_fork(SequenceId parent, std::int64_t length, SequenceId child, HolderId holder,
                  const SequenceOptions& options);
  Status destroy_many(std::span<const SequenceId> sequences, Ticket ticket);

  /// Whether these tokens can be imported. Counts a refusal for want of blocks.
  Status can_import(std::int64_t num_tokens, const SequenceOptions& options, Urgency urgency);
  bool adopt_import(std::int64_t num_tokens, SequenceId sequence, HolderId holder,
                    const SequenceOptions& options, Urgency urgency);
  Status publish_import(SequenceId sequence);
  Status fail_import(SequenceId sequence);
  Status can_pin(SequenceId sequence, const PinOptions& options) const;
  bool adopt_pin(SequenceId sequence, const PinOptions& options, HolderId holder,
                 std::uint64_t number);
  Status unpin(HolderId pin, Ticket ticket);
  const std::map<HolderId, Pin>& pins() const { return pins_; }
  Status set_deadline(SequenceId sequence, std::int64_t deadline_ns);

  /// Called before an append allocates, with what each demand wants.
  std::function<void(std::span<const AppendDemand>, std::span<const Want>)> before_allocate;
  /// Called when it has the blocks, before it gives up any that it has copied.
  std::function<void(std::span<const AppendDemand>, std::span<const Want>, const Grant&)>
      after_allocate;
  Result<Growth> append(std::span<const AppendDemand> demands, Urgency urgency);
  Status reserve_capacity(SequenceId sequence, std::int64_t capacity, Urgency urgency);
  Status promise_capacity(SequenceId sequence, std::int64_t capacity);
  Status truncate(SequenceId sequence, std::int64_t length, Ticket ticket);
  std::int64_t failed_demand() const { return failed_demand_; }

  // for the prefix cache (naive_prefix.cpp)
  /// An empty sequence gets these blocks. All but the last one are full.
  Status begin_with(SequenceId sequence, std::span<const Handle> blocks, std::int64_t length);
  /// A sequence gets this block in the place of another.
  Status replace(SequenceId sequence, std::int64_t index, Handle block);

  Result<SequenceInfo> info(SequenceId sequence) const;
  Result<BlockId> lookup(SequenceId sequence, std::int64_t index) const;
  Result<std::int64_t> slot_of(SequenceId sequence, std::int64_t index) const;
  TableStats stats() const;
  const std::map<SequenceId, Sequence>& sequences() const { return sequences_; }
  std::int64_t blocks_for(std::int64_t tokens) const;
  std::int64_t block_size() const { return block_size_; }

 private:
  Status check_ticket(Ticket ticket, std::int64_t references) const;
  Status check_waiting(SequenceId sequence) const;
  Status check_demands(std::span<const AppendDemand> demands);
  bool tail_is_shared(const Sequence& sequence,
                      const std::map<BlockId, std::uint32_t>& given_up) const;
  std::int64_t pages_used() const;
  void give_up(HolderId holder, std::vector<Handle>& blocks, std::size_t keep, Ticket ticket);

  NaivePool& pool_;
  std::map<SequenceId, Sequence> sequences_;
  std::map<HolderId, Pin> pins_;
  std::set<SequenceId> ever_;
  std::int64_t block_size_;
  std::int64_t max_sequences_;
  std::int64_t max_pins_;
  std::int64_t max_append_tokens_;
  std::int64_t total_pages_;
  std::int64_t failed_demand_ = -1;
  std::uint64_t copies_ = 0;
};

}  // namespace kvarena::model
