#pragma once

/// @file
/// `ExpiryWheel`: blocks by the time at which they expire. A block lies in a list by the highest
/// digit (of 6 bits) in which its time differs from now, so all blocks of a list expire before
/// those of a list with a higher number. When the clock reaches a list, its blocks go to lists of
/// lower digits: at most 10 times for each block. So every call is O(1), amortised, for any times.
/// Memory is committed when it is first used. Move-only; one thread at a time.

#include "allocator/block_lists.hpp"

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace kvarena {

/// A hierarchical timing wheel. Times are >= 0.
class ExpiryWheel {
 public:
  explicit ExpiryWheel(std::int64_t num_blocks)
      : lists_(kDigits * kValues, static_cast<std::size_t>(num_blocks)),
        times_(static_cast<std::size_t>(num_blocks)) {}

  static constexpr std::int64_t bytes(std::int64_t num_blocks) noexcept {
    return BlockLists::bytes(kDigits * kValues, num_blocks) +
           static_cast<std::int64_t>(sizeof(std::int64_t)) * num_blocks;
  }

  std::int64_t now() const noexcept { return static_cast<std::int64_t>(now_); }
  /// Puts a block in. Requires time > now(), and that the block is not in.
  void insert(BlockId id, std::int64_t time) noexcept {
    times_[index(id)] = static_cast<std::uint64_t>(time);
    const std::size_t list = list_of(id);
    lists_.append(list, id);
    occupied_[list / kValues] |= std::uint64_t{1} << list % kValues;
  }
  /// Takes a block out.
  void remove(BlockId id) noexcept { remove_from(list_of(id), id); }
  /// Sets the clock to `time` >= now(). Calls expire(id) for each block whose time has come, by its
  /// time and then in the order of insertion. It is out of the wheel.
  template <class Expire>
  void advance(std::int64_t time, Expire expire) noexcept {
    const auto target = static_cast<std::uint64_t>(time);
    for (;;) {
      const std::size_t list = first_list();
      if (list == kNoList || begin_of(list) > target) break;
      now_ = begin_of(list);
      for (BlockId id = lists_.front(list); id != kNoBlock; id = lists_.front(list)) {
        remove_from(list, id);
        const std::uint64_t its = times_[index(id)];
        if (its > now_) {
          insert(id, static_cast<std::int64_t>(its));
        } else {
          expire(id);
        }
      }
    }
    now_ = target;
  }

  /// Whether the lists hold `size` blocks, each in its list. O(size).
  bool is_whole(std::int64_t size) const {
    std::int64_t seen = 0;
    bool agrees = true;
    for (std::size_t list = 0; list < kDigits * kValues; ++list) {
      const std::int64_t count = lists_.count(list, size, [&](BlockId id) {
        agrees = agrees && times_[index(id)] > now_ && list_of(id) == list;
      });
      const bool is_marked = (occupied_[list / kValues] >> list % kValues & 1) != 0;
      agrees = agrees && count >= 0 && is_marked == (count > 0);
      seen += count;
    }
    return agrees && seen == size;
  }

 private:
  static constexpr std::size_t kBits = 6;
  static constexpr std::size_t kValues = std::size_t{1} << kBits;
  static constexpr std::size_t kDigits = 11;  // of 64 bits
  static constexpr std::size_t kNoList = kDigits * kValues;

  static std::size_t index(BlockId id) noexcept { return static_cast<std::size_t>(id.value); }
  std::size_t list_of(BlockId id) const noexcept {
    const std::uint64_t time = times_[index(id)];
    const std::size_t digit = (std::bit_width(time ^ now_) - 1U) / kBits;
    return digit * kValues + (time >> digit * kBits) % kValues;
  }
  void remove_from(std::size_t list, BlockId id) noexcept {
    lists_.remove(list, id);
    if (lists_.is_empty(list)) occupied_[list / kValues] &= ~(std::uint64_t{1} << list % kValues);
  }
  /// The list whose blocks expire first. Those of lower digits agree with now in all higher ones.
  std::size_t first_list() const noexcept {
    for (std::size_t digit = 0; digit < kDigits; ++digit) {
      if (occupied_[digit] == 0) continue;
      return digit * kValues + static_cast<std::size_t>(std::countr_zero(occupied_[digit]));
    }
    return kNoList;
  }
  /// The first time of a list.
  std::uint64_t begin_of(std::size_t list) const noexcept {
    const std::size_t shift = list / kValues * kBits;
    const std::uint64_t high = shift + kBits < 64 ? now_ >> (shift + kBits) << (shift + kBits) : 0;
    return high | std::uint64_t{list % kValues} << shift;
  }

  BlockLists lists_;
  LazyArray<std::uint64_t> times_;  // [num_blocks], of blocks in the wheel
  std::array<std::uint64_t, kDigits> occupied_{};
  std::uint64_t now_ = 0;
};

}  // namespace kvarena
