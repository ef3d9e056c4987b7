#pragma once

/// @file
/// The members of the C structs of caches with groups by name, for records.hpp.

#include "core.hpp"

namespace kvarena::python {

template <class Visit>
void each_member(kvarena_layer_group& g, Visit&& visit) {
  visit("limit_tokens", g.limit_tokens);
  visit("num_kv_heads", g.num_kv_heads);
  visit("head_dim", g.head_dim_k);
  visit("head_dim_v", g.head_dim_v);
  visit("value_in_key", g.value_in_key);
  visit("loses_on_abort", g.loses_on_abort);
  visit("block_size", g.block_size_tokens);
  visit("rollback_tokens", g.rollback_tokens);
  visit("has_token_scales", g.has_token_scales);
  visit("index_dim", g.index_dim);
}

template <class Visit>
void each_member(kvarena_page_stats& s, Visit&& visit) {
  visit("page_bytes", s.page_bytes);
  visit("num_pages", s.num_pages);
  visit("free", s.free);
  visit("of_groups", s.of_groups);
  visit("offline", s.offline);
  visit("evictable", s.evictable);
  visit("reserved", s.reserved);
  visit("watermark", s.watermark);
  visit("peak_used", s.peak_used);
  visit("turned", s.turned);
}

template <class Visit>
void each_member(kvarena_part_stats& s, Visit&& visit) {
  visit("group", s.group);
  visit("block_size", s.block_size_tokens);
  visit("block_bytes", s.block_bytes);
  visit("blocks_per_page", s.blocks_per_page);
  visit("pages", s.pages);
  visit("free", s.free);
  visit("referenced", s.referenced);
  visit("fenced", s.fenced);
  visit("evictable", s.evictable);
  visit("offline", s.offline);
  visit("stranded", s.stranded);
}

}  // namespace kvarena::python
