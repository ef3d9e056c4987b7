// The health monitor.

#include <memory>
#include <utility>

#include "cache.hpp"
#include "lines.hpp"
#include "records.hpp"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

namespace kvarena::python {

namespace {

struct Monitor {
  kvarena_monitor* open = nullptr;  ///< null: closed
  ~Monitor() { close(); }
  /// Returns the handle. Raises kvarena.FailedPrecondition after close.
  kvarena_monitor* handle() const {
    if (open == nullptr) raise_closed("the monitor is closed");
    return open;
  }
  kvarena_status close() {
    if (open == nullptr) return {};
    kvarena_monitor* const last = std::exchange(open, nullptr);
    const kvarena_status status = without_gil(kvarena_monitor_release, last);
    if (status.code != KVARENA_OK) open = last;
    return status;
  }
};

void hear_reason(void* user, const char* code, const char* text) {
  push_line({"unhealthy", 0, text, code, reinterpret_cast<std::uintptr_t>(user)});
}

void hear_pressure(void* user, const char* name, std::int32_t from, std::int32_t to,
                   const char* text) {
  push_line({"pressure", 16 * from + to, text, name, reinterpret_cast<std::uintptr_t>(user)});
}

/// Starts a monitor. `listener` is its number in lines of kind "unhealthy" and "pressure"; 0: none.
std::shared_ptr<Monitor> start_monitor(nb::handle given, std::uint64_t listener) {
  auto options = sized<kvarena_monitor_options>();
  read_members(given, options);
  std::string address;
  std::string token;
  if (const nb::object text = given.attr("http_address"); !text.is_none()) {
    address = nb::cast<std::string>(text);
    options.http_address = address.c_str();
  }
  if (const nb::object text = given.attr("http_token"); !text.is_none()) {
    token = nb::cast<std::string>(text);
    options.http_token = token.c_str();
  }
  if (listener != 0) {
    options.on_unhealthy = hear_reason;
    options.on_pressure = hear_pressure;
    options.user = reinterpret_cast<void*>(listener);
  }
  auto monitor = std::make_shared<Monitor>();
  check(without_gil(kvarena_monitor_start, &options, &monitor->open));
  return monitor;
}

template <auto write>
std::string text_by(const Monitor& monitor) {
  return text_of([&](char* out, std::size_t size, std::size_t* length) {
    return without_gil(write, monitor.handle(), out, size, length);
  });
}

template <auto ask>
bool answer_of(const Monitor& monitor) {
  bool answer = false;
  check(without_gil(ask, monitor.handle(), &answer));
  return answer;
}

std::int32_t port_of(const Monitor& monitor) {
  std::int32_t port = 0;
  check(kvarena_monitor_port(monitor.handle(), &port));
  return port;
}

}  // namespace

void bind_monitor(nb::module_& module) {
  nb::class_<Monitor>(module, "Monitor")
      .def(nb::new_(&start_monitor), nb::arg("options"), nb::arg("listener") = 0)
      .def("close", [](Monitor& m) { check(m.close()); })
      .def(
          "watch",
          [](const Monitor& m, const Cache& c, const std::string& name) {
            check(without_gil(kvarena_monitor_watch, m.handle(), c.handle(), name.c_str()),
                  c.witness());
          },
          nb::arg("cache"), nb::arg("name"))
      .def(
          "unwatch",
          [](const Monitor& m, const std::string& name) {
            check(without_gil(kvarena_monitor_unwatch, m.handle(), name.c_str()));
          },
          nb::arg("name"))
      .def("watch_device",
           [](const Monitor& m, const Device& d) {
             check(without_gil(kvarena_monitor_watch_device, m.handle(), d.handle()), d.witness());
           })
      .def("unwatch_device",
           [](const Monitor& m, const Device& d) {
             check(without_gil(kvarena_monitor_unwatch_device, m.handle(), d.handle()),
                   d.witness());
           })
      .def(
          "report_engine",
          [](const Monitor& m, const std::string& name, std::int64_t waiting,
             std::int64_t preemptions) {
            check(kvarena_monitor_report_engine(m.handle(), name.c_str(), waiting, preemptions));
          },
          nb::arg("name"), nb::arg("waiting_requests"), nb::arg("new_preemptions"))
      .def("check", &answer_of<kvarena_monitor_check>)
      .def_prop_ro("is_healthy", &answer_of<kvarena_monitor_is_healthy>)
      .def("acknowledge", [](const Monitor& m) { check(kvarena_monitor_acknowledge(m.handle())); })
      .def_prop_ro("port", &port_of)
      .def("health_json", &text_by<kvarena_monitor_health_json>)
      .def("stats_json", &text_by<kvarena_monitor_stats_json>)
      .def("metrics", &text_by<kvarena_monitor_metrics>);
}

}  // namespace kvarena::python
