#include "kvarena/attention/cuda_attention.hpp"

#include "attention/cuda/cuda_shapes.hpp"
#include "attention/validate.hpp"
#include "kernels/append/append.h"
#include "kernels/check_tables/check_tables.h"
#include "kernels/common/launch_checks.h"
#include "kernels/decode/decode.h"
#include "kernels/decode/decode_workspace.h"
#include "kernels/prefill/prefill.h"

#include <algorithm>

namespace kvarena::cuda {
namespace {

using attention::Check;
using attention::in_range;
using attention::not_null;
using attention::with;

constexpr std::int64_t kWorkspaceAlignment = 256;
constexpr std::int64_t kVectorBytes = 16;

cudaStream_t native(void* stream) noexcept { return static_cast<cudaStream_t>(stream); }

kernels::DecodeLimits limits_of(const AttentionStep& step) noexcept {
  return cuda::limits_of(step.shape, step.shape.max_rows, step.decode_tokens);
}

bool has_fast_path(const AttentionShape& shape) noexcept {
  return cuda::takes_decode(shape.kv, shape.num_q_heads);
}

/// Returns whether the kernel for prompts needs counters.
bool counts_items(const AttentionShape& shape) noexcept {
  return shape.compute_capability / 10 == 9 && has_prompt_plan(shape.kv);
}

/// The parts of a step's workspace. The counters of prompts come first, so that their place is the
/// same in every step.
struct WorkspaceParts {
  std::byte* counters;
  std::byte* decode;
  std::int64_t decode_bytes;  ///< at least
  std::byte* plan;
  std::int64_t plan_bytes;  ///< what is left
};

WorkspaceParts parts_of(const AttentionStep& step) noexcept {
  auto* const base = static_cast<std::byte*>(step.workspace);
  WorkspaceParts parts{};
  parts.counters = base;
  parts.decode = base + kernels::kPrefillCounterBytes;
  if (has_fast_path(step.shape)) {
    parts.decode_bytes = kernels::decode_workspace_bytes(limits_of(step));
  }
  parts.plan = parts.decode + parts.decode_bytes;
  parts.plan_bytes = step.workspace_bytes - (parts.plan - base);
  return parts;
}

/// Checks the address and the size of a step's workspace.
Status check_workspace(const AttentionStep& step) noexcept {
  if (Status s = kernels::aligned_pointer(step.workspace, kWorkspaceAlignment); !s) return s;
  const WorkspaceParts parts = parts_of(step);
  if (parts.plan_bytes >= 0) return {};
  return with(
      Check::workspace_bytes,
      limit_exceeded(Resource::workspace,
                     static_cast<std::uint64_t>(kernels::kPrefillCounterBytes + parts.decode_bytes),
                     static_cast<std::uint64_t>(std::max<std::int64_t>(step.workspace_bytes, 0)),
                     Option::none));
}

/// Checks what the schedule and every layer of a step share.
Status check_step(const AttentionStep& step, std::int64_t num_rows) noexcept {
  if (Status s = check_shape(step.shape); !s) return s;
  if (Status s = in_range(Check::q_count, Resource::num_tokens, step.decode_tokens, 1,
                          step.shape.max_decode_tokens);
      !s) {
    return s;
  }
  if (Status s = in_range(Check::limit_rows, Resource::num_sequences, step.decode_rows, 0,
                          std::min<std::int64_t>(num_rows, step.shape.max_rows));
      !s) {
    return s;
  }
  const std::int64_t decode_q = std::int64_t{step.decode_rows} * step.decode_tokens;
  return in_range(Check::num_tokens, Resource::num_tokens, step.total_q, decode_q, 0x7fffffff);
}

/// Returns whether decode attention serves this layer's decode rows. Otherwise prefill does.
bool is_fast(const AttentionStep& step, const AttentionArgs& args) noexcept {
  const bool has_types =
      is_16_bit(args.q_dtype) && args.out_dtype == args.q_dtype &&
      (args.kv.key.dtype == DType::fp8_e4m3 || args.kv.key.dtype == args.q_dtype);
  return step.decode_rows > 0 && has_types && takes_decode(args.kv, args.num_q_heads) &&
         kernels::is_aligned(args.q, kVectorBytes) && kernels::is_aligned(args.out, kVectorBytes);
}

/// The decode rows of a layer, for the kernel.
kernels::DecodeParams decode_params(const AttentionStep& step, const AttentionArgs& args) noexcept {
  return {.limits = limits_of(step),
          .q = args.q,
          .out = args.out,
          .lse = args.lse,
          .sinks = args.sinks,
          .key = args.kv.key.base,
          .value = args.kv.value.base,
          .block_stride = args.kv.key.block_stride,
          .head_stride = args.kv.key.head_stride,
          .block_size = args.kv.block_size,
          .block_tables = args.batch.tables.entries,
          .table_stride = step.table_stride,
          .num_rows = step.decode_rows,
          .window_tokens = args.window_tokens,
          .dtype = args.q_dtype,
          .scales = args.scales,
          .scale = args.scale,
          .soft_cap = args.soft_cap,
          .workspace = parts_of(step).decode,
          .workspace_bytes = parts_of(step).decode_bytes};
}

/// The rows from `first` on, for prefill.
kernels::PrefillParams prefill_params(const AttentionStep& step, const AttentionArgs& args,
                                      std::int32_t first) noexcept {
  BatchView batch = args.batch;
  batch.num_rows -= first;
  batch.tables.num_rows = batch.num_rows;
  batch.tables.row_offsets += first;
  batch.seq_lens += first;
  if (batch.num_blocks != nullptr) batch.num_blocks += first;
  const bool has_counters = counts_items(step.shape);
  const WorkspaceParts parts = has_counters ? parts_of(step) : WorkspaceParts{};
  // launch_schedule plans the rows behind those that decode attention takes.
  const bool has_plan = has_counters &&
                        first == (has_fast_path(step.shape) ? step.decode_rows : 0) &&
                        kernels::prefill_plan_bytes(batch.num_rows) <= parts.plan_bytes;
  return {.attention = {.kv = args.kv,
                        .batch = batch,
                        .q_offsets = args.q_offsets + first,
                        .q = args.q,
                        .out = args.out,
                        .lse = args.lse,
                        .num_q_heads = args.num_q_heads,
                        .window_tokens = args.window_tokens,
                        .scale = args.scale,
                        .soft_cap = args.soft_cap,
                        .q_dtype = args.q_dtype,
                        .out_dtype = args.out_dtype,
                        .scales = args.scales,
                        .sinks = args.sinks},
          .total_q = step.total_q - std::int64_t{first} * step.decode_tokens,
          .num_sms = step.shape.num_sms,
          .compute_capability = step.shape.compute_capability,
          .counters = reinterpret_cast<kernels::PrefillCounters*>(parts.counters),
          .plan = has_plan ? reinterpret_cast<kernels::PrefillPlan*>(parts.plan) : nullptr};
}

/// Queues the plan of the rows that are no decode rows, if it has room.
Status launch_plan(const AttentionStep& step, const AttentionArgs& args, void* stream) noexcept {
  const std::int32_t first = has_fast_path(step.shape) ? step.decode_rows : 0;
  if (args.batch.tables.row_offsets == nullptr || args.q_offsets == nullptr) return {};
  AttentionArgs shaped = args;
  shaped.kv = step.shape.kv;
  shaped.num_q_heads = step.shape.num_q_heads;
  const kernels::PrefillParams params = prefill_params(step, shaped, first);
  return params.plan == nullptr ? Status{} : kernels::launch_prefill_plan(params, native(stream));
}

}  // namespace

Status load_kernels(const KvLayerView& kv) noexcept {
  for (const PlaneView* plane : {&kv.key, &kv.value}) {
    if (Status s = kernels::load_append(plane->dtype); !s) return s;
    if (Status s = kernels::load_decode(plane->dtype, plane->head_dim); !s) return s;
    if (Status s = kernels::load_prefill(plane->dtype, plane->head_dim); !s) return s;
  }
  return {};
}

Status launch_reset(const AttentionStep& step, void* stream) noexcept {
  if (Status s = check_step(step, step.decode_rows); !s) return s;
  const bool is_fast = has_fast_path(step.shape);
  if (!is_fast && !counts_items(step.shape)) return {};
  if (Status s = check_workspace(step); !s) return s;
  const auto zero = [stream](std::byte* from, std::int64_t bytes) {
    return kernels::launch_status(
        cudaMemsetAsync(from, 0, static_cast<std::size_t>(bytes), native(stream)));
  };
  const WorkspaceParts parts = parts_of(step);
  if (Status s = zero(parts.counters, kernels::kPrefillCounterBytes); !s || !is_fast) return s;
  // The counters return to 0 by themselves, but their place depends on the limits.
  const kernels::DecodeWorkspace w = kernels::decode_workspace(limits_of(step));
  return zero(parts.decode + w.counters, w.max_sum - w.counters);
}

Status launch_schedule(const AttentionStep& step, const AttentionArgs& args,
                       void* stream) noexcept {
  if (Status s = check_step(step, args.batch.num_rows); !s) return s;
  const bool has_decode = step.decode_rows > 0 && has_fast_path(step.shape);
  const bool has_prompts = step.decode_rows < args.batch.num_rows && counts_items(step.shape);
  if (!has_decode && !has_prompts) return {};
  if (Status s = check_workspace(step); !s) return s;
  if (Status s = not_null(Check::seq_lens_pointer, args.batch.seq_lens); !s) return s;
  if (has_prompts) {
    if (Status s = launch_plan(step, args, stream); !s) return s;
  }
  if (!has_decode) return {};
  const WorkspaceParts parts = parts_of(step);
  return kernels::launch_decode_schedule({.limits = limits_of(step),
                                          .seq_lens = args.batch.seq_lens,
                                          .row_slots = step.row_slots,
                                          .q_offsets = args.q_offsets,
                                          .num_rows = step.decode_rows,
                                          .window_tokens = args.window_tokens,
                                          .workspace = parts.decode,
                                          .workspace_bytes = parts.decode_bytes},
                                         native(stream));
}

Status validate(const AttentionStep& step, const AttentionArgs& args) noexcept {
  if (Status s = check_layer(args.kv); !s) return s;
  if (Status s = attention::check_numbers(args); !s) return s;
  if (Status s = check_step(step, args.batch.num_rows); !s) return s;
  if (Status s = attention::check_q_and_out(args, step.total_q); !s) return s;
  if (!kernels::is_aligned(args.lse, alignof(float))) {
    return kernels::in_range(Resource::alignment, 1, 0, 0);
  }
  if (args.batch.num_rows == 0 || step.total_q == 0) return {};
  if (Status s = not_null(Check::tables_pointer, args.batch.tables.entries); !s) return s;
  if (args.batch.tables.pages != nullptr) return unsupported(Resource::table_page);
  if (Status s = kernels::not_null(args.q_offsets); !s) return s;
  const bool has_prompts = step.decode_rows < args.batch.num_rows && counts_items(step.shape);
  return has_prompts || is_fast(step, args) ? check_workspace(step) : Status{};
}

/// The decode rows come first in the batch; prefill gets the batch from the next row on.
Status launch_attention(const AttentionStep& step, const AttentionArgs& args,
                        void* stream) noexcept {
  if (Status s = cuda::validate(step, args); !s) return s;
  if (args.batch.num_rows == 0 || step.total_q == 0) return {};
  const std::int32_t fast_rows = is_fast(step, args) ? step.decode_rows : 0;
  if (fast_rows > 0) {
    if (Status s = kernels::launch_decode(decode_params(step, args), step.overlap, native(stream));
        !s) {
      return s;
    }
  }
  if (fast_rows == args.batch.num_rows) return {};
  return kernels::launch_prefill(prefill_params(step, args, fast_rows), native(stream));
}

/// The kernel finds the first wrong entry; this copies its report to the host.
Status check_tables(const AttentionArgs& args, void* scratch, void* stream) noexcept {
  if (Status s = check_layer(args.kv); !s) return s;
  if (Status s = attention::check_numbers(args); !s) return s;
  kernels::AttentionParams params{};
  params.kv = args.kv;
  params.batch = args.batch;
  params.q_offsets = args.q_offsets;
  params.window_tokens = args.window_tokens;
  auto* const there = static_cast<kernels::TableReport*>(scratch);
  if (Status s = kernels::launch_check_tables(params, there, native(stream)); !s) return s;
  kernels::TableReport report{};
  cudaError_t error =
      cudaMemcpyAsync(&report, there, sizeof report, cudaMemcpyDeviceToHost, native(stream));
  if (error == cudaSuccess) error = cudaStreamSynchronize(native(stream));
  if (Status s = kernels::launch_status(error); !s || report.place == kernels::kNoPlace) return s;
  return in_range(Check::table_entry, Resource::block_index, report.value, 0,
                  args.kv.num_blocks - 1);
}

Status launch_append(const AppendArgs& args, bool overlap, void* stream) noexcept {
  return kernels::launch_append({.kv = args.kv,
                                 .key = args.key,
                                 .value = args.value,
                                 .slots = args.slots,
                                 .num_tokens = args.num_tokens,
                                 .dtype = args.dtype,
                                 .scales = args.scales},
                                overlap, native(stream));
}

}  // namespace kvarena::cuda
