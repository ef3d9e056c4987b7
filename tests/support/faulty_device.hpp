#pragma once

/// @file
/// A Device that fails its N-th call. Wraps a real one and forwards every call; the call with the
/// chosen number returns the planted status instead. Calls that give something back (free,
/// destroy_*) do so all the same and only report failure, as a driver does whose context is lost:
/// so whatever is still there after a failed call was leaked by the code under test. It can also
/// lie about policy and places. Calls may come from any thread once it is set up.

#include "kvarena/device/device.hpp"

#include <atomic>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>

namespace kvarena::test {

/// Forwards to `inner`, except for one call.
class FaultyDevice final : public Device {
 public:
  static constexpr std::int64_t kNever = -1;  ///< fail no call

  /// The call number `fail_at` (0-based) returns `failure`. `inner` must outlive this.
  explicit FaultyDevice(Device& inner, std::int64_t fail_at = kNever,
                        Status failure = Status{StatusCode::device_error, Resource::none,
                                                Option::none, 719, 0, 0, 0})
      : inner_(inner), fail_at_(fail_at), failure_(failure) {}

  /// From now on the `n`-th further call (0-based) fails.
  void fail_after(std::int64_t n) { fail_at_ = calls_ + n; }
  /// From now on this is the policy.
  void claim(ResidencyPolicy policy) { policy_ = policy; }
  /// From now on every tracked allocation is said to lie there; nullopt: the truth again.
  void claim(std::optional<MemoryPlace> place) { lie_ = place; }
  /// Calls made so far that can fail.
  std::int64_t num_calls() const noexcept { return calls_; }
  /// Whether the planted failure has been returned.
  bool has_failed() const noexcept { return fail_at_ != kNever && calls_ > fail_at_; }

  DeviceKind kind() const noexcept override { return inner_.kind(); }
  std::string name() const override { return "faulty " + inner_.name(); }
  Result<MemoryInfo> memory_info() const override {
    if (next_fails()) return failure_;
    return inner_.memory_info();
  }
  Result<void*> allocate(const AllocationRequest& request) override {
    if (next_fails()) return failure_;
    return inner_.allocate(request);
  }
  Status free(void* pointer) override { return after(inner_.free(pointer)); }
  ResidencyPolicy policy() const noexcept override { return policy_.value_or(inner_.policy()); }
  Result<Placement> place_of(const void* pointer, std::uint64_t bytes) const override {
    if (next_fails()) return failure_;
    if (lie_ && inner_.tracker().find(pointer))
      return Placement{*lie_, -1, pointer, "a planted lie"};
    return inner_.place_of(pointer, bytes);
  }
  std::uint64_t overhead_bytes() const noexcept override { return inner_.overhead_bytes(); }
  std::int32_t lost_to() const noexcept override { return inner_.lost_to(); }
  Status copy(void* target, const void* source, std::uint64_t bytes, StreamId stream) override {
    return next_fails() ? failure_ : inner_.copy(target, source, bytes, stream);
  }
  Status fill(void* target, std::uint8_t value, std::uint64_t bytes, StreamId stream) override {
    return next_fails() ? failure_ : inner_.fill(target, value, bytes, stream);
  }
  Status launch_host(HostFunction function, void* argument, StreamId stream) override {
    return next_fails() ? failure_ : inner_.launch_host(function, argument, stream);
  }
  Result<StreamId> create_stream() override {
    if (next_fails()) return failure_;
    return inner_.create_stream();
  }
  Status destroy_stream(StreamId stream) override { return after(inner_.destroy_stream(stream)); }
  Status synchronize(StreamId stream) override {
    return next_fails() ? failure_ : inner_.synchronize(stream);
  }
  Result<std::uint64_t> failures_taken(StreamId stream) const override {
    return inner_.failures_taken(stream);
  }
  Result<EventId> create_event() override {
    if (next_fails()) return failure_;
    return inner_.create_event();
  }
  Status destroy_event(EventId event) override { return after(inner_.destroy_event(event)); }
  Status record(EventId event, StreamId stream) override {
    return next_fails() ? failure_ : inner_.record(event, stream);
  }
  Status wait(StreamId stream, EventId event) override {
    return next_fails() ? failure_ : inner_.wait(stream, event);
  }
  Result<bool> is_complete(EventId event) override {
    if (next_fails()) return failure_;
    return inner_.is_complete(event);
  }
  Status synchronize(EventId event) override {
    return next_fails() ? failure_ : inner_.synchronize(event);
  }
  VramTracker& tracker() noexcept override { return inner_.tracker(); }
  const VramTracker& tracker() const noexcept override {
    return static_cast<const Device&>(inner_).tracker();
  }
  std::string describe(const Status& status) const override { return inner_.describe(status); }

 private:
  bool next_fails() const noexcept { return calls_.fetch_add(1) == fail_at_; }
  Status after(Status status) const noexcept { return next_fails() ? failure_ : status; }

  Device& inner_;
  std::int64_t fail_at_;
  Status failure_;
  mutable std::atomic<std::int64_t> calls_{0};
  std::optional<ResidencyPolicy> policy_;
  std::optional<MemoryPlace> lie_;
};

/// Calls `scenario(FaultyDevice&)` with the first call failing, then the second, and so on, until a
/// run needs fewer calls than that; calls `check(n)` after each run. Returns the number of calls of
/// a run without failures.
template <class Scenario, class Check>
std::int64_t fail_every_call(Device& inner, Scenario scenario, Check check) {
  for (std::int64_t n = 0; n < std::numeric_limits<std::int64_t>::max(); ++n) {
    FaultyDevice device(inner, n);
    scenario(device);
    check(n);
    if (!device.has_failed()) return device.num_calls();
  }
  return -1;
}

}  // namespace kvarena::test
