#include "blocktable/tell_tokens.hpp"

namespace kvarena {

/// Tells the prefix cache the new tokens of a sequence whose tokens it knows so far.
void BlockTables::Impl::tell_tokens(SequenceId id, std::span<const std::int32_t> values) noexcept {
  if (values.empty()) return;
  Sequence& s = *sequences.find(id);
  const auto slot = static_cast<std::uint32_t>(SequenceTable::slot_of(id));
  if (prefix->chain(slot).known + std::ssize(values) != s.length) return;
  if (values.size() == 1 && prefix->add_to_tail(slot, values[0])) return;
  prefix->add_tokens(prefix_owner(s), values);
}

/// Registers the blocks that these tokens fill, in order. What is read for a block is fetched while
/// others are registered: first the hash and where it leads, then the block that is found there.
void BlockTables::Impl::fill_tails(std::span<const TailToken> fillers) noexcept {
  std::array<Hash128, kMostFillers> chains;
  for (std::size_t i = 0; i < fillers.size(); ++i) {
    chains[i] = prefix->hash_filled(prefix_owner(*fillers[i].sequence), fillers[i].token);
  }
  for (std::size_t i = 0; i < fillers.size(); ++i) {
    prefix->prefetch_equal(prefix_owner(*fillers[i].sequence).slot, chains[i]);
  }
  for (std::size_t i = 0; i < fillers.size(); ++i) {
    prefix->add_filled(prefix_owner(*fillers[i].sequence), chains[i]);
  }
}

}  // namespace kvarena
