// The real operating system behind the host device.

#include "support/process_memory.hpp"
#include "support/status_matchers.hpp"

#include "kvarena/device/host_device.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>

namespace kvarena {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

TEST(SystemMemory, SaysWhatTheMachineHas) {
  EXPECT_GT(system_memory_source().available_bytes(), 16 * kMiB);
  EXPECT_LT(system_memory_source().available_bytes(), std::uint64_t{1} << 48);
}

TEST(SystemMemory, GivesAlignedWritableMemory) {
  for (const std::uint64_t bytes :
       {std::uint64_t{1}, std::uint64_t{4097}, 2 * kMiB, 5 * kMiB + 3}) {
    for (const std::uint64_t alignment : {1U, 256U, 4096U}) {
      std::int32_t native = 0;
      void* memory = system_memory_source().allocate(bytes, alignment, &native);
      ASSERT_NE(memory, nullptr) << native;
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % alignment, 0U);
      std::memset(memory, 0x5A, bytes);
      system_memory_source().free(memory, bytes);
    }
  }
}

TEST(SystemMemory, AlignsLargePiecesForBigPages) {
  std::int32_t native = 0;
  void* memory = system_memory_source().allocate(3 * kMiB, 256, &native);
  ASSERT_NE(memory, nullptr);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % (2 * kMiB), 0U);
  system_memory_source().free(memory, 3 * kMiB);
}

TEST(SystemMemory, SaysWhyItRefuses) {
  std::int32_t native = 0;
  EXPECT_EQ(system_memory_source().allocate(std::uint64_t{1} << 60, 256, &native), nullptr);
  EXPECT_NE(native, 0);
}

TEST(SystemMemory, CommitsOnlyWhatIsTouched) {
  if (test::kSanitized) GTEST_SKIP() << "resident memory means little under a sanitizer";
  const auto device = HostDevice::create();
  ASSERT_OK(device);
  const std::int64_t before = test::resident_bytes();
  const auto memory = (*device)->allocate({.bytes = 512 * kMiB});
  ASSERT_OK(memory);
  EXPECT_LT(test::resident_bytes() - before, static_cast<std::int64_t>(8 * kMiB));
  std::memset(*memory, 1, 32 * kMiB);
  EXPECT_GE(test::resident_bytes() - before, static_cast<std::int64_t>(31 * kMiB));
  EXPECT_OK((*device)->free(*memory));
  EXPECT_LT(test::resident_bytes() - before, static_cast<std::int64_t>(8 * kMiB));
}

}  // namespace
}  // namespace kvarena
