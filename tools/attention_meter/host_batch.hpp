#pragma once

/// @file
/// `HostBatch`: a problem's arrays on the CPU, the arguments of attention over them, and the
/// comparison of its results.

#include "kvarena/attention/attention.hpp"
#include "kvarena/base/ids.hpp"
#include "tools/attention_meter/attention_meter.hpp"
#include "tools/attention_meter/attention_problem.hpp"
#include "tools/attention_meter/device_buffer.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvarena::meter {

/// A problem, its data, and its plan.
struct HostBatch {
  const AttentionProblem& problem;
  Rotation rotation;
  PoolPart pool;
  std::int64_t stride;                    // entries of a row of block tables
  std::vector<BlockId> tables;            // [num_tables, rows, stride]
  std::vector<std::int64_t> row_offsets;  // [rows] in one set of tables
  std::vector<std::int32_t> num_blocks;   // [rows]
  std::vector<std::int64_t> q_offsets;    // [rows + 1]
  std::vector<std::byte> q;               // [query tokens, num_q_heads, head_dim]
  std::vector<std::byte> out;             // as q
  AttentionLimits limits;
  DeviceBuffer workspace;
  std::span<std::byte> workspace_bytes;
  AttentionPlan plan;
};

/// The arguments of a call over one set of tables.
AttentionArgs args_of(const HostBatch& row, std::int32_t table);
/// Makes the plan. Returns what plan_attention returns.
Status make_plan(HostBatch& row);
/// Compares the results of a call over the first set of tables with the reference.
void compare(const HostBatch& row, AttentionFigures& figures);

}  // namespace kvarena::meter
