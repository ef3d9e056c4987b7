#include "cache/backend_sizes.hpp"

namespace kvarena {
namespace {

constexpr std::uint64_t kHostAlignment = 64;
constexpr std::uint64_t kCudaAlignment = 256;

/// Plans the workspaces of a host backend.
Result<WorkspacePlan> plan_on_host(const BackendOptions& options, const KvLayerView& kv) noexcept {
  AttentionArgs nothing;  // the fields that are the same for every batch: types, tile order, heads
  nothing.kv = kv;
  nothing.num_q_heads = options.num_q_heads;
  nothing.scale = 1.0F;
  if (Status status = validate(nothing); !status) return status;
  const Result<std::int64_t> bytes = attention_workspace_bytes(host_limits(options, kv));
  if (!bytes) return bytes.status();
  return WorkspacePlan{.bytes = *bytes,
                       .alignment_bytes = kHostAlignment,
                       .count = options.limits.steps_in_flight * num_windows(options)};
}

/// Plans the workspaces of a CUDA backend.
Result<WorkspacePlan> plan_on_cuda(const BackendOptions& options, const KvLayerView& kv) noexcept {
  const Result<std::int64_t> bytes = cuda::workspace_bytes(cuda_shape(options, kv));
  if (!bytes) return bytes.status();
  return WorkspacePlan{.bytes = *bytes,
                       .alignment_bytes = kCudaAlignment,
                       .count = *bytes == 0 ? 0 : num_windows(options)};
}

}  // namespace

AttentionLimits host_limits(const BackendOptions& options, const KvLayerView& kv) noexcept {
  return {.max_rows = options.limits.max_rows,
          .max_q_tokens = options.limits.max_tokens,
          .num_q_heads = options.num_q_heads,
          .num_kv_heads = kv.key.num_heads,
          .head_dim_k = kv.key.head_dim,
          .head_dim_v = kv.value.head_dim,
          .num_threads = options.num_threads,
          .path = CpuPath::best,
          .draft_trees = options.draft_trees,
          .batch_invariant = options.batch_invariant_tokens > 0};
}

cuda::AttentionShape cuda_shape(const BackendOptions& options, const KvLayerView& kv) noexcept {
  return {.kv = kv,
          .num_q_heads = options.num_q_heads,
          .max_rows = options.limits.max_rows,
          .max_decode_tokens = options.max_decode_tokens,
          .num_sms = options.num_sms,
          .batch_invariant_tokens = options.batch_invariant_tokens,
          .draft_trees = options.draft_trees,
          .max_run_tokens = std::min<std::int64_t>(options.limits.max_tokens, 1 << 20),
          .max_shared_rows = options.max_shared_rows};
}

bool has_tree_kernel(const BackendOptions& options, const KvLayerView& kv,
                     std::int32_t compute_capability) noexcept {
  cuda::AttentionShape shape = cuda_shape(options, kv);
  shape.compute_capability = compute_capability;
  return cuda::row_classes(shape).column_tokens > 0;
}

DeviceTablesOptions tables_options(const BackendOptions& options) noexcept {
  return {.limits = options.limits,
          .max_sequences = options.max_sequences,
          .max_sequence_blocks = options.max_sequence_blocks,
          .block_size_tokens = options.block_size_tokens};
}

Result<WorkspacePlan> plan_workspaces(DeviceKind kind, const BackendOptions& options,
                                      const KvLayerView& kv) noexcept {
  return kind == DeviceKind::host ? plan_on_host(options, kv) : plan_on_cuda(options, kv);
}

}  // namespace kvarena
