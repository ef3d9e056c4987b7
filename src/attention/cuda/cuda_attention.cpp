#include "kvarena/attention/cuda_attention.hpp"

#include "attention/cuda/cuda_shapes.hpp"
#include "attention/cuda/cuda_step.hpp"
#include "attention/validate.hpp"
#include "kernels/append/append.h"
#include "kernels/check_tables/check_tables.h"
#include "kernels/common/launch_checks.h"
#include "kernels/decode/decode_workspace.h"

#include <algorithm>

namespace kvarena::cuda {
namespace {

using attention::Check;
using attention::in_range;
using attention::not_null;
using attention::with;

constexpr std::int64_t kWorkspaceAlignment = 256;

cudaStream_t native(void* stream) noexcept { return static_cast<cudaStream_t>(stream); }

/// Checks the address and the size of a step's workspace.
Status check_workspace(const AttentionStep& step) noexcept {
  if (Status s = kernels::aligned_pointer(step.workspace, kWorkspaceAlignment); !s) return s;
  const std::int64_t needed = parts_of(step, 0).needed;
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
  const std::int64_t most = std::min<std::int64_t>(num_rows, step.shape.max_rows);
  if (Status s = in_range(Check::limit_rows, Resource::num_sequences, step.rows.decode, 0, most);
      !s) {
    return s;
  }
  if (Status s = in_range(Check::limit_rows, Resource::num_sequences, step.rows.columns, 0,
                          most - step.rows.decode);
      !s) {
    return s;
  }
  const std::int64_t least_q = std::int64_t{step.rows.decode} + step.rows.columns;
  return in_range(Check::num_tokens, Resource::num_tokens, step.total_q, least_q, 0x7fffffff);
}

/// Checks that draft trees can be masked: all rows with query tokens go to one kernel.
Status check_tree(const AttentionStep& step, const AttentionArgs& args,
                  const StepKernels& kernels) noexcept {
  if (args.tree_mask == nullptr) return {};
  const bool is_masked = step.shape.draft_trees && kernels.classes.column_tokens > 0 &&
                         !kernels.has_decode && !kernels.has_prompts && args.soft_cap == 0.0F;
  if (!is_masked) return with(Check::tree_mask, unsupported(Resource::pointer));
  return kernels::aligned_pointer(args.tree_mask, alignof(std::uint64_t));
}

/// Queues the plan of a step's prompts, if it has room.
Status launch_plan(const AttentionStep& step, const AttentionArgs& args, const StepKernels& kernels,
                   void* stream) noexcept {
  if (args.batch.tables.row_offsets == nullptr || args.q_offsets == nullptr) return {};
  AttentionArgs shaped = args;
  shaped.kv = step.shape.kv;
  shaped.num_q_heads = step.shape.num_q_heads;
  const kernels::PrefillParams params = prefill_params(step, shaped, kernels);
  return params.plan == nullptr ? Status{} : kernels::launch_prefill_plan(params, native(stream));
}

}  // namespace

Status load_kernels(const KvLayerView& kv) noexcept {
  for (const PlaneView* plane : {&kv.key, &kv.value}) {
    if (Status s = kernels::load_append(plane->dtype); !s) return s;
    if (Status s = kernels::load_decode(plane->dtype, plane->head_dim); !s) return s;
    if (Status s = kernels::load_columns(plane->dtype, plane->head_dim); !s) return s;
    if (Status s = kernels::load_find_prefixes(); !s) return s;
    if (Status s = kernels::load_prefill(plane->dtype, plane->head_dim); !s) return s;
  }
  return {};
}

Status launch_reset(const AttentionStep& step, void* stream) noexcept {
  if (Status s = check_step(step, step.shape.max_rows); !s) return s;
  const RowClasses classes = row_classes(step.shape);
  const bool has_rows = classes.decode_tokens > 0 || classes.column_tokens > 0;
  if (!has_rows && !counts_items(step.shape)) return {};
  if (Status s = check_workspace(step); !s) return s;
  const auto zero = [stream](std::byte* from, std::int64_t bytes) {
    return kernels::launch_status(
        cudaMemsetAsync(from, 0, static_cast<std::size_t>(bytes), native(stream)));
  };
  const WorkspaceParts parts = parts_of(step, 0);
  if (Status s = zero(parts.counters, kernels::kPrefillCounterBytes); !s) return s;
  // The counters return to 0 by themselves, but their place depends on the limits.
  if (classes.decode_tokens > 0) {
    const kernels::DecodeWorkspace w = kernels::decode_workspace(decode_limits(step));
    if (Status s = zero(parts.decode + w.counters, w.max_sum - w.counters); !s) return s;
  }
  return {};
}

Status launch_schedule(const AttentionStep& step, const AttentionArgs& args,
                       void* stream) noexcept {
  if (Status s = check_step(step, args.batch.num_rows); !s) return s;
  const StepKernels kernels = step_kernels(step, args);
  const bool has_plan = kernels.has_prompts && counts_items(step.shape);
  if (!kernels.has_decode && !kernels.has_columns && !has_plan) return {};
  if (Status s = check_workspace(step); !s) return s;
  if (Status s = not_null(Check::seq_lens_pointer, args.batch.seq_lens); !s) return s;
  if (has_plan) {
    if (Status s = launch_plan(step, args, kernels, stream); !s) return s;
  }
  if (kernels.has_prefixes) {
    if (Status s = kernels::launch_find_prefixes(find_prefixes(step, args), native(stream)); !s) {
      return s;
    }
  }
  if (kernels.has_decode) {
    if (Status s = kernels::launch_decode_schedule(decode_schedule(step, args), native(stream));
        !s) {
      return s;
    }
  }
  if (!kernels.has_columns) return {};
  return kernels::launch_columns_schedule(columns_schedule(step, args), native(stream));
}

Status validate(const AttentionStep& step, const AttentionArgs& args) noexcept {
  if (Status s = check_layer(args.kv); !s) return s;
  if (Status s = attention::check_numbers(args); !s) return s;
  if (Status s = check_step(step, args.batch.num_rows); !s) return s;
  if (Status s = attention::check_q_and_out(args, step.total_q); !s) return s;
  if (!kernels::is_aligned(args.lse, alignof(float))) {
    return kernels::in_range(Resource::alignment, 1, 0, 0);
  }
  const StepKernels kernels = layer_kernels(step, args);
  if (Status s = check_tree(step, args, kernels); !s) return s;
  if (args.batch.num_rows == 0 || step.total_q == 0) return {};
  if (Status s = not_null(Check::tables_pointer, args.batch.tables.entries); !s) return s;
  if (args.batch.tables.pages != nullptr) return unsupported(Resource::table_page);
  if (Status s = kernels::not_null(args.q_offsets); !s) return s;
  const bool has_plan = kernels.has_prompts && counts_items(step.shape);
  return has_plan || kernels.has_decode || kernels.has_columns ? check_workspace(step) : Status{};
}

/// Each kernel serves the rows of its class. The launches behind the first one may overlap: those
/// in front of them write neither schedules nor tables nor K and V.
Status launch_attention(const AttentionStep& step, const AttentionArgs& args,
                        void* stream) noexcept {
  if (Status s = cuda::validate(step, args); !s) return s;
  if (args.batch.num_rows == 0 || step.total_q == 0) return {};
  const StepKernels kernels = layer_kernels(step, args);
  bool overlap = step.overlap;
  if (kernels.has_decode) {
    if (Status s = kernels::launch_decode(decode_params(step, args), overlap, native(stream)); !s) {
      return s;
    }
    overlap = true;
  }
  if (kernels.has_columns) {
    if (Status s = kernels::launch_columns(columns_params(step, args), overlap, native(stream));
        !s) {
      return s;
    }
  }
  if (!kernels.has_prompts) return {};
  return kernels::launch_prefill(prefill_params(step, args, kernels), native(stream));
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
