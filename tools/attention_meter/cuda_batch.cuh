#pragma once

/// @file
/// `CudaBatch`: a problem's arrays on a GPU, and the arguments of attention over them.

#include "kvarena/attention/cuda_attention.hpp"
#include "kvarena/base/ids.hpp"
#include "kvarena/base/tile_order.hpp"
#include "kvarena/device/cuda_device.hpp"
#include "tools/attention_meter/attention_problem.hpp"
#include "tools/attention_meter/device_buffer.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvarena::meter {

/// K and V of a problem in a pool: the tile order that KvCache takes by itself, K before V in a
/// block.
inline KvLayerView layer_of(const AttentionShape& shape, const PoolPart& pool) {
  const bool is_latent = shape.latent_value_dim > 0;
  const std::int64_t key_row = row_bytes(shape.dtype, shape.head_dim);
  const std::int64_t plane = is_latent ? 0 : shape.num_kv_heads * shape.block_size * key_row;
  const bool is_chunked =
      shape.block_size % kTileTokens == 0 && has_chunked_order(shape.dtype, shape.head_dim);
  const auto view = [&](std::int64_t offset, std::int32_t dim) {
    const std::int64_t row = is_latent ? key_row : row_bytes(shape.dtype, dim);
    return PlaneView{pool.base + offset,
                     block_bytes(shape),
                     shape.block_size * row,
                     row,
                     shape.num_kv_heads,
                     dim,
                     shape.dtype,
                     is_chunked ? TileOrder::chunked : TileOrder::rows};
  };
  return {view(0, shape.head_dim), view(plane, shape.value_dim()), shape.block_size,
          pool.bytes / block_bytes(shape)};
}

/// The host's figures of a problem's step, without the workspace.
inline cuda::AttentionStep step_of(const AttentionProblem& problem, const KvLayerView& kv,
                                   const CudaDeviceInfo& gpu) {
  constexpr std::int32_t kMostDecodeTokens = 16;
  const auto rows = static_cast<std::int32_t>(problem.lengths.size());
  std::vector<std::int32_t> tokens;
  for (std::size_t row = 0; row < problem.lengths.size(); ++row) {
    tokens.push_back(problem.queries_of(row));
  }
  const std::int32_t most = *std::max_element(tokens.begin(), tokens.end());
  std::int64_t all_tokens = 0;
  for (const std::int32_t length : problem.lengths) all_tokens += length;
  cuda::AttentionStep step;
  step.shape = {.kv = kv,
                .num_q_heads = problem.shape.num_q_heads,
                .max_rows = rows,
                .max_decode_tokens = std::min(most, kMostDecodeTokens),
                .num_sms = gpu.num_sms,
                .compute_capability = 10 * gpu.major + gpu.minor,
                .batch_invariant_tokens = problem.batch_invariant ? all_tokens : 0,
                .max_run_tokens = std::min<std::int64_t>(num_query_tokens(problem), 1 << 20),
                .max_shared_rows = std::min(rows, 4096)};
  step.rows = cuda::count_rows(cuda::row_classes(step.shape), tokens, problem.lengths);
  step.shares_prefixes = problem.shared_tokens > 0 && problem.reads_shared;
  step.total_q = num_query_tokens(problem);
  step.overlap = true;  // nothing between the calls writes what a call reads early
  return step;
}

/// Owns its arrays. The arrays are uninitialised. The meter fills them and makes the schedule
/// before attention runs.
class CudaBatch {
 public:
  /// Throws Failure.
  CudaBatch(CudaDevice& device, const AttentionProblem& problem, std::int32_t num_tables,
            const PoolPart& pool)
      : shape_(problem.shape),
        num_rows_(static_cast<std::int64_t>(problem.lengths.size())),
        num_queries_(num_query_tokens(problem)),
        table_stride_(meter::num_blocks(
            shape_, *std::max_element(problem.lengths.begin(), problem.lengths.end()))),
        step(step_of(problem, layer_of(shape_, pool), device.info())),
        tables(device, num_tables * num_entries() * std::int64_t{sizeof(BlockId)}, kPurpose),
        row_offsets(device, num_rows_ * 8, kPurpose),
        lengths(device, num_rows_ * 4, kPurpose),
        num_blocks(device, num_rows_ * 4, kPurpose),
        q_offsets(device, (num_rows_ + 1) * 8, kPurpose),
        q(device, num_inputs() * bytes_of(shape_.q_dtype()), kPurpose),
        out(device, output_bytes(), kPurpose),
        workspace(device, workspace_bytes(), kPurpose) {
    const auto rows = static_cast<std::int32_t>(num_rows_);
    step.table_stride = table_stride_;
    step.workspace = workspace.data();
    step.workspace_bytes = workspace_bytes();
    args.kv = step.shape.kv;
    args.batch = {.tables = {.entries = tables.data<BlockId>(),
                             .row_offsets = row_offsets.data<std::int64_t>(),
                             .num_rows = rows},
                  .seq_lens = lengths.data<std::int32_t>(),
                  .num_blocks = num_blocks.data<std::int32_t>(),
                  .num_rows = rows};
    args.q_offsets = q_offsets.data<std::int64_t>();
    args.q = q.data();
    args.q_dtype = shape_.q_dtype();
    args.out = out.data();
    args.out_dtype = shape_.q_dtype();
    args.num_q_heads = shape_.num_q_heads;
    args.scale = 1.0F / std::sqrt(static_cast<float>(shape_.head_dim));
    args.window_tokens = shape_.window_tokens;
    args.soft_cap = shape_.soft_cap;
  }

  /// Elements of q.
  std::int64_t num_inputs() const noexcept {
    return num_queries_ * shape_.num_q_heads * shape_.head_dim;
  }
  /// Elements of the output.
  std::int64_t num_outputs() const noexcept {
    return num_queries_ * shape_.num_q_heads * shape_.value_dim();
  }
  /// Bytes of the output.
  std::int64_t output_bytes() const noexcept { return num_outputs() * bytes_of(shape_.q_dtype()); }
  /// Bytes of workspace. Throws Failure.
  std::int64_t workspace_bytes() const {
    const Result<std::int64_t> bytes = cuda::workspace_bytes(step.shape);
    require(bytes.status());
    return *bytes;
  }
  /// Entries from one row of block tables to the next.
  std::int64_t table_stride() const noexcept { return table_stride_; }
  /// Entries of one set of block tables.
  std::int64_t num_entries() const noexcept { return num_rows_ * table_stride_; }

  /// The arguments of a call over one set of tables.
  AttentionArgs with_tables(int set) const noexcept {
    AttentionArgs with = args;
    with.batch.tables.entries += set * num_entries();
    return with;
  }

 private:
  static constexpr MemoryPurpose kPurpose = MemoryPurpose::intermediate_buffers;

  AttentionShape shape_;
  std::int64_t num_rows_;
  std::int64_t num_queries_;
  std::int64_t table_stride_;

 public:
  cuda::AttentionStep step;  ///< of every call
  AttentionArgs args;        ///< of the first set of tables

  DeviceBuffer tables;       ///< BlockId [num_tables, rows, table_stride]
  DeviceBuffer row_offsets;  ///< int64 [rows]
  DeviceBuffer lengths;      ///< int32 [rows]
  DeviceBuffer num_blocks;   ///< int32 [rows]
  DeviceBuffer q_offsets;    ///< int64 [rows + 1]
  DeviceBuffer q;            ///< [query tokens, num_q_heads, head_dim]
  DeviceBuffer out;          ///< [query tokens, num_q_heads, value_dim]
  DeviceBuffer workspace;    ///< of the kernels
};

}  // namespace kvarena::meter
