// The checks of a workspace of the columns kernel. They need no CUDA, because sizes are planned on
// machines without it.

#include "kernels/columns/columns_workspace.h"

#include "kernels/columns/prefix_plan.h"
#include "kernels/common/launch_checks.h"

namespace kvarena::kernels {
namespace {

constexpr std::int64_t kMaxQueryTokens = 64;
constexpr std::int64_t kMaxSharedRows = 1 << 12;  // of which ten numbers are kept there
constexpr std::int64_t kMaxHeads = 4096;
constexpr std::int64_t kMaxSms = 256;
constexpr std::int64_t kMaxFixedTokens = std::int64_t{1} << 32;
constexpr std::int64_t kMaxItems = std::int64_t{1} << 24;
constexpr std::int64_t kWorkspaceAlignment = 256;

/// Returns the items of a row.
std::int64_t items_of_row(const ColumnsLimits& limits) noexcept {
  return std::int64_t{limits.num_kv_heads} * column_groups(limits);
}

/// Checks that the step's items can be numbered.
Status check_items(const ColumnsLimits& limits) noexcept {
  const std::int64_t per_row = items_of_row(limits);
  if (Status s = in_range(Resource::num_sequences, limits.max_rows, 1, most_columns_rows(limits));
      !s) {
    return s;
  }
  if (Status s = in_range(Resource::num_tokens, limits.fixed_tokens, 0, kMaxFixedTokens / per_row);
      !s) {
    return s;
  }
  // Tiles are in the schedule's memory beside the rows.
  const std::int64_t most_shared = std::min<std::int64_t>(
      kMaxSharedRows, std::min<std::int64_t>(limits.max_rows, kMaxColumnsRows - limits.max_rows));
  return in_range(Resource::num_sequences, limits.shared_rows, 0, most_shared);
}

}  // namespace

std::int32_t most_columns_rows(const ColumnsLimits& limits) noexcept {
  const std::int64_t most = std::max<std::int64_t>(1, kMaxItems / items_of_row(limits));
  return static_cast<std::int32_t>(std::min<std::int64_t>(most, kMaxColumnsRows));
}

Status check_columns_limits(const ColumnsLimits& limits) noexcept {
  if (Status s = check_enum(Resource::dtype, limits.kv_dtype, DType::latent_fp8); !s) return s;
  const bool is_latent = limits.head_dim == kLatentDim;
  const bool is_fp8 = limits.kv_dtype == DType::fp8_e4m3;
  if (!is_latent && limits.kv_dtype != DType::bf16 && limits.kv_dtype != DType::f16 &&
      (!is_fp8 || has_short_values(limits))) {
    return unsupported_by(SupportedList::columns_dtypes, limits.kv_dtype);
  }
  struct Range {
    Resource argument;
    std::int64_t value, smallest, largest;
  };
  const std::int64_t heads = limits.num_kv_heads;
  const std::int64_t columns = is_latent ? kMaxLatentColumns : kMaxColumns;
  const std::int64_t most_heads = heads * (columns / std::max(1, limits.q_len));
  const Range ranges[] = {
      {Resource::num_sequences, limits.max_rows, 1, kMaxColumnsRows},
      {Resource::num_tokens, limits.q_len, 1, kMaxQueryTokens},
      {Resource::num_kv_heads, heads, 1, kMaxHeads},
      {Resource::num_q_heads, limits.num_q_heads, heads, most_heads},
      {Resource::device, limits.num_sms, 1, kMaxSms},
  };
  for (const Range& r : ranges) {
    if (Status s = in_range(r.argument, r.value, r.smallest, r.largest); !s) return s;
  }
  if (limits.num_q_heads % heads != 0) {
    return invalid_argument(Resource::num_q_heads, limits.num_q_heads, heads, most_heads);
  }
  if (is_latent) {
    if (limits.kv_dtype != DType::bf16 && limits.kv_dtype != DType::fp8_e4m3 &&
        limits.kv_dtype != DType::latent_fp8) {
      return unsupported_by(SupportedList::latent_dtypes, limits.kv_dtype);
    }
    if (Status s = in_range(Resource::num_kv_heads, heads, 1, 1); !s) return s;
    if (Status s = in_range(Resource::num_sequences, limits.shared_rows, 0, 0); !s) return s;
    return check_items(limits);
  }
  if (!has_short_values(limits)) {
    const std::int32_t value_dim = limits.value_dim == 0 ? limits.head_dim : limits.value_dim;
    if (value_dim != limits.head_dim) {
      return unsupported_by(SupportedList::columns_head_dims, Resource::head_dim, value_dim);
    }
  } else if (Status s = in_range(Resource::num_sequences, limits.shared_rows, 0, 0); !s) {
    return s;
  }
  for (const std::int32_t dim : {64, 80, 96, 128, 192, 256}) {
    if (limits.head_dim == dim && (!is_fp8 || dim != 80)) return check_items(limits);
  }
  return unsupported_by(SupportedList::columns_head_dims, Resource::head_dim, limits.head_dim);
}

std::int64_t columns_workspace_bytes(const ColumnsLimits& limits) noexcept {
  return check_columns_limits(limits) ? columns_workspace(limits).bytes : 0;
}

std::int64_t shared_prefixes_bytes(const ColumnsLimits& limits) noexcept {
  return limits.shared_rows > 0 && check_columns_limits(limits) ? prefix_plan(limits).bytes : 0;
}

Status check_columns_workspace(const ColumnsLimits& limits, const void* workspace,
                               std::int64_t bytes) noexcept {
  if (Status s = aligned_pointer(workspace, kWorkspaceAlignment); !s) return s;
  const std::int64_t needed = columns_workspace(limits).bytes;
  if (bytes >= needed) return {};
  return limit_exceeded(Resource::workspace, static_cast<std::uint64_t>(needed),
                        static_cast<std::uint64_t>(bytes), Option::none);
}

}  // namespace kvarena::kernels
