#include "kvarena/base/status.hpp"
#include "kvarena/base/ids.hpp"
#include "kvarena/base/log.hpp"
#include "kvarena/base/result.hpp"

#include <gtest/gtest.h>

#include <iostream>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <unordered_set>

namespace kvarena {
namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Status, IsSmallAndOkByDefault) {
  static_assert(sizeof(Status) == 32 && std::is_trivially_copyable_v<Status>);
  const Status status;
  EXPECT_TRUE(status.is_ok());
  EXPECT_TRUE(static_cast<bool>(status));
  EXPECT_EQ(describe(status), "ok");
  EXPECT_EQ(status, Status{});
}

TEST(Status, EveryCodeHasItsOwnNameAndText) {
  std::set<std::string> names;
  for (std::uint16_t raw = 0; raw <= static_cast<std::uint16_t>(StatusCode::residency_violated);
       ++raw) {
    const auto code = static_cast<StatusCode>(raw);
    EXPECT_TRUE(names.insert(std::string(name_of(code))).second) << raw;
    EXPECT_FALSE(describe(Status{.code = code, .resource = Resource::block}).empty());
  }
  EXPECT_EQ(name_of(StatusCode::exhausted), "exhausted");
  EXPECT_EQ(name_of(StatusCode::duplicate_argument), "duplicate_argument");
  EXPECT_EQ(name_of(StatusCode::verification_failed), "verification_failed");
  EXPECT_EQ(name_of(StatusCode::residency_violated), "residency_violated");
}

TEST(Status, EveryResourceHasItsOwnName) {
  std::set<std::string> names;
  for (std::uint16_t raw = 0; raw <= static_cast<std::uint16_t>(Resource::memory_check); ++raw) {
    EXPECT_TRUE(names.insert(std::string(name_of(static_cast<Resource>(raw)))).second) << raw;
  }
  EXPECT_EQ(name_of(Resource::num_kv_heads), "num_kv_heads");
  EXPECT_EQ(name_of(Resource::device), "device");
  EXPECT_EQ(name_of(Resource::step), "step");
}

TEST(Status, EveryOptionHasItsOwnName) {
  std::set<std::string> names;
  for (std::uint16_t raw = 0; raw <= static_cast<std::uint16_t>(kLastOption); ++raw) {
    EXPECT_TRUE(names.insert(std::string(name_of(static_cast<Option>(raw)))).second) << raw;
  }
  EXPECT_EQ(name_of(Option::steps_in_flight), "steps_in_flight");
  EXPECT_EQ(name_of(Option::max_table_pages), "max_table_pages");
  EXPECT_EQ(name_of(kLastOption), "checkpoint_every_tokens");
}

TEST(Status, AnOptionIsNamedAsItIsWritten) {
  EXPECT_EQ(describe(invalid_option(Option::steps_in_flight, 17, 1, 16)),
            "invalid steps_in_flight: got 17, expected 1 to 16");
  EXPECT_EQ(describe(unsupported_option(Option::dtype, 2)),
            "unsupported dtype: bf16 is valid but not available here");
  EXPECT_EQ(describe(unsupported(Resource::dtype, kNoDType)),
            "unsupported dtype: a storage format without a dtype is valid but not available here");
  EXPECT_EQ(describe(not_found(Resource::block, ~std::uint64_t{0})),
            "block -1 not found: it was never created here or is destroyed");
  EXPECT_EQ(describe(exhausted(Resource::table_page, 17, 3, 0, Option::max_table_pages)),
            "out of table pages: 17 required, 3 available; raise max_table_pages");
}

TEST(Status, ACallPastALimitNamesTheLimitAndIsNoExhaustion) {
  const Status s = limit_exceeded(Resource::num_tokens, 600, 512, Option::max_step_tokens);
  EXPECT_EQ(s.code, StatusCode::limit_exceeded);
  EXPECT_EQ(
      describe(s),
      "600 tokens in one call, max_step_tokens permits 512; make the call smaller or raise it");
  EXPECT_EQ(describe(limit_exceeded(Resource::workspace, 8192, 4096, Option::none)),
            "the workspace has 4096 bytes, the call needs 8192");
  EXPECT_EQ(describe(limit_exceeded(Resource::step, 9, 8, Option::none)),
            "9 calls in one step, which may have 8; end it and begin another");
}

TEST(Status, WhatIsExpectedIsMoreThanARangeWhereItIs) {
  EXPECT_EQ(describe(invalid_option(Option::num_q_heads, 3, 2, 4096)),
            "invalid num_q_heads: got 3, expected a multiple of the 2 KV heads, up to 4096");
  EXPECT_EQ(describe(invalid_argument(Resource::num_q_heads, 0, 1, 4096)),
            "invalid num_q_heads: got 0, expected 1 to 4096");
  EXPECT_EQ(describe(invalid_option(Option::size, 0, 1, 1)),
            "invalid size: got none, expected exactly one of num_blocks, budget_bytes and "
            "all_free_but_bytes");
  EXPECT_TRUE(contains(describe(invalid_option(Option::size, 2, 1, 1)), "got 2, expected exactly"));
}

// A range that contains the refused value would say nothing.
TEST(Status, RulesOfGroupsAreSentences) {
  EXPECT_EQ(describe(invalid_option(Option::limit_tokens, 40, 32, 48)),
            "invalid limit_tokens: got 40, expected 32 or 48");
  EXPECT_EQ(describe(invalid_option(Option::limit_tokens, 0, 1, 64)),
            "invalid limit_tokens: got 0, expected 1 to 64");
  EXPECT_EQ(describe(invalid_option(Option::limit_tokens, 7, 0, 0)),
            "invalid limit_tokens: got 7, expected 0: layers of this kind have none");
  EXPECT_EQ(describe(invalid_option(Option::checkpoint_every_tokens, 24, 16, 32)),
            "invalid checkpoint_every_tokens: got 24, expected 16 or 32");
  EXPECT_EQ(describe(invalid_option(Option::index_dim, 6, 4, 8)),
            "invalid index_dim: got 6, expected 4 or 8");
  EXPECT_EQ(describe(invalid_option(Option::index_dim, 132, 0, 128)),
            "invalid index_dim: got 132, expected 0 to 128");
}

TEST(Status, EnumeratorsThatAreNotAvailableAreNamed) {
  EXPECT_EQ(describe(unsupported_option(Option::kind, 3)),
            "unsupported kind: state is valid but not available here");
  EXPECT_EQ(describe(unsupported_option(Option::order, 1)),
            "unsupported order: layer_major is valid but not available here");
  EXPECT_EQ(describe(unsupported_option(Option::scrub, 2)),
            "unsupported scrub: always is valid but not available here");
  EXPECT_EQ(describe(unsupported_option(Option::duplicates, 1)),
            "unsupported duplicates: share is valid but not available here");
  EXPECT_EQ(describe(unsupported_option(Option::scale, 3)),
            "unsupported scale: per_token_head is valid but not available here");
  EXPECT_EQ(describe(unsupported_option(Option::scrub, 9)),
            "unsupported scrub: 9 is valid but not available here");
}

TEST(Status, OnlyErrorsOfDriverAndSystemShowTheirNumber) {
  Status s = unsupported(Resource::tile_order, 1);
  s.native = 11;  // the number of a check
  EXPECT_FALSE(contains(describe(s), "11")) << describe(s);
  const Status lost{StatusCode::device_error, Resource::stream, Option::none, 719, 3, 0, 0};
  EXPECT_TRUE(contains(describe(lost), "the driver's error 719")) << describe(lost);
}

TEST(Status, NumbersBeyondTheEnumsAreNamedToo) {
  EXPECT_FALSE(name_of(static_cast<StatusCode>(250)).empty());
  EXPECT_FALSE(name_of(static_cast<Option>(9999)).empty());
  EXPECT_FALSE(name_of(static_cast<Resource>(250)).empty());
  EXPECT_FALSE(describe(Status{.code = static_cast<StatusCode>(250)}).empty());
}

TEST(Status, TextsCarryTheNumbers) {
  const std::string invalid = describe(invalid_argument(Resource::block_size, -7, 1, 65536));
  EXPECT_TRUE(contains(invalid, "block_size")) << invalid;
  EXPECT_TRUE(contains(invalid, "-7")) << invalid;
  EXPECT_TRUE(contains(invalid, "65536")) << invalid;
  const std::string out = describe(exhausted(Resource::block, 12, 5));
  EXPECT_TRUE(contains(out, "out of blocks") && contains(out, "12") && contains(out, "5")) << out;
  EXPECT_TRUE(contains(describe(exhausted(Resource::fence_entry, 1, 0)), "fence entries"));
  EXPECT_TRUE(contains(describe(exhausted(Resource::host_memory, 1, 0)), "out of host memory:"));
  EXPECT_TRUE(contains(describe(exhausted(Resource::capacity, 3, 2)), "out of room: 3 required"));
  EXPECT_TRUE(
      contains(describe(failed_precondition(Resource::thread)), "another thread is inside"));
  EXPECT_TRUE(contains(
      describe(Status{.code = StatusCode::stale_handle, .resource = Resource::block, .subject = 7}),
      "block 7 is stale"));
  const std::string vram = describe(insufficient_vram(1000, 10));
  EXPECT_TRUE(contains(vram, "not enough device memory") && contains(vram, "1000")) << vram;
  EXPECT_TRUE(contains(describe(not_found(Resource::sequence, 31)), "sequence 31"));
  EXPECT_TRUE(contains(describe(duplicate_argument(Resource::sequence, 31)), "31"));
  EXPECT_TRUE(contains(describe(unsupported(Resource::dtype, 4)), "dtype: int8 is"));
  EXPECT_TRUE(contains(describe(unsupported(Resource::dtype, 5)), "dtype: latent_fp8 is"));
  EXPECT_TRUE(contains(describe(unsupported(Resource::dtype, 6)), "dtype: 6 is"));
  EXPECT_TRUE(contains(describe(failed_precondition(Resource::holder, 3, 0, 9)), "9"));
  const Status too_long{
      StatusCode::context_length_exceeded, Resource::sequence_length, Option::none, 0, 8, 100, 64};
  EXPECT_TRUE(contains(describe(too_long), "100") && contains(describe(too_long), "64"));
  Status new_one = too_long;
  new_one.subject = 0;  // a sequence that was not made has no number
  EXPECT_TRUE(contains(describe(new_one), "a sequence cannot begin with 100 tokens"));
  const Status io{StatusCode::io_error, Resource::file, Option::none, 2, 0, 0, 0};
  EXPECT_TRUE(contains(describe(io), "errno 2")) << describe(io);
}

TEST(Result, HoldsAValueOrAStatus) {
  const Result<int> good = 5;
  EXPECT_TRUE(good);
  EXPECT_TRUE(good.status().is_ok());
  EXPECT_EQ(*good, 5);
  const Result<int> bad = not_found(Resource::file, 1);
  EXPECT_FALSE(bad.is_ok());
  EXPECT_EQ(bad.status().code, StatusCode::not_found);
}

TEST(Result, MovesWhatItOwns) {
  Result<std::unique_ptr<int>> owner = std::make_unique<int>(3);
  const std::unique_ptr<int> taken = std::move(owner).value();
  EXPECT_EQ(*taken, 3);
  Result<std::string> text = std::string("abc");
  text->push_back('d');
  EXPECT_EQ(text.value(), "abcd");
}

TEST(ResultDeathTest, TheValueOfAFailureAborts) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Result<int> bad = not_found(Resource::file, 1);
  const auto log_to_stderr = [] {
    set_log_sink(
        [](LogLevel /*level*/, std::string_view message) { std::cerr << message << '\n'; });
  };
  const char* const line = "the value of a failed Result is used; there is none: file 1 not found";
  EXPECT_DEATH((log_to_stderr(), static_cast<void>(bad.value())), line);
  EXPECT_DEATH((log_to_stderr(), static_cast<void>(*bad)), line);
}

TEST(Ids, AreStrongComparableAndHashable) {
  static_assert(!std::is_convertible_v<BlockId, SequenceId>);
  static_assert(!std::is_convertible_v<std::int32_t, BlockId>);
  EXPECT_LT(BlockId(3), BlockId(4));
  EXPECT_EQ(kNoBlock.value, -1);
  EXPECT_EQ(SequenceId(), kNoSequence);
  const std::unordered_set<BlockId> set{BlockId(1), BlockId(2), BlockId(1)};
  EXPECT_EQ(set.size(), 2U);
}

}  // namespace
}  // namespace kvarena
