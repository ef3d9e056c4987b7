#pragma once

/// @file
/// The figures of accounts.hpp as JSON: one object on one line, in UTF-8, without a newline. The
/// health server's answers contain the same objects. Members are only added, never renamed. Pure
/// functions of plain values; any thread.

#include "kvarena/allocator/accounts.hpp"
#include "kvarena/base/export.hpp"

#include <string>

namespace kvarena {

/// Returns the counts of a pool: total, free, referenced, fenced, evictable, offline, available,
/// reserved, watermark, peak_allocated, holders, holders_ever, references, fence_entries,
/// allocations, releases, evictions, exhaustions. "" when there is no memory for the text.
KVARENA_EXPORT std::string to_json(const BlockStats& stats) noexcept;
/// Returns the figures of a holder: holder, number, owner, purpose, references, reserved, since_ns,
/// deadline_ns. "" when there is no memory for the text.
KVARENA_EXPORT std::string to_json(const HolderReport& holder) noexcept;
/// Returns why a request fits or not: requested, for_new_work, promised, fits, usable, missing,
/// fenced_returning, oldest_open_ticket (null: none), blocks (the counts), largest (a list of
/// holders), returning (a list of as many numbers, null where it is not known), text (to_string). A
/// pool with groups adds pages and groups (PageStats and GroupStats), and holder_bytes (a list as
/// long as largest).
/// "" when there is no memory for the text.
KVARENA_EXPORT std::string to_json(const Explanation& explanation) noexcept;

}  // namespace kvarena
