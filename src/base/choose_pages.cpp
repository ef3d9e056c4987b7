#include "kvarena/base/choose_pages.hpp"

#include "base/range_checks.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace kvarena {
namespace {

constexpr std::int64_t kMaxLayers = 4096;
constexpr std::int64_t kMaxBlockSize = 65536;
constexpr std::int64_t kMaxRollback = 65536;
constexpr std::int64_t kMaxLimit = std::int64_t{1} << 40;
constexpr std::int64_t kMaxBlockBytes = std::int64_t{1} << 40;
constexpr std::int64_t kFirstLength = 512;
constexpr std::size_t kMaxLengths = 32;  // 2^9 .. 2^40
constexpr double kUnitsOfExcess = 10000;

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) noexcept {
  return a / b + (a % b != 0 ? 1 : 0);
}
constexpr std::int64_t round_up(std::int64_t value, std::int64_t multiple) noexcept {
  return ceil_div(value, multiple) * multiple;
}
bool has_limit(PagedKind kind) noexcept {
  return kind == PagedKind::window || kind == PagedKind::chunk || kind == PagedKind::cross;
}

bool has_rollback(PagedKind kind) noexcept {
  return kind == PagedKind::window || kind == PagedKind::state;
}

/// The bytes of a block of all layers, or of a whole state.
std::int64_t whole_bytes(const PagedGroup& group) noexcept {
  return group.num_layers * group.layer_bytes;
}

/// The most parts that a group may be cut into.
std::int32_t most_parts(const PagedGroup& group) noexcept {
  return group.kind == PagedKind::state ? group.num_layers
                                        : std::min(group.num_layers, PageChoice::kMaxParts);
}

/// The bytes of a block of one part, so that the ids of several groups are not too many.
std::int64_t part_bytes(const PagedGroup& group, std::int32_t num_parts) noexcept {
  return round_up(whole_bytes(group) / num_parts, PageChoice::kBlockAlignment);
}

/// The pages of `num_blocks` blocks of every part.
std::int64_t pages_of_parts(const PagedGroup& group, std::int32_t num_parts,
                            std::int64_t num_blocks, std::int64_t blocks_per_page) noexcept {
  if (group.kind == PagedKind::state) {
    return pages_of(group.kind, num_blocks * num_parts, blocks_per_page);
  }
  return num_parts * pages_of(group.kind, num_blocks, blocks_per_page);
}

/// The search of choose_pages: for each page size it cuts the groups one after the other, and gives
/// up as soon as it must be worse than the best choice so far, whatever the groups left do.
class Search {
 public:
  Search(std::span<const PagedGroup> groups, std::int64_t max_sequence_tokens) noexcept
      : groups_(groups) {
    for (std::int64_t n = kFirstLength; n < max_sequence_tokens; n *= 2) add_length(n);
    add_length(max_sequence_tokens);
  }

  /// Tries all pages that are multiples of a part of any group. Returns whether there is one.
  bool run() noexcept {
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      for_each_part(groups_[g], [&](std::int32_t parts) {
        const std::int64_t bytes = part_bytes(groups_[g], parts);
        for (std::int64_t times = 1; times <= PageChoice::kMaxBlocksPerPage; ++times) {
          if (bytes > PageChoice::kMaxPageBytes / times) break;
          page_ = times * bytes;
          anchor_ = g;
          anchor_parts_ = parts;
          cut(0, 0, least_of_page());
        }
      });
    }
    return best_excess_ != std::numeric_limits<std::int64_t>::max();
  }

  PageChoice choice() const noexcept {
    PageChoice choice;
    choice.page_bytes = best_page_;
    choice.worst_excess = best_excess_;
    choice.num_groups = groups_.size();
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      PagedBlocks& blocks = choice.groups[g];
      blocks.num_parts = best_parts_[g];
      blocks.block_bytes = part_bytes(groups_[g], best_parts_[g]);
      blocks.blocks_per_page = static_cast<std::int32_t>(best_page_ / blocks.block_bytes);
      blocks.id_stride_bytes =
          blocks.blocks_per_page == 1 ? best_page_ : std::gcd(best_page_, blocks.block_bytes);
    }
    return choice;
  }

 private:
  using ByLength = std::array<double, kMaxLengths>;
  using Parts = std::array<std::int32_t, PageChoice::kMaxGroups>;

  void add_length(std::int64_t tokens) noexcept {
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      blocks_[g][num_lengths_] = peak_blocks(groups_[g], tokens);
      wanted_[num_lengths_] += static_cast<double>(blocks_[g][num_lengths_]) *
                               static_cast<double>(whole_bytes(groups_[g]));
    }
    ++num_lengths_;
  }

  template <class Visit>
  static void for_each_part(const PagedGroup& group, Visit visit) noexcept {
    for (std::int32_t parts = 1; parts <= most_parts(group); ++parts) {
      if (group.num_layers % parts == 0) visit(parts);
    }
  }

  /// The worst excess when a sequence of each length takes `taken` bytes.
  std::int64_t excess(const ByLength& taken) const noexcept {
    double worst = 0;
    for (std::size_t i = 0; i < num_lengths_; ++i) {
      worst = std::max(worst, taken[i] / wanted_[i] - 1);
    }
    return std::llround(worst * kUnitsOfExcess);
  }

  /// Whether a choice with this excess and these parts can replace the best one.
  bool is_better(std::int64_t excess, std::int32_t num_parts) const noexcept {
    if (excess != best_excess_) return excess < best_excess_;
    if (num_parts != best_num_parts_) return num_parts < best_num_parts_;
    return page_ < best_page_;
  }

  /// Computes the bytes of the pages of group `g` in `parts`, by length. Returns whether such
  /// blocks can fill a page.
  bool pages_in_bytes(std::size_t g, std::int32_t parts, ByLength& bytes) const noexcept {
    const std::int64_t per_page = page_ / part_bytes(groups_[g], parts);
    if (per_page < 1 || per_page > PageChoice::kMaxBlocksPerPage) return false;
    for (std::size_t i = 0; i < num_lengths_; ++i) {
      bytes[i] = static_cast<double>(page_) *
                 static_cast<double>(pages_of_parts(groups_[g], parts, blocks_[g][i], per_page));
    }
    return true;
  }

  /// Computes the least bytes that each group can take with this page, and returns their sum.
  ByLength least_of_page() noexcept {
    ByLength sum{};
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      least_[g].fill(std::numeric_limits<double>::infinity());
      for_each_part(groups_[g], [&](std::int32_t parts) {
        ByLength bytes;
        if (!pages_in_bytes(g, parts, bytes)) return;
        for (std::size_t i = 0; i < num_lengths_; ++i) {
          least_[g][i] = std::min(least_[g][i], bytes[i]);
        }
      });
      for (std::size_t i = 0; i < num_lengths_; ++i) sum[i] += least_[g][i];
    }
    return sum;
  }

  /// Cuts group `g` and those after it. `taken` has the bytes of the pages of the groups before it,
  /// and the least bytes of the others.
  void cut(std::size_t g, std::int32_t num_parts, const ByLength& taken) noexcept {
    const auto groups_left = static_cast<std::int32_t>(groups_.size() - g);
    if (!std::isfinite(taken[0])) return;
    const std::int64_t excess_so_far = excess(taken);
    if (!is_better(excess_so_far, num_parts + groups_left)) return;
    if (groups_left == 0) {
      best_excess_ = excess_so_far;
      best_num_parts_ = num_parts;
      best_page_ = page_;
      best_parts_ = parts_;
      return;
    }
    for_each_part(groups_[g], [&](std::int32_t parts) {
      ByLength next;
      if (g == anchor_ && parts != anchor_parts_) return;
      if (!pages_in_bytes(g, parts, next)) return;
      for (std::size_t i = 0; i < num_lengths_; ++i) next[i] += taken[i] - least_[g][i];
      parts_[g] = parts;
      cut(g + 1, num_parts + parts, next);
    });
  }

  std::span<const PagedGroup> groups_;
  std::array<std::array<std::int64_t, kMaxLengths>, PageChoice::kMaxGroups> blocks_{};
  ByLength wanted_{};  // bytes of the blocks of a sequence, by length
  std::array<ByLength, PageChoice::kMaxGroups> least_{};  // bytes that a group takes, in any parts
  std::size_t num_lengths_ = 0;
  std::int64_t page_ = 0;   // the page that is tried,
  std::size_t anchor_ = 0;  // which is a multiple of this group's block
  std::int32_t anchor_parts_ = 0;
  Parts parts_{};
  Parts best_parts_{};
  std::int64_t best_excess_ = std::numeric_limits<std::int64_t>::max();
  std::int32_t best_num_parts_ = 0;
  std::int64_t best_page_ = 0;
};

/// No page fits: the smallest block of the group whose smallest block is largest is too large for a
/// page, or has more than kMaxBlocksPerPage blocks of the group with the smallest blocks.
Status refuse_blocks(std::span<const PagedGroup> groups) noexcept {
  std::int64_t largest = 0;
  std::int64_t smallest = std::numeric_limits<std::int64_t>::max();
  for (const PagedGroup& group : groups) {
    std::int32_t parts = most_parts(group);
    while (group.num_layers % parts != 0) --parts;
    largest = std::max(largest, part_bytes(group, parts));
    smallest = std::min(smallest, part_bytes(group, 1));
  }
  const std::int64_t most = (PageChoice::kMaxBlocksPerPage + 1) * smallest - 1;
  return invalid_argument(Resource::block_bytes, largest, 1,
                          std::min(PageChoice::kMaxPageBytes, most));
}

}  // namespace

std::string_view name_of(PagedKind kind) noexcept {
  switch (kind) {
    case PagedKind::full: return "full";
    case PagedKind::window: return "window";
    case PagedKind::chunk: return "chunk";
    case PagedKind::state: return "state";
    case PagedKind::cross: return "cross";
  }
  return "unknown";
}

Status validate(const PagedGroup& group) noexcept {
  if (Status s = check_enum(Option::kind, group.kind, PagedKind::cross); !s) return s;
  if (Status s = check_option(Option::num_layers, group.num_layers, 1, kMaxLayers); !s) return s;
  if (Status s = check_option(Option::layer_bytes, group.layer_bytes, 1, kMaxBlockBytes); !s) {
    return s;
  }
  if (whole_bytes(group) > kMaxBlockBytes) {
    return invalid_argument(Resource::block_bytes, whole_bytes(group), 1, kMaxBlockBytes);
  }
  if (group.kind != PagedKind::state) {
    if (Status s =
            check_option(Option::block_size_tokens, group.block_size_tokens, 1, kMaxBlockSize);
        !s) {
      return s;
    }
  }
  if (has_limit(group.kind)) {
    if (Status s = check_option(Option::limit_tokens, group.limit_tokens, 1, kMaxLimit); !s) {
      return s;
    }
  }
  if (!has_limit(group.kind)) {
    if (Status s = check_option(Option::limit_tokens, group.limit_tokens, 0, 0); !s) return s;
  }
  const std::int64_t beyond = group.limit_tokens % std::max(group.block_size_tokens, 1);
  if (group.kind == PagedKind::chunk && beyond != 0) {
    const std::int64_t below = group.limit_tokens - beyond;
    const std::int64_t above = below + group.block_size_tokens;
    return invalid_option(Option::limit_tokens, group.limit_tokens, below == 0 ? above : below,
                          above);
  }
  const std::int64_t most_rollback = has_rollback(group.kind) ? kMaxRollback : 0;
  return check_option(Option::rollback_tokens, group.rollback_tokens, 0, most_rollback);
}

Result<PageChoice> choose_pages(std::span<const PagedGroup> groups,
                                std::int64_t max_sequence_tokens) noexcept {
  if (groups.empty() || groups.size() > PageChoice::kMaxGroups) {
    return invalid_argument(Resource::num_groups, static_cast<std::int64_t>(groups.size()), 1,
                            PageChoice::kMaxGroups);
  }
  if (Status s = check_option(Option::max_sequence_tokens, max_sequence_tokens, 1, kMaxLimit); !s) {
    return s;
  }
  for (const PagedGroup& group : groups) {
    if (Status s = validate(group); !s) return s;
  }
  if (groups.size() == 1) {
    PageChoice choice;
    choice.page_bytes = whole_bytes(groups[0]);
    choice.groups[0] = {.block_bytes = choice.page_bytes, .id_stride_bytes = choice.page_bytes};
    choice.num_groups = 1;
    return choice;
  }
  Search search(groups, max_sequence_tokens);
  if (!search.run()) return refuse_blocks(groups);
  return search.choice();
}

std::int64_t pages_of(const PagedGroup& group, const PagedBlocks& blocks,
                      std::int64_t length_tokens) noexcept {
  return pages_of_parts(group, blocks.num_parts, peak_blocks(group, length_tokens),
                        blocks.blocks_per_page);
}

}  // namespace kvarena
