// Caches: create, sequences, tickets, streams.

#include "cache.hpp"

#include "explain.hpp"
#include "records.hpp"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

namespace kvarena::python {

namespace {

/// Options of the C interface as kvarena.CacheOptions.
nb::object options_record(kvarena_cache_options options) {
  nb::dict values = members_of(options);
  values["dtype"] = nb::str(kDtypes[options.dtype].data());
  values["tile_order"] = nb::str(kTileOrders[options.tile_order].data());
  values["block_order"] = nb::str(kBlockOrders[options.block_order].data());
  values["scrub"] = nb::str(kScrubs[options.scrub].data());
  return python_class("kvarena._options", "CacheOptions")(**values);
}

CachePointer create_cache(const std::shared_ptr<Device>& device, nb::handle given) {
  auto cache = std::make_shared<Cache>();
  kvarena_cache_options options = read_cache_options(given);
  const nb::object stream = given.attr("stream");
  options.stream = stream.is_none() ? nullptr : stream_of(stream);
  cache->name = given.attr("name");
  std::string text;
  if (!cache->name.is_none()) {
    text = nb::cast<std::string>(cache->name);
    options.name = text.c_str();
  }
  cache->log = given.attr("log");
  if (!cache->log.is_none()) {
    options.log = hear_operation;
    options.log_user = cache->log.ptr();
  }
  cache->device = device;
  check(without_gil([&] { return kvarena_cache_create(device->handle, &options, &cache->handle); }),
        device->witness());
  cache->options = sized<kvarena_cache_options>();
  check(kvarena_cache_ask(cache->handle, &cache->options), cache->witness());
  return cache;
}

kvarena_target target_of(nb::handle device) {
  auto target = sized<kvarena_target>();
  const auto& of = nb::cast<Device&>(device);
  check(kvarena_device_target(of.handle, &target), of.witness());
  return target;
}

/// What a cache of these options takes of the device, without it; with a budget, the largest cache.
nb::object footprint(const Device& device, nb::handle given, std::int64_t budget_bytes) {
  const kvarena_cache_options options = read_cache_options(given);
  const kvarena_target target = target_of(nb::find(device));
  auto result = sized<kvarena_footprint>();
  if (budget_bytes > 0) {
    check(kvarena_cache_fit(&options, &target, budget_bytes, &result));
  } else {
    auto info = sized<kvarena_device_info>();
    check(kvarena_device_ask(device.handle, &info), device.witness());
    check(kvarena_cache_footprint(&options, &target, static_cast<std::int64_t>(info.free_bytes),
                                  &result));
  }
  return record_of("Footprint", result);
}

void synchronize(Cache& cache) {
  check(without_gil([&] { return kvarena_cache_synchronize(cache.handle); }), cache.witness());
  cache.held.clear();
}

std::uintptr_t stream_handle(const Cache& cache) {
  void* stream = nullptr;
  check(kvarena_cache_stream(cache.handle, &stream), cache.witness());
  return reinterpret_cast<std::uintptr_t>(stream);
}

std::uint64_t open_ticket(Cache& cache, nb::handle stream) {
  kvarena_ticket ticket = 0;
  void* const handle = stream.is_none() ? nullptr : stream_of(stream);
  check(kvarena_ticket_open(cache.handle, handle, &ticket), cache.witness());
  return ticket;
}

std::uint64_t fence(Cache& cache, nb::handle stream) {
  kvarena_ticket ticket = 0;
  check(kvarena_ticket_fence(cache.handle, stream_of(stream), &ticket), cache.witness());
  return ticket;
}

void retire(Cache& cache, std::uint64_t ticket) {
  check(kvarena_ticket_retire(cache.handle, ticket), cache.witness());
}

void bind_options(nb::module_& module) {
  module.def("footprint", &footprint, nb::arg("device"), nb::arg("options"),
             nb::arg("budget_bytes") = 0);
}

}  // namespace

kvarena_cache_options read_cache_options(nb::handle given) {
  auto options = sized<kvarena_cache_options>();
  read_members(given, options);
  const auto word = [&](const char* name) { return nb::cast<std::string>(given.attr(name)); };
  options.dtype = dtype_of(given.attr("dtype"));
  options.tile_order = number_of("tile_order", word("tile_order"), kTileOrders);
  options.block_order = number_of("block_order", word("block_order"), kBlockOrders);
  options.scrub = number_of("scrub", word("scrub"), kScrubs);
  return options;
}

Cache::~Cache() {
  if (handle == nullptr) return;
  without_gil([&] { return kvarena_cache_release(handle); });
}

void Cache::close() {
  if (handle == nullptr) return;
  check(without_gil([&] { return kvarena_cache_release(handle); }), witness());
  handle = nullptr;
  held.clear();
  log = nb::none();
}

void Cache::drop_completed() {
  while (held.size() >= static_cast<std::size_t>(options.steps_in_flight)) held.pop_front();
}

void bind_cache(nb::module_& module) {
  bind_options(module);
  nb::class_<Cache> cache(module, "Cache");
  cache.def(nb::new_(&create_cache), nb::arg("device"), nb::arg("options"))
      .def("__enter__", [](nb::handle self) { return nb::borrow(self); })
      .def("__exit__", [](Cache& c, nb::args) { c.close(); })
      .def("close", &Cache::close)
      .def_prop_ro("options", [](const Cache& c) { return options_record(c.options); })
      .def_prop_ro("device", [](const Cache& c) { return c.device; })
      .def_prop_ro("name", [](const Cache& c) { return c.name; })
      .def_prop_ro("stream", &stream_handle)
      .def("synchronize", &synchronize)
      .def("publish",
           [](Cache& c) {
             check(without_gil([&] { return kvarena_cache_publish(c.handle); }), c.witness());
           })
      .def("fence", &fence, nb::arg("stream"))
      .def("open_ticket", &open_ticket, nb::arg("stream") = nb::none())
      .def("retire", &retire, nb::arg("ticket"));
  bind_questions(cache);
}

}  // namespace kvarena::python
