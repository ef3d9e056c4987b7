#include "kvarena/blocktable/json.hpp"

#include "base/json_writer.hpp"

#include <new>

namespace kvarena {
namespace {

constexpr double kMillion = 1e6;

void write(JsonWriter& out, const PrefixHistogram& histogram) {
  out.open_object().name("counts").open_list();
  for (const std::uint64_t count : histogram.counts) out.value(count);
  out.close_list().member("sum", histogram.sum).close_object();
}

void write_ghosts(JsonWriter& out, const PrefixUse& use) {
  if (use.ghost_sampled_ppm == 0) {
    out.null();
    return;
  }
  out.open_object()
      .member("sampled_share", static_cast<double>(use.ghost_sampled_ppm) / kMillion)
      .member("references", use.ghost_references)
      .name("rates")
      .open_list();
  for (std::size_t p = 0; p < kGhostPolicies.size(); ++p) {
    for (std::size_t s = 0; s < kGhostHalves.size(); ++s) {
      out.open_object()
          .member("policy", name_of(kGhostPolicies[p]))
          .member("pools", static_cast<double>(kGhostHalves[s]) / 2)
          .member("block_hit_rate", static_cast<double>(use.ghost_hits_ppm[p][s]) / kMillion)
          .close_object();
    }
  }
  out.close_list().close_object();
}

void write(JsonWriter& out, const PrefixStats& stats, const PrefixUse& use) {
  out.open_object()
      .member("registered_blocks", stats.registered)
      .member("published_blocks", stats.published)
      .member("registrations", stats.registrations)
      .member("queries", stats.queries)
      .member("query_tokens", stats.query_tokens)
      .member("hits", stats.hits)
      .member("hit_blocks", stats.hit_blocks)
      .member("hit_tokens", stats.hit_tokens)
      .member("duplicates", stats.duplicates)
      .member("shared", stats.shared)
      .member("broken_chains", stats.broken_chains)
      .member("policy", name_of(static_cast<EvictionPolicy>(use.eviction)))
      .name("stops")
      .open_object();
  for (std::size_t i = 0; i < kNumPrefixStops; ++i) {
    out.member(name_of(static_cast<PrefixStop>(i)), stats.stops[i]);
  }
  out.close_object().name("removals").open_object();
  for (std::size_t i = 0; i < kNumPrefixRemovals; ++i) {
    out.member(name_of(static_cast<PrefixRemoval>(i)), stats.removals_by[i]);
  }
  out.close_object();
  write(out.name("lifetime"), use.lifetime);
  write(out.name("idle_before_eviction"), use.idle);
  write(out.name("reuse_gap"), use.reuse_gap);
  write_ghosts(out.name("ghosts"), use);
  out.close_object();
}

}  // namespace

std::string to_json(const TableStats& tables) noexcept try {
  JsonWriter out;
  out.open_object()
      .member("sequences", tables.sequences)
      .member("sequences_ever", tables.sequences_ever)
      .member("tokens", tables.tokens)
      .member("waste_tokens", tables.waste_tokens)
      .member("entries", tables.entries)
      .member("pages_used", tables.pages_used)
      .member("pages_total", tables.pages_total)
      .member("copies_on_write", tables.copies_on_write)
      .member("pins", tables.pins)
      .member("pinned_entries", tables.pinned_entries)
      .close_object();
  return out.take();
} catch (const std::bad_alloc&) {
  return {};
}

std::string to_json(const PrefixStats& stats, const PrefixUse& use) noexcept try {
  JsonWriter out;
  write(out, stats, use);
  return out.take();
} catch (const std::bad_alloc&) {
  return {};
}

}  // namespace kvarena
