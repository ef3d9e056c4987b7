// Append, block copies, scrubbing, gather and scatter on a GPU, each beside the copy or write
// ceiling measured in the same run; and the small kernels that prepare a step. A time is that of a
// CUDA graph of back-to-back calls, median of 31 replays, divided by the calls. Buffers rotate over
// more than 1 GB, so that nothing is found in the L2.

#include "bench/cuda_timing.cuh"
#include "kernels/append/append.h"
#include "kernels/copy_blocks/copy_blocks.h"
#include "kernels/decode/decode.h"
#include "kernels/gather/gather.h"
#include "kernels/scatter_step/scatter_step.h"
#include "kernels/scrub/scrub.h"

#include "kvarena/base/tile_order.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace {

using namespace kvarena;
using namespace kvarena::kernels;
using namespace kvarena::bench;

KvLayerView llama_layer(std::byte* base, TileOrder order, DType dtype) {
  KvLayerView kv;
  kv.block_size = 16;
  kv.key = {base, 0, 16 * 128 * bytes_of(dtype), 128 * bytes_of(dtype), 8, 128, dtype, order};
  kv.value = kv.key;
  kv.value.base += 8 * kv.key.head_stride;
  kv.key.block_stride = kv.value.block_stride = 16 * kv.key.head_stride;
  kv.num_blocks = kPoolBytes / kv.key.block_stride;
  return kv;
}

std::vector<std::int32_t> shuffled(std::int64_t count) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  std::iota(ids.begin(), ids.end(), 0);
  std::shuffle(ids.begin(), ids.end(), std::mt19937(5));
  return ids;
}

const char* order_name(TileOrder order) { return order == TileOrder::rows ? "rows" : "chunked"; }

/// Where appended tokens go: the same places as slots and as runs. Device pointers.
struct Targets {
  std::int64_t* slots;
  TokenRun* runs;
  std::int64_t* run_offsets;
  BlockTableView tables;
};

/// `calls` times `tokens` tokens, each `run` neighbours a sequence of its own, in random blocks.
Targets make_targets(std::int64_t num_blocks, std::int64_t tokens, std::int64_t run, int calls) {
  const auto ids = shuffled(num_blocks);
  std::vector<std::int64_t> slots;
  std::vector<BlockId> entries;
  std::vector<std::int64_t> row_offsets;
  std::vector<TokenRun> runs;
  std::size_t next = 0;
  for (std::int64_t r = 0; r < calls * tokens / run; ++r) {
    row_offsets.push_back(static_cast<std::int64_t>(entries.size()));
    const auto start = static_cast<std::int32_t>(run == 1 ? r * 7 % 16 : 0);
    for (std::int64_t b = 0; b < (run + 15) / 16; ++b) {
      entries.emplace_back(ids[next++ % ids.size()]);
    }
    for (std::int64_t at = start; at < start + run; ++at) {
      const auto entry = static_cast<std::size_t>(row_offsets.back() + at / 16);
      slots.push_back(std::int64_t{entries[entry].value} * 16 + at % 16);
    }
    runs.push_back({static_cast<std::int32_t>(r), start});
  }
  std::vector<std::int64_t> run_offsets;
  for (std::int64_t first = 0; first <= tokens; first += run) run_offsets.push_back(first);
  return {on_device(slots),
          on_device(runs),
          on_device(run_offsets),
          {on_device(entries), nullptr, on_device(row_offsets), 0,
           static_cast<std::int32_t>(row_offsets.size())}};
}

/// Tokens a call, each run of `run` neighbours in a sequence of its own; 32/8 heads, D = 128.
void append(Bench& bench, std::int64_t tokens, std::int64_t run, TileOrder order, DType from,
            DType to, bool by_runs, bool overlap) {
  const KvLayerView kv = llama_layer(bench.pool(), order, to);
  const std::int64_t bytes = tokens * 8 * 128 * 2 * bytes_of(from);
  const int calls = std::min(Bench::calls_of(bytes), static_cast<int>(kv.num_blocks * 16 / tokens));
  const Targets to_where = make_targets(kv.num_blocks, tokens, run, calls);
  const std::int64_t num_runs = tokens / run;
  const double us = bench.time(calls, [&](int i, cudaStream_t s) {
    const std::byte* key = bench.flat() + i * bytes;
    const std::byte* value = key + bytes / 2;
    if (by_runs) {
      check(launch_append_runs({kv, to_where.tables, key, value, to_where.runs + i * num_runs,
                                to_where.run_offsets, num_runs, tokens, from},
                               overlap, s),
            __LINE__);
    } else {
      check(launch_append({kv, key, value, to_where.slots + i * tokens, tokens, from}, overlap, s),
            __LINE__);
    }
  });
  const std::int64_t moved = bytes * (bytes_of(from) + bytes_of(to)) / (2 * bytes_of(from));
  bench.report("append " + std::to_string(tokens) + " tokens " + std::string(name_of(from)) + "->" +
                   std::string(name_of(to)) + " " + order_name(order) +
                   (by_runs ? " runs" : " slots") + (overlap ? " overlap" : ""),
               moved, true, us);
}

void copy(Bench& bench, std::int64_t block_bytes, std::int64_t planes) {
  const std::int64_t total = 256LL << 20;
  const std::int64_t blocks = kPoolBytes / (block_bytes * planes);
  const std::int64_t count = total / (block_bytes * planes);
  const auto ids = shuffled(blocks);
  std::vector<BlockCopy> copies;
  for (std::int64_t i = 0; i < blocks / 2; ++i) {
    copies.push_back({BlockId(ids[static_cast<std::size_t>(2 * i)]),
                      BlockId(ids[static_cast<std::size_t>(2 * i + 1)])});
  }
  BlockCopy* list = on_device(copies);
  const int calls = 4;
  const std::string what =
      std::to_string(block_bytes / 1024) + " KB blocks, " + std::to_string(planes) + " planes";
  const double copy_us = bench.time(calls, [&](int i, cudaStream_t s) {
    check(launch_copy_blocks({bench.pool(), block_bytes, block_bytes, list + i * count, count,
                              blocks, planes, block_bytes * blocks},
                             s),
          __LINE__);
  });
  bench.report("copy_blocks " + what, total, true, copy_us);
}

/// Blocks of 32 layers, 32 KB a plane: `count` of them a call, each clear behind `kept_tokens`.
void scrub(Bench& bench, std::int64_t count, std::int32_t kept_tokens) {
  constexpr std::int32_t kLayers = 32;
  KvLayerView kv = llama_layer(bench.pool(), TileOrder::chunked, DType::bf16);
  const std::int64_t layer_bytes = kv.key.block_stride;
  const std::int64_t block_bytes = kLayers * layer_bytes;
  kv.key.block_stride = kv.value.block_stride = block_bytes;
  kv.num_blocks = kPoolBytes / block_bytes;
  std::vector<BlockScrub> list;
  for (const std::int32_t id : shuffled(kv.num_blocks)) {
    list.push_back({BlockId(id), BlockId(id), kept_tokens});
  }
  const std::int64_t bytes = count * block_bytes * (kv.block_size - kept_tokens) / kv.block_size;
  const int calls = std::min(Bench::calls_of(bytes), static_cast<int>(kv.num_blocks / count));
  const double us = bench.time(calls, [&](int i, cudaStream_t s) {
    check(launch_scrub({kv, layer_bytes / 2, layer_bytes / 2, kLayers, layer_bytes,
                        list.data() + i * count, count},
                       s),
          __LINE__);
  });
  bench.report("scrub " + std::to_string(count) + " blocks of 2 MB, behind " +
                   std::to_string(kept_tokens) + " tokens",
               bytes, false, us);
}

/// One sequence of 256 MB of K and V a call, in random blocks.
void gather_and_scatter(Bench& bench, TileOrder order) {
  const KvLayerView kv = llama_layer(bench.pool(), order, DType::bf16);
  const std::int64_t total = 256LL << 20;
  const std::int64_t row_blocks = total / kv.key.block_stride;
  std::vector<BlockId> entries;
  for (const std::int32_t id : shuffled(kv.num_blocks)) entries.emplace_back(id);
  std::vector<std::int64_t> offsets;
  for (int i = 0; i < 4; ++i) offsets.push_back(i * row_blocks);
  const BlockTableView tables{on_device(entries), nullptr, on_device(offsets), 0, 4};
  const auto span = [&](int i, auto params) {
    params.kv = kv;
    params.tables = tables;
    params.row = i;
    params.num_tokens = row_blocks * 16;
    params.key = bench.flat() + i * total;
    params.value = bench.flat() + i * total + total / 2;
    params.dtype = DType::bf16;
    return params;
  };
  const double out = bench.time(4, [&](int i, cudaStream_t s) {
    check(launch_gather(span(i, GatherParams{}), s), __LINE__);
  });
  bench.report(std::string("gather ") + order_name(order), total, true, out);
  const double in = bench.time(4, [&](int i, cudaStream_t s) {
    check(launch_scatter(span(i, ScatterParams{}), s), __LINE__);
  });
  bench.report(std::string("scatter ") + order_name(order), total, true, in);
}

void convert(Bench& bench) {
  const std::int64_t total = 256LL << 20;
  const KvLayerView rows = llama_layer(bench.pool(), TileOrder::rows, DType::bf16);
  const KvLayerView chunked =
      llama_layer(bench.pool() + kPoolBytes / 2, TileOrder::chunked, DType::bf16);
  const std::int64_t count = total / rows.key.block_stride;
  const auto ids = shuffled(rows.num_blocks / 2);
  std::vector<BlockCopy> copies;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    copies.push_back({BlockId(ids[i]), BlockId(ids[ids.size() - 1 - i])});
  }
  BlockCopy* list = on_device(copies);
  const double us = bench.time(4, [&](int i, cudaStream_t s) {
    check(launch_convert_blocks({rows, chunked, list + i * count, count}, s), __LINE__);
  });
  bench.report("convert rows to chunked", total, true, us);
}

/// The schedule of decode attention: `rows` rows of Llama-3.1-8B heads, or one KV head of it, equal
/// or ragged.
void schedule(Bench& bench, std::int32_t rows, std::int32_t kv_heads, bool is_ragged,
              bool is_fixed) {
  const kernels::DecodeLimits limits{.max_rows = rows,
                                     .q_len = 1,
                                     .num_q_heads = kv_heads * 4,
                                     .num_kv_heads = kv_heads,
                                     .head_dim = 128,
                                     .num_sms = gpu().info().num_sms,
                                     .kv_dtype = DType::bf16,
                                     .fixed_tokens = is_fixed ? std::int64_t{1} << 24 : 0};
  std::mt19937 random(7);
  std::vector<std::int32_t> lengths;
  std::vector<std::int32_t> slots;
  std::vector<std::int64_t> offsets{0};
  for (std::int32_t row = 0; row < rows; ++row) {
    lengths.push_back(is_ragged ? 1 + static_cast<std::int32_t>(random() % 16000) : 8000);
    slots.push_back(row * 32);
    offsets.push_back(row + 1);
  }
  const std::int64_t bytes = kernels::decode_workspace_bytes(limits);
  const DecodeScheduleParams params{.limits = limits,
                                    .seq_lens = on_device(lengths),
                                    .row_slots = on_device(slots),
                                    .q_offsets = on_device(offsets),
                                    .num_rows = rows,
                                    .fixed_parts = is_fixed,
                                    .workspace = allocate<std::byte>(bytes),
                                    .workspace_bytes = bytes};
  const double us = bench.time(
      64, [&](int, cudaStream_t s) { check(launch_decode_schedule(params, s), __LINE__); });
  std::printf("schedule, %4d rows, %d KV heads, %-18s %31.2f us\n", rows, kv_heads,
              is_fixed    ? "ragged, fixed"
              : is_ragged ? "ragged"
                          : "equal",
              us);
  std::fflush(stdout);
}

/// Fills a ring with decode steps that follow one another: each row has one new token, and one row
/// in 16 a new block. The first step follows none.
void stage_steps(const StepShape& shape, std::byte* ring) {
  constexpr std::int32_t kLength = 8000;
  for (std::int32_t i = 0; i < shape.steps_in_flight; ++i) {
    std::byte* const slot = ring + i * shape.slot_bytes();
    const StagedHeader header{.serial = static_cast<std::uint64_t>(i + 1),
                              .follows = static_cast<std::uint64_t>(i),
                              .num_rows = shape.max_rows};
    std::memcpy(slot, &header, sizeof(header));
    auto* const staged = reinterpret_cast<StagedRow*>(slot + StepShape::kRowsOffset);
    for (std::int32_t row = 0; row < shape.max_rows; ++row) {
      const std::int32_t length = kLength + row % shape.block_size + i;
      staged[row] = {row * 16, length, 1, length % shape.block_size == 1 ? 1 : 0};
    }
  }
}

/// The table update of a decode step. Each call takes its own step of a ring; a replay begins
/// again.
void update_tables(Bench& bench, std::int32_t rows) {
  constexpr int kCalls = 64;
  StepShape shape{.steps_in_flight = kCalls,
                  .max_rows = rows,
                  .max_tokens = rows,
                  .max_changes = rows,
                  .max_sequences = rows,
                  .max_blocks_a_row = 512,
                  .block_size = 16,
                  .table_entries = std::int64_t{rows} * 512};
  const std::int64_t ring_bytes = kCalls * shape.slot_bytes();
  const Result<void*> staging = gpu().allocate(
      {.bytes = static_cast<std::uint64_t>(ring_bytes) + 256, .kind = MemoryKind::pinned_staging});
  check(staging.status(), __LINE__);
  auto* const report = static_cast<ScatterReport*>(*staging);
  auto* const ring = static_cast<std::byte*>(*staging) + 256;
  std::memset(*staging, 0, static_cast<std::size_t>(ring_bytes) + 256);
  stage_steps(shape, ring);
  auto* const state = allocate<ScatterState>(1);
  ScatterStepParams params{};
  params.shape = shape;
  params.ring = ring;
  params.state = state;
  params.report = report;
  params.block_tables = allocate<BlockId>(shape.table_entries);
  params.row_slots = allocate<std::int32_t>(rows);
  params.row_offsets = allocate<std::int64_t>(rows);
  params.seq_lens = allocate<std::int32_t>(rows);
  params.num_blocks = allocate<std::int32_t>(rows);
  params.q_offsets = allocate<std::int64_t>(rows + 1);
  params.slots = allocate<std::int64_t>(rows);
  params.copies = allocate<BlockCopy>(rows);
  CHECK(cudaMemset(params.block_tables, 0, static_cast<std::size_t>(shape.table_entries) * 4));
  CHECK(cudaMemset(params.row_slots, 0xff, static_cast<std::size_t>(rows) * 4));
  const double us = bench.time(kCalls, [&](int i, cudaStream_t s) {
    if (i == 0) CHECK(cudaMemsetAsync(state, 0, sizeof(ScatterState), s));
    params.expected = step_word(static_cast<std::uint64_t>(i + 1), i);
    check(launch_scatter_step(params, s), __LINE__);
  });
  std::printf("table update, %4d rows %53.2f us%s\n", rows, us,
              report->misses == 0 ? "" : "  (steps missed)");
  std::fflush(stdout);
}

}  // namespace

int main() {
  cudaDeviceProp properties;
  CHECK(cudaGetDeviceProperties(&properties, 0));
  std::printf("%s; median of %d graph replays\n", properties.name, kReplays);
  Bench bench;
  for (const TileOrder order : {TileOrder::chunked, TileOrder::rows}) {
    for (const bool overlap : {false, true}) {
      for (const bool by_runs : {false, true}) {
        append(bench, 8192, 512, order, DType::bf16, DType::bf16, by_runs, overlap);
        append(bench, 256, 1, order, DType::bf16, DType::bf16, by_runs, overlap);
      }
    }
  }
  append(bench, 1024, 1, TileOrder::chunked, DType::bf16, DType::bf16, true, false);
  append(bench, 8192, 512, TileOrder::chunked, DType::f32, DType::bf16, false, false);
  append(bench, 8192, 512, TileOrder::chunked, DType::bf16, DType::fp8_e4m3, false, false);
  for (const std::int64_t kb : {64, 512, 2048}) copy(bench, kb << 10, 1);
  copy(bench, 32 << 10, 64);
  for (const std::int64_t count : {1, 16, 64, 512}) scrub(bench, count, 0);
  for (const std::int64_t count : {1, 64}) scrub(bench, count, 8);
  gather_and_scatter(bench, TileOrder::chunked);
  gather_and_scatter(bench, TileOrder::rows);
  convert(bench);
  for (const std::int32_t rows : {1, 64, 256, 1024}) {
    schedule(bench, rows, 8, false, false);
    schedule(bench, rows, 8, true, false);
    schedule(bench, rows, 1, true, false);
    schedule(bench, rows, 8, true, true);
  }
  for (const std::int32_t rows : {1, 64, 256, 1024}) update_tables(bench, rows);
  return 0;
}
