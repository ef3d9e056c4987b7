// A prefix cache alone, against a naive one that is written from the rules, and against the trace
// folder's reference figures.

#include "replay/pure_cache.hpp"

#include "support/environment.hpp"
#include "support/process_memory.hpp"
#include "support/test_files.hpp"
#include "support/text_matchers.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <ostream>
#include <random>
#include <string>
#include <vector>

namespace kvarena::replay {
namespace {

using verify::RunEnd;

constexpr const char* kExcerpt = KVARENA_TRACES "/mooncake_conversation_excerpt.jsonl";
constexpr std::int64_t kUnbounded = std::int64_t{1} << 20;  // no trace here has so many blocks

// One request of a trace file.
struct Prompt {
  std::int64_t tokens;
  std::vector<std::int64_t> ids;
};

// The figures that the rules give.
struct Figures {
  std::int64_t hit_blocks = 0;
  std::int64_t hit_tokens = 0;
  std::int64_t evictions = 0;
  std::int64_t requests_with_hit = 0;
  friend bool operator==(const Figures&, const Figures&) = default;
};

std::ostream& operator<<(std::ostream& out, const Figures& seen) {
  return out << seen.hit_blocks << " hit blocks, " << seen.hit_tokens << " hit tokens, "
             << seen.evictions << " evictions, " << seen.requests_with_hit
             << " requests with a hit";
}

// The rules word for word, with a search through the whole cache for every step.
class NaiveCache {
 public:
  NaiveCache(EvictionPolicy policy, std::int64_t capacity) : policy_(policy), capacity_(capacity) {}

  void play(const Prompt& prompt, std::int64_t block_tokens) {
    std::int64_t hits = 0;
    for (const std::int64_t id : prompt.ids) {
      if (find(id) == cached_.end()) break;
      ++hits;
    }
    figures_.hit_blocks += hits;
    figures_.hit_tokens += std::min(hits * block_tokens, prompt.tokens);
    figures_.requests_with_hit += hits > 0 ? 1 : 0;
    std::vector<std::int64_t> ids = prompt.ids;
    if (policy_ == EvictionPolicy::tail_first) std::ranges::reverse(ids);
    for (const std::int64_t id : ids) touch(id);
  }
  const Figures& figures() const { return figures_; }

 private:
  struct Cached {
    std::int64_t id;
    std::int64_t count;
    std::int64_t entered;
    std::int64_t used;
  };
  std::vector<Cached>::iterator find(std::int64_t id) {
    return std::ranges::find(cached_, id, &Cached::id);
  }
  void touch(std::int64_t id) {
    ++now_;
    if (const auto at = find(id); at != cached_.end()) {
      ++at->count;
      at->used = now_;
      return;
    }
    if (static_cast<std::int64_t>(cached_.size()) == capacity_) {
      const auto goes_first = [this](const Cached& a, const Cached& b) {
        if (policy_ == EvictionPolicy::fifo) return a.entered < b.entered;
        if (policy_ == EvictionPolicy::lfu && a.count != b.count) return a.count < b.count;
        return a.used < b.used;
      };
      cached_.erase(std::ranges::min_element(cached_, goes_first));
      ++figures_.evictions;
    }
    cached_.push_back({id, 1, now_, now_});
  }

  EvictionPolicy policy_;
  std::int64_t capacity_;
  std::int64_t now_ = 0;
  std::vector<Cached> cached_;
  Figures figures_;
};

Figures naive_figures(const std::vector<Prompt>& prompts, std::int64_t block_tokens,
                      EvictionPolicy policy, std::int64_t capacity) {
  NaiveCache cache(policy, capacity);
  for (const Prompt& prompt : prompts) cache.play(prompt, block_tokens);
  return cache.figures();
}

PureCacheOptions options_of(const std::string& path, EvictionPolicy policy, std::int64_t capacity) {
  PureCacheOptions options;
  options.trace.path = path;
  options.capacity_blocks = capacity;
  options.policy = policy;
  return options;
}

PureCacheReport report_of(const PureCacheOptions& options) {
  const PureCacheOutcome outcome = run_pure_cache(options);
  EXPECT_EQ(outcome.end, RunEnd::completed) << outcome.why.found;
  EXPECT_TRUE(outcome.has_report);
  return outcome.report;
}

Figures figures_of(const PureCacheReport& report) {
  return {report.hit_blocks, report.hit_tokens, report.evictions, report.requests_with_hit};
}

// The prompts of a JSON trace, read by another reader than the product's.
std::vector<Prompt> prompts_of(const std::string& path) {
  std::vector<Prompt> prompts;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const auto record = nlohmann::json::parse(line);
    prompts.push_back({record.at("input_length"), record.at("hash_ids")});
  }
  return prompts;
}

// A Mooncake trace with these ids; the last block of each prompt has one token.
std::string trace_of(const std::vector<std::vector<std::int64_t>>& requests) {
  std::string text;
  for (const auto& ids : requests) {
    const nlohmann::ordered_json record = {
        {"timestamp", 0},
        {"input_length", (static_cast<std::int64_t>(ids.size()) - 1) * 512 + 1},
        {"output_length", 1},
        {"hash_ids", ids}};
    text += record.dump() + "\n";
  }
  return text;
}

Figures played(const std::vector<std::vector<std::int64_t>>& requests, EvictionPolicy policy,
               std::int64_t capacity) {
  const test::TempFile file(trace_of(requests));
  return figures_of(report_of(options_of(file.path(), policy, capacity)));
}

TEST(PureCache, AllHitsByHand) {
  // The second request finds the blocks 1 and 2, and the third is the first again: 513 tokens of 2
  // blocks, the last of which is partial.
  for (const EvictionPolicy policy : kEvictionPolicies) {
    EXPECT_EQ(played({{1, 2}, {1, 2, 3}, {1, 2}}, policy, 3), (Figures{4, 1024 + 513, 0, 2}));
  }
}

TEST(PureCache, TheDirectionDecidesWhichEndIsKept) {
  // Two prompts of 3 blocks in a cache of 5. Head first evicts block 1, and the next prompt stops
  // there. Tail first evicts block 3; its return then evicts 2, the least recent, before 2 is used.
  const std::vector<std::vector<std::int64_t>> requests = {{1, 2, 3}, {4, 5, 6}, {1, 2, 3}};
  EXPECT_EQ(played(requests, EvictionPolicy::head_first, 5), (Figures{0, 0, 4, 0}));
  EXPECT_EQ(played(requests, EvictionPolicy::tail_first, 5), (Figures{2, 1024, 4, 1}));
}

TEST(PureCache, FifoForgetsWhatIsUsedAndLfuKeepsIt) {
  const std::vector<std::vector<std::int64_t>> requests = {{1}, {1}, {1}, {2}, {3}, {1}};
  EXPECT_EQ(played(requests, EvictionPolicy::fifo, 2), (Figures{2, 2, 2, 2}));
  EXPECT_EQ(played(requests, EvictionPolicy::lfu, 2), (Figures{3, 3, 1, 3}));
}

TEST(PureCache, ARequestLargerThanTheCacheAndARepeatedIdFollowTheRules) {
  const std::vector<std::vector<std::int64_t>> requests = {
      {1, 2, 3, 4, 5}, {1, 2, 3, 4, 5}, {5, 5, 4, 5}, {1, 1, 1}};
  const test::TempFile file(trace_of(requests));
  const auto prompts = prompts_of(file.path());
  for (const EvictionPolicy policy : kEvictionPolicies) {
    for (std::int64_t capacity = 1; capacity <= 6; ++capacity) {
      EXPECT_EQ(figures_of(report_of(options_of(file.path(), policy, capacity))),
                naive_figures(prompts, 512, policy, capacity))
          << name_of(policy) << ", " << capacity << " blocks";
    }
  }
}

TEST(PureCache, EveryCapacityOfTheExcerptIsAsTheNaiveCacheSays) {
  const auto prompts = prompts_of(kExcerpt);
  std::int64_t refs = 0;
  for (const Prompt& prompt : prompts) refs += static_cast<std::int64_t>(prompt.ids.size());
  for (const EvictionPolicy policy : kEvictionPolicies) {
    for (std::int64_t capacity = 1; capacity <= 1000; capacity += capacity < 20 ? 1 : 61) {
      const PureCacheReport report = report_of(options_of(kExcerpt, policy, capacity));
      EXPECT_EQ(figures_of(report), naive_figures(prompts, 512, policy, capacity))
          << name_of(policy) << ", " << capacity << " blocks";
      EXPECT_EQ(report.block_refs, refs);
    }
  }
}

TEST(PureCache, TheExcerptsOtherFigures) {
  const PureCacheReport report =
      report_of(options_of(kExcerpt, EvictionPolicy::tail_first, kUnbounded));
  EXPECT_EQ(report.trace_format, "mooncake");
  EXPECT_EQ(report.block_tokens, 512);
  EXPECT_EQ(report.requests, 32);
  EXPECT_EQ(report.input_tokens, 441'842);
  EXPECT_EQ(report.evictions, 0);
  EXPECT_EQ(report.cached_blocks, report.block_refs - report.hit_blocks);
  EXPECT_DOUBLE_EQ(report.block_hit_rate(),
                   static_cast<double>(report.hit_blocks) / static_cast<double>(report.block_refs));
  EXPECT_DOUBLE_EQ(report.token_hit_rate(), static_cast<double>(report.hit_tokens) / 441'842.0);
}

TEST(PureCache, OnlyTheFirstRequestsCount) {
  PureCacheOptions options = options_of(kExcerpt, EvictionPolicy::tail_first, 100);
  options.max_requests = 5;
  EXPECT_EQ(report_of(options).requests, 5);
}

TEST(PureCache, RandomTracesAreAsTheNaiveCacheSays) {
  const std::uint64_t seed = test::number_from_environment("KVARENA_SEED", 1);
  SCOPED_TRACE(testing::Message() << "KVARENA_SEED=" << seed);
  std::mt19937_64 random(seed);
  const auto rounds = test::number_from_environment("KVARENA_TEST_ROUNDS", 1);
  for (std::uint64_t game = 0; game < 30 * rounds; ++game) {
    // Prompts are paths in a tree, so that prefixes are shared, and now and then any ids.
    std::vector<std::vector<std::int64_t>> requests(120);
    for (auto& ids : requests) {
      std::int64_t id = 0;
      const bool is_any = random() % 8 == 0;
      for (std::uint64_t left = 1 + random() % 7; left > 0; --left) {
        id = id * 3 + 1 + static_cast<std::int64_t>(random() % 3);
        ids.push_back(is_any ? static_cast<std::int64_t>(random() % 40) : id);
      }
    }
    const test::TempFile file(trace_of(requests));
    const auto prompts = prompts_of(file.path());
    const auto capacity = 1 + static_cast<std::int64_t>(random() % 60);
    for (const EvictionPolicy policy : kEvictionPolicies) {
      ASSERT_EQ(figures_of(report_of(options_of(file.path(), policy, capacity))),
                naive_figures(prompts, 512, policy, capacity))
          << "game " << game << ", " << name_of(policy) << ", " << capacity << " blocks";
    }
  }
}

TEST(PureCache, PromptsOfLessThanABlockHaveNoRate) {
  const test::TempFile file(
      R"({"timestamp": 0, "input_length": 15, "output_length": 1, "hash_ids": [], )"
      R"("scheduled_ms": 1})"
      "\n");
  const PureCacheReport report = report_of(options_of(file.path(), EvictionPolicy::tail_first, 1));
  EXPECT_EQ(report.block_tokens, 16);
  EXPECT_EQ(report.block_refs, 0);
  EXPECT_EQ(report.block_hit_rate(), 0.0);
  EXPECT_EQ(report.token_hit_rate(), 0.0);
}

TEST(PureCache, ATraceWithoutIdsIsRefused) {
  const test::TempFile file(
      "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n");
  const auto outcome = run_pure_cache(options_of(file.path(), EvictionPolicy::lfu, 10));
  EXPECT_EQ(outcome.end, RunEnd::bad_input);
  EXPECT_FALSE(outcome.has_report);
  EXPECT_HAS(outcome.why.found, "no hash ids");
}

TEST(PureCache, ADefectOfTheTraceIsReported) {
  const test::TempFile file(trace_of({{1, 2}}) + "{\n");
  const auto outcome = run_pure_cache(options_of(file.path(), EvictionPolicy::fifo, 10));
  EXPECT_EQ(outcome.end, RunEnd::bad_input);
  EXPECT_FALSE(outcome.has_report);
  EXPECT_HAS(outcome.why.subject, ":2:");
}

TEST(PureCache, AStopEndsItWithWhatWasDone) {
  struct StopAfterThree : ProgressSink {
    void on_progress(const ReplayProgress& progress) override {
      if (progress.requests_done == 3) stop = true;
    }
    std::atomic<bool> stop{false};
  } sink;
  PureCacheOptions options = options_of(kExcerpt, EvictionPolicy::fifo, 10);
  options.trace.stop = &sink.stop;
  const auto outcome = run_pure_cache(options, &sink);
  EXPECT_EQ(outcome.end, RunEnd::interrupted);
  EXPECT_TRUE(outcome.has_report);
  EXPECT_LE(outcome.report.requests, 4);
}

class PureCacheReference : public testing::TestWithParam<const char*> {};

TEST_P(PureCacheReference, EveryCapacityAndPolicyHasItsExactIntegers) {
  KVARENA_REQUIRE_DATA();
  std::ifstream file(test::data_dir() + "/reference.json");
  const auto reference = nlohmann::json::parse(file).at(GetParam());
  const std::string path = test::data_dir() + "/" + reference.at("file").get<std::string>();
  int compared = 0;
  for (const auto& [capacity, figures] : reference.at("lru").items()) {
    if (test::kSanitized && compared > 0) break;  // one capacity of a trace walks all its code
    for (const EvictionPolicy policy : kEvictionPolicies) {
      SCOPED_TRACE(testing::Message() << name_of(policy) << ", " << capacity << " blocks");
      const PureCacheReport report = report_of(options_of(path, policy, std::stoll(capacity)));
      EXPECT_EQ(report.requests, reference.at("requests"));
      EXPECT_EQ(report.input_tokens, reference.at("input_tokens"));
      EXPECT_EQ(report.block_refs, reference.at("block_refs"));
      EXPECT_EQ(report.block_tokens, reference.at("block_tokens"));
      if (policy == EvictionPolicy::fifo || policy == EvictionPolicy::lfu) {
        EXPECT_EQ(report.hit_blocks, figures.at(std::string(name_of(policy)) + "_hit_blocks"));
      } else {
        const auto& of_policy =
            figures.at(policy == EvictionPolicy::tail_first ? "tail_first" : "head_first");
        EXPECT_EQ(report.hit_blocks, of_policy.at("hit_blocks"));
        EXPECT_EQ(report.hit_tokens, of_policy.at("hit_tokens"));
        EXPECT_EQ(report.evictions, of_policy.at("evictions"));
      }
      ++compared;
    }
  }
  EXPECT_GE(compared, test::kSanitized ? 4 : 20);
}

TEST_P(PureCacheReference, ACacheForAllBlocksHasTheHitsOfAnInfiniteOne) {
  KVARENA_REQUIRE_DATA();
  std::ifstream file(test::data_dir() + "/reference.json");
  const auto reference = nlohmann::json::parse(file).at(GetParam());
  const auto& infinite = reference.at("infinite");
  for (const EvictionPolicy policy : kEvictionPolicies) {
    const PureCacheReport report = report_of(options_of(
        test::data_dir() + "/" + reference.at("file").get<std::string>(), policy, kUnbounded));
    EXPECT_EQ(report.hit_blocks, infinite.at("hit_blocks"));
    EXPECT_EQ(report.hit_tokens, infinite.at("hit_tokens"));
    EXPECT_EQ(report.requests_with_hit, infinite.at("requests_with_hit"));
    EXPECT_EQ(report.cached_blocks, reference.at("unique_blocks"));
    EXPECT_EQ(report.evictions, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Traces, PureCacheReference,
                         testing::Values("mooncake_conversation", "agent_miniswe",
                                         "vllm_rtx4090_llama31_8b"));

}  // namespace
}  // namespace kvarena::replay
