#include "cache/page_writers.hpp"

#include "cache/scrub_params.hpp"

#include <algorithm>
#include <limits>

namespace kvarena {
namespace {

/// Of a listed page: nothing is to be cleared.
constexpr std::int32_t kNoRest = std::numeric_limits<std::int32_t>::max();

std::size_t index(std::int64_t page) noexcept { return static_cast<std::size_t>(page); }

}  // namespace

PageWriters::PageWriters(const PagePool& pages, std::int64_t page_bytes)
    : pages_(&pages),
      page_units_(page_bytes % kPageUnit == 0 ? page_bytes / kPageUnit : 0),
      parts_(index(pages.num_pages())),
      rests_(index(pages.num_pages())),
      with_rest_(index(pages.num_pages())),
      uncleared_(index(pages.num_pages())),
      turns_(index(pages.num_pages())),
      steps_(index(pages.num_pages())),
      doubtful_(index(pages.num_pages())),
      clears_(index(pages.num_pages())) {}

std::int64_t PageWriters::host_bytes(std::int64_t num_pages) noexcept {
  constexpr std::size_t kPageBytes =
      sizeof(std::uint16_t) + 6 * sizeof(std::int32_t) + sizeof(kernels::BlockScrub);
  return num_pages * static_cast<std::int64_t>(kPageBytes);
}

void PageWriters::begin_step() noexcept {
  num_clears_ = 0;
  ++step_;
}

bool PageWriters::change_part(std::int64_t page, std::int32_t part, std::uint16_t bits) noexcept {
  std::uint16_t& its = parts_[index(page)];
  if ((its & ~(kIsListed | kIsUncleared)) == part + 1) return false;
  its = static_cast<std::uint16_t>((its & kIsListed) | bits | (part + 1));
  return true;
}

bool PageWriters::take(std::int64_t page, std::int32_t part) noexcept {
  if (!change_part(page, part, 0)) return false;
  if (rests_[index(page)] != 0) rests_[index(page)] = kNoRest;
  steps_[index(page)] = step_;
  const BlockId id(static_cast<std::int32_t>(page));
  clears_[num_clears_++] = {id, id, 0};
  return true;
}

/// A page that is cleared as a whole has no rest any more.
std::span<const kernels::BlockScrub> PageWriters::end_step() noexcept {
  for (std::size_t i = 0; i < num_with_rest_; ++i) {
    const std::int32_t page = with_rest_[i];
    const std::int32_t kept = std::exchange(rests_[index(page)], 0);
    if (kept >= page_units_) continue;
    steps_[index(page)] = step_;
    clears_[num_clears_++] = {BlockId(page), BlockId(page), kept};
  }
  num_with_rest_ = 0;
  return {clears_.data(), num_clears_};
}

/// Nobody holds a block of a page that was to be cleared as a whole.
void PageWriters::forget() noexcept {
  for (std::size_t i = 0; i < num_clears_; ++i) {
    const std::int32_t page = clears_[i].target.value;
    if (clears_[i].kept_tokens == 0) {
      clear_part(page);
    } else {
      rests_[index(page)] = clears_[i].kept_tokens;
      with_rest_[num_with_rest_++] = page;
    }
  }
  num_clears_ = 0;
}

/// The blocks of imports in a page lie in front, because the lowest slot of a page is taken first.
bool PageWriters::note_import(std::int64_t page, std::int32_t part, std::int64_t end) noexcept {
  const bool is_others = change_part(page, part, kIsUncleared);
  if (is_others) turns_[index(page)] = pages_->page(static_cast<std::int32_t>(page)).turns;
  if (is_others && (parts_[index(page)] & kIsListed) == 0) {
    parts_[index(page)] |= kIsListed;
    uncleared_[num_uncleared_++] = static_cast<std::int32_t>(page);
  }
  std::int32_t& rest = rests_[index(page)];
  std::int64_t units = end / kPageUnit;
  if (units >= page_units_) units = kNoRest;
  if (rest == 0) {
    if (!is_others || units == kNoRest) return is_others;
    with_rest_[num_with_rest_++] = static_cast<std::int32_t>(page);
  }
  rest = is_others ? static_cast<std::int32_t>(units)
                   : std::max(rest, static_cast<std::int32_t>(units));
  return is_others;
}

void PageWriters::distrust() noexcept {
  note_freed();
  num_doubtful_ = 0;
  for (std::size_t page = 0; page < steps_.size(); ++page) {
    if (steps_[page] == 0 || steps_[page] + kDoubtfulSteps < step_) continue;
    doubtful_[num_doubtful_++] = static_cast<std::int32_t>(page);
    turns_[page] = pages_->page(static_cast<std::int32_t>(page)).turns;
  }
}

void PageWriters::note_freed() noexcept {
  std::size_t left = 0;
  for (std::size_t i = 0; i < num_doubtful_; ++i) {
    const std::int32_t page = doubtful_[i];
    if (has_been_free(page)) {
      clear_part(page);
    } else {
      doubtful_[left++] = page;
    }
  }
  num_doubtful_ = left;
  left = 0;
  for (std::size_t i = 0; i < num_uncleared_; ++i) {
    const std::int32_t page = uncleared_[i];
    std::uint16_t& its = parts_[index(page)];
    if (has_been_free(page)) its = 0;
    if ((its & kIsUncleared) != 0) {
      uncleared_[left++] = page;
    } else {
      its &= static_cast<std::uint16_t>(~kIsListed);
    }
  }
  num_uncleared_ = left;
}

}  // namespace kvarena
