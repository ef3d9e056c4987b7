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
  Generation generation(BlockId id) const noexcept {
    return Generation(impl_->pool.record(id).generation);
  }
  /// Whether the block has a live reference.
  bool is_referenced(BlockId id) const noexcept { return impl_->pool.live_references(id) != 0; }
  bool is_unwritten(BlockId id) const noexcept {
    return impl_->pool.content(id) == BlockContent::unwritten;
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
  /// Whether the handle is current and its block is held, with a content that is unwritten.
  bool is_blank(BlockId id, Generation generation) const noexcept {
    return is_held_with(id, generation, 0);
  }
  /// The same, with a content that is being written.
  bool is_being_written(BlockId id, Generation generation) const noexcept {
    return is_held_with(id, generation, BlockPool::kWriting);
  }
  /// Marks a blank block as being written.
  void begin_writing_blank(BlockId id) noexcept {
    impl_->pool.set_content(id, BlockContent::being_written);
    log(id, BlockContent::being_written, StatusCode::ok);
  }
  /// Publishes a block that is being written.
  void publish_written(BlockId id) noexcept {
    ++impl_->claim_serial;
    impl_->pool.set_content(id, BlockContent::published);
    log(id, BlockContent::published, StatusCode::ok);
  }
  /// Prepares the cache for these questions.
  void prefetch(BlockId id) const noexcept { __builtin_prefetch(&impl_->pool.record(id)); }
  /// Prepares it for a change of the content.
  void prefetch_change(BlockId id) const noexcept { impl_->pool.prefetch(id); }
  /// Marks a blank block as being written. Returns false for others.
  bool begin_writing(BlockId id, Generation generation) noexcept {
    if (is_blank(id, generation)) [[likely]] {
      begin_writing_blank(id);
      return true;
    }
    if (impl_->pool.content(id) != BlockContent::unwritten) return false;
    const Status refused = impl_->set_content(id, generation, BlockContent::being_written);
    log(id, BlockContent::being_written, refused.code);
    return refused.is_ok();
  }

 private:
  bool is_held_with(BlockId id, Generation generation, std::uint32_t content) const noexcept {
    const BlockPool::Record& r = impl_->pool.record(id);
    return (r.word & (BlockPool::kHeld | BlockPool::kContent)) == (BlockPool::kHeld | content) &&
           r.generation == generation.value;
  }
  void log(BlockId id, BlockContent content, StatusCode outcome) noexcept {
    impl_->append_log({.kind = OperationKind::set_content,
                       .outcome = outcome,
                       .flag = static_cast<std::uint8_t>(content),
                       .ids = std::span(&id, 1)});
  }

  BlockManager::Impl* impl_;
};

}  // namespace kvarena
