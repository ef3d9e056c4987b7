// Memory and streams of a device, for engines that keep a pool of their own.

#include "capi/convert.hpp"
#include "capi/json.hpp"
#include "capi/objects.hpp"

#include "kvarena/device/residency.hpp"

#include <cstdint>
#include <utility>

using namespace kvarena;
using namespace kvarena::capi;

namespace {

/// The request's members, checked.
Result<AllocationRequest> request_of(const kvarena_allocation& given) noexcept {
  if (given.purpose < 0 || given.purpose > KVARENA_PURPOSE_UNKNOWN) {
    return invalid_option(Option::purpose, given.purpose, 0, KVARENA_PURPOSE_UNKNOWN);
  }
  if (given.kind < 0 || given.kind > KVARENA_MEMORY_STAGING) {
    return invalid_option(Option::kind, given.kind, 0, KVARENA_MEMORY_STAGING);
  }
  AllocationRequest request;
  request.bytes = given.bytes;
  if (given.alignment_bytes != 0) request.alignment_bytes = given.alignment_bytes;
  request.purpose = static_cast<MemoryPurpose>(given.purpose);
  request.kind = static_cast<MemoryKind>(given.kind);
  if (given.description != nullptr) request.description = given.description;
  return request;
}

/// Runs `body(object, id of the stream)`.
template <class Body>
kvarena_status on_stream(kvarena_device* device, void* stream, Body&& body) {
  return visit<DeviceObject>(device, [&](DeviceObject& object) -> Status {
    const Result<StreamId> id = object.id_of(stream);
    return id ? by_handle(body(object.device(), *id), *id, stream) : id.status();
  });
}

Json verdict_json(const ResidencyReport& report) {
  Json violations = Json::array();
  for (const ResidencyViolation& violation : report.violations) {
    violations.push_back({{"address", reinterpret_cast<std::uintptr_t>(violation.record.pointer)},
                          {"bytes", violation.record.bytes},
                          {"purpose", name_of(violation.record.purpose)},
                          {"place", name_of(violation.placement.place)},
                          {"driver_said", violation.placement.driver_said},
                          {"text", describe(violation)}});
  }
  Json json{{"policy", name_of(report.policy)},
            {"resident", report.resident},
            {"checked", report.checked},
            {"unverifiable_bytes", report.unverifiable_bytes},
            {"violations", std::move(violations)}};
  json["error"] = report.status ? Json(nullptr) : Json(describe(report.status));
  return json;
}

}  // namespace

kvarena_status kvarena_memory_allocate(kvarena_device* device, const kvarena_allocation* request,
                                       void** memory) {
  return visit<DeviceObject>(device, [&](DeviceObject& object) -> Status {
    kvarena_allocation given;
    if (Status s = read_struct(request, given); !s) return s;
    if (memory == nullptr) return refused_null();
    const Result<AllocationRequest> wanted = request_of(given);
    if (!wanted) return wanted.status();
    const Result<void*> allocated = object.allocate(*wanted);
    if (allocated) *memory = *allocated;
    return allocated.status();
  });
}

kvarena_status kvarena_memory_free(kvarena_device* device, void* memory) {
  return visit<DeviceObject>(device, [&](DeviceObject& object) { return object.free(memory); });
}

kvarena_status kvarena_memory_register(kvarena_device* device, void* memory,
                                       const kvarena_allocation* request, int32_t defer) {
  return visit<DeviceObject>(device, [&](DeviceObject& object) -> Status {
    kvarena_allocation given;
    if (Status s = read_struct(request, given); !s) return s;
    const Result<AllocationRequest> wanted = request_of(given);
    if (!wanted) return wanted.status();
    AllocationRecord record;
    record.pointer = memory;
    record.bytes = wanted->bytes;
    record.purpose = wanted->purpose;
    record.kind = wanted->kind;
    record.description = wanted->description;
    return register_memory(object.device(), std::move(record),
                           defer != 0 ? RegisterCheck::defer : RegisterCheck::verify);
  });
}

kvarena_status kvarena_memory_unregister(kvarena_device* device, void* memory) {
  return visit<DeviceObject>(
      device, [&](DeviceObject& object) { return unregister_memory(object.device(), memory); });
}

kvarena_status kvarena_memory_report(kvarena_device* device, const char* name, int32_t purpose,
                                     uint64_t bytes) {
  return visit<DeviceObject>(device, [&](DeviceObject& object) -> Status {
    if (name == nullptr) return refused_null();
    if (purpose < 0 || purpose > KVARENA_PURPOSE_UNKNOWN) {
      return invalid_option(Option::purpose, purpose, 0, KVARENA_PURPOSE_UNKNOWN);
    }
    return object.device().tracker().set_total(name, static_cast<MemoryPurpose>(purpose), bytes);
  });
}

kvarena_status kvarena_memory_place(kvarena_device* device, const void* memory, uint64_t bytes,
                                    int32_t* place, int32_t* ordinal) {
  return visit<DeviceObject>(device, [&](DeviceObject& object) -> Status {
    const Result<Placement> found = object.device().place_of(memory, bytes);
    if (!found) return found.status();
    if (place != nullptr) *place = static_cast<std::int32_t>(found->place);
    if (ordinal != nullptr) *ordinal = found->ordinal;
    return {};
  });
}

kvarena_status kvarena_memory_verify(kvarena_device* device, char* out, size_t size,
                                     size_t* length) {
  return visit<DeviceObject>(device, [&](DeviceObject& object) -> Status {
    const TextTarget target{out, size, length};
    if (Status s = target.check(); !s) return s;
    const ResidencyReport report = verify_residency(object.device());
    target.write(to_text(verdict_json(report)));
    if (!report.status || report.violations.empty()) return report.status;
    const void* const first = report.violations.front().record.pointer;
    return residency_violated(reinterpret_cast<std::uintptr_t>(first));
  });
}

kvarena_status kvarena_memory_copy(kvarena_device* device, void* target, const void* source,
                                   uint64_t bytes, void* stream) {
  return on_stream(device, stream, [&](Device& memory, StreamId id) {
    return memory.copy(target, source, bytes, id);
  });
}

kvarena_status kvarena_memory_fill(kvarena_device* device, void* target, uint8_t value,
                                   uint64_t bytes, void* stream) {
  return on_stream(device, stream, [&](Device& memory, StreamId id) {
    return memory.fill(target, value, bytes, id);
  });
}

kvarena_status kvarena_stream_create(kvarena_device* device, void** stream) {
  return visit<DeviceObject>(device, [&](DeviceObject& object) -> Status {
    if (stream == nullptr) return refused_null();
    const Result<void*> created = object.create_stream();
    if (created) *stream = *created;
    return created.status();
  });
}

kvarena_status kvarena_stream_destroy(kvarena_device* device, void* stream) {
  return visit<DeviceObject>(device,
                             [&](DeviceObject& object) { return object.destroy_stream(stream); });
}

kvarena_status kvarena_stream_synchronize(kvarena_device* device, void* stream) {
  return on_stream(device, stream,
                   [](Device& memory, StreamId id) { return memory.synchronize(id); });
}
