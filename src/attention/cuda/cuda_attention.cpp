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
using attention::kMaxTreeTokens;
using attention::not_null;
using attention::with;

constexpr std::int64_t kWorkspaceAlignment = 256;
constexpr std::int64_t kMaxStepRows = 0x7fffffff;  // prompts included
constexpr std::int64_t kMaxTableStride = std::int64_t{1} << 40;

cudaStream_t native(void* stream) noexcept { return static_cast<cudaStream_t>(stream); }

/// Checks the address and the size of a step's workspace.
Status check_workspace(const StepPlan& plan) noexcept {
  const AttentionStep& step = plan.step;
  if (Status s = kernels::aligned_pointer(step.workspace, kWorkspaceAlignment); !s) return s;
  const std::int64_t needed = plan.parts.needed;
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
  if (Status s =
          in_range(Check::table_stride, Resource::span_size, step.table_stride, 0, kMaxTableStride);
      !s) {
    return s;
  }
  if (Status s = attention::aligned(Check::row_slots_alignment, step.row_slots); !s) return s;
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
  const std::int64_t few = std::int64_t{step.rows.decode} + step.rows.columns;
  if (Status s = in_range(Check::limit_rows, Resource::num_sequences, step.rows.prompts, 0,
                          num_rows - few);
      !s) {
    return s;
  }
  const std::int64_t least_q = few + step.rows.prompts;
  return in_range(Check::num_tokens, Resource::num_tokens, step.total_q, least_q, 0x7fffffff);
}

/// Checks that draft trees can be masked: all rows with query tokens go to one kernel.
Status check_tree(const AttentionStep& step, const AttentionArgs& args,
                  const StepKernels& kernels) noexcept {
  if (args.tree_mask == nullptr) return {};
  const bool is_masked = step.shape.draft_trees && kernels.classes.column_tokens > 0 &&
                         !kernels.has_decode && kernels.num_prompts == 0 &&
                         step.rows.column_tokens <= kMaxTreeTokens && args.soft_cap == 0.0F;
  if (!is_masked) return with(Check::tree_mask, unsupported(Resource::pointer));
  return kernels::aligned_pointer(args.tree_mask, alignof(std::uint64_t));
}

/// Returns whether kernels that need a workspace have rows.
bool needs_workspace(const StepPlan& plan, const StepKernels& kernels) noexcept {
  return kernels.has_decode || kernels.has_columns ||
         (plan.counts_items && kernels.num_prompts > 0);
}

/// Checks the numbers of a step and of a layer, and the pointers to its queries and outputs.
Status check_numbers(const AttentionStep& step, const AttentionArgs& args) noexcept {
  if (Status s = check_layer(args.kv); !s) return s;
  if (Status s = attention::check_numbers(args); !s) return s;
  if (Status s = attention::check_causal(args); !s) return s;
  if (Status s = check_step(step, args.batch.num_rows); !s) return s;
  if (Status s = attention::check_q_and_out(args, step.total_q); !s) return s;
  return kernels::is_aligned(args.lse, alignof(float))
             ? Status{}
             : kernels::in_range(Resource::alignment, 1, 0, 0);
}

/// Checks whether these kernels can run a layer.
Status check_layer_of(const StepPlan& plan, const AttentionArgs& args,
                      const StepKernels& kernels) noexcept {
  if (Status s = check_tree(plan.step, args, kernels); !s) return s;
  if (args.batch.num_rows == 0 || plan.step.total_q == 0) return {};
  if (Status s = not_null(Check::tables_pointer, args.batch.tables.entries); !s) return s;
  if (args.batch.tables.pages != nullptr) return unsupported(Resource::table_page);
  if (Status s = kernels::not_null(args.q_offsets); !s) return s;
  return needs_workspace(plan, kernels) ? check_workspace(plan) : Status{};
}

/// Queues the plan of a step's prompts, if it has room.
Status launch_plan(const StepPlan& plan, const AttentionArgs& args, void* stream) noexcept {
  if (args.batch.tables.row_offsets == nullptr || args.q_offsets == nullptr) return {};
  AttentionArgs shaped = args;
  shaped.kv = plan.step.shape.kv;
  shaped.num_q_heads = plan.step.shape.num_q_heads;
  const kernels::PrefillParams params = prefill_params(plan, shaped, plan.kernels);
  return params.plan == nullptr ? Status{} : kernels::launch_prefill_plan(params, native(stream));
}

}  // namespace

Status load_kernels(const KvLayerView& kv) noexcept {
  for (const PlaneView* plane : {&kv.key, &kv.value}) {
    if (Status s = kernels::load_append(plane->dtype); !s) return s;
    if (Status s = kernels::load_decode(plane->dtype, plane->head_dim); !s) return s;
    if (Status s = kernels::load_columns(plane->dtype, plane->head_dim); !s) return s;
    if (Status s = kernels::load_prefill(plane->dtype, plane->head_dim); !s) return s;
  }
  return {};
}

Status launch_reset(const AttentionStep& step, void* stream) noexcept {
  if (Status s = check_step(step, kMaxStepRows); !s) return s;
  const StepPlan plan = plan_step(step, 0, 0);
  const WorkspaceParts& parts = plan.parts;
  if (parts.decode_bytes == 0 && parts.columns_bytes == 0 && !plan.counts_items) return {};
  if (Status s = check_workspace(plan); !s) return s;
  const auto zero = [stream](std::byte* from, std::int64_t bytes) {
    return kernels::launch_status(
        cudaMemsetAsync(from, 0, static_cast<std::size_t>(bytes), native(stream)));
  };
  if (Status s = zero(parts.counters, kernels::kPrefillCounterBytes); !s) return s;
  // The counters return to 0 by themselves, but their place depends on the limits.
  if (parts.decode_bytes > 0) {
    const kernels::DecodeWorkspace w = kernels::decode_workspace(plan.decode);
    if (Status s = zero(parts.decode + w.counters, w.max_sum - w.counters); !s) return s;
  }
  return {};
}

Status launch_schedule(const AttentionStep& step, const AttentionArgs& args,
                       void* stream) noexcept {
  if (Status s = check_step(step, args.batch.num_rows); !s) return s;
  const StepPlan plan = plan_step(step, args.batch.num_rows, args.window_tokens);
  if (!needs_workspace(plan, plan.kernels)) return {};
  if (Status s = check_workspace(plan); !s) return s;
  if (Status s = not_null(Check::seq_lens_pointer, args.batch.seq_lens); !s) return s;
  if (plan.counts_items && plan.kernels.num_prompts > 0) {
    if (Status s = launch_plan(plan, args, stream); !s) return s;
  }
  if (plan.kernels.has_prefixes) {
    if (Status s = kernels::launch_find_prefixes(find_prefixes(plan, args), native(stream)); !s) {
      return s;
    }
  }
  if (plan.kernels.has_decode) {
    if (Status s = kernels::launch_decode_schedule(decode_schedule(plan, args), native(stream));
        !s) {
      return s;
    }
  }
  if (!plan.kernels.has_columns) return {};
  return kernels::launch_columns_schedule(columns_schedule(plan, args), native(stream));
}

Status validate(const AttentionStep& step, const AttentionArgs& args) noexcept {
  if (Status s = check_numbers(step, args); !s) return s;
  const StepPlan plan = plan_step(step, args.batch.num_rows, args.window_tokens);
  return check_layer_of(plan, args, layer_kernels(plan, args));
}

/// Each kernel serves the rows of its class. The launches behind the first one may overlap: those
/// in front of them write neither schedules nor tables nor K and V.
Status launch_attention(const AttentionStep& step, const AttentionArgs& args,
                        void* stream) noexcept {
  if (Status s = check_numbers(step, args); !s) return s;
  const StepPlan plan = plan_step(step, args.batch.num_rows, args.window_tokens);
  const StepKernels kernels = layer_kernels(plan, args);
  if (Status s = check_layer_of(plan, args, kernels); !s) return s;
  if (args.batch.num_rows == 0 || step.total_q == 0) return {};
  bool overlap = step.overlap;
  if (kernels.has_decode) {
    if (Status s = kernels::launch_decode(decode_params(plan, args), overlap, native(stream)); !s) {
      return s;
    }
    overlap = true;
  }
  if (kernels.has_columns) {
    if (Status s = kernels::launch_columns(columns_params(plan, args), overlap, native(stream));
        !s) {
      return s;
    }
  }
  if (kernels.num_prompts == 0) return {};
  return kernels::launch_prefill(prefill_params(plan, args, kernels), native(stream));
}

/// The kernel finds the first wrong entry; this copies its report to the host.
Status check_tables(const AttentionArgs& args, void* scratch, void* stream) noexcept {
  if (Status s = check_layer(args.kv); !s) return s;
  if (Status s = attention::check_numbers(args); !s) return s;
  if (Status s = attention::check_causal(args); !s) return s;
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
                                 .scales = args.scales,
                                 .key_token_stride = args.key_token_stride_bytes,
                                 .value_token_stride = args.value_token_stride_bytes},
                                overlap, native(stream));
}

}  // namespace kvarena::cuda
