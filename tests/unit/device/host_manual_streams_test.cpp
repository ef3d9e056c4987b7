// Manual streams: the test decides which stream runs next.

#include "support/fake_memory_source.hpp"
#include "support/status_matchers.hpp"

#include "kvarena/device/host_device.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

namespace kvarena {
namespace {

/// Appends its letter to a common text when it runs.
struct Letter {
  std::string* text;
  char letter;

  static Status write(void* self) {
    auto& l = *static_cast<Letter*>(self);
    l.text->push_back(l.letter);
    return {};
  }
};

class ManualStreams : public ::testing::Test {
 protected:
  void SetUp() override { create(64); }
  void create(std::uint32_t max_queued) {
    auto created = HostDevice::create({.capacity_bytes = 1 << 20,
                                       .streams = HostStreams::manual,
                                       .max_queued = max_queued,
                                       .memory = &memory_});
    ASSERT_OK(created);
    device_ = std::move(created).value();
    for (StreamId& stream : streams_) stream = device_->create_stream().value();
  }
  void launch(Letter& letter, std::size_t stream) {
    ASSERT_OK(device_->launch_host(Letter::write, &letter, streams_[stream]));
  }
  bool run(std::size_t stream) {
    const auto ran = device_->run_one(streams_[stream]);
    EXPECT_OK(ran);
    return ran && *ran;
  }

  test::FakeMemorySource memory_;
  std::unique_ptr<HostDevice> device_;
  std::array<StreamId, 3> streams_;
  std::string text_;
  Letter a_{&text_, 'a'}, b_{&text_, 'b'}, c_{&text_, 'c'};
};

TEST_F(ManualStreams, NothingRunsByItself) {
  launch(a_, 0);
  EXPECT_EQ(text_, "");
  EXPECT_TRUE(run(0));
  EXPECT_EQ(text_, "a");
  EXPECT_FALSE(run(0));
}

TEST_F(ManualStreams, EveryInterleavingOfIndependentStreamsIsPossible) {
  std::array<std::size_t, 3> order = {0, 1, 2};
  int interleavings = 0;
  do {
    text_.clear();
    launch(a_, 0);
    launch(b_, 1);
    launch(c_, 2);
    std::string expected;
    for (const std::size_t stream : order) {
      EXPECT_TRUE(run(stream));
      expected.push_back("abc"[stream]);
    }
    EXPECT_EQ(text_, expected);
    ++interleavings;
  } while (std::next_permutation(order.begin(), order.end()));
  EXPECT_EQ(interleavings, 6);
}

TEST_F(ManualStreams, AWaitHoldsItsStreamOnly) {
  const EventId e = device_->create_event().value();
  launch(a_, 0);
  ASSERT_OK(device_->record(e, streams_[0]));
  ASSERT_OK(device_->wait(streams_[1], e));
  launch(b_, 1);
  launch(c_, 2);
  EXPECT_FALSE(run(1));
  EXPECT_TRUE(run(2));
  EXPECT_TRUE(run(0));
  EXPECT_TRUE(*device_->is_complete(e));
  EXPECT_TRUE(run(1));  // the wait
  EXPECT_TRUE(run(1));  // what waited
  EXPECT_EQ(text_, "cab");
}

TEST_F(ManualStreams, SynchronizeRunsTheStreamsItDependsOnAndNoOthers) {
  const EventId e = device_->create_event().value();
  launch(a_, 0);
  ASSERT_OK(device_->record(e, streams_[0]));
  launch(a_, 0);  // behind the event: not needed
  ASSERT_OK(device_->wait(streams_[1], e));
  launch(b_, 1);
  launch(c_, 2);  // unrelated
  EXPECT_OK(device_->synchronize(streams_[1]));
  EXPECT_EQ(text_, "ab");
}

TEST_F(ManualStreams, SynchronizingAnEventRunsUpToIt) {
  const EventId e = device_->create_event().value();
  launch(a_, 0);
  ASSERT_OK(device_->record(e, streams_[0]));
  launch(b_, 0);
  EXPECT_OK(device_->synchronize(e));
  EXPECT_EQ(text_, "a");
}

TEST_F(ManualStreams, SynchronizeFollowsLongChains) {
  create(3000);
  const EventId link = device_->create_event().value();
  for (std::size_t i = 0; i < 2000; ++i) {
    ASSERT_OK(device_->wait(streams_[i % 3], link));
    launch(a_, i % 3);
    ASSERT_OK(device_->record(link, streams_[i % 3]));
  }
  EXPECT_OK(device_->synchronize(link));
  EXPECT_EQ(text_.size(), 2000U);
}

TEST_F(ManualStreams, AFullStreamIsExhausted) {
  create(2);
  launch(a_, 0);
  launch(b_, 0);
  EXPECT_FAILS(device_->launch_host(Letter::write, &c_, streams_[0]), exhausted, stream);
  EXPECT_TRUE(run(0));
  launch(c_, 0);
  EXPECT_OK(device_->synchronize(streams_[0]));
  EXPECT_EQ(text_, "abc");
}

TEST_F(ManualStreams, SynchronizeCannotProgressInsideAHostFunction) {
  struct Call {
    HostDevice* device;
    StreamId stream;
    Status synchronize;
    Status run_one;
  };
  Call call{device_.get(), streams_[0], {}, {}};
  ASSERT_OK(device_->launch_host(
      [](void* argument) {
        auto& c = *static_cast<Call*>(argument);
        c.synchronize = c.device->synchronize(c.stream);
        c.run_one = c.device->run_one(c.stream).status();
        return Status{};
      },
      &call, streams_[0]));
  EXPECT_OK(device_->synchronize(streams_[0]));
  EXPECT_FAILS(call.synchronize, failed_precondition, stream);
  EXPECT_FAILS(call.run_one, failed_precondition, stream);
}

TEST_F(ManualStreams, AFailedStreamStillHonoursItsWaits) {
  const EventId first = device_->create_event().value();
  const EventId second = device_->create_event().value();
  ASSERT_OK(device_->launch_host([](void*) { return not_found(Resource::block, 1); }, nullptr,
                                 streams_[1]));
  launch(a_, 0);
  ASSERT_OK(device_->record(first, streams_[0]));
  ASSERT_OK(device_->wait(streams_[1], first));
  ASSERT_OK(device_->record(second, streams_[1]));
  EXPECT_TRUE(run(1));
  EXPECT_FALSE(run(1));
  EXPECT_FALSE(*device_->is_complete(second));  // or memory that stream 0 uses would look free
  EXPECT_TRUE(run(0));
  EXPECT_TRUE(run(1));
  EXPECT_FAILS(device_->is_complete(second), not_found, block);
  EXPECT_FAILS(device_->synchronize(streams_[1]), not_found, block);
}

TEST_F(ManualStreams, DestroyingTheDeviceRunsWhatIsQueued) {
  const EventId e = device_->create_event().value();
  launch(a_, 2);
  ASSERT_OK(device_->record(e, streams_[2]));
  ASSERT_OK(device_->wait(streams_[0], e));
  launch(b_, 0);
  device_.reset();
  EXPECT_EQ(text_, "ab");
}

TEST_F(ManualStreams, RunOneOfAnUnknownStreamIsAnError) {
  EXPECT_FAILS(device_->run_one(StreamId{999}), not_found, stream);
}

}  // namespace
}  // namespace kvarena
