#include "tools/attention_meter/attention_problem.hpp"

#include <algorithm>
#include <numeric>

namespace kvarena::meter {
namespace {

constexpr std::int64_t kMostCalls = 64;
constexpr std::int64_t kReadAlignment = 4096;  // of the first byte of each rotated read

std::int64_t divided_up(std::int64_t a, std::int64_t b) noexcept { return (a + b - 1) / b; }

}  // namespace

std::int64_t block_bytes(const AttentionShape& shape) noexcept {
  return 2 * bytes_of(shape.dtype) * shape.num_kv_heads * shape.block_size * shape.head_dim;
}

std::int64_t num_blocks(const AttentionShape& shape, std::int64_t tokens) noexcept {
  return divided_up(tokens, shape.block_size);
}

std::int64_t num_blocks(const AttentionProblem& problem) noexcept {
  return std::transform_reduce(
      problem.lengths.begin(), problem.lengths.end(), std::int64_t{0}, std::plus<>(),
      [&](std::int32_t tokens) { return num_blocks(problem.shape, tokens); });
}

std::int64_t kv_bytes(const AttentionProblem& problem) noexcept {
  const AttentionShape& shape = problem.shape;
  std::int64_t tokens = 0;
  for (const std::int64_t length : problem.lengths) {
    const std::int64_t seen = std::int64_t{shape.window_tokens} + shape.q_len - 1;
    tokens += shape.window_tokens > 0 ? std::min(length, seen) : length;
  }
  return tokens * 2 * bytes_of(shape.dtype) * shape.num_kv_heads * shape.head_dim;
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
  return tables * (num_blocks(problem) * block_bytes(problem.shape) + kReadAlignment);
}

}  // namespace kvarena::meter
