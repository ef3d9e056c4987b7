#include "kernels/gather/gather.h"

#include "kernels/append/token_move.h"
#include "kernels/common/launch_checks.h"

#include <limits>

namespace kvarena::kernels {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();

/// Checks the params of a gather or a scatter.
template <class Params>
Status check_span(const Params& p) noexcept {
  if (Status s = check_layer(p.kv); !s) return s;
  if (Status s = check_enum(Resource::dtype, p.dtype, DType::latent_fp8); !s) return s;
  if (Status s = in_range(Resource::token_index, p.first_token, 0, kMost); !s) return s;
  if (Status s = in_range(Resource::num_tokens, p.num_tokens, 0, kMost - p.first_token); !s) {
    return s;
  }
  if (p.num_tokens == 0) return {};
  if (Status s = check_tables(p.tables); !s) return s;
  if (Status s = in_range(Resource::num_sequences, p.row, 0, p.tables.num_rows - 1); !s) return s;
  if (p.key == nullptr || p.value == nullptr) {
    return element_pointer(p.key == nullptr ? p.value : p.key, p.dtype);
  }
  if (Status s = element_pointer(p.key, p.dtype); !s) return s;
  return element_pointer(p.value, p.dtype);
}

/// Sets the span of a gather or a scatter.
template <class Params>
void set_span(TokenMove& move, const Params& p) noexcept {
  move.tables = p.tables;
  move.row = p.row;
  move.first_token = p.first_token;
  move.num_tokens = p.num_tokens;
}

/// Checks that two planes of a conversion have the same shape.
Status check_pair(const PlaneView& from, const PlaneView& to) noexcept {
  if (Status s = in_range(Resource::num_kv_heads, to.num_heads, from.num_heads, from.num_heads);
      !s) {
    return s;
  }
  return in_range(Resource::head_dim, to.head_dim, from.head_dim, from.head_dim);
}

}  // namespace

Status launch_gather(const GatherParams& p, cudaStream_t stream) noexcept {
  if (Status s = check_span(p); !s) return s;
  TokenMove move = make_token_move(TokenMap::gather, p.kv, p.key, p.value, p.dtype, p.scales);
  set_span(move, p);
  return launch_token_move(move, stream);
}

Status launch_scatter(const ScatterParams& p, cudaStream_t stream) noexcept {
  if (Status s = check_span(p); !s) return s;
  // Contiguous memory is only read here, but a plane has one pointer for both uses.
  TokenMove move = make_token_move(TokenMap::span, p.kv, const_cast<void*>(p.key),
                                   const_cast<void*>(p.value), p.dtype, p.scales);
  set_span(move, p);
  return launch_token_move(move, stream);
}

Status launch_convert_blocks(const ConvertBlocksParams& p, cudaStream_t stream) noexcept {
  if (Status s = check_layer(p.from); !s) return s;
  if (Status s = check_layer(p.to); !s) return s;
  if (Status s = check_pair(p.from.key, p.to.key); !s) return s;
  if (Status s = check_pair(p.from.value, p.to.value); !s) return s;
  const std::int64_t size = p.from.block_size;
  if (Status s = in_range(Resource::block_size, p.to.block_size, size, size); !s) return s;
  if (Status s = in_range(Resource::capacity, p.num_copies, 0, kMost / size); !s) return s;
  if (p.num_copies == 0) return {};
  if (Status s = not_null(p.copies); !s) return s;
  TokenMove move =
      make_token_move(TokenMap::copies, p.from, nullptr, nullptr, DType::f32, p.scales);
  move.planes[0] = {p.from.key, p.to.key, p.scales.key};
  move.planes[1] = {p.from.value, p.to.value, p.scales.value};
  move.num_planes = 2;
  move.copies = p.copies;
  move.num_target_blocks = p.to.num_blocks;
  move.num_tokens = p.num_copies * size;
  return launch_token_move(move, stream);
}

}  // namespace kvarena::kernels
