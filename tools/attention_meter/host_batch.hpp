#pragma once

/// @file
/// `HostBatch`: a problem's arrays on the CPU, the arguments of attention over them, and the
/// comparison of its results. The read bandwidth of the machine: several loops that only read, for
/// one thread, and all workers of a set reading together (host_read.cpp). Which loop is fastest
/// depends on the machine.

#include "kvarena/attention/attention.hpp"
#include "kvarena/attention/cpu_workers.hpp"
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

inline constexpr std::int64_t kReadUnit = 512;  ///< bytes that every loop divides

/// Reads `bytes` bytes, a multiple of kReadUnit. Returns a value that depends on all of them.
using ReadKernel = std::uint64_t (*)(const std::byte* from, std::int64_t bytes);

/// The loops that this machine can run. Static.
std::span<const ReadKernel> read_kernels();

/// Reads `bytes` at `from` once, an equal share for each worker. A share is rounded up to whole
/// units, so up to one unit a worker is read past the end. Returns the bytes read.
std::int64_t read_together(CpuWorkers& workers, ReadKernel kernel, const std::byte* from,
                           std::int64_t bytes);

}  // namespace kvarena::meter
