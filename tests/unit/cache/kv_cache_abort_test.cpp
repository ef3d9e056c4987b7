// A step that is given up: its sequences have the tokens, blocks and promises of before.

#include "support/status_matchers.hpp"
#include "unit/cache/small_cache.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvarena {
namespace {

using test::SmallCache;
using Demands = std::vector<AppendDemand>;

class KvCacheAbort : public ::testing::TestWithParam<DeviceKind> {
 protected:
  void SetUp() override { KVARENA_NEEDS_DEVICE(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Devices, KvCacheAbort, ::testing::ValuesIn(test::device_kinds()),
                         test::kind_name);

std::vector<BlockId> blocks_of(const KvCache& cache, SequenceId id) {
  std::vector<BlockId> blocks(static_cast<std::size_t>(cache.tables().info(id)->num_blocks));
  EXPECT_OK(cache.tables().blocks_of(id, blocks));
  return blocks;
}

TEST_P(KvCacheAbort, TakesGrowthBack) {
  SmallCache t(GetParam());
  const SequenceId a = t.sequence_of(3);
  const SequenceId b = t.sequence_of(4);
  ASSERT_OK(t.cache.promise_capacity(b, 12));
  const std::vector<BlockId> before = blocks_of(t.cache, a);
  ASSERT_OK(t.cache.begin_step());
  const auto accounts = t.cache.manager().stats();
  ASSERT_OK(t.cache.append(Demands{{a, 6}, {b, 5}}));
  ASSERT_OK(t.cache.abort_step());
  EXPECT_EQ(t.cache.tables().info(a)->length_tokens, 3);
  EXPECT_EQ(t.cache.tables().info(b)->length_tokens, 4);
  EXPECT_EQ(blocks_of(t.cache, a), before);
  EXPECT_EQ(t.cache.manager().stats().free, accounts.free);
  EXPECT_EQ(t.cache.manager().stats().reserved, accounts.reserved) << "the promise is back";
  EXPECT_OK(t.cache.check_invariants());
  EXPECT_EQ(t.cache.snapshot().step, 3U) << "the step has ended";
  EXPECT_TRUE(t.step({{a, 6}, {b, 5}})) << "the same step again";
  EXPECT_OK(t.cache.synchronize());
}

TEST_P(KvCacheAbort, TheNextStepGetsTheSameBlocks) {
  SmallCache once(GetParam());
  SmallCache twice(GetParam());
  for (SmallCache* t : {&once, &twice}) {
    const SequenceId a = t->sequence_of(2);
    const SequenceId b = *t->cache.fork(a, 2);
    const Demands demands{{a, 5}, {b, 7}};
    if (t == &twice) {
      ASSERT_OK(t->cache.begin_step());
      ASSERT_OK(t->cache.append(demands));
      ASSERT_OK(t->cache.abort_step());
    }
    ASSERT_TRUE(t->step(demands));
    t->content[0] = 0;
    EXPECT_EQ(blocks_of(t->cache, a).size(), 2U);
    EXPECT_EQ(blocks_of(t->cache, b).size(), 3U);
    EXPECT_OK(t->cache.check_invariants());
  }
  EXPECT_EQ(once.cache.manager().stats().free, twice.cache.manager().stats().free);
}

TEST_P(KvCacheAbort, OfAStepWithoutAppendIsItsEnd) {
  SmallCache t(GetParam());
  EXPECT_FAILS(t.cache.abort_step(), failed_precondition, step);
  ASSERT_OK(t.cache.begin_step());
  EXPECT_OK(t.cache.abort_step());
  EXPECT_EQ(t.cache.snapshot().step, 1U);
  EXPECT_FAILS(t.cache.end_step(), failed_precondition, step);
}

TEST_P(KvCacheAbort, WhatWasChangedSinceStaysChanged) {
  SmallCache t(GetParam());
  const SequenceId destroyed = t.sequence_of(2);
  const SequenceId cut = t.sequence_of(6);
  const SequenceId copied = *t.cache.fork(destroyed, 2);
  ASSERT_OK(t.cache.begin_step());
  ASSERT_OK(t.cache.append(Demands{{destroyed, 4}, {cut, 4}, {copied, 1}}));
  ASSERT_OK(t.cache.destroy(destroyed));
  ASSERT_OK(t.cache.truncate(cut, 1));
  ASSERT_OK(t.cache.abort_step());
  EXPECT_EQ(t.cache.tables().info(cut)->length_tokens, 1);
  EXPECT_EQ(t.cache.tables().info(copied)->length_tokens, 2);
  EXPECT_FAILS(t.cache.tables().info(destroyed), not_found, sequence);
  EXPECT_EQ(t.cache.manager().stats().referenced, 2);
  EXPECT_OK(t.cache.check_invariants());
}

TEST(KvCacheOrder, EachCallSaysWhereTheStepIsAndWhatComesNext) {
  SmallCache t;
  const SequenceId id = *t.cache.create_sequence();
  const auto says = [&t](const Status& status) { return t.cache.describe(status); };
  EXPECT_EQ(says(t.cache.end_step()), "end_step was called outside a step; begin_step comes first");
  EXPECT_EQ(says(t.cache.append(Demands{{id, 1}}).status()),
            "append was called outside a step; begin_step comes first");
  ASSERT_OK(t.cache.begin_step());
  EXPECT_EQ(says(t.cache.write_kv({})),
            "write_kv was called in step 0 before its append; append, end_step or abort_step comes "
            "next");
  ASSERT_OK(t.cache.append(Demands{{id, 1}}));
  EXPECT_EQ(says(t.cache.begin_step()),
            "begin_step was called in step 0 after its append; write_kv, attend, end_step or "
            "abort_step comes next");
  const Status unwritten = t.cache.attend({.layer = 0, .q = t.buffer(), .out = t.buffer()});
  EXPECT_EQ(says(unwritten),
            "K and V of layer 0 have not been written in this step: call write_kv first, or set "
            "AttendArgs::kv_is_written when kernels of your own wrote them");
}

TEST(KvCacheDescribe, OfARefusedCallSaysWhyItWasRefused) {
  KvCacheOptions options = test::small_options();
  options.watermark_blocks = 2;
  SmallCache t(options);
  const SequenceId s = *t.cache.create_sequence();
  const auto expect_explained = [&t](const Status& refused) {
    EXPECT_EQ(refused.code, StatusCode::exhausted);
    const std::string text = t.cache.describe(refused);
    EXPECT_EQ(text.find("fits"), std::string::npos) << text;
    EXPECT_NE(text.find("out of blocks"), std::string::npos) << text;
    EXPECT_EQ(text.find(" 0 missing"), std::string::npos) << text;
  };
  expect_explained(t.cache.reserve_capacity(s, 7 * 4));
  ASSERT_OK(t.cache.begin_step());
  const AppendDemand too_many{s, 7 * 4};
  expect_explained(t.cache.append(std::span(&too_many, 1), Urgency::admission).status());
  ASSERT_OK(t.cache.end_step());
  const SequenceId p = *t.cache.create_sequence();
  ASSERT_OK(t.cache.promise_capacity(p, 6 * 4));
  expect_explained(t.cache.promise_capacity(s, 3 * 4));
  ASSERT_OK(t.cache.begin_step());
  const Status both = t.cache.append(Demands{{p, 6 * 4}, {s, 2 * 4}}).status();
  EXPECT_OK(both) << "8 of 8";
  ASSERT_OK(t.cache.abort_step());
  ASSERT_OK(t.cache.begin_step());
  expect_explained(t.cache.append(Demands{{p, 5 * 4}, {s, 3 * 4}}).status());
  ASSERT_OK(t.cache.end_step());
  EXPECT_OK(t.cache.reserve_capacity(s, 2 * 4, Urgency::growth));
}

}  // namespace
}  // namespace kvarena
