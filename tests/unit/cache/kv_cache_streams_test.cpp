// A step has a stream. On streams that are run by hand: what a step on one stream needs of a step
// on another one is there before it runs, whatever ends a step waits for the step's stream, and a
// stream that cannot be used is refused.

#include "support/status_matchers.hpp"
#include "unit/cache/shadow_engine.hpp"
#include "unit/cache/small_cache.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace kvarena {
namespace {

using test::SmallCache;
using Demands = std::vector<AppendDemand>;

constexpr std::size_t kRow = 32;  // floats of a token: 4 heads of 8

Status add_one(void* number) {
  ++*static_cast<int*>(number);
  return {};
}
Status fail_with_io_error(void*) {
  return {StatusCode::io_error, Resource::file, Option::none, 5, 0, 0, 0};
}

/// A small cache, and two streams on which nothing runs by itself.
struct StreamsTest : ::testing::Test {
  StreamsTest() : key(4 * kRow, 1.0F), first(4 * kRow, 0.25F), second(4 * kRow, 0.75F) {
    EXPECT_OK(t.device->synchronize(home));
  }
  /// Runs all that a stream can run now; how many operations that were.
  int run(StreamId stream) {
    int count = 0;
    while (t.host().run_one(stream).value()) ++count;
    return count;
  }
  /// A step on `stream` that appends one token with K of ones and V of `value`, and attends.
  void step_on(StreamId stream, SequenceId id, const std::vector<float>& value, float* result) {
    ASSERT_OK(t.cache.begin_step({.stream = stream}));
    ASSERT_OK(t.cache.append(Demands{{id, 1}}));
    ASSERT_OK(t.cache.write_kv({0, key.data(), value.data(), DType::f32}));
    ASSERT_OK(t.cache.attend({0, key.data(), DType::f32, result, DType::f32}));
    ASSERT_OK(t.cache.end_step());
  }

  SmallCache t;
  StreamId home = t.cache.stream();
  StreamId a = t.device->create_stream().value();
  StreamId b = t.device->create_stream().value();
  std::vector<float> key, first, second;  // K, and V of a first and a second token
  std::array<float, kRow> out{}, later{};
};

TEST_F(StreamsTest, AStepOnAnotherStreamRunsBehindTheLastStep) {
  const SequenceId id = *t.cache.create_sequence();
  step_on(a, id, first, out.data());
  EXPECT_EQ(t.cache.stream(), a);
  step_on(b, id, second, later.data());
  EXPECT_EQ(t.cache.stream(), b);
  EXPECT_EQ(run(b), 0) << "it waits for the first step, which has not run";
  EXPECT_EQ(later[0], 0.0F);
  EXPECT_GT(run(a), 0);
  EXPECT_FLOAT_EQ(out[0], 0.25F);
  EXPECT_EQ(later[0], 0.0F) << "the second step's work is on its own stream";
  EXPECT_GT(run(b), 0);
  EXPECT_FLOAT_EQ(later[0], 0.5F) << "of both tokens";
  EXPECT_EQ(run(home), 0) << "nothing of the steps was queued there";
}

TEST_F(StreamsTest, AStepWithoutAStreamGoesOnWhereTheLastOneWas) {
  const SequenceId id = *t.cache.create_sequence();
  step_on({}, id, first, out.data());
  EXPECT_EQ(t.cache.stream(), home);
  EXPECT_GT(run(home), 0);
  step_on(a, id, first, out.data());
  step_on({}, id, second, later.data());
  EXPECT_EQ(t.cache.stream(), a);
  EXPECT_EQ(run(home) + run(b), 0);
  EXPECT_GT(run(a), 0);
  EXPECT_NEAR(later[0], (0.25F + 0.25F + 0.75F) / 3, 1e-6F);
}

TEST_F(StreamsTest, BlocksAreReusedBehindTheWorkOfTheStreamTheyWereUsedOn) {
  SequenceId id = *t.cache.create_sequence();
  step_on(a, id, first, out.data());
  // Work of the engine's own, behind the step and on its stream, reads the block's first key.
  struct Reading {
    const std::byte* block;
    float seen = 0.0F;
    static Status run(void* self) {
      auto& r = *static_cast<Reading*>(self);
      std::memcpy(&r.seen, r.block, sizeof r.seen);
      return {};
    }
  } reading{t.cache.arena().address(*t.cache.tables().lookup(id, 0), 0, PlaneKind::value)};
  ASSERT_OK(t.device->launch_host(Reading::run, &reading, a));
  const BlockId block = *t.cache.tables().lookup(id, 0);
  ASSERT_OK(t.cache.destroy(id));
  do {  // until a new sequence has the block
    id = *t.cache.create_sequence();
    step_on(b, id, second, later.data());
  } while (*t.cache.tables().lookup(id, 0) != block && t.cache.tables().stats().sequences < 4);
  ASSERT_EQ(t.cache.tables().lookup(id, 0).value(), block);
  ASSERT_OK(t.cache.synchronize());
  EXPECT_EQ(reading.seen, 0.25F);
}

TEST_F(StreamsTest, SynchronizePublishAndTicketsFollowTheStream) {
  const SequenceId id = *t.cache.create_sequence();
  step_on(a, id, first, out.data());
  step_on(b, id, second, later.data());
  ASSERT_OK(t.cache.synchronize());
  EXPECT_FLOAT_EQ(later[0], 0.5F);

  int done = 0;
  ASSERT_OK(t.cache.begin_step({.stream = a}));
  ASSERT_OK(t.device->launch_host(add_one, &done, t.cache.stream()));
  const Ticket ticket = *t.cache.fence(t.cache.stream());
  ASSERT_OK(t.cache.destroy(id, ticket));
  ASSERT_OK(t.cache.end_step());
  EXPECT_EQ(t.cache.manager().stats().fenced, 1);
  ASSERT_OK(t.cache.begin_step({.stream = b}));
  ASSERT_OK(t.cache.end_step());
  EXPECT_EQ(done, 0);
  ASSERT_OK(t.cache.publish());
  EXPECT_EQ(done, 1) << "publish waited for the ticket's work";
  EXPECT_EQ(t.cache.manager().stats().fenced, 0);
}

TEST_F(StreamsTest, AStepWaitsForTheStepsInFlightOnWhicheverStreams) {
  std::array<int, 12> done{};
  for (std::size_t n = 0; n < done.size(); ++n) {
    ASSERT_OK(t.cache.begin_step({.stream = std::array{a, home, b}[n % 3]}));
    for (std::size_t before = 0; before < n; ++before) {
      EXPECT_EQ(done[before], before + 2 <= n ? 1 : 0) << "step " << before << " at step " << n;
    }
    ASSERT_OK(t.device->launch_host(add_one, &done[n], t.cache.stream()));
    ASSERT_OK(t.cache.end_step());
  }
  for (const StreamId stream : {a, home, b}) ASSERT_OK(t.device->synchronize(stream));
}

TEST_F(StreamsTest, AnAbortedStepLeavesItsStreamInOrder) {
  const SequenceId id = *t.cache.create_sequence();
  step_on(a, id, first, out.data());
  ASSERT_OK(t.cache.begin_step({.stream = b}));
  ASSERT_OK(t.cache.append(Demands{{id, 1}}));
  ASSERT_OK(t.cache.write_kv({0, key.data(), first.data(), DType::f32}));
  ASSERT_OK(t.cache.abort_step());
  EXPECT_EQ(t.cache.tables().info(id)->length_tokens, 1);
  step_on(a, id, second, later.data());  // writes the slot that the aborted step writes
  EXPECT_EQ(run(a), 0);
  EXPECT_EQ(later[0], 0.0F) << "it waits for the aborted step's write";
  EXPECT_GT(run(b), 0);
  EXPECT_GT(run(a), 0);
  EXPECT_FLOAT_EQ(later[0], 0.5F);
}

TEST_F(StreamsTest, DestroyingTheCacheCompletesTheWorkOfTheLastStream) {
  std::vector<float> result(kRow, -1.0F);
  {
    KvCache cache = KvCache::create(*t.device, test::small_options()).value();
    const SequenceId id = *cache.create_sequence();
    for (const StreamId stream : {a, b}) {
      ASSERT_OK(cache.begin_step({.stream = stream}));
      ASSERT_OK(cache.append(Demands{{id, 1}}));
      ASSERT_OK(cache.write_kv({0, key.data(), first.data(), DType::f32}));
      ASSERT_OK(cache.attend({0, key.data(), DType::f32, result.data(), DType::f32}));
      ASSERT_OK(cache.end_step());
    }
    EXPECT_EQ(result[0], -1.0F);
  }
  EXPECT_FLOAT_EQ(result[0], 0.25F);
}

TEST_F(StreamsTest, StreamsThatAreNotTheDevicesAreRefusedAndNothingChanges) {
  const SequenceId id = *t.cache.create_sequence();
  step_on(a, id, first, out.data());
  const auto other = HostDevice::create({.streams = HostStreams::manual}).value();
  const StreamId foreign = other->create_stream().value();
  const StreamId gone = t.device->create_stream().value();
  ASSERT_OK(t.device->destroy_stream(gone));
  const auto before = t.state();
  for (const StreamId refused : {foreign, gone, StreamId{12345}}) {
    EXPECT_FAILS(t.cache.begin_step({.stream = refused}), not_found, stream);
    EXPECT_EQ(t.cache.stream(), a);
    EXPECT_FAILS(t.cache.end_step(), failed_precondition, step);
  }
  EXPECT_EQ(t.state(), before);
  step_on({}, id, second, later.data());
  ASSERT_OK(t.cache.synchronize());
  EXPECT_FLOAT_EQ(later[0], 0.5F);
}

TEST_F(StreamsTest, TheWorkOfAStreamThatWasDestroyedIsOver) {
  const SequenceId id = *t.cache.create_sequence();
  step_on(a, id, first, out.data());
  ASSERT_OK(t.device->destroy_stream(a));
  EXPECT_EQ(out[0], 0.25F) << "destroying it completed the step";
  EXPECT_OK(t.cache.synchronize());
  // A step on the stream that is gone can be left.
  ASSERT_OK(t.cache.begin_step());
  ASSERT_OK(t.cache.append(Demands{{id, 1}}));
  EXPECT_FAILS(t.cache.write_kv({0, key.data(), first.data(), DType::f32}), not_found, stream);
  ASSERT_OK(t.cache.abort_step());
  step_on(b, id, second, later.data());
  ASSERT_OK(t.cache.synchronize());
  EXPECT_FLOAT_EQ(later[0], 0.5F);
}

TEST_F(StreamsTest, AFailureIsPassedOnAndIsToldBySynchronize) {
  const SequenceId id = *t.cache.create_sequence();
  ASSERT_OK(t.device->launch_host(fail_with_io_error, nullptr, home));
  step_on(a, id, first, out.data());
  EXPECT_FAILS(t.cache.synchronize(), io_error, file);
  EXPECT_EQ(out[0], 0.0F) << "nothing was computed behind the failure";
  EXPECT_FAILS(t.device->synchronize(home), io_error, file) << "of the other stream too";
  EXPECT_OK(t.cache.synchronize());
  step_on(home, id, first, out.data());
  step_on(b, id, first, out.data());
  EXPECT_OK(t.cache.synchronize());
}

/// Sequences that grow, are forked, cut and destroyed, in steps on the streams in turn.
void play(test::ShadowEngine& engine, int num_steps) {
  std::mt19937_64 random(3);
  for (int n = 0; n < num_steps; ++n) {
    Demands demands;
    if (engine.sequences().size() < 6) {
      ASSERT_NE(engine.create_sequence(), kNoSequence);
    }
    const auto chosen =
        std::next(engine.sequences().begin(),
                  static_cast<std::ptrdiff_t>(random() % engine.sequences().size()));
    const auto length = std::ssize(chosen->second);
    if (length > 40) {
      ASSERT_OK(engine.destroy(chosen->first));
    } else if (length > 2 && random() % 3 == 0) {
      ASSERT_OK(engine.truncate(chosen->first, length - 2));
    } else if (length > 2 && engine.sequences().size() < 6) {
      ASSERT_NE(engine.fork(chosen->first, length - 1), kNoSequence);
    }
    for (const auto& [id, seeds] : engine.sequences()) {
      demands.push_back({id, static_cast<std::int32_t>(random() % 4)});
    }
    ASSERT_OK(engine.step(demands));
    ASSERT_EQ(engine.mismatches().wrong, 0) << "step " << n << ": " << engine.mismatches().first;
  }
  ASSERT_OK(engine.finish());
  ASSERT_EQ(engine.mismatches().wrong, 0) << engine.mismatches().first;
  EXPECT_GT(engine.mismatches().compared, 10000);
}

TEST(StreamsWithThreads, EveryOutputIsRightWhenStepsAreOnStreamsInTurn) {
  const auto device = HostDevice::create({.capacity_bytes = 1 << 24}).value();
  test::EngineOptions options;
  options.cache = test::small_options();
  options.cache.size.num_blocks = 128;
  options.cache.max_sequences = 8;
  options.cache.scrub = Scrub::never;
  options.cache.steps_in_flight = 3;
  for (int i = 0; i < 4; ++i) options.streams.push_back(device->create_stream().value());
  test::ShadowEngine engine(*device, options);
  ASSERT_OK(engine.created());
  play(engine, 400);
}

}  // namespace
}  // namespace kvarena
