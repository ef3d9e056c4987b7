#pragma once

/// @file
/// The options of a replay. A plain value; run_replay validates it.

#include "replay/failure.hpp"
#include "trace/trace_reader.hpp"
#include "verify/verification.hpp"

#include "kvarena/allocator/eviction_policy.hpp"
#include "kvarena/base/group_layout.hpp"
#include "kvarena/base/layout.hpp"
#include "kvarena/capacity/step_time.hpp"
#include "kvarena/device/device.hpp"

#include <cstdint>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <string_view>

namespace kvarena::replay {

/// How virtual time passes. `step`: an engine runs one step after another, at fixed costs. Each
/// step has the decode tokens of all running sequences and chunks of prefill. `roofline`: the same
/// engine, with steps as long as a GPU needs for them. `linear`: each request runs on its own time
/// line, as if it were alone on the device, and holds the blocks of its final length from start to
/// end.
enum class ClockKind : std::uint8_t { step, roofline, linear };

/// The blocks that admission secures. `full`: it takes the blocks of prompt and output. `prompt`:
/// it promises the blocks of the prompt. `none`: only the first chunk must fit.
enum class Reserve : std::uint8_t { full, prompt, none };

using verify::AttentionMode;

/// Costs of the virtual engine, nanoseconds.
struct ReplayCosts {
  std::int64_t prefill_ns = 10'000;     ///< a prompt token
  std::int64_t decode_ns = 20'000'000;  ///< step: a step that decodes; linear: an output token
  std::int64_t step_ns = 0;             ///< any step, of the roofline clock too
};

/// Limits of the virtual engine. 0 means unlimited.
struct ReplayLimits {
  std::int64_t max_running = 256;          ///< sequences at a time
  std::int64_t max_context_tokens = 0;     ///< prompt + output; longer requests are rejected
  std::int64_t max_batched_tokens = 8192;  ///< tokens of one step
  std::int64_t max_requests = 0;           ///< only the first so many of the trace
};

/// The pool. Without a count and without bytes, the pool has the blocks that the trace needs in the
/// worst case.
struct ReplayPool {
  std::optional<std::int64_t> num_blocks;  ///< that many
  std::optional<std::int64_t> pool_bytes;  ///< or as many as fit
  std::optional<std::int64_t>
      watermark_blocks;                  ///< admission leaves these; absent: watermark_permille
  std::int32_t watermark_permille = 10;  ///< of the pool, where running sequences may grow
};

struct ReplayAttention {
  AttentionMode mode = AttentionMode::off;
  Device* device = nullptr;        ///< where, open; outlives the replay. Only off needs none
  UniformLayoutOptions shape;      ///< of the model; block_size_tokens is the replay's too
  std::int32_t num_q_heads = 0;    ///< a multiple of the KV heads
  std::int64_t sample_every = 64;  ///< steps from one verified decode step to the next
  std::int32_t num_threads = 1;    ///< host: for writing KV and for attention
};

/// Layers that keep different data, in a pool of equal pages. The pool, its watermark and reports
/// count pages then. Without groups all layers are those of ReplayAttention::shape.
struct ReplayGroups {
  std::span<const LayerGroup> list{};           ///< borrowed; blocks of shape.block_size_tokens
  std::int64_t page_sequence_tokens = 0;        ///< as in KvCacheOptions
  std::int64_t checkpoint_every_tokens = 2048;  ///< the same; a multiple of the blocks
};

struct ReplayOptions {
  trace::TraceReaderOptions trace;  ///< what its `stop` ends is the whole replay
  ClockKind clock = ClockKind::step;
  Reserve reserve = Reserve::prompt;
  ReplayCosts costs;
  std::optional<capacity::StepTimeModel> roofline;  ///< of the roofline clock, and only of it
  ReplayLimits limits;
  ReplayPool pool;
  ReplayAttention attention;
  ReplayGroups groups;
  bool prefix_cache = false;  ///< sequences begin with the blocks of equal prefixes that are cached
  /// Which cached block goes first, with a prefix cache. Without priority, which no trace knows.
  EvictionPolicy policy = EvictionPolicy::tail_first;
  bool keep_preempted = false;       ///< preempted sequences keep blocks until somebody needs them
  std::int32_t samples = 1;          ///< sequences a request forks into after its prompt
  std::ostream* timeline = nullptr;  ///< gets the series as CSV; its owner checks it
  std::int64_t timeline_ns = 1'000'000'000;  ///< virtual time between its rows
  std::ostream* request_times = nullptr;     ///< gets when each request was served; null: nobody
};

/// The names of the command line.
std::string_view name_of(ClockKind clock) noexcept;
std::string_view name_of(Reserve reserve) noexcept;

/// A failure for options that cannot go together.
ReplayFailure contradiction(std::string happened, std::string expected, std::string advice);

/// Returns what is wrong with the options, before anything is read or made.
MaybeFailure check_options(const ReplayOptions& options);

}  // namespace kvarena::replay
