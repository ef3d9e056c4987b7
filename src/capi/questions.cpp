// Questions about a cache.

#include "capi/questions.hpp"

#include "capi/json.hpp"
#include "capi/objects.hpp"

#include "kvarena/allocator/json.hpp"
#include "kvarena/blocktable/json.hpp"

#include <new>
#include <string>
#include <utility>
#include <vector>

using namespace kvarena;
using namespace kvarena::capi;

namespace {

void add_stats(const KvCache& cache, kvarena_stats& stats) noexcept {
  add_steps(cache.snapshot(), stats);
  add_blocks(cache.manager().stats(), stats);
  add_tables(cache.tables().stats(), stats);
  stats.open_tickets = cache.manager().num_open_tickets();
  stats.oldest_ticket = cache.manager().oldest_open_ticket().value;
}

/// Parses what the library has written; "" says that there was no memory.
Json parsed(const std::string& text) {
  if (text.empty()) throw std::bad_alloc();
  return Json::parse(text);
}

/// Adds the pages and groups of a pool: null and an empty list where it has no groups.
void add_groups(const BlockManager& manager, Json& json) {
  std::vector<GroupStats> groups;
  std::vector<PagedKind> kinds;
  for (const BlockGroup& group : manager.groups()) {
    kinds.push_back(group.kind);
    groups.push_back(manager.group_stats(static_cast<std::int32_t>(groups.size())));
  }
  json["pages"] = groups.empty() ? Json(nullptr) : parsed(kvarena::to_json(manager.page_stats()));
  json["groups"] = parsed(kvarena::to_json(groups, kinds));
}

Json stats_json(const KvCache& cache) {
  const PoolSnapshot published = cache.snapshot();
  const Ticket oldest = cache.manager().oldest_open_ticket();
  Json json{{"step", published.step}, {"published_ns", published.published_ns}};
  json["blocks"] = parsed(kvarena::to_json(cache.manager().stats()));
  add_groups(cache.manager(), json);
  const BlockTables& tables = cache.tables();
  json["tables"] = parsed(kvarena::to_json(tables.stats()));
  json["prefix_cache"] = tables.has_prefix_cache()
                             ? parsed(kvarena::to_json(tables.prefix_stats(), tables.prefix_use()))
                             : Json(nullptr);
  json["tickets"] = {{"open", cache.manager().num_open_tickets()},
                     {"oldest", oldest == kNoTicket ? Json(nullptr) : Json(oldest.value)},
                     {"awaited", published.awaited_tickets}};
  json["steps_lost"] = published.steps_lost;
  json["missed_launches"] = published.missed_launches;
  const AuditProgress& audit = published.audit;
  json["audit"] = {{"blocks_checked", audit.blocks_checked},
                   {"passes", audit.passes},
                   {"failure", audit.failure ? Json(nullptr) : Json(describe(audit.failure))}};
  return json;
}

Json details_json(const PoolDetails& details) {
  Json holders = Json::array();
  for (const HolderReport& holder : details.holders) {
    holders.push_back(parsed(kvarena::to_json(holder)));
  }
  Json json{{"step", details.step}, {"published_ns", details.published_ns}};
  json["explanation"] = parsed(kvarena::to_json(details.explanation));
  json["holders"] = std::move(holders);
  return json;
}

/// Answers a question about blocks as text.
template <class Render>
kvarena_status explain_as(kvarena_cache* cache, const Question& question, const TextTarget& target,
                          Render&& render) {
  return enter<CacheObject>(cache, [&](CacheObject& object) {
    return write_explanation(object.get().tables(), question, target, render);
  });
}

}  // namespace

kvarena_status kvarena_cache_stats(kvarena_cache* cache, kvarena_stats* stats) {
  return enter<CacheObject>(cache, [&](CacheObject& object) -> Status {
    if (Status s = check_target(stats); !s) return s;
    fill_struct(stats, [&](kvarena_stats& filled) { add_stats(object.get(), filled); });
    return {};
  });
}

kvarena_status kvarena_cache_snapshot(kvarena_cache* cache, kvarena_stats* stats) {
  return visit<CacheObject>(cache, [&](CacheObject& object) -> Status {
    if (Status s = check_target(stats); !s) return s;
    const PoolSnapshot published = object.get().snapshot();
    kvarena_stats result{};
    add_steps(published, result);
    add_blocks(published.blocks, result);
    add_tables(published.tables, result);
    result.open_tickets = published.open_tickets;
    result.oldest_ticket = published.oldest_ticket.value;
    write_struct(result, stats);
    return {};
  });
}

kvarena_status kvarena_cache_request_details(kvarena_cache* cache) {
  return visit<CacheObject>(cache, [](CacheObject& object) -> Status {
    object.get().publisher().request_details();
    return {};
  });
}

kvarena_status kvarena_cache_details_json(kvarena_cache* cache, char* out, size_t size,
                                          size_t* length) {
  return visit_text<CacheObject>(cache, {out, size, length}, [](CacheObject& object) {
    return to_text(details_json(object.get().publisher().details()));
  });
}

kvarena_status kvarena_cache_has_pending_work(kvarena_cache* cache, bool* pending) {
  return visit<CacheObject>(cache, [&](CacheObject& object) -> Status {
    if (pending == nullptr) return refused_null();
    *pending = object.get().publisher().has_pending_work();
    return {};
  });
}

kvarena_status kvarena_cache_stats_json(kvarena_cache* cache, char* out, size_t size,
                                        size_t* length) {
  return enter_text<CacheObject>(cache, {out, size, length}, [](CacheObject& object) {
    return to_text(stats_json(object.get()));
  });
}

kvarena_status kvarena_cache_can_allocate(kvarena_cache* cache, int64_t blocks, int32_t urgency,
                                          bool* can) {
  return enter<CacheObject>(cache, [&](CacheObject& object) {
    return write_can_allocate(object.get().manager(), blocks, urgency, can);
  });
}

kvarena_status kvarena_cache_available(kvarena_cache* cache, kvarena_ticket ticket, int64_t* now,
                                       int64_t* after) {
  return enter<CacheObject>(cache, [&](CacheObject& object) -> Status {
    write_available(object.get().manager(), ticket, now, after);
    return {};
  });
}

kvarena_status kvarena_cache_explain(kvarena_cache* cache, const kvarena_status* refused,
                                     int64_t blocks, int32_t urgency,
                                     kvarena_explanation* explanation) {
  return enter<CacheObject>(cache, [&](CacheObject& object) -> Status {
    if (Status s = check_target(explanation); !s) return s;
    const auto answer = explanation_of(object.get().tables(), {refused, blocks, urgency});
    if (answer) write_struct(capi::to_c(*answer), explanation);
    return answer.status();
  });
}

kvarena_status kvarena_cache_explain_json(kvarena_cache* cache, const kvarena_status* refused,
                                          int64_t blocks, int32_t urgency, char* out, size_t size,
                                          size_t* length) {
  return explain_as(cache, {refused, blocks, urgency}, {out, size, length},
                    [](const Explanation& answer) { return to_json(answer); });
}

kvarena_status kvarena_cache_explain_text(kvarena_cache* cache, const kvarena_status* refused,
                                          int64_t blocks, int32_t urgency, char* out, size_t size,
                                          size_t* length) {
  return explain_as(cache, {refused, blocks, urgency}, {out, size, length},
                    [](const Explanation& answer) { return to_string(answer); });
}

kvarena_status kvarena_cache_holders(kvarena_cache* cache, kvarena_holder_report* reports,
                                     size_t room, size_t* count) {
  return enter<CacheObject>(cache, [&](CacheObject& object) {
    return write_holders(object.get().manager(), reports, room, count);
  });
}

kvarena_status kvarena_cache_block(kvarena_cache* cache, int32_t block, kvarena_block_info* info) {
  return enter<CacheObject>(
      cache, [&](CacheObject& object) { return write_block(object.get().manager(), block, info); });
}

kvarena_status kvarena_cache_plane(kvarena_cache* cache, int32_t layer, int32_t kind,
                                   kvarena_plane* plane) {
  return enter<CacheObject>(cache, [&](CacheObject& object) -> Status {
    if (Status s = check_target(plane); !s) return s;
    if (kind < KVARENA_KEY || kind > KVARENA_INDEX) {
      return invalid_option(Option::kind, kind, KVARENA_KEY, KVARENA_INDEX);
    }
    if (kind == KVARENA_INDEX) {
      const Result<IndexView> view = object.get().index_view(layer);
      if (!view) return view.status();
      write_struct(capi::to_c(view->index, view->block_size, view->num_blocks), plane);
      return {};
    }
    const Result<KvLayerView> view = object.get().layer_view(layer);
    if (!view) return view.status();
    write_struct(capi::to_c(kind == KVARENA_KEY ? view->key : view->value, view->block_size,
                            view->num_blocks),
                 plane);
    return {};
  });
}

kvarena_status kvarena_cache_check(kvarena_cache* cache) {
  return enter<CacheObject>(cache,
                            [](CacheObject& object) { return object.get().check_invariants(); });
}
