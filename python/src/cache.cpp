// Caches: create, sequences, tickets, streams.

#include "cache.hpp"

#include "explain.hpp"
#include "groups.hpp"
#include "records.hpp"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

namespace kvarena::python {

namespace {

/// Options of the C interface as kvarena.CacheOptions.
nb::object options_record(const Cache& cache) {
  kvarena_cache_options options = cache.options;
  nb::dict values = members_of(options);
  values["dtype"] = nb::str(kDtypes[options.dtype].data());
  values["tile_order"] = nb::str(kTileOrders[options.tile_order].data());
  values["block_order"] = nb::str(kBlockOrders[options.block_order].data());
  values["scrub"] = nb::str(kScrubs[options.scrub].data());
  values["groups"] = cache.groups;
  values["prefix_duplicates"] = nb::str(kDuplicates[options.prefix_duplicates].data());
  values["eviction"] = nb::str(kEvictions[options.eviction].data());
  return python_class("kvarena._options", "CacheOptions")(**values);
}

std::shared_ptr<Cache> create_cache(const std::shared_ptr<Device>& device, nb::handle given) {
  auto cache = std::make_shared<Cache>();
  kvarena_cache_options options = read_cache_options(given);
  const GroupOptions groups = read_groups(given, options);
  const nb::object stream = given.attr("stream");
  options.stream = stream.is_none() ? nullptr : stream_of(stream);
  cache->name = given.attr("name");
  std::string text;
  if (!cache->name.is_none()) {
    text = nb::cast<std::string>(cache->name);
    options.name = text.c_str();
  }
  cache->open->log = given.attr("log");
  require_function("log", cache->open->log);
  if (!cache->open->log.is_none()) {
    options.log = hear_operation;
    options.log_user = &cache->open->log;
  }
  cache->open->events = given.attr("prefix_events");
  require_function("prefix_events", cache->open->events);
  if (!cache->open->events.is_none()) {
    options.prefix_events = hear_event;
    options.prefix_events_user = &cache->open->events;
  }
  cache->device = device;
  check(without_gil(kvarena_cache_create, device->handle(), &options, &cache->open->handle),
        device->witness());
  cache->options = sized<kvarena_cache_options>();
  check(kvarena_cache_ask(cache->handle(), &cache->options), cache->witness());
  cache->groups = nb::tuple(given.attr("groups"));
  cache->layers = layer_shapes(groups, options.num_q_heads);
  return cache;
}

kvarena_target target_of(nb::handle device) {
  auto target = sized<kvarena_target>();
  const auto& of = nb::cast<Device&>(device);
  check(kvarena_device_target(of.handle(), &target), of.witness());
  return target;
}

/// What a cache of these options takes of the device, without it; with a budget, the largest cache.
nb::object footprint(const Device& device, nb::handle given, std::int64_t budget_bytes) {
  kvarena_cache_options options = read_cache_options(given);
  const GroupOptions groups = read_groups(given, options);
  const kvarena_target target = target_of(nb::find(device));
  auto result = sized<kvarena_footprint>();
  if (budget_bytes > 0) {
    check(kvarena_cache_fit(&options, &target, budget_bytes, &result));
  } else {
    auto info = sized<kvarena_device_info>();
    check(without_gil(kvarena_device_ask, device.handle(), &info), device.witness());
    check(kvarena_cache_footprint(&options, &target, static_cast<std::int64_t>(info.free_bytes),
                                  &result));
  }
  return record_of("Footprint", result);
}

void synchronize(Cache& cache) {
  check(without_gil(kvarena_cache_synchronize, cache.handle()), cache.witness());
  if (cache.open == nullptr) return;  // closed meanwhile by another thread
  const auto completed = std::move(cache.open->held);
  cache.open->held.clear();
}

std::uintptr_t stream_handle(const Cache& cache) {
  void* stream = nullptr;
  check(kvarena_cache_stream(cache.handle(), &stream), cache.witness());
  return reinterpret_cast<std::uintptr_t>(stream);
}

std::uint64_t open_ticket(Cache& cache, nb::handle stream) {
  kvarena_ticket ticket = 0;
  void* const handle = stream.is_none() ? nullptr : stream_of(stream);
  check(without_gil(kvarena_ticket_open, cache.handle(), handle, &ticket), cache.witness());
  return ticket;
}

std::uint64_t fence(Cache& cache, nb::handle stream) {
  kvarena_ticket ticket = 0;
  void* const handle = stream_of(stream);
  check(without_gil(kvarena_ticket_fence, cache.handle(), handle, &ticket), cache.witness());
  return ticket;
}

void retire(Cache& cache, std::uint64_t ticket) {
  check(without_gil(kvarena_ticket_retire, cache.handle(), ticket), cache.witness());
}

/// Closes the cache. An exception that leaves the block is more important than why this fails.
void leave(Cache& cache, nb::handle type, nb::handle, nb::handle) {
  try {
    cache.close();
  } catch (nb::python_error&) {
    if (type.is_none()) throw;
  }
}

/// Its functions are all that a cache refers to which can refer to the cache.
int visit_functions(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  const Cache& cache = *nb::inst_ptr<Cache>(self);
  if (cache.open == nullptr) return 0;
  Py_VISIT(cache.open->log.ptr());
  Py_VISIT(cache.open->events.ptr());
  return 0;
}

int clear_functions(PyObject* self) {
  Cache& cache = *nb::inst_ptr<Cache>(self);
  if (cache.open == nullptr) return 0;
  const nb::object log = std::move(cache.open->log);
  const nb::object events = std::move(cache.open->events);
  return 0;
}

const PyType_Slot kCacheSlots[] = {{Py_tp_traverse, reinterpret_cast<void*>(&visit_functions)},
                                   {Py_tp_clear, reinterpret_cast<void*>(&clear_functions)},
                                   {0, nullptr}};

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
  options.prefix_duplicates =
      number_of("prefix_duplicates", word("prefix_duplicates"), kDuplicates);
  options.eviction = number_of("eviction", word("eviction"), kEvictions);
  return options;
}

CacheHandle::~CacheHandle() {
  if (handle != nullptr) at_end(kvarena_cache_release, handle);
}

/// Who dropped the cache without close may be half gone, too: its functions hear nothing more.
Cache::~Cache() {
  if (open == nullptr) return;
  open->log.reset();
  open->events.reset();
}

nb::object Cache::memory_owner() const {
  static_cast<void>(handle());
  using Share = std::shared_ptr<CacheHandle>;
  return nb::capsule(new Share(open),
                     [](void* share) noexcept { delete static_cast<Share*>(share); });
}

void Cache::close() {
  if (open == nullptr) return;
  std::shared_ptr<CacheHandle> last = std::move(open);  // other threads find the cache closed
  const bool is_shared = last.use_count() > 1;
  const kvarena_status status =
      without_gil(is_shared ? kvarena_step_abort : kvarena_cache_release, last->handle);
  // Outside a step there is nothing to abort. Another thread that is inside refuses both.
  const bool is_inside = status.resource == KVARENA_RESOURCE_THREAD;
  if (status.code != KVARENA_OK && (is_inside || !is_shared)) {
    open = std::move(last);
    raise(status, witness());
  }
  if (is_shared) {
    // Failures of queued work are of no interest to who closes, as when the handle ends.
    without_gil(kvarena_recording_end, last->handle);
    without_gil(kvarena_cache_synchronize, last->handle);
  } else {
    last->handle = nullptr;
  }
  ++changes;
  const auto completed = std::move(last->held);
  last->held.clear();
  last->log.reset();
  last->events.reset();
}

LayerShape Cache::shape_of(std::int32_t layer) const {
  if (layers.empty()) return LayerShape::of(options);
  const auto found = layers.find(layer);
  if (found == layers.end()) raise_value("layer", std::to_string(layer), "a layer of a group");
  return found->second;
}

void Cache::hold(std::vector<nb::object> objects) {
  if (open != nullptr) open->held.push_back(std::move(objects));
}

void Cache::drop_completed() {
  while (open != nullptr &&
         open->held.size() >= static_cast<std::size_t>(options.steps_in_flight)) {
    const auto completed = std::move(open->held.front());  // whose end may run Python code
    open->held.pop_front();
  }
}

void bind_cache(nb::module_& module) {
  bind_options(module);
  nb::class_<Cache> cache(module, "Cache", nb::type_slots(kCacheSlots));
  cache.def(nb::new_(&create_cache), nb::arg("device"), nb::arg("options"))
      .def("__enter__", [](nb::handle self) { return nb::borrow(self); })
      .def("__exit__", &leave, nb::arg("type").none(), nb::arg("value").none(),
           nb::arg("traceback").none())
      .def("close", &Cache::close)
      .def_prop_ro("options", [](const Cache& c) { return options_record(c); })
      .def_prop_ro("device", [](const Cache& c) { return c.device; })
      .def_prop_ro("name", [](const Cache& c) { return c.name; })
      .def_prop_ro("stream", &stream_handle)
      .def("synchronize", &synchronize)
      .def("publish",
           [](Cache& c) { check(without_gil(kvarena_cache_publish, c.handle()), c.witness()); })
      .def("fence", &fence, nb::arg("stream"))
      .def("open_ticket", &open_ticket, nb::arg("stream") = nb::none())
      .def("retire", &retire, nb::arg("ticket"));
  bind_questions(cache);
  bind_accounts(cache);
}

}  // namespace kvarena::python
