// Devices: memory, streams and facts.

#include "device.hpp"

#include "records.hpp"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

namespace kvarena::python {

namespace {

using DevicePointer = std::shared_ptr<Device>;

struct DeviceOptions {
  std::uint64_t capacity_bytes;
  std::uint32_t max_streams;
  bool inline_calls;
  bool allow_host;
  std::uint64_t bounce_bytes;
};

/// Reads the GPU of "cuda" or "cuda:1". Raises ValueError.
std::int32_t ordinal_of(const std::string& name) {
  if (name == "cuda") return 0;
  const std::string digits = name.starts_with("cuda:") ? name.substr(5) : "";
  if (digits.empty() || digits.size() > 4 ||
      digits.find_first_not_of("0123456789") != std::string::npos) {
    raise_value("device", "\"" + name + "\"", "\"cpu\", \"cuda\", \"cuda:0\", ...");
  }
  return std::stoi(digits);
}

DevicePointer open_device(nb::handle device, const DeviceOptions& options) {
  const std::string name = nb::cast<std::string>(nb::str(device));
  auto opened = std::make_shared<Device>();
  if (name == "cpu") {
    auto host = sized<kvarena_host_options>();
    host.capacity_bytes = options.capacity_bytes;
    host.max_streams = options.max_streams;
    host.inline_calls = options.inline_calls ? 1 : 0;
    opened->runs_in_calls = options.inline_calls;
    check(kvarena_device_open_host(&host, &opened->open->handle));
    return opened;
  }
  auto cuda = sized<kvarena_cuda_options>();
  cuda.ordinal = ordinal_of(name);
  cuda.max_streams = options.max_streams;
  cuda.allow_host = options.allow_host ? 1 : 0;
  cuda.bounce_bytes = options.bounce_bytes;
  opened->is_cuda = true;
  opened->ordinal = cuda.ordinal;
  check(without_gil(kvarena_device_open_cuda, &cuda, &opened->open->handle));
  return opened;
}

std::string name_of(const Device& device) {
  return text_of([&](char* out, std::size_t size, std::size_t* length) {
    return kvarena_device_name(device.handle(), out, size, length);
  });
}

std::string text_by(const Device& device,
                    kvarena_status (*write)(kvarena_device*, char*, std::size_t, std::size_t*)) {
  return text_of(
      [&](char* out, std::size_t size, std::size_t* length) {
        return without_gil(write, device.handle(), out, size, length);
      },
      device.witness());
}

nb::object info_of(const Device& device) {
  auto info = sized<kvarena_device_info>();
  check(without_gil(kvarena_device_ask, device.handle(), &info), device.witness());
  nb::dict values = members_of(info);
  values["is_cuda"] = info.is_cuda != 0;
  values["allows_host"] = info.allows_host != 0;
  return make_record("DeviceInfo", values);
}

/// Memory that the device allocated, as an array of bytes that frees it at its end.
nb::object allocate_memory(const Device& device, std::uint64_t bytes, std::string_view purpose,
                           const std::string& description, std::string_view kind) {
  auto request = sized<kvarena_allocation>();
  request.bytes = bytes;
  request.purpose = number_of("purpose", purpose, kPurposes);
  request.kind = number_of("kind", kind, kMemoryKinds);
  request.description = description.c_str();
  void* memory = nullptr;
  check(without_gil(kvarena_memory_allocate, device.handle(), &request, &memory), device.witness());
  struct Block {
    std::shared_ptr<DeviceHandle> device;
    void* memory;
  };
  const nb::capsule owner(new Block{device.open, memory}, [](void* pointer) noexcept {
    const std::unique_ptr<Block> block(static_cast<Block*>(pointer));
    at_end(kvarena_memory_free, block->device->handle, block->memory);
  });
  return array_of(memory, {dlpack::kUint, 8, 1}, device.place(), {static_cast<std::int64_t>(bytes)},
                  owner);
}

/// Records memory that the engine allocated, such as a torch tensor for a pool.
void register_memory(const Device& device, nb::handle tensor, std::string_view purpose,
                     const std::string& description, bool defer) {
  const Tensor taken("tensor", tensor, device.place());
  taken.require_dense(0, "dense tensors");
  taken.require_writable();
  auto request = sized<kvarena_allocation>();
  request.bytes = static_cast<std::uint64_t>(taken.bytes_of_element());
  for (int i = 0; i < taken.ndim(); ++i)
    request.bytes *= static_cast<std::uint64_t>(taken.shape(i));
  request.purpose = number_of("purpose", purpose, kPurposes);
  request.description = description.c_str();
  check(
      without_gil(kvarena_memory_register, device.handle(), taken.data(), &request, defer ? 1 : 0),
      device.witness());
}

void unregister_memory(const Device& device, nb::handle tensor) {
  const Tensor taken("tensor", tensor, device.place());
  check(without_gil(kvarena_memory_unregister, device.handle(), taken.data()), device.witness());
}

/// What an allocator that cannot name addresses holds now.
void report_memory(const Device& device, const std::string& name, std::string_view purpose,
                   std::uint64_t bytes) {
  check(without_gil(kvarena_memory_report, device.handle(), name.c_str(),
                    number_of("purpose", purpose, kPurposes), bytes),
        device.witness());
}

std::uintptr_t create_stream(const Device& device) {
  void* stream = nullptr;
  check(without_gil(kvarena_stream_create, device.handle(), &stream), device.witness());
  return reinterpret_cast<std::uintptr_t>(stream);
}

void end_stream(const Device& device, nb::handle stream,
                kvarena_status (*call)(kvarena_device*, void*)) {
  void* const handle = stream_of(stream);
  check(without_gil(call, device.handle(), handle), device.witness());
}

/// Lets no more calls in. The handle ends now, or with the last array in memory of the device. What
/// lives on the device keeps it.
void close_device(Device& device) {
  if (device.open == nullptr) return;
  std::shared_ptr<DeviceHandle> last = std::move(device.open);
  if (last.use_count() > 1) return;
  const kvarena_status status = without_gil(kvarena_device_release, last->handle);
  if (status.code == KVARENA_OK) {
    last->handle = nullptr;
  } else {
    device.open = std::move(last);
    raise(status, device.witness());
  }
}

}  // namespace

void* chosen_stream(const Device& device, nb::handle given) {
  if (!given.is_none()) return stream_of(given);
  return device.is_cuda ? current_stream(device.ordinal) : nullptr;
}

void bind_device(nb::module_& module) {
  nb::class_<Device>(module, "Device")
      .def(nb::new_([](nb::handle device, std::uint64_t capacity_bytes, std::uint32_t max_streams,
                       bool inline_calls, bool allow_host, std::uint64_t bounce_bytes) {
             return open_device(
                 device, {capacity_bytes, max_streams, inline_calls, allow_host, bounce_bytes});
           }),
           nb::arg("device") = "cpu", nb::kw_only(), nb::arg("capacity_bytes") = 0,
           nb::arg("max_streams") = 0, nb::arg("inline_calls") = true,
           nb::arg("allow_host") = false, nb::arg("bounce_bytes") = 0)
      .def("__repr__",
           [](const Device& d) {
             return "<kvarena.Device " + (d.open == nullptr ? "closed" : name_of(d)) + ">";
           })
      .def_prop_ro("name", &name_of)
      .def_ro("is_cuda", &Device::is_cuda)
      .def_ro("ordinal", &Device::ordinal)
      .def("info", &info_of)
      .def("json", [](const Device& d) { return text_by(d, kvarena_device_json); })
      .def("report", [](const Device& d) { return text_by(d, kvarena_device_report); })
      .def("verify", [](const Device& d) { return text_by(d, kvarena_memory_verify); })
      .def("allocate", &allocate_memory, nb::arg("bytes"), nb::kw_only(),
           nb::arg("purpose") = "intermediate_buffers", nb::arg("description") = "",
           nb::arg("kind") = "device")
      .def("register", &register_memory, nb::arg("tensor"), nb::kw_only(),
           nb::arg("purpose") = "kv_cache", nb::arg("description") = "", nb::arg("defer") = false)
      .def("unregister", &unregister_memory, nb::arg("tensor"))
      .def("report_memory", &report_memory, nb::arg("name"), nb::arg("purpose"), nb::arg("bytes"))
      .def("create_stream", &create_stream)
      .def("destroy_stream",
           [](const Device& d, nb::handle s) { end_stream(d, s, kvarena_stream_destroy); })
      .def("synchronize",
           [](const Device& d, nb::handle s) { end_stream(d, s, kvarena_stream_synchronize); })
      .def("close", &close_device);
}

}  // namespace kvarena::python
