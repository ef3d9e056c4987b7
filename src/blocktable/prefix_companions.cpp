#include "blocktable/prefix_companions.hpp"

#include <algorithm>
#include <utility>

namespace kvarena {

PrefixCompanions::PrefixCompanions(BlockManager& manager, std::vector<bool> is_state)
    : manager_(&manager),
      is_state_(std::move(is_state)),
      firsts_(static_cast<std::size_t>(manager.num_blocks()) * is_state_.size()),
      records_(static_cast<std::size_t>(manager.num_blocks())) {}

std::int64_t PrefixCompanions::bytes(std::int64_t num_blocks, std::int64_t num_groups) noexcept {
  return num_blocks * (num_groups * static_cast<std::int64_t>(sizeof(std::int32_t)) +
                       static_cast<std::int64_t>(sizeof(Record)));
}

bool PrefixCompanions::is_alive(BlockId id) const noexcept {
  return manager_->count_published(std::span(&id, 1),
                                   std::span(&records_[place(id)].generation, 1)) == 1;
}

bool PrefixCompanions::has(BlockId node, std::size_t group) const noexcept {
  const std::int32_t begin = first(node, group);
  if (begin == 0) return false;
  for (std::int32_t i = begin; i != 0; i = records_[place(BlockId(i - 1))].next) {
    if (!is_alive(BlockId(i - 1))) return false;
  }
  return true;
}

std::size_t PrefixCompanions::copy(BlockId node, std::size_t group, std::span<BlockId> ids,
                                   std::span<Generation> generations) const noexcept {
  std::size_t count = 0;
  for (std::int32_t i = first(node, group); i != 0; ++count) {
    const BlockId id(i - 1);
    ids[count] = id;
    generations[count] = records_[place(id)].generation;
    i = records_[place(id)].next;
  }
  return count;
}

/// A block whose record is of another time was taken by others, who told nobody: its old companion
/// is not whole any more.
void PrefixCompanions::attach(BlockId node, std::size_t group, std::span<const BlockId> ids,
                              std::span<const Generation> generations) noexcept {
  if (has(node, group)) return;
  detach(node, group, true);
  for (const BlockId id : ids) {
    if (!has_block(id)) continue;
    const BlockId other(records_[place(id)].node - 1);
    if (has(other, group)) return;
    detach(other, group, false);
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const BlockContent content = manager_->content(ids[i]);
    if (content == BlockContent::published) continue;
    if (content != BlockContent::unwritten) return;  // somebody fills it, or has failed to
    if (!manager_->set_content(ids[i], generations[i], BlockContent::published)) return;
  }
  for (std::size_t i = ids.size(); i-- > 0;) {
    records_[place(ids[i])] = {.node = node.value + 1,
                               .next = i + 1 < ids.size() ? ids[i + 1].value + 1 : 0,
                               .generation = generations[i]};
  }
  first(node, group) = ids.front().value + 1;
}

void PrefixCompanions::detach(BlockId node, std::size_t group, bool unpublishes) noexcept {
  for (std::int32_t i = std::exchange(first(node, group), 0); i != 0;) {
    const BlockId id(i - 1);
    const Generation generation = records_[place(id)].generation;
    // Also of a block that waits to leave service: it may come back.
    const bool is_its =
        manager_->generation(id) == generation && manager_->content(id) == BlockContent::published;
    if (unpublishes && !is_state_[group] && is_its) {
      static_cast<void>(manager_->set_content(id, generation, BlockContent::unwritten));
    }
    i = std::exchange(records_[place(id)], Record{}).next;
  }
}

void PrefixCompanions::drop(BlockId node) noexcept {
  for (std::size_t g = 0; g < is_state_.size(); ++g) detach(node, g, true);
}

void PrefixCompanions::lost(BlockId id) noexcept {
  if (!has_block(id)) return;
  const BlockId node(records_[place(id)].node - 1);
  detach(node, static_cast<std::size_t>(manager_->place_of(id).group), true);
}

Status PrefixCompanions::check(const std::function<bool(BlockId)>& is_node) const {
  const auto violated = [](Invariant invariant, std::int64_t id) {
    return Status{StatusCode::invariant_violated, Resource::block, Option::none,
                  static_cast<std::int32_t>(invariant), static_cast<std::uint64_t>(id)};
  };
  std::int64_t reached = 0;
  for (std::int32_t n = 0; n < manager_->num_blocks(); ++n) {
    const BlockId node(n);
    for (std::size_t g = 0; g < is_state_.size(); ++g) {
      for (std::int32_t i = first(node, g); i != 0; ++reached) {
        const BlockId id(i - 1);
        const Record& record = records_[place(id)];
        const bool is_right = record.node == n + 1 && is_node(node) &&
                              reached < manager_->num_blocks() &&
                              manager_->place_of(id).group == static_cast<std::int32_t>(g);
        if (!is_right) return violated(Invariant::prefix_blocks, id.value);
        i = record.next;
      }
    }
  }
  for (std::int32_t i = 0; i < manager_->num_blocks(); ++i) {
    const BlockId id(i);
    if (has_block(id)) --reached;
    if (is_node(id) || manager_->state(id) != BlockState::evictable) continue;
    if (is_state_[static_cast<std::size_t>(manager_->place_of(id).group)]) continue;
    if (!has_block(id) || !is_alive(id)) return violated(Invariant::prefix_evictable, i);
  }
  return reached == 0 ? Status{} : violated(Invariant::prefix_counts, reached);
}

}  // namespace kvarena
