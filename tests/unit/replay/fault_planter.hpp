#pragma once

/// @file
/// `FaultPlanter`: plants one defect in a running replay, the way a bug of an engine, a kernel or
/// the library would, so that tests prove that verification finds it. It goes around the API on
/// purpose.

#include "replay/admission.hpp"
#include "replay/engine_pool.hpp"
#include "replay/instruments.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace kvarena::test {

/// The defect.
enum class Fault : std::uint8_t {
  flip_byte,     ///< one bit of one written K byte changes
  swap_entries,  ///< two entries of one block table change places
  drop_copy,     ///< one copy-on-write copy is not done
  lose_release,  ///< one block of a finished sequence stays referenced
};

/// Plants it once, at the first opportunity after `after` of them.
class FaultPlanter final : public replay::ReplayObserver {
 public:
  explicit FaultPlanter(Fault fault, std::int64_t after = 0) : fault_(fault), skip_(after) {}

  void on_pool(StepPublisher&) override {}
  void on_progress(const replay::ReplayProgress&) override {}
  void on_end(std::unique_ptr<replay::EnginePool>) noexcept override {}

  /// Keeps what drop_copy puts back.
  void before_append(replay::EnginePool& pool, std::span<const AppendDemand> demands) override {
    if (fault_ != Fault::drop_copy || planted_) return;
    const Arena& arena = pool.cache()->arena();
    copier_ = kNoSequence;
    for (const AppendDemand& demand : demands) {
      const auto info = pool.tables().info(demand.sequence);
      if (!info || info->length_tokens % pool.block_size() == 0) continue;
      copied_index_ = info->length_tokens / pool.block_size();
      shared_block_ = *pool.tables().lookup(demand.sequence, copied_index_);
      if (pool.manager().reference_count(shared_block_) < 2) continue;
      copier_ = demand.sequence;
      before_.resize(static_cast<std::size_t>(arena.bytes()));
      copy(pool, before_.data(), arena.base(), arena.bytes());
      return;
    }
  }

  void after_append(replay::EnginePool& pool) override {
    if (fault_ != Fault::drop_copy || copier_ == kNoSequence) return;
    const auto target = pool.tables().lookup(std::exchange(copier_, kNoSequence), copied_index_);
    if (!target || *target == shared_block_ || !is_due()) return;
    planted_ = true;
    // As if the copy had not been done: the target holds what it held before.
    const Arena& arena = pool.cache()->arena();
    const std::int64_t bytes = arena.layout().block_bytes();
    const std::int64_t offset = target->value * bytes;
    copy(pool, arena.base() + offset, before_.data() + offset, bytes);
  }

  void between_steps(replay::EnginePool& pool,
                     std::span<const std::unique_ptr<replay::Job>> running) override {
    if (fault_ != Fault::flip_byte && fault_ != Fault::swap_entries) return;
    for (const auto& job : running) {
      if (job->length == 0 || !is_due()) continue;
      planted_ = fault_ == Fault::flip_byte ? flip_byte(pool, *job) : swap_entries(pool, *job);
      return;
    }
  }

  void before_destroy(replay::EnginePool& pool, const replay::Job& job) override {
    if (fault_ != Fault::lose_release || job.length == 0 || !is_due()) return;
    planted_ = true;
    // A fork that nobody ends: its reference to the first block is the release that was lost.
    static_cast<void>(pool.fork(job.sequence, 1));
  }

 private:
  bool is_due() { return !planted_ && skip_-- <= 0; }

  // Between the device's memory and the host's, behind all work and before any other.
  static void copy(replay::EnginePool& pool, void* target, const void* source, std::int64_t bytes) {
    KvCache& cache = *pool.cache();
    static_cast<void>(cache.synchronize());
    static_cast<void>(
        pool.device().copy(target, source, static_cast<std::uint64_t>(bytes), cache.stream()));
    static_cast<void>(cache.synchronize());
  }

  static bool flip_byte(replay::EnginePool& pool, const replay::Job& job) {
    const Arena& arena = pool.cache()->arena();
    const BlockId first = *pool.tables().lookup(job.sequence, 0);
    std::byte* const address = arena.address(first, 0, PlaneKind::key);
    std::byte byte{};
    copy(pool, &byte, address, 1);
    byte ^= std::byte{1};
    copy(pool, address, &byte, 1);
    return true;
  }

  static bool swap_entries(replay::EnginePool& pool, const replay::Job& job) {
    const auto info = pool.tables().info(job.sequence);
    if (!info || info->length_tokens <= pool.block_size()) return false;
    static_cast<void>(pool.cache()->synchronize());
    auto& tables = const_cast<BlockTables&>(pool.tables());
    const auto view = tables.view({&job.sequence, 1});
    if (!view) return false;
    auto* entries = const_cast<BlockId*>(view->tables.entries);
    const std::int64_t page = view->tables.pages == nullptr
                                  ? view->tables.row_offsets[0]
                                  : std::int64_t{view->tables.pages[view->tables.row_offsets[0]]}
                                        << view->tables.page_shift;
    std::swap(entries[page], entries[page + 1]);
    return true;
  }

  Fault fault_;
  std::int64_t skip_;
  bool planted_ = false;
  // drop_copy: a sequence about to copy its last block, and the pool before.
  SequenceId copier_ = kNoSequence;
  std::int64_t copied_index_ = 0;
  BlockId shared_block_ = kNoBlock;
  std::vector<std::byte> before_;
};

}  // namespace kvarena::test
