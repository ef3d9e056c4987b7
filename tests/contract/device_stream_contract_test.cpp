// What every Device must do with streams and events.

#include "contract/device_contract.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <numeric>
#include <thread>
#include <vector>

namespace kvarena {
namespace {

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

constexpr Status kFailure{
    StatusCode::verification_failed, Resource::block, Option::none, 0, 7, 1, 2};
Status fail(void*) { return kFailure; }
Status count(void* counter) {
  ++*static_cast<int*>(counter);
  return {};
}

class DeviceStreamContract : public test::DeviceContract {
 protected:
  /// A device that runs work in the calls is never held back.
  void hold_back(Gate& gate, StreamId stream) {
    if (GetParam().runs_in_calls) gate.open();
    EXPECT_OK(device_->launch_host(Gate::wait_until_open, &gate, stream));
  }
  /// Whether an event behind a closed gate is what it must be.
  bool is_held_back(EventId event) { return is_complete(event) == GetParam().runs_in_calls; }
};

// ---- streams ------------------------------------------------------------------------------------

TEST_P(DeviceStreamContract, CopiesAndFillsInOrder) {
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

TEST_P(DeviceStreamContract, AcceptsEmptyCopiesAndRefusesBadOnes) {
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

TEST_P(DeviceStreamContract, UnknownStreamsAndEventsAreErrors) {
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

TEST_P(DeviceStreamContract, IdsAreNotReused) {
  const StreamId s = stream();
  const EventId e = event();
  ASSERT_OK(device_->destroy_stream(s));
  ASSERT_OK(device_->destroy_event(e));
  EXPECT_NE(stream(), s);
  EXPECT_NE(event(), e);
}

TEST_P(DeviceStreamContract, QueueingDoesNotWaitForTheWork) {
  const StreamId s = stream();
  const EventId done = event();
  Gate gate;
  int ran = 0;
  hold_back(gate, s);
  EXPECT_OK(device_->launch_host(count, &ran, s));
  EXPECT_OK(device_->record(done, s));
  EXPECT_TRUE(is_held_back(done));
  gate.open();
  EXPECT_OK(device_->synchronize(s));
  EXPECT_TRUE(is_complete(done));
  EXPECT_EQ(ran, 1);
}

TEST_P(DeviceStreamContract, DestroyingAStreamCompletesItsWork) {
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

TEST_P(DeviceStreamContract, DestroyingTheDeviceCompletesItsWork) {
  const StreamId s = stream();
  int ran = 0;
  for (int i = 0; i < 100; ++i) EXPECT_OK(device_->launch_host(count, &ran, s));
  device_.reset();
  EXPECT_EQ(ran, 100);
}

// ---- events -------------------------------------------------------------------------------------

TEST_P(DeviceStreamContract, AnEventNeverRecordedIsComplete) {
  const EventId e = event();
  const StreamId s = stream();
  EXPECT_TRUE(is_complete(e));
  EXPECT_OK(device_->synchronize(e));
  EXPECT_OK(device_->wait(s, e));
  EXPECT_OK(device_->synchronize(s));
}

TEST_P(DeviceStreamContract, AStreamWaitsForAnotherStreamsEvent) {
  const StreamId producer = stream();
  const StreamId consumer = stream();
  const EventId produced = event();
  auto* shared = static_cast<std::uint8_t*>(allocate(256));
  std::array<std::uint8_t, 256> seen{};
  Gate gate;
  EXPECT_OK(device_->fill(shared, 1, 256, producer));
  EXPECT_OK(device_->synchronize(producer));
  hold_back(gate, producer);
  EXPECT_OK(device_->fill(shared, 2, 256, producer));
  EXPECT_OK(device_->record(produced, producer));
  EXPECT_OK(device_->wait(consumer, produced));
  EXPECT_OK(device_->copy(seen.data(), shared, 256, consumer));
  EXPECT_TRUE(is_held_back(produced));
  gate.open();
  EXPECT_OK(device_->synchronize(consumer));
  EXPECT_EQ(seen[0], 2);
  EXPECT_EQ(seen[255], 2);
  EXPECT_TRUE(is_complete(produced));
  EXPECT_OK(device_->synchronize(producer));
  EXPECT_OK(device_->free(shared));
}

TEST_P(DeviceStreamContract, RecordingAgainDoesNotChangeEarlierWaits) {
  const StreamId slow = stream();
  const StreamId quick = stream();
  const StreamId waiting = stream();
  const EventId e = event();
  const EventId waited = event();
  Gate gate;
  hold_back(gate, slow);
  EXPECT_OK(device_->record(e, slow));
  EXPECT_OK(device_->wait(waiting, e));
  EXPECT_OK(device_->record(waited, waiting));
  EXPECT_OK(device_->record(e, quick));
  EXPECT_OK(device_->synchronize(e));
  EXPECT_TRUE(is_complete(e));
  EXPECT_TRUE(is_held_back(waited));
  gate.open();
  EXPECT_OK(device_->synchronize(waiting));
  EXPECT_TRUE(is_complete(waited));
}

TEST_P(DeviceStreamContract, AnEventMayBeDestroyedWhileWaitedFor) {
  const StreamId producer = stream();
  const StreamId consumer = stream();
  const EventId e = event();
  Gate gate;
  int ran = 0;
  hold_back(gate, producer);
  EXPECT_OK(device_->launch_host(count, &ran, producer));
  EXPECT_OK(device_->record(e, producer));
  EXPECT_OK(device_->wait(consumer, e));
  EXPECT_OK(device_->destroy_event(e));
  gate.open();
  EXPECT_OK(device_->synchronize(consumer));
  EXPECT_EQ(ran, 1);
}

TEST_P(DeviceStreamContract, ChainsOfStreamsRunInOrder) {
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

TEST_P(DeviceStreamContract, AFailureSkipsWhatFollowsAndIsReturnedOnce) {
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

TEST_P(DeviceStreamContract, EventsBehindAFailureAreFailed) {
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

TEST_P(DeviceStreamContract, EventsStayFailedWhateverComesLater) {
  for (const bool destroys : {false, true}) {
    const StreamId s = stream();
    const EventId bad = event();
    const EventId good = event();
    EXPECT_OK(device_->launch_host(fail, nullptr, s));
    EXPECT_OK(device_->record(bad, s));
    EXPECT_EQ(device_->synchronize(s), kFailure);
    EXPECT_OK(device_->record(good, s));
    EXPECT_OK(device_->launch_host(fail, nullptr, s));
    EXPECT_EQ(destroys ? device_->destroy_stream(s) : device_->synchronize(s), kFailure);
    EXPECT_EQ(device_->synchronize(bad), kFailure);
    EXPECT_EQ(device_->is_complete(bad).status(), kFailure);
    EXPECT_TRUE(is_complete(good));
  }
}

TEST_P(DeviceStreamContract, CountsTheFailuresThatWereTaken) {
  const StreamId s = stream();
  EXPECT_EQ(device_->failures_taken(s).value(), 0U);
  for (std::uint64_t taken = 1; taken < 3; ++taken) {
    EXPECT_OK(device_->launch_host(fail, nullptr, s));
    EXPECT_EQ(device_->failures_taken(s).value(), taken - 1);
    EXPECT_EQ(device_->synchronize(s), kFailure);
    EXPECT_EQ(device_->failures_taken(s).value(), taken);
    EXPECT_OK(device_->synchronize(s));
  }
  EXPECT_EQ(device_->failures_taken(s).value(), 2U);
  EXPECT_OK(device_->destroy_stream(s));
  EXPECT_FAILS(device_->failures_taken(s), not_found, stream);
}

TEST_P(DeviceStreamContract, WhoWaitsForAFailedStreamFailsToo) {
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

TEST_P(DeviceStreamContract, DestroyingAFailedStreamReturnsItsFailure) {
  const StreamId s = stream();
  EXPECT_OK(device_->launch_host(fail, nullptr, s));
  EXPECT_EQ(device_->destroy_stream(s), kFailure);
  EXPECT_FAILS(device_->synchronize(s), not_found, stream);
}

KVARENA_ON_EVERY_DEVICE(DeviceStreamContract);

}  // namespace
}  // namespace kvarena
