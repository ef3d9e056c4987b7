#pragma once

/// @file
/// One pool of the world of tables: a BlockManager and its BlockTables, memory that is simulated,
/// and the parties to whom something is promised. What it knows of each party is what that party
/// was promised, never which blocks it gets or whether a copy is made.

#include "effects/program.hpp"
#include "effects/simulated_memory.hpp"
#include "effects/visible_state.hpp"
#include "support/status_matchers.hpp"

#include "kvarena/allocator/block_manager.hpp"
#include "kvarena/blocktable/block_tables.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvarena::test {

/// Sizes of a pool.
struct TablesPoolOptions {
  std::uint32_t name = 0;  ///< for the story
  std::int64_t num_blocks = 8;
  std::int32_t block_size_tokens = 4;
  std::int64_t watermark_blocks = 0;
  std::int32_t max_open_tickets = 4;
  std::int64_t max_fence_entries = 0;
  std::int32_t max_sequences = 4;
  std::size_t num_streams = 2;
  bool can_undo = false;
  PlantedBug bug = PlantedBug::none;
};

/// Plays operations. Numbers are resolved modulo what exists; an operation that nothing exists for,
/// or that the contract forbids an engine, is skipped.
class TablesPool {
 public:
  using Numbers = std::array<std::uint32_t, 4>;

  TablesPool(const TablesPoolOptions& options, Story& story);

  // Sequences: tables_pool_sequences.cpp, tables_pool_capacity.cpp.
  void create_sequence(const Numbers& n);
  void fork(const Numbers& n);
  void destroy(const Numbers& n);
  void destroy_many(const Numbers& n);
  void truncate(const Numbers& n);
  void append(const Numbers& n);
  void append_one_each(const Numbers& n);
  void append_and_undo(const Numbers& n);
  void undo_append(const Numbers& n);
  void settle_append(const Numbers& n);
  void reserve_capacity(const Numbers& n);
  void promise_capacity(const Numbers& n);
  void check_sequence(const Numbers& n);

  // Imports and pins: tables_pool_imports.cpp.
  void import_sequence(const Numbers& n);
  void end_import(const Numbers& n);
  void pin(const Numbers& n);
  void unpin(const Numbers& n);
  void copy_row(const Numbers& n);

  // Whoever else holds blocks, and tickets: tables_pool_outsiders.cpp.
  void hold_block(const Numbers& n);
  void allocate_blocks(const Numbers& n);
  void release_block(const Numbers& n);
  void publish_block(const Numbers& n);
  void unpublish_block(const Numbers& n);
  void revive_block(const Numbers& n);
  void quarantine(const Numbers& n);
  void restore(const Numbers& n);
  void open_ticket(const Numbers& n);
  void open_reader(const Numbers& n);
  void retire(const Numbers& n);
  void run_stream(const Numbers& n);

  // Calls that must be refused: tables_pool_refusals.cpp.
  void misuse(const Numbers& n);
  void offer_foreign_ticket(const Numbers& n, const TablesPool& other);

  /// Everybody checks what they were promised, everything is given back, and the pool must be
  /// whole.
  void finish();

  /// The first broken promise.
  const std::optional<Failure>& failure() const noexcept {
    return failure_ ? failure_ : memory_.failure();
  }

 private:
  static constexpr std::size_t kHome = 0;         // stream
  static constexpr std::int64_t kForgotten = -1;  // a promise that was made anew

  /// A sequence and the word of each of its tokens.
  struct Sequence {
    SequenceId id{};
    std::uint32_t name = 0;
    std::vector<Word> words{};
    std::optional<std::size_t> reader{};  // reads it; an index of readers_
    bool may_append = true;               // false: from the reader's opening to the first release
    std::int64_t promised_blocks = 0;     // of capacity, those it has included
    bool is_import = false;               // others write its tokens, or have given up
  };
  /// Blocks that a pin holds, and their content.
  struct Pin {
    HolderId holder{};
    std::uint32_t name = 0;
    std::vector<Word> words{};  // of the tokens in its blocks
  };
  /// A block that an outsider holds, and its content.
  struct Holding {
    BlockId id{};
    Generation generation{};
    std::uint32_t name = 0;
    HolderId holder{};
    std::vector<Word> words{};
    std::optional<std::size_t> reader{};
  };
  /// A block marked as cached, whoever holds it.
  struct Publication {
    BlockId id{};
    Generation generation{};
    std::uint32_t name = 0;
    std::vector<Word> words{};
  };
  /// What the last append grew, while it can be taken back.
  struct Growth {
    std::uint32_t name = 0;            // of the sequence
    std::size_t length = 0;            // before
    std::int64_t promised_blocks = 0;  // after: a copy on write took one, and may stay
  };
  /// A ticket, and the work on another stream that it stands for.
  struct Reader {
    Ticket ticket{};
    std::uint32_t name = 0;
    std::size_t stream = 0;
    std::size_t position = 0;  // of that work's end
    bool is_open = true;
  };

  template <class T>
  T* pick(std::vector<T>& list, std::uint32_t number) {
    return list.empty() ? nullptr : &list[number % list.size()];
  }
  void fail(const char* kind, std::string text);
  /// Makes a call; when it is refused nothing visible may have changed.
  template <class Call>
  auto guarded(const char* name, Call call) {
    before_.look(manager_, tables_);
    auto outcome = call();
    if (!outcome) require_unchanged(name, status_of(outcome));
    return outcome;
  }
  /// Makes a call that must be refused, and change nothing.
  template <class Call>
  void refused(const char* kind, const char* name, Call call) {
    before_.look(manager_, tables_);
    const Status status = status_of(call());
    if (!status) return require_unchanged(name, status);
    story_.tell(pool_, name, " is TAKEN");
    fail(kind, std::string(name) + " was taken");
  }
  void require_unchanged(const char* name, const Status& status);

  /// `count` new words; the next tokens that anybody writes.
  std::vector<Word> new_words(std::int64_t count);
  /// Slots of a sequence's first tokens as its table says now; fails when it says nothing.
  std::vector<std::int64_t> slots_of(const Sequence& sequence);
  std::vector<std::int64_t> slots_of(BlockId block) const;
  void read_sequence(std::size_t stream, Party party, const Sequence& sequence);
  void carry_out(const AppendResult& result, std::span<const AppendDemand> demands, bool reversed);
  void try_append(std::span<const AppendDemand> demands, bool is_admission, bool reversed);
  std::vector<AppendDemand> demands_of(const Numbers& n) const;
  /// The ticket to release something against that `reader` reads: the reader's, or when nobody
  /// reads it none or any open one, as `number` says.
  Ticket ticket_for(const std::optional<std::size_t>& reader, std::uint32_t number) const;
  std::string name_of_ticket(Ticket ticket) const;
  void forget_sequence(std::size_t index);
  Sequence* find(SequenceId id);
  bool is_last_block_shared(const Sequence& sequence) const;
  void note_growth(std::span<const AppendDemand> demands);
  void lower_promise(Sequence& sequence, std::int64_t former_blocks);
  void judge_refusal(std::span<const AppendDemand> demands, const Status& status);
  void forget_promises_others_use();
  void cut_to_former_lengths();
  void settle();
  void finish_reader(Reader& reader);
  std::optional<std::size_t> new_reader(std::uint32_t stream_number);
  std::vector<std::int64_t> slots_of(const Pin& pin);
  Sequence* find_full(const Numbers& n, BlockId* id, Generation* generation,
                      std::vector<Word>* words);
  Status mark_published(BlockId id, Generation generation, bool is_published);
  void check_whole();

  std::string pool_;  // "pool 0: "
  Story& story_;
  BlockManager manager_;
  BlockTables tables_;
  SimulatedMemory memory_;
  std::int32_t block_size_;
  bool can_undo_;
  std::vector<HolderId> outsiders_;
  std::vector<Sequence> sequences_;
  std::vector<Pin> pins_;
  std::vector<Growth> last_append_;
  std::vector<Holding> holdings_;
  std::vector<Publication> publications_;
  std::vector<Reader> readers_;  // retired ones keep their place
  std::uint32_t num_names_ = 0;
  Word last_word_ = 0;
  VisibleState before_;
  VisibleState after_;
  std::optional<Failure> failure_;
};

}  // namespace kvarena::test
