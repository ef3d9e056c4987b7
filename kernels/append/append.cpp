#include "kernels/append/append.h"

#include "kernels/append/latent_append.h"
#include "kernels/append/scaled_append.h"
#include "kernels/append/token_move.h"
#include "kernels/common/launch_checks.h"

namespace kvarena::kernels {
namespace {

/// Checks the pool and the new tokens of an append.
Status check_new_tokens(const KvLayerView& kv, const void* key, const void* value, DType dtype,
                        std::int64_t num_tokens) noexcept {
  if (Status s = check_layer(kv); !s) return s;
  if (Status s = check_enum(Resource::dtype, dtype, DType::latent_fp8); !s) return s;
  if (Status s = in_range(Resource::num_tokens, num_tokens, 0, 0x7fffffff); !s) return s;
  if (num_tokens == 0) return {};
  if (Status s = element_pointer(key, dtype); !s) return s;
  if (value == nullptr && kv.value.base == kv.key.base) return {};
  return element_pointer(value, dtype);
}

// Removes const from a source. The kernel only reads it, but a plane has one pointer for both uses.
void* readable(const void* from) noexcept { return const_cast<void*>(from); }

}  // namespace

Status load_append(DType kv_dtype) noexcept {
  if (kv_dtype == DType::latent_fp8) return load_latent_append();
  if (kv_dtype == DType::fp8_e4m3) {
    if (Status s = load_scaled_append(); !s) return s;
  }
  return load_token_move(TokenMap::slots, kv_dtype);
}

Status launch_append(const AppendParams& p, bool overlap, cudaStream_t stream) noexcept {
  if (Status s = check_new_tokens(p.kv, p.key, p.value, p.dtype, p.num_tokens); !s) return s;
  if (p.num_tokens > 0) {
    if (Status s = not_null(p.slots); !s) return s;
  }
  if (Status s = check_token_stride(p.key_token_stride, p.kv.key, p.dtype); !s) return s;
  if (Status s = check_token_stride(p.value_token_stride, p.kv.value, p.dtype); !s) return s;
  if (p.kv.key.dtype == DType::latent_fp8) return launch_latent_append(p, overlap, stream);
  if (has_own_scales(p.kv)) return launch_scaled_append(p, overlap, stream);
  TokenMove move = make_token_move(TokenMap::slots, p.kv, readable(p.key), readable(p.value),
                                   p.dtype, p.scales, {p.key_token_stride, p.value_token_stride});
  move.overlap = overlap;
  move.slots = p.slots;
  move.num_tokens = p.num_tokens;
  return launch_token_move(move, stream);
}

Status launch_append_runs(const AppendRunsParams& p, bool overlap, cudaStream_t stream) noexcept {
  if (Status s = check_new_tokens(p.kv, p.key, p.value, p.dtype, p.num_tokens); !s) return s;
  if (Status s = in_range(Resource::num_sequences, p.num_runs, 0, 0x7fffffff); !s) return s;
  if (p.num_tokens == 0 || p.num_runs == 0) return {};
  if (Status s = check_tables(p.tables); !s) return s;
  if (Status s = not_null(p.runs); !s) return s;
  if (Status s = not_null(p.run_offsets); !s) return s;
  TokenMove move =
      make_token_move(TokenMap::runs, p.kv, readable(p.key), readable(p.value), p.dtype, p.scales);
  move.overlap = overlap;
  move.runs = p.runs;
  move.run_offsets = p.run_offsets;
  move.num_runs = p.num_runs;
  move.runs_per_token = static_cast<float>(p.num_runs) / static_cast<float>(p.num_tokens);
  move.tables = p.tables;
  move.num_tokens = p.num_tokens;
  return launch_token_move(move, stream);
}

}  // namespace kvarena::kernels
