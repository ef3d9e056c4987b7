#include "effects/simulated_memory.hpp"

#include <algorithm>
#include <utility>

namespace kvarena::test {

SimulatedMemory::SimulatedMemory(std::int64_t num_blocks, std::int32_t block_size,
                                 std::size_t num_streams, PlantedBug bug)
    : words_(static_cast<std::size_t>(num_blocks * block_size)),
      block_size_(block_size),
      bug_(bug),
      streams_(num_streams) {}

void SimulatedMemory::queue_tokens(std::size_t stream, Entry entry,
                                   std::span<const std::int64_t> slots,
                                   std::span<const Word> words) {
  entry.first = tokens_.size();
  entry.count = slots.size();
  for (std::size_t i = 0; i < slots.size(); ++i) tokens_.push_back({slots[i], words[i]});
  streams_[stream].queue.push_back(entry);
}

void SimulatedMemory::write(std::size_t stream, std::span<const std::int64_t> slots,
                            std::span<const Word> words) {
  queue_tokens(stream, {.task = Task::write}, slots, words);
}

void SimulatedMemory::read(std::size_t stream, Party party, std::span<const std::int64_t> slots,
                           std::span<const Word> words) {
  queue_tokens(stream, {.task = Task::read, .party = party}, slots, words);
}

void SimulatedMemory::copy(std::size_t stream, BlockCopy blocks) {
  streams_[stream].queue.push_back({.task = Task::copy, .blocks = blocks});
}

void SimulatedMemory::wait(std::size_t stream, std::size_t other) {
  streams_[stream].queue.push_back({.task = Task::wait, .first = other, .count = position(other)});
}

bool SimulatedMemory::run_one(std::size_t stream) {
  Stream& from = streams_[stream];
  if (from.num_done == from.queue.size()) return false;
  const Entry& next = from.queue[from.num_done];
  const bool waits = next.task == Task::wait && streams_[next.first].num_done < next.count;
  if (waits && bug_ != PlantedBug::ignores_waits) return false;
  ++from.num_done;
  carry_out(next);
  return true;
}

void SimulatedMemory::run_until(std::size_t stream, std::size_t position) {
  while (streams_[stream].num_done < position) {
    if (run_one(stream)) continue;
    const Entry& wait = streams_[stream].queue[streams_[stream].num_done];
    run_until(wait.first, wait.count);
  }
}

bool SimulatedMemory::is_outside(std::int64_t slot) {
  if (slot >= 0 && slot < num_slots()) return false;
  if (!failure_) failure_ = {"slots", "slot " + std::to_string(slot) + " is outside of the pool"};
  return true;
}

void SimulatedMemory::carry_out(const Entry& entry) {
  const std::vector<BlockCopy> late = std::exchange(late_copies_, {});
  switch (entry.task) {
    case Task::wait: break;
    case Task::read: judge(entry); break;
    case Task::write: {
      const bool drops = bug_ == PlantedBug::drops_last_write && entry.count > 1;
      for (std::size_t i = 0; i < entry.count - (drops ? 1 : 0); ++i) {
        const Token& token = tokens_[entry.first + i];
        if (!is_outside(token.slot)) words_[static_cast<std::size_t>(token.slot)] = token.word;
      }
      break;
    }
    case Task::copy:
      if (bug_ == PlantedBug::copies_after_writes) {
        late_copies_.push_back(entry.blocks);
      } else if (bug_ != PlantedBug::drops_copies) {
        copy_now(entry.blocks);
      }
      break;
  }
  for (const BlockCopy& blocks : late) copy_now(blocks);
}

void SimulatedMemory::copy_now(BlockCopy blocks) {
  const std::int64_t source = std::int64_t{blocks.source.value} * block_size_;
  const std::int64_t target = std::int64_t{blocks.target.value} * block_size_;
  if (is_outside(source) || is_outside(target)) return;
  std::copy_n(words_.begin() + source, block_size_, words_.begin() + target);
}

void SimulatedMemory::judge(const Entry& entry) {
  for (std::size_t i = 0; i < entry.count && !failure_; ++i) {
    const Token& token = tokens_[entry.first + i];
    if (is_outside(token.slot)) return;
    const Word found = words_[static_cast<std::size_t>(token.slot)];
    if (found == token.word) continue;
    std::ostringstream text;
    text << entry.party.kind << " " << entry.party.name << ": token " << i << " in slot "
         << token.slot << " was promised to be word " << token.word << " and is word " << found;
    failure_ = {entry.party.kind, text.str()};
  }
}

}  // namespace kvarena::test
