#pragma once

/// @file
/// Residency: whether memory lies where it must, asked of the driver and not of our own records.
/// `Device::place_of` says what a range is; the functions here judge that against what an
/// allocation must be. Plain values; the functions may be called from any thread while others
/// allocate and free. Nothing here waits for queued work.

#include "kvarena/base/export.hpp"
#include "kvarena/device/vram_tracker.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvarena {

class Device;

/// What a device accepts as memory for KV and weights.
enum class ResidencyPolicy : std::uint8_t {
  vram_only,   ///< device-local memory of that GPU and nothing else; the default on CUDA
  allow_host,  ///< an explicit choice, logged at create: host memory that the device reaches, too;
               ///< never another GPU's. Never counts as resident. What a host device has
};

/// What a range of memory is, in the driver's eyes.
enum class MemoryPlace : std::uint8_t {
  vram,           ///< device-local memory of this GPU
  other_device,   ///< device-local memory of another GPU
  integrated,     ///< memory of an integrated GPU, which is the machine's
  managed,        ///< unified memory, which migrates
  pinned_host,    ///< page-locked host memory, mapped into the GPU or not
  pageable_host,  ///< host memory, foreign or freed: the driver knows nothing of it
  host_device,    ///< memory that a host device gave out
  mixed,          ///< not one allocation from first to last byte
};

/// "vram", "managed", ...
KVARENA_EXPORT std::string_view name_of(MemoryPlace place) noexcept;
/// "vram_only", "allow_host".
KVARENA_EXPORT std::string_view name_of(ResidencyPolicy policy) noexcept;

/// What the driver said of a range.
struct Placement {
  MemoryPlace place = MemoryPlace::pageable_host;  ///< of every byte, or of the first that differs
  std::int32_t ordinal = -1;                       ///< the GPU it belongs to; -1: none
  const void* pointer = nullptr;                   ///< the byte that decided
  std::string driver_said;  ///< the attributes as the driver gave them, for people
};

/// A tracked allocation that is not what it must be.
struct ResidencyViolation {
  AllocationRecord record;  ///< the allocation
  Placement placement;      ///< where it is instead
};

/// The verdict over all tracked allocations of a device.
struct ResidencyReport {
  ResidencyPolicy policy = ResidencyPolicy::vram_only;  ///< judged by
  bool resident = false;  ///< every allocation of kind device is VRAM of this GPU; false on hosts
  std::uint64_t checked = 0;                   ///< allocations judged
  std::uint64_t unverifiable_bytes = 0;        ///< VramTracker::set_total: no address to ask about
  std::vector<ResidencyViolation> violations;  ///< by address
  Status status;                               ///< why the driver could not be asked; ok else
};

/// When memory that an engine registers is judged.
enum class RegisterCheck : std::uint8_t {
  verify,  ///< now: what the policy forbids is refused
  defer,   ///< by the next verify_residency
};

/// Whether an allocation that must be `kind` may lie at `place` under `policy`.
KVARENA_EXPORT bool is_permitted(MemoryPlace place, MemoryKind kind,
                                 ResidencyPolicy policy) noexcept;
/// Judges every tracked allocation of `device`, first to last byte. An allocation freed meanwhile
/// is no violation, whatever came to its address. `status` is exhausted (host_memory) where there
/// is no memory for the lists. O(allocations) questions to the driver.
KVARENA_EXPORT ResidencyReport verify_residency(const Device& device) noexcept;
/// One line: "VRAM residency violated: ..." with pointer, bytes, purpose, description, what it must
/// be and what the driver said.
KVARENA_EXPORT std::string describe(const ResidencyViolation& violation) noexcept;

/// Records memory that the engine allocated itself (`record.owner` and `record.serial` are set
/// here), so that it is accounted for and judged. It stays the engine's: unregister_memory before
/// it is freed; Device::free refuses it. Returns unsupported (allocation) for KV or weights in
/// pinned staging memory, residency_violated (allocation) for what the policy forbids when it is
/// verified, the driver's failure when it cannot be asked, else as VramTracker::record.
KVARENA_EXPORT Status register_memory(Device& device, AllocationRecord record,
                                      RegisterCheck check = RegisterCheck::verify);
/// Forgets what register_memory recorded. Returns not_found (allocation), or failed_precondition
/// (allocation) for memory of the device's own.
KVARENA_EXPORT Status unregister_memory(Device& device, void* pointer);

}  // namespace kvarena
