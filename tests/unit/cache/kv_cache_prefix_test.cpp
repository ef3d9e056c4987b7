// A KvCache whose sequences begin with the blocks of others: equal results, who gets what, and why
// not more.

#include "unit/cache/prefix_engine.hpp"

#include "kvarena/allocator/operation_log.hpp"
#include "kvarena/cache/cache_footprint.hpp"
#include "kvarena/device/host_device.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace kvarena {
namespace {

using test::PrefixEngine;
using test::PrefixReference;
using test::Prompt;
using test::Tokens;

Tokens tokens(std::int32_t count, std::int32_t first = 1) {
  Tokens list(static_cast<std::size_t>(count));
  std::iota(list.begin(), list.end(), first);
  return list;
}

std::vector<BlockId> blocks_of(const KvCache& cache, SequenceId id) {
  std::vector<BlockId> blocks(static_cast<std::size_t>(cache.tables().info(id)->num_blocks));
  EXPECT_OK(cache.tables().blocks_of(id, blocks));
  return blocks;
}

class KvCachePrefix : public ::testing::TestWithParam<DeviceKind> {
 protected:
  void SetUp() override { KVARENA_NEEDS_DEVICE(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Devices, KvCachePrefix, ::testing::ValuesIn(test::device_kinds()),
                         test::kind_name);

TEST_P(KvCachePrefix, ASecondSequenceComputesTheRestAloneWithEqualResults) {
  PrefixEngine engine(GetParam());
  PrefixReference reference(GetParam());
  Prompt first{tokens(50)};
  Prompt second{tokens(40)};
  second.tokens.resize(60, 7);
  const SequenceId a = engine.serve(first);
  const SequenceId b = engine.begin(second);
  EXPECT_EQ(engine.found(b).tokens, 32);
  EXPECT_EQ(engine.found(b).blocks, 2);
  EXPECT_EQ(engine.cache().tables().info(b)->length_tokens, 32);
  ASSERT_OK(engine.compute(b, second));
  EXPECT_EQ(blocks_of(engine.cache(), a)[1], blocks_of(engine.cache(), b)[1]);
  EXPECT_NE(blocks_of(engine.cache(), a)[2], blocks_of(engine.cache(), b)[2]);
  reference.compare(engine, a);
  reference.compare(engine, b);
  EXPECT_EQ(reference.compared(), 50 + 28);
  EXPECT_EQ(engine.cache().tables().prefix_stats().hit_tokens, 32U);
  EXPECT_OK(engine.cache().check_invariants());
}

TEST_P(KvCachePrefix, PreemptedSequencesBeginWhereTheyWere) {
  PrefixEngine engine(GetParam());
  PrefixReference reference(GetParam());
  Prompt prompt{tokens(33)};
  const SequenceId first = engine.serve(prompt);
  for (std::int32_t token = 100; token < 130; ++token) {
    const std::array<std::int32_t, 1> next{token};
    ASSERT_OK(engine.step({{first, next}}));
  }
  prompt = engine.known(first);
  ASSERT_EQ(prompt.tokens.size(), 63U);
  engine.destroy(first);
  EXPECT_EQ(engine.cache().manager().stats().evictable, 3) << "its full blocks stay";
  const SequenceId again = engine.serve(prompt);
  EXPECT_EQ(engine.found(again).tokens, 48) << "also what decode steps have filled";
  reference.compare(engine, again);
  EXPECT_EQ(reference.compared(), 15);
}

TEST_P(KvCachePrefix, OneTokenIsLeftToCompute) {
  PrefixEngine engine(GetParam());
  const Prompt prompt{tokens(32)};
  ASSERT_NE(engine.serve(prompt), kNoSequence);
  const SequenceId id = engine.begin(prompt);
  EXPECT_EQ(engine.found(id).tokens, 16);
  EXPECT_EQ(engine.found(id).stop, PrefixStop::capped);
}

/// Random prompts of a few beginnings, from two tenants with and without an adapter, in a pool that
/// evicts, with chunks, decode steps, forks, cuts, preemption and aborted steps.
TEST_P(KvCachePrefix, RandomEnginesComputeWhatTheyWouldWithoutIt) {
  std::uint64_t hits = 0;
  std::uint64_t evictions = 0;
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    KvCacheOptions options = PrefixEngine::options_of(GetParam(), 18);
    options.prefix_cache.duplicates =
        seed % 2 == 0 ? DuplicateRule::duplicate : DuplicateRule::share;
    options.scrub = seed % 3 == 0 ? Scrub::on_owner_change : Scrub::never;
    options.eviction = kEvictionPolicies[seed % kEvictionPolicies.size()];
    PrefixEngine engine(GetParam(), options);
    PrefixReference reference(GetParam());
    std::mt19937_64 random(seed);
    const auto below = [&](std::uint64_t n) { return random() % n; };
    std::vector<SequenceId> living;
    const auto end_one = [&](std::size_t index) {
      reference.compare(engine, living[index]);
      engine.destroy(living[index]);
      living.erase(living.begin() + static_cast<std::ptrdiff_t>(index));
    };
    for (int round = 0; round < 60; ++round) {
      Prompt prompt;
      for (std::uint64_t i = below(4) + 1; i > 0; --i) {  // parts of equal prompts are equal
        const Tokens part = tokens(static_cast<std::int32_t>(below(2) * 8 + 12),
                                   static_cast<std::int32_t>(100 * below(2)));
        prompt.tokens.insert(prompt.tokens.end(), part.begin(), part.end());
      }
      prompt.salt = below(2);
      prompt.adapter = below(8) == 0 ? 9 : 0;
      SequenceId id = engine.begin(prompt);
      while (id != kNoSequence && !engine.compute(id, prompt, 1 + below(64))) {
        if (living.empty()) {
          engine.destroy(id);
          id = kNoSequence;
        } else {
          end_one(below(living.size()));  // preemption
        }
      }
      if (id != kNoSequence) living.push_back(id);
      if (!living.empty() && below(3) == 0) {
        const SequenceId parent = living[below(living.size())];
        const auto length = static_cast<std::int64_t>(engine.known(parent).tokens.size());
        living.push_back(engine.fork(
            parent, 1 + static_cast<std::int64_t>(below(static_cast<std::uint64_t>(length)))));
      }
      if (!living.empty() && below(3) == 0) {
        const SequenceId cut = living[below(living.size())];
        const auto length = engine.known(cut).tokens.size();
        engine.truncate(cut, static_cast<std::int64_t>(1 + below(length)));
      }
      for (std::uint64_t i = below(12); i > 0 && !living.empty(); --i) {
        const std::array<std::int32_t, 1> next{static_cast<std::int32_t>(below(2))};
        std::vector<PrefixEngine::Row> rows;
        for (const SequenceId each : living) rows.emplace_back(each, next);
        if (below(5) == 0) {
          std::vector<std::size_t> lengths;
          for (const SequenceId each : living) lengths.push_back(engine.known(each).tokens.size());
          ASSERT_OK(engine.cache().begin_step());
          if (engine.append(rows) && below(2) == 0) {
            ASSERT_OK(engine.run_layers());
          }
          ASSERT_OK(engine.cache().abort_step());
          for (std::size_t k = 0; k < lengths.size(); ++k) {
            engine.forget_behind(living[k], lengths[k]);
          }
        }
        if (!engine.step(rows)) end_one(below(living.size()));
      }
      while (living.size() > 4) end_one(below(living.size()));
      ASSERT_OK(engine.cache().check_invariants()) << "seed " << seed << " round " << round;
      if (::testing::Test::HasFatalFailure()) FAIL() << "seed " << seed << " round " << round;
    }
    while (!living.empty()) end_one(0);
    ASSERT_FALSE(::testing::Test::HasFatalFailure()) << "seed " << seed;
    EXPECT_GT(reference.compared(), 500);
    hits += engine.cache().tables().prefix_stats().hit_blocks;
    evictions += engine.cache().manager().stats().evictions;
  }
  EXPECT_GT(hits, 40U);
  EXPECT_GT(evictions, 40U);
}

TEST_P(KvCachePrefix, TenantsAndAdaptersNeverShareABlock) {
  PrefixEngine engine(GetParam());
  PrefixReference reference(GetParam());
  std::set<BlockId> seen;
  for (const std::uint64_t salt : {1U, 2U}) {
    for (const std::uint64_t adapter : {0U, 5U}) {
      const Prompt prompt{tokens(40), salt, adapter};
      const SequenceId id = engine.serve(prompt);
      ASSERT_NE(id, kNoSequence);
      EXPECT_EQ(engine.found(id).blocks, 0);
      for (const BlockId block : blocks_of(engine.cache(), id)) {
        EXPECT_TRUE(seen.insert(block).second);
      }
      reference.compare(engine, id);
    }
  }
  EXPECT_EQ(engine.found(engine.begin({tokens(40), 2, 6})).stop, PrefixStop::other_extra_key);
  EXPECT_EQ(engine.found(engine.begin({tokens(40), 3, 0})).stop, PrefixStop::other_salt);
  EXPECT_EQ(engine.found(engine.begin({tokens(40), 2, 5})).blocks, 2);
}

TEST_P(KvCachePrefix, SaysWhyItCoversNoMore) {
  KvCacheOptions options = PrefixEngine::options_of(GetParam(), 6);
  PrefixEngine engine(GetParam(), options);
  const auto stop_of = [&](const Prompt& prompt) {
    const SequenceId id = engine.begin(prompt);
    const PrefixStop stop = engine.found(id).stop;
    engine.destroy(id);
    return stop;
  };
  EXPECT_EQ(stop_of({tokens(40)}), PrefixStop::never_seen);
  EXPECT_EQ(stop_of({tokens(10)}), PrefixStop::less_than_a_block);
  const SequenceId a = engine.begin({tokens(40)});
  ASSERT_OK(engine.cache().begin_step());
  const Tokens all = tokens(40);
  ASSERT_OK(engine.append({{a, all}}));
  EXPECT_EQ(stop_of({tokens(40)}), PrefixStop::not_yet_published) << "its step has not ended";
  ASSERT_OK(engine.run_layers());
  ASSERT_OK(engine.cache().end_step());
  EXPECT_EQ(stop_of({tokens(40)}), PrefixStop::less_than_a_block) << "two blocks, and eight tokens";
  engine.destroy(a);
  const SequenceId b = engine.serve({tokens(96, 1000)});  // needs all six blocks
  ASSERT_NE(b, kNoSequence);
  EXPECT_EQ(stop_of({tokens(40)}), PrefixStop::evicted);
  EXPECT_EQ(engine.cache().tables().match({.tokens = all})->removal, PrefixRemoval::evicted);
}

TEST_P(KvCachePrefix, AnAbortedStepPublishesNothing) {
  PrefixEngine engine(GetParam());
  const Tokens all = tokens(48);
  const SequenceId a = engine.begin({all});
  ASSERT_OK(engine.cache().begin_step());
  ASSERT_OK(engine.append({{a, all}}));
  ASSERT_OK(engine.run_layers());
  ASSERT_OK(engine.cache().abort_step());
  EXPECT_EQ(engine.cache().tables().prefix_stats().registered, 0);
  EXPECT_EQ(engine.cache().tables().match({.tokens = all})->blocks, 0);
  engine.forget_behind(a, 0);
  ASSERT_OK(engine.step({{a, all}}));
  EXPECT_EQ(engine.cache().tables().match({.tokens = all})->blocks, 2) << "capped";
  EXPECT_OK(engine.cache().check_invariants());
}

/// A fork of tokens that nobody wrote must not make others begin with them.
TEST_P(KvCachePrefix, AForkOfAnAbortedStepPublishesNothing) {
  PrefixEngine engine(GetParam());
  const Tokens all = tokens(48);
  const SequenceId a = engine.begin({all});
  ASSERT_OK(engine.step({{a, std::span(all).first(2)}}));
  ASSERT_OK(engine.cache().begin_step());
  ASSERT_OK(engine.append({{a, std::span(all).subspan(2, 8)}}));
  const SequenceId b = engine.fork(a, 10);
  EXPECT_EQ(engine.cache().tables().info(b)->known_tokens, 2);
  ASSERT_OK(engine.cache().abort_step());
  ASSERT_OK(engine.step({{b, std::span(all).subspan(10)}}));
  EXPECT_EQ(engine.cache().tables().prefix_stats().registrations, 0U);
  EXPECT_EQ(engine.cache().tables().match({.tokens = all})->blocks, 0);
  EXPECT_OK(engine.cache().check_invariants());
}

TEST_P(KvCachePrefix, AStepThatLeavesALayerUnwrittenPublishesNothing) {
  PrefixEngine engine(GetParam());
  const Tokens all = tokens(48);
  const SequenceId a = engine.begin({all});
  ASSERT_OK(engine.cache().begin_step());
  ASSERT_OK(engine.append({{a, all}}));
  ASSERT_OK(engine.write(0));
  ASSERT_OK(engine.cache().end_step());
  EXPECT_EQ(engine.cache().tables().prefix_stats().registered, 0);
  EXPECT_EQ(engine.cache().tables().info(a)->known_tokens, 0);
  const std::array<std::int32_t, 16> more{};
  ASSERT_OK(engine.step({{a, more}}));
  EXPECT_EQ(engine.cache().tables().prefix_stats().registrations, 3U) << "no more of it";
  EXPECT_OK(engine.cache().check_invariants());
  // Nor can the tokens be told later: the cache knows that they were not written.
  EXPECT_OK(engine.cache().register_tokens(a, all));
  EXPECT_EQ(engine.cache().tables().prefix_stats().registered, 0);
  // Cut to what is known, it is computed and registered like any other.
  engine.truncate(a, 0);
  ASSERT_OK(engine.step({{a, all}}));
  EXPECT_EQ(engine.cache().tables().prefix_stats().published, 3);
}

TEST_P(KvCachePrefix, KernelsOfTheEngineWriteWhatIsPublished) {
  PrefixEngine engine(GetParam());
  const Tokens all = tokens(32);
  const SequenceId a = engine.begin({all});
  ASSERT_OK(engine.cache().begin_step());
  ASSERT_OK(engine.append({{a, all}}));  // no write_kv at all
  ASSERT_OK(engine.cache().end_step());
  EXPECT_EQ(engine.cache().tables().prefix_stats().published, 2);
  const Tokens others = tokens(32, 50);
  const SequenceId b = engine.begin({others});
  ASSERT_OK(engine.cache().begin_step());
  ASSERT_OK(engine.append({{b, others}}));
  ASSERT_OK(engine.write(0));
  ASSERT_OK(engine.cache().attend({.layer = 1,
                                   .q = engine.device_input(),
                                   .q_dtype = DType::f32,
                                   .out = engine.device_output(),
                                   .out_dtype = DType::f32,
                                   .kv_is_written = true}));
  ASSERT_OK(engine.cache().end_step());
  EXPECT_EQ(engine.cache().tables().prefix_stats().published, 4);
  ASSERT_OK(engine.cache().synchronize());
}

TEST_P(KvCachePrefix, TokensCanBeToldLater) {
  PrefixEngine engine(GetParam());
  KvCache& cache = engine.cache();
  const Tokens all = tokens(40);
  const SequenceId import = cache.import_sequence(40).value();
  EXPECT_FAILS(cache.register_tokens(import, all), failed_precondition, sequence);
  ASSERT_OK(cache.publish_import(import));
  ASSERT_OK(cache.register_tokens(import, all));
  EXPECT_EQ(cache.tables().match({.tokens = all})->blocks, 2);
  const SequenceId a = engine.begin({tokens(16, 300)});
  ASSERT_OK(cache.begin_step());
  ASSERT_OK(cache.append(std::vector<AppendDemand>{{a, 16}}));
  const Status refused = cache.register_tokens(a, tokens(16, 300));
  EXPECT_FAILS(refused, failed_precondition, step);
  EXPECT_NE(cache.describe(refused).find("register_tokens"), std::string::npos);
  ASSERT_OK(cache.end_step());
  EXPECT_EQ(cache.tables().prefix_stats().published, 2);
  ASSERT_OK(cache.register_tokens(a, tokens(16, 300)));
  EXPECT_EQ(cache.tables().prefix_stats().published, 3);
  EXPECT_FAILS(cache.register_tokens(a, tokens(1)), invalid_argument, num_tokens);
}

TEST_P(KvCachePrefix, AdoptsForgetsAndRetains) {
  KvCacheOptions options = PrefixEngine::options_of(GetParam(), 6);
  options.eviction = EvictionPolicy::priority;
  PrefixEngine engine(GetParam(), options);
  KvCache& cache = engine.cache();
  const Tokens all = tokens(40);
  const SequenceId a = engine.serve({all});
  EXPECT_EQ(cache.set_retention(a, 0, 40, {.priority = 90}).value(), 2) << "the third is not full";
  EXPECT_EQ(cache.set_retention(a, 20, 0, {.priority = 90}).value(), 0);
  EXPECT_FAILS(cache.set_retention(a, 41, 0, {}), invalid_argument, token_index);
  EXPECT_FAILS(cache.set_retention(a, 20, 21, {}), invalid_argument, num_tokens);
  EXPECT_FAILS(cache.set_retention(SequenceId(7), 0, 0, {}), not_found, sequence);
  EXPECT_OK(cache.advance_clock(10));
  engine.destroy(a);
  ASSERT_NE(engine.serve({tokens(64, 500)}), kNoSequence);  // the other four
  EXPECT_EQ(cache.tables().match({.tokens = all})->blocks, 2);
  const SequenceId b = engine.begin({tokens(16, 700)});
  const Result<PrefixMatch> adopted = cache.adopt(b, all);
  ASSERT_OK(adopted);
  EXPECT_EQ(adopted->tokens, 32);
  EXPECT_FAILS(cache.adopt(b, all), failed_precondition, sequence);
  ASSERT_OK(cache.forget(b));
  EXPECT_EQ(cache.tables().match({.tokens = all})->removal, PrefixRemoval::forgotten);
  EXPECT_EQ(cache.tables().prefix_stats().published, 4);
  ASSERT_OK(cache.forget_salt(1));
  EXPECT_EQ(cache.tables().prefix_stats().published, 4);
  ASSERT_OK(cache.forget_salt(0));
  EXPECT_EQ(cache.tables().prefix_stats().published, 0);
  ASSERT_OK(cache.forget_all());
  EXPECT_OK(cache.check_invariants());
}

TEST_P(KvCachePrefix, AfterALostStepNothingIsFound) {
  PrefixEngine engine(GetParam());
  const Tokens all = tokens(40);
  ASSERT_NE(engine.serve({all}), kNoSequence);
  EXPECT_EQ(engine.cache().tables().match({.tokens = all})->blocks, 2);
  if (GetParam() != DeviceKind::host) return;  // cuda_lost_step_test.cpp loses one
  const auto fails = [](void*) { return Status{StatusCode::device_error, Resource::none}; };
  ASSERT_OK(engine.device().launch_host(fails, nullptr, engine.cache().stream()));
  EXPECT_FALSE(engine.cache().synchronize());
  EXPECT_EQ(engine.cache().tables().match({.tokens = all})->blocks, 0);
  EXPECT_OK(engine.cache().check_invariants());
}

TEST(KvCachePrefixOptions, WaitRefusesUntilItIsPublished) {
  KvCacheOptions options = PrefixEngine::options_of(DeviceKind::host, 16);
  options.prefix_cache.duplicates = DuplicateRule::wait;
  PrefixEngine engine(DeviceKind::host, options);
  const Tokens all = tokens(40);
  const SequenceId a = engine.begin({all});
  ASSERT_OK(engine.cache().begin_step());
  ASSERT_OK(engine.append({{a, all}}));
  const Status refused = engine.cache().create_sequence({.tokens = all}).status();
  EXPECT_EQ(refused.code, StatusCode::failed_precondition);
  EXPECT_EQ(refused.resource, Resource::content);
  ASSERT_OK(engine.run_layers());
  ASSERT_OK(engine.cache().end_step());
  EXPECT_EQ(engine.found(engine.begin({all})).blocks, 2);
}

TEST(KvCachePrefixOptions, AreCheckedByCreateAndByTheFootprint) {
  const auto device = HostDevice::create({.capacity_bytes = 1 << 24}).value();
  const CacheTarget target{.kind = DeviceKind::host, .num_threads = 1};
  const auto refuses = [&](const KvCacheOptions& options, StatusCode code, Option option) {
    const Status made = KvCache::create(*device, options).status();
    const Status planned = cache_footprint(options, target).status();
    EXPECT_EQ(made.code, code);
    EXPECT_EQ(made.option, option);
    EXPECT_EQ(planned.code, code);
    EXPECT_EQ(planned.option, option);
  };
  KvCacheOptions options = PrefixEngine::options_of(DeviceKind::host, 8);
  options.prefix_cache.max_extra_keys = 32;
  refuses(options, StatusCode::invalid_argument, Option::max_extra_keys);
  options = PrefixEngine::options_of(DeviceKind::host, 8);
  options.prefix_cache.history_entries = -1;
  refuses(options, StatusCode::invalid_argument, Option::history_entries);
  options = PrefixEngine::options_of(DeviceKind::host, 8);
  options.prefix_cache.duplicates = static_cast<DuplicateRule>(9);
  refuses(options, StatusCode::invalid_argument, Option::duplicates);
  options.prefix_cache = {};
  options.eviction = static_cast<EvictionPolicy>(9);
  refuses(options, StatusCode::invalid_argument, Option::eviction);

  const std::array<GroupLayer, 1> full{{{0}}};
  std::array<LayerGroup, 1> groups{{{PagedKind::full, full, 2, 16, 0, DType::f32}}};
  options = PrefixEngine::options_of(DeviceKind::host, 8);
  options.groups = groups;
  options.prefix_cache.share_parts = true;
  refuses(options, StatusCode::unsupported, Option::share_parts);
  options.prefix_cache.share_parts = false;
  groups[0].kind = PagedKind::window;
  groups[0].limit_tokens = 8;
  refuses(options, StatusCode::unsupported, Option::kind);

  options = PrefixEngine::options_of(DeviceKind::host, 1000);
  const std::int64_t with = cache_footprint(options, target)->host_bytes;
  options.prefix_cache.is_on = false;
  EXPECT_GT(with, cache_footprint(options, target)->host_bytes + 1000 * 60);
}

/// Keeps the operations as text.
class TextLog : public OperationLog {
 public:
  void append(const Operation& operation) override {
    text += std::to_string(static_cast<int>(operation.kind)) + ":";
    for (const BlockId block : operation.ids) text += std::to_string(block.value) + ",";
    text += ";";
  }
  std::string text;
};

/// The calls of an engine that tells no tokens are logged alike and give the same blocks.
TEST(KvCachePrefixOptions, WithoutTokensItChangesNothing) {
  std::array<TextLog, 2> logs;
  for (std::size_t i = 0; i < 2; ++i) {
    KvCacheOptions options = PrefixEngine::options_of(DeviceKind::host, 8);
    options.prefix_cache.is_on = i == 1;
    options.log = &logs[i];
    const auto device = test::make_device(DeviceKind::host);
    KvCache cache = KvCache::create(*device, options).value();
    std::vector<SequenceId> ids;
    for (int n = 0; n < 30; ++n) {
      if (ids.size() < 3) ids.push_back(cache.create_sequence().value());
      ASSERT_OK(cache.begin_step());
      std::vector<AppendDemand> demands;
      for (const SequenceId id : ids) demands.push_back({id, 1 + n % 7});
      while (!cache.append(demands)) {
        ASSERT_OK(cache.destroy(ids.back()));
        ids.pop_back();
        demands.pop_back();
      }
      ASSERT_OK(n % 4 == 0 ? cache.abort_step() : cache.end_step());
    }
  }
  EXPECT_EQ(logs[0].text, logs[1].text);
  EXPECT_GT(logs[0].text.size(), 200U);
}

}  // namespace
}  // namespace kvarena
