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
  const std::int64_t in_service = e.stats.num_blocks - e.stats.offline;
  const std::int64_t kept = e.urgency == Urgency::admission ? e.stats.watermark : 0;
  if (e.requested > in_service - kept) {
    fmt::format_to(out, "it can never fit: the pool has {} blocks in service", in_service);
    if (kept != 0) fmt::format_to(out, ", {} of which new work leaves free", kept);
    fmt::format_to(out, "; create a larger pool\n");
    return;
  }
  if (e.fenced_returning >= e.missing) {
    fmt::format_to(out, "to make it fit: retire ticket {} and those after it ({} blocks return)\n",
                   e.oldest_open_ticket.value, e.fenced_returning);
  }
  std::int64_t held = 0;
  for (std::size_t i = 0; i < e.num_largest; ++i) {
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
  fmt::format_to(out, "to make it fit: {} blocks more have to return\n", e.missing);
}

}  // namespace

std::string_view name_of(BlockState state) noexcept {
  switch (state) {
    case BlockState::free: return "free";
    case BlockState::referenced: return "referenced";
    case BlockState::fenced: return "fenced";
    case BlockState::evictable: return "evictable";
    case BlockState::offline: return "offline";
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
  fmt::format_to(out, "{}: {} requested{}, {} usable", e.fits ? "blocks" : "out of blocks",
                 e.requested, e.urgency == Urgency::admission ? " for new work" : "", e.usable);
  if (e.promised != 0) fmt::format_to(out, " ({} of them promised to those who ask)", e.promised);
  fmt::format_to(out, ", {} missing\n", e.missing);
  fmt::format_to(out,
                 "pool of {}: {} free + {} evictable + {} fenced + {} referenced + {} offline; {} "
                 "reserved, watermark {}\n",
                 e.stats.num_blocks, e.stats.free, e.stats.evictable, e.stats.fenced,
                 e.stats.referenced, e.stats.offline, e.stats.reserved, e.stats.watermark);
  if (e.num_largest != 0) fmt::format_to(out, "largest holders:\n");
  for (std::size_t i = 0; i < e.num_largest; ++i) {
    const HolderReport& holder = e.largest[i];
    fmt::format_to(out, "  {}: {} references, {} reserved\n", to_string(holder), holder.references,
                   holder.reserved);
  }
  append_remedy(e, out);
  return text;
} catch (const std::bad_alloc&) {
  return out_of_memory_text();
}

}  // namespace kvarena
