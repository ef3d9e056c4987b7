#include "scenarios/groups.hpp"

#include <algorithm>
#include <utility>

namespace kvarena::scenarios {
namespace {

constexpr std::size_t kQueuedAtATime = 1024;  // pieces of work before the stream is waited for

/// The value with which a block is filled; never 0, which fresh memory has.
std::uint8_t value_of(BlockId id) noexcept { return static_cast<std::uint8_t>(1 + id.value % 251); }

}  // namespace

Result<PageFiller> PageFiller::create(KvCache& cache) {
  const BlockManager& its = cache.manager();
  const auto num_groups = its.groups().size();
  auto manager = BlockManager::create({.num_blocks = its.num_pages(),
                                       .max_holders = static_cast<std::int32_t>(num_groups),
                                       .max_open_tickets = 1,
                                       .max_fence_entries = 1,
                                       .groups = its.groups(),
                                       .page_bytes = its.page_stats().page_bytes});
  if (!manager) return manager.status();
  PageFiller filler(cache, std::move(*manager));
  for (std::size_t g = 0; g < num_groups; ++g) {
    const auto holder = filler.manager_.register_holder({.number = g, .purpose = "group"});
    if (!holder) return holder.status();
    filler.holdings_.push_back({.holder = *holder, .ids = {}, .generations = {}, .refused = {}});
  }
  return filler;
}

std::byte* PageFiller::address_of(BlockId id) const noexcept {
  const BlockPlace place = manager_.place_of(id);
  return cache_->arena().base() + place.page * manager_.page_stats().page_bytes +
         place.slot * bytes_of(id);
}

std::int64_t PageFiller::bytes_of(BlockId id) const noexcept {
  return manager_.groups()[static_cast<std::size_t>(manager_.place_of(id).group)].block_bytes;
}

/// Takes the blocks of one page, and queues their filling.
Status PageFiller::take_page(std::int32_t group) {
  Holding& its = holdings_[static_cast<std::size_t>(group)];
  const auto count =
      static_cast<std::size_t>(manager_.groups()[static_cast<std::size_t>(group)].blocks_per_page);
  const std::size_t before = its.ids.size();
  its.ids.resize(before + count);
  its.generations.resize(before + count);
  const std::span<BlockId> ids = std::span(its.ids).subspan(before);
  const HolderDemand demand{
      .holder = its.holder, .count = static_cast<std::uint32_t>(count), .group = group};
  const auto taken =
      manager_.allocate_each({&demand, 1}, ids, std::span(its.generations).subspan(before));
  if (!taken) {
    its.ids.resize(before);
    its.generations.resize(before);
    return taken.status();
  }
  Device& device = cache_->device();
  for (const BlockId id : ids) {
    const auto bytes = static_cast<std::uint64_t>(bytes_of(id));
    if (Status s = device.fill(address_of(id), value_of(id), bytes, cache_->stream()); !s) return s;
  }
  return device.synchronize(cache_->stream());
}

verify::MaybeFailure PageFiller::take_until_refused(std::span<const std::int32_t> groups) {
  for (Holding& its : holdings_) its.refused = {};
  bool takes = true;
  while (takes) {
    takes = false;
    for (const std::int32_t group : groups) {
      Holding& its = holdings_[static_cast<std::size_t>(group)];
      if (!its.refused) continue;
      its.refused = take_page(group);
      if (!its.refused && its.refused.code != StatusCode::exhausted) {
        return verify::unexpected("taking a page", its.refused);
      }
      takes = true;
    }
  }
  return std::nullopt;
}

Result<std::int64_t> PageFiller::count_wrong_bytes() const {
  Device& device = cache_->device();
  std::int64_t wrong = 0;
  std::vector<std::uint8_t> seen(2 * kQueuedAtATime);
  for (const Holding& its : holdings_) {
    for (std::size_t at = 0; at < its.ids.size(); at += kQueuedAtATime) {
      const std::size_t count = std::min(kQueuedAtATime, its.ids.size() - at);
      Status status;
      for (std::size_t i = 0; i < count && status; ++i) {
        const BlockId id = its.ids[at + i];
        const std::byte* const first = address_of(id);
        status = device.copy(&seen[2 * i], first, 1, cache_->stream());
        if (!status) break;
        status = device.copy(&seen[2 * i + 1], first + bytes_of(id) - 1, 1, cache_->stream());
      }
      const Status done = device.synchronize(cache_->stream());
      if (status) status = done;
      if (!status) return status;
      for (std::size_t i = 0; i < count; ++i) {
        const std::uint8_t expected = value_of(its.ids[at + i]);
        wrong += (seen[2 * i] == expected ? 0 : 1) + (seen[2 * i + 1] == expected ? 0 : 1);
      }
    }
  }
  return wrong;
}

Status PageFiller::release_all() {
  for (Holding& its : holdings_) {
    if (Status s = manager_.release(its.holder, its.ids, its.generations); !s) return s;
    its.ids.clear();
    its.generations.clear();
  }
  return {};
}

}  // namespace kvarena::scenarios
