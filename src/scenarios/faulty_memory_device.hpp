#pragma once

/// @file
/// `FaultyMemoryDevice`: a Device with one defect in its memory, planted on purpose, so that tests
/// prove that the pressure scenarios find it. Everything else is the inner device's. Borrows it;
/// gives back what it lost when it goes. As thread-safe as the inner device.

#include "device/forwarding_device.hpp"
#include "scenarios/pressure_options.hpp"

#include <cstdint>
#include <mutex>
#include <vector>

namespace kvarena::replay::pressure {

/// Forwards to a device, but for its defect.
class FaultyMemoryDevice final : public ForwardingDevice {
 public:
  /// `inner` outlives this.
  FaultyMemoryDevice(Device& inner, PressureFault fault) noexcept
      : ForwardingDevice(inner), fault_(fault) {}
  ~FaultyMemoryDevice() override;

  Result<void*> allocate(const AllocationRequest& request) override;
  Status free(void* pointer) override;
  Result<Placement> place_of(const void* pointer, std::uint64_t bytes) const override;

 private:
  bool is_kv(const void* pointer) const;
  bool loses(void* pointer);

  const PressureFault fault_;
  std::mutex mutex_;  // guards what follows
  std::int64_t num_kv_frees_ = 0;
  std::vector<void*> lost_;
};

}  // namespace kvarena::replay::pressure
