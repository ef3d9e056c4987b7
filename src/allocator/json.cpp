#include "kvarena/allocator/json.hpp"

#include "base/json_writer.hpp"

#include <new>

namespace kvarena {
namespace {

void write(JsonWriter& out, const BlockStats& stats) {
  out.open_object()
      .member("total", stats.num_blocks)
      .member("free", stats.free)
      .member("referenced", stats.referenced)
      .member("fenced", stats.fenced)
      .member("evictable", stats.evictable)
      .member("offline", stats.offline)
      .member("available", stats.available())
      .member("reserved", stats.reserved)
      .member("watermark", stats.watermark)
      .member("peak_allocated", stats.peak_allocated)
      .member("holders", stats.holders)
      .member("holders_ever", stats.holders_ever)
      .member("references", stats.references)
      .member("fence_entries", stats.fence_entries)
      .member("allocations", stats.allocations)
      .member("releases", stats.releases)
      .member("evictions", stats.evictions)
      .member("exhaustions", stats.exhaustions)
      .close_object();
}

void write(JsonWriter& out, const HolderReport& holder) {
  out.open_object()
      .member("holder", holder.holder.value)
      .member("number", holder.number)
      .member("owner", holder.owner)
      .member("purpose", holder.purpose)
      .member("references", holder.references)
      .member("reserved", holder.reserved)
      .member("since_ns", holder.since_ns)
      .member("deadline_ns", holder.deadline_ns)
      .name("bytes");
  // A pool without groups counts no bytes.
  const bool is_known = holder.bytes != 0 || holder.references == 0;
  (is_known ? out.value(holder.bytes) : out.null()).close_object();
}

void write(JsonWriter& out, const PageStats& pages) {
  out.open_object()
      .member("total", pages.num_pages)
      .member("free", pages.free)
      .member("of_groups", pages.of_groups)
      .member("offline", pages.offline)
      .member("evictable", pages.evictable)
      .member("reserved", pages.reserved)
      .member("watermark", pages.watermark)
      .member("peak_used", pages.peak_used)
      .member("turned", pages.turned)
      .name("page_bytes");
  (pages.page_bytes == 0 ? out.null() : out.value(pages.page_bytes)).close_object();
}

/// The groups of a pool, and what the layers of each keep.
struct Groups {
  std::span<const GroupStats> counts;
  std::span<const PagedKind> kinds;
};

void write(JsonWriter& out, const Groups& groups) {
  out.open_list();
  for (std::size_t g = 0; g < groups.counts.size(); ++g) {
    const GroupStats& group = groups.counts[g];
    out.open_object()
        .member("group", g)
        .member("kind", name_of(groups.kinds[g]))
        .member("pages", group.pages)
        .member("blocks_per_page", group.blocks_per_page)
        .member("block_bytes", group.block_bytes)
        .member("free", group.free)
        .member("referenced", group.referenced)
        .member("fenced", group.fenced)
        .member("evictable", group.evictable)
        .member("offline", group.offline)
        .member("stranded", group.stranded)
        .close_object();
  }
  out.close_list();
}

/// Writes the pages and groups of a pool that has groups, and the bytes of its largest holders.
void write_pages(JsonWriter& out, const Explanation& explanation) {
  const std::size_t count = explanation.num_groups;
  if (count == 0) return;
  write(out.name("pages"), explanation.pages);
  write(out.name("groups"), Groups{.counts = std::span(explanation.groups).first(count),
                                   .kinds = std::span(explanation.kinds).first(count)});
  out.name("holder_bytes").open_list();
  for (std::size_t i = 0; i < explanation.num_largest; ++i) out.value(explanation.largest[i].bytes);
  out.close_list();
}

void write_largest(JsonWriter& out, const Explanation& explanation) {
  out.name("largest").open_list();
  for (std::size_t i = 0; i < explanation.num_largest; ++i) write(out, explanation.largest[i]);
  out.close_list().name("returning").open_list();
  for (std::size_t i = 0; i < explanation.num_largest; ++i) {
    const std::int64_t count = explanation.returning[i];
    count < 0 ? out.null() : out.value(count);
  }
  out.close_list();
}

/// Only where salts have accounts.
void write_salts(JsonWriter& out, const Explanation& explanation) {
  if (explanation.num_salts == 0) return;
  out.name("evictable_salts").open_list();
  for (std::size_t i = 0; i < explanation.num_salts; ++i) {
    const SaltShare& share = explanation.evictable_salts[i];
    out.open_object().member("salt", share.salt).member("blocks", share.blocks).close_object();
  }
  out.close_list().member("evictable_of_others", explanation.evictable_of_others);
}

void write(JsonWriter& out, const Explanation& explanation) {
  const Ticket oldest = explanation.oldest_open_ticket;
  out.open_object()
      .member("requested", explanation.requested)
      .member("for_new_work", explanation.urgency == Urgency::admission)
      .member("promised", explanation.promised)
      .member("fits", explanation.fits)
      .member("usable", explanation.usable)
      .member("missing", explanation.missing)
      .member("fenced_returning", explanation.fenced_returning)
      .name("oldest_open_ticket");
  oldest == kNoTicket ? out.null() : out.value(oldest.value);
  write(out.name("blocks"), explanation.stats);
  write_largest(out, explanation);
  write_salts(out, explanation);
  write_pages(out, explanation);
  out.member("text", std::string_view(to_string(explanation))).close_object();
}

/// Writes one value as a document.
template <class Value>
std::string document_of(const Value& value) noexcept try {
  JsonWriter out;
  write(out, value);
  return out.take();
} catch (const std::bad_alloc&) {
  return {};
}

}  // namespace

std::string to_json(const BlockStats& stats) noexcept { return document_of(stats); }
std::string to_json(const HolderReport& holder) noexcept { return document_of(holder); }
std::string to_json(const Explanation& explanation) noexcept { return document_of(explanation); }
std::string to_json(const PageStats& pages) noexcept { return document_of(pages); }
std::string to_json(std::span<const GroupStats> groups, std::span<const PagedKind> kinds) noexcept {
  return document_of(Groups{.counts = groups, .kinds = kinds});
}

}  // namespace kvarena
