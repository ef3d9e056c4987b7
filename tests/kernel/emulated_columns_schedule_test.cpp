// The schedule of the columns kernel, made on the CPU. Judged by what thread blocks would do with
// it: every token of every item is seen once, no partial result is written twice, and who combines
// an item finds its parts in order.

#include "emulation/intrinsics.hpp"

#include "kernel/columns_schedule_case.hpp"
#include "kernels/columns/columns_schedule.cuh"
#include "support/environment.hpp"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace kvarena::test {
namespace {

namespace schedule = kernels::columns_schedule;
using kernels::ColumnsItem;
using kernels::ColumnsSegment;
using kernels::ColumnsWorkspace;

/// A step, its workspace, and the schedule in it.
class MadeSchedule {
 public:
  explicit MadeSchedule(const ColumnsScheduleCase& c)
      : c_(c),
        w_(kernels::columns_workspace(c.limits)),
        shape_(kernels::columns_shape(c.limits)),
        workspace_(w_.bytes) {}

  /// Makes the schedule. Returns what went wrong.
  std::string make(std::uint64_t seed) {
    const kernels::PrefixPlan plan = kernels::prefix_plan(c_.limits);
    AlignedBytes prefixes(plan.bytes);
    *prefixes.at<kernels::PrefixHeader>(plan.header) = {
        static_cast<std::int32_t>(c_.tiles.size()), static_cast<std::int32_t>(c_.members.size())};
    std::ranges::copy(c_.tiles, prefixes.at<kernels::PrefixTile>(plan.tiles));
    std::ranges::copy(c_.members, prefixes.at<kernels::PrefixMember>(plan.members));
    kernels::ColumnsScheduleParams p = c_.params();
    if (p.shared_tokens != nullptr) p.prefixes = prefixes.data();
    p.workspace = workspace_.data();
    p.workspace_bytes = w_.bytes;
    const int entries = schedule::most_entries(p);
    std::vector<int> memory(3 * static_cast<std::size_t>(entries) + 1, -1);
    return run_emulated({.threads = schedule::kThreads, .seed = seed}, [&] {
      schedule::make_schedule(p, w_, plan, shape_, entries, memory.data());
    });
  }

  void check() {
    collect_segments();
    if (::testing::Test::HasFailure()) return;
    const std::vector<ColumnsWork> all = work_of(c_);
    std::size_t found = 0;
    for (const ColumnsWork& work : all) {
      const auto its = segments_.find(work.key());
      ASSERT_NE(its, segments_.end()) << "an item is left out";
      check_item(work, its->second);
      if (::testing::Test::HasFatalFailure()) return;
      ++found;
    }
    EXPECT_EQ(found, segments_.size()) << "segments of no item";
    check_counters();
    if (!c_.fixed_parts && c_.tiles.empty()) check_balance();
  }

 private:
  bool is_latent() const { return c_.limits.head_dim == kernels::kLatentDim; }

  /// Follows the list of each thread block.
  void collect_segments() {
    const auto* const segments = workspace_.at<ColumnsSegment>(w_.segments);
    const std::int64_t room =
        (w_.bytes - w_.segments) / static_cast<std::int64_t>(sizeof(ColumnsSegment));
    std::vector<bool> is_used(static_cast<std::size_t>(room));
    for (std::int32_t block = 0; block < w_.blocks; ++block) {
      std::int64_t slabs = 0;
      for (std::int64_t at = block; at >= 0; at = segments[at].next) {
        ASSERT_LT(at, room);
        ASSERT_FALSE(is_used[static_cast<std::size_t>(at)]) << "two lists have segment " << at;
        is_used[static_cast<std::size_t>(at)] = true;
        const ColumnsSegment& s = segments[at];
        if (s.slabs == 0) {
          ASSERT_EQ(at, block);
          ASSERT_EQ(s.next, -1);
          break;
        }
        ASSERT_GT(s.slabs, 0);
        slabs += s.slabs;
        segments_[{s.q_len == 0, s.q_begin, s.head, s.column_group}].push_back(s);
      }
      most_slabs_ = std::max(most_slabs_, slabs);
      all_slabs_ += slabs;
    }
  }

  void check_item(const ColumnsWork& work, std::vector<ColumnsSegment>& parts) {
    std::ranges::sort(parts, {}, &ColumnsSegment::first_token);
    const std::int32_t slab = shape_.slab_tokens;
    const std::int32_t slabs = std::max(1, (work.seq_len - work.first_token + slab - 1) / slab);
    std::int32_t token = work.first_token;
    for (const ColumnsSegment& part : parts) {
      ASSERT_EQ(part.first_token, token) << "tokens are left out or seen twice";
      ASSERT_EQ(part.table_row, work.table_row);
      ASSERT_EQ(part.q_len, work.q_len);
      ASSERT_EQ(part.seq_len, work.seq_len);
      ASSERT_EQ(part.columns, work.columns);
      token += part.slabs * slab;
    }
    ASSERT_EQ(token, work.first_token + slabs * slab);
    if (work.is_tile() || work.member >= 0) return check_prefix_item(work, parts);
    if (parts.size() == 1) {
      ASSERT_EQ(parts[0].partial, -1);
      ASSERT_EQ(parts[0].arrivals, 0);
      return;
    }
    check_cut_item(work, parts);
  }

  /// The columns of an item in a thread block.
  std::int32_t columns_of(const ColumnsWork& work) const {
    return std::min(shape_.columns, work.columns - work.column_group * shape_.columns);
  }

  /// Counts rows of partial results as written.
  void take_rows(std::int64_t first, std::int64_t count) {
    ASSERT_GE(first, 0);
    ASSERT_LE(first + count, (w_.outputs - w_.max_sum) / 8) << "behind the workspace's results";
    if (is_taken_.empty()) is_taken_.resize(static_cast<std::size_t>(w_.outputs - w_.max_sum) / 8);
    for (std::int64_t row = first; row < first + count; ++row) {
      ASSERT_FALSE(is_taken_[static_cast<std::size_t>(row)]) << "two parts write row " << row;
      is_taken_[static_cast<std::size_t>(row)] = true;
    }
  }

  void check_cut_item(const ColumnsWork& work, const std::vector<ColumnsSegment>& parts) {
    const std::int32_t index = parts[0].item;
    ASSERT_GE(index, 0);
    ASSERT_LT(index, w_.max_slots);
    const ColumnsItem& item = workspace_.at<ColumnsItem>(w_.items)[index];
    ASSERT_EQ(item.q_begin, work.q_begin);
    ASSERT_EQ(item.head, work.head);
    ASSERT_EQ(item.first_column, work.column_group * shape_.columns);
    ASSERT_EQ(item.columns, columns_of(work));
    ASSERT_EQ(item.prefix_parts, 0);
    ASSERT_EQ(static_cast<std::size_t>(item.own_parts), parts.size());
    ASSERT_TRUE(arrivals_.emplace(index, item.own_parts).second) << "two items have one counter";
    for (std::size_t i = 0; i < parts.size(); ++i) {
      ASSERT_EQ(parts[i].item, index);
      ASSERT_EQ(parts[i].arrivals, is_latent() ? 0 : item.own_parts);
      ASSERT_EQ(parts[i].partial, item.own_row + static_cast<std::int32_t>(i) * shape_.columns);
      ASSERT_NO_FATAL_FAILURE(take_rows(parts[i].partial, columns_of(work)));
    }
  }

  /// The parts of a tile, and those of a member's own tokens: a kernel that follows combines them.
  void check_prefix_item(const ColumnsWork& work, const std::vector<ColumnsSegment>& parts) {
    for (const ColumnsSegment& part : parts) {
      ASSERT_EQ(part.arrivals, 0);
      ASSERT_NO_FATAL_FAILURE(take_rows(part.partial, columns_of(work)));
    }
    if (work.is_tile()) return;
    const kernels::PrefixMember& member = c_.members[static_cast<std::size_t>(work.member)];
    const kernels::PrefixTile& tile = c_.tiles[static_cast<std::size_t>(member.tile)];
    const std::int32_t index = w_.max_slots + work.member * c_.limits.num_kv_heads + work.head;
    const ColumnsItem& item = workspace_.at<ColumnsItem>(w_.items)[index];
    ASSERT_EQ(item.q_begin, work.q_begin);
    ASSERT_EQ(item.head, work.head);
    ASSERT_EQ(item.first_column, 0);
    ASSERT_EQ(item.columns, work.columns);
    ASSERT_EQ(static_cast<std::size_t>(item.own_parts), parts.size());
    for (std::size_t i = 0; i < parts.size(); ++i) {
      ASSERT_EQ(parts[i].partial, item.own_row + static_cast<std::int32_t>(i) * shape_.columns);
    }
    const auto& of_tile = segments_.at({true, tile.first_token, work.head, 0});
    ASSERT_EQ(static_cast<std::size_t>(item.prefix_parts), of_tile.size());
    const std::int32_t first = (member.first_token - tile.first_token) * c_.group();
    for (std::size_t i = 0; i < of_tile.size(); ++i) {  // sorted: tiles come first
      ASSERT_EQ(of_tile[i].partial + first,
                item.prefix_row + static_cast<std::int32_t>(i) * shape_.columns);
    }
  }

  /// The counters are 0; of latents they have the parts of cut items.
  void check_counters() {
    const auto* const counters = workspace_.at<std::int32_t>(w_.counters);
    for (std::int32_t i = 0; i < w_.max_slots; ++i) {
      const auto cut = arrivals_.find(i);
      ASSERT_EQ(counters[i], is_latent() && cut != arrivals_.end() ? cut->second : 0);
    }
    const std::size_t members =
        c_.members.size() * static_cast<std::size_t>(c_.limits.num_kv_heads);
    EXPECT_EQ(*workspace_.at<std::int32_t>(w_.members),
              static_cast<std::int32_t>(is_latent() ? arrivals_.size() : members));
  }

  /// No thread block has more than its share, but for an eighth of them that may stand still and
  /// the slabs at the ends of items.
  void check_balance() const {
    constexpr std::int32_t kMostOfTeam = 4;  // latents may have so many thread blocks in a team
    const std::int64_t blocks =
        is_latent() ? std::max(1, w_.blocks / kMostOfTeam * kMostOfTeam) : w_.blocks;
    const std::int64_t busy = std::max<std::int64_t>(1, blocks - blocks / 8 - 1);
    EXPECT_LE(most_slabs_, all_slabs_ / busy + 4);
  }

  const ColumnsScheduleCase& c_;
  ColumnsWorkspace w_;
  kernels::ColumnsShape shape_;
  AlignedBytes workspace_;
  std::map<std::tuple<bool, std::int32_t, std::int32_t, std::int32_t>, std::vector<ColumnsSegment>>
      segments_;
  std::map<std::int32_t, std::int32_t> arrivals_;  // of each counter that an item has
  std::vector<bool> is_taken_;                     // rows of partial results
  std::int64_t most_slabs_ = 0;
  std::int64_t all_slabs_ = 0;
};

TEST(EmulatedColumnsSchedule, EveryTokenIsSeenOnce) {
  const std::uint64_t first = number_from_environment("KVARENA_SEED", 1) * 100000;
  const std::uint64_t rounds = 400 * number_from_environment("KVARENA_TEST_ROUNDS", 1);
  for (std::uint64_t seed = first; seed < first + rounds && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const ColumnsScheduleCase c = ColumnsScheduleDice(seed).roll();
    MadeSchedule made(c);
    ASSERT_EQ(made.make(seed), "");
    made.check();
  }
}

}  // namespace
}  // namespace kvarena::test
