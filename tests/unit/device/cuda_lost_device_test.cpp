// A sticky error: reported once, everything after it refused, and nothing hangs. Each test breaks
// the GPU for its process, so it runs in one of its own.

#include "support/gpu.hpp"
#include "support/log_capture.hpp"
#include "unit/device/cuda_fault.hpp"

#include "kvarena/device/cuda_device.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

namespace kvarena {
namespace {

constexpr std::int32_t kIllegalAddress = 700;

/// Ends the process with the number of the line that was wrong, 0 when none was.
class Verdict {
 public:
  void require(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "wrong: %s\n", what);
    code_ = 1;
  }
  [[noreturn]] void leave() const { std::_Exit(code_); }

 private:
  int code_ = 0;
};

/// A device with everything that can be asked of it.
struct Fixture {
  std::unique_ptr<CudaDevice> device;
  StreamId stream;
  EventId event;
  void* memory = nullptr;
};

Fixture make_fixture(const CudaDeviceOptions& options = {}) {
  Fixture f{test::make_cuda(options), {}, {}, nullptr};
  f.stream = f.device->create_stream().value();
  f.event = f.device->create_event().value();
  f.memory = f.device->allocate({.bytes = 4096, .description = "held"}).value();
  return f;
}

std::vector<Status> every_call(Fixture& f) {
  CudaDevice& d = *f.device;
  const auto nothing = [](void*) { return Status{}; };
  return {d.memory_info().status(),
          d.allocate({.bytes = 64}).status(),
          d.allocate({.bytes = 64, .kind = MemoryKind::pinned_staging}).status(),
          d.copy(f.memory, static_cast<char*>(f.memory) + 64, 64, f.stream),
          d.fill(f.memory, 1, 64, f.stream),
          d.launch_host(nothing, nullptr, f.stream),
          d.create_stream().status(),
          d.create_event().status(),
          d.record(f.event, f.stream),
          d.wait(f.stream, f.event),
          d.is_complete(f.event).status(),
          d.synchronize(f.event),
          d.synchronize(f.stream),
          d.check(kIllegalAddress, Resource::stream)};
}

bool is_refusal(const Status& status) {
  return status.code == StatusCode::failed_precondition && status.resource == Resource::device &&
         status.native == kIllegalAddress;
}

void lose_and_call() {
  Verdict verdict;
  const test::LogCapture log(LogLevel::critical);
  Fixture f = make_fixture();
  verdict.require(test::launch_illegal_write(f.device->native_stream(f.stream).value()) == 0,
                  "launch");
  const Status first = f.device->synchronize(f.stream);
  verdict.require(first.code == StatusCode::device_error && first.native == kIllegalAddress,
                  "the first call that sees the error returns device_error");
  verdict.require(f.device->lost_to() == kIllegalAddress, "lost_to");
  for (const Status& status : every_call(f)) {
    if (!is_refusal(status)) std::fprintf(stderr, "%s\n", describe(status).c_str());
    verdict.require(is_refusal(status), "every later call is refused");
  }
  verdict.require(log.lines().size() == 1, "the loss is logged once");
  const std::string text = f.device->describe(first);
  verdict.require(text.find("cudaErrorIllegalAddress") != std::string::npos &&
                      text.find("must be restarted") != std::string::npos,
                  "the description says what to do");
  verdict.require(is_refusal(f.device->free(f.memory)), "free is refused");
  verdict.require(f.device->tracker().breakdown().total.count == 0,
                  "what is freed leaves the account");
  verdict.require(is_refusal(f.device->destroy_event(f.event)), "destroy_event is refused");
  verdict.require(is_refusal(f.device->destroy_stream(f.stream)), "destroy_stream is refused");
  verdict.require(f.device->tracker().breakdown().staging.count == 0, "no staging is left");
  f.device.reset();
  verdict.require(!CudaDevice::create(), "no new device in this process");
  verdict.leave();
}

void lose_with_a_full_ring() {
  Verdict verdict;
  Fixture f = make_fixture({.max_host_functions = 2});
  verdict.require(test::launch_illegal_write(f.device->native_stream(f.stream).value()) == 0,
                  "launch");
  Status status;
  for (int i = 0; i < 10 && status; ++i) {
    status = f.device->launch_host([](void*) { return Status{}; }, nullptr, f.stream);
  }
  verdict.require(!status.is_ok(), "a lost device runs no host functions and waits for none");
  f.device.reset();
  verdict.leave();
}

class CudaLostDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    KVARENA_NEEDS_GPU();
    GTEST_FLAG_SET(death_test_style, "threadsafe");  // a new process, not a fork of this one
  }
};

TEST_F(CudaLostDeviceTest, AStickyErrorIsReportedOnceAndEverythingAfterIsRefused) {
  EXPECT_EXIT(lose_and_call(), ::testing::ExitedWithCode(0), "");
}

TEST_F(CudaLostDeviceTest, NobodyWaitsForHostFunctionsOfALostDevice) {
  EXPECT_EXIT(lose_with_a_full_ring(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace kvarena
