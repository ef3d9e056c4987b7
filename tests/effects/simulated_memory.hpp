#pragma once

/// @file
/// Device memory of one word a slot, and streams that work on it. Work is queued and runs later: of
/// each stream in order, among streams in any order that whoever calls run_one likes. Reads carry
/// what their party was promised and are judged when they run.

#include "effects/program.hpp"

#include "kvarena/base/views.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvarena::test {

/// What a slot holds: the number of the token written there, 0 for none ever. A number is used for
/// one token only, so a word says whose it is.
using Word = std::uint64_t;

/// A bug of the memory, planted to see whether the judge notices.
enum class PlantedBug : std::uint8_t {
  none,
  drops_copies,         ///< copies on write are not carried out
  copies_after_writes,  ///< a copy runs one operation late
  drops_last_write,     ///< the last token of a write of several is lost
  ignores_waits,        ///< a stream does not wait for another
};

/// Who reads and what was promised to them.
struct Party {
  const char* kind = "";   ///< "sequence", "reader", ...; also the kind of the failure
  std::uint32_t name = 0;  ///< number of that kind
};

/// Memory and streams. Stream 0 is the home stream.
class SimulatedMemory {
 public:
  SimulatedMemory(std::int64_t num_blocks, std::int32_t block_size, std::size_t num_streams,
                  PlantedBug bug = PlantedBug::none);

  /// Queues writing words[i] to slots[i].
  void write(std::size_t stream, std::span<const std::int64_t> slots, std::span<const Word> words);
  /// Queues copying a whole block.
  void copy(std::size_t stream, BlockCopy blocks);
  /// Queues a read that must find words[i] in slots[i].
  void read(std::size_t stream, Party party, std::span<const std::int64_t> slots,
            std::span<const Word> words);
  /// Queues: `stream` waits for what is queued on `other` so far.
  void wait(std::size_t stream, std::size_t other);

  /// Runs the next operation of a stream; false when there is none or it waits.
  bool run_one(std::size_t stream);
  /// Runs a stream up to a position, and of others what it waits for.
  void run_until(std::size_t stream, std::size_t position);
  /// Operations queued on a stream since the beginning.
  std::size_t position(std::size_t stream) const noexcept { return streams_[stream].queue.size(); }
  std::size_t num_streams() const noexcept { return streams_.size(); }
  std::int64_t num_slots() const noexcept { return static_cast<std::int64_t>(words_.size()); }

  /// The first read that did not find what was promised, or write outside of the memory.
  const std::optional<Failure>& failure() const noexcept { return failure_; }

 private:
  enum class Task : std::uint8_t { write, copy, read, wait };
  struct Entry {
    Task task = Task::write;
    Party party{};          // of a read
    std::size_t first = 0;  // of slots and words in `tokens_`; of a wait: the other stream
    std::size_t count = 0;  // of a wait: the position there
    BlockCopy blocks{};
  };
  struct Stream {
    std::vector<Entry> queue;
    std::size_t num_done = 0;
  };
  struct Token {
    std::int64_t slot = 0;
    Word word = 0;
  };

  void queue_tokens(std::size_t stream, Entry entry, std::span<const std::int64_t> slots,
                    std::span<const Word> words);
  void carry_out(const Entry& entry);
  void judge(const Entry& entry);
  void copy_now(BlockCopy blocks);
  bool is_outside(std::int64_t slot);

  std::vector<Word> words_;
  std::int32_t block_size_;
  PlantedBug bug_;
  std::vector<Stream> streams_;
  std::vector<Token> tokens_;  // of all writes and reads
  std::vector<BlockCopy> late_copies_;
  std::optional<Failure> failure_;
};

}  // namespace kvarena::test
