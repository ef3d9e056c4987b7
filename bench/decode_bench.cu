// Decode attention on CUDA against the time to only read the same bytes, both measured in this run:
// calls captured back to back in a CUDA graph, median of the replays divided by the calls, blocks
// in random order, tables rotated so that nothing stays in the L2. A row's time includes its share
// of the schedule, made once for 32 layers. `decode_bench [row...]` measures only rows whose name
// contains one of the words.

#include "kernels/decode/decode.h"
#include "kernels/decode/decode_workspace.h"
#include "kvarena/base/tile_order.hpp"

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

using kvarena::BlockId;
using kvarena::DType;
using kvarena::kernels::DecodeLimits;
using kvarena::kernels::DecodeParams;
using kvarena::kernels::DecodeScheduleParams;

constexpr int kBlockSize = 16;
constexpr int kLayers = 32;  // that share a schedule
constexpr int kWarmUps = 5;
constexpr int kReplays = 31;
constexpr std::size_t kPoolBytes = std::size_t{9} << 30;

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "decode_bench: %s: %s\n", what, cudaGetErrorString(error));
  std::exit(5);
}
void check(const kvarena::Status& status, const char* what) {
  if (status.is_ok()) return;
  std::fprintf(stderr, "decode_bench: %s: code %d, subject %llu, native %d\n", what,
               static_cast<int>(status.code), static_cast<unsigned long long>(status.subject),
               status.native);
  std::exit(5);
}
template <class T>
T* device_array(std::size_t count) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, std::max<std::size_t>(1, count) * sizeof(T)), "cudaMalloc");
  return static_cast<T*>(memory);
}
template <class T>
T* device_copy(const std::vector<T>& host) {
  T* memory = device_array<T>(host.size());
  check(cudaMemcpy(memory, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice), "copy");
  return memory;
}

__global__ void fill_gaussian(__nv_bfloat16* out, std::size_t count, unsigned long long seed) {
  std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x;
  for (; i < count; i += static_cast<std::size_t>(gridDim.x) * blockDim.x) {
    unsigned long long z = (i + 1) * 0x9E3779B97F4A7C15ULL + seed;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    z ^= z >> 31;
    const float sum =
        static_cast<float>((z & 0xffff) + ((z >> 16) & 0xffff) + ((z >> 32) & 0xffff));
    out[i] = __float2bfloat16((sum / 65536.0F - 1.5F) * 2.0F);
  }
}

__global__ void __launch_bounds__(256)
    read_once(const uint4* in, std::size_t count, unsigned* sink) {
  const std::size_t first = static_cast<std::size_t>(blockIdx.x) * 256 * 8 + threadIdx.x;
  uint4 v[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    v[i] = first + i * 256 < count ? __ldcs(in + first + i * 256) : make_uint4(0, 0, 0, 0);
  }
  unsigned all = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) all |= v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
  if (all == 0x12345678) *sink = all;
}
__global__ void __launch_bounds__(256)
    read_strided(const uint4* in, std::size_t count, unsigned* sink) {
  unsigned all = 0;
  for (std::size_t base = blockIdx.x * std::size_t{1024}; base < count;
       base += gridDim.x * std::size_t{1024}) {
    uint4 v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::size_t at = base + i * 256 + threadIdx.x;
      v[i] = at < count ? __ldcs(in + at) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) all |= v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
  }
  if (all == 0x12345678) *sink = all;
}

/// One thread block a (row, query head): two passes in float over K and V as stored.
__global__ void __launch_bounds__(256) plain_decode(DecodeParams p, float* out) {
  const int heads = p.limits.num_q_heads;
  const int row = blockIdx.x / heads;
  const int head = blockIdx.x % heads;
  const int kv_head = head / (heads / p.limits.num_kv_heads);
  const int dims = p.limits.head_dim;
  const int length = p.seq_lens[row];
  extern __shared__ float logits[];
  __shared__ float partial[256];
  const auto* q =
      static_cast<const __nv_bfloat16*>(p.q) + (static_cast<long long>(row) * heads + head) * dims;
  const auto tile = [&](const void* base, int token) {
    const BlockId block = p.block_tables[row * p.table_stride + token / p.block_size];
    return reinterpret_cast<const __nv_bfloat16*>(
        static_cast<const char*>(base) + block.value * p.block_stride + kv_head * p.head_stride);
  };
  float highest = -INFINITY;
  for (int token = threadIdx.x; token < length; token += 256) {
    const __nv_bfloat16* k = tile(p.key, token);
    float dot = 0.0F;
    for (int d = 0; d < dims; ++d) {
      dot +=
          __bfloat162float(q[d]) * __bfloat162float(k[kvarena::chunked_offset(
                                       kvarena::PlaneKind::key, 2, dims, token % p.block_size, d)]);
    }
    logits[token] = dot * p.scale;
    highest = fmaxf(highest, logits[token]);
  }
  partial[threadIdx.x] = highest;
  __syncthreads();
  for (int i = 0; i < 256; ++i) highest = fmaxf(highest, partial[i]);
  __syncthreads();
  float sum = 0.0F;
  for (int token = threadIdx.x; token < length; token += 256) {
    logits[token] = expf(logits[token] - highest);
    sum += logits[token];
  }
  partial[threadIdx.x] = sum;
  __syncthreads();
  sum = 0.0F;
  for (int i = 0; i < 256; ++i) sum += partial[i];
  for (int d = threadIdx.x; d < dims; d += 256) {
    float value = 0.0F;
    for (int token = 0; token < length; ++token) {
      value += logits[token] * __bfloat162float(tile(p.value, token)[kvarena::chunked_offset(
                                   kvarena::PlaneKind::value, 2, dims, token % p.block_size, d)]);
    }
    out[(static_cast<long long>(row) * heads + head) * dims + d] = value / sum;
  }
}

cudaStream_t stream;
char* pool;
unsigned* sink;

/// Median microseconds of one of `calls` launches captured in a graph.
template <class LaunchCall>
double graph_time_us(int calls, LaunchCall launch) {
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
  for (int i = 0; i < calls; ++i) launch(i);
  check(cudaStreamEndCapture(stream, &graph), "capture");
  check(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
  cudaEvent_t begin;
  cudaEvent_t end;
  check(cudaEventCreate(&begin), "event");
  check(cudaEventCreate(&end), "event");
  std::vector<float> times;
  for (int i = 0; i < kWarmUps + kReplays; ++i) {
    check(cudaEventRecord(begin, stream), "record");
    check(cudaGraphLaunch(executable, stream), "launch");
    check(cudaEventRecord(end, stream), "record");
    check(cudaEventSynchronize(end), "synchronize");
    float ms = 0.0F;
    check(cudaEventElapsedTime(&ms, begin, end), "elapsed");
    if (i >= kWarmUps) times.push_back(ms);
  }
  std::sort(times.begin(), times.end());
  check(cudaGraphExecDestroy(executable), "destroy");
  check(cudaGraphDestroy(graph), "destroy");
  check(cudaEventDestroy(begin), "destroy");
  check(cudaEventDestroy(end), "destroy");
  return times[times.size() / 2] * 1e3 / calls;
}

/// The time to only read `bytes`: the best of several simple kernels.
double floor_us(double bytes, int copies, int calls) {
  const auto count = static_cast<std::size_t>(bytes / 16);
  const std::size_t step = (static_cast<std::size_t>(bytes) + 4095) / 4096 * 4096;
  const auto at = [&](int i) { return reinterpret_cast<const uint4*>(pool + (i % copies) * step); };
  double best = graph_time_us(calls, [&](int i) {
    read_once<<<static_cast<unsigned>((count + 2047) / 2048), 256, 0, stream>>>(at(i), count, sink);
  });
  for (const int blocks : {264, 528, 1056}) {
    best = std::min(best, graph_time_us(calls, [&](int i) {
                      read_strided<<<blocks, 256, 0, stream>>>(at(i), count, sink);
                    }));
  }
  return best;
}

struct Row {
  const char* name;
  int q_heads;
  int kv_heads;
  int head_dim;
  std::vector<int> lengths;
  double best_public;  // ratio to the floor of the best public kernel; ../docs/benchmarks.md
  double target;       // ratio to the floor
};

void measure(const Row& row, int num_sms) {
  const int rows = static_cast<int>(row.lengths.size());
  const std::int64_t tile_bytes = std::int64_t{16} * row.head_dim * 2;
  const std::int64_t block_stride = 2 * row.kv_heads * tile_bytes;
  const auto pool_blocks = static_cast<std::int64_t>(kPoolBytes) / block_stride;
  const auto blocks_of = [](int length) { return (length + kBlockSize - 1) / kBlockSize; };
  std::int64_t total_blocks = 0;
  int longest = 0;
  for (const int length : row.lengths) {
    total_blocks += blocks_of(length);
    longest = std::max(longest, length);
  }
  const double bytes = std::accumulate(row.lengths.begin(), row.lengths.end(), 0.0) * row.kv_heads *
                       row.head_dim * 4;
  const int copies = static_cast<int>(
      std::min<double>(64, std::max(1.0, std::min(static_cast<double>(pool_blocks) / total_blocks,
                                                  std::ceil(1e9 / bytes)))));
  const int calls = std::max(copies, static_cast<int>(std::min(64.0, std::ceil(2e9 / bytes))));

  std::vector<int> order(static_cast<std::size_t>(pool_blocks));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(5));
  const int stride = blocks_of(longest);
  std::vector<BlockId> tables(static_cast<std::size_t>(copies) * rows * stride);
  std::size_t next = 0;
  for (int copy = 0; copy < copies; ++copy) {
    for (int r = 0; r < rows; ++r) {
      for (int j = 0; j < blocks_of(row.lengths[r]); ++j) {
        tables[(static_cast<std::size_t>(copy) * rows + r) * stride + j] = BlockId(order[next++]);
      }
    }
  }
  const DecodeLimits limits{.max_rows = rows,
                            .q_len = 1,
                            .num_q_heads = row.q_heads,
                            .num_kv_heads = row.kv_heads,
                            .head_dim = row.head_dim,
                            .num_sms = num_sms};
  const std::size_t elements = static_cast<std::size_t>(rows) * row.q_heads * row.head_dim;
  BlockId* device_tables = device_copy(tables);
  std::int32_t* lengths =
      device_copy(std::vector<std::int32_t>(row.lengths.begin(), row.lengths.end()));
  auto* q = device_array<__nv_bfloat16>(elements);
  auto* out = device_array<__nv_bfloat16>(elements);
  const auto workspace_bytes =
      static_cast<std::size_t>(kvarena::kernels::decode_workspace_bytes(limits));
  auto* workspace = device_array<char>(workspace_bytes);
  fill_gaussian<<<256, 256, 0, stream>>>(q, elements, 77);
  check(cudaMemsetAsync(out, 0xff, elements * 2, stream), "fill");
  check(cudaMemsetAsync(workspace, 0, workspace_bytes, stream), "fill");

  const DecodeScheduleParams schedule{
      .limits = limits, .seq_lens = lengths, .num_rows = rows, .workspace = workspace};
  DecodeParams params{.limits = limits,
                      .q = q,
                      .out = out,
                      .key = pool,
                      .value = pool + row.kv_heads * tile_bytes,
                      .block_stride = block_stride,
                      .head_stride = tile_bytes,
                      .block_size = kBlockSize,
                      .block_tables = device_tables,
                      .table_stride = stride,
                      .seq_lens = lengths,
                      .num_rows = rows,
                      .dtype = DType::bf16,
                      .scale = 1.0F / std::sqrt(static_cast<float>(row.head_dim)),
                      .workspace = workspace};
  const auto launch = [&](int i) {
    params.block_tables = device_tables + static_cast<std::size_t>(i % copies) * rows * stride;
    check(kvarena::kernels::launch_decode(params, true, stream), "launch_decode");
  };
  check(kvarena::kernels::launch_decode_schedule(schedule, stream), "launch_decode_schedule");
  check(cudaStreamSynchronize(stream), "schedule");
  launch(0);
  check(cudaStreamSynchronize(stream), "decode");
  double error = -1.0;
  if (longest <= 40000 && static_cast<double>(rows) * longest * row.q_heads < 4e7) {
    auto* expected = device_array<float>(elements);
    check(
        cudaFuncSetAttribute(plain_decode, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 * 1024),
        "attribute");
    plain_decode<<<rows * row.q_heads, 256, longest * sizeof(float), stream>>>(params, expected);
    check(cudaStreamSynchronize(stream), "plain_decode");
    std::vector<float> want(elements);
    std::vector<__nv_bfloat16> have(elements);
    check(cudaMemcpy(want.data(), expected, elements * 4, cudaMemcpyDeviceToHost), "copy");
    check(cudaMemcpy(have.data(), out, elements * 2, cudaMemcpyDeviceToHost), "copy");
    double difference = 0.0;
    double norm = 0.0;
    for (std::size_t i = 0; i < elements; ++i) {
      const double d = static_cast<double>(__bfloat162float(have[i])) - want[i];
      difference += d * d;
      norm += static_cast<double>(want[i]) * want[i];
    }
    error = std::sqrt(difference / norm);
    check(cudaFree(expected), "free");
  }
  const double floor = floor_us(bytes, copies, calls);
  const double schedule_us = graph_time_us(16, [&](int) {
    check(kvarena::kernels::launch_decode_schedule(schedule, stream), "launch_decode_schedule");
  });
  const double decode_us = graph_time_us(calls, launch);
  kvarena::kernels::DecodeHeader header{};
  check(cudaMemcpy(&header, workspace, sizeof header, cudaMemcpyDeviceToHost), "copy");
  const double all = decode_us + schedule_us / kLayers;
  std::printf("%-12s %8.1f %8.1f %8.1f %7.2f %7.1f %7.3f %7.3f %7.3f %s %6d %8.1e\n", row.name,
              bytes / 1e6, floor, all, schedule_us, bytes / all / 1e3, all / floor, row.best_public,
              row.target,
              all / floor <= row.target       ? "met   "
              : all / floor < row.best_public ? "beaten"
                                              : "behind",
              header.num_parts, error);
  std::fflush(stdout);
  for (void* memory :
       {static_cast<void*>(device_tables), static_cast<void*>(lengths), static_cast<void*>(q),
        static_cast<void*>(out), static_cast<void*>(workspace)}) {
    check(cudaFree(memory), "free");
  }
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
    if (wanted) measure(row, num_sms);
  }
  return 0;
}
