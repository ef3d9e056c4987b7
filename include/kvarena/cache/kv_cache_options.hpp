#pragma once

/// @file
/// What a `KvCache` is created with. Plain values; nothing is owned.

#include "kvarena/allocator/arena.hpp"
#include "kvarena/allocator/operation_log.hpp"
#include "kvarena/base/clock.hpp"
#include "kvarena/base/layout.hpp"

#include <cstdint>

namespace kvarena {

/// When the zeros are written that a sequence finds past its tokens, in every layer, K and V: in a
/// block that its tokens enter, reserved before or not, behind the shared tokens of a copy on
/// write, and behind those of a fork that goes on in place. Queued by append, before any of the
/// step's tokens is written; costs 9 bytes of host memory a block.
enum class Scrub : std::uint8_t {
  never,            ///< a block keeps what was in it
  on_owner_change,  ///< unless all in it is of the same owner (SequenceOptions::owner)
  always,           ///< each time
};

/// Options of a cache.
struct KvCacheOptions {
  UniformLayoutOptions layout{};               ///< planes and block size
  PoolSize size{};                             ///< how many blocks
  BlockOrder order = BlockOrder::block_major;  ///< which bytes lie together
  Scrub scrub = Scrub::never;                  ///< when recycled blocks are cleared
  std::int32_t num_q_heads = 0;                ///< of attend; a multiple of the KV heads
  std::int32_t max_sequences = 1024;           ///< sequences at a time
  std::int64_t max_sequence_tokens = 0;        ///< of one sequence; 0: what the pool holds
  std::int32_t max_batch_rows = 0;             ///< sequences in a step; 0: max_sequences
  std::int64_t max_step_tokens = 8192;         ///< new tokens in a step
  std::int64_t max_batch_blocks = 0;           ///< table entries of a step's rows; 0: 4 x blocks
  std::int64_t watermark_blocks = 0;           ///< see BlockManagerOptions
  std::int32_t window_tokens = 0;              ///< sliding window of `windowed` layers; 0: none
  std::int32_t steps_in_flight = 2;            ///< k: step n waits for step n - k; 1 .. 16
  std::int32_t max_open_tickets = 64;          ///< tickets not retired yet, 1 .. 65536
  std::int64_t max_fence_entries = 0;          ///< see BlockManagerOptions; 0: as there
  std::int64_t max_table_pages = 0;            ///< see BlockTablesOptions; 0: as there
  bool eager_retire = false;           ///< retire tickets as soon as their work has completed
  std::int32_t num_threads = 0;        ///< host: attention threads; 0: one a core
  std::int32_t max_decode_tokens = 1;  ///< CUDA: new tokens a row up to which decode attention, not
                                       ///< prefill, serves it (speculation); 1 .. 8
  void* home_stream = nullptr;         ///< CUDA: cudaStream_t to work on; null: one of its own
  OperationLog* log = nullptr;         ///< see BlockManagerOptions
  std::int64_t audit_blocks_per_step = 64;  ///< see StepPublisherOptions; 0: no audit
  const Clock* clock = nullptr;             ///< of publications; borrowed; nullptr: steady_clock()
};

}  // namespace kvarena
