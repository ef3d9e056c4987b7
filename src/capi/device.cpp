// Devices: opening, facts, reports.

#include "capi/json.hpp"
#include "capi/objects.hpp"

#include "kvarena/cache/cache_footprint.hpp"
#include "kvarena/device/host_device.hpp"
#include "kvarena/device/memory_drift.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

using namespace kvarena;
using namespace kvarena::capi;

namespace {

HostDeviceOptions host_options(const kvarena_host_options& given) noexcept {
  HostDeviceOptions options;
  options.capacity_bytes = given.capacity_bytes;
  if (given.max_streams != 0) options.max_streams = given.max_streams;
  if (given.max_queued != 0) options.max_queued = given.max_queued;
  if (given.inline_calls != 0) options.streams = HostStreams::inline_calls;
  return options;
}

CudaDeviceOptions cuda_options(const kvarena_cuda_options& given) noexcept {
  CudaDeviceOptions options;
  options.ordinal = given.ordinal;
  if (given.max_streams != 0) options.max_streams = given.max_streams;
  if (given.max_host_functions != 0) options.max_host_functions = given.max_host_functions;
  if (given.bounce_bytes != 0) options.bounce_bytes = given.bounce_bytes;
  if (given.allow_host != 0) options.policy = ResidencyPolicy::allow_host;
  return options;
}

template <class Created>
Status open_device(Result<Created> created, kvarena_device** device) {
  if (!created) return created.status();
  return open(std::make_shared<DeviceObject>(std::move(*created)), device);
}

kvarena_device_info info_of(const DeviceObject& object, const MemoryInfo& memory) {
  const Device& device = object.device();
  const MemoryBreakdown usage = device.tracker().breakdown();
  kvarena_device_info info{};
  info.total_bytes = memory.total_bytes;
  info.free_bytes = memory.free_bytes;
  info.tracked_bytes = usage.total.bytes;
  info.staging_bytes = usage.staging.bytes;
  info.overhead_bytes = device.overhead_bytes();
  info.ordinal = -1;
  info.lost_to = device.lost_to();
  info.allows_host = device.policy() == ResidencyPolicy::allow_host ? 1 : 0;
  if (const CudaDevice* gpu = object.cuda()) {
    const CudaDeviceInfo facts = gpu->info();
    info.bounce_bytes = gpu->bounce_bytes();
    info.is_cuda = 1;
    info.ordinal = gpu->ordinal();
    info.compute_capability = 10 * facts.major + facts.minor;
    info.num_sms = facts.num_sms;
  }
  return info;
}

Json json_of(const MemoryUsage& usage) {
  return {{"bytes", usage.bytes}, {"peak_bytes", usage.peak_bytes}, {"allocations", usage.count}};
}

Json usage_json(const VramTracker& tracker) {
  const MemoryBreakdown usage = tracker.breakdown();
  Json by_purpose = Json::object();
  for (std::size_t p = 0; p < kNumMemoryPurposes; ++p) {
    by_purpose[std::string(name_of(static_cast<MemoryPurpose>(p)))] = json_of(usage.by_purpose[p]);
  }
  Json totals = Json::array();
  for (const ReportedTotal& total : tracker.totals()) {
    totals.push_back(
        {{"name", total.name}, {"purpose", name_of(total.purpose)}, {"bytes", total.bytes}});
  }
  return {{"total", json_of(usage.total)},
          {"by_purpose", std::move(by_purpose)},
          {"staging", json_of(usage.staging)},
          {"reported", std::move(totals)},
          {"allocations_ever", usage.allocations_ever},
          {"frees_ever", usage.frees_ever}};
}

Json allocations_json(const VramTracker& tracker) {
  Json list = Json::array();
  for (const AllocationRecord& record : tracker.allocations()) {
    list.push_back({{"address", reinterpret_cast<std::uintptr_t>(record.pointer)},
                    {"bytes", record.bytes},
                    {"purpose", name_of(record.purpose)},
                    {"kind", name_of(record.kind)},
                    {"owner", name_of(record.owner)},
                    {"description", record.description}});
  }
  return list;
}

Json drift_json(const Device& device) {
  const Result<MemoryDrift> drift = measure_drift(device);
  if (!drift) return nullptr;
  const auto known = [](const auto& bytes) { return bytes ? Json(*bytes) : Json(nullptr); };
  return {{"driver_used_bytes", drift->driver_used_bytes},
          {"tracked_bytes", drift->tracked_bytes},
          {"overhead_bytes", drift->overhead_bytes},
          {"growth_bytes", drift->growth_bytes},
          {"own_bytes", known(drift->own_bytes)},
          {"context_bytes", known(drift->context_bytes)},
          {"other_bytes", known(drift->other_bytes)}};
}

Json device_json(const Device& device) {
  const Result<MemoryInfo> memory = device.memory_info();
  Json json{{"name", device.name()}, {"policy", name_of(device.policy())}};
  json["total_bytes"] = memory ? Json(memory->total_bytes) : Json(nullptr);
  json["free_bytes"] = memory ? Json(memory->free_bytes) : Json(nullptr);
  json["usage"] = usage_json(device.tracker());
  json["drift"] = drift_json(device);
  json["allocations"] = allocations_json(device.tracker());
  return json;
}

Json gpu_json(const CudaDeviceInfo& gpu) {
  Json json{{"ordinal", gpu.ordinal},
            {"name", gpu.name},
            {"total_bytes", gpu.memory.total_bytes},
            {"free_bytes", gpu.memory.free_bytes},
            {"compute_capability", 10 * gpu.major + gpu.minor},
            {"num_sms", gpu.num_sms},
            {"is_integrated", gpu.is_integrated},
            {"pci_bus_id", gpu.pci_bus_id}};
  json["refused"] = gpu.status ? Json(nullptr) : Json(describe_cuda(gpu.status));
  return json;
}

}  // namespace

kvarena_status kvarena_device_open_host(const kvarena_host_options* options,
                                        kvarena_device** device) {
  return guarded([&]() -> Status {
    kvarena_host_options given;
    if (Status s = read_optional_struct(options, given); !s) return s;
    if (device == nullptr) return refused_null();
    return open_device(HostDevice::create(host_options(given)), device);
  });
}

kvarena_status kvarena_device_open_cuda(const kvarena_cuda_options* options,
                                        kvarena_device** device) {
  return guarded([&]() -> Status {
    kvarena_cuda_options given;
    if (Status s = read_optional_struct(options, given); !s) return s;
    if (device == nullptr) return refused_null();
    return open_device(CudaDevice::create(cuda_options(given)), device);
  });
}

kvarena_status kvarena_device_release(kvarena_device* device) {
  return close<DeviceObject>(device, [](DeviceObject&) {});
}

kvarena_status kvarena_device_ask(kvarena_device* device, kvarena_device_info* info) {
  return visit<DeviceObject>(device, [&](DeviceObject& object) -> Status {
    if (Status s = check_target(info); !s) return s;
    const Result<MemoryInfo> memory = object.device().memory_info();
    if (!memory) return memory.status();
    write_struct(info_of(object, *memory), info);
    return {};
  });
}

kvarena_status kvarena_device_name(kvarena_device* device, char* out, size_t size, size_t* length) {
  return visit_text<DeviceObject>(device, {out, size, length},
                                  [](DeviceObject& object) { return object.device().name(); });
}

kvarena_status kvarena_device_json(kvarena_device* device, char* out, size_t size, size_t* length) {
  return visit_text<DeviceObject>(device, {out, size, length}, [](DeviceObject& object) {
    return to_text(device_json(object.device()));
  });
}

kvarena_status kvarena_device_report(kvarena_device* device, char* out, size_t size,
                                     size_t* length) {
  return visit_text<DeviceObject>(device, {out, size, length}, [](DeviceObject& object) {
    return object.device().tracker().report();
  });
}

kvarena_status kvarena_device_describe(kvarena_device* device, const kvarena_status* status,
                                       char* out, size_t size, size_t* length) {
  return visit<DeviceObject>(device, [&](DeviceObject& object) -> Status {
    const TextTarget target{out, size, length};
    if (Status s = target.check(); !s) return s;
    if (status == nullptr) return refused_null();
    const Status given = from_c(*status);
    const bool is_cudas = given.code == StatusCode::device_error && object.cuda() != nullptr;
    target.write(is_cudas ? describe_cuda(given) : object.device().describe(given));
    return {};
  });
}

kvarena_status kvarena_devices_json(int32_t with_memory, char* out, size_t size, size_t* length) {
  return guarded([&]() -> Status {
    const TextTarget target{out, size, length};
    if (Status s = target.check(); !s) return s;
    const CudaDeviceList list = with_memory != 0 ? list_devices() : identify_devices();
    Json devices = Json::array();
    for (const CudaDeviceInfo& gpu : list.devices) devices.push_back(gpu_json(gpu));
    Json json{{"cuda_built", list.cuda_built}, {"devices", std::move(devices)}};
    json["error"] = list.status ? Json(nullptr) : Json(list.error);
    target.write(to_text(json));
    return {};
  });
}

kvarena_status kvarena_device_target(kvarena_device* device, kvarena_target* target) {
  return visit<DeviceObject>(device, [&](DeviceObject& object) -> Status {
    if (Status s = check_target(target); !s) return s;
    const Result<CacheTarget> found = target_of(object.device());
    if (!found) return found.status();
    kvarena_target result{};
    result.bounce_bytes = found->bounce_bytes;
    result.is_cuda = found->kind == DeviceKind::cuda ? 1 : 0;
    result.num_sms = found->num_sms;
    result.num_threads = found->num_threads;
    write_struct(result, target);
    return {};
  });
}
