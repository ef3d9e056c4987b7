// Sequences of many times the tokens that their windows and chunks keep: with default options a
// step is refused only when the pool is full, and every row finds the blocks that it keeps.

#include "step/group_rows.hpp"
#include "support/devices.hpp"
#include "support/status_matchers.hpp"

#include "kvarena/cache/kv_cache.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <tuple>
#include <vector>

namespace kvarena {
namespace {

/// A group of `num_layers` layers.
struct Kept {
  PagedKind kind = PagedKind::full;
  std::int64_t limit_tokens = 0;
  std::int32_t num_layers = 1;
  std::int32_t block_size_tokens = 16;
};

struct LongCase {
  std::string name;
  std::vector<Kept> groups;
  std::int64_t num_pages = 0;
  std::int64_t max_sequence_tokens = 0;
  bool fills_pool = false;  ///< else all sequences become as long as they may
};

constexpr std::int32_t kSequences = 6;
constexpr std::int32_t kStep = 64;  ///< new tokens of a sequence

void PrintTo(const LongCase& its, std::ostream* out) { *out << its.name; }

constexpr Kept kAllInLargeBlocks{.block_size_tokens = 128};
constexpr Kept kOneToken{PagedKind::window, 1, 8};
constexpr Kept kSixteen{PagedKind::window, 16, 8};
constexpr Kept kChunks{PagedKind::chunk, 96};

std::vector<LongCase> cases() {
  return {{"OneTokenAndAll", {kAllInLargeBlocks, kOneToken}, 150, 4096, true},
          {"SixteenAndAll", {kAllInLargeBlocks, kSixteen}, 150, 2048, false},
          {"WindowAlone", {kSixteen}, 80, 16'384, false},
          {"LongerWindowAlone", {{PagedKind::window, 700}}, 400, 16'384, false},
          {"ChunksAlone", {kChunks}, 120, 16'384, false},
          {"WindowAndChunks", {kOneToken, kChunks}, 200, 16'384, false}};
}

class LongSequences : public ::testing::TestWithParam<std::tuple<DeviceKind, LongCase>> {
 protected:
  void SetUp() override {
    KVARENA_NEEDS_DEVICE(std::get<0>(GetParam()));
    std::int32_t layer = 0;
    for (const Kept& its : tested_.groups) {
      std::vector<GroupLayer>& layers = layers_.emplace_back();
      for (std::int32_t i = 0; i < its.num_layers; ++i) layers.push_back({layer++});
    }
    for (std::size_t g = 0; g < tested_.groups.size(); ++g) {
      const Kept& its = tested_.groups[g];
      groups_.push_back({.kind = its.kind,
                         .layers = layers_[g],
                         .num_kv_heads = 1,
                         .head_dim_k = 64,
                         .dtype = DType::bf16,
                         .block_size_tokens = its.block_size_tokens,
                         .limit_tokens = its.limit_tokens});
    }
    device_ = test::make_device(std::get<0>(GetParam()), {.streams = HostStreams::inline_calls});
    Result<KvCache> made =
        KvCache::create(*device_, {.size = {.num_blocks = tested_.num_pages},
                                   .num_q_heads = 1,
                                   .max_sequences = kSequences,
                                   .max_sequence_tokens = tested_.max_sequence_tokens,
                                   .max_step_tokens = kSequences * std::int64_t{kStep},
                                   .num_threads = 1,
                                   .groups = groups_});
    ASSERT_OK(made);
    cache_ = std::make_unique<KvCache>(std::move(*made));
  }

  /// A step that makes every sequence longer, as far as it may become. Returns what append returns.
  Status step() {
    demands_.clear();
    for (const SequenceId id : ids_) {
      const std::int64_t left =
          tested_.max_sequence_tokens - cache_->tables().info(id)->length_tokens;
      demands_.push_back({id, static_cast<std::int32_t>(std::min<std::int64_t>(left, kStep))});
    }
    if (Status s = cache_->begin_step(); !s) return s;
    const Status grown = cache_->append(demands_).status();
    if (grown && ++num_steps_ % 8 == 0) check_rows();
    if (Status s = cache_->end_step(); !s) return s;
    return grown;
  }

  template <class T>
  std::vector<T> read(const T* from, std::int64_t count) {
    std::vector<T> values(static_cast<std::size_t>(count));
    EXPECT_OK(device_->copy(values.data(), from, values.size() * sizeof(T), cache_->stream()));
    EXPECT_OK(cache_->synchronize());
    return values;
  }

  /// Every row on the device has the kept blocks of its sequence.
  void check_rows() {
    const bool is_host = device_->kind() == DeviceKind::host;
    const std::int64_t stride = tested_.max_sequence_tokens;
    std::vector<std::int32_t> blocks(static_cast<std::size_t>(stride));
    const auto parts = cache_->arena().groups()->parts();
    for (std::size_t part = 0; part < parts.size(); ++part) {
      SCOPED_TRACE("part " + std::to_string(part));
      const auto number = static_cast<std::int32_t>(part);
      const LayerGroup& group = groups_[static_cast<std::size_t>(parts[part].group)];
      const TableGroup table{.kind = is_host ? PagedKind::full : group.kind,
                             .block_size_tokens = group.block_size_tokens,
                             .limit_tokens = group.limit_tokens};
      const DeviceBatch batch = cache_->device_batch(number).value();
      const auto offsets = read(batch.row_offsets, batch.num_rows);
      std::size_t row = 0;
      for (const AppendDemand& demand : demands_) {
        std::int32_t tokens = 0;
        ASSERT_OK(cache_->tables().copy_rows(std::span(&demand.sequence, 1), blocks, stride,
                                             std::span(&tokens, 1), number));
        for_each_row(table, tokens, demand.num_tokens, [&](const GroupRow& its) {
          const std::int64_t end =
              (its.length + table.block_size_tokens - 1) / table.block_size_tokens;
          std::int64_t first = 0;  // the first kept block of the row
          const auto block_at = [&](std::int64_t j) {
            return blocks[static_cast<std::size_t>(its.first_block + j)];
          };
          while (first < end && block_at(first) == kNoBlock.value) ++first;
          const std::int64_t begin = offsets[row++] + first;
          ASSERT_GE(begin, 0);
          ASSERT_LE(begin + end - first, batch.num_table_entries);
          const auto found = read(batch.block_tables + begin, end - first);
          for (std::int64_t j = first; j < end; ++j) {
            ASSERT_EQ(found[static_cast<std::size_t>(j - first)].value, block_at(j));
          }
          num_checked_ += end - first;
        });
      }
      ASSERT_EQ(row, static_cast<std::size_t>(batch.num_rows));
    }
  }

  /// The most blocks of one kind that the pool holds.
  std::int64_t entries_of_pool() const {
    std::int64_t most = 0;
    for (const GroupLayout::Part& part : cache_->arena().groups()->parts()) {
      most = std::max<std::int64_t>(most, part.blocks.blocks_per_page);
    }
    return most * tested_.num_pages;
  }
  /// The entries that the rows have in their largest table when absent ones count.
  std::int64_t entries_with_absent_ones() const {
    std::int32_t smallest = groups_[0].block_size_tokens;
    for (const LayerGroup& group : groups_) smallest = std::min(smallest, group.block_size_tokens);
    std::int64_t entries = 0;
    for (const SequenceId id : ids_) {
      entries += cache_->tables().info(id)->length_tokens / smallest;
    }
    return entries;
  }

  std::int64_t num_steps_ = 0;
  std::int64_t num_checked_ = 0;
  LongCase tested_ = std::get<1>(GetParam());
  std::vector<std::vector<GroupLayer>> layers_;
  std::vector<LayerGroup> groups_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<KvCache> cache_;
  std::vector<SequenceId> ids_;
  std::vector<AppendDemand> demands_;
};

TEST_P(LongSequences, AreRefusedOnlyByAFullPool) {
  for (std::int32_t i = 0; i < kSequences; ++i) {
    ids_.push_back(cache_->create_sequence().value());
  }
  Status status;
  bool is_longest = false;
  while (status && !is_longest && !HasFailure()) {
    status = step();
    is_longest = cache_->tables().info(ids_[0])->length_tokens == tested_.max_sequence_tokens;
  }
  if (tested_.fills_pool) {
    EXPECT_TRUE(test::fails_with(status, StatusCode::exhausted, Resource::page));
  } else {
    EXPECT_OK(status);
    EXPECT_OK(step()) << "rows without new tokens have their blocks too";
  }
  EXPECT_GT(num_checked_, 100);
  EXPECT_GT(entries_with_absent_ones(), 4 * entries_of_pool()) << "the case is too small";
  EXPECT_OK(cache_->check_invariants());
  // A sequence in the place of another one begins at the front again.
  ASSERT_OK(cache_->destroy(ids_[0]));
  ids_ = {cache_->create_sequence().value()};
  num_steps_ = 7;
  num_checked_ = 0;
  ASSERT_OK(step());
  EXPECT_GT(num_checked_, 0);
}

INSTANTIATE_TEST_SUITE_P(, LongSequences,
                         ::testing::Combine(::testing::ValuesIn(test::device_kinds()),
                                            ::testing::ValuesIn(cases())),
                         [](const auto& tested) {
                           const bool is_host = std::get<0>(tested.param) == DeviceKind::host;
                           return std::get<1>(tested.param).name + (is_host ? "Host" : "Cuda");
                         });

}  // namespace
}  // namespace kvarena
