// What can be asked of a cache.

#include <vector>

#include "cache.hpp"
#include "explain.hpp"
#include "planes.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

namespace kvarena::python {

namespace {

template <class Ask>
nb::object stats_by(const Cache& cache, Ask ask) {
  auto stats = sized<kvarena_stats>();
  check(ask(cache.handle(), &stats), cache.witness());
  return stats_record(stats);
}

nb::object explain(const Cache& cache, std::int64_t blocks, std::string_view urgency) {
  auto explanation = sized<kvarena_explanation>();
  check(kvarena_cache_explain(cache.handle(), nullptr, blocks, urgency_of(urgency), &explanation),
        cache.witness());
  return explanation_record(explanation);
}

template <auto write>
std::string explain_as(const Cache& cache, std::int64_t blocks, std::string_view urgency) {
  const std::int32_t chosen = urgency_of(urgency);
  return text_of(
      [&](char* out, std::size_t size, std::size_t* length) {
        return write(cache.handle(), nullptr, blocks, chosen, out, size, length);
      },
      cache.witness());
}

template <auto write>
std::string text_by(const Cache& cache) {
  return text_of([&](char* out, std::size_t size,
                     std::size_t* length) { return write(cache.handle(), out, size, length); },
                 cache.witness());
}

bool can_allocate(const Cache& cache, std::int64_t blocks, std::string_view urgency) {
  bool can = false;
  check(kvarena_cache_can_allocate(cache.handle(), blocks, urgency_of(urgency), &can),
        cache.witness());
  return can;
}

std::int64_t available(const Cache& cache, std::uint64_t ticket) {
  std::int64_t now = 0;
  std::int64_t after = 0;
  check(kvarena_cache_available(cache.handle(), ticket, &now, &after), cache.witness());
  return ticket == 0 ? now : after;
}

nb::list holders(const Cache& cache) {
  nb::list result;
  for (const kvarena_holder_report& report : list_of<kvarena_holder_report>(
           [&](kvarena_holder_report*reports, std::size_t room, std::size_t*count) {
             return kvarena_cache_holders(cache.handle(), reports, room, count);
           },
           cache.witness())) {
    result.append(holder_record(report));
  }
  return result;
}

nb::object block(const Cache& cache, std::int32_t id) {
  auto info = sized<kvarena_block_info>();
  check(kvarena_cache_block(cache.handle(), id, &info), cache.witness());
  return block_record(info);
}

nb::object layer_view(const Cache& cache, std::int32_t layer) {
  kvarena_plane planes[2];
  for (const std::int32_t kind : {KVARENA_KEY, KVARENA_VALUE}) {
    planes[kind] = sized<kvarena_plane>();
    check(kvarena_cache_plane(cache.handle(), layer, kind, &planes[kind]), cache.witness());
  }
  return layer_view_of(planes[KVARENA_KEY], planes[KVARENA_VALUE], cache.device->place(),
                       cache.memory_owner());
}

nb::object index_view(const Cache& cache, std::int32_t layer) {
  auto plane = sized<kvarena_plane>();
  check(kvarena_cache_plane(cache.handle(), layer, KVARENA_INDEX, &plane), cache.witness());
  return index_view_of(plane, cache.device->place(), cache.memory_owner());
}

bool has_pending_work(const Cache& cache) {
  bool pending = false;
  check(kvarena_cache_has_pending_work(cache.handle(), &pending), cache.witness());
  return pending;
}

/// Writes the block tables of sequences as rows of `out` [n, row] int32, and their lengths.
void copy_tables(const Cache& cache, nb::sequence sequences, nb::handle out, nb::handle lengths) {
  std::vector<kvarena_sequence> ids;
  for (const nb::handle item : sequences) {
    const Sequence* const sequence = sequence_in(item);
    if (sequence == nullptr) raise_type("sequences", "another object", "kvarena.Sequence");
    ids.push_back(sequence->id);
  }
  const Tensor rows("out", out, {});
  rows.require_dtype(kInt32);
  rows.require_writable();
  const auto count = static_cast<std::int64_t>(ids.size());
  rows.require_shape({count, rows.ndim() == 2 ? rows.shape(1) : 0}, "[sequences, row]");
  rows.require_dense(1, "rows of adjacent entries");
  std::optional<Tensor> wanted;
  if (!lengths.is_none()) {
    wanted.emplace("lengths", lengths, Place{});
    wanted->require_dtype(kInt32);
    wanted->require_writable();
    wanted->require_shape({count}, "[sequences]");
    wanted->require_dense(0, "adjacent entries");
  }
  const std::int64_t stride = count == 0 ? 0 : rows.stride_bytes(0) / rows.bytes_of_element();
  check(kvarena_sequence_tables(cache.handle(), ids.data(), ids.size(),
                                static_cast<std::int32_t*>(rows.data()),
                                static_cast<std::size_t>(stride),
                                wanted ? static_cast<std::int32_t*>(wanted->data()) : nullptr),
        cache.witness());
}

}  // namespace

void bind_questions(nb::class_<Cache>& cache) {
  cache.def("stats", [](const Cache& c) { return stats_by(c, kvarena_cache_stats); })
      .def("snapshot", [](const Cache& c) { return stats_by(c, kvarena_cache_snapshot); })
      .def("stats_json", &text_by<kvarena_cache_stats_json>)
      .def("request_details",
           [](const Cache& c) { check(kvarena_cache_request_details(c.handle()), c.witness()); })
      .def("details_json", &text_by<kvarena_cache_details_json>)
      .def("has_pending_work", &has_pending_work)
      .def("can_allocate", &can_allocate, nb::arg("blocks"), nb::kw_only(),
           nb::arg("urgency") = "growth")
      .def("available", &available, nb::arg("ticket") = 0)
      .def("explain", &explain, nb::arg("blocks"), nb::kw_only(), nb::arg("urgency") = "growth")
      .def("explain_json", &explain_as<kvarena_cache_explain_json>, nb::arg("blocks"),
           nb::kw_only(), nb::arg("urgency") = "growth")
      .def("explain_text", &explain_as<kvarena_cache_explain_text>, nb::arg("blocks"),
           nb::kw_only(), nb::arg("urgency") = "growth")
      .def("holders", &holders)
      .def("block", &block, nb::arg("block"))
      .def("layer_view", &layer_view, nb::arg("layer"))
      .def("index_view", &index_view, nb::arg("layer"))
      .def("tables", &copy_tables, nb::arg("sequences"), nb::arg("out"),
           nb::arg("lengths") = nb::none())
      .def("check", [](const Cache& c) {
        check(without_gil(kvarena_cache_check, c.handle()), c.witness());
      });
}

}  // namespace kvarena::python
