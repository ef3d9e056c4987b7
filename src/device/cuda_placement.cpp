#include "device/cuda_placement.hpp"

#include "device/cuda_driver.hpp"
#include "device/driver_answer.hpp"

#include <spdlog/fmt/fmt.h>

#include <array>
#include <string>
#include <utility>

namespace kvarena {
namespace {

static_assert(static_cast<int>(RuntimeMemory::unregistered) == cudaMemoryTypeUnregistered &&
              static_cast<int>(RuntimeMemory::host) == cudaMemoryTypeHost &&
              static_cast<int>(RuntimeMemory::device) == cudaMemoryTypeDevice &&
              static_cast<int>(RuntimeMemory::managed) == cudaMemoryTypeManaged);
static_assert(static_cast<int>(DriverMemory::host) == CU_MEMORYTYPE_HOST &&
              static_cast<int>(DriverMemory::device) == CU_MEMORYTYPE_DEVICE &&
              static_cast<int>(DriverMemory::array) == CU_MEMORYTYPE_ARRAY &&
              static_cast<int>(DriverMemory::unified) == CU_MEMORYTYPE_UNIFIED);

const void* pointer_to(std::uint64_t address) noexcept {
  return reinterpret_cast<const void*>(static_cast<std::uintptr_t>(address));
}

/// Reads the driver's attributes of one byte.
CUresult ask_driver(const CudaDriverFunctions& driver, std::uint64_t address,
                    DriverAnswer& answer) {
  // Booleans have four bytes here, because the driver writes one byte or all four.
  unsigned int memory = 0;
  unsigned int is_managed = 0;
  int ordinal = -1;
  CUdeviceptr range_first = 0;
  std::size_t range_bytes = 0;
  unsigned int is_mapped = 0;
  unsigned long long allowed_handles = 0;
  std::array attributes = {
      CU_POINTER_ATTRIBUTE_MEMORY_TYPE,         CU_POINTER_ATTRIBUTE_IS_MANAGED,
      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,      CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
      CU_POINTER_ATTRIBUTE_RANGE_SIZE,          CU_POINTER_ATTRIBUTE_MAPPED,
      CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES};
  std::array<void*, attributes.size()> answers = {
      &memory, &is_managed, &ordinal, &range_first, &range_bytes, &is_mapped, &allowed_handles};
  const CUresult error = driver.pointer_attributes(static_cast<unsigned int>(attributes.size()),
                                                   attributes.data(), answers.data(), address);
  answer.memory = static_cast<DriverMemory>(memory);
  answer.is_managed = is_managed != 0;
  answer.ordinal = ordinal;
  answer.range_first = range_first;
  answer.range_bytes = range_bytes;
  answer.is_mapped = is_mapped != 0;
  answer.allowed_handles = allowed_handles;
  return error;
}

/// Whether the driver's error means that it does not know the address, which is a valid answer.
bool is_unknown(std::int32_t error) noexcept {
  return error == CUDA_ERROR_INVALID_VALUE || error == CUDA_ERROR_INVALID_CONTEXT ||
         error == CUDA_ERROR_NOT_FOUND;
}

/// Asks the runtime and the driver about one byte.
Result<DriverAnswer> ask(const CudaContext& context, std::uint64_t address) {
  DriverAnswer answer;
  const Status status = context.call(Resource::pointer, address, [&]() -> std::int32_t {
    cudaPointerAttributes attributes{};
    const cudaError_t error = cudaPointerGetAttributes(&attributes, pointer_to(address));
    if (error != cudaSuccess) return error;
    answer.type = static_cast<RuntimeMemory>(attributes.type);
    answer.device = attributes.device;
    answer.device_pointer = attributes.devicePointer;
    answer.host_pointer = attributes.hostPointer;
    const CUresult driver_error = ask_driver(context.driver(), address, answer);
    if (!is_unknown(driver_error)) return driver_error;
    answer.memory = DriverMemory::none;
    return 0;
  });
  if (!status) return status;
  return answer;
}

/// Returns how many bytes from `address` on are mapped to the same piece of device memory. 0: none.
Result<std::uint64_t> mapped_from(const CudaContext& context, std::uint64_t address) {
  CUdeviceptr first = 0;
  std::size_t bytes = 0;
  const Status status = context.call(Resource::pointer, address, [&]() -> std::int32_t {
    const CUresult error = context.driver().mapping(&first, &bytes, address);
    return is_unknown(error) ? CUDA_SUCCESS : error;
  });
  if (!status) return status;
  const std::uint64_t offset = address - first;
  return offset < bytes ? bytes - offset : 0;
}

/// The check of a whole range, from its first byte to its last.
class RangeWalk {
 public:
  RangeWalk(const CudaContext& context, std::uint64_t first, std::uint64_t bytes) noexcept
      : context_(context), first_(first), last_(first + (bytes - 1)) {}

  Result<Placement> run() {
    const Result<DriverAnswer> answer = ask(context_, first_);
    if (!answer) return answer.status();
    const MemoryPlace place = judge(*answer);
    placement_ = {place, owner_of(*answer), pointer_to(first_), to_string(*answer)};
    if (place == MemoryPlace::pageable_host) return std::move(placement_);
    if (Status status = expect(last_, place); !status) return status;
    const std::uint64_t ranged = bytes_from(*answer, first_);
    if (ranged != 0 && ranged <= last_ - first_) differs(first_ + ranged, "the allocation ends");
    if (place == MemoryPlace::vram || place == MemoryPlace::integrated) {
      if (Status status = walk_mappings(place); !status) return status;
    }
    return std::move(placement_);
  }

 private:
  MemoryPlace judge(const DriverAnswer& answer) const noexcept {
    return place_of(answer, context_.ordinal(), context_.is_integrated());
  }
  /// Follows the mappings of a range. Memory of cudaMalloc is one mapping; virtual memory may have
  /// many mappings in different places.
  Status walk_mappings(MemoryPlace place) {
    std::uint64_t address = first_;
    while (placement_.place != MemoryPlace::mixed) {
      const Result<std::uint64_t> mapped = mapped_from(context_, address);
      if (!mapped) return mapped.status();
      if (*mapped == 0) {
        differs(address, "nothing is mapped");
        break;
      }
      if (*mapped > last_ - address) break;
      address += *mapped;
      if (Status status = expect(address, place); !status) return status;
    }
    return {};
  }
  /// Asks about one more byte, which should have the same place as the first byte.
  Status expect(std::uint64_t address, MemoryPlace place) {
    const Result<DriverAnswer> answer = ask(context_, address);
    if (!answer) return answer.status();
    if (judge(*answer) != place) differs(address, to_string(*answer));
    return {};
  }
  // Notes the first byte that differs.
  void differs(std::uint64_t address, const std::string& said) {
    if (placement_.place == MemoryPlace::mixed) return;
    placement_.place = MemoryPlace::mixed;
    placement_.pointer = pointer_to(address);
    placement_.driver_said = "at the first byte: " + placement_.driver_said +
                             fmt::format("; at {}: ", fmt::ptr(placement_.pointer)) + said;
  }

  const CudaContext& context_;
  const std::uint64_t first_;
  const std::uint64_t last_;
  Placement placement_;
};

}  // namespace

Result<MemoryPlace> cuda_place_at(const CudaContext& context, const void* pointer) {
  cudaPointerAttributes attributes{};
  const Status status = context.call(
      Resource::pointer, 0, [&] { return cudaPointerGetAttributes(&attributes, pointer); });
  if (!status) return status;
  switch (attributes.type) {
    case cudaMemoryTypeUnregistered: return MemoryPlace::pageable_host;
    case cudaMemoryTypeHost: return MemoryPlace::pinned_host;
    case cudaMemoryTypeManaged: return MemoryPlace::managed;
    default: return MemoryPlace::vram;
  }
}

Result<Placement> cuda_place_of(const CudaContext& context, const void* pointer,
                                std::uint64_t bytes) {
  return RangeWalk(context, reinterpret_cast<std::uintptr_t>(pointer), bytes).run();
}

}  // namespace kvarena
