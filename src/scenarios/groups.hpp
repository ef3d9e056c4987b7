#pragma once

/// @file
/// The parts of the scenario groups: `PageFiller` and `MixedSequences`. They borrow what they are
/// given. One thread at a time.

#include "scenarios/engine.hpp"
#include "scenarios/report.hpp"
#include "scenarios/suite.hpp"
#include "verify/failure.hpp"

#include "kvarena/allocator/block_manager.hpp"
#include "kvarena/cache/kv_cache.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace kvarena::scenarios {

/// Takes the blocks of groups in the memory of a cache that has no sequences, fills each block with
/// a value of its own, and finds blocks whose bytes have changed. Its accounts are a BlockManager
/// of its own, with the pages and groups of the cache.
class PageFiller {
 public:
  /// Returns what BlockManager::create and register_holder return.
  static Result<PageFiller> create(KvCache& cache);

  const BlockManager& manager() const noexcept { return manager_; }

  /// Each group takes a page of blocks in turn, until each of them has been refused one. Fills all
  /// blocks and waits for it. Fails when a call is refused for another reason.
  verify::MaybeFailure take_until_refused(std::span<const std::int32_t> groups);
  /// The last refusal of a group.
  const Status& refusal(std::int32_t group) const noexcept {
    return holdings_[static_cast<std::size_t>(group)].refused;
  }
  /// Returns how many first and last bytes of all blocks have changed. Waits for the device.
  Result<std::int64_t> count_wrong_bytes() const;
  /// Gives all blocks back.
  Status release_all();

 private:
  /// The blocks of one group.
  struct Holding {
    HolderId holder;
    std::vector<BlockId> ids;
    std::vector<Generation> generations;
    Status refused;
  };

  PageFiller(KvCache& cache, BlockManager manager) noexcept
      : cache_(&cache), manager_(std::move(manager)) {}
  Status take_page(std::int32_t group);
  std::byte* address_of(BlockId id) const noexcept;
  std::int64_t bytes_of(BlockId id) const noexcept;

  KvCache* cache_;
  BlockManager manager_;
  std::vector<Holding> holdings_;  // by group
};

/// Sequences in a cache with groups of layers. They come until one is refused; the oldest make room
/// for it; they grow until a step is refused and the newest give way; the others decode, and all
/// end. K and V are not written.
class MixedSequences {
 public:
  static constexpr std::int32_t kMost = 64;  ///< at a time, and in a step

  /// `cache` has room for kMost sequences, and for a block of each in a step.
  MixedSequences(const ScenarioContext& context, ScenarioReport& report, KvCache& cache) noexcept
      : context_(context), report_(report), cache_(cache) {}

  /// Writes figures and checks into the report.
  MaybeFailure run();

 private:
  MaybeFailure admit();
  MaybeFailure make_room(SequenceId refused, std::int64_t tokens);
  MaybeFailure decode();
  MaybeFailure grow_all(std::int32_t tokens);
  MaybeFailure end(SequenceId sequence);
  MaybeFailure end_newest();
  StepOutcome grow(SequenceId sequence, std::int64_t tokens);
  StepOutcome step(std::span<const AppendDemand> demands, Urgency urgency);
  void expect_refused(const Status& refused);
  void expect_whole(const char* what);

  const ScenarioContext& context_;
  ScenarioReport& report_;
  KvCache& cache_;
  std::vector<SequenceId> running_;  // by age
  std::int64_t admitted_ = 0;
  std::int64_t preemptions_ = 0;
  std::int64_t refusals_with_changes_ = 0;
};

}  // namespace kvarena::scenarios
