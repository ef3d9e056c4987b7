// Scrubs of a pool with groups where blocks come from elsewhere: encoders that were reserved and
// forked, imports, and steps whose work has failed. A test looks at the bytes of blocks: those of
// strangers are kOld.

#include "kvarena/cache/kv_cache.hpp"
#include "kvarena/device/host_device.hpp"
#include "support/status_matchers.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <set>
#include <span>
#include <vector>

namespace kvarena {
namespace {

constexpr std::byte kOld{0x11};
constexpr std::byte kOwn{0x33};
constexpr std::int32_t kFull = 0;
constexpr std::int32_t kWindow = 1;
constexpr std::int32_t kCross = 2;
constexpr std::int32_t kState = 3;

Status fail(void* /*argument*/) {
  return {StatusCode::device_error, Resource::stream, Option::none, 77, 0, 0, 0};
}

/// A cache of four groups whose blocks have 4, 2, 4 and 1 KiB, all of it kOld at first. The blocks
/// of the window and of the state have padding.
class ScrubbedGroups : public ::testing::TestWithParam<Scrub> {
 protected:
  static Result<KvCache> create_cache(Device& device, Scrub scrub) {
    const GroupLayer layers[] = {{0}, {1}, {2}, {3}};
    const StatePlane plane{.dtype = DType::f32, .num_dims = 1, .shape = {150}};
    const auto layer = [&](std::size_t i) { return std::span(layers).subspan(i, 1); };
    const LayerGroup groups[] = {
        {.layers = layer(0), .num_kv_heads = 1, .head_dim_k = 32, .dtype = DType::f32},
        {.kind = PagedKind::window,
         .layers = layer(1),
         .num_kv_heads = 1,
         .head_dim_k = 9,
         .dtype = DType::f32,
         .limit_tokens = 64},
        {.kind = PagedKind::cross,
         .layers = layer(2),
         .num_kv_heads = 1,
         .head_dim_k = 32,
         .dtype = DType::f32,
         .limit_tokens = 32},
        {.kind = PagedKind::state, .layers = layer(3), .planes = std::span(&plane, 1)}};
    return KvCache::create(device, {.size = {.num_blocks = 24},
                                    .scrub = scrub,
                                    .num_q_heads = 1,
                                    .num_threads = 1,
                                    .groups = groups,
                                    .checkpoint_every_tokens = 0});
  }
  ScrubbedGroups() { fill_pool(kOld); }

  void fill_pool(std::byte byte) {
    std::fill_n(cache_.arena().base(), cache_.arena().bytes(), byte);
  }
  std::int64_t bytes_of(std::int32_t group) const {
    const GroupLayout& layout = *cache_.arena().groups();
    return group == kState ? layout.states()[0].blocks.block_bytes
                           : layout.parts()[static_cast<std::size_t>(group)].blocks.block_bytes;
  }
  std::vector<BlockId> blocks_of(SequenceId id, std::int32_t group) const {
    std::vector<BlockId> blocks(16);
    blocks.resize(static_cast<std::size_t>(cache_.tables().blocks_of(id, blocks, group).value()));
    std::erase(blocks, kNoBlock);
    return blocks;
  }
  std::span<std::byte> bytes_of_page(std::int32_t page) {
    const std::int64_t bytes = cache_.arena().groups()->page_bytes();
    return {cache_.arena().base() + page * bytes, static_cast<std::size_t>(bytes)};
  }
  std::span<std::byte> bytes_of_block(BlockId block) {
    const BlockPlace place = cache_.manager().place_of(block);
    const std::int64_t bytes = bytes_of(place.group);
    return bytes_of_page(place.page)
        .subspan(static_cast<std::size_t>(place.slot * bytes), static_cast<std::size_t>(bytes));
  }
  /// The bytes of a value in a sequence's blocks of a group.
  std::ptrdiff_t count(SequenceId id, std::int32_t group, std::byte value) {
    std::ptrdiff_t found = 0;
    for (const BlockId block : blocks_of(id, group)) {
      found += std::ranges::count(bytes_of_block(block), value);
    }
    return found;
  }
  /// The same in all pages where a sequence has a block.
  std::ptrdiff_t count_in_pages(SequenceId id, std::byte value) {
    std::set<std::int32_t> pages;
    for (const std::int32_t group : {kFull, kWindow, kCross, kState}) {
      for (const BlockId block : blocks_of(id, group)) {
        pages.insert(cache_.manager().place_of(block).page);
      }
    }
    std::ptrdiff_t found = 0;
    for (const std::int32_t page : pages) found += std::ranges::count(bytes_of_page(page), value);
    return found;
  }
  void write_blocks(SequenceId id, std::byte value) {
    for (const std::int32_t group : {kFull, kWindow, kCross, kState}) {
      for (const BlockId block : blocks_of(id, group)) {
        std::ranges::fill(bytes_of_block(block), value);
      }
    }
  }

  void begin(SequenceId id, std::int32_t tokens) {
    ASSERT_OK(cache_.begin_step());
    const AppendDemand demand{id, tokens};
    ASSERT_OK(cache_.append(std::span(&demand, 1)));
  }
  void step(SequenceId id, std::int32_t tokens) {
    begin(id, tokens);
    ASSERT_OK(cache_.end_step());
  }
  /// A step whose zeros, and all other work, the device skips.
  void fail_step(SequenceId id, std::int32_t tokens, bool is_aborted) {
    ASSERT_OK(cache_.begin_step());
    ASSERT_OK(device_->launch_host(&fail, nullptr, cache_.stream()));
    const AppendDemand demand{id, tokens};
    ASSERT_OK(cache_.append(std::span(&demand, 1)));
    ASSERT_OK(is_aborted ? cache_.abort_step() : cache_.end_step());
    EXPECT_FAILS(cache_.synchronize(), device_error, stream);
  }
  /// A step of one token that finds nothing of strangers, and also writes the encoder.
  void write_encoder(SequenceId id) {
    begin(id, 1);
    EXPECT_EQ(count_in_pages(id, kOld), 0);
    const std::vector<float> values(32 * 32, number_of(kOwn));
    ASSERT_OK(cache_.write_cross({.layer = 2,
                                  .sequence = id,
                                  .key = values.data(),
                                  .value = values.data(),
                                  .dtype = DType::f32}));
    ASSERT_OK(cache_.end_step());
  }
  /// An import in pages that full attention had. They are kOld.
  SequenceId import_pages_of_full(std::int64_t tokens = 1) {
    const SequenceId first = create(1);
    step(first, 140);
    for (const BlockId block : blocks_of(first, kFull)) {
      std::ranges::fill(bytes_of_page(cache_.manager().place_of(block).page), kOld);
    }
    EXPECT_OK(cache_.destroy(first));
    return cache_.import_sequence(tokens, {.owner = 2}).value();
  }
  /// Such an import has ended. A step ran before its end, and none behind it.
  void end_import_in_pages_of_full() {
    const SequenceId import = import_pages_of_full(32);
    ASSERT_EQ(blocks_of(import, kWindow).size(), 2U);
    ASSERT_OK(cache_.publish_import(import));
    step(create(4), 1);
    EXPECT_GT(count(import, kWindow, kOld), 0) << "nothing is left to be cleared";
    ended_ = blocks_of(import, kWindow);
    // One of its other pages stays, so that the window's page is the next one for a window.
    ASSERT_OK(cache_.pin(import, {.num_blocks = 1, .group = kFull}));
    ASSERT_OK(cache_.destroy(import));
  }
  static float number_of(std::byte byte) {
    float number = 0;
    std::memset(&number, static_cast<int>(byte), sizeof(number));
    return number;
  }
  SequenceId create(std::uint64_t owner, std::int32_t cross_tokens = 0) {
    return cache_.create_sequence({.owner = owner, .cross_tokens = cross_tokens}).value();
  }

  std::unique_ptr<HostDevice> device_ =
      HostDevice::create({.streams = HostStreams::inline_calls}).value();
  KvCache cache_ = create_cache(*device_, GetParam()).value();
  std::vector<BlockId> ended_;  ///< blocks of the window that an import had
};

INSTANTIATE_TEST_SUITE_P(Modes, ScrubbedGroups,
                         ::testing::Values(Scrub::on_owner_change, Scrub::always),
                         [](const auto& mode) {
                           return mode.param == Scrub::always ? "always" : "on_owner_change";
                         });

// ---- encoders ----------------------------------------------------------------------------------

constexpr std::ptrdiff_t kTwoBlocks = 8192;  // of an encoder with 32 tokens

TEST_P(ScrubbedGroups, AReservedEncoderIsClearedByTheFirstOfItsSequencesThatAppends) {
  for (const bool parent_is_first : {true, false}) {
    const SequenceId parent = create(parent_is_first ? 1 : 3, 32);
    ASSERT_OK(cache_.reserve_capacity(parent, 4));
    const SequenceId child = cache_.fork(parent, 0, {.owner = parent_is_first ? 2U : 4U}).value();
    ASSERT_EQ(count(child, kCross, kOld), kTwoBlocks);
    const SequenceId first = parent_is_first ? parent : child;
    write_encoder(first);
    EXPECT_EQ(count(parent, kCross, kOwn), kTwoBlocks);
    step(parent_is_first ? child : parent, 1);
    EXPECT_EQ(count(parent, kCross, kOwn), kTwoBlocks) << "the other one's append cleared it";
    EXPECT_EQ(count(child, kCross, kOwn), kTwoBlocks);
    ASSERT_OK(cache_.destroy(parent));
    ASSERT_OK(cache_.destroy(child));
    fill_pool(kOld);
  }
}

TEST_P(ScrubbedGroups, AnEncoderFromElsewhereKeepsWhatASharerWrote) {
  const SequenceId first = create(1, 32);
  ASSERT_OK(cache_.reserve_capacity(first, 4));
  const std::vector<BlockId> ids = blocks_of(first, kCross);
  std::vector<Generation> generations;
  for (const BlockId id : ids) generations.push_back(cache_.manager().generation(id));
  std::vector<GroupBlocks> groups(4);
  groups[kCross] = {.ids = ids, .generations = generations};
  const SequenceId second =
      cache_.create_sequence_from(0, groups, {.owner = 2, .cross_tokens = 32}).value();
  write_encoder(second);
  step(first, 1);
  EXPECT_EQ(count(first, kCross, kOwn), kTwoBlocks);
}

TEST_P(ScrubbedGroups, AnEncoderOfAnAbortedStepIsClearedAgainInItsNewBlocks) {
  const SequenceId id = create(1, 32);
  begin(id, 1);
  ASSERT_OK(cache_.abort_step());
  const SequenceId other = create(2, 32);
  step(other, 1);
  write_blocks(other, kOld);
  ASSERT_OK(cache_.destroy(other));
  begin(id, 1);
  EXPECT_EQ(count(id, kCross, kOld), 0);
  ASSERT_OK(cache_.end_step());
}

TEST_P(ScrubbedGroups, WhatIsBehindAnEncodersTokensIsClearedForItsOwnerToo) {
  const SequenceId first = create(1, 32);
  step(first, 1);
  write_blocks(first, kOld);
  ASSERT_OK(cache_.destroy(first));
  const SequenceId second = create(1, 20);
  step(second, 1);
  const SequenceId child = cache_.fork(second, 1, {.owner = 2}).value();
  step(child, 1);
  ASSERT_OK(cache_.destroy(second));
  const std::span<const std::byte> last = bytes_of_block(blocks_of(child, kCross).back());
  EXPECT_EQ(std::ranges::count(last, kOld), 0) << "tokens of a sequence that it does not know";
}

// ---- imports -----------------------------------------------------------------------------------

/// A page that an import takes over is cleared behind the import by the next step.
TEST_P(ScrubbedGroups, NothingOfAnotherGroupIsLeftInThePageOfAnImport) {
  const SequenceId import = import_pages_of_full();
  ASSERT_GT(count(import, kWindow, kOld) + count(import, kState, kOld), 0)
      << "no page went to another group";
  write_blocks(import, kOwn);
  const auto own = [&] {
    return count(import, kFull, kOwn) + count(import, kWindow, kOwn) + count(import, kState, kOwn);
  };
  const std::ptrdiff_t written = own();
  ASSERT_OK(cache_.publish_import(import));
  const SequenceId other = create(3);
  begin(other, 1);
  EXPECT_EQ(count_in_pages(import, kOld), 0);
  EXPECT_EQ(count_in_pages(other, kOld), 0);
  EXPECT_EQ(own(), written) << "a part of the import was cleared";
  ASSERT_OK(cache_.end_step());
  begin(import, 32);
  EXPECT_EQ(count_in_pages(import, kOld), 0);
  ASSERT_OK(cache_.end_step());
}

/// The import's own blocks keep what was there, until the page is free and used again.
TEST_P(ScrubbedGroups, APageThatAnImportTookIsClearedWhenItIsUsedAgain) {
  const SequenceId import = import_pages_of_full();
  ASSERT_GT(count(import, kWindow, kOld), 0) << "no page went to another group";
  const std::vector<BlockId> blocks = blocks_of(import, kWindow);
  ASSERT_OK(cache_.publish_import(import));
  step(import, 1);
  step(create(4), 1);
  EXPECT_GT(count(import, kWindow, kOld), 0) << "nothing is left to be cleared";
  ASSERT_OK(cache_.destroy(import));
  const SequenceId other = create(2);
  begin(other, 1);
  EXPECT_EQ(blocks_of(other, kWindow), blocks) << "another page";
  EXPECT_EQ(count_in_pages(other, kOld), 0);
  ASSERT_OK(cache_.end_step());
}

TEST_P(ScrubbedGroups, APageThatAnImportTookIsClearedAlsoWhenItWasReserved) {
  end_import_in_pages_of_full();
  const SequenceId other = create(3);
  ASSERT_OK(cache_.reserve_capacity(other, 1));
  ASSERT_EQ(blocks_of(other, kWindow).front(), ended_.front()) << "another page";
  begin(other, 1);
  EXPECT_EQ(count_in_pages(other, kOld), 0);
  ASSERT_OK(cache_.end_step());
}

TEST_P(ScrubbedGroups, APageThatAnImportTookIsClearedBehindAnotherImport) {
  end_import_in_pages_of_full();
  const SequenceId import = cache_.import_sequence(1, {.owner = 3}).value();
  ASSERT_EQ(blocks_of(import, kWindow).front(), ended_.front()) << "another page";
  write_blocks(import, kOwn);
  ASSERT_OK(cache_.publish_import(import));
  step(create(5), 1);
  EXPECT_EQ(count_in_pages(import, kOld), 0);
}

TEST_P(ScrubbedGroups, ThePageOfAnImportIsClearedOnceTheStepIsGivenUp) {
  const SequenceId import = cache_.import_sequence(1, {.owner = 2}).value();
  write_blocks(import, kOwn);
  ASSERT_OK(cache_.publish_import(import));
  begin(import, 1);
  ASSERT_OK(cache_.abort_step());
  begin(import, 1);
  EXPECT_EQ(count_in_pages(import, kOld), 0);
  ASSERT_OK(cache_.end_step());
}

// ---- steps that fail ---------------------------------------------------------------------------

TEST_P(ScrubbedGroups, ZerosOfAFailedStepAreMadeAgain) {
  for (const bool is_aborted : {false, true}) {
    const SequenceId id = create(1, 32);
    fail_step(id, 20, is_aborted);
    ASSERT_OK(cache_.destroy(id));
    const SequenceId next = create(1, 32);  // of the same owner, in the same blocks
    begin(next, 20);
    EXPECT_EQ(count_in_pages(next, kOld), 0);
    ASSERT_OK(cache_.end_step());
    ASSERT_OK(cache_.destroy(next));
    fill_pool(kOld);
  }
}

TEST_P(ScrubbedGroups, AFailedStepClearsNoEncoderThatWasWritten) {
  const SequenceId id = create(1, 20);
  write_encoder(id);
  const std::ptrdiff_t written = count(id, kCross, kOwn);
  fail_step(id, 1, false);
  step(id, 1);
  EXPECT_EQ(count(id, kCross, kOwn), written);
}

}  // namespace
}  // namespace kvarena
