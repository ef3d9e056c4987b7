#include "device/cuda_device_list.hpp"

#include "device/cuda_memory.hpp"

#include <cuda_runtime_api.h>
#include <spdlog/fmt/fmt.h>

namespace kvarena {
namespace {

/// Returns what is known of a GPU without a context on it.
CudaDeviceInfo properties_of(std::int32_t ordinal) {
  CudaDeviceInfo info;
  info.ordinal = ordinal;
  cudaDeviceProp properties{};
  const cudaError_t error = cudaGetDeviceProperties(&properties, ordinal);
  if (error != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    info.status = device_error(error, Resource::device, static_cast<std::uint64_t>(ordinal));
    return info;
  }
  info.name = properties.name;
  info.major = properties.major;
  info.minor = properties.minor;
  info.num_sms = properties.multiProcessorCount;
  info.is_integrated = properties.integrated != 0;
  info.pci_bus_id = fmt::format("{:04x}:{:02x}:{:02x}.0", properties.pciDomainID,
                                properties.pciBusID, properties.pciDeviceID);
  return info;
}

/// Adds the GPU's memory figures, for which a context is needed.
void add_memory(const CudaContext& context, CudaDeviceInfo& info) {
  const Result<MemoryInfo> memory = CudaMemory(context).info();
  if (memory) {
    info.memory = *memory;
  } else {
    info.status = memory.status();
  }
}

}  // namespace

CudaDeviceInfo cuda_device_info(const CudaContext& context) {
  CudaDeviceInfo info = properties_of(context.ordinal());
  add_memory(context, info);
  return info;
}

bool is_built_with_cuda() noexcept { return true; }

CudaDeviceList identify_devices() {
  CudaDeviceList list;
  list.cuda_built = true;
  const Result<std::int32_t> count = count_cuda_devices();
  if (!count) {
    list.status = count.status();
    list.error = cuda_remark(list.status);
    return list;
  }
  for (std::int32_t ordinal = 0; ordinal < *count; ++ordinal) {
    list.devices.push_back(properties_of(ordinal));
  }
  return list;
}

CudaDeviceList list_devices() {
  CudaDeviceList list = identify_devices();
  for (CudaDeviceInfo& info : list.devices) {
    const auto context = CudaContext::open(info.ordinal);
    if (context) {
      add_memory(**context, info);
    } else {
      info.status = context.status();
    }
  }
  return list;
}

}  // namespace kvarena
