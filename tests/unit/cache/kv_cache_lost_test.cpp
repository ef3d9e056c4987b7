// Steps of a KvCache with a prefix cache whose work fails: nobody begins with what was not written,
// whoever took the failure, and sequences that are cut go on as before.

#include "support/status_matchers.hpp"

#include "kvarena/cache/kv_cache.hpp"
#include "kvarena/device/host_device.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

namespace kvarena {
namespace {

constexpr std::int32_t kBlockSize = 16;
using Tokens = std::vector<std::int32_t>;

Tokens tokens(std::int32_t count, std::int32_t first = 1) {
  Tokens list(static_cast<std::size_t>(count));
  std::iota(list.begin(), list.end(), first);
  return list;
}

constexpr Status kFailure{StatusCode::io_error, Resource::file, Option::none, 5, 0, 0, 0};
Status fail(void*) { return kFailure; }

/// An engine whose K and V of a token are the token itself.
class LostEngine {
 public:
  explicit LostEngine(HostStreams streams, DuplicateRule duplicates = DuplicateRule::duplicate)
      : device_(HostDevice::create({.streams = streams}).value()),
        cache_(KvCache::create(*device_, options_of(duplicates)).value()) {}

  KvCache& cache() noexcept { return cache_; }
  Device& device() noexcept { return *device_; }

  SequenceId begin(const Tokens& prompt) {
    return cache_.create_sequence({.tokens = prompt}).value();
  }
  std::int64_t length(SequenceId id) { return cache_.tables().info(id)->length_tokens; }
  /// The next tokens of `list`, up to its first `end`.
  std::span<const std::int32_t> rest(SequenceId id, const Tokens& list, std::size_t end) {
    return std::span(list).first(end).subspan(static_cast<std::size_t>(length(id)));
  }
  void break_stream() { EXPECT_OK(device_->launch_host(&fail, nullptr, cache_.stream())); }
  void begin_step(SequenceId id, std::span<const std::int32_t> values, bool tells = true) {
    ASSERT_OK(cache_.begin_step());
    const AppendDemand demand{id,
                              static_cast<std::int32_t>(values.size()),
                              {},
                              tells ? values : std::span<const std::int32_t>{}};
    ASSERT_OK(cache_.append(std::span(&demand, 1)));
    inputs_.emplace_back(values.begin(), values.end());
  }
  void write() {
    const std::vector<float>& kv = inputs_.back();
    ASSERT_OK(
        cache_.write_kv({.layer = 0, .key = kv.data(), .value = kv.data(), .dtype = DType::f32}));
  }
  void step(SequenceId id, std::span<const std::int32_t> values, bool tells = true) {
    begin_step(id, values, tells);
    write();
    ASSERT_OK(cache_.end_step());
  }
  void lose_step(SequenceId id, std::span<const std::int32_t> values, bool tells = true) {
    begin_step(id, values, tells);
    break_stream();
    write();
    ASSERT_OK(cache_.end_step());
  }
  /// Tells all tokens of a sequence, also when the cache has just forgotten what it knew of it.
  void tell(SequenceId id, const Tokens& list) {
    for (int i = 0; i < 2; ++i) {
      const SequenceInfo info = cache_.tables().info(id).value();
      ASSERT_OK(
          cache_.register_tokens(id, std::span(list)
                                         .first(static_cast<std::size_t>(info.length_tokens))
                                         .subspan(static_cast<std::size_t>(info.known_tokens))));
    }
  }
  /// The stream works again; the failure goes to the engine, which tells the cache nothing.
  void take_failure() { EXPECT_EQ(device_->synchronize(cache_.stream()).code, kFailure.code); }

  /// Another party asks for the prompt and reads what it is given of it: returns how many tokens.
  std::int64_t serve(const Tokens& prompt) {
    const SequenceId id = begin(prompt);
    const std::int64_t covered = length(id);
    EXPECT_OK(cache_.synchronize());
    read(id, prompt);
    EXPECT_OK(cache_.destroy(id));
    EXPECT_OK(cache_.check_invariants());
    return covered;
  }
  /// What a sequence has must be these tokens.
  void read(SequenceId id, const Tokens& expected) {
    const PlaneView key = cache_.layer_view(0)->key;
    for (std::int64_t i = 0; i < length(id); ++i) {
      const std::int64_t slot = cache_.tables().slot_of(id, i).value();
      const auto* const value = reinterpret_cast<const float*>(
          key.base + slot / kBlockSize * key.block_stride + slot % kBlockSize * key.token_stride);
      ASSERT_EQ(*value, static_cast<float>(expected[static_cast<std::size_t>(i)])) << "token " << i;
    }
  }

 private:
  static KvCacheOptions options_of(DuplicateRule duplicates) {
    return {.layout = {.num_layers = 1, .num_kv_heads = 1, .head_dim_k = 1, .dtype = DType::f32},
            .size = {.num_blocks = 64},
            .num_q_heads = 1,
            .steps_in_flight = 2,
            .prefix_cache = {.is_on = true, .duplicates = duplicates}};
  }

  std::unique_ptr<HostDevice> device_;
  std::deque<std::vector<float>> inputs_;  // live as long as the work
  KvCache cache_;
};

class KvCacheLost : public ::testing::TestWithParam<HostStreams> {};
INSTANTIATE_TEST_SUITE_P(Streams, KvCacheLost,
                         ::testing::Values(HostStreams::inline_calls, HostStreams::threads,
                                           HostStreams::manual),
                         [](const auto& its) {
                           return its.param == HostStreams::threads  ? "threads"
                                  : its.param == HostStreams::manual ? "manual"
                                                                     : "inline_calls";
                         });

const Tokens kAll = tokens(64);

TEST_P(KvCacheLost, AStepInsideABlockIsNeverPublished) {
  LostEngine engine(GetParam());
  const SequenceId id = engine.begin(kAll);
  engine.lose_step(id, engine.rest(id, kAll, 10));
  EXPECT_FAILS(engine.cache().synchronize(), io_error, file);
  engine.step(id, engine.rest(id, kAll, 64));
  EXPECT_EQ(engine.serve(kAll), 0);
  const SequenceId fork = engine.cache().fork(id, 40).value();
  engine.step(fork, engine.rest(fork, kAll, 64));
  EXPECT_EQ(engine.serve(kAll), 0);
}

TEST_P(KvCacheLost, TokensToldAfterwardsAreNeverPublished) {
  LostEngine engine(GetParam());
  const SequenceId id = engine.begin(kAll);
  engine.step(id, engine.rest(id, kAll, 20), false);
  engine.lose_step(id, engine.rest(id, kAll, 33), false);
  EXPECT_FAILS(engine.cache().synchronize(), io_error, file);
  ASSERT_OK(engine.cache().register_tokens(id, std::span(kAll).first(33)));
  EXPECT_EQ(engine.serve(kAll), 16) << "the block of the step before";
}

TEST_P(KvCacheLost, ASequenceThatIsCutBelowGoesOn) {
  LostEngine engine(GetParam());
  const SequenceId id = engine.begin(kAll);
  engine.step(id, engine.rest(id, kAll, 5));
  engine.lose_step(id, engine.rest(id, kAll, 10));
  EXPECT_FAILS(engine.cache().synchronize(), io_error, file);
  ASSERT_OK(engine.cache().truncate(id, 6));
  engine.step(id, engine.rest(id, kAll, 20));
  EXPECT_EQ(engine.serve(kAll), 0) << "one lost token is left";
  ASSERT_OK(engine.cache().truncate(id, 5));
  engine.step(id, engine.rest(id, kAll, 64));
  EXPECT_EQ(engine.serve(kAll), 48);
  engine.read(id, kAll);
}

TEST_P(KvCacheLost, SequencesOutsideTheStepGoOn) {
  LostEngine engine(GetParam());
  const Tokens others = tokens(64, 1000);
  const SequenceId id = engine.begin(kAll);
  const SequenceId other = engine.begin(others);
  engine.step(other, engine.rest(other, others, 10));
  engine.lose_step(id, engine.rest(id, kAll, 10));
  EXPECT_FAILS(engine.cache().synchronize(), io_error, file);
  engine.step(other, engine.rest(other, others, 64));
  EXPECT_EQ(engine.serve(others), 48);
}

TEST_P(KvCacheLost, AFailureThatTheEngineTookIsSeen) {
  for (int look = 0; look < 6; ++look) {
    LostEngine engine(GetParam());
    KvCache& cache = engine.cache();
    const SequenceId id = engine.begin(kAll);
    const SequenceId empty = cache.create_sequence().value();
    engine.lose_step(id, engine.rest(id, kAll, 33));
    engine.take_failure();
    switch (look) {
      case 0: ASSERT_OK(cache.begin_step()); break;
      case 1: ASSERT_OK(cache.publish()); break;
      case 2: ASSERT_OK(cache.synchronize()); break;
      case 3: EXPECT_EQ(cache.adopt(empty, kAll)->tokens, 0); break;
      case 4: ASSERT_OK(cache.register_tokens(empty, {})); break;
      default: EXPECT_EQ(engine.serve(kAll), 0); break;
    }
    EXPECT_EQ(cache.tables().match({kAll, 0, {}})->tokens, 0) << "look " << look;
    if (look == 0) {
      ASSERT_OK(cache.end_step());
    }
    engine.step(id, engine.rest(id, kAll, 64));
    EXPECT_EQ(engine.serve(kAll), 0);
  }
}

TEST_P(KvCacheLost, AFailureThatNobodyTookIsSeenWhenTheStepHasEnded) {
  LostEngine engine(GetParam());
  const SequenceId id = engine.begin(kAll);
  engine.lose_step(id, engine.rest(id, kAll, 33));
  for (int i = 0; i < 3; ++i) {  // the third waits for the first
    ASSERT_OK(engine.cache().begin_step());
    ASSERT_OK(engine.cache().end_step());
  }
  EXPECT_EQ(engine.cache().tables().match({kAll, 0, {}})->tokens, 0);
  engine.take_failure();
  EXPECT_EQ(engine.serve(kAll), 0);
}

TEST_P(KvCacheLost, AFailureTakenInsideTheStepIsSeen) {
  for (const bool by_cache : {true, false}) {
    LostEngine engine(GetParam());
    const SequenceId id = engine.begin(kAll);
    engine.begin_step(id, engine.rest(id, kAll, 33));
    engine.break_stream();
    engine.write();
    if (by_cache) {
      EXPECT_FAILS(engine.cache().synchronize(), io_error, file);
    } else {
      engine.take_failure();
    }
    ASSERT_OK(engine.cache().end_step());
    EXPECT_EQ(engine.serve(kAll), 0);
    engine.step(id, engine.rest(id, kAll, 64));
    EXPECT_EQ(engine.serve(kAll), 0);
  }
}

/// The engine takes the failure of the first step and one of its own, or ends the stream.
TEST_P(KvCacheLost, AFailureThatIsForgottenIsSeen) {
  for (const bool destroys : {true, false}) {
    LostEngine engine(GetParam());
    Device& device = engine.device();
    const StreamId stream = device.create_stream().value();
    const StreamId home = engine.cache().stream();
    const SequenceId id = engine.begin(kAll);
    ASSERT_OK(engine.cache().begin_step({.stream = stream}));
    ASSERT_OK(engine.cache().end_step());
    engine.lose_step(id, engine.rest(id, kAll, 33));
    if (destroys) {
      EXPECT_EQ(device.destroy_stream(stream).code, kFailure.code);
    } else {
      engine.take_failure();
      engine.break_stream();
      engine.take_failure();
    }
    EXPECT_EQ(engine.serve(kAll), 0);
    ASSERT_OK(engine.cache().begin_step({.stream = home}));
    ASSERT_OK(engine.cache().end_step());
    engine.step(id, engine.rest(id, kAll, 64));
    EXPECT_EQ(engine.serve(kAll), 0);
  }
}

/// Others begin with what a step has published that turns out to be lost.
TEST_P(KvCacheLost, WhatWasMadeOfALostStepIsNeverPublished) {
  LostEngine engine(GetParam());
  const SequenceId id = engine.begin(kAll);
  engine.begin_step(id, engine.rest(id, kAll, 33));
  engine.break_stream();
  engine.write();
  const SequenceId forked = engine.cache().fork(id, 33).value();
  ASSERT_OK(engine.cache().end_step());
  const SequenceId fork_of_ended = engine.cache().fork(id, 20).value();
  const SequenceId hit = engine.begin(kAll);  // with streams of threads it may have been found
  EXPECT_FAILS(engine.cache().synchronize(), io_error, file);
  for (const SequenceId one : {forked, fork_of_ended, hit}) {
    const bool was_found = one != hit || engine.length(one) > 0;
    engine.step(one, engine.rest(one, kAll, 64));
    engine.tell(one, kAll);
    EXPECT_EQ(engine.serve(kAll), was_found ? 0 : 48);
  }
}

TEST_P(KvCacheLost, ACopyOnWriteOfALostStepIsNeverPublished) {
  LostEngine engine(GetParam());
  const SequenceId parent = engine.begin(kAll);
  engine.step(parent, engine.rest(parent, kAll, 20));
  ASSERT_OK(engine.cache().synchronize());
  const SequenceId other = engine.cache().fork(parent, 20).value();
  engine.break_stream();
  engine.step(other, engine.rest(other, kAll, 21));
  EXPECT_FAILS(engine.cache().synchronize(), io_error, file);
  ASSERT_OK(engine.cache().truncate(other, 20));
  engine.step(other, engine.rest(other, kAll, 64));
  engine.tell(other, kAll);
  EXPECT_EQ(engine.serve(kAll), 16) << "the tokens before were to be copied";
  ASSERT_OK(engine.cache().truncate(other, 16));
  engine.step(other, engine.rest(other, kAll, 64));
  EXPECT_EQ(engine.serve(kAll), 48);
}

/// A step gives its block up for one that an earlier step was to write.
TEST_P(KvCacheLost, ABlockSharedWithALostStepIsNeverPublished) {
  LostEngine engine(GetParam(), DuplicateRule::share);
  const SequenceId a = engine.begin(kAll);
  const SequenceId b = engine.begin(kAll);
  engine.step(b, engine.rest(b, kAll, 15));
  engine.lose_step(a, engine.rest(a, kAll, 16));
  engine.step(b, engine.rest(b, kAll, 16));
  EXPECT_FAILS(engine.cache().synchronize(), io_error, file);
  ASSERT_OK(engine.cache().truncate(b, 15));
  engine.step(b, engine.rest(b, kAll, 64));
  engine.tell(b, kAll);
  const std::int64_t found = engine.serve(kAll);
  EXPECT_TRUE(found == 0 || (found == 48 && GetParam() != HostStreams::manual)) << found;
}

TEST_P(KvCacheLost, AnAbortedStepLeavesNoDoubt) {
  LostEngine engine(GetParam());
  const SequenceId id = engine.begin(kAll);
  engine.step(id, engine.rest(id, kAll, 10));
  engine.begin_step(id, engine.rest(id, kAll, 33));
  engine.break_stream();
  engine.write();
  engine.take_failure();
  ASSERT_OK(engine.cache().abort_step());
  engine.step(id, engine.rest(id, kAll, 64));
  EXPECT_EQ(engine.serve(kAll), 48);
}

}  // namespace
}  // namespace kvarena
