#pragma once

/// @file
/// How an append tells the prefix cache the tokens of all its demands.

#include "blocktable/block_tables_impl.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace kvarena {

/// Tells the prefix cache the tokens of all demands. Tokens that fill a block wait until there are
/// some, because registering them is the slow part.
template <class Demands>
void BlockTables::Impl::tell_tokens(const Demands& demands) noexcept {
  constexpr std::size_t kAhead = 8;
  const auto slot_at = [&](std::size_t i) {
    return static_cast<std::uint32_t>(SequenceTable::slot_of(demands.id(i)));
  };
  std::array<TailToken, kMostFillers> fillers;
  std::size_t waiting = 0;
  const auto fill_waiting = [&] {
    fill_tails(std::span(fillers).first(std::exchange(waiting, 0)));
  };
  for (std::size_t i = 0; i < demands.size(); ++i) {
    if (i + 2 * kAhead < demands.size()) prefix->prefetch_chain(slot_at(i + 2 * kAhead));
    if (i + kAhead < demands.size()) prefix->prefetch_last(slot_at(i + kAhead));
    const std::span<const std::int32_t> values = demands.values(i);
    if (values.size() != 1) {
      fill_waiting();
      tell_tokens(demands.id(i), values);
      continue;
    }
    Sequence& s = *sequences.find(demands.id(i));
    if (prefix->chain(slot_at(i)).known + 1 != s.length) continue;
    if (prefix->add_to_tail(slot_at(i), values[0])) continue;
    fillers[waiting++] = {&s, values[0]};
    if (waiting == kMostFillers) fill_waiting();
  }
  fill_waiting();
}

}  // namespace kvarena
