#pragma once

/// @file
/// Paged attention on CUDA for engines with block tables of their own (KvCache uses the same
/// functions): what dispatches a step's KV writes and attention to kernels. All calls queue work on
/// the caller's stream and can be captured in a CUDA graph; none allocates, synchronises or reads
/// device memory on the host. Semantics are those of attention.hpp and kv_write.hpp, whose argument
/// structs are used here with every array in device memory.
///
/// A step, once its tables and lengths are on the device:
///
///     launch_schedule(step, args, stream);        // once for all layers with the same window
///     for (layer ...) {
///       launch_append(append_args, overlap, stream);
///       launch_attention(step, args, stream);
///     }
///
/// `overlap` (programmatic dependent launch) lets a kernel begin while the one in front of it on
/// the stream ends: it then waits for that one's results, but reads the schedule, the tables, and K
/// and V of older tokens before. Set it where the kernel in front wrote none of these: in every
/// launch of a step but the first after launch_schedule.
///
/// The same inputs give the same bits, run after run. A row's last bits may depend on the other
/// rows of its batch, by whose lengths the schedule cuts: there is no mode of fixed cuts yet, and
/// without one attention is not batch-invariant.
///
/// `stream` is a cudaStream_t; its GPU must be the current one of the calling thread. This header
/// needs no CUDA; in builds without CUDA takes_decode and workspace_bytes, which are pure, say what
/// they say with it, and every other call returns unsupported (device).

#include "kvarena/attention/attention.hpp"
#include "kvarena/attention/kv_write.hpp"
#include "kvarena/base/export.hpp"
#include "kvarena/base/result.hpp"

#include <cstdint>

namespace kvarena::cuda {

/// What a workspace serves. The schedule depends on it: the same limits give the same bits.
struct AttentionShape {
  KvLayerView kv;                      ///< any layer's: only types, heads, dims and sizes matter
  std::int32_t num_q_heads = 0;        ///< a multiple of the KV heads
  std::int32_t max_rows = 0;           ///< rows of decode attention, 1 .. 2^20
  std::int32_t max_decode_tokens = 1;  ///< query tokens a row that it takes, 1 .. 8
  std::int32_t num_sms = 0;            ///< CudaDeviceInfo::num_sms; with more, thread blocks
                                       ///< that wait for one another may hang
};

/// What the host knows of a step, and where its schedule lies.
struct AttentionStep {
  AttentionShape shape;            ///< as its workspace was made ready for
  std::int64_t total_q = 0;        ///< query tokens of all rows, or an upper bound
  std::int32_t decode_rows = 0;    ///< the first rows that have `decode_tokens` query tokens each:
                                   ///< they take the fast path where `takes_decode`
  std::int32_t decode_tokens = 1;  ///< 1 .. shape.max_decode_tokens
  std::int64_t table_stride = 0;   ///< entries: a table begins at a multiple of it, of any length
  const std::int32_t* row_slots = nullptr;  ///< [num_rows] device: which multiple; -1: skip the
                                            ///< row; row_offsets: slot * table_stride, or 0
  void* workspace = nullptr;                ///< device, 256-byte aligned, one for each window
  std::int64_t workspace_bytes = 0;         ///< at least workspace_bytes(shape)
  bool overlap = false;                     ///< begin while the kernel in front ends, see above
};

/// Whether decode attention reads K and V like these: bf16, f16 or fp8 e4m3, chunked, K and V of
/// one head_dim 64, 96, 128 or 256, at most 16 query heads a KV head. Everything else goes to
/// prefill, which reads any shape.
KVARENA_EXPORT bool takes_decode(const KvLayerView& kv, std::int32_t num_q_heads) noexcept;

/// Bytes of a workspace for this shape and every smaller max_rows and max_decode_tokens: a pure
/// function; 0 when `takes_decode` says no. Returns invalid_argument naming the member and its
/// range. O(max_rows).
KVARENA_EXPORT Result<std::int64_t> workspace_bytes(const AttentionShape& shape) noexcept;

/// Queues making a workspace ready for steps of this shape and decode_tokens: before its first use
/// and whenever one of them has changed. Returns as launch_schedule.
KVARENA_EXPORT Status launch_reset(const AttentionStep& step, void* stream) noexcept;

/// Queues the schedule of the step's decode rows for `args.window_tokens`, from the lengths on the
/// device. Of `args` only batch.seq_lens, batch.num_rows and window_tokens matter. Returns
/// invalid_argument, limit_exceeded (workspace), device_error.
KVARENA_EXPORT Status launch_schedule(const AttentionStep& step, const AttentionArgs& args,
                                      void* stream) noexcept;

/// Queues one layer's attention: its decode rows by the schedule of args.window_tokens, the others
/// as prefill. `args.kv` may be f32, f16, bf16 or fp8 e4m3 in either tile order; the tables are
/// contiguous rows; args.q_offsets is needed. Everything is checked before anything is queued.
/// Returns what validate returns of what the host can see, limit_exceeded (workspace),
/// device_error.
KVARENA_EXPORT Status launch_attention(const AttentionStep& step, const AttentionArgs& args,
                                       void* stream) noexcept;

/// Whether `args` can run: what launch_attention checks first. Reads no device memory.
KVARENA_EXPORT Status validate(const AttentionStep& step, const AttentionArgs& args) noexcept;

/// Reads every table entry that the batch needs, on the device, and proves it a block of the pool,
/// as Validation::checked does on the CPU: for debugging an engine's own tables, which kernels
/// trust. `scratch` is 16 bytes of device memory, 8-byte aligned. Waits for the stream; not while
/// it is captured. Returns invalid_argument (block_index) with the first wrong entry in row order,
/// whose place `scratch` then begins with (uint64, row << 32 | index in the row); what validate
/// returns; device_error.
KVARENA_EXPORT Status check_tables(const AttentionArgs& args, void* scratch, void* stream) noexcept;

/// Queues one layer's KV write by slot mapping, to any of those types. Returns what append_kv
/// returns of what the host can see, device_error. Slots outside the pool are skipped.
KVARENA_EXPORT Status launch_append(const AppendArgs& args, bool overlap, void* stream) noexcept;

}  // namespace kvarena::cuda
