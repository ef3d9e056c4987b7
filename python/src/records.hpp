#pragma once

/// @file
/// The members of the C structs by name: how options are read from Python, and results become
/// records. `each_member(struct, visit)` calls `visit(name, member)`.

#include "core.hpp"
#include "group_records.hpp"

#include <type_traits>

namespace kvarena::python {

template <class Visit>
void each_member(kvarena_stats& s, Visit&& visit) {
  visit("num_blocks", s.num_blocks);
  visit("free", s.free_blocks);
  visit("referenced", s.referenced);
  visit("fenced", s.fenced);
  visit("evictable", s.evictable);
  visit("offline", s.offline);
  visit("reserved_blocks", s.reserved_blocks);
  visit("watermark", s.watermark);
  visit("holders", s.holders);
  visit("references", s.references);
  visit("fence_entries", s.fence_entries);
  visit("peak_allocated", s.peak_allocated);
  visit("holders_ever", s.holders_ever);
  visit("allocations", s.allocations);
  visit("releases", s.releases);
  visit("evictions", s.evictions);
  visit("exhaustions", s.exhaustions);
  visit("sequences", s.sequences);
  visit("tokens", s.tokens);
  visit("entries", s.entries);
  visit("waste_tokens", s.waste_tokens);
  visit("pages_used", s.pages_used);
  visit("pages_total", s.pages_total);
  visit("sequences_ever", s.sequences_ever);
  visit("copies_on_write", s.copies_on_write);
  visit("open_tickets", s.open_tickets);
  visit("oldest_ticket", s.oldest_ticket);
  visit("step", s.step);
  visit("published_ns", s.published_ns);
  visit("steps_lost", s.steps_lost);
  visit("missed_launches", s.missed_launches);
  visit("awaited_tickets", s.awaited_tickets);
  visit("audit_blocks", s.audit_blocks);
  visit("audit_passes", s.audit_passes);
  visit("pins", s.pins);
  visit("pinned_entries", s.pinned_entries);
}

template <class Visit>
void each_member(kvarena_sequence_info& s, Visit&& visit) {
  visit("length", s.length_tokens);
  visit("num_blocks", s.num_blocks);
  visit("max_length", s.max_length_tokens);
  visit("waste_tokens", s.waste_tokens);
  visit("since_ns", s.since_ns);
  visit("deadline_ns", s.deadline_ns);
  visit("owner", s.owner);
  visit("holder", s.holder);
  visit("known_tokens", s.known_tokens);
  visit("registered_blocks", s.registered_blocks);
  visit("published_blocks", s.published_blocks);
}

template <class Visit>
void each_member(kvarena_device_info& s, Visit&& visit) {
  visit("total_bytes", s.total_bytes);
  visit("free_bytes", s.free_bytes);
  visit("tracked_bytes", s.tracked_bytes);
  visit("staging_bytes", s.staging_bytes);
  visit("overhead_bytes", s.overhead_bytes);
  visit("bounce_bytes", s.bounce_bytes);
  visit("ordinal", s.ordinal);
  visit("compute_capability", s.compute_capability);
  visit("num_sms", s.num_sms);
  visit("lost_to", s.lost_to);
}

template <class Visit>
void each_member(kvarena_footprint& s, Visit&& visit) {
  visit("num_blocks", s.num_blocks);
  visit("pool_bytes", s.pool_bytes);
  visit("workspace_bytes", s.workspace_bytes);
  visit("table_bytes", s.table_bytes);
  visit("staging_bytes", s.staging_bytes);
  visit("device_bytes", s.device_bytes);
  visit("host_bytes", s.host_bytes);
  visit("device_allocations", s.device_allocations);
  visit("staging_allocations", s.staging_allocations);
}

template <class Visit>
void each_member(kvarena_pool_plan& s, Visit&& visit) {
  visit("num_blocks", s.num_blocks);
  visit("pool_bytes", s.pool_bytes);
  visit("slack_bytes", s.slack_bytes);
  visit("block_bytes", s.block_bytes);
  visit("bytes_per_token", s.bytes_per_token);
}

/// The members of the options that are numbers; words, stream, name and log are read by themselves.
template <class Visit>
void each_member(kvarena_cache_options& s, Visit&& visit) {
  visit("num_layers", s.num_layers);
  visit("num_kv_heads", s.num_kv_heads);
  visit("head_dim", s.head_dim_k);
  visit("head_dim_v", s.head_dim_v);
  visit("block_size", s.block_size_tokens);
  visit("num_blocks", s.num_blocks);
  visit("budget_bytes", s.budget_bytes);
  visit("all_free_but_bytes", s.all_free_but_bytes);
  visit("num_q_heads", s.num_q_heads);
  visit("max_sequences", s.max_sequences);
  visit("max_sequence_tokens", s.max_sequence_tokens);
  visit("max_step_tokens", s.max_step_tokens);
  visit("max_batch_blocks", s.max_batch_blocks);
  visit("watermark_blocks", s.watermark_blocks);
  visit("max_fence_entries", s.max_fence_entries);
  visit("max_table_pages", s.max_table_pages);
  visit("audit_blocks_per_step", s.audit_blocks_per_step);
  visit("batch_invariant_tokens", s.batch_invariant_tokens);
  visit("max_batch_rows", s.max_batch_rows);
  visit("window_tokens", s.window_tokens);
  visit("steps_in_flight", s.steps_in_flight);
  visit("max_open_tickets", s.max_open_tickets);
  visit("num_threads", s.num_threads);
  visit("max_decode_tokens", s.max_decode_tokens);
  visit("max_shared_rows", s.max_shared_rows);
  visit("draft_trees", s.draft_trees);
  visit("max_pins", s.max_pins);
  visit("eager_retire", s.eager_retire);
  visit("page_sequence_tokens", s.page_sequence_tokens);
  visit("checkpoint_every_tokens", s.checkpoint_every_tokens);
  visit("prefix_cache", s.prefix_cache);
  visit("prefix_extra_keys", s.prefix_extra_keys);
  visit("prefix_history", s.prefix_history);
  visit("prefix_key_low", s.prefix_key_low);
  visit("prefix_key_high", s.prefix_key_high);
  visit("prefix_accounts", s.prefix_accounts);
  visit("prefix_ghost_blocks", s.prefix_ghost_blocks);
  visit("prefix_share_parts", s.prefix_share_parts);
}

template <class Visit>
void each_member(kvarena_prefix& s, Visit&& visit) {
  visit("tokens", s.tokens);
  visit("blocks", s.blocks);
  visit("removal_serial", s.removal_serial);
  visit("pending_block", s.pending_block);
  visit("registered_tokens", s.registered_tokens);
  visit("part_tokens", s.part_tokens);
  visit("removal_by", s.removal_by);
  visit("removal_time", s.removal_time);
}

template <class Visit>
void each_member(kvarena_prefix_stats& s, Visit&& visit) {
  visit("registered", s.registered);
  visit("published", s.published);
  visit("registrations", s.registrations);
  visit("removals", s.removals);
  visit("queries", s.queries);
  visit("query_tokens", s.query_tokens);
  visit("hits", s.hits);
  visit("hit_blocks", s.hit_blocks);
  visit("hit_tokens", s.hit_tokens);
  visit("duplicates", s.duplicates);
  visit("shared", s.shared);
  visit("broken_chains", s.broken_chains);
}

template <class Visit>
void each_member(kvarena_kernels_options& s, Visit&& visit) {
  visit("num_kv_heads", s.num_kv_heads);
  visit("head_dim", s.head_dim_k);
  visit("head_dim_v", s.head_dim_v);
  visit("block_size", s.block_size_tokens);
  visit("num_q_heads", s.num_q_heads);
  visit("max_rows", s.max_rows);
  visit("max_q_tokens", s.max_q_tokens);
  visit("num_blocks", s.num_blocks);
  visit("batch_invariant_tokens", s.batch_invariant_tokens);
  visit("max_decode_tokens", s.max_decode_tokens);
  visit("max_shared_rows", s.max_shared_rows);
  visit("window_tokens", s.window_tokens);
  visit("draft_trees", s.draft_trees);
  visit("num_threads", s.num_threads);
  visit("value_in_key", s.value_in_key);
}

template <class Visit>
void each_member(kvarena_monitor_options& s, Visit&& visit) {
  visit("period_ns", s.period_ns);
  visit("pressure_period_ns", s.pressure_period_ns);
  visit("check_limit_ns", s.check_limit_ns);
  visit("ticket_limit_ns", s.ticket_limit_ns);
  visit("holder_grace_ns", s.holder_grace_ns);
  visit("step_limit_ns", s.step_limit_ns);
  visit("drift_warning_bytes", s.drift_warning_bytes);
  visit("drift_limit_bytes", s.drift_limit_bytes);
  visit("blocks_elevated", s.blocks_elevated);
  visit("blocks_critical", s.blocks_critical);
  visit("vram_elevated", s.vram_elevated);
  visit("vram_critical", s.vram_critical);
  visit("vram_exhausted", s.vram_exhausted);
  visit("hysteresis", s.hysteresis);
  visit("ignore_vram", s.ignore_vram);
  visit("no_thread", s.no_thread);
  visit("serve_http", s.serve_http);
  visit("http_port", s.http_port);
  visit("http_max_connections", s.http_max_connections);
  visit("http_request_limit_ms", s.http_request_limit_ms);
  visit("http_max_request_bytes", s.http_max_request_bytes);
}

/// Returns the members as a dictionary.
template <class Struct>
nb::dict members_of(Struct& values) {
  nb::dict result;
  each_member(values,
              [&](const char* name, const auto& member) { result[name] = nb::cast(member); });
  return result;
}

/// Returns the members as the record `name`.
template <class Struct>
nb::object record_of(const char* name, Struct& values) {
  return make_record(name, members_of(values));
}

/// Reads the members from the attributes of `options`. Raises TypeError with the member's name.
template <class Struct>
void read_members(nb::handle options, Struct& values) {
  each_member(values, [&](const char* name, auto& member) {
    using Member = std::remove_reference_t<decltype(member)>;
    const nb::object given = options.attr(name);
    if (!nb::try_cast<Member>(given, member)) {
      const bool is_real = std::is_floating_point_v<Member>;
      raise_type(name, nb::cast<std::string>(nb::repr(given)),
                 is_real ? "a number" : "a whole number in its range");
    }
  });
}

}  // namespace kvarena::python
