#pragma once

/// @file
/// The figures of accounts.hpp as JSON: one object on one line, in UTF-8, without a newline. The
/// health server's answers contain the same objects. Members are only added, never renamed. Pure
/// functions of plain values; any thread.

#include "kvarena/allocator/accounts.hpp"
#include "kvarena/base/export.hpp"

#include <span>
#include <string>

namespace kvarena {

/// Returns the counts of a pool: total, free, referenced, fenced, evictable, offline, available,
/// reserved, watermark, peak_allocated, holders, holders_ever, references, fence_entries,
/// allocations, releases, evictions, exhaustions. "" when there is no memory for the text.
KVARENA_EXPORT std::string to_json(const BlockStats& stats) noexcept;
/// Returns the figures of a holder: holder, number, owner, purpose, references, reserved, since_ns,
/// deadline_ns, bytes (null where the pool does not count them: it has no groups). "" when there is
/// no memory for the text.
KVARENA_EXPORT std::string to_json(const HolderReport& holder) noexcept;
/// Returns why a request fits or not: requested, for_new_work, promised, fits, usable, missing,
/// fenced_returning, oldest_open_ticket (null: none), blocks (the counts), largest (a list of
/// holders), returning (a list of as many numbers, null where it is not known), text (to_string). A
/// pool with groups adds pages and groups (the next two objects), and holder_bytes (a list as long
/// as largest). "" when there is no memory for the text.
KVARENA_EXPORT std::string to_json(const Explanation& explanation) noexcept;
/// Returns the counts of the pages of a pool: total, free, of_groups, offline, evictable, reserved,
/// watermark, peak_used, turned, page_bytes (null: not told). "" when there is no memory for the
/// text.
KVARENA_EXPORT std::string to_json(const PageStats& pages) noexcept;
/// Returns a list of the counts of each group: group (its index), kind, pages, blocks_per_page,
/// block_bytes, free, referenced, fenced, evictable, offline, stranded. `kinds` is as long as
/// `groups`. "" when there is no memory for the text.
KVARENA_EXPORT std::string to_json(std::span<const GroupStats> groups,
                                   std::span<const PagedKind> kinds) noexcept;

}  // namespace kvarena
