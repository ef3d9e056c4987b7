// Device memory comes back exactly, and streams keep their order, over many rounds.

#include "support/process_memory.hpp"
#include "support/status_matchers.hpp"

#include "kvarena/device/host_device.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <deque>
#include <random>
#include <vector>

namespace kvarena {
namespace {

constexpr std::uint64_t kBufferBytes = std::uint64_t{256} << 20;  // 268 MB
constexpr std::int64_t kMaxGrowthBytes = std::int64_t{8} << 20;

/// Writes the first and last byte, so that the system must provide both pages.
void touch_ends(void* memory, std::uint64_t bytes) {
  auto* first = static_cast<volatile char*>(memory);
  first[0] = 1;
  first[bytes - 1] = 2;
}

TEST(DeviceStress, ThousandLargeBuffersComeBackExactly) {
  const auto device = HostDevice::create();
  ASSERT_OK(device);
  const auto before = (*device)->tracker().breakdown();
  std::int64_t resident = 0;
  for (int i = 0; i < 1000; ++i) {
    if (i == 10) resident = test::resident_bytes();  // allocator and log have warmed up
    const auto memory = (*device)->allocate({.bytes = kBufferBytes, .description = "stress"});
    ASSERT_OK(memory) << "buffer " << i;
    touch_ends(*memory, kBufferBytes);
    ASSERT_EQ((*device)->tracker().breakdown().total.bytes, before.total.bytes + kBufferBytes);
    ASSERT_OK((*device)->free(*memory));
    ASSERT_EQ((*device)->tracker().breakdown().total.bytes, before.total.bytes);
  }
  EXPECT_EQ((*device)->tracker().breakdown().frees_ever, 1000U);
  EXPECT_EQ((*device)->tracker().breakdown().total.peak_bytes, kBufferBytes);
  const std::int64_t growth = test::resident_bytes() - resident;
  RecordProperty("resident_growth_bytes", std::to_string(growth));
  if (!test::kAddressSanitizer) {
    EXPECT_LE(growth, kMaxGrowthBytes);
  }
}

TEST(DeviceStress, RandomSizesFillTheDeviceAndLeaveNothing) {
  constexpr std::uint64_t kCapacity = std::uint64_t{64} << 20;
  const auto device = HostDevice::create({.capacity_bytes = kCapacity});
  ASSERT_OK(device);
  std::mt19937_64 random(20240607);
  std::deque<std::pair<void*, std::uint64_t>> held;
  std::uint64_t held_bytes = 0;
  int refusals = 0;
  for (int i = 0; i < (test::kSanitized ? 4000 : 20000); ++i) {
    const std::uint64_t bytes = 1 + random() % (std::uint64_t{4} << 20);
    const auto memory = (*device)->allocate({.bytes = bytes});
    ASSERT_EQ(memory.is_ok(), held_bytes + bytes <= kCapacity) << "round " << i;
    if (memory) {
      touch_ends(*memory, bytes);
      held.emplace_back(*memory, bytes);
      held_bytes += bytes;
    } else {
      ++refusals;
      ASSERT_OK((*device)->free(held.front().first));
      held_bytes -= held.front().second;
      held.pop_front();
    }
    ASSERT_EQ((*device)->tracker().breakdown().total.bytes, held_bytes);
  }
  EXPECT_GT(refusals, 100);
  for (const auto& [memory, bytes] : held) ASSERT_OK((*device)->free(memory));
  EXPECT_EQ((*device)->memory_info()->free_bytes, kCapacity);
}

struct Cell {
  std::uint64_t value = 0;
  std::uint64_t expected = 0;
};

/// x -> 3x + 1 does not commute with itself over different orders of other work, and is checked
/// against the same sequence of steps made on this thread.
Status step(void* cell) {
  auto& c = *static_cast<Cell*>(cell);
  c.value = 3 * c.value + 1;
  return {};
}

TEST(DeviceStress, StreamsWithRandomDependenciesKeepEveryOrder) {
  const auto device = HostDevice::create({.max_queued = 8});  // small, so that queues fill up
  ASSERT_OK(device);
  constexpr std::size_t kStreams = 4;
  std::array<StreamId, kStreams> streams;
  std::array<EventId, kStreams> last_use;
  std::array<Cell, kStreams> cells;
  for (std::size_t i = 0; i < kStreams; ++i) {
    streams[i] = (*device)->create_stream().value();
    last_use[i] = (*device)->create_event().value();
  }
  std::mt19937_64 random(7);
  for (int i = 0; i < (test::kSanitized ? 5000 : 50000); ++i) {
    const StreamId s = streams[random() % kStreams];
    const std::size_t target = random() % kStreams;
    ASSERT_OK((*device)->wait(s, last_use[target]));
    if (random() % 2 == 0) {
      ASSERT_OK((*device)->launch_host(step, &cells[target], s));
      cells[target].expected = 3 * cells[target].expected + 1;
    } else {
      const std::size_t source = (target + 1 + random() % (kStreams - 1)) % kStreams;
      ASSERT_OK((*device)->wait(s, last_use[source]));
      ASSERT_OK(
          (*device)->copy(&cells[target].value, &cells[source].value, sizeof(std::uint64_t), s));
      cells[target].expected = cells[source].expected;
      ASSERT_OK((*device)->record(last_use[source], s));
    }
    ASSERT_OK((*device)->record(last_use[target], s));
  }
  for (const StreamId s : streams) ASSERT_OK((*device)->synchronize(s));
  for (const Cell& cell : cells) EXPECT_EQ(cell.value, cell.expected);
}

}  // namespace
}  // namespace kvarena
