#include "allocator/eviction_order.hpp"

#include <utility>

namespace kvarena {
namespace {

constexpr std::array<std::pair<EvictionPolicy, std::string_view>, 4> kNames{{
    {EvictionPolicy::tail_first, "tail-first"},
    {EvictionPolicy::head_first, "head-first"},
    {EvictionPolicy::fifo, "fifo"},
    {EvictionPolicy::lfu, "lfu"},
}};

}  // namespace

std::string_view name_of(EvictionPolicy policy) noexcept {
  for (const auto& [value, name] : kNames) {
    if (value == policy) return name;
  }
  return "unknown";
}

std::optional<EvictionPolicy> eviction_policy_of(std::string_view name) noexcept {
  for (const auto& [value, known] : kNames) {
    if (known == name) return value;
  }
  return std::nullopt;
}

/// Every list but the first has a block, so there are at most num_blocks + 1 of them.
EvictionOrder::EvictionOrder(EvictionPolicy policy, std::int64_t num_blocks)
    : policy_(policy),
      links_(static_cast<std::size_t>(num_blocks)),
      list_of_(counts_uses() ? static_cast<std::size_t>(num_blocks) : 0),
      lists_(counts_uses() ? static_cast<std::size_t>(num_blocks) + 1 : 1) {
  lists_[kOnce] = {kNoBlock, kNoBlock, kNoList, kNoList, 1};
}

void EvictionOrder::insert(BlockId id) noexcept {
  append(kOnce, id);
  ++size_;
}

void EvictionOrder::touch(BlockId id) noexcept {
  switch (policy_) {
    case EvictionPolicy::fifo: return;
    case EvictionPolicy::lfu: return count_use(id);
    case EvictionPolicy::tail_first:
    case EvictionPolicy::head_first: unlink(kOnce, id); append(kOnce, id);
  }
}

void EvictionOrder::remove(BlockId id) noexcept {
  const std::uint32_t list = list_of(id);
  unlink(list, id);
  drop_if_empty(list);
  --size_;
}

/// Makes a block the most recent one of a list.
void EvictionOrder::append(std::uint32_t list, BlockId id) noexcept {
  List& to = lists_[list];
  links_[index(id)] = {to.last, kNoBlock};
  (to.last == kNoBlock ? to.first : links_[index(to.last)].later) = id;
  to.last = id;
  if (counts_uses()) list_of_[index(id)] = list;
}

void EvictionOrder::unlink(std::uint32_t list, BlockId id) noexcept {
  List& from = lists_[list];
  const Links links = links_[index(id)];
  (links.earlier == kNoBlock ? from.first : links_[index(links.earlier)].later) = links.later;
  (links.later == kNoBlock ? from.last : links_[index(links.later)].earlier) = links.earlier;
}

/// Moves a block to the list of one more use. A block that is alone in its list takes the list with
/// it where it can: a list more is made only for a block that leaves others behind.
void EvictionOrder::count_use(BlockId id) noexcept {
  const std::uint32_t from = list_of(id);
  const std::int64_t uses = lists_[from].uses + 1;
  const std::uint32_t higher = lists_[from].higher;
  const bool is_there = higher != kNoList && lists_[higher].uses == uses;
  if (!is_there && from != kOnce && lists_[from].first == lists_[from].last) {
    lists_[from].uses = uses;
    return;
  }
  const std::uint32_t to = is_there ? higher : make_list_above(from);
  unlink(from, id);
  append(to, id);
  drop_if_empty(from);
}

/// Returns an empty list of one more use, between `list` and the next higher one.
std::uint32_t EvictionOrder::make_list_above(std::uint32_t list) noexcept {
  std::uint32_t made = spare_list_;
  if (made != kNoList) {
    spare_list_ = lists_[made].higher;
  } else {
    made = lists_made_++;
  }
  List& below = lists_[list];
  lists_[made] = {kNoBlock, kNoBlock, list, below.higher, below.uses + 1};
  if (below.higher != kNoList) lists_[below.higher].lower = made;
  below.higher = made;
  return made;
}

void EvictionOrder::drop_if_empty(std::uint32_t list) noexcept {
  List& old = lists_[list];
  if (list == kOnce || old.first != kNoBlock) return;
  lists_[old.lower].higher = old.higher;
  if (old.higher != kNoList) lists_[old.higher].lower = old.lower;
  old.higher = std::exchange(spare_list_, list);
}

bool EvictionOrder::is_whole() const noexcept {
  std::int64_t seen = 0;
  std::uint32_t list = kOnce;
  do {
    const List& blocks = lists_[list];
    if (list != kOnce && blocks.first == kNoBlock) return false;
    BlockId earlier = kNoBlock;
    for (BlockId id = blocks.first; id != kNoBlock; id = links_[index(id)].later) {
      const bool is_linked = links_[index(id)].earlier == earlier && list_of(id) == list;
      if (!is_linked || ++seen > size_) return false;
      earlier = id;
    }
    if (blocks.last != earlier) return false;
    const std::uint32_t higher = blocks.higher;
    if (higher != kNoList && (lists_[higher].lower != list || lists_[higher].uses <= blocks.uses))
      return false;
    list = higher;
  } while (list != kNoList);
  return seen == size_;
}

}  // namespace kvarena
