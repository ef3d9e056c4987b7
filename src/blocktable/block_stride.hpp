#pragma once

/// @file
/// `BlockStride`: whether the blocks of a prefix lie at equal distances, as those that one call has
/// allocated mostly do, and where the next ones lie then.

#include "kvarena/base/ids.hpp"

#include <algorithm>
#include <cstdint>

namespace kvarena {

/// The distances of the blocks that a search has found so far.
class BlockStride {
 public:
  /// The search has found this block.
  void note(BlockId id) noexcept {
    const std::int32_t stride = id.value - last_;
    const bool is_equal = stride == stride_;
    left_ = is_equal ? std::min(left_ + 1, kMost) : std::max(left_ - kBreak, -kMost);
    last_ = id.value;
    stride_ = stride;
    has_changed_ = !is_equal;
  }
  /// Whether it is worthwhile to go from block to block: what lies ahead can be fetched.
  bool is_even() const noexcept { return left_ >= 0; }
  /// Whether the newest block was not where it was expected.
  bool has_changed() const noexcept { return has_changed_; }
  /// The block that lies `count` blocks ahead, if all are at the same distance. It may not exist.
  std::int64_t ahead(std::int64_t count) const noexcept { return last_ + count * stride_; }

 private:
  static constexpr std::int32_t kMost = 32;
  static constexpr std::int32_t kBreak = 8;

  std::int32_t last_ = 0;
  std::int32_t stride_ = 0;
  std::int32_t left_ = kMost;
  bool has_changed_ = true;
};

}  // namespace kvarena
