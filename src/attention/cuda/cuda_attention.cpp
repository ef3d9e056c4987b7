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

/// Checks the address and the size of a step's workspace.
Status check_workspace(const AttentionStep& step) noexcept {
  if (Status s = kernels::aligned_pointer(step.workspace, kWorkspaceAlignment); !s) return s;
  const std::int64_t needed = kernels::decode_workspace_bytes(limits_of(step));
  if (needed <= step.workspace_bytes) return {};
  return with(
      Check::workspace_bytes,
      limit_exceeded(Resource::workspace, static_cast<std::uint64_t>(needed),
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

bool has_fast_path(const AttentionShape& shape) noexcept {
  return cuda::takes_decode(shape.kv, shape.num_q_heads);
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
          .workspace = step.workspace,
          .workspace_bytes = step.workspace_bytes};
}

/// The rows from `first` on, for the prefill kernel.
kernels::PrefillParams prefill_params(const AttentionStep& step, const AttentionArgs& args,
                                      std::int32_t first) noexcept {
  BatchView batch = args.batch;
  batch.num_rows -= first;
  batch.tables.num_rows = batch.num_rows;
  batch.tables.row_offsets += first;
  batch.seq_lens += first;
  batch.num_blocks += first;
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
          .total_q = step.total_q - std::int64_t{first} * step.decode_tokens};
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
  if (!has_fast_path(step.shape)) return {};
  if (Status s = check_workspace(step); !s) return s;
  // The counters return to 0 by themselves, but their place depends on the limits.
  const kernels::DecodeWorkspace w = kernels::decode_workspace(limits_of(step));
  return kernels::launch_status(
      cudaMemsetAsync(static_cast<std::byte*>(step.workspace) + w.counters, 0,
                      static_cast<std::size_t>(w.max_sum - w.counters), native(stream)));
}

Status launch_schedule(const AttentionStep& step, const AttentionArgs& args,
                       void* stream) noexcept {
  if (Status s = check_step(step, args.batch.num_rows); !s) return s;
  if (step.decode_rows == 0 || !has_fast_path(step.shape)) return {};
  if (Status s = check_workspace(step); !s) return s;
  if (Status s = not_null(Check::seq_lens_pointer, args.batch.seq_lens); !s) return s;
  return kernels::launch_decode_schedule({.limits = limits_of(step),
                                          .seq_lens = args.batch.seq_lens,
                                          .row_slots = step.row_slots,
                                          .num_rows = step.decode_rows,
                                          .window_tokens = args.window_tokens,
                                          .workspace = step.workspace,
                                          .workspace_bytes = step.workspace_bytes},
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
  return is_fast(step, args) ? check_workspace(step) : Status{};
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
