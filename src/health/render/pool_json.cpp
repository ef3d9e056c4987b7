#include "health/render/pool_json.hpp"

#include <algorithm>
#include <span>

namespace kvarena {

namespace {

Json blocks_json(const BlockStats& blocks) {
  return {{"total", blocks.num_blocks},        {"free", blocks.free},
          {"referenced", blocks.referenced},   {"fenced", blocks.fenced},
          {"evictable", blocks.evictable},     {"offline", blocks.offline},
          {"available", blocks.available()},   {"reserved", blocks.reserved},
          {"watermark", blocks.watermark},     {"peak_allocated", blocks.peak_allocated},
          {"holders", blocks.holders},         {"holders_ever", blocks.holders_ever},
          {"references", blocks.references},   {"fence_entries", blocks.fence_entries},
          {"allocations", blocks.allocations}, {"releases", blocks.releases},
          {"evictions", blocks.evictions},     {"exhaustions", blocks.exhaustions}};
}

Json tables_json(const TableStats& tables) {
  return {{"sequences", tables.sequences},     {"sequences_ever", tables.sequences_ever},
          {"tokens", tables.tokens},           {"waste_tokens", tables.waste_tokens},
          {"entries", tables.entries},         {"pages_used", tables.pages_used},
          {"pages_total", tables.pages_total}, {"copies_on_write", tables.copies_on_write}};
}

Json ticket_json(Ticket ticket) { return ticket == kNoTicket ? Json(nullptr) : Json(ticket.value); }

Json tickets_json(const PoolHealth& pool, std::int64_t now_ns) {
  const bool any = pool.snapshot.oldest_ticket != kNoTicket;
  const double age = seconds_between(pool.oldest_ticket_ns, now_ns);
  return {{"open", pool.snapshot.open_tickets},
          {"oldest", ticket_json(pool.snapshot.oldest_ticket)},
          {"oldest_age_secs", any ? Json(age) : Json(nullptr)}};
}

Json audit_json(const AuditProgress& audit) {
  return {{"blocks_checked", audit.blocks_checked},
          {"passes", audit.passes},
          {"failure", audit.failure.is_ok() ? Json(nullptr) : Json(describe(audit.failure))}};
}

Json pressure_json(const PoolHealth& pool, std::int64_t now_ns) {
  Json entered = Json::object();
  for (std::size_t l = 0; l < kNumPressureLevels; ++l) {
    entered[std::string(name_of(static_cast<PressureLevel>(l)))] = pool.pressure_entered[l];
  }
  Json cause = nullptr;
  if (pool.pressure != PressureLevel::normal) cause = pool.pressure_by_vram ? "vram" : "blocks";
  return {{"level", name_of(pool.pressure)},
          {"cause", std::move(cause)},
          {"age_secs", pool.looked_ns ? Json(seconds_between(*pool.looked_ns, now_ns)) : nullptr},
          {"entered", std::move(entered)}};
}

/// Seconds from a time that somebody may have given; 0 stands for none.
Json seconds_since(std::int64_t given_ns, std::int64_t then_ns) {
  return given_ns == 0 ? Json(nullptr) : Json(seconds_between(given_ns, then_ns));
}

/// A moment by both clocks.
struct Moment {
  std::int64_t publisher_ns;
  std::int64_t monitor_ns;
};

/// As they were then. `since_ns` is a time of the publisher's clock, a deadline of the monitor's.
Json holders_json(std::span<const HolderReport> reports, const Moment& then) {
  Json holders = Json::array();
  for (const HolderReport& holder : reports) {
    holders.push_back({{"holder", holder.holder.value},
                       {"number", holder.number},
                       {"owner", holder.owner},
                       {"purpose", holder.purpose},
                       {"references", holder.references},
                       {"reserved", holder.reserved},
                       {"since_ns", holder.since_ns},
                       {"deadline_ns", holder.deadline_ns},
                       {"age_secs", seconds_since(holder.since_ns, then.publisher_ns)},
                       {"overdue_secs", seconds_since(holder.deadline_ns, then.monitor_ns)}});
  }
  return holders;
}

/// Blocks that come back when the largest holders end; null where that is not known.
Json returning_json(const Explanation& explanation) {
  Json counts = Json::array();
  for (std::size_t i = 0; i < explanation.num_largest; ++i) {
    const std::int64_t count = explanation.returning[i];
    counts.push_back(count < 0 ? Json(nullptr) : Json(count));
  }
  return counts;
}

Json explanation_json(const Explanation& explanation, const Moment& then) {
  return {{"requested", explanation.requested},
          {"for_new_work", explanation.urgency == Urgency::admission},
          {"promised", explanation.promised},
          {"fits", explanation.fits},
          {"usable", explanation.usable},
          {"missing", explanation.missing},
          {"fenced_returning", explanation.fenced_returning},
          {"oldest_open_ticket", ticket_json(explanation.oldest_open_ticket)},
          {"blocks", blocks_json(explanation.stats)},
          {"largest", holders_json({explanation.largest.data(), explanation.num_largest}, then)},
          {"returning", returning_json(explanation)},
          {"text", to_string(explanation)}};
}

Json details_json(const NamedPoolDetails* named, const PoolHealth& pool, std::int64_t now_ns) {
  if (named == nullptr) return nullptr;
  const PoolDetails& details = named->details;
  // So much older than the snapshot, whose age the monitor knows.
  const std::int64_t older_ns = pool.snapshot.published_ns - details.published_ns;
  const Moment then{details.published_ns, pool.published_ns - std::max<std::int64_t>(0, older_ns)};
  return {{"step", details.step},
          {"age_secs", seconds_between(then.monitor_ns, now_ns)},
          {"explanation", explanation_json(details.explanation, then)},
          {"holders", holders_json(details.holders, then)}};
}

}  // namespace

Json pool_json(const PoolHealth& pool, const NamedPoolDetails* details, std::int64_t now_ns) {
  const PoolSnapshot& snapshot = pool.snapshot;
  return {{"name", pool.name},
          {"step", snapshot.step},
          {"steps_lost", snapshot.steps_lost},
          {"missed_launches", snapshot.missed_launches},
          {"age_secs", seconds_between(pool.published_ns, now_ns)},
          {"pending_work", pool.has_pending_work},
          {"waiting_requests", pool.waiting_requests},
          {"preemptions", pool.preemptions},
          {"pressure", pressure_json(pool, now_ns)},
          {"blocks", blocks_json(snapshot.blocks)},
          {"tables", tables_json(snapshot.tables)},
          {"tickets", tickets_json(pool, now_ns)},
          {"audit", audit_json(snapshot.audit)},
          {"details", details_json(details, pool, now_ns)}};
}

}  // namespace kvarena
