// Steps: eager, recorded into a CUDA graph, and replayed.

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "cache.hpp"
#include "explain.hpp"
#include "layer_args.hpp"
#include "step.hpp"
#include "tokens.hpp"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

namespace kvarena::python {

/// Nobody can end a step that Python no longer refers to. It gives its tokens back, on the thread
/// that dropped or collected it.
Step::~Step() {
  if (!is_open || cache->open == nullptr) return;
  ++cache->changes;
  without_gil(kind == StepKind::recording ? kvarena_recording_end : kvarena_step_abort,
              cache->open->handle);
  cache->hold(std::move(held));
}

void require_open(const Step& step, const std::string& call) {
  static_cast<void>(step.cache->handle());  // whether the cache is closed comes first
  if (step.is_open) return;
  raise_order((call + " needs an open step: use it inside `with cache.step(...)`").c_str());
}

void require_unchanged(const Step& step, std::uint64_t changes) {
  static_cast<void>(step.cache->handle());
  if (step.cache->changes == changes) return;
  raise_order("the step was changed while the arguments of this call were read");
}

void hold(Step& step, nb::handle object) {
  if (step.holds && !object.is_none()) step.held.push_back(nb::borrow(object));
}

namespace {

void append(Step& step, nb::handle demands, std::string_view urgency, nb::handle tokens) {
  require_open(step, "append");
  Cache& cache = *step.cache;
  const std::int32_t chosen = urgency.empty() ? step.urgency : urgency_of(urgency);
  const std::uint64_t changes = cache.changes;
  std::vector<kvarena_demand> rows = std::move(cache.demands);
  read_demands(cache, demands, rows);
  const std::vector<std::int32_t> told = tokens_of("tokens", tokens);
  require_unchanged(step, changes);
  kvarena_cache* const handle = cache.handle();
  const kvarena_recorded_step* const shape = step.kind == StepKind::replay ? &step.shape : nullptr;
  const bool tells = !tokens.is_none();
  const kvarena_status status = without_gil([&] {
    if (tells) {
      return kvarena_step_append_tokens(handle, shape, rows.data(), rows.size(), told.data(),
                                        told.size(), chosen, &step.batch);
    }
    return step.kind == StepKind::replay
               ? kvarena_step_append_recorded(handle, &step.shape, rows.data(), rows.size(), chosen,
                                              &step.batch)
               : kvarena_step_append(handle, rows.data(), rows.size(), chosen, &step.batch);
  });
  cache.demands = std::move(rows);
  ++cache.changes;
  if (status.code == KVARENA_OK) return;
  std::int64_t demand = -1;
  kvarena_step_failed_demand(handle, &demand);
  raise(status, cache.witness(), "", demand);
}

void abort(Step& step) {
  step.is_open = false;
  Cache& cache = *step.cache;
  ++cache.changes;
  const kvarena_status status = without_gil(kvarena_step_abort, cache.handle());
  cache.hold(std::move(step.held));
  check(status, cache.witness());
}

/// Marks the step as the open one.
void open(Step& step) {
  step.is_entered = step.is_open = true;
  ++step.cache->changes;
}

void begin_recording(Step& step) {
  auto options = sized<kvarena_step_options>();
  options.stream = step.stream;
  check(without_gil(kvarena_recording_begin, step.cache->handle(), &step.shape, &options,
                    &step.batch),
        step.witness());
}

nb::object enter(nb::handle self) {
  auto& step = nb::cast<Step&>(self);
  Cache& cache = *step.cache;
  if (step.is_entered)
    raise_order("this step has been entered before; each step is made and entered once");
  if (step.kind == StepKind::recording) {
    begin_recording(step);
    open(step);
    return nb::borrow(self);
  }
  auto options = sized<kvarena_step_options>();
  options.stream = step.stream;
  check(without_gil(kvarena_step_begin, cache.handle(), &options), cache.witness());
  open(step);
  cache.drop_completed();
  if (step.demands.is_none()) return nb::borrow(self);
  try {
    append(step, step.demands, {}, step.tokens);
  } catch (...) {
    if (cache.open != nullptr) abort(step);
    throw;
  }
  return nb::borrow(self);
}

void end(Step& step) {
  step.is_open = false;
  Cache& cache = *step.cache;
  ++cache.changes;
  const auto call = step.kind == StepKind::recording ? kvarena_recording_end : kvarena_step_end;
  const kvarena_status status = without_gil(call, cache.handle());
  cache.hold(std::move(step.held));
  check(status, cache.witness());
}

void leave(Step& step, nb::handle type, nb::handle, nb::handle) {
  if (!step.is_open) return;
  if (type.is_none()) {
    end(step);
  } else if (step.cache->open == nullptr) {
    step.is_open = false;  // the close has aborted it; the caller's exception goes on
  } else if (step.kind == StepKind::recording) {
    step.is_open = false;
    ++step.cache->changes;
    without_gil(kvarena_recording_end, step.cache->handle());  // the caller's exception says why
  } else {
    abort(step);
  }
}

void write(Step& step, std::int32_t layer, nb::handle key, nb::handle value, nb::handle key_scale,
           nb::handle value_scale) {
  require_open(step, "write");
  const std::uint64_t changes = step.cache->changes;
  const WriteCall call(step.cache->shape_of(layer), step.batch.num_tokens, step.place(), layer, key,
                       value, key_scale, value_scale);
  require_unchanged(step, changes);
  Cache& cache = *step.cache;
  check(without_gil(kvarena_step_write, cache.handle(), &call.args), cache.witness());
  for (const nb::handle used : {key, value, key_scale, value_scale}) hold(step, used);
}

nb::object attend(Step& step, std::int32_t layer, nb::handle q, nb::handle out, double scale,
                  bool windowed, double soft_cap, nb::handle lse, nb::handle sinks,
                  nb::handle tree_mask, nb::handle key_scale, nb::handle value_scale,
                  bool kv_is_written) {
  require_open(step, "attend");
  const std::uint64_t changes = step.cache->changes;
  AttendCall call(step.cache->shape_of(layer), step.batch.num_tokens, step.place(),
                  {layer, scale, soft_cap, windowed, kv_is_written},
                  {q, out, lse, sinks, tree_mask, key_scale, value_scale});
  require_unchanged(step, changes);
  Cache& cache = *step.cache;
  check(without_gil(kvarena_step_attend, cache.handle(), &call.args), cache.witness());
  for (const nb::handle used : {q, lse, sinks, tree_mask, key_scale, value_scale}) {
    hold(step, used);
  }
  hold(step, call.result);
  return call.result;
}

/// A step on `stream`. Tensors are held unless work ends with its call, or torch's allocator gives
/// their memory out again in the order of the same stream.
Step make_step(CacheArgument cache, StepKind kind, nb::handle stream, std::string_view urgency) {
  Step step{cache};
  step.kind = kind;
  step.demands = nb::none();
  step.tokens = nb::none();
  step.stream = chosen_stream(*cache.p->device, stream);
  step.urgency = urgency_of(urgency);
  const bool is_torch_stream = stream.is_none() && step.stream != nullptr;
  step.holds = !cache.p->device->runs_in_calls && !is_torch_stream;
  return step;
}

Step eager_step(CacheArgument cache, nb::object demands, nb::object tokens, nb::handle stream,
                std::string_view urgency) {
  Step step = make_step(cache, StepKind::eager, stream, urgency);
  step.demands = std::move(demands);
  step.tokens = std::move(tokens);
  return step;
}

void set_shape(Step& step, std::int32_t rows, std::int32_t tokens_per_row, bool shares_prefixes,
               std::int32_t row_tokens) {
  step.shape.num_rows = rows;
  step.shape.tokens_per_row = tokens_per_row;
  step.shape.shares_prefixes = shares_prefixes ? 1 : 0;
  step.shape.row_tokens = row_tokens;
}

Step recording(CacheArgument cache, std::int32_t rows, std::int32_t tokens_per_row,
               bool shares_prefixes, std::int32_t row_tokens, nb::handle stream) {
  if (!cache.p->device->is_cuda) {
    kvarena_status status{};
    status.code = KVARENA_UNSUPPORTED;
    status.resource = KVARENA_RESOURCE_DEVICE;
    raise(status, {}, "recorded steps need a GPU: on the CPU there are no CUDA graphs", -1);
  }
  Step step = make_step(cache, StepKind::recording, stream, "default");
  set_shape(step, rows, tokens_per_row, shares_prefixes, row_tokens);
  return step;
}

Step replayed_step(CacheArgument cache, std::int32_t graph_rows, nb::object demands,
                   nb::object tokens, std::int32_t tokens_per_row, bool shares_prefixes,
                   nb::handle stream, std::string_view urgency) {
  Step step = make_step(cache, StepKind::replay, stream, urgency);
  set_shape(step, graph_rows, tokens_per_row, shares_prefixes, 0);
  step.demands = std::move(demands);
  step.tokens = std::move(tokens);
  return step;
}

int visit_step(PyObject* self, visitproc visit, void* arg) {
  if (nb::inst_ready(self)) {
    Py_VISIT(nb::inst_ptr<Step>(self)->demands.ptr());
    Py_VISIT(nb::inst_ptr<Step>(self)->tokens.ptr());
  }
  return visit_cache<Step>(self, visit, arg);
}

int clear_step(PyObject* self) {
  nb::object(std::move(nb::inst_ptr<Step>(self)->demands)).reset();
  nb::object(std::move(nb::inst_ptr<Step>(self)->tokens)).reset();
  return 0;
}

const PyType_Slot kStepSlots[] = {{Py_tp_traverse, reinterpret_cast<void*>(&visit_step)},
                                  {Py_tp_clear, reinterpret_cast<void*>(&clear_step)},
                                  {0, nullptr}};

void add_to_cache(nb::module_& module) {
  auto cache = nb::borrow<nb::class_<Cache>>(module.attr("Cache"));
  cache
      .def("step", &eager_step, nb::arg("demands") = nb::none(), nb::kw_only(),
           nb::arg("tokens") = nb::none(), nb::arg("stream") = nb::none(),
           nb::arg("urgency") = "growth")
      .def("record", &recording, nb::arg("rows"), nb::kw_only(), nb::arg("tokens_per_row") = 1,
           nb::arg("shares_prefixes") = false, nb::arg("row_tokens") = 0,
           nb::arg("stream") = nb::none())
      .def("replay", &replayed_step, nb::arg("graph_rows"), nb::arg("demands"), nb::kw_only(),
           nb::arg("tokens") = nb::none(), nb::arg("tokens_per_row") = 1,
           nb::arg("shares_prefixes") = false, nb::arg("stream") = nb::none(),
           nb::arg("urgency") = "growth");
}

}  // namespace

void bind_step(nb::module_& module) {
  nb::class_<Step>(module, "Step", nb::type_slots(kStepSlots))
      .def("__enter__", &enter)
      .def("__exit__", &leave, nb::arg("type").none(), nb::arg("value").none(),
           nb::arg("traceback").none())
      .def("write", &write, nb::arg("layer"), nb::arg("key"), nb::arg("value").none(),
           nb::kw_only(), nb::arg("key_scale") = nb::none(), nb::arg("value_scale") = nb::none())
      .def("append", &append, nb::arg("demands"), nb::arg("urgency") = "", nb::kw_only(),
           nb::arg("tokens") = nb::none())
      .def("attend", &attend, nb::arg("layer"), nb::arg("q"), nb::kw_only(),
           nb::arg("out") = nb::none(), nb::arg("scale") = 0.0, nb::arg("windowed") = false,
           nb::arg("soft_cap") = 0.0, nb::arg("lse") = nb::none(), nb::arg("sinks") = nb::none(),
           nb::arg("tree_mask") = nb::none(), nb::arg("key_scale") = nb::none(),
           nb::arg("value_scale") = nb::none(), nb::arg("kv_is_written") = false)
      .def("device_batch", &device_batch, nb::arg("part") = 0)
      .def("states", &states_of, nb::arg("group"))
      .def("write_cross", &write_cross, nb::arg("layer"), nb::arg("sequence"), nb::arg("key"),
           nb::arg("value").none(), nb::kw_only(), nb::arg("key_scale") = nb::none(),
           nb::arg("value_scale") = nb::none())
      .def("write_index", &write_index, nb::arg("layer"), nb::arg("key"))
      .def_prop_ro("slots", &slots_of)
      .def_prop_ro("num_tokens", [](const Step& s) { return s.batch.num_tokens; })
      .def_prop_ro("num_copies", [](const Step& s) { return s.batch.num_copies; })
      .def_prop_ro("new_blocks", [](const Step& s) { return s.batch.new_blocks; });
  add_to_cache(module);
}

}  // namespace kvarena::python
