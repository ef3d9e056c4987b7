#include "attention/validate.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvarena {
namespace attention {
namespace {

constexpr std::int64_t kMaxRows = std::int64_t{1} << 20;
constexpr std::int64_t kMaxQTokens = std::int64_t{1} << 31;
constexpr std::int64_t kMaxHeads = 4096;
constexpr std::int64_t kMaxHeadDim = 4096;
constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

/// A float in millionths, for a Status. The smallest integer stands for values that do not fit.
std::int64_t millionths(float value) noexcept {
  const double scaled = std::trunc(static_cast<double>(value) * 1e6);
  return std::abs(scaled) < 9e18 ? static_cast<std::int64_t>(scaled)
                                 : std::numeric_limits<std::int64_t>::min();
}

/// Checks one row: its blocks, its length and its query tokens.
Status check_row(const AttentionArgs& args, std::int32_t row) noexcept {
  const std::int64_t length = args.batch.seq_lens[row];
  const std::int64_t blocks = args.batch.num_blocks[row];
  if (Status s = in_range(Check::row_blocks, Resource::num_blocks, blocks, 0,
                          std::numeric_limits<std::int32_t>::max());
      !s) {
    return s;
  }
  if (Status s = in_range(Check::seq_len, Resource::sequence_length, length, 0,
                          blocks * args.kv.block_size);
      !s) {
    return s;
  }
  if (length > 0) {
    if (Status s = not_null(Check::tables_pointer, args.batch.tables.entries); !s) return s;
  }
  if (args.q_offsets == nullptr) return {};
  const std::int64_t first = args.q_offsets[row];
  const std::int64_t count = args.q_offsets[row + 1] - first;
  if (first < 0)
    return with(Check::q_count, invalid_argument(Resource::num_tokens, first, 0, kNoLimit));
  const std::int64_t most = length > 0 && !args.sees_all ? length : kMaxQTokens;
  return in_range(Check::q_count, Resource::num_tokens, count, 0,
                  args.tree_mask != nullptr ? std::min<std::int64_t>(most, kMaxTreeTokens) : most);
}

/// Checks the addresses of a batch's arrays. One that is null is a multiple of everything.
Status check_arrays(const AttentionArgs& args) noexcept {
  const BlockTableView& tables = args.batch.tables;
  if (Status s = aligned(Check::q_offsets_alignment, args.q_offsets); !s) return s;
  if (Status s = aligned(Check::seq_lens_alignment, args.batch.seq_lens); !s) return s;
  if (Status s = aligned(Check::tables_alignment, tables.entries); !s) return s;
  return aligned(Check::tables_alignment, tables.row_offsets);
}

/// Checks that at most one rule says which tokens a query token sees.
Status check_visible(const AttentionArgs& args) noexcept {
  const bool has_other = args.window_tokens != 0 || args.tree_mask != nullptr;
  if (Status s = in_range(Check::chunk, Resource::window, args.chunk_tokens, 0, kNoLimit); !s) {
    return s;
  }
  if (args.chunk_tokens != 0 && has_other) {
    return with(Check::chunk,
                unsupported(Resource::window, static_cast<std::uint64_t>(args.chunk_tokens)));
  }
  if (!args.sees_all || (!has_other && args.chunk_tokens == 0)) return {};
  return with(Check::sees_all, unsupported(Resource::window));
}

// Checks that every table entry that a query token sees is a block of the pool.
Status check_entries(const AttentionArgs& args) noexcept {
  const Step step{&args.batch, args.q_offsets, args.window_tokens, 1,
                  1,           false,          args.chunk_tokens,  args.sees_all};
  for (std::int32_t row = 0; row < args.batch.num_rows; ++row) {
    const std::int64_t length = args.batch.seq_lens[row];
    if (length == 0 || step.q_count(row) == 0) continue;
    const std::int64_t first = step.visible(row, 0).begin / args.kv.block_size;
    for (std::int64_t j = first; j * args.kv.block_size < length; ++j) {
      const std::int64_t block = args.batch.tables.block(row, j).value;
      if (Status s =
              in_range(Check::table_entry, Resource::block_index, block, 0, args.kv.num_blocks - 1);
          !s) {
        return s;
      }
    }
  }
  return {};
}

}  // namespace

std::int64_t total_q(const AttentionArgs& args) noexcept {
  if (args.q_offsets == nullptr || args.batch.num_rows == 0) return args.batch.num_rows;
  return args.q_offsets[args.batch.num_rows];
}

Status check_shape(const AttentionArgs& args) noexcept {
  if (Status s = check_layer(args.kv); !s) return s;
  if (Status s = check_numbers(args); !s || args.batch.num_rows == 0) return s;
  return not_null(Check::num_blocks_pointer, args.batch.num_blocks);
}

Status check_numbers(const AttentionArgs& args) noexcept {
  const std::int64_t heads = args.kv.key.num_heads;
  if (Status s = in_range(Check::key_heads, Resource::num_kv_heads, heads, 1, kMaxHeads); !s) {
    return s;
  }
  if (args.num_q_heads < heads || args.num_q_heads > kMaxHeads || args.num_q_heads % heads != 0) {
    return with(Check::q_heads,
                invalid_argument(Resource::num_q_heads, args.num_q_heads, heads, kMaxHeads));
  }
  if (!std::isfinite(args.scale) || args.scale <= 0.0F) {
    return with(Check::scale,
                invalid_argument(Resource::scale, millionths(args.scale), 1, kNoLimit));
  }
  if (!std::isfinite(args.soft_cap) || args.soft_cap < 0.0F) {
    return with(Check::soft_cap,
                invalid_argument(Resource::soft_cap, millionths(args.soft_cap), 0, kNoLimit));
  }
  if (Status s = in_range(Check::window, Resource::window, args.window_tokens, 0,
                          std::numeric_limits<std::int32_t>::max());
      !s) {
    return s;
  }
  if (Status s = check_visible(args); !s) return s;
  const BatchView& batch = args.batch;
  if (Status s = in_range(Check::num_rows, Resource::num_sequences, batch.num_rows, 0,
                          std::min<std::int64_t>(kMaxRows, batch.tables.num_rows));
      !s) {
    return s;
  }
  if (batch.num_rows == 0) return {};
  if (Status s = not_null(Check::seq_lens_pointer, batch.seq_lens); !s) return s;
  if (Status s = not_null(Check::row_offsets_pointer, batch.tables.row_offsets); !s) return s;
  if (Status s = check_arrays(args); !s) return s;
  if (batch.tables.pages == nullptr) return {};
  return in_range(Check::page_shift, Resource::block_index, batch.tables.page_shift, 0, 30);
}

Status check_q_and_out(const AttentionArgs& args, std::int64_t num_q_tokens) noexcept {
  if (Status s = cpu_dtype(Check::q_dtype, args.q_dtype); !s) return s;
  if (Status s = cpu_dtype(Check::out_dtype, args.out_dtype); !s) return s;
  if (num_q_tokens == 0) return {};
  if (Status s = element_pointer(Check::q_pointer, Check::q_alignment, args.q, args.q_dtype); !s) {
    return s;
  }
  if (Status s =
          element_pointer(Check::out_pointer, Check::out_alignment, args.out, args.out_dtype);
      !s) {
    return s;
  }
  if (Status s = token_stride(Check::q_stride, args.q_token_stride_bytes, args.num_q_heads,
                              args.kv.key.head_dim, args.q_dtype);
      !s) {
    return s;
  }
  return token_stride(Check::out_stride, args.out_token_stride_bytes, args.num_q_heads,
                      args.kv.value.head_dim, args.out_dtype);
}

Status check_rows(const AttentionArgs& args) noexcept {
  for (std::int32_t row = 0; row < args.batch.num_rows; ++row) {
    if (Status s = check_row(args, row); !s) return s;
  }
  return {};
}

Status check_limits(const AttentionLimits& limits) noexcept {
  if (Status s = in_range(Check::limit_rows, Option::max_rows, limits.max_rows, 1, kMaxRows); !s) {
    return s;
  }
  if (Status s = in_range(Check::limit_q_tokens, Option::max_q_tokens, limits.max_q_tokens, 1,
                          kMaxQTokens);
      !s) {
    return s;
  }
  if (Status s = in_range(Check::limit_threads, Option::num_threads, limits.num_threads, 1,
                          CpuWorkers::kMaxThreads);
      !s) {
    return s;
  }
  if (Status s =
          in_range(Check::key_heads, Option::num_kv_heads, limits.num_kv_heads, 1, kMaxHeads);
      !s) {
    return s;
  }
  if (limits.num_q_heads < limits.num_kv_heads || limits.num_q_heads > kMaxHeads ||
      limits.num_q_heads % limits.num_kv_heads != 0) {
    return with(Check::q_heads, invalid_option(Option::num_q_heads, limits.num_q_heads,
                                               limits.num_kv_heads, kMaxHeads));
  }
  if (Status s = in_range(Check::head_dim_k, Option::head_dim_k, limits.head_dim_k, 1, kMaxHeadDim);
      !s) {
    return s;
  }
  if (Status s = in_range(Check::head_dim_v, Option::head_dim_v, limits.head_dim_v, 1, kMaxHeadDim);
      !s) {
    return s;
  }
  if (Status s = in_range(Check::limit_path, Option::path, static_cast<std::int64_t>(limits.path),
                          0, static_cast<std::int64_t>(CpuPath::avx512));
      !s)
    return s;
  if (limits.path == CpuPath::avx512 && best_cpu_path() != CpuPath::avx512) {
    return with(Check::limit_path,
                unsupported_option(Option::path, static_cast<std::uint64_t>(limits.path)));
  }
  return {};
}

Status check_same_shape(const AttentionArgs& args, const AttentionLimits& limits) noexcept {
  const auto same = [](Resource what, std::int64_t value, std::int64_t expected) {
    return in_range(Check::limit_shape, what, value, expected, expected);
  };
  if (Status s = same(Resource::num_q_heads, args.num_q_heads, limits.num_q_heads); !s) return s;
  if (Status s = same(Resource::num_kv_heads, args.kv.key.num_heads, limits.num_kv_heads); !s)
    return s;
  if (Status s = same(Resource::head_dim, args.kv.key.head_dim, limits.head_dim_k); !s) return s;
  return same(Resource::head_dim, args.kv.value.head_dim, limits.head_dim_v);
}

}  // namespace attention

Status validate(const AttentionArgs& args, Validation validation) noexcept {
  using namespace attention;
  if (Status s = check_shape(args); !s) return s;
  if (Status s = check_rows(args); !s) return s;
  if (Status s = check_q_and_out(args, total_q(args)); !s) return s;
  return validation == Validation::checked ? check_entries(args) : Status{};
}

}  // namespace kvarena
