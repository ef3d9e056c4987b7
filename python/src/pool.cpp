// Pools: block ids for engines with block tables of their own.

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "cache.hpp"
#include "explain.hpp"
#include "pool.hpp"
#include "records.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

namespace kvarena::python {

namespace {

struct Limits {
  std::int64_t num_blocks;
  std::int64_t watermark_blocks;
  std::int64_t max_fence_entries;
  std::int32_t max_holders;
  std::int32_t max_open_tickets;
  std::int32_t eviction;
};

std::shared_ptr<Pool> create_pool(const Limits& limits, const PrefixLimits& prefix,
                                  const std::optional<std::string>& name, nb::object log,
                                  nb::object events) {
  require_function("log", log);
  require_function("prefix_events", events);
  auto pool = std::make_shared<Pool>();
  auto options = sized<kvarena_pool_options>();
  options.num_blocks = limits.num_blocks;
  options.watermark_blocks = limits.watermark_blocks;
  options.max_fence_entries = limits.max_fence_entries;
  options.max_holders = limits.max_holders;
  options.max_open_tickets = limits.max_open_tickets;
  options.eviction = limits.eviction;
  if (name) options.name = name->c_str();
  pool->num_blocks = limits.num_blocks;
  pool->log = std::move(log);
  if (!pool->log.is_none()) {
    options.log = hear_operation;
    options.log_user = &pool->log;
  }
  prefix.put_in(options);
  if (prefix.block_size != 0) pool->block_size = prefix.block_size;
  pool->events = std::move(events);
  if (!pool->events.is_none()) {
    options.prefix_events = hear_event;
    options.prefix_events_user = &pool->events;
  }
  check(kvarena_pool_create(&options, &pool->open));
  return pool;
}

void close(Pool& pool) {
  if (pool.open == nullptr) return;
  pool.check(kvarena_pool_release(pool.open));
  pool.open = nullptr;
  nb::object(std::move(pool.log)).reset();
  nb::object(std::move(pool.events)).reset();
}

int visit_functions(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  Py_VISIT(nb::inst_ptr<Pool>(self)->log.ptr());
  Py_VISIT(nb::inst_ptr<Pool>(self)->events.ptr());
  return 0;
}

int clear_functions(PyObject* self) {
  nb::object(std::move(nb::inst_ptr<Pool>(self)->log)).reset();
  nb::object(std::move(nb::inst_ptr<Pool>(self)->events)).reset();
  return 0;
}

const PyType_Slot kPoolSlots[] = {{Py_tp_traverse, reinterpret_cast<void*>(&visit_functions)},
                                  {Py_tp_clear, reinterpret_cast<void*>(&clear_functions)},
                                  {0, nullptr}};

std::uint64_t open_holder(const Pool& pool, std::uint64_t number, std::uint64_t owner,
                          const std::string& purpose, std::int64_t since_ns,
                          std::int64_t deadline_ns) {
  auto options = sized<kvarena_holder_options>();
  options.number = number;
  options.owner = owner;
  options.purpose = purpose.c_str();
  options.since_ns = since_ns;
  options.deadline_ns = deadline_ns;
  kvarena_holder holder = 0;
  pool.check(kvarena_pool_open_holder(pool.handle(), &options, &holder));
  return holder;
}

nb::object holder_of(const Pool& pool, std::uint64_t holder) {
  kvarena_holder_report report{};
  pool.check(kvarena_pool_holder(pool.handle(), holder, &report));
  return holder_record(report);
}

nb::list holders(const Pool& pool) {
  nb::list result;
  for (const kvarena_holder_report& report : list_of<kvarena_holder_report>(
           [&](kvarena_holder_report*reports, std::size_t room, std::size_t*count) {
             return kvarena_pool_holders(pool.handle(), reports, room, count);
           },
           pool.witness())) {
    result.append(holder_record(report));
  }
  return result;
}

nb::object allocation_record(const Ids& blocks, const Generations& generations,
                             std::size_t evicted) {
  nb::dict values;
  values["blocks"] = nb::cast(blocks);
  values["generations"] = nb::cast(generations);
  values["evicted"] = evicted;
  return make_record("Allocation", values);
}

nb::object allocate(const Pool& pool, std::uint64_t holder, std::uint32_t count,
                    std::string_view urgency) {
  Ids blocks(pool.room(count));
  Generations generations(blocks.size());
  std::size_t evicted = 0;
  pool.check(kvarena_pool_allocate(pool.handle(), holder, count, urgency_of(urgency), blocks.data(),
                                   generations.data(), &evicted));
  return allocation_record(blocks, generations, evicted);
}

nb::object allocate_each(const Pool& pool,
                         const std::vector<std::pair<std::uint64_t, std::uint32_t>>& demands,
                         std::string_view urgency) {
  std::vector<kvarena_holder_demand> wanted;
  std::size_t room = 0;
  for (const auto& [holder, count] : demands) {
    wanted.push_back({holder, count, KVARENA_URGENCY_DEFAULT});
    room += count;
  }
  Ids blocks(pool.room(room));
  Generations generations(blocks.size());
  std::size_t evicted = 0;
  pool.check(kvarena_pool_allocate_each(pool.handle(), wanted.data(), wanted.size(),
                                        urgency_of(urgency), blocks.data(), generations.data(),
                                        room, &evicted));
  return allocation_record(blocks, generations, evicted);
}

void retain(const Pool& pool, std::uint64_t holder, const Ids& blocks,
            const Generations& generations) {
  require_pairs(blocks, generations);
  pool.check(
      kvarena_pool_retain(pool.handle(), holder, blocks.data(), generations.data(), blocks.size()));
}

void free_blocks(const Pool& pool, std::uint64_t holder, const Ids& blocks,
                 const Generations& generations, std::uint64_t ticket) {
  require_pairs(blocks, generations);
  pool.check(kvarena_pool_free(pool.handle(), holder, blocks.data(), generations.data(),
                               blocks.size(), ticket));
}

bool quarantine(const Pool& pool, std::int32_t block) {
  bool offline = false;
  pool.check(kvarena_pool_quarantine(pool.handle(), block, &offline));
  return offline;
}

std::uint64_t open_ticket(const Pool& pool) {
  kvarena_ticket ticket = 0;
  pool.check(kvarena_pool_open_ticket(pool.handle(), &ticket));
  return ticket;
}

bool is_open(const Pool& pool, std::uint64_t ticket) {
  bool open = false;
  pool.check(kvarena_pool_is_open(pool.handle(), ticket, &open));
  return open;
}

nb::object block(const Pool& pool, std::int32_t id) {
  auto info = sized<kvarena_block_info>();
  pool.check(kvarena_pool_block(pool.handle(), id, &info));
  return block_record(info);
}

nb::object stats(const Pool& pool) {
  auto stats = sized<kvarena_stats>();
  pool.check(kvarena_pool_stats(pool.handle(), &stats));
  return stats_record(stats);
}

bool can_allocate(const Pool& pool, std::int64_t blocks, std::string_view urgency) {
  bool can = false;
  pool.check(kvarena_pool_can_allocate(pool.handle(), blocks, urgency_of(urgency), &can));
  return can;
}

std::int64_t available(const Pool& pool, std::uint64_t ticket) {
  std::int64_t now = 0;
  std::int64_t after = 0;
  pool.check(kvarena_pool_available(pool.handle(), ticket, &now, &after));
  return ticket == 0 ? now : after;
}

nb::object explain(const Pool& pool, std::int64_t blocks, std::string_view urgency) {
  auto explanation = sized<kvarena_explanation>();
  pool.check(
      kvarena_pool_explain(pool.handle(), nullptr, blocks, urgency_of(urgency), &explanation));
  return explanation_record(explanation);
}

template <auto write>
std::string explain_as(const Pool& pool, std::int64_t blocks, std::string_view urgency) {
  const std::int32_t chosen = urgency_of(urgency);
  return text_of(
      [&](char* out, std::size_t size, std::size_t* length) {
        return write(pool.handle(), nullptr, blocks, chosen, out, size, length);
      },
      pool.witness());
}

void bind_blocks(nb::class_<Pool>& pool) {
  pool.def("open_holder", &open_holder, nb::kw_only(), nb::arg("number") = 0, nb::arg("owner") = 0,
           nb::arg("purpose") = "engine", nb::arg("since_ns") = 0, nb::arg("deadline_ns") = 0)
      .def(
          "close_holder",
          [](const Pool& p, std::uint64_t h) { p.check(kvarena_pool_close_holder(p.handle(), h)); })
      .def("set_deadline",
           [](const Pool& p, std::uint64_t h, std::int64_t deadline_ns) {
             p.check(kvarena_pool_set_deadline(p.handle(), h, deadline_ns));
           })
      .def("holder", &holder_of)
      .def("holders", &holders)
      .def(
          "reserve",
          [](const Pool& p, std::uint64_t h, std::int64_t blocks, std::string_view urgency) {
            p.check(kvarena_pool_reserve(p.handle(), h, blocks, urgency_of(urgency)));
          },
          nb::arg("holder"), nb::arg("blocks"), nb::kw_only(), nb::arg("urgency") = "admission")
      .def("allocate", &allocate, nb::arg("holder"), nb::arg("count") = 1, nb::kw_only(),
           nb::arg("urgency") = "growth")
      .def("allocate_each", &allocate_each, nb::arg("demands"), nb::kw_only(),
           nb::arg("urgency") = "growth")
      .def("retain", &retain, nb::arg("holder"), nb::arg("blocks"), nb::arg("generations"))
      .def("free", &free_blocks, nb::arg("holder"), nb::arg("blocks"), nb::arg("generations"),
           nb::kw_only(), nb::arg("ticket") = 0)
      .def(
          "set_content",
          [](const Pool& p, std::int32_t block, std::uint32_t generation, std::string_view word) {
            p.check(kvarena_pool_set_content(p.handle(), block, generation,
                                             number_of("content", word, kContents)));
          },
          nb::arg("block"), nb::arg("generation"), nb::arg("content"))
      .def("quarantine", &quarantine)
      .def("restore",
           [](const Pool& p, std::int32_t b) { p.check(kvarena_pool_restore(p.handle(), b)); });
}

/// How long published blocks stay.
void bind_retentions(nb::class_<Pool>& pool) {
  pool.def(
          "set_retention",
          [](const Pool& p, std::int32_t block, std::uint32_t generation, std::int32_t priority,
             std::int64_t expires_at) {
            p.check(
                kvarena_pool_set_retention(p.handle(), block, generation, priority, expires_at));
          },
          nb::arg("block"), nb::arg("generation"), nb::kw_only(), nb::arg("priority") = 35,
          nb::arg("expires_at") = 0)
      .def(
          "advance_clock",
          [](const Pool& p, std::int64_t now) {
            p.check(kvarena_pool_advance_clock(p.handle(), now));
          },
          nb::arg("now"));
}

}  // namespace

void bind_pool(nb::module_& module) {
  nb::class_<Pool> pool(module, "Pool", nb::type_slots(kPoolSlots));
  pool.def(nb::new_([](std::int64_t num_blocks, std::int64_t watermark_blocks,
                       std::int64_t max_fence_entries, std::int32_t max_holders,
                       std::int32_t max_open_tickets, std::string_view eviction, bool prefix_cache,
                       std::int32_t block_size, std::string_view duplicates,
                       std::int32_t extra_keys, std::int64_t history, std::uint64_t key_low,
                       std::uint64_t key_high, std::int64_t ghost_blocks,
                       const std::optional<std::string>& name, nb::object log, nb::object events) {
             return create_pool(
                 {num_blocks, watermark_blocks, max_fence_entries, max_holders, max_open_tickets,
                  number_of("eviction", eviction, kEvictions)},
                 {prefix_cache, block_size, number_of("prefix_duplicates", duplicates, kDuplicates),
                  extra_keys, history, key_low, key_high, ghost_blocks},
                 name, std::move(log), std::move(events));
           }),
           nb::arg("num_blocks"), nb::kw_only(), nb::arg("watermark_blocks") = 0,
           nb::arg("max_fence_entries") = 0, nb::arg("max_holders") = 0,
           nb::arg("max_open_tickets") = 0, nb::arg("eviction") = "tail_first",
           nb::arg("prefix_cache") = false, nb::arg("block_size") = 0,
           nb::arg("prefix_duplicates") = "duplicate", nb::arg("prefix_extra_keys") = 0,
           nb::arg("prefix_history") = 0, nb::arg("prefix_key_low") = 0,
           nb::arg("prefix_key_high") = 0, nb::arg("prefix_ghost_blocks") = 0,
           nb::arg("name") = nb::none(), nb::arg("log") = nb::none(),
           nb::arg("prefix_events") = nb::none())
      .def("close", &close)
      .def("open_ticket", &open_ticket)
      .def("retire",
           [](const Pool& p, std::uint64_t t) { p.check(kvarena_pool_retire(p.handle(), t)); })
      .def("is_open", &is_open)
      .def("block", &block)
      .def("stats", &stats)
      .def("can_allocate", &can_allocate, nb::arg("blocks"), nb::kw_only(),
           nb::arg("urgency") = "growth")
      .def("available", &available, nb::arg("ticket") = 0)
      .def("explain", &explain, nb::arg("blocks"), nb::kw_only(), nb::arg("urgency") = "growth")
      .def("explain_json", &explain_as<kvarena_pool_explain_json>, nb::arg("blocks"), nb::kw_only(),
           nb::arg("urgency") = "growth")
      .def("explain_text", &explain_as<kvarena_pool_explain_text>, nb::arg("blocks"), nb::kw_only(),
           nb::arg("urgency") = "growth")
      .def("check", [](const Pool& p) { p.check(without_gil(kvarena_pool_check, p.handle())); });
  bind_blocks(pool);
  bind_retentions(pool);
  bind_pool_prefixes(module, pool);
}

}  // namespace kvarena::python
