// The protocol of a step: what each call refuses, that a refused call changes nothing, and what a
// failure of the device's work leaves usable.

#include "support/faulty_device.hpp"
#include "support/status_matchers.hpp"
#include "unit/cache/small_cache.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <utility>

namespace kvarena {
namespace {

using test::SmallCache;
using Demands = std::vector<AppendDemand>;

/// What holds on every kind of device.
class KvCacheStepOn : public ::testing::TestWithParam<DeviceKind> {
 protected:
  void SetUp() override { KVARENA_NEEDS_DEVICE(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Devices, KvCacheStepOn, ::testing::ValuesIn(test::device_kinds()),
                         test::kind_name);

TEST_P(KvCacheStepOn, CallsOutOfOrderAreRefused) {
  SmallCache t(GetParam());
  const SequenceId id = *t.cache.create_sequence();
  const auto before = t.state();
  EXPECT_FAILS(t.cache.append(Demands{{id, 1}}), failed_precondition, step);
  EXPECT_FAILS(t.cache.end_step(), failed_precondition, step);
  EXPECT_FAILS(t.cache.write_kv({}), failed_precondition, step);
  EXPECT_FAILS(t.cache.attend({}), failed_precondition, step);
  ASSERT_OK(t.cache.begin_step());
  EXPECT_FAILS(t.cache.begin_step(), failed_precondition, step);
  EXPECT_FAILS(t.cache.write_kv({}), failed_precondition, step);
  EXPECT_FAILS(t.cache.attend({}), failed_precondition, step);
  EXPECT_EQ(t.state(), before);
  ASSERT_OK(t.cache.append(Demands{{id, 1}}));
  EXPECT_FAILS(t.cache.append(Demands{{id, 1}}), failed_precondition, step);
  EXPECT_EQ(t.cache.tables().info(id)->length_tokens, 1);
  ASSERT_OK(t.cache.end_step());
  EXPECT_FAILS(t.cache.end_step(), failed_precondition, step);
  EXPECT_FAILS(t.cache.write_kv({}), failed_precondition, step);
}

TEST_P(KvCacheStepOn, AStepMayBeEmpty) {
  SmallCache t(GetParam());
  ASSERT_OK(t.cache.begin_step());
  ASSERT_OK(t.cache.end_step());
  ASSERT_OK(t.cache.begin_step());
  const Result<StepBatch> batch = t.cache.append({});
  ASSERT_OK(batch);
  EXPECT_EQ(batch->num_tokens, 0);
  EXPECT_TRUE(batch->slots.empty());
  EXPECT_OK(t.cache.write_kv({.dtype = DType::f32}));  // nothing to write: no pointers needed
  EXPECT_OK(t.cache.attend({.q_dtype = DType::f32, .out_dtype = DType::f32}));
  ASSERT_OK(t.cache.end_step());
  EXPECT_OK(t.cache.synchronize());
  EXPECT_EQ(t.cache.snapshot().step, 2U);
}

TEST_P(KvCacheStepOn, RefusedAppendsChangeNothingAndNameTheDemand) {
  KvCacheOptions options = test::small_options();
  options.max_batch_rows = 3;
  options.max_batch_blocks = 9;
  options.max_step_tokens = 20;
  SmallCache t(GetParam(), options);
  const SequenceId a = t.sequence_of(6);
  const SequenceId b = t.sequence_of(5);
  const SequenceId limited = *t.cache.create_sequence({.max_length_tokens = 4});
  const SequenceId fourth = *t.cache.create_sequence();
  const SequenceId unknown{77};
  struct Refusal {
    Demands demands;
    StatusCode code;
    Resource resource;
    std::int64_t failed;
  };
  const Refusal refusals[] = {
      {{{a, 1}, {unknown, 1}}, StatusCode::not_found, Resource::sequence, 1},
      {{{a, 1}, {b, 1}, {a, 1}}, StatusCode::duplicate_argument, Resource::sequence, 2},
      {{{a, -1}}, StatusCode::invalid_argument, Resource::num_tokens, 0},
      {{{a, 1}, {limited, 5}}, StatusCode::context_length_exceeded, Resource::sequence_length, 1},
      {{{a, 10}, {b, 11}}, StatusCode::limit_exceeded, Resource::num_tokens, 1},
      {{{a, 1}, {b, 1}, {limited, 1}, {fourth, 1}},
       StatusCode::limit_exceeded,
       Resource::num_sequences,
       -1},
      {{{b, 1}, {a, 19}}, StatusCode::exhausted, Resource::block, 1},
      {{{b, 16}, {a, 16}}, StatusCode::limit_exceeded, Resource::block, 1},
  };
  ASSERT_OK(t.cache.begin_step());
  const auto before = t.state();
  for (std::size_t i = 0; i < std::size(refusals); ++i) {
    const Refusal& r = refusals[i];
    const Result<StepBatch> batch = t.cache.append(r.demands);
    EXPECT_TRUE(test::fails_with(batch, r.code, r.resource)) << "refusal " << i;
    EXPECT_EQ(t.cache.failed_demand(), r.failed) << "refusal " << i;
    EXPECT_EQ(t.state(), before) << "refusal " << i;
    EXPECT_FAILS(t.cache.write_kv({}), failed_precondition, step);
    EXPECT_OK(t.cache.check_invariants());
  }
  ASSERT_OK(t.cache.append(Demands{{a, 1}})) << "the step is still open";
  EXPECT_EQ(t.cache.failed_demand(), -1);
  EXPECT_OK(t.cache.end_step());
}

TEST_P(KvCacheStepOn, ExhaustedIsExplainedAndTheSameCallSucceedsAfterARelease) {
  SmallCache t(GetParam());
  const SequenceId large = t.sequence_of(6 * test::kSmallBlockSize);
  const SequenceId small = t.sequence_of(1);
  ASSERT_OK(t.cache.begin_step());
  const Demands demands{{small, 2 * test::kSmallBlockSize}};
  const Status refused = t.cache.append(demands).status();
  ASSERT_TRUE(test::fails_with(refused, StatusCode::exhausted, Resource::block));
  EXPECT_EQ(refused.required, 2U);
  EXPECT_EQ(refused.available, 1U);
  EXPECT_EQ(refused.subject, small.value);
  const std::string text = t.cache.describe(refused);
  const std::string explanation = to_string(t.cache.tables().explain(2));
  EXPECT_NE(text.find(explanation), std::string::npos) << text;
  EXPECT_NE(explanation.find("sequence"), std::string::npos) << "names the largest holders";
  ASSERT_OK(t.cache.destroy(large));
  ASSERT_OK(t.cache.append(demands));
  ASSERT_OK(t.cache.end_step());
}

/// Notes that the stream's work has come this far.
Status note(void* flag) {
  *static_cast<char*>(flag) = 1;
  return {};
}

TEST(KvCacheStep, AStepWaitsForTheOneStepsInFlightBeforeItAndNoLater) {
  for (const std::int32_t k : {1, 2, 3, 16}) {
    KvCacheOptions options = test::small_options();
    options.steps_in_flight = k;
    std::vector<char> done(40);
    SmallCache t(options);  // nothing runs until somebody waits
    for (std::int32_t n = 0; n < 40; ++n) {
      ASSERT_OK(t.cache.begin_step());
      for (std::int32_t before = 0; before < n; ++before) {
        EXPECT_EQ(done[static_cast<std::size_t>(before)] != 0, before <= n - k)
            << "work of step " << before << " at step " << n << ", " << k << " in flight";
      }
      ASSERT_OK(t.device->launch_host(note, &done[static_cast<std::size_t>(n)], t.cache.stream()));
      ASSERT_OK(t.cache.end_step());
    }
  }
}

TEST(KvCacheStep, DestroyingTheCacheCompletesItsWork) {
  auto device = HostDevice::create({.streams = HostStreams::manual}).value();
  std::vector<float> kv(20 * 32, 0.25F);
  std::vector<float> out(20 * 32, -1.0F);
  {
    KvCache cache = KvCache::create(*device, test::small_options()).value();
    const SequenceId id = *cache.create_sequence();
    ASSERT_OK(cache.begin_step());
    ASSERT_OK(cache.append(Demands{{id, 20}}));
    ASSERT_OK(cache.write_kv({0, kv.data(), kv.data(), DType::f32}));
    ASSERT_OK(cache.attend({0, kv.data(), DType::f32, out.data(), DType::f32}));
    EXPECT_EQ(out[0], -1.0F) << "nobody has waited";
  }
  for (const float value : out) ASSERT_NEAR(value, 0.25F, 1e-5F);
}

TEST(KvCacheStep, WithInlineCallsResultsAreThereWhenTheCallReturns) {
  SmallCache t(test::small_options(), HostStreams::inline_calls);
  const SequenceId id = *t.cache.create_sequence();
  const std::vector<float> key(32, 1.0F);
  const StreamId other = t.device->create_stream().value();
  for (int n = 0; n < 8; ++n) {
    const std::vector<float> value(32, static_cast<float>(n));
    std::vector<float> out(32, -1.0F);
    ASSERT_OK(t.cache.begin_step({.stream = n % 3 == 0 ? other : StreamId{}}));
    ASSERT_OK(t.cache.append(Demands{{id, 1}}));
    ASSERT_OK(t.cache.write_kv({0, key.data(), value.data(), DType::f32}));
    ASSERT_OK(t.cache.attend({0, key.data(), DType::f32, out.data(), DType::f32}));
    EXPECT_NEAR(out[0], static_cast<float>(n) / 2, 1e-5F);
    ASSERT_OK(t.cache.end_step());
  }
}

TEST_P(KvCacheStepOn, AdmissionLeavesTheWatermark) {
  KvCacheOptions options = test::small_options();
  options.watermark_blocks = 2;
  SmallCache t(GetParam(), options);
  const SequenceId id = *t.cache.create_sequence();
  ASSERT_OK(t.cache.begin_step());
  const Demands demands{{id, 7 * test::kSmallBlockSize}};
  EXPECT_FAILS(t.cache.append(demands, Urgency::admission), exhausted, block);
  EXPECT_OK(t.cache.append(demands, Urgency::growth));
}

TEST_P(KvCacheStepOn, WriteAndAttendRefuseWhatCannotRun) {
  KvCacheOptions options = test::small_options();
  SmallCache t(GetParam(), options);
  const SequenceId id = *t.cache.create_sequence();
  ASSERT_OK(t.cache.begin_step());
  ASSERT_OK(t.cache.append(Demands{{id, 2}}));
  const auto* odd = reinterpret_cast<const std::byte*>(t.buffer()) + 1;
  const WriteKvArgs write{.layer = 0, .key = t.buffer(), .value = t.buffer(), .dtype = DType::f32};
  const AttendArgs attend{.layer = 0,
                          .q = t.buffer(),
                          .q_dtype = DType::f32,
                          .out = t.buffer(),
                          .out_dtype = DType::f32};
  const auto writing = [&](auto spoil) {
    WriteKvArgs args = write;
    spoil(args);
    return t.cache.write_kv(args);
  };
  const auto attending = [&](auto spoil) {
    AttendArgs args = attend;
    spoil(args);
    return t.cache.attend(args);
  };
  EXPECT_FAILS(writing([](auto& a) { a.layer = -1; }), invalid_argument, layer);
  EXPECT_FAILS(writing([](auto& a) { a.layer = 1; }), invalid_argument, layer);
  EXPECT_FAILS(writing([](auto& a) { a.key = nullptr; }), invalid_argument, pointer);
  EXPECT_FAILS(writing([](auto& a) { a.value = nullptr; }), invalid_argument, pointer);
  EXPECT_FAILS(writing([&](auto& a) { a.value = odd; }), invalid_argument, alignment);
  EXPECT_FAILS(writing([](auto& a) { a.dtype = DType::int8; }), unsupported, dtype);
  constexpr std::int64_t kOdd = 4 * 8 * sizeof(float) + 2;  // a token and half an element
  EXPECT_FAILS(writing([](auto& a) { a.key_token_stride_bytes = 64; }), invalid_argument,
               span_size);
  EXPECT_FAILS(writing([](auto& a) { a.value_token_stride_bytes = -128; }), invalid_argument,
               span_size);
  EXPECT_FAILS(writing([](auto& a) { a.value_token_stride_bytes = kOdd; }), invalid_argument,
               alignment);
  EXPECT_FAILS(t.cache.attend(attend), failed_precondition, layer);
  EXPECT_OK(t.cache.write_kv(write));
  constexpr auto kForeign = static_cast<DType>(99);
  EXPECT_FAILS(writing([](auto& a) { a.dtype = kForeign; }), invalid_argument, dtype);
  EXPECT_FAILS(attending([](auto& a) { a.q_dtype = kForeign; }), invalid_argument, dtype);
  EXPECT_FAILS(attending([](auto& a) { a.out_dtype = kForeign; }), invalid_argument, dtype);
  EXPECT_FAILS(attending([](auto& a) { a.layer = 1; }), invalid_argument, layer);
  EXPECT_FAILS(attending([](auto& a) { a.q = nullptr; }), invalid_argument, pointer);
  EXPECT_FAILS(attending([](auto& a) { a.out = nullptr; }), invalid_argument, pointer);
  EXPECT_FAILS(attending([&](auto& a) { a.q = odd; }), invalid_argument, alignment);
  EXPECT_FAILS(attending([](auto& a) { a.q_token_stride_bytes = kOdd; }), invalid_argument,
               alignment);
  EXPECT_FAILS(attending([](auto& a) { a.out_token_stride_bytes = 64; }), invalid_argument,
               span_size);
  EXPECT_FAILS(attending([](auto& a) { a.q_dtype = DType::fp8_e4m3; }), unsupported, dtype);
  EXPECT_FAILS(attending([](auto& a) { a.out_dtype = DType::int8; }), unsupported, dtype);
  EXPECT_FAILS(attending([](auto& a) { a.windowed = true; }), invalid_argument, window);
  EXPECT_FAILS(attending([](auto& a) { a.scale = -1.0F; }), invalid_argument, scale);
  EXPECT_FAILS(attending([](auto& a) { a.soft_cap = std::numeric_limits<float>::quiet_NaN(); }),
               invalid_argument, soft_cap);
  const std::uint64_t tree[] = {1, 3};  // the options have no draft_trees
  EXPECT_FAILS(attending([&](auto& a) { a.tree_mask = tree; }), unsupported, pointer);
  const Status no_q = attending([](auto& a) { a.q = nullptr; });
  EXPECT_NE(t.cache.describe(no_q).find("q is null"), std::string::npos) << t.cache.describe(no_q);

  for (int i = 0; i < 3; ++i) EXPECT_OK(t.cache.attend(attend));
  if (GetParam() == DeviceKind::host) {
    EXPECT_FAILS(t.cache.attend(attend), limit_exceeded, step);
    EXPECT_FAILS(t.cache.write_kv(write), limit_exceeded, step);
  }
  ASSERT_OK(t.cache.end_step());
  EXPECT_OK(t.cache.synchronize());
}

TEST_P(KvCacheStepOn, NoSequenceOutgrowsTheLargest) {
  KvCacheOptions options = test::small_options();
  options.max_sequence_tokens = 9;
  SmallCache t(GetParam(), options);
  EXPECT_REFUSES(t.cache.create_sequence({.max_length_tokens = 10}), invalid_argument,
                 max_length_tokens);
  const SequenceId smaller = *t.cache.create_sequence({.max_length_tokens = 3});
  const SequenceId id = t.sequence_of(9);
  EXPECT_REFUSES(t.cache.fork(id, 4, {.max_length_tokens = 10}), invalid_argument,
                 max_length_tokens);
  const SequenceId child = *t.cache.fork(id, 4);
  ASSERT_OK(t.cache.begin_step());
  EXPECT_FAILS(t.cache.append(Demands{{id, 1}}), context_length_exceeded, sequence_length);
  EXPECT_FAILS(t.cache.append(Demands{{child, 6}}), context_length_exceeded, sequence_length);
  EXPECT_FAILS(t.cache.append(Demands{{smaller, 4}}), context_length_exceeded, sequence_length);
  EXPECT_FAILS(t.cache.reserve_capacity(child, 10), context_length_exceeded, sequence_length);
  EXPECT_OK(t.cache.append(Demands{{child, 5}, {smaller, 3}}));
  EXPECT_OK(t.cache.end_step());
}

TEST(KvCacheStep, TheHostRecordsNoSteps) {
  SmallCache t;
  const RecordedStep shape{.num_rows = 1};
  EXPECT_FAILS(t.cache.begin_recording(shape), unsupported, device);
  EXPECT_FAILS(t.cache.end_recording(), failed_precondition, step);
  ASSERT_OK(t.cache.begin_step());
  EXPECT_FAILS(t.cache.append_recorded(shape, {}), unsupported, device);
  EXPECT_OK(t.cache.append({}));
  EXPECT_OK(t.cache.end_step());
}

Status fail_with_io_error(void*) {
  return {StatusCode::io_error, Resource::file, Option::none, 5, 0, 0, 0};
}

TEST(KvCacheStep, FailedWorkIsToldBySynchronizeAndStepsGoOn) {
  for (const HostStreams streams :
       {HostStreams::manual, HostStreams::threads, HostStreams::inline_calls}) {
    SmallCache t(test::small_options(), streams);
    const SequenceId id = *t.cache.create_sequence();
    ASSERT_OK(t.cache.begin_step());
    ASSERT_OK(t.cache.append(Demands{{id, 1}}));
    ASSERT_OK(t.device->launch_host(fail_with_io_error, nullptr, t.cache.stream()));
    ASSERT_OK(t.cache.fence(t.cache.stream()));
    ASSERT_OK(t.cache.end_step());
    for (int i = 0; i < 5; ++i) EXPECT_TRUE(t.step({{id, 1}})) << "step " << i;
    EXPECT_FAILS(t.cache.synchronize(), io_error, file);
    EXPECT_OK(t.cache.synchronize()) << "once";
    for (int i = 0; i < 5; ++i) EXPECT_TRUE(t.step({{id, 1}})) << "step " << i;
    EXPECT_OK(t.cache.synchronize());
  }
}

TEST(KvCacheStep, ADeviceThatTakesNoWorkIsAnErrorThatOneCanLeave) {
  const auto inner = HostDevice::create().value();
  test::FaultyDevice device(*inner);
  KvCache cache = KvCache::create(device, test::small_options()).value();
  const SequenceId parent = *cache.create_sequence();
  ASSERT_OK(cache.begin_step());
  ASSERT_OK(cache.append(Demands{{parent, 2}}));
  ASSERT_OK(cache.end_step());
  const SequenceId child = *cache.fork(parent, 2);

  device.fail_after(0);
  ASSERT_OK(cache.begin_step()) << "the work it would wait for is over, so the wait may fail";
  device.fail_after(0);  // the copy on write
  EXPECT_FAILS(cache.append(Demands{{child, 1}}), device_error, none);
  EXPECT_EQ(cache.tables().info(child)->length_tokens, 2) << "nothing has changed";
  EXPECT_EQ(cache.tables().lookup(child, 0).value(), cache.tables().lookup(parent, 0).value());
  EXPECT_EQ(cache.manager().stats().referenced, 1);
  EXPECT_FAILS(cache.write_kv({}), failed_precondition, step);
  EXPECT_FAILS(cache.attend({}), failed_precondition, step);
  EXPECT_OK(cache.check_invariants());
  ASSERT_OK(cache.append(Demands{{child, 1}})) << "the same call again";
  EXPECT_NE(cache.tables().lookup(child, 0).value(), cache.tables().lookup(parent, 0).value());
  ASSERT_OK(cache.destroy(child));
  device.fail_after(0);
  EXPECT_FAILS(cache.end_step(), device_error, none);
  ASSERT_OK(cache.end_step());
  EXPECT_OK(cache.check_invariants());
  ASSERT_OK(cache.begin_step());
  ASSERT_OK(cache.append(Demands{{parent, 1}}));
  ASSERT_OK(cache.end_step());
  EXPECT_OK(cache.synchronize());
}

TEST_P(KvCacheStepOn, SequenceCallsForwardTheirStatus) {
  SmallCache t(GetParam());
  const SequenceId unknown{99};
  const SequenceId id = t.sequence_of(5);
  const auto before = t.state();
  EXPECT_REFUSES(t.cache.create_sequence({.max_length_tokens = -1}), invalid_argument,
                 max_length_tokens);
  EXPECT_FAILS(t.cache.fork(unknown, 1), not_found, sequence);
  EXPECT_FAILS(t.cache.fork(id, 6), invalid_argument, sequence_length);
  EXPECT_FAILS(t.cache.destroy(unknown), not_found, sequence);
  EXPECT_FAILS(t.cache.destroy(id, Ticket{42}), not_found, ticket);
  EXPECT_FAILS(t.cache.destroy_many(std::vector{id, id}), duplicate_argument, sequence);
  EXPECT_FAILS(t.cache.truncate(id, 6), invalid_argument, sequence_length);
  EXPECT_FAILS(t.cache.truncate(id, 1, Ticket{42}), not_found, ticket);
  EXPECT_FAILS(t.cache.reserve_capacity(unknown, 6), not_found, sequence);
  EXPECT_FAILS(t.cache.reserve_capacity(id, 1000), exhausted, block);
  EXPECT_FAILS(t.cache.promise_capacity(id, 1000), exhausted, reservation);
  EXPECT_EQ(t.state(), before);
  ASSERT_OK(t.cache.reserve_capacity(id, 12));
  EXPECT_EQ(t.cache.tables().info(id)->num_blocks, 3);
  ASSERT_OK(t.cache.promise_capacity(id, 20));
  EXPECT_EQ(t.cache.manager().stats().reserved, 2);
  for (int i = 0; i < 3; ++i) ASSERT_OK(t.cache.create_sequence());
  EXPECT_FAILS(t.cache.create_sequence(), exhausted, sequence);
  EXPECT_FAILS(t.cache.fork(id, 1), exhausted, sequence);
  ASSERT_OK(t.cache.destroy_many(t.cache.tables().sequences()));
  EXPECT_EQ(t.cache.manager().stats().free, test::kSmallBlocks);
}

TEST_P(KvCacheStepOn, TheSnapshotIsThatOfTheLastEndedStep) {
  SmallCache t(GetParam());
  EXPECT_EQ(t.cache.snapshot().step, 0U);
  EXPECT_EQ(t.cache.snapshot().blocks.num_blocks, test::kSmallBlocks);
  const SequenceId id = t.sequence_of(6);
  EXPECT_EQ(t.cache.snapshot().step, 1U);
  EXPECT_EQ(t.cache.snapshot().tables.tokens, 6);
  EXPECT_EQ(t.cache.snapshot().blocks.allocated(), 2);
  ASSERT_OK(t.cache.destroy(id));
  EXPECT_EQ(t.cache.snapshot().blocks.allocated(), 2) << "published at the end of a step";
  t.steps(1);
  EXPECT_EQ(t.cache.snapshot().blocks.allocated(), 0);
}

TEST_P(KvCacheStepOn, AnEngineThatGoesIdlePublishesBetweenSteps) {
  SmallCache t(GetParam());
  const SequenceId id = t.sequence_of(6);
  ASSERT_OK(t.cache.destroy(id));
  ASSERT_OK(t.cache.publish());
  EXPECT_EQ(t.cache.snapshot().step, 1U) << "no step has ended";
  EXPECT_EQ(t.cache.snapshot().blocks.allocated(), 0);
  ASSERT_OK(t.cache.begin_step());
  EXPECT_FAILS(t.cache.publish(), failed_precondition, step);
  EXPECT_TRUE(t.cache.publisher().has_pending_work());
  ASSERT_OK(t.cache.end_step());
  EXPECT_FALSE(t.cache.publisher().has_pending_work());
}

TEST_P(KvCacheStepOn, ThePublisherStaysWhereItIsWhenTheCacheMoves) {
  SmallCache t(GetParam());
  const StepPublisher* const publisher = &t.cache.publisher();
  KvCache moved = std::move(t.cache);
  EXPECT_EQ(&std::as_const(moved).publisher(), publisher);
  ASSERT_OK(moved.begin_step());
  ASSERT_OK(moved.end_step());
  EXPECT_EQ(publisher->snapshot().step, 1U);
  EXPECT_GT(publisher->snapshot().audit.blocks_checked, 0U);
  t.cache = std::move(moved);
}

}  // namespace
}  // namespace kvarena
