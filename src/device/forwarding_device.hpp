#pragma once

/// @file
/// `ForwardingDevice`: a Device that passes every call to another one. It is the base of devices
/// that differ in a few calls, such as those that plant a defect for a test. It is as thread-safe
/// as the other device.

#include "kvarena/device/device.hpp"

#include <cstdint>
#include <string>

namespace kvarena {

/// Forwards all calls to `inner`, which must outlive it.
class ForwardingDevice : public Device {
 public:
  explicit ForwardingDevice(Device& inner) noexcept : inner_(inner) {}

  DeviceKind kind() const noexcept override { return inner_.kind(); }
  std::string name() const override { return inner_.name(); }
  Result<MemoryInfo> memory_info() const override { return inner_.memory_info(); }
  Result<void*> allocate(const AllocationRequest& request) override {
    return inner_.allocate(request);
  }
  Status free(void* pointer) override { return inner_.free(pointer); }
  ResidencyPolicy policy() const noexcept override { return inner_.policy(); }
  Result<Placement> place_of(const void* pointer, std::uint64_t bytes) const override {
    return inner_.place_of(pointer, bytes);
  }
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
  Result<std::uint64_t> failures_taken(StreamId stream) const override {
    return inner_.failures_taken(stream);
  }
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
  Device& inner_;
};

}  // namespace kvarena
