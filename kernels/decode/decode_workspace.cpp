// The checks of a decode workspace. They need no CUDA, because sizes are planned on machines
// without it.

#include "kernels/decode/decode_workspace.h"

#include "kernels/common/launch_checks.h"

namespace kvarena::kernels {
namespace {

constexpr std::int64_t kMaxHeads = 4096;
constexpr std::int64_t kMaxSms = 4096;
constexpr std::int64_t kWorkspaceAlignment = 256;

}  // namespace

Status check_decode_limits(const DecodeLimits& limits) noexcept {
  if (Status s = check_enum(Resource::dtype, limits.kv_dtype, DType::latent_fp8); !s) return s;
  struct Range {
    Resource argument;
    std::int64_t value, smallest, largest;
  };
  const std::int64_t heads = limits.num_kv_heads;
  const Range ranges[] = {
      {Resource::num_sequences, limits.max_rows, 1, kMaxDecodeRows},
      {Resource::num_tokens, limits.q_len, 1, kMaxDecodeQueryTokens},
      {Resource::num_kv_heads, heads, 1, kMaxHeads},
      {Resource::num_q_heads, limits.num_q_heads, heads, heads * kMaxDecodeGroup},
      {Resource::device, limits.num_sms, 1, kMaxSms},
      {Resource::num_tokens, limits.fixed_tokens, 0, kMaxFixedDecodeTokens},
      {Resource::num_tokens, limits.step_tokens, 0, limits.q_len},
      {Resource::num_sequences, limits.step_rows, 0, kMaxDecodeRows},
      {Resource::num_tokens, limits.step_row_tokens, 0, limits.step_longest},
      {Resource::num_tokens, limits.step_longest, 0, 0x7fffffff},
  };
  for (const Range& r : ranges) {
    if (Status s = in_range(r.argument, r.value, r.smallest, r.largest); !s) return s;
  }
  if (limits.num_q_heads % heads != 0) {
    return invalid_argument(Resource::num_q_heads, limits.num_q_heads, heads,
                            heads * kMaxDecodeGroup);
  }
  for (const std::int32_t dim : {64, 96, 128, 256}) {
    if (limits.head_dim == dim) return {};
  }
  return unsupported_by(SupportedList::decode_head_dims, Resource::head_dim, limits.head_dim);
}

std::int64_t decode_workspace_bytes(const DecodeLimits& limits) noexcept {
  return check_decode_limits(limits) ? decode_workspace(limits).bytes : 0;
}

Status check_decode_workspace(const DecodeLimits& limits, const void* workspace,
                              std::int64_t bytes) noexcept {
  if (Status s = aligned_pointer(workspace, kWorkspaceAlignment); !s) return s;
  const std::int64_t needed = decode_workspace(limits).bytes;
  if (bytes >= needed) return {};
  return limit_exceeded(Resource::workspace, static_cast<std::uint64_t>(needed),
                        static_cast<std::uint64_t>(bytes), Option::none);
}

}  // namespace kvarena::kernels
