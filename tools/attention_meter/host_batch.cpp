#include "tools/attention_meter/host_batch.hpp"

#include "kernels/reference/attention.hpp"
#include "tools/attention_meter/comparison.hpp"

#include <cmath>
#include <utility>

namespace kvarena::meter {
namespace {

constexpr std::int64_t kComparedWork = std::int64_t{1} << 28;  // multiplications of the reference

}  // namespace

AttentionArgs args_of(const HostBatch& row, std::int32_t table) {
  const AttentionShape& shape = row.problem.shape;
  const bool is_latent = shape.latent_value_dim > 0;
  const std::int64_t key_row = row_bytes(shape.dtype, shape.head_dim);
  const std::int64_t plane = is_latent ? 0 : shape.num_kv_heads * shape.block_size * key_row;
  const auto view = [&](std::int64_t offset, std::int32_t dim) {
    const std::int64_t token = is_latent ? key_row : row_bytes(shape.dtype, dim);
    return PlaneView{row.pool.base + offset,
                     block_bytes(shape),
                     shape.block_size * token,
                     token,
                     shape.num_kv_heads,
                     dim,
                     shape.dtype,
                     TileOrder::rows};
  };
  const auto rows = static_cast<std::int32_t>(row.problem.lengths.size());
  AttentionArgs args;
  args.kv = {view(0, shape.head_dim), view(plane, shape.value_dim()), shape.block_size,
             row.pool.bytes / block_bytes(shape)};
  args.batch = {
      {row.tables.data() + table * rows * row.stride, nullptr, row.row_offsets.data(), 0, rows},
      row.problem.lengths.data(),
      row.num_blocks.data(),
      rows};
  args.q_offsets = row.q_offsets.data();
  args.q = row.q.data();
  args.q_dtype = shape.dtype;
  args.out = const_cast<std::byte*>(row.out.data());  // NOLINT: a row's results
  args.out_dtype = shape.dtype;
  args.num_q_heads = shape.num_q_heads;
  args.scale = 1.0F / std::sqrt(static_cast<float>(shape.head_dim));
  args.window_tokens = shape.window_tokens;
  args.soft_cap = shape.soft_cap;
  return args;
}

Status make_plan(HostBatch& row) {
  const Result<AttentionPlan> plan =
      plan_attention(args_of(row, 0), row.limits, row.workspace_bytes);
  if (plan) row.plan = *plan;
  return plan.status();
}

/// All heads of some query tokens, one query token after another as a batch of its own.
void compare(const HostBatch& row, AttentionFigures& figures) {
  const AttentionProblem& problem = row.problem;
  const AttentionShape& shape = problem.shape;
  const std::int64_t inputs = std::int64_t{shape.num_q_heads} * shape.head_dim;
  const std::int64_t outputs = std::int64_t{shape.num_q_heads} * shape.value_dim();
  std::vector<std::pair<std::size_t, std::int32_t>> queries;
  std::vector<std::int64_t> costs;
  for (std::size_t r = 0; r < problem.lengths.size(); ++r) {
    for (std::int32_t i = 0; i < problem.queries_of(r); ++i) {
      queries.emplace_back(r, i);
      costs.push_back(2 * tokens_seen(problem, r, i) * outputs);
    }
  }
  std::vector<double> exact(static_cast<std::size_t>(outputs));
  Comparison comparison(shape.dtype);
  const AttentionArgs all = args_of(row, 0);
  for (const std::int64_t at : sampled(costs, kComparedWork)) {
    const auto [r, query] = queries[static_cast<std::size_t>(at)];
    const std::int32_t length = problem.lengths[r] - problem.queries_of(r) + query + 1;
    const std::int64_t first = (row.q_offsets[r] + query) * outputs;
    kernels::AttentionParams one{};
    one.kv = all.kv;
    one.batch = all.batch;
    one.batch.num_rows = one.batch.tables.num_rows = 1;
    one.batch.tables.row_offsets += r;
    one.batch.seq_lens = &length;
    one.batch.num_blocks += r;
    one.q = row.q.data() + (row.q_offsets[r] + query) * inputs * bytes_of(shape.dtype);
    one.num_q_heads = shape.num_q_heads;
    one.window_tokens = shape.window_tokens;
    one.soft_cap = shape.soft_cap;
    one.scale = all.scale;
    one.q_dtype = one.out_dtype = shape.dtype;
    kernels::reference::attention_paged_exact(one, exact.data());
    const auto dims = static_cast<std::size_t>(shape.value_dim());
    for (std::size_t d = 0; d < exact.size(); d += dims) {
      comparison.add_head(std::span(exact).subspan(d, dims), row.out.data(),
                          first + static_cast<std::int64_t>(d));
    }
    figures.num_checked += shape.num_q_heads;
  }
  comparison.keep_worse(figures.error, figures.error_limit);
}

}  // namespace kvarena::meter
