#pragma once

/// @file
/// `CudaBatch`: a problem's arrays on a GPU, and the arguments of the decode kernel over them.

#include "kernels/decode/decode.h"
#include "tools/attention_meter/attention_problem.hpp"
#include "tools/attention_meter/device_buffer.hpp"

#include "kvarena/base/ids.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace kvarena::meter {

/// Owns its arrays. The arrays are uninitialised. The meter fills them and makes the schedule
/// before a kernel runs.
class CudaBatch {
 public:
  /// K and V of block 0 begin at `pool`. Throws Failure.
  CudaBatch(Device& device, const AttentionProblem& problem, std::int32_t num_tables,
            std::int32_t num_sms, std::byte* pool)
      : shape_(problem.shape),
        rows_(static_cast<std::int32_t>(problem.lengths.size())),
        table_stride_(
            num_blocks(shape_, *std::max_element(problem.lengths.begin(), problem.lengths.end()))),
        limits_{.max_rows = rows_,
                .q_len = shape_.q_len,
                .num_q_heads = shape_.num_q_heads,
                .num_kv_heads = shape_.num_kv_heads,
                .head_dim = shape_.head_dim,
                .num_sms = num_sms,
                .kv_dtype = shape_.dtype},
        tables(device, num_tables * num_entries() * std::int64_t{sizeof(BlockId)}, kPurpose),
        lengths(device, std::int64_t{rows_} * 4, kPurpose),
        q(device, output_bytes(), kPurpose),
        out(device, output_bytes(), kPurpose),
        workspace(device, workspace_bytes(), kPurpose),
        schedule{.limits = limits_,
                 .seq_lens = lengths.data<std::int32_t>(),
                 .num_rows = rows_,
                 .window_tokens = shape_.window_tokens,
                 .workspace = workspace.data(),
                 .workspace_bytes = workspace_bytes()} {
    const std::int64_t head_bytes = block_bytes(shape_) / (2 * shape_.num_kv_heads);
    decode = {.limits = limits_,
              .q = q.data(),
              .out = out.data(),
              .key = pool,
              .value = pool + shape_.num_kv_heads * head_bytes,
              .block_stride = block_bytes(shape_),
              .head_stride = head_bytes,
              .block_size = shape_.block_size,
              .block_tables = tables.data<BlockId>(),
              .table_stride = table_stride_,
              .num_rows = rows_,
              .window_tokens = shape_.window_tokens,
              .dtype = shape_.q_dtype(),
              .scale = 1.0F / std::sqrt(static_cast<float>(shape_.head_dim)),
              .workspace = workspace.data(),
              .workspace_bytes = workspace_bytes()};
  }

  /// Elements of q and of the output.
  std::int64_t num_outputs() const noexcept {
    return std::int64_t{rows_} * shape_.q_len * shape_.num_q_heads * shape_.head_dim;
  }
  /// Bytes of q and of the output.
  std::int64_t output_bytes() const noexcept { return num_outputs() * bytes_of(shape_.q_dtype()); }
  /// Bytes of workspace.
  std::int64_t workspace_bytes() const noexcept { return kernels::decode_workspace_bytes(limits_); }
  /// Entries from one row of block tables to the next.
  std::int64_t table_stride() const noexcept { return table_stride_; }
  /// Entries of one set of block tables.
  std::int64_t num_entries() const noexcept { return rows_ * table_stride_; }

  /// The arguments of a call over one set of tables.
  kernels::DecodeParams with_tables(int set) const noexcept {
    kernels::DecodeParams params = decode;
    params.block_tables += set * num_entries();
    return params;
  }

 private:
  static constexpr MemoryPurpose kPurpose = MemoryPurpose::intermediate_buffers;

  AttentionShape shape_;
  std::int32_t rows_;
  std::int64_t table_stride_;
  kernels::DecodeLimits limits_;

 public:
  DeviceBuffer tables;     ///< BlockId [num_tables, rows, table_stride]
  DeviceBuffer lengths;    ///< int32 [rows]
  DeviceBuffer q;          ///< [rows, q_len, num_q_heads, head_dim]
  DeviceBuffer out;        ///< as q
  DeviceBuffer workspace;  ///< of the kernel

  kernels::DecodeScheduleParams schedule;  ///< of the batch
  kernels::DecodeParams decode;            ///< of the first set of tables
};

}  // namespace kvarena::meter
