// The search for shared prefixes, made on the CPU by a cluster of thread blocks. Judged by what
// attention would do with it: members of a tile begin with the blocks that the tile reads. It finds
// the same in whatever order its threads run.

#include "emulation/intrinsics.hpp"

#include "kernel/columns_schedule_case.hpp"
#include "kernels/columns/prefix_find.cuh"
#include "support/environment.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace kvarena::test {
namespace {

namespace search = kernels::find_prefixes;
using kernels::PrefixHeader;
using kernels::PrefixMember;
using kernels::PrefixTile;

/// A step of rows whose tables begin with blocks of other rows.
class SharingRows {
 public:
  explicit SharingRows(std::uint64_t seed) : random_(seed) {
    block_size_ = one_of({16, 16, 32, 128});
    const std::int32_t rows = below(4) == 0 ? 1 + below(1500) : 1 + below(60);
    const std::int32_t most = one_of({600, 2000, rows < 100 ? 20000 : 3000});
    limits_ = {.max_rows = rows,
               .q_len = one_of({1, 4, 16, 16}),
               .num_q_heads = one_of({8, 16, 32}),
               .num_kv_heads = 8,
               .head_dim = one_of({64, 128, 256}),
               .num_sms = 132,
               .shared_rows = below(3) == 0 ? 1 + below(rows) : rows};
    saved_sixteenths_ = one_of({1, 7, 16});
    own_sixteenths_ = one_of({0, 0, 7});
    member_tokens_ = one_of({0, 16, 256});
    group_tokens_ = one_of({0, 1024});
    stride_ = most / block_size_ + 1;
    tables_.resize(static_cast<std::size_t>(rows) * static_cast<std::size_t>(stride_));
    const bool has_equal_q = below(3) == 0;
    for (std::int32_t row = 0; row < rows; ++row) {
      const std::int32_t q_len = has_equal_q ? limits_.q_len : below(limits_.q_len + 2);
      q_offsets_.push_back(q_offsets_.back() + q_len);
      seq_lens_.push_back(below(6) == 0 ? q_len : q_len + below(most - q_len));
      row_slots_.push_back(below(12) == 0 ? -1 : rows - 1 - row);
      fill_table(row);
    }
  }

  /// Searches, with the threads in an order of this seed. Returns what went wrong.
  std::string search(std::uint64_t seed) {
    plan_ = AlignedBytes(layout().bytes);
    shared_tokens_.assign(seq_lens_.size(), -1);
    const kernels::FindPrefixesParams p = params();
    const search::SearchSize size = search::search_size(p);
    const auto blocks = std::make_unique<search::Shared[]>(search::kBlocks);
    std::vector<std::vector<long long>> memory(
        search::kBlocks,
        std::vector<long long>(static_cast<std::size_t>(numbers_of(size)) / 2 + 1, -1));
    return run_emulated({.blocks = search::kBlocks,
                         .threads = search::kThreads,
                         .cluster = search::kBlocks,
                         .seed = seed},
                        [&] {
                          auto* const its = memory[blockIdx.x].data();
                          search_step(p, layout(), size, blocks[blockIdx.x],
                                      reinterpret_cast<int*>(its));
                        });
  }

  /// What it has found, without what is left over of the search.
  std::vector<std::int32_t> found() {
    const PrefixHeader header = *plan_.at<PrefixHeader>(layout().header);
    std::vector<std::int32_t> all = shared_tokens_;
    const auto add = [&](const std::int32_t* from, std::size_t count) {
      all.insert(all.end(), from, from + count);
    };
    const auto tiles = static_cast<std::size_t>(header.num_tiles);
    add(plan_.at<std::int32_t>(layout().tiles), tiles * sizeof(PrefixTile) / 4);
    add(plan_.at<std::int32_t>(layout().members),
        static_cast<std::size_t>(header.num_members) * sizeof(PrefixMember) / 4);
    const std::int32_t tokens =
        tiles == 0 ? 0 : plan_.at<PrefixTile>(layout().tiles)[tiles - 1].end_token;
    add(plan_.at<std::int32_t>(layout().tokens), static_cast<std::size_t>(tokens));
    return all;
  }

  void check() {
    const PrefixHeader header = *plan_.at<PrefixHeader>(layout().header);
    ASSERT_LE(header.num_members, limits_.shared_rows);
    std::vector<int> times(seq_lens_.size());
    std::int32_t member = 0;
    std::int32_t token = 0;
    for (std::int32_t i = 0; i < header.num_tiles; ++i) {
      const PrefixTile& tile = plan_.at<PrefixTile>(layout().tiles)[i];
      ASSERT_EQ(tile.first_member, member);
      ASSERT_EQ(tile.first_token, token);
      ASSERT_GE(tile.shared_tokens, 256);
      ASSERT_EQ(tile.shared_tokens % block_size_, 0);
      for (; member < tile.end_member; ++member) {
        const PrefixMember& m = plan_.at<PrefixMember>(layout().members)[member];
        ASSERT_EQ(m.tile, i);
        ASSERT_NO_FATAL_FAILURE(check_member(m, tile, token));
        ++times[static_cast<std::size_t>(m.row)];
        token += q_len(m.row);
      }
      ASSERT_EQ(tile.end_token, token);
      ASSERT_LE((tile.end_token - tile.first_token) * 1LL * (limits_.num_q_heads / 8),
                kernels::columns_shape(limits_).columns);
    }
    ASSERT_EQ(header.num_members, member);
    ASSERT_LE(token, kernels::max_shared_tokens(limits_));
    for (std::size_t row = 0; row < times.size(); ++row) {
      ASSERT_EQ(times[row], shared_tokens_[row] > 0 ? 1 : 0) << "row " << row;
      ASSERT_GE(shared_tokens_[row], 0);
    }
  }
  std::int64_t num_members() { return plan_.at<PrefixHeader>(layout().header)->num_members; }

 private:
  std::int32_t below(std::int64_t end) {
    return static_cast<std::int32_t>(random_() %
                                     static_cast<std::uint64_t>(std::max<std::int64_t>(1, end)));
  }
  std::int32_t one_of(std::initializer_list<std::int32_t> list) {
    return *(list.begin() + below(static_cast<std::int64_t>(list.size())));
  }
  kernels::PrefixPlan layout() const { return kernels::prefix_plan(limits_); }
  std::int32_t q_len(std::int32_t row) const {
    const auto at = static_cast<std::size_t>(row);
    return static_cast<std::int32_t>(q_offsets_[at + 1] - q_offsets_[at]);
  }
  /// The blocks of a row; some tables are of no row.
  std::span<BlockId> table(std::int32_t row) {
    const auto rows = static_cast<std::int64_t>(row_slots_.size()) > row
                          ? row_slots_[static_cast<std::size_t>(row)]
                          : -1;
    return rows < 0 ? std::span<BlockId>()
                    : std::span(tables_).subspan(
                          static_cast<std::size_t>(rows) * static_cast<std::size_t>(stride_),
                          static_cast<std::size_t>(stride_));
  }

  /// New blocks, or first those of an earlier row; sometimes again behind a block that differs.
  void fill_table(std::int32_t row) {
    const std::span<BlockId> own = table(row);
    for (BlockId& id : own) id = BlockId(next_id_++);
    const std::span<BlockId> other =
        row == 0 || below(5) == 0 ? own : table(below(std::min(row, 12)));
    if (other.empty() || own.empty() || other.data() == own.data()) return;
    const auto count = static_cast<std::size_t>(below(3) == 0 ? stride_ : below(stride_));
    std::ranges::copy(other.first(count), own.begin());
    if (below(8) == 0)
      own[static_cast<std::size_t>(below(static_cast<std::int64_t>(count)))] = BlockId(next_id_++);
  }

  void check_member(const PrefixMember& m, const PrefixTile& tile, std::int32_t token) {
    const auto row = static_cast<std::size_t>(m.row);
    ASSERT_LT(row, seq_lens_.size());
    ASSERT_EQ(m.first_token, token);
    ASSERT_EQ(shared_tokens_[row], tile.shared_tokens);
    ASSERT_LE(tile.shared_tokens, seq_lens_[row] - q_len(m.row)) << "blocks of query tokens";
    const auto* const tokens = plan_.at<std::int32_t>(layout().tokens);
    for (std::int32_t i = 0; i < q_len(m.row); ++i)
      ASSERT_EQ(tokens[token + i], q_offsets_[row] + i);
    const auto blocks = static_cast<std::size_t>(tile.shared_tokens / block_size_);
    const auto read = std::span(tables_).subspan(
        static_cast<std::size_t>(tile.table_row) * static_cast<std::size_t>(stride_), blocks);
    ASSERT_TRUE(std::ranges::equal(table(m.row).first(blocks), read)) << "row " << row;
  }

  kernels::FindPrefixesParams params() {
    kernels::FindPrefixesParams p;
    p.limits = limits_;
    p.seq_lens = seq_lens_.data();
    p.q_offsets = q_offsets_.data();
    p.row_slots = row_slots_.data();
    p.num_rows = static_cast<std::int32_t>(seq_lens_.size());
    p.block_size = block_size_;
    p.block_tables = tables_.data();
    p.table_stride = stride_;
    p.shared_tokens = shared_tokens_.data();
    p.saved_sixteenths = saved_sixteenths_;
    p.own_sixteenths = own_sixteenths_;
    p.member_tokens = member_tokens_;
    p.group_tokens = group_tokens_;
    p.prefixes = plan_.data();
    p.prefixes_bytes = layout().bytes;
    return p;
  }

  std::mt19937_64 random_;
  kernels::ColumnsLimits limits_;
  std::int32_t block_size_ = 0;
  std::int32_t saved_sixteenths_ = 0;
  std::int32_t own_sixteenths_ = 0;
  std::int32_t member_tokens_ = 0;
  std::int32_t group_tokens_ = 0;
  std::int64_t stride_ = 0;
  std::int32_t next_id_ = 0;
  std::vector<std::int32_t> seq_lens_;
  std::vector<std::int64_t> q_offsets_ = {7};
  std::vector<std::int32_t> row_slots_;
  std::vector<BlockId> tables_;
  std::vector<std::int32_t> shared_tokens_;
  AlignedBytes plan_;
};

TEST(EmulatedPrefixes, MembersBeginWithTheBlocksOfTheirTile) {
  const std::uint64_t first = number_from_environment("KVARENA_SEED", 1) * 100000;
  const std::uint64_t rounds = 40 * number_from_environment("KVARENA_TEST_ROUNDS", 1);
  std::int64_t members = 0;
  for (std::uint64_t seed = first; seed < first + rounds && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SharingRows rows(seed);
    ASSERT_EQ(rows.search(seed), "");
    rows.check();
    if (HasFatalFailure()) return;
    const std::vector<std::int32_t> found = rows.found();
    ASSERT_EQ(rows.search(seed + 1), "");
    EXPECT_EQ(rows.found(), found) << "it depends on the order of threads";
    members += rows.num_members();
  }
  EXPECT_GT(members, 300) << "steps share much";
}

}  // namespace
}  // namespace kvarena::test
