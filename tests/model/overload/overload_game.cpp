#include "model/overload/overload_game.hpp"

#include "kvarena/allocator/block_manager.hpp"
#include "kvarena/blocktable/block_tables.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>

namespace kvarena::model {
namespace {

constexpr std::int64_t kMaxTokens = 131'072;  // for which the page is chosen
constexpr std::size_t kMaxRunning = 1024;
constexpr std::int64_t kDecoded = 16;  // tokens of a sequence in a step
constexpr std::int64_t kSparePart = 100;

std::int64_t first_readable(const PagedGroup& group, std::int64_t tokens) noexcept {
  if (group.kind == PagedKind::window) {
    return std::max<std::int64_t>(0, tokens - group.limit_tokens + 1);
  }
  if (group.kind == PagedKind::chunk) return tokens / group.limit_tokens * group.limit_tokens;
  return 0;
}

class ExactPool final : public OverloadPool {
 public:
  explicit ExactPool(std::span<const PagedGroup> groups) : groups_(groups.begin(), groups.end()) {}

  bool admit(std::size_t sequence, std::int64_t tokens) override {
    return take(sequence, tokens, kOverloadPoolBytes / kSparePart);
  }
  bool grow(std::size_t sequence, std::int64_t tokens) override {
    return take(sequence, tokens, 0);
  }
  void end(std::size_t sequence) override {
    free_ += held_[sequence];
    held_[sequence] = 0;
  }

 private:
  bool take(std::size_t sequence, std::int64_t tokens, std::int64_t spare) {
    if (held_.size() <= sequence) held_.resize(sequence + 1);
    const std::int64_t more = readable_bytes(groups_, tokens) - held_[sequence];
    if (more > free_ - spare) return false;
    free_ -= more;
    held_[sequence] += more;
    return true;
  }

  std::vector<PagedGroup> groups_;
  std::int64_t free_ = kOverloadPoolBytes;
  std::vector<std::int64_t> held_;
};

class PagedPool final : public OverloadPool {
 public:
  PagedPool(std::span<const PagedGroup> groups, std::size_t num_sequences)
      : choice_(choose_pages(groups, kMaxTokens).value()) {
    std::vector<BlockGroup> carved;
    std::vector<TableGroup> tables;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const PagedBlocks& blocks = choice_.groups[g];
      const bool is_state = groups[g].kind == PagedKind::state;
      for (std::int32_t part = 0; part < (is_state ? 1 : blocks.num_parts); ++part) {
        carved.push_back({blocks.blocks_per_page, blocks.block_bytes});
        tables.push_back({.kind = groups[g].kind,
                          .block_size_tokens = groups[g].block_size_tokens,
                          .limit_tokens = groups[g].limit_tokens,
                          .num_parts = is_state ? blocks.num_parts : 1});
        retention_.push_back(groups[g]);
      }
    }
    carved_ = carved;
    tables_groups_ = tables;
    manager_ = std::make_unique<BlockManager>(
        BlockManager::create({.num_blocks = kOverloadPoolBytes / choice_.page_bytes,
                              .max_holders = static_cast<std::int32_t>(kMaxRunning) + 1,
                              .max_open_tickets = 1,
                              .max_fence_entries = 1,
                              .groups = carved})
            .value());
    tables_ = std::make_unique<BlockTables>(
        BlockTables::create(*manager_, {.max_sequences = static_cast<std::int32_t>(kMaxRunning) + 1,
                                        .max_pins = 0,
                                        .max_append_tokens = kDecoded,
                                        .groups = tables,
                                        .checkpoint_every_tokens = 0})
            .value());
    ids_.resize(num_sequences, kNoSequence);
    lengths_.resize(num_sequences);
  }

  bool admit(std::size_t sequence, std::int64_t tokens) override {
    const PageStats pages = manager_->page_stats();
    if (pages_for(tokens) > pages.available() - pages.num_pages / kSparePart) return false;
    const auto id = tables_->create_sequence();
    EXPECT_TRUE(id.is_ok());
    ids_[sequence] = *id;
    lengths_[sequence] = 0;
    if (grow(sequence, tokens)) return true;
    end(sequence);
    return false;
  }

  bool grow(std::size_t sequence, std::int64_t tokens) override {
    for (std::int64_t& length = lengths_[sequence]; length < tokens;) {
      // To the end of a block: a window gives up its first before the next.
      const std::int64_t next = std::min(tokens, (length / kDecoded + 1) * kDecoded);
      const AppendDemand demand{ids_[sequence], static_cast<std::int32_t>(next - length)};
      if (!tables_->append({&demand, 1})) return false;
      tables_->settle_append();
      length = next;
    }
    return true;
  }

  void end(std::size_t sequence) override {
    EXPECT_TRUE(tables_->destroy(ids_[sequence]));
    ids_[sequence] = kNoSequence;
  }

 private:
  std::int64_t pages_for(std::int64_t tokens) const {
    std::int64_t pages = 0;
    for (std::size_t g = 0; g < carved_.size(); ++g) {
      const std::int64_t blocks =
          retained(retention_[g], tokens).num_blocks() * tables_groups_[g].num_parts;
      pages += (blocks + carved_[g].blocks_per_page - 1) / carved_[g].blocks_per_page;
    }
    return pages;
  }

  PageChoice choice_;
  std::vector<BlockGroup> carved_;
  std::vector<TableGroup> tables_groups_;
  std::vector<PagedGroup> retention_;  // by table
  std::unique_ptr<BlockManager> manager_;
  std::unique_ptr<BlockTables> tables_;
  std::vector<SequenceId> ids_;
  std::vector<std::int64_t> lengths_;
};

}  // namespace

std::unique_ptr<OverloadPool> exact_pool(std::span<const PagedGroup> groups) {
  return std::make_unique<ExactPool>(groups);
}

std::unique_ptr<OverloadPool> paged_pool(std::span<const PagedGroup> groups,
                                         std::size_t num_sequences) {
  return std::make_unique<PagedPool>(groups, num_sequences);
}

std::int64_t readable_bytes(std::span<const PagedGroup> groups, std::int64_t tokens) noexcept {
  std::int64_t bytes = 0;
  for (const PagedGroup& group : groups) {
    // layer_bytes are of a block, or of a state.
    const std::int64_t each = group.num_layers * group.layer_bytes;
    bytes += group.kind == PagedKind::state
                 ? each
                 : (tokens - first_readable(group, tokens)) * (each / group.block_size_tokens);
  }
  return bytes;
}

OverloadResult play_overload(std::span<const PagedGroup> groups, OverloadPool& pool,
                             std::span<const OverloadRequest> requests) {
  struct Running {
    std::size_t request;
    std::int64_t tokens;
  };
  std::deque<std::size_t> waiting;
  for (std::size_t i = 0; i < requests.size(); ++i) waiting.push_back(i);
  std::vector<Running> running;
  OverloadResult result;
  double readable = 0.0;
  std::int64_t full_steps = 0;
  while (!waiting.empty() || !running.empty()) {
    while (!waiting.empty() && running.size() < kMaxRunning) {
      const std::size_t first = waiting.front();
      if (!pool.admit(first, requests[first].prompt)) break;
      running.push_back({first, requests[first].prompt});
      waiting.pop_front();
    }
    if (running.empty()) return result;  // a request does not fit
    if (!waiting.empty() && running.size() < kMaxRunning) {
      ++full_steps;
      for (const Running& its : running) {
        readable += static_cast<double>(readable_bytes(groups, its.tokens));
      }
    }
    ++result.steps;
    for (std::size_t i = 0; i < running.size();) {
      const OverloadRequest& request = requests[running[i].request];
      const std::int64_t tokens =
          std::min(running[i].tokens + kDecoded, request.prompt + request.output);
      if (pool.grow(running[i].request, tokens)) {
        running[i++].tokens = tokens;
        continue;
      }
      pool.end(running.back().request);
      waiting.push_front(running.back().request);
      running.pop_back();
      ++result.preemptions;
    }
    std::erase_if(running, [&](const Running& its) {
      const OverloadRequest& request = requests[its.request];
      if (its.tokens < request.prompt + request.output) return false;
      pool.end(its.request);
      return true;
    });
  }
  result.is_complete = true;
  if (full_steps > 0) {
    result.waste =
        1.0 - readable / static_cast<double>(full_steps) / static_cast<double>(kOverloadPoolBytes);
  }
  return result;
}

}  // namespace kvarena::model
