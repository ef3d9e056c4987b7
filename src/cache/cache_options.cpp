#include "cache/cache_options.hpp"

#include "kvarena/attention/cpu_workers.hpp"

#include <algorithm>
#include <limits>

namespace kvarena {
namespace {

constexpr std::int64_t kMaxStepsInFlight = 16;
constexpr std::int64_t kMaxRows = 1 << 20;
constexpr std::int64_t kMaxSequences = 1 << 24;
constexpr std::int64_t kMaxOpenTickets = 1 << 16;
constexpr std::int64_t kMaxDecodeTokens = 8;
constexpr std::int64_t kMaxQHeads = 4096;
constexpr std::int64_t kMaxTokens = std::numeric_limits<std::int32_t>::max();

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
  struct Range {
    Resource argument;
    std::int64_t value, smallest, largest;
  };
  const Range ranges[] = {
      {Resource::num_sequences, o.max_sequences, 1, kMaxSequences},
      {Resource::num_sequences, o.max_batch_rows, 1, kMaxRows},
      {Resource::sequence_length, o.max_sequence_tokens, 0, kMaxTokens},
      {Resource::num_tokens, o.max_step_tokens, 1, kMaxTokens},
      {Resource::window, o.window_tokens, 0, kMaxTokens},
      {Resource::event, o.steps_in_flight, 1, kMaxStepsInFlight},
      {Resource::num_tokens, o.max_decode_tokens, 1, kMaxDecodeTokens},
      {Resource::num_threads, o.num_threads, 0, CpuWorkers::kMaxThreads},
      {Resource::num_tickets, o.max_open_tickets, 1, kMaxOpenTickets},
      {Resource::num_q_heads, o.num_q_heads, o.layout.num_kv_heads, kMaxQHeads},
  };
  for (const Range& r : ranges) {
    if (Status s = check_range(r.argument, r.value, r.smallest, r.largest); !s) return s;
  }
  if (o.num_q_heads % o.layout.num_kv_heads == 0) return {};
  return invalid_argument(Resource::num_q_heads, o.num_q_heads, o.layout.num_kv_heads, kMaxQHeads);
}

}  // namespace kvarena
