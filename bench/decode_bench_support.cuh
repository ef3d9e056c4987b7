#pragma once

/// @file
/// What decode_bench stands on: memory, random data, graph timing, the time to only read, and a
/// plain kernel to compare with.

#include "kernels/decode/decode.h"

#include "kvarena/base/tile_order.hpp"
#include "kvarena/device/cuda_device.hpp"

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

namespace kvarena::bench {

using kernels::DecodeParams;

inline constexpr int kWarmUps = 5;
inline constexpr int kReplays = 31;
inline constexpr std::size_t kPoolBytes = std::size_t{9} << 30;

inline std::unique_ptr<CudaDevice> device;
inline cudaStream_t stream;
inline char* pool;
inline unsigned* sink;

inline void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "decode_bench: %s: %s\n", what, cudaGetErrorString(error));
  std::exit(5);
}
inline void check(const Status& status, const char* what) {
  if (status.is_ok()) return;
  std::fprintf(stderr, "decode_bench: %s: code %d, subject %llu, native %d\n", what,
               static_cast<int>(status.code), static_cast<unsigned long long>(status.subject),
               status.native);
  std::exit(5);
}
template <class T>
T* device_array(std::size_t count) {
  const Result<void*> memory =
      device->allocate({.bytes = std::max<std::size_t>(1, count) * sizeof(T),
                        .purpose = MemoryPurpose::intermediate_buffers,
                        .description = "decode_bench"});
  check(memory.status(), "allocate");
  return static_cast<T*>(*memory);
}
template <class T>
T* device_copy(const std::vector<T>& host) {
  T* memory = device_array<T>(host.size());
  check(cudaMemcpy(memory, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice), "copy");
  return memory;
}

static __global__ void fill_gaussian(__nv_bfloat16* out, std::size_t count,
                                     unsigned long long seed) {
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

static __global__ void __launch_bounds__(256)
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
static __global__ void __launch_bounds__(256)
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
static __global__ void __launch_bounds__(256) plain_decode(DecodeParams p, float* out) {
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
      dot += __bfloat162float(q[d]) *
             __bfloat162float(k[chunked_offset(PlaneKind::key, 2, dims, token % p.block_size, d)]);
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
      value +=
          logits[token] *
          __bfloat162float(tile(
              p.value, token)[chunked_offset(PlaneKind::value, 2, dims, token % p.block_size, d)]);
    }
    out[(static_cast<long long>(row) * heads + head) * dims + d] = value / sum;
  }
}

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
inline double floor_us(double bytes, int copies, int calls) {
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

}  // namespace kvarena::bench
