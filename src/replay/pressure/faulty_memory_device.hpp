#pragma once

/// @file
/// `FaultyMemoryDevice`: a Device with one defect in its memory, planted on purpose, so that tests
/// prove that the pressure scenarios find it. Everything else is the inner device's. Borrows it;
/// gives back what it lost when it goes. As thread-safe as the inner device.

#include "replay/pressure/pressure_options.hpp"

#include "kvarena/device/device.hpp"

#include <mutex>
#include <string>
#include <vector>

namespace kvarena::replay::pressure {

/// Forwards to a device, but for its defect.
class FaultyMemoryDevice final : public Device {
 public:
  /// `inner` outlives this.
  FaultyMemoryDevice(Device& inner, PressureFault fault) noexcept : inner_(inner), fault_(fault) {}
  ~FaultyMemoryDevice() override;

  DeviceKind kind() const noexcept override { return inner_.kind(); }
  std::string name() const override { return inner_.name(); }
  Result<MemoryInfo> memory_info() const override { return inner_.memory_info(); }
  Result<void*> allocate(const AllocationRequest& request) override;
  Status free(void* pointer) override;
  ResidencyPolicy policy() const noexcept override { return inner_.policy(); }
  Result<Placement> place_of(const void* pointer, std::uint64_t bytes) const override;
  std::uint64_t overhead_bytes() const noexcept override { return inner_.overhead_bytes(); }
  std::int32_t lost_to() const noexcept override { return inner_.lost_to(); }

  Status copy(void* target, const void* source, std::uint64_t bytes, StreamId stream) override {
    return inner_.copy(target, source, bytes, stream);
  }
  Status fill(void* target, std::uint8_t value, std::uint64_t bytes, StreamId stream) override {
    return inner_.fill(target, value, bytes, stream);
  }
  Status launch_host(HostFunction function, void* argument, StreamId stream) override {
    return inner_.launch_host(function, argument, stream);
  }

  Result<StreamId> create_stream() override { return inner_.create_stream(); }
  Status destroy_stream(StreamId stream) override { return inner_.destroy_stream(stream); }
  Status synchronize(StreamId stream) override { return inner_.synchronize(stream); }
  Result<EventId> create_event() override { return inner_.create_event(); }
  Status destroy_event(EventId event) override { return inner_.destroy_event(event); }
  Status record(EventId event, StreamId stream) override { return inner_.record(event, stream); }
  Status wait(StreamId stream, EventId event) override { return inner_.wait(stream, event); }
  Result<bool> is_complete(EventId event) override { return inner_.is_complete(event); }
  Status synchronize(EventId event) override { return inner_.synchronize(event); }

  VramTracker& tracker() noexcept override { return inner_.tracker(); }
  const VramTracker& tracker() const noexcept override {
    return static_cast<const Device&>(inner_).tracker();
  }
  std::string describe(const Status& status) const override { return inner_.describe(status); }

 private:
  bool is_kv(const void* pointer) const;
  bool loses(void* pointer);

  Device& inner_;
  const PressureFault fault_;
  std::mutex mutex_;  // guards what follows
  std::int64_t num_kv_frees_ = 0;
  std::vector<void*> lost_;
};

}  // namespace kvarena::replay::pressure
