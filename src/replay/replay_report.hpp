#pragma once

/// @file
/// The report of a replay. Plain values. The same trace and options give the same report, except
/// for `measured`.

#include "replay/failure.hpp"
#include "verify/verification.hpp"

#include "kvarena/allocator/accounts.hpp"
#include "kvarena/allocator/page_pool.hpp"
#include "kvarena/base/choose_pages.hpp"
#include "kvarena/blocktable/prefix.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace kvarena::replay {

/// Nearest-rank percentiles of a set of durations in microseconds; all 0 for an empty set.
struct DurationSummary {
  std::int64_t count = 0;
  double mean_us = 0.0;
  std::int64_t p50_us = 0;
  std::int64_t p90_us = 0;
  std::int64_t p99_us = 0;
  std::int64_t max_us = 0;
};

/// One group of layers in the pool, or one of the parts that a group with K and V is cut into.
struct GroupUse {
  PagedKind kind = PagedKind::full;  ///< the data that its layers keep
  bool is_latent = false;            ///< V is a part of K
  std::int32_t num_layers = 0;       ///< with data of their own
  std::int32_t num_parts = 1;        ///< state: the blocks of one
  std::int64_t limit_tokens = 0;     ///< window, chunk
  std::int64_t block_bytes = 0;      ///< of one block
  std::int32_t blocks_per_page = 1;  ///< blocks that a page is carved into
  std::int64_t blocks = 0;           ///< in use when most pages were
};

/// The pages of a pool with groups. `waste`: bytes of pages in use that no block in use has.
struct PageUseReport {
  std::int64_t num_pages = 0;         ///< of the pool
  std::int64_t page_bytes = 0;        ///< of one page
  std::int64_t peak_pages = 0;        ///< the most in use at a time
  std::int64_t peak_waste_bytes = 0;  ///< at that time
  double waste = 0.0;                 ///< share of the bytes of pages in use, mean over time
  PageStats account;                  ///< at the end
};

struct ReplayReport {
  std::string trace_format;        ///< "mooncake", ...
  std::int64_t requests = 0;       ///< read from the trace
  std::int64_t completed = 0;      ///< requests served to the end
  std::int64_t rejected = 0;       ///< requests that can never fit pool or context
  std::string first_rejection;     ///< the first rejected request, and why it was rejected
  std::int64_t input_tokens = 0;   ///< of the requests read
  std::int64_t output_tokens = 0;  ///< of the requests read

  std::int32_t block_size = 0;         ///< tokens
  std::int64_t num_blocks = 0;         ///< of the pool
  std::int64_t pool_bytes = 0;         ///< of the arena; 0 when no bytes exist
  std::int64_t watermark_blocks = 0;   ///< blocks that admission left free
  std::int64_t worst_case_blocks = 0;  ///< of an unlimited pool that got fewer; else 0

  std::int64_t peak_blocks = 0;    ///< the manager's own peak
  std::int64_t peak_requests = 0;  ///< sequences at a time
  double time_mean_blocks = 0.0;   ///< over time, first arrival to last end
  std::int64_t final_blocks = 0;   ///< sum over finished sequences of blocks at their final length
  std::int64_t final_tokens = 0;   ///< sum over finished sequences of their final length
  double waste = 0.0;              ///< 1 - final_tokens / (block_size * final_blocks)

  DurationSummary queueing;            ///< arrival to first admission
  DurationSummary latency;             ///< arrival to the end of a request's last sequence
  std::int64_t virtual_us = 0;         ///< first arrival to last end
  std::int64_t steps = 0;              ///< of the step clock
  std::int64_t prefill_tokens = 0;     ///< computed, recomputed ones included
  std::int64_t decode_tokens = 0;      ///< generated
  std::int64_t preemptions = 0;        ///< sequences that were preempted because blocks ran out
  std::int64_t recomputed_tokens = 0;  ///< tokens of KV that preempted sequences lost
  std::int64_t forks = 0;              ///< sequences forked
  std::int64_t copies_on_write = 0;    ///< blocks copied

  bool has_prefix_cache = false;   ///< whether the next figures are of a prefix cache
  PrefixStats prefix;              ///< of the tables: sequences asked once for each admission
  std::int64_t salts = 0;          ///< different ones among the requests; 0 without a salt column
  std::int64_t cached_tokens = 0;  ///< prompt tokens that were not computed, as they were cached

  std::vector<GroupUse> groups;  ///< of a pool with groups, which counts pages in place of blocks
  PageUseReport pages;           ///< the same

  BlockStats account;                       ///< the manager's account at the end
  bool balanced = false;                    ///< everything is free again and all invariants hold
  verify::VerificationReport verification;  ///< all zero with attention off
  verify::MeasuredReport measured;          ///< of a GPU
};

/// The end of a replay in words, and its figures up to there.
struct ReplayOutcome {
  ReplayEnd end = ReplayEnd::completed;
  Finding why;              ///< empty when completed
  bool has_report = false;  ///< whether the replay began
  ReplayReport report;
};

}  // namespace kvarena::replay
