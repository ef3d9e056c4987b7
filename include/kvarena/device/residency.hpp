#pragma once

/// @file
/// Residency: whether memory lies where it must. The driver, not the tracker, is asked where memory
/// lies. `Device::place_of` returns what a range is; the functions here compare that with what an
/// allocation must be. Plain values. The functions may be called from any thread while others
/// allocate and free. No function here waits for queued work.

#include "kvarena/base/export.hpp"
#include "kvarena/device/vram_tracker.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvarena {

class Device;

/// The memory that a device accepts for KV and weights.
enum class ResidencyPolicy : std::uint8_t {
  vram_only,   ///< only device-local memory of that GPU; the default on CUDA
  allow_host,  ///< also host memory that the device reaches, never another GPU's; must be chosen,
               ///< is logged at create, and never counts as resident. Host devices have this policy
};

/// What a range of memory is, according to the driver.
enum class MemoryPlace : std::uint8_t {
  vram,           ///< device-local memory of this GPU
  other_device,   ///< device-local memory of another GPU
  integrated,     ///< memory of an integrated GPU, which is the machine's memory
  managed,        ///< unified memory, which can migrate
  pinned_host,    ///< page-locked host memory, mapped into the GPU or not
  pageable_host,  ///< host memory that the driver does not know: foreign or freed
  host_device,    ///< memory that a host device allocated
  mixed,          ///< the range is not one allocation from first to last byte
};

/// Returns "vram", "managed", ...
KVARENA_EXPORT std::string_view name_of(MemoryPlace place) noexcept;
/// Returns "vram_only" or "allow_host".
KVARENA_EXPORT std::string_view name_of(ResidencyPolicy policy) noexcept;

/// What the driver reported about a range.
struct Placement {
  MemoryPlace place = MemoryPlace::pageable_host;  ///< of every byte, or of the first byte that
                                                   ///< differs
  std::int32_t ordinal = -1;                       ///< the GPU that owns it; -1: none
  const void* pointer = nullptr;                   ///< the byte that decided the verdict
  std::string driver_said;                         ///< the driver's attributes as text, for people
};

/// A tracked allocation that is not where it must be.
struct ResidencyViolation {
  AllocationRecord record;  ///< the allocation
  Placement placement;      ///< where it is instead
};

/// The verdict over all tracked allocations of a device.
struct ResidencyReport {
  ResidencyPolicy policy = ResidencyPolicy::vram_only;  ///< the policy that the verdict uses
  bool resident = false;  ///< every allocation of kind device is VRAM of this GPU; false on host
                          ///< devices
  std::uint64_t checked = 0;                   ///< allocations checked
  std::uint64_t unverifiable_bytes = 0;        ///< bytes of VramTracker::set_total, which have no
                                               ///< address to check
  std::vector<ResidencyViolation> violations;  ///< by address
  Status status;                               ///< ok, or why the driver could not be asked
};

/// When memory that an engine registers is checked.
enum class RegisterCheck : std::uint8_t {
  verify,  ///< now: memory that the policy forbids is refused
  defer,   ///< later, by the next verify_residency
};

/// Returns whether an allocation that must be `kind` may lie at `place` under `policy`.
KVARENA_EXPORT bool is_permitted(MemoryPlace place, MemoryKind kind,
                                 ResidencyPolicy policy) noexcept;
/// Checks every tracked allocation of `device`, from first to last byte. An allocation that is
/// freed during the check is no violation, even when other memory takes its address. `status` is
/// exhausted (host_memory) when there is no memory for the lists. Asks the driver O(allocations)
/// times.
KVARENA_EXPORT ResidencyReport verify_residency(const Device& device) noexcept;
/// Returns one line: "VRAM residency violated: ..." with pointer, bytes, purpose, description, what
/// the memory must be and what the driver reported.
KVARENA_EXPORT std::string describe(const ResidencyViolation& violation) noexcept;

/// Records memory that the engine allocated itself, so that it is counted and checked. The function
/// sets `record.owner` and `record.serial`. The memory stays the engine's: call unregister_memory
/// before freeing it; Device::free refuses it. Returns unsupported (allocation) for KV or weights
/// in pinned staging memory, residency_violated (allocation) when RegisterCheck::verify finds what
/// the policy forbids, the driver's failure when it cannot be asked, else what VramTracker::record
/// returns.
KVARENA_EXPORT Status register_memory(Device& device, AllocationRecord record,
                                      RegisterCheck check = RegisterCheck::verify);
/// Removes the record of register_memory. Returns not_found (allocation), or failed_precondition
/// (allocation) for memory that the device allocated.
KVARENA_EXPORT Status unregister_memory(Device& device, void* pointer);

}  // namespace kvarena
