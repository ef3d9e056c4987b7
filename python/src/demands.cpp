// The demands of a step, read from Python objects.

#include "cache.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

namespace kvarena::python {

namespace {

[[noreturn]] void refuse(std::size_t index, nb::handle item) {
  raise_type("demands[" + std::to_string(index) + "]", nb::cast<std::string>(nb::repr(item)),
             "a sequence for one token, (sequence, tokens) or (sequence, tokens, urgency)");
}

kvarena_demand read_demand(const Cache& cache, std::size_t index, nb::handle item) {
  kvarena_demand demand{0, 1, KVARENA_URGENCY_DEFAULT};
  nb::handle named = item;
  if (PyTuple_Check(item.ptr()) != 0) {
    const Py_ssize_t size = PyTuple_Size(item.ptr());
    if (size != 2 && size != 3) refuse(index, item);
    named = PyTuple_GetItem(item.ptr(), 0);
    const long long tokens = PyLong_AsLongLong(PyTuple_GetItem(item.ptr(), 1));
    if (tokens == -1 && PyErr_Occurred() != nullptr) {
      PyErr_Clear();
      refuse(index, item);
    }
    if (tokens < 0 || tokens > INT32_MAX) {
      raise_value("demands[" + std::to_string(index) + "]", std::to_string(tokens) + " tokens",
                  "0 .. 2^31 - 1");
    }
    demand.num_tokens = static_cast<std::int32_t>(tokens);
    if (size == 3) {
      demand.urgency =
          urgency_of(nb::cast<std::string>(nb::str(nb::handle(PyTuple_GetItem(item.ptr(), 2)))));
    }
  }
  const Sequence* const sequence = sequence_in(named);
  if (sequence == nullptr) refuse(index, item);
  if (sequence->cache.get() != &cache) {
    raise_value("demands[" + std::to_string(index) + "]", "a sequence of another cache",
                "sequences of the step's cache");
  }
  demand.sequence = sequence->id;
  return demand;
}

}  // namespace

void read_demands(const Cache& cache, nb::handle demands, std::vector<kvarena_demand>& rows) {
  rows.clear();
  if (PyList_Check(demands.ptr()) != 0) {
    // The list may change while an item is printed: its size is read each time.
    for (Py_ssize_t i = 0; i < PyList_Size(demands.ptr()); ++i) {
      rows.push_back(
          read_demand(cache, static_cast<std::size_t>(i), PyList_GetItem(demands.ptr(), i)));
    }
    return;
  }
  std::size_t index = 0;
  for (const nb::handle item : nb::iter(demands)) {
    rows.push_back(read_demand(cache, index++, item));
  }
}

}  // namespace kvarena::python
