// The module kvarena._core: the C interface as Python objects.

#include "core.hpp"

#include <nanobind/stl/string.h>

namespace kvarena::python {

void bind_library(nb::module_& module) {
  module.def("version", [] { return kvarena_version(); });
  module.def("abi", [] { return kvarena_abi(); });
  module.def("has_cuda", [] { return kvarena_has_cuda(); });
  module.def("now_ns", [] { return kvarena_now_ns(); });
  module.def("devices_json", [](bool with_memory) {
    return text_of([&](char* out, std::size_t size, std::size_t* length) {
      return without_gil(
          [&] { return kvarena_devices_json(with_memory ? 1 : 0, out, size, length); });
    });
  });
  module.def("presets_json", [] { return text_of(kvarena_presets_json); });
  module.def("plan_json", [](const std::string& request) {
    // On failure the text says what was wrong with the request.
    std::size_t length = 0;
    std::string text;
    kvarena_status status = kvarena_plan_json(request.c_str(), nullptr, 0, &length);
    text.resize(length + 1);
    status = kvarena_plan_json(request.c_str(), text.data(), text.size(), &length);
    text.resize(length);
    if (status.code != KVARENA_OK) raise(status, {}, text, -1);
    return text;
  });
}

}  // namespace kvarena::python

NB_MODULE(_core, module) {
  namespace python = kvarena::python;
  // Objects that live until the process ends are no leak: nobody has asked for their end.
  nanobind::set_leak_warnings(false);
  python::bind_library(module);
  python::bind_device(module);
  python::bind_cache(module);
  python::bind_sequence(module);
  python::bind_step(module);
  python::bind_groups(module);
  python::bind_layout(module);
  python::bind_pool(module);
  python::bind_kernels(module);
  python::bind_monitor(module);
  python::bind_lines(module);
}
