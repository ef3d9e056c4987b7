#pragma once

/// @file
/// The options of a `KvCache`. Plain values; nothing is owned.

#include "kvarena/allocator/arena.hpp"
#include "kvarena/allocator/eviction_policy.hpp"
#include "kvarena/allocator/operation_log.hpp"
#include "kvarena/base/clock.hpp"
#include "kvarena/base/group_layout.hpp"
#include "kvarena/base/layout.hpp"
#include "kvarena/blocktable/prefix.hpp"

#include <cstdint>
#include <span>
#include <string_view>

namespace kvarena {

/// When a cache writes zeros behind the tokens of a sequence, in every layer: K, V, scales and
/// index, not the padding between them. The places are: a block that its tokens enter (reserved
/// before or not), the rest of a copy on write behind the shared tokens, and the rest of the last
/// block of a fork, cut or not, that goes on in place. append queues the zeros before any token of
/// the step is written. Zeros that the device skipped because work of a step has failed are queued
/// again; the cache sees failures as with a prefix cache (kv_cache.hpp). Scrubbing costs 10 bytes
/// of host memory a block, 14 in groups of encoders.
///
/// With groups, which cost 38 bytes a page more, a page that goes to another group is cleared as a
/// whole, with padding, and this counts for its blocks. Behind an import, the next append does so
/// with the rest of its page, and with the page once it is free and used again. The blocks of an
/// encoder are cleared by the first append of any sequence that has them, and what is behind its
/// tokens in both modes. A state has zeros, or what it goes on from, where the cache writes it
/// (in_place); with read_write it keeps its old bytes until the engine's kernel has written all of
/// it.
enum class Scrub : std::uint8_t {
  never,            ///< a block keeps its old bytes
  on_owner_change,  ///< except when all content of the block has the same owner
                    ///< (SequenceOptions::owner)
  always,           ///< always
};

/// Options of a cache.
struct KvCacheOptions {
  UniformLayoutOptions layout{};               ///< planes and block size
  PoolSize size{};                             ///< how many blocks
  BlockOrder order = BlockOrder::block_major;  ///< which bytes lie together
  Scrub scrub = Scrub::never;                  ///< when recycled blocks are cleared
  std::int32_t num_q_heads = 0;          ///< query heads of attend; a multiple of the KV heads
  std::int32_t max_sequences = 1024;     ///< sequences at a time
  std::int64_t max_sequence_tokens = 0;  ///< tokens of one sequence; 0: as many as the pool holds
  std::int32_t max_batch_rows = 0;       ///< sequences in a step; 0: max_sequences. CUDA, with
                                         ///< draft_trees or batch_invariant_tokens: at most 16384
  std::int64_t max_step_tokens = 8192;   ///< new tokens in a step
  std::int64_t max_batch_blocks = 0;     ///< blocks that all rows of a step have together, with
                                         ///< groups the kept ones of each; 0: 4 x the most blocks
                                         ///< of one group that the pool can hold
  std::int64_t watermark_blocks = 0;     ///< see BlockManagerOptions
  std::int32_t window_tokens = 0;    ///< sliding window of calls with AttendArgs::windowed; 0: none
  std::int32_t steps_in_flight = 2;  ///< k: step n waits for step n - k; 1 .. 16
  std::int32_t max_open_tickets = 64;  ///< tickets that have not retired, 1 .. 65536
  std::int64_t max_fence_entries = 0;  ///< see BlockManagerOptions
  std::int64_t max_table_pages = 0;    ///< see BlockTablesOptions
  std::int32_t max_pins = 64;          ///< pins at a time
  bool eager_retire = false;           ///< retire tickets as soon as their work has completed
  std::int32_t num_threads = 0;        ///< host: attention threads; 0: one a core
  std::int32_t max_decode_tokens = 1;  ///< CUDA: most tokens of a recorded row, and where no kernel
                                       ///< for many query columns runs (cuda::row_classes), of a
                                       ///< row that decode attention serves; 1 .. 16
  std::int64_t batch_invariant_tokens = 0;  ///< not 0: the bits of a sequence's results do not
                                            ///< depend on the rest of its step. CUDA: when the
                                            ///< step's sequences have at most so many tokens
                                            ///< together; <= 2^28
  bool draft_trees = false;  ///< AttendArgs::tree_mask may be set (speculation with trees). CUDA:
                             ///< needs compute capability 9.0, and a step with one has no prompts
                             ///< (cuda::row_classes) and no soft cap. Steps without one are free
  std::int32_t max_shared_rows = 256;  ///< CUDA: sequences of a step that may read common leading
                                       ///< blocks together (forks), where the kernels can; 0: each
                                       ///< reads for itself; at most 4096. The workspace grows with
                                       ///< it
  void* home_stream = nullptr;  ///< CUDA: the cudaStream_t of steps that name no stream; null: the
                                ///< cache creates one
  OperationLog* log = nullptr;  ///< see BlockManagerOptions
  std::int64_t audit_blocks_per_step = 64;  ///< see StepPublisherOptions; 0: no audit
  const Clock* clock = nullptr;             ///< for publications; borrowed; nullptr: steady_clock()
  std::string_view name = {};  ///< copied; names the cache to the violation handler, in log lines
                               ///< and in lists of allocations, where a process has several
  /// Borrowed during create. Layers that keep different data, in one pool of equal pages. `layout`
  /// and `window_tokens` are not used then, and size.num_blocks, watermark_blocks and promises
  /// count pages. None: all layers are alike. Groups need block-major order. On CUDA their leading
  /// blocks are not read together.
  std::span<const LayerGroup> groups{};
  /// With groups: the page is chosen for sequences of up to so many tokens. It does not limit them.
  /// 0: max_sequence_tokens, or 131,072 when that is 0 too.
  std::int64_t page_sequence_tokens = 0;
  std::int64_t checkpoint_every_tokens = 2048;  ///< with groups of states, see BlockTablesOptions
  /// Sequences that begin with the same tokens share blocks: see KvCache::create_sequence. With
  /// groups, one of them keeps all tokens, none is of an encoder, and their blocks have one size.
  /// Off: nothing of it costs memory or time.
  PrefixOptions prefix_cache{};
  EvictionPolicy eviction = EvictionPolicy::tail_first;  ///< with a prefix cache: which cached
                                                         ///< block (with groups: page) goes first
};

}  // namespace kvarena
