#pragma once

/// @file
/// Paged attention: softmax(scale * Q K^T) V of new tokens over sequences whose K and V lie in
/// blocks. The arguments, their validation, and a plan/run split: `plan_attention` cuts a step's
/// work into parts of equal bytes once, from the lengths alone; `run_attention` uses that plan for
/// each layer. Nothing here owns memory or allocates; pointers are borrowed for the call. Distinct
/// workspaces may be used from distinct threads at the same time.
///
/// Semantics. Row `r` of the batch has `n = q_offsets[r+1] - q_offsets[r]` query tokens (1 each
/// when `q_offsets` is null): the last `n` of its `seq_len` tokens, whose K and V are in the blocks
/// already. Query token `i` stands at position `p = seq_len - n + i` and sees positions `0 .. p`,
/// or the last `window_tokens` of them. Query head `h` reads kv head `h / group_size`. The logit is
/// `x = scale * dot(q, k)`, with a soft cap `soft_cap * tanh(x / soft_cap)`. Slots that a query
/// token does not see are never multiplied into its output, whatever they hold. A row of length 0
/// gives zeros and a log-sum-exp of -infinity.

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

/// Attention of a step's new tokens over one layer.
struct AttentionArgs {
  KvLayerView kv;                           ///< K and V; f32, f16 or bf16, rows order
  BatchView batch;                          ///< block tables and lengths
  const std::int64_t* q_offsets = nullptr;  ///< [num_rows + 1] first query token; null: one a row
  const void* q = nullptr;                  ///< [total_q, num_q_heads, head_dim_k]
  DType q_dtype = DType::f16;               ///< f32, f16 or bf16
  void* out = nullptr;                      ///< [total_q, num_q_heads, head_dim_v]
  DType out_dtype = DType::f16;             ///< f32, f16 or bf16
  float* lse = nullptr;            ///< [total_q, num_q_heads] log-sum-exp, natural; or null
  std::int32_t num_q_heads = 0;    ///< a multiple of the KV heads
  float scale = 0.0F;              ///< of the logits, finite and positive
  std::int32_t window_tokens = 0;  ///< sliding window, 0: none
  float soft_cap = 0.0F;           ///< of the logits, 0: none
  QuantScales scales = {};         ///< of fp8 K and V; CUDA only
  const float* sinks = nullptr;    ///< [num_q_heads] logits of the attention sinks; or null
};

/// Which code runs on a CPU. `best` takes the fastest that the machine has.
enum class CpuPath : std::uint8_t { best, portable, avx512 };

/// The largest step a workspace serves.
struct AttentionLimits {
  std::int32_t max_rows = 0;      ///< sequences in a batch, 1 .. 2^20
  std::int64_t max_q_tokens = 0;  ///< query tokens in a batch, 1 .. 2^31
  std::int32_t num_q_heads = 0;   ///< 1 .. 4096, a multiple of num_kv_heads
  std::int32_t num_kv_heads = 0;  ///< 1 .. 4096
  std::int32_t head_dim_k = 0;    ///< 1 .. 4096
  std::int32_t head_dim_v = 0;    ///< 1 .. 4096
  std::int32_t num_threads = 1;   ///< 1 .. CpuWorkers::kMaxThreads; results depend on it, see run
  CpuPath path = CpuPath::best;   ///< which code runs
};

/// How much `validate` looks at. `checked` also reads every table entry and proves it within
/// 0 .. num_blocks - 1.
enum class Validation : std::uint8_t { fast, checked };

/// The path that `CpuPath::best` means on this machine.
KVARENA_EXPORT CpuPath best_cpu_path() noexcept;

/// Whether `args` can run. O(num_rows); `checked`: O(table entries).
/// Returns invalid_argument with the value and the accepted range (null or misaligned pointers:
/// `pointer`, `alignment`; a table entry out of range: `block_index`; `scale` and `soft_cap` in
/// millionths), or unsupported with the value (`dtype`, `tile_order`). `Status::native` numbers the
/// check, from which `describe_attention` makes the sentence.
KVARENA_EXPORT Status validate(const AttentionArgs& args,
                               Validation validation = Validation::fast) noexcept;

/// One line for a person about a Status that a function of this header returned: which argument,
/// its value, what is supported. Allocates the string.
KVARENA_EXPORT std::string describe_attention(const Status& status) noexcept;

/// Bytes of workspace for `limits`: a pure function of them. Returns invalid_argument naming the
/// limit, its value and range, or unsupported (name) for a path that this machine lacks.
KVARENA_EXPORT Result<std::int64_t> attention_workspace_bytes(
    const AttentionLimits& limits) noexcept;

/// A step's schedule. A view into its workspace; valid until that workspace is planned again.
struct AttentionPlan {
  std::byte* workspace = nullptr;  ///< as given, 64-byte aligned
  AttentionLimits limits;          ///< as given, `path` resolved
  std::int32_t num_rows = 0;       ///< planned rows
  std::int64_t num_q_tokens = 0;   ///< planned query tokens
  std::int64_t kv_tokens = 0;      ///< planned tokens of all sequences
  std::int32_t window_tokens = 0;  ///< planned window
  std::int32_t num_parts = 0;      ///< parts that workers take in order
};

/// Cuts the work of `args` into parts of equal bytes. Only lengths, query tokens, window and shapes
/// matter: `kv` may be any layer's, q and out may be null. One plan serves every layer with the
/// same lengths and window. `workspace` is 64-byte aligned. O(num_rows + query tokens); no
/// allocation. Returns what `validate` and attention_workspace_bytes return; invalid_argument for a
/// batch past the limits or whose heads differ from them, or a misaligned workspace; limit_exceeded
/// (workspace) with the bytes needed and given.
KVARENA_EXPORT Result<AttentionPlan> plan_attention(const AttentionArgs& args,
                                                    const AttentionLimits& limits,
                                                    std::span<std::byte> workspace) noexcept;

/// Runs one layer on at most `limits.num_threads` workers. `args` has the lengths, query offsets
/// and window of the plan, unchanged since. Reads K and V of each kv head once for all query heads
/// of its group. No allocation. Deterministic: same inputs and same limits, same bits, whatever the
/// number of workers; another `limits.num_threads` may cut sequences elsewhere and round
/// differently. Returns invalid_argument or unsupported for arguments that cannot run or that
/// differ from the plan; nothing is written then. Table entries are trusted: see
/// Validation::checked.
KVARENA_EXPORT Status run_attention(const AttentionPlan& plan, const AttentionArgs& args,
                                    CpuWorkers& workers) noexcept;

static_assert(std::is_trivially_copyable_v<AttentionArgs>);
static_assert(std::is_trivially_copyable_v<AttentionPlan>);

}  // namespace kvarena
