// What a build or a machine without a usable GPU says, instead of using the host in its place.

#include "support/gpu.hpp"
#include "support/status_matchers.hpp"

#include "kvarena/device/cuda_device.hpp"

#include <gtest/gtest.h>

#include <string>

namespace kvarena {
namespace {

TEST(CudaAvailability, TheListHasDevicesOrAReason) {
  const CudaDeviceList list = list_devices();
  EXPECT_EQ(list.cuda_built, is_built_with_cuda());
  EXPECT_EQ(list.devices.empty(), !list.error.empty());
  EXPECT_EQ(list.devices.empty(), !list.status.is_ok());
}

TEST(CudaAvailability, ABuildWithoutCudaSaysHowToGetOne) {
  if (is_built_with_cuda()) GTEST_SKIP() << "this build has CUDA";
  const auto device = CudaDevice::create({.ordinal = 3});
  EXPECT_FAILS(device, unsupported, device);
  EXPECT_EQ(device.status().subject, 3U);
  EXPECT_NE(describe_cuda(device.status()).find("-DKVARENA_CUDA=ON"), std::string::npos);
  EXPECT_NE(list_devices().error.find("-DKVARENA_CUDA=ON"), std::string::npos);
}

TEST(CudaAvailability, AMachineWithoutAGpuSaysWhatIsMissing) {
  if (!is_built_with_cuda()) GTEST_SKIP() << "this build has no CUDA";
  if (test::why_no_gpu().empty()) GTEST_SKIP() << "this machine has a GPU";
  const auto device = CudaDevice::create();
  EXPECT_FAILS(device, device_error, device);
  EXPECT_NE(device.status().native, 0);
  const std::string text = describe_cuda(device.status());
  EXPECT_NE(text.find("cudaError"), std::string::npos) << text;
  EXPECT_TRUE(text.find("Install a driver") != std::string::npos ||
              text.find("newer driver") != std::string::npos ||
              text.find("nvidia-smi") != std::string::npos)
      << text;
  const std::string reason = list_devices().error;
  EXPECT_NE(text.find(reason), std::string::npos) << reason;
  EXPECT_EQ(reason.find('\n'), std::string::npos) << reason;
}

TEST(CudaAvailability, OptionsAreCheckedFirst) {
  if (!is_built_with_cuda()) GTEST_SKIP() << "this build has no CUDA";
  EXPECT_REFUSES(CudaDevice::create({.max_streams = 0}), invalid_argument, max_streams);
  EXPECT_REFUSES(CudaDevice::create({.max_streams = 5000}), invalid_argument, max_streams);
  EXPECT_REFUSES(CudaDevice::create({.max_host_functions = 0}), invalid_argument,
                 max_host_functions);
  EXPECT_REFUSES(CudaDevice::create({.max_host_functions = 1U << 21}), invalid_argument,
                 max_host_functions);
  EXPECT_REFUSES(CudaDevice::create({.bounce_bytes = 1}), invalid_argument, bounce_bytes);
}

TEST(CudaAvailability, OtherStatusesAreDescribedPlainly) {
  for (const Status& status :
       {Status{}, exhausted(Resource::block, 2, 1),
        Status{StatusCode::io_error, Resource::file, Option::none, 2, 0, 0, 0}}) {
    EXPECT_EQ(describe_cuda(status), describe(status));
  }
}

}  // namespace
}  // namespace kvarena
