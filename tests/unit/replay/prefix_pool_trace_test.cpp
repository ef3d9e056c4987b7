// Whole request traces on a real pool with a prefix cache, one request at a time: it reuses exactly
// what the trace folder's reference figures say is reusable at each capacity.
//
// A block of a trace is a block of one token, its id. A request takes the cached blocks of its
// prompt and new ones for the rest, publishes them, and gives them back, the last one first.

#include "kvarena/allocator/block_manager.hpp"
#include "kvarena/blocktable/prefix_pool.hpp"
#include "support/process_memory.hpp"
#include "support/status_matchers.hpp"
#include "support/test_files.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <span>
#include <string>
#include <vector>

namespace kvarena {
namespace {

struct Request {
  std::vector<std::int32_t> ids;
  std::int64_t tokens = 0;
};

std::vector<Request> requests_of(const std::string& path) {
  std::vector<Request> requests;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line);
    requests.push_back({json.at("hash_ids"), json.at("input_length")});
  }
  return requests;
}

/// What requests have found.
struct Reuse {
  std::int64_t blocks = 0;
  std::int64_t tokens = 0;
  std::int64_t evictions = 0;
};

Reuse play(const std::vector<Request>& requests, std::int64_t capacity, std::int64_t block_tokens) {
  BlockManager manager = BlockManager::create({.num_blocks = capacity}).value();
  PrefixPool prefixes =
      PrefixPool::create(manager, {.block_size_tokens = 1, .prefix = {.hash_key = {1, 2}}}).value();
  const HolderId holder = manager.register_holder({}).value();
  Reuse reuse;
  for (const Request& request : requests) {
    const std::size_t count = request.ids.size();
    std::vector<std::int32_t> prompt = request.ids;
    prompt.push_back(-1);  // the token that is left to compute
    std::vector<BlockId> ids(count);
    std::vector<Generation> generations(count);
    PrefixAdoption begun = prefixes.adopt(holder, {.tokens = prompt}, ids, generations).value();
    const auto found = static_cast<std::size_t>(begun.found.blocks);
    reuse.blocks += begun.found.blocks;
    reuse.tokens += std::min(begun.found.blocks * block_tokens, request.tokens);
    const auto rest = std::span(ids).subspan(found);
    const auto numbers = std::span(generations).subspan(found);
    const Result<std::int64_t> evicted = manager.allocate(holder, rest, numbers);
    if (!evicted) {
      ADD_FAILURE() << describe(evicted.status());
      return reuse;
    }
    reuse.evictions += *evicted;
    prefixes.notice(manager.evicted());
    EXPECT_OK(prefixes.register_blocks(begun.end, std::span(prompt).subspan(found, count - found),
                                       rest, numbers));
    EXPECT_OK(prefixes.publish(rest, numbers));
    std::ranges::reverse(ids);
    std::ranges::reverse(generations);
    EXPECT_OK(manager.release(holder, ids, generations));
  }
  EXPECT_OK(prefixes.check_invariants());
  return reuse;
}

class PrefixPoolTrace : public testing::TestWithParam<const char*> {};

TEST_P(PrefixPoolTrace, ReusesWhatTheReferenceSaysIsReusable) {
  KVARENA_REQUIRE_DATA();
  std::ifstream file(test::data_dir() + "/reference.json");
  const auto reference = nlohmann::json::parse(file).at(GetParam());
  const auto requests =
      requests_of(test::data_dir() + "/" + reference.at("file").get<std::string>());
  ASSERT_EQ(std::ssize(requests), reference.at("requests"));
  std::size_t longest = 0;
  for (const Request& request : requests) longest = std::max(longest, request.ids.size());
  int compared = 0;
  for (const auto& [name, figures] : reference.at("lru").items()) {
    const std::int64_t capacity = std::stoll(name);
    if (test::kSanitized && compared > 0) break;
    if (capacity < static_cast<std::int64_t>(longest)) continue;  // such a request never fits
    SCOPED_TRACE(testing::Message() << capacity << " blocks");
    const Reuse reuse = play(requests, capacity, reference.at("block_tokens"));
    const auto& expected = figures.at("tail_first");
    EXPECT_EQ(reuse.blocks, expected.at("hit_blocks"));
    EXPECT_EQ(reuse.tokens, expected.at("hit_tokens"));
    // The reference can evict a block that the request has found, and insert it again. A request
    // holds its blocks here.
    EXPECT_LE(reuse.evictions, expected.at("evictions"));
    ++compared;
  }
  EXPECT_GE(compared, test::kSanitized ? 1 : 2);
}

INSTANTIATE_TEST_SUITE_P(Traces, PrefixPoolTrace,
                         testing::Values("mooncake_conversation", "agent_miniswe",
                                         "vllm_rtx4090_llama31_8b"));

}  // namespace
}  // namespace kvarena
