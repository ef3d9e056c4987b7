#include "kvarena/allocator/accounts.hpp"

#include "base/excerpt.hpp"
#include "base/out_of_memory.hpp"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <iterator>
#include <new>

namespace kvarena {
namespace {

/// Writes what would make the request fit, the most direct way first.
void append_remedy(const Explanation& e, std::back_insert_iterator<std::string> out) {
  if (e.fits) {
    fmt::format_to(out, "it fits\n");
    return;
  }
  const bool in_pages = e.num_groups != 0;
  const std::string_view unit = in_pages ? "pages" : "blocks";
  const std::int64_t in_service =
      in_pages ? e.pages.num_pages - e.pages.offline : e.stats.num_blocks - e.stats.offline;
  const std::int64_t kept = e.urgency == Urgency::admission ? e.stats.watermark : 0;
  if (e.requested > in_service - kept) {
    fmt::format_to(out, "it can never fit: the pool has {} {} in service", in_service, unit);
    if (kept != 0) fmt::format_to(out, ", {} of which new work leaves free", kept);
    fmt::format_to(out, "; create a larger pool\n");
    return;
  }
  if (e.fenced_returning >= e.missing) {
    fmt::format_to(out, "to make it fit: retire ticket {} and those after it ({} {} return)\n",
                   e.oldest_open_ticket.value, e.fenced_returning, unit);
  }
  std::int64_t held = 0;
  // Blocks of holders say nothing about the pages that would come back.
  for (std::size_t i = 0; i < e.num_largest && !in_pages; ++i) {
    held += e.largest[i].references + e.largest[i].reserved;
    const bool is_known = e.returning[i] >= 0;
    if ((is_known ? e.returning[i] : held) < e.missing) continue;
    const std::string who =
        i == 0 ? "the largest holder" : fmt::format("the {} largest holders", i + 1);
    if (is_known) {
      fmt::format_to(out, "to make it fit: release {} ({} blocks return)\n", who, e.returning[i]);
    } else {
      fmt::format_to(out, "to make it fit: release {} ({} blocks, less those that others share)\n",
                     who, held);
    }
    return;
  }
  fmt::format_to(out, "to make it fit: {} {} more have to return\n", e.missing, unit);
}

/// Writes from which salts eviction would take blocks.
void append_salts(const Explanation& e, std::back_insert_iterator<std::string> out) {
  if (e.num_salts == 0) return;
  fmt::format_to(out, "evictable:");
  for (std::size_t i = 0; i < e.num_salts; ++i) {
    fmt::format_to(out, "{} {} of salt {}", i == 0 ? "" : ",", e.evictable_salts[i].blocks,
                   e.evictable_salts[i].salt);
  }
  if (e.evictable_of_others != 0) fmt::format_to(out, ", {} of others", e.evictable_of_others);
  fmt::format_to(out, "\n");
}

/// Writes the pages of a pool with groups, and the blocks of each group.
void append_pages(const Explanation& e, std::back_insert_iterator<std::string> out) {
  if (e.num_groups == 0) return;
  fmt::format_to(out, "{} pages: {} free + {} of groups + {} offline; {} of groups are evictable\n",
                 e.pages.num_pages, e.pages.free, e.pages.of_groups, e.pages.offline,
                 e.pages.evictable);
  for (std::size_t g = 0; g < e.num_groups; ++g) {
    const GroupStats& group = e.groups[g];
    fmt::format_to(
        out,
        "group {} ({}): {} pages, {} blocks of {} B: {} free ({} stranded) + {} evictable + {} "
        "fenced + {} referenced + {} offline\n",
        g, name_of(e.kinds[g]), group.pages, group.pages * group.blocks_per_page, group.block_bytes,
        group.free, group.stranded, group.evictable, group.fenced, group.referenced, group.offline);
  }
}

}  // namespace

std::string_view name_of(BlockState state) noexcept {
  switch (state) {
    case BlockState::free: return "free";
    case BlockState::referenced: return "referenced";
    case BlockState::fenced: return "fenced";
    case BlockState::evictable: return "evictable";
    case BlockState::offline: return "offline";
    case BlockState::absent: return "absent";
  }
  return "unknown";
}

std::string_view name_of(BlockContent content) noexcept {
  switch (content) {
    case BlockContent::unwritten: return "unwritten";
    case BlockContent::being_written: return "being_written";
    case BlockContent::published: return "published";
    case BlockContent::failed: return "failed";
  }
  return "unknown";
}

std::string to_string(const HolderReport& holder) {
  const std::string name = fmt::format("{} {}", printable(holder.purpose), holder.number);
  if (holder.owner == 0 || holder.owner == holder.number) return name;
  return fmt::format("{} of owner {}", name, holder.owner);
}

std::string to_string(const Explanation& e) noexcept try {
  std::string text;
  const auto out = std::back_inserter(text);
  const std::string_view unit = e.num_groups != 0 ? "pages" : "blocks";
  const std::string heading = fmt::format("{}{}", e.fits ? "" : "out of ", unit);
  fmt::format_to(out, "{}: {} requested{}, {} usable", heading, e.requested,
                 e.urgency == Urgency::admission ? " for new work" : "", e.usable);
  if (e.promised != 0) fmt::format_to(out, " ({} of them promised to those who ask)", e.promised);
  fmt::format_to(out, ", {} missing\n", e.missing);
  fmt::format_to(out,
                 "pool of {}: {} free + {} evictable + {} fenced + {} referenced + {} offline; {} "
                 "reserved, watermark {}\n",
                 e.stats.num_blocks, e.stats.free, e.stats.evictable, e.stats.fenced,
                 e.stats.referenced, e.stats.offline, e.stats.reserved, e.stats.watermark);
  append_salts(e, out);
  append_pages(e, out);
  if (e.num_largest != 0) fmt::format_to(out, "largest holders:\n");
  for (std::size_t i = 0; i < e.num_largest; ++i) {
    const HolderReport& holder = e.largest[i];
    fmt::format_to(out, "  {}: {} references, {} reserved", to_string(holder), holder.references,
                   holder.reserved);
    if (e.num_groups != 0) fmt::format_to(out, ", {} B", holder.bytes);
    fmt::format_to(out, "\n");
  }
  append_remedy(e, out);
  return text;
} catch (const std::bad_alloc&) {
  return out_of_memory_text();
}

}  // namespace kvarena
