// Accounts of salts, figures and events of a KvCache's prefix cache.

#include "unit/cache/prefix_engine.hpp"

#include "kvarena/cache/cache_footprint.hpp"

#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <vector>

namespace kvarena {
namespace {

using test::PrefixEngine;
using test::Prompt;
using test::Tokens;

Prompt prompt_of(std::uint64_t salt, std::int32_t count, std::int32_t first) {
  Tokens list(static_cast<std::size_t>(count));
  std::iota(list.begin(), list.end(), first);
  return {list, salt};
}

/// Eight blocks of 16 tokens.
KvCacheOptions options_with_accounts() {
  KvCacheOptions options = PrefixEngine::options_of(DeviceKind::host, 8);
  options.prefix_cache.max_accounts = 2;
  return options;
}

void serve_and_end(PrefixEngine& engine, const Prompt& prompt) {
  const SequenceId id = engine.serve(prompt);
  ASSERT_NE(id, kNoSequence);
  engine.destroy(id);
  EXPECT_OK(engine.cache().check_invariants());
}

std::int64_t cached(PrefixEngine& engine, const Prompt& prompt) {
  return engine.cache().tables().match({prompt.tokens, prompt.salt, {}})->blocks;
}

TEST(KvCacheSalts, WhatAFloorKeepsIsFoundAfterOthersTookTheRest) {
  PrefixEngine engine(DeviceKind::host, options_with_accounts());
  EXPECT_OK(engine.cache().set_salt_limits(1, {.floor_blocks = 2}));
  serve_and_end(engine, prompt_of(1, 49, 0));                                     // 3 blocks
  for (int i = 1; i < 5; ++i) serve_and_end(engine, prompt_of(2, 81, 1000 * i));  // 5
  EXPECT_EQ(cached(engine, prompt_of(1, 49, 0)), 2);
  const SaltFigures figures = engine.cache().tables().salt_figures(1).value();
  EXPECT_EQ(figures.kept, 2);
  EXPECT_EQ(figures.limits.floor_blocks, 2);
}

TEST(KvCacheSalts, ACapIsNotPassedAndAnAccountEnds) {
  PrefixEngine engine(DeviceKind::host, options_with_accounts());
  EXPECT_OK(engine.cache().set_salt_limits(1, {.cap_blocks = 2}));
  for (int i = 0; i < 3; ++i) serve_and_end(engine, prompt_of(1, 20, 1000 * i));
  EXPECT_EQ(engine.cache().tables().salt_figures(1)->registered, 2);
  EXPECT_EQ(cached(engine, prompt_of(1, 20, 0)), 0);
  const Status refused = engine.cache().close_salt_account(1);
  EXPECT_FAILS(refused, failed_precondition, sequence);
  EXPECT_EQ(engine.cache().describe(refused),
            "salt 1 still has sequences or registered blocks: end its sequences and call "
            "forget_salt first");
  EXPECT_OK(engine.cache().forget_salt(1));
  EXPECT_OK(engine.cache().close_salt_account(1));
  EXPECT_EQ(engine.cache().tables().salt_figures(1).status().code, StatusCode::not_found);
}

TEST(KvCacheSalts, AFloorTakesNoSequencesHolder) {
  KvCacheOptions options = options_with_accounts();
  options.max_sequences = 1;
  options.max_pins = 0;
  PrefixEngine engine(DeviceKind::host, options);
  EXPECT_OK(engine.cache().set_salt_limits(1, {.floor_blocks = 1}));
  EXPECT_OK(engine.cache().set_salt_limits(2, {.floor_blocks = 1}));
  EXPECT_NE(engine.begin(prompt_of(1, 20, 0)), kNoSequence);
}

TEST(KvCacheSalts, EventsOfAStepComeAtItsEnd) {
  struct Heard {
    std::vector<PrefixEventKind> kinds;
    Tokens tokens;
  } heard;
  KvCacheOptions options = options_with_accounts();
  options.prefix_cache.ghost_blocks = 64;
  options.prefix_cache.events = {[](const PrefixEvent& event, void* context) {
                                   auto& its = *static_cast<Heard*>(context);
                                   its.kinds.push_back(event.kind);
                                   its.tokens.insert(its.tokens.end(), event.tokens.begin(),
                                                     event.tokens.end());
                                 },
                                 &heard};
  PrefixEngine engine(DeviceKind::host, options);
  const Prompt prompt = prompt_of(1, 40, 0);
  const SequenceId id = engine.begin(prompt);
  ASSERT_OK(engine.cache().begin_step());
  ASSERT_OK(engine.append({{id, prompt.tokens}}));
  ASSERT_OK(engine.run_layers());
  EXPECT_TRUE(heard.kinds.empty());
  ASSERT_OK(engine.cache().end_step());
  EXPECT_EQ(heard.kinds, std::vector(2, PrefixEventKind::stored));
  EXPECT_EQ(heard.tokens, prompt_of(1, 32, 0).tokens);
  EXPECT_OK(engine.cache().forget_all());
  EXPECT_EQ(heard.kinds.back(), PrefixEventKind::cleared);
  EXPECT_EQ(engine.cache().tables().prefix_use().ghost_references, 2U);
}

TEST(KvCacheSalts, OptionsAreCheckedByCreateAndByTheFootprint) {
  const auto refuses = [](const PrefixOptions& prefix, Option option) {
    KvCacheOptions options = PrefixEngine::options_of(DeviceKind::host, 8);
    options.prefix_cache = prefix;
    const auto device = test::make_device(DeviceKind::host);
    EXPECT_EQ(KvCache::create(*device, options).status().option, option);
    const CacheTarget target{.kind = DeviceKind::host, .num_threads = 1};
    EXPECT_EQ(cache_footprint(options, target).status().option, option);
  };
  refuses({.is_on = true, .max_accounts = -1}, Option::max_accounts);
  refuses({.is_on = true, .max_accounts = PrefixOptions::kMostAccounts + 1}, Option::max_accounts);
  refuses({.is_on = true, .ghost_blocks = 3}, Option::ghost_blocks);
  refuses({.is_on = true, .ghost_blocks = -1}, Option::ghost_blocks);
  refuses({.is_on = true, .ghost_blocks = PrefixOptions::kMostGhostBlocks + 1},
          Option::ghost_blocks);
}

}  // namespace
}  // namespace kvarena
