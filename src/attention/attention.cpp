#include "kvarena/attention/attention.hpp"

#include "attention/cpu/piece.hpp"
#include "attention/validate.hpp"

#include <atomic>
#include <cstdint>

namespace kvarena {
namespace {

using namespace attention;

constexpr std::int64_t kMaxStepTokens = std::int64_t{1}
                                        << 44;  // keeps the costs of the schedule within 63 bits
constexpr std::int64_t kWorkspaceAlignment = 64;

/// Tokens of all sequences of the batch.
std::int64_t sequence_tokens(const BatchView& batch) noexcept {
  std::int64_t total = 0;
  for (std::int32_t row = 0; row < batch.num_rows; ++row) total += batch.seq_lens[row];
  return total;
}

/// The batch as the schedule sees it.
Step step_of(const AttentionArgs& args, const AttentionLimits& limits,
             const Geometry& geometry) noexcept {
  const bool may_have_trees = limits.draft_trees && args.chunk_tokens == 0 && !args.sees_all;
  return {&args.batch,           args.q_offsets, args.window_tokens, geometry.tile_tokens,
          args.kv.key.num_heads, may_have_trees, args.chunk_tokens,  args.sees_all};
}

/// The arguments as the CPU kernels take them.
kernels::AttentionParams params_of(const AttentionArgs& args) noexcept {
  return {args.kv,
          args.batch,
          args.q_offsets,
          args.q,
          args.out,
          args.lse,
          args.num_q_heads,
          args.window_tokens,
          args.scale,
          args.soft_cap,
          args.q_dtype,
          args.out_dtype,
          args.scales,
          args.sinks,
          args.tree_mask,
          args.q_token_stride_bytes,
          args.out_token_stride_bytes};
}

/// The inner loops of a path for one type.
const TileOps& ops_of(CpuPath path, DType dtype) noexcept {
#ifdef KVARENA_HAVE_AVX512
  if (path == CpuPath::avx512) return avx512_tile_ops(dtype);
#endif
  static_cast<void>(path);
  return portable_tile_ops(dtype);
}

// The work of one worker: it takes parts in order until none is left.
void take_parts(void* argument, std::int32_t worker) noexcept {
  const Run& run = *static_cast<const Run*>(argument);
  const std::atomic_ref<std::int32_t> next(*run.map->next_part(run.workspace));
  for (std::int32_t part = next.fetch_add(1, std::memory_order_relaxed); part < run.num_parts;
       part = next.fetch_add(1, std::memory_order_relaxed)) {
    run_part(run, part, worker);
  }
}

}  // namespace

CpuPath best_cpu_path() noexcept {
#ifdef KVARENA_HAVE_AVX512
  static const bool has_avx512 =
      __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (has_avx512) return CpuPath::avx512;
#endif
  return CpuPath::portable;
}

Result<std::int64_t> attention_workspace_bytes(const AttentionLimits& limits) noexcept {
  if (Status s = check_limits(limits); !s) return s;
  return WorkspaceMap(limits).bytes();
}

/// Checks everything that the schedule uses before it writes into the workspace.
Result<AttentionPlan> plan_attention(const AttentionArgs& args, const AttentionLimits& limits,
                                     std::span<std::byte> workspace) noexcept {
  if (Status s = check_limits(limits); !s) return s;
  if (Status s = check_shape(args); !s) return s;
  if (Status s = check_same_shape(args, limits); !s) return s;
  if (Status s = in_range(Check::limit_rows, Resource::num_sequences, args.batch.num_rows, 0,
                          limits.max_rows);
      !s) {
    return s;
  }
  if (Status s = check_rows(args); !s) return s;
  if (Status s = in_range(Check::limit_q_tokens, Resource::num_tokens, total_q(args), 0,
                          limits.max_q_tokens);
      !s) {
    return s;
  }
  const std::int64_t tokens = sequence_tokens(args.batch);
  if (Status s = in_range(Check::plan_kv_tokens, Resource::num_tokens, tokens, 0, kMaxStepTokens);
      !s) {
    return s;
  }
  const auto address =
      static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(workspace.data()));
  if (Status s = aligned(Check::workspace_alignment, address, kWorkspaceAlignment); !s) return s;
  const WorkspaceMap map(limits);
  if (static_cast<std::int64_t>(workspace.size()) < map.bytes()) {
    return with(Check::workspace_bytes,
                limit_exceeded(Resource::workspace, static_cast<std::uint64_t>(map.bytes()),
                               workspace.size(), Option::none));
  }
  AttentionPlan plan{workspace.data(),  limits,        args.batch.num_rows,
                     total_q(args),     tokens,        args.window_tokens,
                     args.chunk_tokens, args.sees_all, 0};
  if (limits.path == CpuPath::best) plan.limits.path = best_cpu_path();
  plan.num_parts = cut(step_of(args, limits, map.geometry()), limits, workspace.data());
  return plan;
}

Status validate(const AttentionPlan& plan, const AttentionArgs& args) noexcept {
  if (Status s = attention::check_shape(args); !s) return s;
  if (Status s = attention::check_q_and_out(args, total_q(args)); !s) return s;
  if (Status s = attention::check_same_shape(args, plan.limits); !s) return s;
  if (args.tree_mask != nullptr && !plan.limits.draft_trees) {
    return with(Check::tree_mask, unsupported(Resource::pointer));
  }
  const auto same = [](Check check, Resource what, std::int64_t value, std::int64_t planned) {
    return in_range(check, what, value, planned, planned);
  };
  if (Status s =
          same(Check::plan_rows, Resource::num_sequences, args.batch.num_rows, plan.num_rows);
      !s) {
    return s;
  }
  if (Status s = same(Check::plan_q_tokens, Resource::num_tokens, total_q(args), plan.num_q_tokens);
      !s) {
    return s;
  }
  if (Status s = same(Check::plan_window, Resource::window, args.window_tokens, plan.window_tokens);
      !s) {
    return s;
  }
  if (Status s = same(Check::plan_visible, Resource::window, args.chunk_tokens, plan.chunk_tokens);
      !s) {
    return s;
  }
  if (Status s =
          same(Check::plan_visible, Resource::window, args.sees_all ? 1 : 0, plan.sees_all ? 1 : 0);
      !s) {
    return s;
  }
  return same(Check::plan_kv_tokens, Resource::num_tokens, sequence_tokens(args.batch),
              plan.kv_tokens);
}

/// Resets the counters of the workspace, then lets the workers take parts.
Status run_attention(const AttentionPlan& plan, const AttentionArgs& args,
                     CpuWorkers& workers) noexcept {
  if (Status s = validate(plan, args); !s) return s;
  if (Status s = in_range(Check::limit_threads, Resource::num_threads, workers.num_threads(), 1,
                          plan.limits.num_threads);
      !s) {
    return s;
  }
  const WorkspaceMap map(plan.limits);
  const kernels::AttentionParams params = params_of(args);
  Run run{&params,
          step_of(args, plan.limits, map.geometry()),
          &map,
          plan.workspace,
          &ops_of(plan.limits.path, args.kv.key.dtype),
          &ops_of(plan.limits.path, args.kv.value.dtype),
          plan.num_parts};
  const Part* parts = map.parts(plan.workspace);
  for (std::int32_t p = 0; p < plan.num_parts; ++p) {
    map.missing(plan.workspace)[p] = parts[p].pieces;
  }
  *map.next_part(plan.workspace) = 0;
  if (plan.num_parts == 1) {
    take_parts(&run, 0);
  } else {
    workers.run(take_parts, &run);
  }
  return {};
}

}  // namespace kvarena
