#pragma once

/// @file
/// The figures of tables and of a prefix cache as JSON: one object on one line, in UTF-8, without a
/// newline. The health server's answers contain the same objects. Members are only added, never
/// renamed. Pure functions of plain values; any thread.

#include "kvarena/base/export.hpp"
#include "kvarena/blocktable/prefix.hpp"
#include "kvarena/blocktable/prefix_figures.hpp"
#include "kvarena/blocktable/sequences.hpp"

#include <string>

namespace kvarena {

/// Returns the figures of all tables: sequences, sequences_ever, tokens, waste_tokens, entries,
/// pages_used, pages_total, copies_on_write, pins, pinned_entries. "" when there is no memory for
/// the text.
KVARENA_EXPORT std::string to_json(const TableStats& tables) noexcept;
/// Returns the figures of a prefix cache: registered_blocks, published_blocks, registrations,
/// queries, query_tokens, hits, hit_blocks, hit_tokens, duplicates, shared, broken_chains; policy,
/// by which the pool evicts; stops (by reason) and removals (by cause), which are objects of
/// counts; lifetime, idle_before_eviction and reuse_gap, which are
/// objects with counts (a list, by bucket) and sum; ghosts (null: none), with sampled_share,
/// references and rates (a list of policy, pools and block_hit_rate). "" when there is no memory
/// for the text.
KVARENA_EXPORT std::string to_json(const PrefixStats& stats, const PrefixUse& use) noexcept;

}  // namespace kvarena
