#pragma once

/// @file
/// Paged attention on CUDA for engines that have their own block tables. KvCache uses the same
/// functions. They dispatch the KV writes and the attention of a step to kernels. A call queues
/// work on the caller's stream and can be captured in a CUDA graph. No call allocates, and only
/// check_tables synchronises and reads device memory on the host. The semantics are those of
/// attention.hpp and kv_write.hpp. Their argument structs are used here with every array in device
/// memory.
///
/// A step, when its tables and lengths are on the device:
///
///     launch_schedule(step, args, stream);        // once for all layers with the same window
///     for (layer ...) {
///       launch_append(append_args, overlap, stream);
///       launch_attention(step, args, stream);
///     }
///
/// `overlap` (programmatic dependent launch) lets a kernel begin while the kernel in front of it on
/// the stream ends. The kernel then waits for the results of the one in front, but before that wait
/// it reads the schedule, the tables, and K and V of older tokens. Set `overlap` only when the
/// kernel in front writes none of these: in every launch of a step except the first after
/// launch_schedule. Kernels of the caller may stand between the launches. One that the caller
/// itself launches programmatically must wait for the kernel before it (griddepcontrol.wait, or
/// cudaGridDependencySynchronize) before it lets the next one begin, as all kernels of this library
/// do. Otherwise a kernel could begin before the one two places ahead of it has ended.
///
/// The same inputs give the same bits in every run. The last bits of a row may depend on the other
/// rows of its batch, because the schedule cuts by the lengths of all rows. With
/// AttentionShape::batch_invariant_tokens, rows are cut by their own length only: attention is
/// batch-invariant then.
///
/// `stream` is a cudaStream_t, and its GPU must be the current one of the calling thread. This
/// header needs no CUDA. In builds without CUDA, the pure functions takes_decode and
/// workspace_bytes work, and every other call returns unsupported (device).

#include "kvarena/attention/attention.hpp"
#include "kvarena/attention/kv_write.hpp"
#include "kvarena/base/export.hpp"
#include "kvarena/base/result.hpp"

#include <algorithm>
#include <cstdint>
#include <span>

namespace kvarena::cuda {

/// The largest step that a workspace serves. The schedule depends on this shape and on the step's
/// RowCounts: the same ones give the same bits.
struct AttentionShape {
  KvLayerView kv;                       ///< any layer's: only types, heads, dims and sizes matter
  std::int32_t num_q_heads = 0;         ///< a multiple of the KV heads
  std::int32_t max_rows = 0;            ///< rows of a step that are no prompts, 1 .. 2^20; with
                                        ///< draft_trees or batch_invariant_tokens 1 .. 16384. A
                                        ///< step may have further rows that are prompts
  std::int32_t max_decode_tokens = 1;   ///< most query tokens of a decode row where no kernel for
                                        ///< many query columns runs, 1 .. 16
  std::int32_t num_sms = 0;             ///< multiprocessors that a launch gets, as in
                                        ///< CudaDeviceInfo::num_sms
  std::int32_t compute_capability = 0;  ///< 10 * CudaDeviceInfo::major + minor; 0: only the kernels
                                        ///< that run on every GPU. Sizes do not depend on it
  std::int64_t batch_invariant_tokens = 0;  ///< not 0: the bits of a row do not depend on the other
                                            ///< rows, in steps whose rows have at most so many
                                            ///< tokens together; at most 2^28. 0: they may
  bool draft_trees = false;         ///< whether AttentionArgs::tree_mask may be set. The kernel for
                                    ///< many query columns then serves every row, so it must serve
                                    ///< the layer, and no row may be a prompt; no soft cap may be
                                    ///< set. On other GPUs than those of compute capability 9.0 a
                                    ///< tree_mask is refused
  std::int64_t max_run_tokens = 0;  ///< not 0: rows of latents, or of V with fewer dims than K, may
                                    ///< have more than 64 query tokens, in steps of at most so many
                                    ///< query tokens; at most 2^20. With batch_invariant_tokens
                                    ///< only of latents, and if max_rows + max_run_tokens / 64 is
                                    ///< at most 16384. Elsewhere prefill serves them
  std::int32_t max_shared_rows = 0;  ///< rows of a step that may read leading blocks together, at
                                     ///< most 4096; further ones read by themselves, and so does
                                     ///< every row of a step of more than 16384 - max_shared_rows
};

/// The kernels that serve a row, by its query tokens alone. Rows may come in any order.
struct RowClasses {
  std::int32_t decode_tokens = 0;  ///< decode attention: rows of 1 .. decode_tokens query tokens
  std::int32_t column_tokens = 0;  ///< the kernel for many query columns: rows of more query
                                   ///< tokens, up to column_tokens
  friend bool operator==(const RowClasses&, const RowClasses&) = default;
};

/// The numbers of rows of a step. Rows without query tokens are not counted.
struct RowCounts {
  std::int32_t decode = 0;         ///< rows for decode attention
  std::int32_t decode_tokens = 0;  ///< most query tokens of one of these
  std::int32_t columns = 0;        ///< rows for attention with many query columns
  std::int32_t column_tokens = 0;  ///< most query tokens of one of these
  std::int32_t prompts = 0;        ///< rows for prefill
  std::int64_t decode_length = 0;  ///< tokens of all rows for decode attention together, with those
                                   ///< of the step; 0: unknown. When this is known, many short rows
                                   ///< take less time, down to half; so do few rows of about one
                                   ///< length on GPUs of compute capability 9.0 and later
  std::int32_t decode_longest = 0;  ///< tokens of the longest of these rows. If this is less than
                                    ///< their mean, the mean is taken
};

/// The host's figures of a step, and the place of its schedule.
struct AttentionStep {
  AttentionShape shape;           ///< the shape for which launch_reset prepared the workspace
  std::int64_t total_q = 0;       ///< query tokens of all rows, q_offsets[num_rows] - q_offsets[0],
                                  ///< or an upper bound
  RowCounts rows;                 ///< what count_rows returns for the rows with row_classes(shape)
  bool shares_prefixes = false;   ///< rows that begin with the same blocks read these together, see
                                  ///< launch_schedule
  std::int64_t table_stride = 0;  ///< entries, at most 2^40; each table begins at a multiple of it
                                  ///< and may have any length
  const std::int32_t* row_slots = nullptr;  ///< [num_rows] device: the multiple, so row_offsets is
                                            ///< slot * table_stride. -1: skip the row; its table is
                                            ///< not read, nothing of it is written, and its
                                            ///< row_offsets is 0. Null: row r has slot r
  void* workspace = nullptr;                ///< device, 256-byte aligned; one for each window
  std::int64_t workspace_bytes = 0;         ///< at least workspace_bytes(shape)
  bool overlap = false;                     ///< begin while the kernel in front ends, see above
};

/// Returns whether decode attention can read this K and V: bf16, f16 or fp8 e4m3, chunked, K and V
/// with the same head_dim 64, 96, 128 or 256, and at most 16 query heads a KV head. Prefill serves
/// everything else, and reads any shape.
KVARENA_EXPORT bool takes_decode(const KvLayerView& kv, std::int32_t num_q_heads) noexcept;

/// Returns the classes of a shape's rows: a pure function; {} for a shape without heads. A row has
/// query tokens times query heads a KV head query columns. On a GPU of compute capability 9.0:
/// - Chunked bf16, f16 or fp8 e4m3 K and V with one head_dim 64, 80 (not fp8), 96, 128, 192 or 256:
///   decode attention serves rows of up to 8 columns. The kernel for many query columns serves rows
///   of up to 128 columns (64 with batch_invariant_tokens) and at most 64 query tokens. Over fp8
///   with head_dim 64, 96 or 128, decode attention serves rows of up to 16 columns where max_rows
///   times the KV heads is more than half of num_sms, without batch_invariant_tokens.
/// - Chunked K of 192 elements with V of 128: the kernel for many query columns serves rows of
///   up to 128 columns. With max_run_tokens and at most 16 query heads a KV head it serves rows of
///   up to 131,072 query tokens.
/// - Latents (one KV head of 576 elements whose leading 512 are V, bf16 or fp8 e4m3 in
///   chunked order or latent_fp8 in rows order, bf16 queries, at most 128 query heads): the same
///   kernel serves rows of up to 64 query tokens, with max_run_tokens of up to 131,072. Elements of
///   latent_fp8 times scales that are no powers of two may be rounded to bf16. In a layer with a
///   window or a soft cap the plain kernel serves all rows.
/// - With draft_trees decode_tokens is 0.
///
/// Elsewhere, decode attention serves rows of up to max_decode_tokens query tokens if
/// `takes_decode` is true. Prefill serves all rows over K or V with a scale for each token
/// (PlaneView::scales_offset), and all rows of a layer where q or out is not aligned to 16 bytes or
/// has a type that the other kernels do not take.
KVARENA_EXPORT RowClasses row_classes(const AttentionShape& shape) noexcept;

/// Counts a row of `query_tokens` query tokens, which are the last of its `length` tokens. Give the
/// lengths of all rows, or 0 for all rows if they are unknown.
constexpr void count_row(const RowClasses& classes, std::int32_t query_tokens, RowCounts& counts,
                         std::int32_t length = 0) noexcept {
  if (query_tokens < 1) return;
  if (query_tokens <= classes.decode_tokens) {
    ++counts.decode;
    counts.decode_tokens = std::max(counts.decode_tokens, query_tokens);
    counts.decode_length += length;
    counts.decode_longest = std::max(counts.decode_longest, length);
  } else if (query_tokens <= classes.column_tokens) {
    ++counts.columns;
    counts.column_tokens = std::max(counts.column_tokens, query_tokens);
  } else {
    ++counts.prompts;
  }
}

/// Counts a step's rows by class. `lengths` are the tokens of each row, or empty where they are
/// unknown. O(rows).
constexpr RowCounts count_rows(const RowClasses& classes,
                               std::span<const std::int32_t> query_tokens,
                               std::span<const std::int32_t> lengths = {}) noexcept {
  RowCounts counts;
  for (std::size_t row = 0; row < query_tokens.size(); ++row) {
    count_row(classes, query_tokens[row], counts, row < lengths.size() ? lengths[row] : 0);
  }
  return counts;
}

/// Returns the bytes of a workspace for this shape and every smaller max_rows: a pure function. 0
/// when no kernel needs memory. Returns invalid_argument with the member and its range.
/// O(max_rows).
KVARENA_EXPORT Result<std::int64_t> workspace_bytes(const AttentionShape& shape) noexcept;

/// Loads the kernels of launch_schedule, launch_append and launch_attention for K and V of these
/// types and head dims; nothing else of `kv` matters. CUDA loads a kernel when it is first
/// launched, and takes device memory for it; on a GPU that is full by then, the launch fails.
/// KvCache::create does this before it sizes its pool. Returns device_error.
KVARENA_EXPORT Status load_kernels(const KvLayerView& kv) noexcept;

/// Queues the preparation of a workspace for steps of this shape. Call it before the first use and
/// whenever the shape has changed. Returns what launch_schedule returns.
KVARENA_EXPORT Status launch_reset(const AttentionStep& step, void* stream) noexcept;

/// Queues the schedules of the step's rows for `args.window_tokens`, and the plan of its prompts,
/// computed from the lengths on the device. Only the batch, q_offsets and window_tokens of `args`
/// matter. With step.shares_prefixes it also looks for rows, prompts left out, whose tables begin
/// with the same blocks: attention then reads these once for all such rows, in every layer, where
/// this saves more than it costs. That needs shape.max_shared_rows, the kernel for many query
/// columns, and a step without a window and without batch invariance; otherwise every row reads for
/// itself. The search takes some microseconds, so set it when the host knows of such rows. Over fp8
/// each layer then takes some microseconds more where nothing is shared, so set it there when at
/// least half of the rows have much in common. A step of more than 32 prompts is slower when the
/// workspace has no room for their plan. Returns invalid_argument, limit_exceeded (workspace) or
/// device_error.
KVARENA_EXPORT Status launch_schedule(const AttentionStep& step, const AttentionArgs& args,
                                      void* stream) noexcept;

/// Queues the attention of one layer: at most one launch for each class of rows, by the schedules
/// of args.window_tokens, the other rows as prefill. `args.kv` may be f32, f16, bf16 or fp8 e4m3 in
/// either tile order. The tables are contiguous rows. args.q_offsets is needed. Over fp8 with
/// head_dim 64, 96 or 128 and bf16 queries, logits of batches of 1,536 query tokens a prompt and
/// more keep about 14 bits of the largest term of their sum (docs/benchmarks.md). All checks come
/// before the first launch. Returns what validate returns for what the host can see, limit_exceeded
/// (workspace), or device_error.
KVARENA_EXPORT Status launch_attention(const AttentionStep& step, const AttentionArgs& args,
                                       void* stream) noexcept;

/// Returns whether `args` can run; launch_attention makes the same check. Reads no device memory.
KVARENA_EXPORT Status validate(const AttentionStep& step, const AttentionArgs& args) noexcept;

/// Reads every table entry that the batch needs, on the device, and proves that it is a block of
/// the pool, as Validation::checked does on the CPU. It is for debugging the tables of an engine,
/// which the kernels do not check. `scratch` is 16 bytes of device memory, 8-byte aligned. Waits
/// for the stream, so the stream must not be captured. Returns invalid_argument (block_index) with
/// the first wrong entry in row order; `scratch` then begins with its place (uint64, row << 32 |
/// index in the row). Returns what validate returns, or device_error.
KVARENA_EXPORT Status check_tables(const AttentionArgs& args, void* scratch, void* stream) noexcept;

/// Queues the KV write of one layer by slot mapping, to planes of any of those types. Slots outside
/// the pool are skipped. Returns what append_kv returns for what the host can see, or device_error.
KVARENA_EXPORT Status launch_append(const AppendArgs& args, bool overlap, void* stream) noexcept;

}  // namespace kvarena::cuda
