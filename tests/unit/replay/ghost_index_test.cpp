// A GhostIndex beside exact replays: equal while it sees all ids, and within a stated error when it
// sees a sample.

#include "blocktable/ghost_index.hpp"

#include "replay/pure_cache.hpp"
#include "support/environment.hpp"
#include "support/heap_counter.hpp"
#include "support/process_memory.hpp"
#include "support/status_matchers.hpp"
#include "support/test_files.hpp"
#include "trace/trace_reader.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

namespace kvarena {
namespace {

constexpr const char* kExcerpt = KVARENA_TRACES "/mooncake_conversation_excerpt.jsonl";

using Requests = std::vector<std::vector<std::int64_t>>;

Requests requests_of(const std::string& path) {
  Requests requests;
  Finding defect;
  trace::TraceReaderOptions options;
  options.path = path;
  auto reader = trace::TraceReader::open(options, &defect);
  EXPECT_OK(reader.status());
  while (reader) {
    const auto request = reader->next();
    EXPECT_OK(request.status());
    if (!request || !request->has_value()) break;
    requests.push_back((*request)->prefix_blocks);
  }
  return requests;
}

double exact_rate(const Requests& requests, EvictionPolicy policy, std::int64_t blocks) {
  replay::PureCache cache(policy, blocks);
  std::int64_t hits = 0;
  std::int64_t refs = 0;
  for (const auto& ids : requests) {
    hits += cache.match(ids);
    cache.touch(ids);
    refs += static_cast<std::int64_t>(ids.size());
  }
  return static_cast<double>(hits) / static_cast<double>(refs);
}

GhostIndex played(const Requests& requests, const GhostIndexOptions& options) {
  GhostIndex index = GhostIndex::create(options).value();
  for (const auto& ids : requests) {
    index.observe(std::vector<std::uint64_t>(ids.begin(), ids.end()));
  }
  return index;
}

// The largest difference to exact replays.
double largest_error(const Requests& requests, const GhostIndexOptions& options) {
  double largest = 0;
  for (const GhostReport& report : played(requests, options).reports()) {
    const double exact = exact_rate(requests, report.policy, report.num_blocks);
    largest = std::max(largest, std::abs(report.block_hit_rate - exact));
  }
  return largest;
}

Requests random_requests(std::uint64_t seed, int count) {
  std::mt19937_64 random(seed);
  Requests requests(static_cast<std::size_t>(count));
  for (auto& ids : requests) {
    std::int64_t id = 0;  // a path in a tree, whose small branches are more likely
    for (std::uint64_t left = 1 + random() % 14; left > 0; --left) {
      id = id * 4 + 1 + static_cast<std::int64_t>(std::min(random() % 4, random() % 4));
      ids.push_back(id);
    }
  }
  return requests;
}

TEST(GhostIndex, ReportsEachPolicyAndSize) {
  const GhostIndex index = GhostIndex::create({.num_blocks = 100}).value();
  const std::vector<GhostReport> reports = index.reports();
  ASSERT_EQ(reports.size(), 16U);
  for (std::size_t i = 0; i < reports.size(); ++i) {
    EXPECT_EQ(reports[i].policy, GhostIndexOptions::kAll[i / 4]);
    EXPECT_EQ(reports[i].num_blocks, (std::array<std::int64_t, 4>{50, 100, 200, 400}[i % 4]));
    EXPECT_EQ(reports[i].block_hit_rate, 0.0);
  }
  EXPECT_EQ(index.sampled_share(), 1.0);
}

TEST(GhostIndex, IsExactWhileItSeesAllIds) {
  const std::uint64_t seed = test::number_from_environment("KVARENA_SEED", 1);
  SCOPED_TRACE(testing::Message() << "KVARENA_SEED=" << seed);
  const Requests requests = random_requests(seed, 600);
  for (const std::int64_t blocks : {1, 2, 9, 60, 300}) {
    EXPECT_EQ(largest_error(requests, {.num_blocks = blocks}), 0.0) << blocks;
  }
  const Requests excerpt = requests_of(kExcerpt);
  ASSERT_EQ(excerpt.size(), 32U);
  for (const std::int64_t blocks : {10, 100, 500}) {
    EXPECT_EQ(largest_error(excerpt, {.num_blocks = blocks}), 0.0) << blocks;
  }
}

// A quarter of the ids.
TEST(GhostIndex, ASampleIsNearTheExactRate) {
  const Requests requests = random_requests(3, 20'000);
  const GhostIndexOptions options{.num_blocks = 4000, .max_sampled_blocks = 4000};
  const GhostIndex index = played(requests, options);
  EXPECT_NEAR(index.sampled_share(), 0.25, 1e-6);
  const double seen =
      static_cast<double>(index.sampled_refs()) / static_cast<double>(index.block_refs());
  EXPECT_GT(seen, 0.1);
  EXPECT_LT(seen, 0.5);
  EXPECT_LT(largest_error(requests, options), 0.08);
}

TEST(GhostIndex, ObservingAllocatesNothing) {
  GhostIndex index = GhostIndex::create({.num_blocks = 50}).value();
  const Requests requests = random_requests(5, 300);
  std::vector<std::vector<std::uint64_t>> all;
  for (const auto& ids : requests) all.emplace_back(ids.begin(), ids.end());
  const test::HeapCounter counter;
  for (const auto& ids : all) index.observe(ids);
  EXPECT_EQ(counter.count(), 0);
  EXPECT_GT(index.block_refs(), 0);
}

TEST(GhostIndex, BadOptionsAreRefused) {
  EXPECT_FAILS(GhostIndex::create({}), invalid_argument, none);
  EXPECT_FAILS(GhostIndex::create({.num_blocks = 8, .max_sampled_blocks = 3}), invalid_argument,
               capacity);
  const std::array unknown{EvictionPolicy::priority};
  EXPECT_EQ(GhostIndex::create({.num_blocks = 8, .policies = unknown}).status().option,
            Option::eviction);
}

// Whole traces: the sizes of the reference figures, with the default sample.
TEST(GhostIndex, WholeTracesAreWithinTheStatedError) {
  KVARENA_REQUIRE_DATA();
  struct Case {
    const char* file;
    std::int64_t num_blocks;
    double error;
  };
  for (const Case& seen : {Case{"/mooncake_conversation.jsonl", 5859, 0.0},
                           Case{"/mooncake_conversation.jsonl", 30'000, 0.01},
                           Case{"/agent_miniswe_blocks.jsonl", 512, 0.0},
                           Case{"/agent_miniswe_blocks.jsonl", 2000, 0.0}}) {
    if (test::kSanitized && seen.num_blocks != 2000) continue;
    const Requests requests = requests_of(test::data_dir() + seen.file);
    const double error = largest_error(requests, {.num_blocks = seen.num_blocks});
    EXPECT_LE(error, seen.error) << seen.file << ", " << seen.num_blocks << " blocks";
  }
}

}  // namespace
}  // namespace kvarena
