#include "model/naive_pages.hpp"

#include <algorithm>
#include <utility>

namespace kvarena::model {
namespace {

std::size_t raw(BlockId id) { return static_cast<std::size_t>(id.value); }

}  // namespace

NaivePages::NaivePages(std::int64_t num_pages, std::vector<BlockGroup> groups,
                       std::int64_t watermark, EvictionPolicy policy)
    : groups_(std::move(groups)), watermark_(watermark), order_(policy) {
  for (const BlockGroup& group : groups_) ids_per_page_ += group.blocks_per_page;
  blocks_.resize(static_cast<std::size_t>(num_pages * ids_per_page_));
  pages_.resize(static_cast<std::size_t>(num_pages));
  for (std::size_t page = pages_.size(); page-- > 0;) free_.push_back(page);
}

// ---- what a page is -----------------------------------------------------------------------------

BlockId NaivePages::id_of(std::size_t page, int group, int slot) const {
  std::int64_t id = static_cast<std::int64_t>(page) * ids_per_page_;
  for (int g = 0; g < group; ++g) id += num_slots(g);
  return BlockId(static_cast<std::int32_t>(id + slot));
}

std::size_t NaivePages::page_of(BlockId id) const {
  return raw(id) / static_cast<std::size_t>(ids_per_page_);
}

int NaivePages::group_of(BlockId id) const {
  std::int64_t place = id.value % ids_per_page_;
  int group = 0;
  while (place >= num_slots(group)) place -= num_slots(group++);
  return group;
}

std::int64_t NaivePages::bytes_of(BlockId id) const {
  return groups_[static_cast<std::size_t>(group_of(id))].block_bytes;
}

bool NaivePages::is_free(BlockId id) const {
  const Block& b = at(id);
  const Page& page = pages_[page_of(id)];
  return page.in_service && page.group == group_of(id) && !b.is_held() && !b.offline && !b.cached;
}

/// Whether the page's owner keeps single slots of it to itself.
bool NaivePages::is_kept(std::size_t page) const {
  const HolderId owner = pages_[page].owner;
  return owner != kNoHolder && num_slots(pages_[page].group) > 1 && holders_.at(owner).keeps_pages;
}

BlockState NaivePages::state(BlockId id) const {
  const Block& b = at(id);
  if (b.live != 0) return BlockState::referenced;
  if (!b.fences.empty()) return BlockState::fenced;
  if (b.offline) return BlockState::offline;
  if (b.cached) return BlockState::evictable;
  return is_free(id) ? BlockState::free : BlockState::absent;
}

NaivePages::Slots NaivePages::slots_of(std::size_t page) const {
  Slots slots;
  const int group = pages_[page].group;
  for (int slot = 0; group >= 0 && slot < num_slots(group); ++slot) {
    const Block& b = at(id_of(page, group, slot));
    ++(b.is_held() ? slots.held : b.offline ? slots.offline : b.cached ? slots.cached : slots.free);
  }
  return slots;
}

/// Notes since when a carved page is what it is, and ends it when nothing is left of it.
void NaivePages::refresh(std::size_t number) {
  Page& page = pages_[number];
  if (page.group < 0 || !page.in_service) return;
  ++now_;
  const Slots slots = slots_of(number);
  const bool is_idle = slots.is_idle();
  const bool is_cached = slots.cached > 0 && !is_idle;
  if (is_idle && !page.was_idle) order_.arrive(key_of(number), run_);
  if (!is_idle && page.was_idle) order_.leave(key_of(number));
  if (is_cached && !page.was_cached) page.cached_since = now_;
  if (is_idle) page.owner = kNoHolder;
  const bool is_held = slots.held + slots.offline > 0;
  if (slots.free != page.num_free || is_held != page.was_held) page.free_changed = now_;
  page.num_free = slots.free;
  page.was_idle = is_idle;
  page.was_cached = is_cached;
  page.was_held = is_held;
  if (slots.held + slots.cached > 0) return;
  order_.forget(key_of(number));
  if (slots.offline > 0) {
    page.in_service = false;
    page.owner = kNoHolder;
    return;
  }
  page = Page{};
  free_.push_back(number);
}

void NaivePages::drop(BlockId id) {
  Block& b = at(id);
  if (b.leaving) {
    b.offline = true;
    b.leaving = false;
    ++b.generation;
  } else if (b.content == BlockContent::published) {
    b.cached = true;
  } else {
    ++b.generation;
  }
  if (!b.cached) b.content = BlockContent::unwritten;
  refresh(page_of(id));
}

std::int64_t NaivePages::usable(Urgency urgency) const {
  std::int64_t left = available() - (urgency == Urgency::admission ? watermark_ : 0);
  for (const auto& [id, holder] : holders_) left -= holder.reserved;
  return std::max<std::int64_t>(0, left);
}

// ---- taking -------------------------------------------------------------------------------------

PageHandle NaivePages::hand_out(BlockId id) {
  at(id).live = 1;
  refresh(page_of(id));
  return {id, Generation(at(id).generation)};
}

void NaivePages::evict(BlockId id) {
  at(id).cached = false;
  at(id).content = BlockContent::unwritten;
  ++at(id).generation;
  evicted_.push_back(id);
}

/// The lowest free slot of the page that the holder turned last.
bool NaivePages::take_own(HolderId holder, int group, PageHandle& handle) {
  std::optional<std::size_t> last;
  for (std::size_t page = 0; page < pages_.size(); ++page) {
    if (pages_[page].owner != holder || pages_[page].group != group) continue;
    if (!last || pages_[page].turned_at > pages_[*last].turned_at) last = page;
  }
  for (int slot = 0; last && slot < num_slots(group); ++slot) {
    if (!is_free(id_of(*last, group, slot))) continue;
    handle = hand_out(id_of(*last, group, slot));
    return true;
  }
  return false;
}

/// Turns a free page, or the idle one that the policy says.
bool NaivePages::take_of_new_page(HolderId holder, int group, Urgency urgency, bool unlimited,
                                  std::int64_t& promised, PageHandle& handle) {
  if (available() == 0) return false;
  if (promised > 0) {
    --promised;
    --holders_[holder].reserved;
  } else if (!unlimited && usable(urgency) == 0) {
    return false;
  }
  std::size_t page = 0;
  if (!free_.empty()) {
    page = free_.back();
    free_.pop_back();
  } else {
    page = static_cast<std::size_t>(order_.evict().value);
    for (int slot = 0; slot < num_slots(pages_[page].group); ++slot) {
      const BlockId id = id_of(page, pages_[page].group, slot);
      if (at(id).cached) evict(id);
    }
  }
  pages_[page] = Page{.group = group, .owner = holder, .turned_at = ++now_};
  peak_used_ = std::max(peak_used_, static_cast<std::int64_t>(pages_.size() - free_.size()));
  ++turned_;
  handle = hand_out(id_of(page, group, 0));
  return true;
}

/// An evictable block of the page that has had some for longest, or a free one of the fullest page.
bool NaivePages::take_leftover(int group, PageHandle& handle) {
  std::optional<std::size_t> cached;
  std::optional<std::size_t> fullest;
  for (std::size_t p = 0; p < pages_.size(); ++p) {
    const Page& page = pages_[p];
    const Slots slots = slots_of(p);
    if (page.group != group || !page.in_service || slots.is_idle() || is_kept(p)) continue;
    if (slots.cached > 0 && (!cached || page.cached_since < pages_[*cached].cached_since)) {
      cached = p;
    }
    if (slots.free == 0) continue;
    const bool is_fuller = !fullest || slots.free < slots_of(*fullest).free ||
                           (slots.free == slots_of(*fullest).free &&
                            page.free_changed > pages_[*fullest].free_changed);
    if (is_fuller) fullest = p;
  }
  for (int slot = num_slots(group) - 1; cached && slot >= 0; --slot) {
    const BlockId id = id_of(*cached, group, slot);
    if (!at(id).cached) continue;
    evict(id);
    handle = hand_out(id);
    return true;
  }
  for (int slot = 0; fullest && slot < num_slots(group); ++slot) {
    if (!is_free(id_of(*fullest, group, slot))) continue;
    handle = hand_out(id_of(*fullest, group, slot));
    return true;
  }
  return false;
}

/// Gives demands of one urgency, or of all, slots of their own pages and new pages.
void NaivePages::serve_pages(std::span<const HolderDemand> demands, Urgency urgency,
                             std::vector<PageHandle>& handles, std::vector<std::int64_t> promised,
                             std::optional<Urgency> only, bool may_turn_all) {
  std::size_t first = 0;
  for (std::size_t d = 0; d < demands.size(); ++d) {
    const HolderDemand& demand = demands[d];
    const Urgency its = demand.urgency.value_or(urgency);
    for (std::size_t i = 0; i < demand.count && its == only.value_or(its); ++i) {
      PageHandle& handle = handles[first + i];
      const bool may_all = may_turn_all && its == Urgency::admission;
      if (!take_own(demand.holder, demand.group, handle) &&
          !take_of_new_page(demand.holder, demand.group, its, may_all, promised[d], handle)) {
        break;
      }
    }
    first += demand.count;
  }
}

/// The pages that each demand wants, and how many of them were promised: a holder's promise serves
/// its demands in their order.
std::vector<NaivePages::WantedPages> NaivePages::wanted_by(
    std::span<const HolderDemand> demands) const {
  NaivePages trial = *this;
  std::vector<WantedPages> all;
  for (const HolderDemand& demand : demands) {
    std::int64_t left = demand.count;
    PageHandle handle;
    while (left > 0 && trial.take_own(demand.holder, demand.group, handle)) --left;
    const std::int64_t m = num_slots(demand.group);
    const std::int64_t pages = (left + m - 1) / m;
    std::int64_t& reserved = trial.holders_[demand.holder].reserved;
    const std::int64_t promised = std::min(reserved, pages);
    reserved -= promised;
    all.push_back({pages, promised});
  }
  return all;
}

std::vector<std::int64_t> NaivePages::promises_of(std::span<const HolderDemand> demands) const {
  std::vector<std::int64_t> promises;
  for (const WantedPages& wanted : wanted_by(demands)) promises.push_back(wanted.promised);
  return promises;
}

/// Gives growth what is left over. Returns whether everybody has everything then.
bool NaivePages::serve_leftovers(std::span<const HolderDemand> demands, Urgency urgency,
                                 std::vector<PageHandle>& handles) {
  bool all = true;
  std::size_t first = 0;
  for (const HolderDemand& demand : demands) {
    const Urgency its = demand.urgency.value_or(urgency);
    for (std::size_t i = first; i < first + demand.count; ++i) {
      if (handles[i].id != kNoBlock) continue;
      all = all && its == Urgency::growth && take_leftover(demand.group, handles[i]);
    }
    first += demand.count;
  }
  return all;
}

/// Growth is served first, whatever the order of the demands.
bool NaivePages::fits(std::span<const HolderDemand> demands, Urgency urgency) const {
  NaivePages trial = *this;
  std::size_t count = 0;
  for (const HolderDemand& demand : demands) count += demand.count;
  std::vector<PageHandle> handles(count, PageHandle{kNoBlock, {}});
  const std::vector<std::int64_t> promised = promises_of(demands);
  trial.serve_pages(demands, urgency, handles, promised, Urgency::growth, false);
  trial.serve_pages(demands, urgency, handles, promised, Urgency::admission, false);
  return trial.serve_leftovers(demands, urgency, handles);
}

/// The pages that all demands want, and those that could be had.
Status NaivePages::refusal(std::span<const HolderDemand> demands, Urgency urgency) const {
  const std::vector<WantedPages> all = wanted_by(demands);
  std::int64_t wanted = 0;
  std::int64_t beyond = 0;
  bool any_admission = false;
  for (std::size_t d = 0; d < all.size(); ++d) {
    wanted += all[d].pages;
    beyond += all[d].pages - all[d].promised;
    any_admission = any_admission || (demands[d].urgency.value_or(urgency) == Urgency::admission &&
                                      all[d].pages > all[d].promised);
  }
  const Urgency of_all = any_admission ? Urgency::admission : Urgency::growth;
  return exhausted(Resource::page, static_cast<std::uint64_t>(wanted),
                   static_cast<std::uint64_t>(wanted - beyond + usable(of_all)));
}

Status NaivePages::allocate(std::span<const HolderDemand> demands, Urgency urgency,
                            std::vector<PageHandle>& handles) {
  if (!fits(demands, urgency)) return refusal(demands, urgency);
  evicted_.clear();
  std::ranges::fill(handles, PageHandle{kNoBlock, {}});
  serve_pages(demands, urgency, handles, promises_of(demands), std::nullopt, true);
  serve_leftovers(demands, urgency, handles);
  for (const HolderDemand& demand : demands) {
    holders_[demand.holder].references += demand.count;
    holders_[demand.holder].bytes +=
        demand.count * groups_[static_cast<std::size_t>(demand.group)].block_bytes;
  }
  return {};
}

// ---- other calls --------------------------------------------------------------------------------

StatusCode NaivePages::unregister_holder(HolderId id) {
  if (holders_.at(id).references != 0) return StatusCode::failed_precondition;
  // Its pages can be taken apart from now on: the last one that it turned is the first of them.
  std::vector<std::size_t> own;
  for (std::size_t p = 0; p < pages_.size(); ++p) {
    if (pages_[p].owner == id) own.push_back(p);
  }
  std::ranges::sort(own, [&](std::size_t a, std::size_t b) {
    return std::pair(pages_[a].group, pages_[b].turned_at) <
           std::pair(pages_[b].group, pages_[a].turned_at);
  });
  for (const std::size_t p : own) {
    if (is_kept(p)) pages_[p].free_changed = pages_[p].cached_since = ++now_;
  }
  for (const std::size_t p : own) pages_[p].owner = kNoHolder;
  holders_.erase(id);
  return StatusCode::ok;
}

StatusCode NaivePages::reserve(HolderId id, std::int64_t pages, Urgency urgency) {
  Holder& holder = holders_.at(id);
  if (pages - holder.reserved > 0 && pages - holder.reserved > usable(urgency)) {
    return StatusCode::exhausted;
  }
  holder.reserved = pages;
  holder.keeps_pages = true;
  return StatusCode::ok;
}

StatusCode NaivePages::retain(HolderId id, std::span<const PageHandle> handles) {
  Holder& holder = holders_.at(id);
  std::vector<std::size_t> revived;
  for (const PageHandle& handle : handles) {
    const Block& b = at(handle.id);
    const bool can_be_found = b.content == BlockContent::published && !b.leaving && !b.offline;
    if (b.generation != handle.generation.value || (b.live == 0 && !can_be_found)) {
      return StatusCode::stale_handle;
    }
    const std::size_t page = page_of(handle.id);
    const bool counted = std::ranges::find(revived, page) != revived.end();
    if (b.cached && slots_of(page).is_idle() && !counted) revived.push_back(page);
  }
  const auto pages = static_cast<std::int64_t>(revived.size());
  if (pages > holder.reserved + usable(Urgency::growth)) return StatusCode::exhausted;
  holder.reserved -= std::min(holder.reserved, pages);
  std::optional<std::size_t> used;
  for (const PageHandle& handle : handles) {
    ++at(handle.id).live;
    at(handle.id).cached = false;
    ++holder.references;
    holder.bytes += bytes_of(handle.id);
    const std::size_t page = page_of(handle.id);
    refresh(page);
    if (at(handle.id).content != BlockContent::published || page == used) continue;
    used = page;
    order_.use(key_of(page));
  }
  return StatusCode::ok;
}

StatusCode NaivePages::release(HolderId id, std::span<const PageHandle> handles,
                               std::optional<Ticket> ticket) {
  std::map<BlockId, std::int64_t> taken;
  for (const PageHandle& handle : handles) {
    const Block& b = at(handle.id);
    if (b.generation != handle.generation.value || b.live <= taken[handle.id]) {
      const bool released_last =
          b.live - taken[handle.id] == 0 &&
          (handle.generation.value == b.generation || handle.generation.value + 1 == b.generation);
      return released_last ? StatusCode::double_release : StatusCode::stale_handle;
    }
    ++taken[handle.id];
  }
  Holder& holder = holders_.at(id);
  if (holder.references < static_cast<std::int64_t>(handles.size())) {
    return StatusCode::reference_underflow;
  }
  for (const PageHandle& handle : handles) {
    if (!ticket) break;
    at(handle.id).fences.push_back(*ticket);
    fenced_[*ticket].push_back(handle.id);
  }
  run_ = id.value;
  // All references on a block go at the first place where it is listed.
  for (const PageHandle& handle : handles) {
    --holder.references;
    holder.bytes -= bytes_of(handle.id);
    const std::int64_t going = std::exchange(taken[handle.id], 0);
    at(handle.id).live -= going;
    if (going > 0 && !at(handle.id).is_held()) drop(handle.id);
  }
  run_ = 0;
  return StatusCode::ok;
}

void NaivePages::retire(Ticket ticket) {
  order_.end_run();
  run_ = ticket.value;
  for (const BlockId id : fenced_[ticket]) {
    std::vector<Ticket>& fences = at(id).fences;
    fences.erase(std::ranges::find(fences, ticket));
    if (!at(id).is_held()) drop(id);
  }
  fenced_.erase(ticket);
  order_.end_run();
  run_ = 0;
}

StatusCode NaivePages::set_content(const PageHandle& handle, BlockContent content) {
  Block& b = at(handle.id);
  if (b.generation != handle.generation.value || (!b.is_held() && !b.cached)) {
    return StatusCode::stale_handle;
  }
  if (b.content == BlockContent::published && content == BlockContent::being_written) {
    return StatusCode::failed_precondition;
  }
  if (b.is_held()) {
    b.content = content;
  } else if (content != BlockContent::published) {
    b.cached = false;
    b.content = BlockContent::unwritten;
    ++b.generation;
    refresh(page_of(handle.id));
  }
  return StatusCode::ok;
}

int NaivePages::quarantine(BlockId id) {
  Block& b = at(id);
  const std::size_t number = page_of(id);
  Page& page = pages_[number];
  if (b.offline) return 1;
  if (b.is_held()) {
    b.leaving = true;
    return 0;
  }
  if (page.group != -1 && page.group != group_of(id)) return -1;
  const bool is_available = page.group == -1 || (page.in_service && slots_of(number).is_idle());
  const bool is_promised = page.group != -1 && is_kept(number);
  if ((is_available || is_promised) && usable(Urgency::growth) == 0) return -1;
  if (is_promised) ++holders_.at(page.owner).reserved;
  b.offline = true;
  b.cached = false;
  b.content = BlockContent::unwritten;
  ++b.generation;
  if (page.group == -1) {
    free_.erase(std::ranges::find(free_, number));
    page.group = group_of(id);
    page.in_service = false;
    peak_used_ = std::max(peak_used_, static_cast<std::int64_t>(pages_.size() - free_.size()));
  }
  refresh(number);
  return 1;
}

StatusCode NaivePages::restore(BlockId id) {
  Block& b = at(id);
  const std::size_t number = page_of(id);
  if (b.leaving) {
    b.leaving = false;
    return StatusCode::ok;
  }
  if (!b.offline) return StatusCode::failed_precondition;
  b.offline = false;
  if (!pages_[number].in_service && slots_of(number).offline == 0) {
    pages_[number] = Page{};
    free_.push_back(number);
  }
  refresh(number);
  return StatusCode::ok;
}

}  // namespace kvarena::model
