#include "tools/attention_meter/attention_problem.hpp"

#include <algorithm>
#include <cmath>

namespace kvarena::meter {
namespace {

constexpr std::int64_t kMostCalls = 64;
constexpr std::int64_t kReadAlignment = 4096;  // of the first byte of each rotated read

std::int64_t divided_up(std::int64_t a, std::int64_t b) noexcept { return (a + b - 1) / b; }

}  // namespace

std::int64_t block_bytes(const AttentionShape& shape) noexcept {
  return shape.num_kv_heads * shape.block_size * shape.pool_bytes();
}

std::int64_t num_blocks(const AttentionShape& shape, std::int64_t tokens) noexcept {
  return divided_up(tokens, shape.block_size);
}

std::int64_t num_blocks(const AttentionProblem& problem) noexcept {
  const std::int64_t shared = num_blocks(problem.shape, problem.shared_tokens);
  std::int64_t blocks = shared * problem.num_groups;
  for (const std::int32_t tokens : problem.lengths) {
    blocks += num_blocks(problem.shape, tokens) - shared;
  }
  return blocks;
}

std::int64_t num_query_tokens(const AttentionProblem& problem) noexcept {
  std::int64_t tokens = 0;
  for (std::size_t row = 0; row < problem.lengths.size(); ++row) tokens += problem.queries_of(row);
  return tokens;
}

std::int64_t most_columns(const AttentionProblem& problem) noexcept {
  std::int64_t most = 0;
  for (std::size_t row = 0; row < problem.lengths.size(); ++row) {
    most = std::max<std::int64_t>(most, problem.queries_of(row));
  }
  return most * problem.shape.num_q_heads / problem.shape.num_kv_heads;
}

std::int32_t tokens_seen(const AttentionProblem& problem, std::size_t row,
                         std::int32_t query) noexcept {
  const std::int32_t causal = problem.lengths[row] - problem.queries_of(row) + query + 1;
  const std::int32_t window = problem.shape.window_tokens;
  return window > 0 ? std::min(causal, window) : causal;
}

double flops(const AttentionProblem& problem) noexcept {
  double tokens = 0.0;
  for (std::size_t row = 0; row < problem.lengths.size(); ++row) {
    for (std::int32_t query = 0; query < problem.queries_of(row); ++query) {
      tokens += tokens_seen(problem, row, query);
    }
  }
  const AttentionShape& shape = problem.shape;
  return 2.0 * (shape.head_dim + shape.value_dim()) * shape.num_q_heads * tokens;
}

std::int64_t kv_bytes(const AttentionProblem& problem) noexcept {
  const AttentionShape& shape = problem.shape;
  std::int64_t tokens = std::int64_t{problem.num_groups} * problem.shared_tokens;
  for (std::size_t row = 0; row < problem.lengths.size(); ++row) {
    const std::int64_t length = problem.lengths[row] - problem.shared_tokens;
    const std::int64_t seen = std::int64_t{shape.window_tokens} + problem.queries_of(row) - 1;
    tokens += shape.window_tokens > 0 ? std::min(length, seen) : length;
  }
  return tokens * shape.num_kv_heads * shape.pool_bytes();
}

Rotation rotation_of(const AttentionProblem& problem, std::int64_t rotated_bytes,
                     std::int32_t rounds) noexcept {
  const std::int64_t bytes = std::max<std::int64_t>(1, kv_bytes(problem));
  const std::int64_t tables =
      std::clamp<std::int64_t>(divided_up(rotated_bytes, bytes), 1, kMostCalls);
  const std::int64_t calls =
      std::clamp(divided_up(rounds * rotated_bytes, bytes), tables, kMostCalls);
  return {static_cast<std::int32_t>(tables), static_cast<std::int32_t>(calls)};
}

std::int64_t pool_bytes(const AttentionProblem& problem, std::int64_t rotated_bytes) noexcept {
  const std::int64_t tables = rotation_of(problem, rotated_bytes, 1).num_tables;
  std::int64_t most = tables * (num_blocks(problem) * block_bytes(problem.shape) + kReadAlignment);
  for (const AttentionProblem& other : problem.beside) {
    most = std::max(most, pool_bytes(other, rotated_bytes));
  }
  return divided_up(most, kReadAlignment) * kReadAlignment *
         (1 + static_cast<std::int64_t>(problem.beside.size()));
}

std::vector<BlockId> block_tables(const AttentionProblem& problem, std::int32_t num_tables,
                                  std::int64_t stride, std::span<const BlockId> ids,
                                  BlockId unused) {
  const std::size_t rows = problem.lengths.size();
  const std::int64_t shared = num_blocks(problem.shape, problem.shared_tokens);
  std::vector<BlockId> tables(rows * static_cast<std::size_t>(num_tables * stride), unused);
  auto next = ids.begin();
  auto to = tables.begin();
  for (std::int32_t set = 0; set < num_tables; ++set) {
    const auto first_of_groups = next;
    next += shared * problem.num_groups;
    for (std::size_t row = 0; row < rows; ++row, to += stride) {
      const auto group = static_cast<std::int64_t>(row) % problem.num_groups;
      const std::int64_t own = num_blocks(problem.shape, problem.lengths[row]) - shared;
      std::copy_n(first_of_groups + group * shared, shared, to);
      std::copy_n(next, own, to + shared);
      next += own;
    }
  }
  return tables;
}

std::vector<std::int64_t> row_offsets(const AttentionProblem& problem, std::int64_t stride) {
  std::vector<std::int64_t> offsets(problem.lengths.size());
  for (std::size_t row = 0; row < offsets.size(); ++row) {
    offsets[row] = static_cast<std::int64_t>(row) * stride;
  }
  return offsets;
}

std::vector<std::int64_t> q_offsets(const AttentionProblem& problem) {
  std::vector<std::int64_t> offsets{0};
  for (std::size_t row = 0; row < problem.lengths.size(); ++row) {
    offsets.push_back(offsets.back() + problem.queries_of(row));
  }
  return offsets;
}

std::int32_t prompt_of_equal_work(std::int32_t query_tokens, std::int32_t cached) noexcept {
  const double q = query_tokens;
  const double seen = q * cached + q * (q + 1.0) / 2.0;  // n (n + 1) / 2 of the prompt
  const double tokens = std::sqrt(2.0 * seen + 0.25) - 0.5;
  return std::max(16, static_cast<std::int32_t>(std::lround(tokens / 16.0)) * 16);
}

}  // namespace kvarena::meter
