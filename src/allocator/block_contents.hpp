#pragma once

/// @file
/// `BlockContents`: what a prefix cache asks and says about each block of a long prompt. The calls
/// do what BlockManager's generation, content, state and set_content do, and log the same, without
/// a call of the manager for each block. For the thread of the manager, which outlives it.

#include "allocator/block_manager_impl.hpp"
#include "kvarena/allocator/block_manager.hpp"

#include <cstdint>
#include <span>

namespace kvarena {

/// The contents of a manager's blocks. Ids are valid.
class BlockContents {
 public:
  explicit BlockContents(BlockManager& manager) noexcept : impl_(manager.impl_.get()) {}

  /// Whether the handle is current and its block has this content.
  bool has(BlockId id, Generation generation, BlockContent content) const noexcept {
    return impl_->pool.record(id).generation == generation.value &&
           impl_->pool.content(id) == content;
  }
  /// Whether others can find the block: BlockManager::count_published counts it.
  bool can_be_found(BlockId id, Generation generation) const noexcept {
    const BlockPool::Record& r = impl_->pool.record(id);
    // In the word of an evictable block, the bit of kWriting is part of a link.
    const std::uint32_t content =
        (r.word & BlockPool::kHeld) != 0 ? BlockPool::kContent : BlockPool::kPublished;
    return (r.word & (content | BlockPool::kQuarantined)) == BlockPool::kPublished &&
           r.generation == generation.value;
  }
  /// Whether a block that can be found is held, and not evictable.
  bool is_held(BlockId id) const noexcept {
    return (impl_->pool.record(id).word & BlockPool::kHeld) != 0;
  }
  /// Prepares the cache for these questions.
  void prefetch(BlockId id) const noexcept { __builtin_prefetch(&impl_->pool.record(id)); }
  /// Marks a held block whose content is unwritten as being written. Returns false for others.
  bool begin_writing(BlockId id, Generation generation) noexcept {
    if (impl_->pool.content(id) != BlockContent::unwritten) return false;
    return set(id, generation, BlockContent::being_written);
  }
  /// Publishes a held block that is being written.
  void publish(BlockId id, Generation generation) noexcept {
    set(id, generation, BlockContent::published);
  }

 private:
  bool set(BlockId id, Generation generation, BlockContent content) noexcept {
    const BlockPool::Record& r = impl_->pool.record(id);
    StatusCode outcome = StatusCode::ok;
    if (r.generation == generation.value && (r.word & BlockPool::kHeld) != 0) [[likely]] {
      if (content == BlockContent::published) ++impl_->claim_serial;
      impl_->pool.set_content(id, content);
    } else {
      outcome = impl_->set_content(id, generation, content).code;
    }
    impl_->append_log({.kind = OperationKind::set_content,
                       .outcome = outcome,
                       .flag = static_cast<std::uint8_t>(content),
                       .ids = std::span(&id, 1)});
    return outcome == StatusCode::ok;
  }

  BlockManager::Impl* impl_;
};

}  // namespace kvarena
