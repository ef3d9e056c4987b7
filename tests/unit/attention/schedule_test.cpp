#include "attention/schedule.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <vector>

namespace kvarena::attention {
namespace {

struct Planned {
  std::vector<std::int32_t> seq_lens;
  std::vector<std::int64_t> q_offsets;
  BatchView batch;
  AttentionLimits limits;
  std::vector<std::int64_t> storage;
  Step step{};
  std::int32_t count = 0;

  Planned(std::vector<std::int32_t> lens, std::vector<std::int64_t> offsets, std::int32_t heads,
          std::int32_t group, std::int32_t threads, std::int32_t window = 0)
      : seq_lens(std::move(lens)), q_offsets(std::move(offsets)) {
    batch.seq_lens = seq_lens.data();
    batch.num_rows = static_cast<std::int32_t>(seq_lens.size());
    limits = {batch.num_rows, 1 << 20, heads * group, heads, 16, 16, threads, CpuPath::portable};
    const WorkspaceMap map(limits);
    storage.resize(static_cast<std::size_t>(map.bytes() / 8 + 1));
    step = {&batch, q_offsets.empty() ? nullptr : q_offsets.data(), window,
            map.geometry().tile_tokens, heads};
    count = cut(step, limits, bytes());
  }
  std::byte* bytes() { return reinterpret_cast<std::byte*>(storage.data()); }
  const Part* parts() { return WorkspaceMap(limits).parts(bytes()); }
};

/// Walks every part and counts tokens of each segment; all must be covered exactly once, in order.
std::vector<std::int64_t> tokens_by_part(Planned& planned) {
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(planned.count), 0);
  const Part* parts = planned.parts();
  Cursor at = planned.step.first_segment(0);
  for (std::int32_t p = 0; p < planned.count; ++p) {
    EXPECT_TRUE(same_segment(at, parts[p].begin) && at.token == parts[p].begin.token)
        << "part " << p;
    const Cursor end = parts[p + 1].begin;
    while (!(same_segment(at, end) && at.token == end.token)) {
      const TokenSpan span = planned.step.span(at.row, at.tile);
      const std::int64_t stop = same_segment(at, end) ? end.token : span.end;
      EXPECT_GE(stop, at.token);
      tokens[static_cast<std::size_t>(p)] += stop - at.token;
      at.token = stop;
      if (same_segment(at, end)) break;
      at = planned.step.next_segment(at);
    }
  }
  EXPECT_EQ(at.row, planned.batch.num_rows);
  return tokens;
}

TEST(Schedule, PartsOfADecodeStepHaveEqualBytes) {
  Planned planned({100000, 5, 300, 0, 17, 2048}, {}, 4, 4, 4);
  ASSERT_GT(planned.count, 16);
  const std::vector<std::int64_t> tokens = tokens_by_part(planned);
  const std::int64_t total = std::accumulate(tokens.begin(), tokens.end(), std::int64_t{0});
  EXPECT_EQ(total, (100000 + 5 + 300 + 0 + 17 + 2048) * 4);
  for (const std::int64_t t : tokens) {
    EXPECT_NEAR(static_cast<double>(t), static_cast<double>(total) / planned.count, 400.0);
  }
}

TEST(Schedule, EveryTokenIsCoveredOnceForAnyBatch) {
  std::mt19937 random(3);
  for (int i = 0; i < 300; ++i) {
    std::vector<std::int32_t> lens;
    std::vector<std::int64_t> offsets{0};
    const int rows = 1 + static_cast<int>(random() % 6);
    for (int row = 0; row < rows; ++row) {
      const auto length = static_cast<std::int32_t>(random() % 3000 * (random() % 2));
      lens.push_back(length);
      const std::int64_t queries =
          length == 0 ? 0 : static_cast<std::int32_t>(random() >> 1) % length;
      offsets.push_back(offsets.back() + queries);
    }
    const auto heads = static_cast<std::int32_t>(1 + random() % 4);
    const auto window = static_cast<std::int32_t>(random() % 2 * 77);
    Planned planned(lens, i % 2 == 0 ? offsets : std::vector<std::int64_t>{}, heads, 4,
                    static_cast<std::int32_t>(1 + random() % 5), window);
    const std::vector<std::int64_t> tokens = tokens_by_part(planned);
    std::int64_t want = 0;
    for (std::int32_t row = 0; row < planned.batch.num_rows; ++row) {
      for (std::int64_t tile = 0; tile < planned.step.num_tiles(row); ++tile) {
        want += planned.step.span(row, tile).size() * heads;
      }
    }
    ASSERT_EQ(std::accumulate(tokens.begin(), tokens.end(), std::int64_t{0}), want);
  }
}

TEST(Schedule, PiecesOfASegmentAreLinked) {
  Planned planned({50000}, {}, 1, 4, 2);
  const Part* parts = planned.parts();
  ASSERT_GT(planned.count, 2);
  EXPECT_EQ(parts[0].pieces, planned.count);
  for (std::int32_t p = 1; p < planned.count; ++p) {
    EXPECT_EQ(parts[p].first_part, 0);
    EXPECT_EQ(parts[p].pieces, 0);
  }
}

TEST(Schedule, LittleWorkIsOnePart) {
  Planned planned({16, 16}, {}, 2, 4, 8);
  EXPECT_EQ(planned.count, 1);
}

TEST(Schedule, WorkspaceIsAPureFunctionOfTheLimits) {
  AttentionLimits limits{4, 4, 8, 2, 64, 64, 3, CpuPath::portable};
  const std::int64_t bytes = attention_workspace_bytes(limits).value();
  EXPECT_EQ(attention_workspace_bytes(limits).value(), bytes);
  EXPECT_EQ(WorkspaceMap(limits).bytes(), bytes);
  limits.num_threads = 4;
  EXPECT_GT(attention_workspace_bytes(limits).value(), bytes);
}

}  // namespace
}  // namespace kvarena::attention
