// Decode attention on CUDA against the time to only read the same bytes, both measured in this run:
// calls captured back to back in a CUDA graph, median of the replays divided by the calls, blocks
// in random order, tables rotated so that nothing stays in the L2. A row's time includes its share
// of the schedule, made once for 32 layers. `decode_bench [row...]` measures only rows whose name
// contains one of the words.

#include "decode_bench_support.cuh"
#include "kernels/decode/decode_workspace.h"

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace {

using namespace kvarena;
using namespace kvarena::bench;
using kernels::DecodeLimits;
using kernels::DecodeScheduleParams;

constexpr int kBlockSize = 16;
constexpr int kLayers = 32;  // that share a schedule

struct Row {
  const char* name;
  int q_heads;
  int kv_heads;
  int head_dim;
  std::vector<int> lengths;
  double best_public;  // ratio to the floor of the best public kernel; ../docs/benchmarks.md
  double target;       // ratio to the floor
};

/// A row's data on the device. Its memory stays until the program ends: the device frees it.
class Problem {
 public:
  Problem(const Row& row, int num_sms);
  /// Relative L2 distance to the plain kernel, or -1 for rows too long for it.
  double error();
  /// Times the row and prints its line.
  void measure();

 private:
  std::int64_t tile_bytes() const { return std::int64_t{16} * row_.head_dim * 2; }
  std::int64_t block_stride() const { return 2 * row_.kv_heads * tile_bytes(); }
  static int blocks_of(int length) { return (length + kBlockSize - 1) / kBlockSize; }
  void make_tables();
  void launch(int call) {
    params_.block_tables = tables_ + static_cast<std::size_t>(call % copies_) * rows_ * stride_;
    check(kernels::launch_decode(params_, true, stream), "launch_decode");
  }

  const Row& row_;
  int rows_;
  int longest_;
  int stride_;    // table entries a row
  int copies_;    // distinct tables over disjoint blocks
  int calls_;     // in a graph
  double bytes_;  // of K and V that one call reads
  std::size_t elements_;
  BlockId* tables_ = nullptr;
  DecodeScheduleParams schedule_;
  DecodeParams params_;
};

Problem::Problem(const Row& row, int num_sms)
    : row_(row),
      rows_(static_cast<int>(row.lengths.size())),
      longest_(*std::max_element(row.lengths.begin(), row.lengths.end())),
      stride_(blocks_of(longest_)),
      bytes_(std::accumulate(row.lengths.begin(), row.lengths.end(), 0.0) * row.kv_heads *
             row.head_dim * 4),
      elements_(static_cast<std::size_t>(rows_) * row.q_heads * row.head_dim) {
  make_tables();
  const DecodeLimits limits{.max_rows = rows_,
                            .q_len = 1,
                            .num_q_heads = row.q_heads,
                            .num_kv_heads = row.kv_heads,
                            .head_dim = row.head_dim,
                            .num_sms = num_sms};
  const auto workspace_bytes = static_cast<std::size_t>(kernels::decode_workspace_bytes(limits));
  auto* q = device_array<__nv_bfloat16>(elements_);
  auto* out = device_array<__nv_bfloat16>(elements_);
  auto* workspace = device_array<char>(workspace_bytes);
  const std::int32_t* lengths =
      device_copy(std::vector<std::int32_t>(row.lengths.begin(), row.lengths.end()));
  fill_gaussian<<<256, 256, 0, stream>>>(q, elements_, 77);
  check(cudaMemsetAsync(out, 0xff, elements_ * 2, stream), "fill");
  check(cudaMemsetAsync(workspace, 0, workspace_bytes, stream), "fill");
  schedule_ = {.limits = limits, .seq_lens = lengths, .num_rows = rows_, .workspace = workspace};
  params_ = {.limits = limits,
             .q = q,
             .out = out,
             .key = pool,
             .value = pool + row.kv_heads * tile_bytes(),
             .block_stride = block_stride(),
             .head_stride = tile_bytes(),
             .block_size = kBlockSize,
             .table_stride = stride_,
             .seq_lens = lengths,
             .num_rows = rows_,
             .dtype = DType::bf16,
             .scale = 1.0F / std::sqrt(static_cast<float>(row.head_dim)),
             .workspace = workspace};
  check(kernels::launch_decode_schedule(schedule_, stream), "launch_decode_schedule");
  check(cudaStreamSynchronize(stream), "schedule");
}

void Problem::make_tables() {
  const auto pool_blocks = static_cast<std::int64_t>(kPoolBytes) / block_stride();
  std::int64_t total = 0;
  for (const int length : row_.lengths) total += blocks_of(length);
  const double most = static_cast<double>(pool_blocks) / static_cast<double>(total);
  copies_ =
      static_cast<int>(std::min(64.0, std::max(1.0, std::min(most, std::ceil(1e9 / bytes_)))));
  calls_ = std::max(copies_, static_cast<int>(std::min(64.0, std::ceil(2e9 / bytes_))));
  std::vector<int> order(static_cast<std::size_t>(pool_blocks));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(5));
  std::vector<BlockId> tables(static_cast<std::size_t>(copies_) * rows_ * stride_);
  std::size_t next = 0;
  for (int at = 0; at < copies_ * rows_; ++at) {
    for (int j = 0; j < blocks_of(row_.lengths[at % rows_]); ++j) {
      tables[static_cast<std::size_t>(at) * stride_ + j] = BlockId(order[next++]);
    }
  }
  tables_ = device_copy(tables);
}

double Problem::error() {
  if (longest_ > 40000 || static_cast<double>(rows_) * longest_ * row_.q_heads >= 4e7) return -1.0;
  launch(0);
  auto* expected = device_array<float>(elements_);
  check(cudaFuncSetAttribute(plain_decode, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 * 1024),
        "attribute");
  plain_decode<<<rows_ * row_.q_heads, 256, longest_ * sizeof(float), stream>>>(params_, expected);
  check(cudaStreamSynchronize(stream), "plain_decode");
  std::vector<float> want(elements_);
  std::vector<__nv_bfloat16> have(elements_);
  check(cudaMemcpy(want.data(), expected, elements_ * 4, cudaMemcpyDeviceToHost), "copy");
  check(cudaMemcpy(have.data(), params_.out, elements_ * 2, cudaMemcpyDeviceToHost), "copy");
  double difference = 0.0;
  double norm = 0.0;
  for (std::size_t i = 0; i < elements_; ++i) {
    const double d = static_cast<double>(__bfloat162float(have[i])) - want[i];
    difference += d * d;
    norm += static_cast<double>(want[i]) * want[i];
  }
  return std::sqrt(difference / norm);
}

void Problem::measure() {
  const double wrong = error();
  const double floor = floor_us(bytes_, copies_, calls_);
  const double schedule_us = graph_time_us(16, [&](int) {
    check(kernels::launch_decode_schedule(schedule_, stream), "launch_decode_schedule");
  });
  const double decode_us = graph_time_us(calls_, [&](int call) { launch(call); });
  kernels::DecodeHeader header{};
  check(cudaMemcpy(&header, schedule_.workspace, sizeof header, cudaMemcpyDeviceToHost), "copy");
  const double all = decode_us + schedule_us / kLayers;
  const double ratio = all / floor;
  const char* verdict = ratio <= row_.target       ? "met"
                        : ratio < row_.best_public ? "beaten"
                                                   : "behind";
  std::printf("%-12s %8.1f %8.1f %8.1f %7.2f %7.1f %7.3f %7.3f %7.3f %-6s %6d %8.1e\n", row_.name,
              bytes_ / 1e6, floor, all, schedule_us, bytes_ / all / 1e3, ratio, row_.best_public,
              row_.target, verdict, header.num_parts, wrong);
  std::fflush(stdout);
}

std::vector<Row> grid() {
  const auto same = [](int rows, int length) {
    return std::vector<int>(static_cast<std::size_t>(rows), length);
  };
  // The 64 lengths of the skewed row: one of 65,536 among log-normal ones around 1,000.
  const std::vector<int> skewed = {508,  1340, 560,  1006, 1112, 691,  1439, 841,  812,  65536, 988,
                                   689,  635,  330,  449,  829,  968,  722,  491,  1105, 1181,  573,
                                   1094, 1599, 932,  742,  1120, 644,  461,  831,  1191, 516,   776,
                                   1690, 946,  1532, 635,  1340, 816,  2083, 2332, 990,  939,   625,
                                   952,  533,  1240, 607,  1011, 1250, 1921, 1815, 1047, 801,   630,
                                   938,  598,  343,  1235, 3382, 1289, 913,  524,  1660};
  return {{"A 1x1k", 32, 8, 128, same(1, 1024), 7.8 / 2.4, 6.4 / 2.4},
          {"A 1x4k", 32, 8, 128, same(1, 4096), 12.6 / 5.1, 9.1 / 5.1},
          {"A 1x32k", 32, 8, 128, same(1, 32768), 41.3 / 30.8, 1.10},
          {"A 1x128k", 32, 8, 128, same(1, 131072), 133 / 118.5, 1.06},
          {"A 8x4k", 32, 8, 128, same(8, 4096), 40.9 / 30.8, 1.10},
          {"A 32x4k", 32, 8, 128, same(32, 4096), 131.2 / 118.6, 1.06},
          {"A 64x1k", 32, 8, 128, same(64, 1024), 71.0 / 60.1, 1.06},
          {"A 64x8k", 32, 8, 128, same(64, 8192), 492 / 466.0, 1.03},
          {"A 256x1k", 32, 8, 128, same(256, 1024), 254 / 235.0, 1.03},
          {"A 256x4k", 32, 8, 128, same(256, 4096), 969 / 929.0, 1.03},
          {"B 1x4k", 32, 32, 96, same(1, 4096), 21.1 / 12.4, 16.4 / 12.4},
          {"B 8x4k", 32, 32, 96, same(8, 4096), 107 / 89.2, 1.06},
          {"B 32x4k", 32, 32, 96, same(32, 4096), 398 / 350.0, 1.03},
          {"B 128x1k", 32, 32, 96, same(128, 1024), 391 / 350.0, 1.03},
          {"C 1x4k", 14, 2, 64, same(1, 4096), 7.8 / 1.9, 5.9 / 1.9},
          {"C 32x4k", 14, 2, 64, same(32, 4096), 24.9 / 16.1, 20.1 / 16.1},
          {"C 128x4k", 14, 2, 64, same(128, 4096), 69.1 / 60.1, 1.06},
          {"C 256x1k", 14, 2, 64, same(256, 1024), 40.4 / 30.8, 1.10},
          {"D 1x32k", 8, 1, 128, same(1, 32768), 16.1 / 5.1, 9.1 / 5.1},
          {"D 64x4k", 8, 1, 128, same(64, 4096), 41.5 / 30.8, 1.10},
          {"D 256x4k", 8, 1, 128, same(256, 4096), 132.7 / 118.5, 1.06},
          {"E skewed", 32, 8, 128, skewed, 145 / 116.7, 1.06}};
}

}  // namespace

int main(int argc, char** argv) {
  int num_sms = 0;
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0), "no CUDA device");
  num_sms = properties.multiProcessorCount;
  Result<std::unique_ptr<CudaDevice>> opened = CudaDevice::create();
  check(opened.status(), "no CUDA device");
  device = std::move(*opened);
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  pool = device_array<char>(kPoolBytes);
  sink = device_array<unsigned>(1);
  fill_gaussian<<<4 * num_sms, 256, 0, stream>>>(reinterpret_cast<__nv_bfloat16*>(pool),
                                                 kPoolBytes / 2, 3);
  check(cudaStreamSynchronize(stream), "fill");
  std::printf("%s, %d multiprocessors; bf16, blocks of 16 tokens in random order\n",
              properties.name, num_sms);
  std::printf("%-12s %8s %8s %8s %7s %7s %7s %7s %7s %6s %6s %8s\n", "heads, batch", "KV MB",
              "floor us", "us", "plan us", "GB/s", "ratio", "public", "target", "", "parts",
              "error");
  for (const Row& row : grid()) {
    bool wanted = argc == 1;
    for (int i = 1; i < argc; ++i)
      wanted = wanted || std::string(row.name).find(argv[i]) != std::string::npos;
    if (wanted) Problem(row, num_sms).measure();
  }
  device.reset();
  return 0;
}
