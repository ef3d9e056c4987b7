#pragma once

/// @file
/// Paged attention: softmax(scale * Q K^T) V of new tokens over sequences whose K and V lie in
/// blocks. This header has the arguments, their validation, and two calls. `plan_attention` cuts
/// the work of a step into parts of equal bytes, once, from the lengths alone. `run_attention` runs
/// one layer with that plan. Nothing here owns memory or allocates. Pointers are borrowed for the
/// call. Distinct threads may use distinct workspaces at the same time.
///
/// Semantics. Row `r` of the batch has `n = q_offsets[r+1] - q_offsets[r]` query tokens, or 1 when
/// `q_offsets` is null. They are the last `n` of its `seq_len` tokens, and their K and V are in the
/// blocks already. Query token `i` has position `p = seq_len - n + i` and sees positions `0 .. p`,
/// or the last `window_tokens` of them. Query head `h` reads kv head `h / group_size`. The logit is
/// `x = scale * dot(q, k)`; with a soft cap it is `soft_cap * tanh(x / soft_cap)`. A slot that a
/// query token does not see is never multiplied into its output, whatever it holds. An attention
/// sink is one more logit, which has no V: the weights and the log-sum-exp count it. A row of
/// length 0 gives zeros and a log-sum-exp of -infinity, also with a sink.

#include "kvarena/attention/cpu_workers.hpp"
#include "kvarena/base/export.hpp"
#include "kvarena/base/result.hpp"
#include "kvarena/base/views.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>

namespace kvarena {

/// Arguments of attention of a step's new tokens over one layer.
struct AttentionArgs {
  KvLayerView kv;                           ///< K and V; on a CPU f32, f16 or bf16, rows order
  BatchView batch;                          ///< block tables and lengths
  const std::int64_t* q_offsets = nullptr;  ///< [num_rows + 1] first query token of each row; null:
                                            ///< one token a row
  const void* q = nullptr;                  ///< [total_q, num_q_heads, head_dim_k]
  DType q_dtype = DType::f16;               ///< f32, f16 or bf16
  void* out = nullptr;                      ///< [total_q, num_q_heads, head_dim_v]
  DType out_dtype = DType::f16;             ///< f32, f16 or bf16
  float* lse = nullptr;          ///< [total_q, num_q_heads] log-sum-exp, natural logarithm; or null
  std::int32_t num_q_heads = 0;  ///< a multiple of the KV heads
  float scale = 0.0F;            ///< of the logits, finite and positive
  std::int32_t window_tokens = 0;  ///< sliding window, 0: none
  float soft_cap = 0.0F;           ///< of the logits, 0: none
  QuantScales scales = {};         ///< of fp8 K and V, without planes that have a scale for each
                                   ///< token; CUDA only
  const float* sinks = nullptr;    ///< [num_q_heads] logits of the attention sinks, not scaled; or
                                   ///< null
  const std::uint64_t* tree_mask = nullptr;  ///< [total_q] draft trees of at most 64 query tokens a
                                             ///< row: bit j of query token i says whether it sees
                                             ///< query token j of its row, also a later one. It
                                             ///< sees itself and all older tokens whatever its own
                                             ///< bit is, and bits past the row's last query token
                                             ///< count for nothing. With a window it sees the last
                                             ///< ones of all that it would see. Null: causal
  std::int64_t q_token_stride_bytes = 0;     ///< from one token of q to the next; 0: dense. Else a
                                             ///< multiple of the element, at least a dense token,
                                             ///< at most 2^40. Where q or out is not 16-byte
                                             ///< aligned or has a stride that is no multiple of
                                             ///< 16, CUDA runs a slower kernel
  std::int64_t out_token_stride_bytes = 0;   ///< from one token of out to the next; the same
  std::int64_t chunk_tokens = 0;  ///< not 0: a query token sees the tokens of its aligned chunk of
                                  ///< so many tokens, up to itself. CPU only; without a window, and
                                  ///< tree_mask is null
  bool sees_all = false;  ///< the rows are those of an encoder: query tokens are none of them, and
                          ///< each sees all seq_len tokens. CPU only; without a window or a chunk,
                          ///< and tree_mask is null
};

/// The code that runs on a CPU. `best` takes the fastest that the machine has.
enum class CpuPath : std::uint8_t { best, portable, avx512 };

/// The largest step that a workspace serves.
struct AttentionLimits {
  std::int32_t max_rows = 0;      ///< sequences in a batch, 1 .. 2^20
  std::int64_t max_q_tokens = 0;  ///< query tokens in a batch, 1 .. 2^31
  std::int32_t num_q_heads = 0;   ///< 1 .. 4096, a multiple of num_kv_heads
  std::int32_t num_kv_heads = 0;  ///< 1 .. 4096
  std::int32_t head_dim_k = 0;    ///< 1 .. 4096
  std::int32_t head_dim_v = 0;    ///< 1 .. 4096
  std::int32_t num_threads = 1;   ///< 1 .. CpuWorkers::kMaxThreads; results depend on it, see
                                  ///< run_attention
  CpuPath path = CpuPath::best;   ///< the code that runs
  bool draft_trees = false;       ///< AttentionArgs::tree_mask may be set
  bool batch_invariant = false;   ///< the bits of a row do not depend on the other rows: work is
                                  ///< cut between query tokens and heads only, so a long sequence
                                  ///< keeps fewer workers busy
};

/// The extent of the checks of `validate`. `checked` also reads every table entry and proves that
/// it is within 0 .. num_blocks - 1.
enum class Validation : std::uint8_t { fast, checked };

/// Returns the path that `CpuPath::best` means on this machine.
KVARENA_EXPORT CpuPath best_cpu_path() noexcept;

/// Returns whether `args` can run. O(num_rows); with `checked` O(table entries). Returns
/// invalid_argument with the value and the accepted range, or unsupported with the value (`dtype`,
/// `tile_order`). A null or misaligned pointer is `pointer` or `alignment`, a token stride is
/// `span_size` or `alignment`, and a table entry out of range is `block_index`; `scale` and
/// `soft_cap` are in millionths. `Status::native` is the number of the check, which
/// `describe_attention` turns into a sentence.
KVARENA_EXPORT Status validate(const AttentionArgs& args,
                               Validation validation = Validation::fast) noexcept;

/// Returns one line for a person about a Status of this header's functions: the argument, its
/// value, and what is supported. Allocates the string.
KVARENA_EXPORT std::string describe_attention(const Status& status) noexcept;

/// Returns the bytes of workspace for `limits`: a pure function of them. Returns invalid_argument
/// with the limit, its value and its range, or unsupported (name) for a path that this machine
/// lacks.
KVARENA_EXPORT Result<std::int64_t> attention_workspace_bytes(
    const AttentionLimits& limits) noexcept;

/// The schedule of a step. It points into its workspace and is valid until that workspace is
/// planned again.
struct AttentionPlan {
  std::byte* workspace = nullptr;  ///< as given, 64-byte aligned
  AttentionLimits limits;          ///< as given, but `path` is the code that runs
  std::int32_t num_rows = 0;       ///< planned rows
  std::int64_t num_q_tokens = 0;   ///< planned query tokens
  std::int64_t kv_tokens = 0;      ///< planned tokens of all sequences
  std::int32_t window_tokens = 0;  ///< planned window
  std::int64_t chunk_tokens = 0;   ///< planned chunk
  bool sees_all = false;           ///< as planned
  std::int32_t num_parts = 0;      ///< number of parts; workers take them in order
};

/// Cuts the work of `args` into parts of equal bytes. Only the lengths, query tokens, window and
/// shapes matter: `kv` may be that of any layer, and `q` and `out` may be null. One plan serves
/// every layer with the same lengths and window. `workspace` is 64-byte aligned. No allocation.
/// O(num_rows + query tokens). Returns what `validate` and attention_workspace_bytes return;
/// invalid_argument for a batch past the limits, for heads that differ from the limits, and for a
/// misaligned workspace; or limit_exceeded (workspace) with the bytes needed and given.
KVARENA_EXPORT Result<AttentionPlan> plan_attention(const AttentionArgs& args,
                                                    const AttentionLimits& limits,
                                                    std::span<std::byte> workspace) noexcept;

/// Checks that `args` can run with a plan. O(num_rows). Returns what run_attention returns.
KVARENA_EXPORT Status validate(const AttentionPlan& plan, const AttentionArgs& args) noexcept;

/// Runs one layer on at most `limits.num_threads` workers. `args` has the lengths, query offsets
/// and window of the plan, unchanged. Each kv head's K and V are read once for all query heads of
/// its group. No allocation. Deterministic: the same inputs and limits give the same bits with any
/// number of workers. Another `limits.num_threads` may cut sequences at other places and round
/// differently. Returns invalid_argument or unsupported for arguments that cannot run or that
/// differ from the plan, and invalid_argument (num_threads) for workers of more threads than
/// `limits.num_threads`; nothing is written then. Table entries are not checked: see
/// Validation::checked.
KVARENA_EXPORT Status run_attention(const AttentionPlan& plan, const AttentionArgs& args,
                                    CpuWorkers& workers) noexcept;

static_assert(std::is_trivially_copyable_v<AttentionArgs>);
static_assert(std::is_trivially_copyable_v<AttentionPlan>);

}  // namespace kvarena
