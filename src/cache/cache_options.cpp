#include "cache/cache_options.hpp"

#include "base/range_checks.hpp"
#include "kvarena/attention/cpu_workers.hpp"

#include <algorithm>
#include <limits>

namespace kvarena {
namespace {

constexpr std::int64_t kMaxStepsInFlight = 16;
constexpr std::int64_t kMaxRows = 1 << 20;
constexpr std::int64_t kMaxSequences = 1 << 24;
constexpr std::int64_t kMaxOpenTickets = 1 << 16;
constexpr std::int64_t kMaxDecodeTokens = 16;
constexpr std::int64_t kMaxSharedRows = 4096;
constexpr std::int64_t kMaxInvariantTokens = std::int64_t{1} << 28;
constexpr std::int64_t kMaxQHeads = 4096;
constexpr std::int64_t kMaxTokens = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

/// The checks of BlockManager and of the prefix cache, for caches that are only planned.
Status check_prefix(const KvCacheOptions& o) noexcept {
  if (Status s = check_enum(Option::eviction, o.eviction, kEvictionPolicies.back()); !s) return s;
  if (!o.prefix_cache.is_on) return {};
  if (Status s = check_each({
          {Option::max_extra_keys, o.prefix_cache.max_extra_keys, 0, PrefixOptions::kMostExtraKeys},
          {Option::history_entries, o.prefix_cache.history_entries, 0, kMaxTokens},
          {Option::max_accounts, o.prefix_cache.max_accounts, 0, PrefixOptions::kMostAccounts},
          {Option::ghost_blocks, o.prefix_cache.ghost_blocks,
           o.prefix_cache.ghost_blocks == 0 ? 0 : PrefixOptions::kFewestGhostBlocks,
           PrefixOptions::kMostGhostBlocks},
      });
      !s) {
    return s;
  }
  return check_enum(Option::duplicates, o.prefix_cache.duplicates, DuplicateRule::wait);
}

}  // namespace

Status check_range(Resource argument, std::int64_t value, std::int64_t smallest,
                   std::int64_t largest) noexcept {
  if (value >= smallest && value <= largest) return {};
  return invalid_argument(argument, value, smallest, largest);
}

Status complete(KvCacheOptions& o) noexcept {
  if (o.max_batch_rows == 0 && o.max_sequences > 0) {
    o.max_batch_rows = static_cast<std::int32_t>(std::min<std::int64_t>(o.max_sequences, kMaxRows));
  }
  if (Status s = check_each({
          {Option::max_sequences, o.max_sequences, 1, kMaxSequences},
          {Option::max_batch_rows, o.max_batch_rows, 1, kMaxRows},
          {Option::max_sequence_tokens, o.max_sequence_tokens, 0, kMaxTokens},
          {Option::max_step_tokens, o.max_step_tokens, 1, kMaxTokens},
          {Option::window_tokens, o.window_tokens, 0, kMaxTokens},
          {Option::steps_in_flight, o.steps_in_flight, 1, kMaxStepsInFlight},
          {Option::max_decode_tokens, o.max_decode_tokens, 1, kMaxDecodeTokens},
          {Option::batch_invariant_tokens, o.batch_invariant_tokens, 0, kMaxInvariantTokens},
          {Option::max_shared_rows, o.max_shared_rows, 0, kMaxSharedRows},
          {Option::num_threads, o.num_threads, 0, CpuWorkers::kMaxThreads},
          {Option::max_open_tickets, o.max_open_tickets, 1, kMaxOpenTickets},
          {Option::num_q_heads, o.num_q_heads, o.layout.num_kv_heads, kMaxQHeads},
          {Option::max_batch_blocks, o.max_batch_blocks, 0, kMaxTableEntries},
          {Option::max_fence_entries, o.max_fence_entries, 0, kMaxTokens},
          {Option::max_table_pages, o.max_table_pages, 0, kMaxTokens},
          {Option::max_pins, o.max_pins, 0, kMaxSequences},
          {Option::audit_blocks_per_step, o.audit_blocks_per_step, 0, kMost},
      });
      !s) {
    return s;
  }
  if (Status s = check_enum(Option::order, o.order, BlockOrder::layer_major); !s) return s;
  if (Status s = check_enum(Option::scrub, o.scrub, Scrub::always); !s) return s;
  if (Status s = check_prefix(o); !s) return s;
  if (o.num_q_heads % o.layout.num_kv_heads == 0) return {};
  return invalid_option(Option::num_q_heads, o.num_q_heads, o.layout.num_kv_heads, kMaxQHeads);
}

}  // namespace kvarena
