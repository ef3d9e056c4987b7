#pragma once

/// @file
/// What the parts of the device contract suite share. A device joins by adding a line to
/// device_cases(). Device memory is only read and written through the device, so the same tests
/// hold where the host cannot touch it.

#include "support/gpu.hpp"
#include "support/status_matchers.hpp"

#include "kvarena/device/host_device.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace kvarena::test {

/// A device under test.
struct DeviceCase {
  const char* name;                   ///< in the names of the tests
  std::unique_ptr<Device> (*make)();  ///< a fresh one, or nullptr when it cannot be had
  bool needs_gpu = false;             ///< skipped where there is none
  bool runs_in_calls = false;         ///< work has completed when the call that queues it returns
};

/// How GoogleTest prints a case.
inline void PrintTo(const DeviceCase& device_case, std::ostream* out) { *out << device_case.name; }

/// A host device of 64 MiB.
template <HostStreams kStreams>
std::unique_ptr<Device> make_host() {
  auto device = HostDevice::create({.capacity_bytes = 64 << 20, .streams = kStreams});
  return device ? std::move(device).value() : nullptr;
}

/// GPU 0, if there is one.
inline std::unique_ptr<Device> make_gpu() { return make_cuda(); }

/// Every device that this build has.
inline std::vector<DeviceCase> device_cases() {
  std::vector<DeviceCase> cases = {{"host_threads", make_host<HostStreams::threads>},
                                   {"host_manual", make_host<HostStreams::manual>},
                                   {"host_inline", make_host<HostStreams::inline_calls>}};
  cases.back().runs_in_calls = true;
  if (is_built_with_cuda()) cases.push_back({"cuda", make_gpu, true});
  return cases;
}

/// Runs a test on one device.
class DeviceContract : public ::testing::TestWithParam<DeviceCase> {
 protected:
  void SetUp() override {
    if (GetParam().needs_gpu) {
      KVARENA_NEEDS_GPU();
    }
    device_ = GetParam().make();
    ASSERT_NE(device_, nullptr);
  }

  /// Memory, or nullptr and a failed test; stream() and event() likewise.
  void* allocate(std::uint64_t bytes, MemoryPurpose purpose = MemoryPurpose::unknown) {
    const auto memory =
        device_->allocate({.bytes = bytes, .purpose = purpose, .description = "contract"});
    EXPECT_OK(memory);
    return memory ? *memory : nullptr;
  }
  StreamId stream() {
    const auto created = device_->create_stream();
    EXPECT_OK(created);
    return created ? *created : StreamId{};
  }
  EventId event() {
    const auto created = device_->create_event();
    EXPECT_OK(created);
    return created ? *created : EventId{};
  }
  bool is_complete(EventId event) {
    const auto complete = device_->is_complete(event);
    EXPECT_OK(complete);
    return complete && *complete;
  }

  std::unique_ptr<Device> device_;
};

/// Runs the suite's tests of one source file on every device.
#define KVARENA_ON_EVERY_DEVICE(suite)                                                           \
  INSTANTIATE_TEST_SUITE_P(Devices, suite, ::testing::ValuesIn(::kvarena::test::device_cases()), \
                           [](const auto& one) { return std::string(one.param.name); })

}  // namespace kvarena::test
