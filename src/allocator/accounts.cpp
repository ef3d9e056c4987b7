#include "kvarena/allocator/accounts.hpp"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <iterator>

namespace kvarena {
namespace {

/// What would make the request fit, most direct first.
void append_remedy(const Explanation& e, std::back_insert_iterator<std::string> out) {
  if (e.fits) {
    fmt::format_to(out, "it fits\n");
    return;
  }
  const std::int64_t possible = e.stats.num_blocks - e.stats.offline;
  if (e.requested > possible) {
    fmt::format_to(out,
                   "it can never fit: the pool has {} blocks in service; create a larger pool\n",
                   possible);
    return;
  }
  if (e.fenced_returning >= e.missing) {
    fmt::format_to(out, "to make it fit: retire ticket {} and those after it ({} blocks return)\n",
                   e.oldest_open_ticket.value, e.fenced_returning);
  }
  std::int64_t released = e.fenced_returning;
  for (std::size_t i = 0; i < e.num_largest; ++i) {
    released += e.largest[i].references + e.largest[i].reserved;
    if (released < e.missing) continue;
    const std::string who =
        i == 0 ? "the largest holder" : fmt::format("the {} largest holders", i + 1);
    fmt::format_to(out, "to make it fit: release {} (up to {} blocks return)\n", who, released);
    return;
  }
  fmt::format_to(out, "to make it fit: release {} more blocks\n", e.missing);
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

std::string to_string(const Explanation& e) {
  std::string text;
  const auto out = std::back_inserter(text);
  fmt::format_to(out, "{}: {} requested, {} usable, {} missing\n",
                 e.fits ? "blocks" : "out of blocks", e.requested, e.usable, e.missing);
  fmt::format_to(out,
                 "pool of {}: {} free + {} evictable + {} fenced + {} referenced + {} offline; {} "
                 "reserved, watermark {}\n",
                 e.stats.num_blocks, e.stats.free, e.stats.evictable, e.stats.fenced,
                 e.stats.referenced, e.stats.offline, e.stats.reserved, e.stats.watermark);
  if (e.num_largest != 0) fmt::format_to(out, "largest holders:\n");
  for (std::size_t i = 0; i < e.num_largest; ++i) {
    const HolderReport& holder = e.largest[i];
    fmt::format_to(out, "  {} {}: {} references, {} reserved\n", holder.purpose, holder.owner,
                   holder.references, holder.reserved);
  }
  append_remedy(e, out);
  return text;
}

}  // namespace kvarena
