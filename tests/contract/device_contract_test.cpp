// What every Device must do. A device joins by adding a line to device_cases(). Device memory is
// only read and written through the device, so the same tests hold where the host cannot touch it.

#include "support/log_capture.hpp"
#include "support/status_matchers.hpp"

#include "kvarena/device/host_device.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <numeric>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

namespace kvarena {
namespace {

struct DeviceCase {
  const char* name;
  std::unique_ptr<Device> (*make)();
};

void PrintTo(const DeviceCase& device_case, std::ostream* out) { *out << device_case.name; }

template <HostStreams kStreams>
std::unique_ptr<Device> make_host() {
  auto device = HostDevice::create({.capacity_bytes = 64 << 20, .streams = kStreams});
  return device ? std::move(device).value() : nullptr;
}

std::vector<DeviceCase> device_cases() {
  return {{"host_threads", make_host<HostStreams::threads>},
          {"host_manual", make_host<HostStreams::manual>}};
}

/// Holds a stream back until it is opened, or lets a manual stream pass when it is run afterwards.
class Gate {
 public:
  void open() { open_ = true; }
  static Status wait_until_open(void* gate) {
    while (!static_cast<Gate*>(gate)->open_) std::this_thread::yield();
    return {};
  }

 private:
  std::atomic<bool> open_{false};
};

constexpr Status kFailure{StatusCode::verification_failed, Resource::block, 0, 7, 1, 2};
Status fail(void*) { return kFailure; }
Status count(void* counter) {
  ++*static_cast<int*>(counter);
  return {};
}

class DeviceContract : public ::testing::TestWithParam<DeviceCase> {
 protected:
  void SetUp() override {
    device_ = GetParam().make();
    ASSERT_NE(device_, nullptr);
  }

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

// ---- memory -------------------------------------------------------------------------------------

TEST_P(DeviceContract, FreeMemoryFollowsAllocations) {
  const auto before = device_->memory_info();
  ASSERT_OK(before);
  EXPECT_GT(before->total_bytes, 0U);
  EXPECT_LE(before->free_bytes, before->total_bytes);
  void* memory = allocate(8 << 20);
  const auto during = device_->memory_info();
  ASSERT_OK(during);
  EXPECT_LE(during->free_bytes + (8 << 20), before->free_bytes);
  ASSERT_OK(device_->free(memory));
  const auto after = device_->memory_info();
  ASSERT_OK(after);
  EXPECT_GE(after->free_bytes, during->free_bytes + (8 << 20));
}

TEST_P(DeviceContract, HonoursEveryAlignment) {
  for (std::uint64_t alignment = 1; alignment <= 4096; alignment *= 2) {
    const auto memory = device_->allocate({.bytes = 3, .alignment_bytes = alignment});
    ASSERT_OK(memory);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(*memory) % alignment, 0U) << alignment;
    EXPECT_OK(device_->free(*memory));
  }
}

TEST_P(DeviceContract, RefusesNonsenseRequests) {
  EXPECT_FAILS(device_->allocate({.bytes = 0}), invalid_argument, pool_bytes);
  EXPECT_FAILS(device_->allocate({.bytes = ~std::uint64_t{0}}), invalid_argument, pool_bytes);
  for (const std::uint64_t alignment : {0U, 3U, 8192U}) {
    EXPECT_FAILS(device_->allocate({.bytes = 16, .alignment_bytes = alignment}), invalid_argument,
                 alignment);
  }
  EXPECT_FAILS(
      device_->allocate(
          {.bytes = 16, .purpose = MemoryPurpose::kv_cache, .kind = MemoryKind::pinned_staging}),
      unsupported, allocation);
  EXPECT_EQ(device_->tracker().breakdown().allocations_ever, 0U);
}

TEST_P(DeviceContract, RefusesToFreeWhatIsNotAllocated) {
  int local = 0;
  void* memory = allocate(64);
  EXPECT_FAILS(device_->free(nullptr), invalid_argument, pointer);
  EXPECT_FAILS(device_->free(&local), not_found, allocation);
  EXPECT_FAILS(device_->free(static_cast<char*>(memory) + 8), not_found, allocation);
  EXPECT_EQ(device_->tracker().breakdown().total.bytes, 64U);
  EXPECT_OK(device_->free(memory));
  EXPECT_FAILS(device_->free(memory), not_found, allocation);
}

TEST_P(DeviceContract, TracksEveryAllocationWithItsPurpose) {
  void* weights = allocate(1000, MemoryPurpose::model_weights);
  void* cache = allocate(3000, MemoryPurpose::kv_cache);
  const auto staging = device_->allocate({.bytes = 500, .kind = MemoryKind::pinned_staging});
  ASSERT_OK(staging);
  MemoryBreakdown now = device_->tracker().breakdown();
  EXPECT_EQ(now.total.bytes, 4000U);
  EXPECT_EQ(now.total.count, 2U);
  EXPECT_EQ(now.staging.bytes, 500U);
  EXPECT_EQ(now.by_purpose[static_cast<std::size_t>(MemoryPurpose::kv_cache)].bytes, 3000U);
  const auto found = device_->tracker().find(static_cast<char*>(cache) + 2999);
  ASSERT_OK(found);
  EXPECT_EQ(found->pointer, cache);
  EXPECT_EQ(found->description, "contract");
  for (void* memory : {weights, cache, *staging}) EXPECT_OK(device_->free(memory));
  now = device_->tracker().breakdown();
  EXPECT_EQ(now.total.bytes + now.staging.bytes, 0U);
  EXPECT_EQ(now.total.peak_bytes, 4000U);
  EXPECT_EQ(now.frees_ever, 3U);
}

TEST_P(DeviceContract, ExplainsExhaustionAndRecovers) {
  void* cache = allocate(1 << 20, MemoryPurpose::kv_cache);
  const auto memory = device_->memory_info();
  ASSERT_OK(memory);
  const std::uint64_t wanted = memory->total_bytes + 1;
  const auto refused = device_->allocate(
      {.bytes = wanted, .purpose = MemoryPurpose::model_weights, .description = "too much"});
  EXPECT_FAILS(refused, insufficient_vram, device_memory);
  EXPECT_EQ(refused.status().required, wanted);
  EXPECT_LT(refused.status().available, wanted);
  EXPECT_EQ(device_->tracker().breakdown().total.bytes, std::uint64_t{1} << 20);

  // The explanation is that of the failure's instant, whatever has happened since.
  ASSERT_OK(device_->free(cache));
  const std::string text = device_->describe(refused.status());
  EXPECT_NE(text.find("ModelWeights \"too much\""), std::string::npos) << text;
  EXPECT_NE(text.find("1048576"), std::string::npos) << text;
  EXPECT_NE(text.find("Missing"), std::string::npos) << text;
  void* again = allocate(1 << 20);
  EXPECT_OK(device_->free(again));
}

TEST_P(DeviceContract, AllocatesFromManyThreads) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 50;
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kRounds; ++i) {
        const auto memory = device_->allocate({.bytes = 4096, .description = "thread"});
        if (!memory || !device_->free(*memory)) ++failures;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(device_->tracker().breakdown().allocations_ever, kThreads * kRounds + 0U);
  EXPECT_EQ(device_->tracker().breakdown().total.bytes, 0U);
}

TEST_P(DeviceContract, WarnsOfLeaksByName) {
  test::LogCapture log(LogLevel::warning);
  ASSERT_OK(device_->allocate({.bytes = 777, .description = "forgotten buffer"}));
  device_.reset();
  EXPECT_TRUE(log.contains(LogLevel::warning, "forgotten buffer"));
}

TEST_P(DeviceContract, SaysNothingWhenNothingLeaks) {
  test::LogCapture log(LogLevel::warning);
  EXPECT_OK(device_->free(allocate(777)));
  stream();
  event();
  device_.reset();
  EXPECT_TRUE(log.lines().empty());
}

// ---- streams ------------------------------------------------------------------------------------

TEST_P(DeviceContract, CopiesAndFillsInOrder) {
  const StreamId s = stream();
  std::vector<std::uint8_t> source(10000);
  std::iota(source.begin(), source.end(), std::uint8_t{1});
  std::vector<std::uint8_t> result(source.size(), 0);
  auto* first = static_cast<std::uint8_t*>(allocate(source.size()));
  auto* second = static_cast<std::uint8_t*>(allocate(source.size()));
  EXPECT_OK(device_->copy(first, source.data(), source.size(), s));
  EXPECT_OK(device_->fill(first + 100, 0xAB, 50, s));
  EXPECT_OK(device_->copy(second, first, source.size(), s));
  EXPECT_OK(device_->fill(first, 0, source.size(), s));
  EXPECT_OK(device_->copy(result.data(), second, source.size(), s));
  EXPECT_OK(device_->synchronize(s));
  std::fill_n(source.begin() + 100, 50, std::uint8_t{0xAB});
  EXPECT_EQ(result, source);
  EXPECT_OK(device_->free(first));
  EXPECT_OK(device_->free(second));
}

TEST_P(DeviceContract, AcceptsEmptyCopiesAndRefusesBadOnes) {
  const StreamId s = stream();
  std::array<char, 64> bytes{};
  EXPECT_OK(device_->copy(nullptr, nullptr, 0, s));
  EXPECT_OK(device_->fill(nullptr, 1, 0, s));
  EXPECT_FAILS(device_->copy(nullptr, bytes.data(), 4, s), invalid_argument, pointer);
  EXPECT_FAILS(device_->copy(bytes.data(), nullptr, 4, s), invalid_argument, pointer);
  EXPECT_FAILS(device_->copy(bytes.data() + 8, bytes.data(), 9, s), invalid_argument, span_size);
  EXPECT_FAILS(device_->copy(bytes.data(), bytes.data() + 8, 9, s), invalid_argument, span_size);
  EXPECT_OK(device_->copy(bytes.data(), bytes.data() + 8, 8, s));
  EXPECT_FAILS(device_->fill(nullptr, 1, 4, s), invalid_argument, pointer);
  EXPECT_FAILS(device_->launch_host(nullptr, nullptr, s), invalid_argument, pointer);
  EXPECT_OK(device_->synchronize(s));
}

TEST_P(DeviceContract, UnknownStreamsAndEventsAreErrors) {
  const StreamId s = stream();
  const EventId e = event();
  ASSERT_OK(device_->destroy_stream(s));
  ASSERT_OK(device_->destroy_event(e));
  char byte = 0;
  for (const StreamId gone : {StreamId{0}, s, StreamId{~std::uint64_t{0}}}) {
    EXPECT_FAILS(device_->fill(&byte, 1, 1, gone), not_found, stream);
    EXPECT_FAILS(device_->launch_host(count, &byte, gone), not_found, stream);
    EXPECT_FAILS(device_->synchronize(gone), not_found, stream);
    EXPECT_FAILS(device_->destroy_stream(gone), not_found, stream);
  }
  for (const EventId gone : {EventId{0}, e, EventId{~std::uint64_t{0}}}) {
    EXPECT_FAILS(device_->is_complete(gone), not_found, event);
    EXPECT_FAILS(device_->synchronize(gone), not_found, event);
    EXPECT_FAILS(device_->destroy_event(gone), not_found, event);
    EXPECT_FAILS(device_->record(gone, stream()), not_found, event);
  }
  EXPECT_FAILS(device_->record(event(), s), not_found, stream);
  EXPECT_FAILS(device_->wait(s, event()), not_found, stream);
}

TEST_P(DeviceContract, IdsAreNotReused) {
  const StreamId s = stream();
  const EventId e = event();
  ASSERT_OK(device_->destroy_stream(s));
  ASSERT_OK(device_->destroy_event(e));
  EXPECT_NE(stream(), s);
  EXPECT_NE(event(), e);
}

TEST_P(DeviceContract, QueueingDoesNotWaitForTheWork) {
  const StreamId s = stream();
  const EventId done = event();
  Gate gate;
  int ran = 0;
  EXPECT_OK(device_->launch_host(Gate::wait_until_open, &gate, s));
  EXPECT_OK(device_->launch_host(count, &ran, s));
  EXPECT_OK(device_->record(done, s));
  EXPECT_FALSE(is_complete(done));
  gate.open();
  EXPECT_OK(device_->synchronize(s));
  EXPECT_TRUE(is_complete(done));
  EXPECT_EQ(ran, 1);
}

TEST_P(DeviceContract, DestroyingAStreamCompletesItsWork) {
  const StreamId s = stream();
  const EventId done = event();
  int ran = 0;
  for (int i = 0; i < 100; ++i) EXPECT_OK(device_->launch_host(count, &ran, s));
  EXPECT_OK(device_->record(done, s));
  EXPECT_OK(device_->destroy_stream(s));
  EXPECT_EQ(ran, 100);
  EXPECT_TRUE(is_complete(done));
  EXPECT_OK(device_->synchronize(done));
}

TEST_P(DeviceContract, DestroyingTheDeviceCompletesItsWork) {
  const StreamId s = stream();
  int ran = 0;
  for (int i = 0; i < 100; ++i) EXPECT_OK(device_->launch_host(count, &ran, s));
  device_.reset();
  EXPECT_EQ(ran, 100);
}

// ---- events -------------------------------------------------------------------------------------

TEST_P(DeviceContract, AnEventNeverRecordedIsComplete) {
  const EventId e = event();
  const StreamId s = stream();
  EXPECT_TRUE(is_complete(e));
  EXPECT_OK(device_->synchronize(e));
  EXPECT_OK(device_->wait(s, e));
  EXPECT_OK(device_->synchronize(s));
}

TEST_P(DeviceContract, AStreamWaitsForAnotherStreamsEvent) {
  const StreamId producer = stream();
  const StreamId consumer = stream();
  const EventId produced = event();
  auto* shared = static_cast<std::uint8_t*>(allocate(256));
  std::array<std::uint8_t, 256> seen{};
  Gate gate;
  EXPECT_OK(device_->fill(shared, 1, 256, producer));
  EXPECT_OK(device_->synchronize(producer));
  EXPECT_OK(device_->launch_host(Gate::wait_until_open, &gate, producer));
  EXPECT_OK(device_->fill(shared, 2, 256, producer));
  EXPECT_OK(device_->record(produced, producer));
  EXPECT_OK(device_->wait(consumer, produced));
  EXPECT_OK(device_->copy(seen.data(), shared, 256, consumer));
  EXPECT_FALSE(is_complete(produced));
  gate.open();
  EXPECT_OK(device_->synchronize(consumer));
  EXPECT_EQ(seen[0], 2);
  EXPECT_EQ(seen[255], 2);
  EXPECT_TRUE(is_complete(produced));
  EXPECT_OK(device_->synchronize(producer));
  EXPECT_OK(device_->free(shared));
}

TEST_P(DeviceContract, RecordingAgainDoesNotChangeEarlierWaits) {
  const StreamId slow = stream();
  const StreamId quick = stream();
  const StreamId waiting = stream();
  const EventId e = event();
  const EventId waited = event();
  Gate gate;
  EXPECT_OK(device_->launch_host(Gate::wait_until_open, &gate, slow));
  EXPECT_OK(device_->record(e, slow));
  EXPECT_OK(device_->wait(waiting, e));
  EXPECT_OK(device_->record(waited, waiting));
  EXPECT_OK(device_->record(e, quick));
  EXPECT_OK(device_->synchronize(e));
  EXPECT_TRUE(is_complete(e));
  EXPECT_FALSE(is_complete(waited));
  gate.open();
  EXPECT_OK(device_->synchronize(waiting));
  EXPECT_TRUE(is_complete(waited));
}

TEST_P(DeviceContract, AnEventMayBeDestroyedWhileWaitedFor) {
  const StreamId producer = stream();
  const StreamId consumer = stream();
  const EventId e = event();
  Gate gate;
  int ran = 0;
  EXPECT_OK(device_->launch_host(Gate::wait_until_open, &gate, producer));
  EXPECT_OK(device_->launch_host(count, &ran, producer));
  EXPECT_OK(device_->record(e, producer));
  EXPECT_OK(device_->wait(consumer, e));
  EXPECT_OK(device_->destroy_event(e));
  gate.open();
  EXPECT_OK(device_->synchronize(consumer));
  EXPECT_EQ(ran, 1);
}

TEST_P(DeviceContract, ChainsOfStreamsRunInOrder) {
  std::vector<StreamId> streams;
  for (int i = 0; i < 4; ++i) streams.push_back(stream());
  const EventId e = event();
  int value = 0;  // each stage runs alone, ordered by the events only
  constexpr int kStages = 400;
  for (int i = 0; i < kStages; ++i) {
    const StreamId s = streams[static_cast<std::size_t>(i) % streams.size()];
    ASSERT_OK(device_->wait(s, e));
    ASSERT_OK(device_->launch_host(count, &value, s));
    ASSERT_OK(device_->record(e, s));
  }
  EXPECT_OK(device_->synchronize(e));
  EXPECT_EQ(value, kStages);
}

// ---- failures of queued work --------------------------------------------------------------------

TEST_P(DeviceContract, AFailureSkipsWhatFollowsAndIsReturnedOnce) {
  const StreamId s = stream();
  int before = 0;
  int after = 0;
  EXPECT_OK(device_->launch_host(count, &before, s));
  EXPECT_OK(device_->launch_host(fail, nullptr, s));
  EXPECT_OK(device_->launch_host(count, &after, s));
  EXPECT_EQ(device_->synchronize(s), kFailure);
  EXPECT_EQ(before, 1);
  EXPECT_EQ(after, 0);
  EXPECT_OK(device_->synchronize(s));
  EXPECT_OK(device_->launch_host(count, &after, s));
  EXPECT_OK(device_->synchronize(s));
  EXPECT_EQ(after, 1);
}

TEST_P(DeviceContract, EventsBehindAFailureAreFailed) {
  const StreamId s = stream();
  const EventId good = event();
  const EventId bad = event();
  int ran = 0;
  EXPECT_OK(device_->launch_host(count, &ran, s));
  EXPECT_OK(device_->record(good, s));
  EXPECT_OK(device_->launch_host(fail, nullptr, s));
  EXPECT_OK(device_->record(bad, s));
  EXPECT_OK(device_->synchronize(good));
  EXPECT_EQ(device_->synchronize(bad), kFailure);
  EXPECT_EQ(device_->is_complete(bad).status(), kFailure);
  EXPECT_EQ(device_->synchronize(s), kFailure);
  // The failure has been taken: the old recording stays failed, a new one is not.
  EXPECT_EQ(device_->synchronize(bad), kFailure);
  EXPECT_TRUE(is_complete(good));
  EXPECT_OK(device_->record(bad, s));
  EXPECT_OK(device_->synchronize(bad));
}

TEST_P(DeviceContract, WhoWaitsForAFailedStreamFailsToo) {
  const StreamId producer = stream();
  const StreamId consumer = stream();
  const EventId e = event();
  int used = 0;
  EXPECT_OK(device_->launch_host(fail, nullptr, producer));
  EXPECT_OK(device_->record(e, producer));
  EXPECT_OK(device_->wait(consumer, e));
  EXPECT_OK(device_->launch_host(count, &used, consumer));
  EXPECT_EQ(device_->synchronize(consumer), kFailure);
  EXPECT_EQ(used, 0);
  EXPECT_EQ(device_->synchronize(producer), kFailure);
  EXPECT_OK(device_->launch_host(count, &used, consumer));
  EXPECT_OK(device_->synchronize(consumer));
  EXPECT_EQ(used, 1);
}

TEST_P(DeviceContract, DestroyingAFailedStreamReturnsItsFailure) {
  const StreamId s = stream();
  EXPECT_OK(device_->launch_host(fail, nullptr, s));
  EXPECT_EQ(device_->destroy_stream(s), kFailure);
  EXPECT_FAILS(device_->synchronize(s), not_found, stream);
}

INSTANTIATE_TEST_SUITE_P(Devices, DeviceContract, ::testing::ValuesIn(device_cases()),
                         [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace kvarena
