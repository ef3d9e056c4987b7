#include "verify/cuda/exact_attention.h"

#include "kernels/common/launch_checks.h"
#include "kernels/common/load_kernel.h"

#include <cuda_fp16.h>

#include <cmath>

namespace kvarena::verify {
namespace {

constexpr int kThreads = 128;
constexpr int kPartTokens = 512;  // of a sequence, to one thread block

__host__ __device__ constexpr int elements_a_lane(DType dtype) {
  return dtype == DType::f32 ? 1 : 2;
}
__host__ __device__ constexpr int num_parts(std::int64_t tokens) {
  return static_cast<int>((tokens + kPartTokens - 1) / kPartTokens);
}

__device__ double from_f16(std::uint32_t bits) {
  return static_cast<double>(__half2float(__ushort_as_half(static_cast<unsigned short>(bits))));
}

// The first element of a lane.
__device__ double first_of(std::uint32_t x, DType dtype) {
  if (dtype == DType::f32) return static_cast<double>(__uint_as_float(x));
  if (dtype == DType::bf16) return static_cast<double>(__uint_as_float(x << 16));
  return from_f16(x);
}

// The second element of a lane of two.
__device__ double second_of(std::uint32_t x, DType dtype) {
  if (dtype == DType::bf16) return static_cast<double>(__uint_as_float(x & 0xffff0000U));
  return from_f16(x >> 16);
}

__device__ double result_at(const std::byte* out, DType dtype, std::int64_t index) {
  if (dtype == DType::f32) {
    return static_cast<double>(reinterpret_cast<const float*>(out)[index]);
  }
  return first_of(reinterpret_cast<const std::uint16_t*>(out)[index], dtype);
}

struct Sum {
  __device__ double operator()(double a, double b) const { return a + b; }
};
struct Larger {
  __device__ double operator()(double a, double b) const { return fmax(a, b); }
};

// Reduces a value of each thread, always in the same order; all threads get the result.
template <class Reduce>
__device__ double reduce(double value, double* scratch, Reduce op) {
  scratch[threadIdx.x] = value;
  __syncthreads();
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) {
      scratch[threadIdx.x] = op(scratch[threadIdx.x], scratch[threadIdx.x + half]);
    }
    __syncthreads();
  }
  const double result = scratch[0];
  __syncthreads();
  return result;
}

// What of a launch one thread block works on.
struct Item {
  QueryToken token;
  std::int32_t layer;  // of the model
  std::int64_t index;  // of the launch's (layer, token) pairs
};

__device__ Item item_at(const ExactAttention& p, std::int64_t index) {
  return {p.tokens[index % p.num_tokens],
          p.first_layer + static_cast<std::int32_t>(index / p.num_tokens), index};
}

// Partial result of (item, head, part): the largest logit, the sum of weights, weighted values.
__device__ double* partial_at(const ExactAttention& p, std::int64_t item, int head, int part) {
  const std::int64_t parts = num_parts(p.longest_tokens);
  return p.partials + ((item * p.num_q_heads + head) * parts + part) * (p.head_dim_v + 2);
}

// Shared memory of partial_attention.
struct PartMemory {
  double* q;        // [head_dim_k], and one of padding
  double* weights;  // [kPartTokens]
  double* scratch;  // [2 * kThreads]
  RowSeed* seeds;   // [kPartTokens] of V
};

__device__ PartMemory part_memory(std::byte* shared, int head_dim_k) {
  auto* q = reinterpret_cast<double*>(shared);
  double* weights = q + head_dim_k + 1;
  double* scratch = weights + kPartTokens;
  return {q, weights, scratch, reinterpret_cast<RowSeed*>(scratch + 2 * kThreads)};
}

std::size_t part_memory_bytes(int head_dim_k) {
  return (static_cast<std::size_t>(head_dim_k) + 1 + kPartTokens + 2 * kThreads) * sizeof(double) +
         kPartTokens * sizeof(RowSeed);
}

// q as doubles. An odd last element has a zero behind it.
__device__ void load_query(const ExactAttention& p, const Item& item, int head, double* q) {
  const std::uint64_t hash = p.hashes[item.token.first_hash + item.token.seq_len - 1];
  const RowSeed seed = row_seed(hash, item.layer, RowKind::query, head);
  const Pattern pattern = pattern_of(p.dtype, RowKind::query);
  const int step = elements_a_lane(p.dtype);
  for (int d = static_cast<int>(threadIdx.x) * step; d < p.head_dim_k; d += kThreads * step) {
    const std::uint32_t x = lane(seed, static_cast<std::uint32_t>(d / step), pattern);
    q[d] = first_of(x, p.dtype);
    if (step == 2) q[d + 1] = d + 1 < p.head_dim_k ? second_of(x, p.dtype) : 0.0;
  }
}

__device__ double dot(const ExactAttention& p, RowSeed seed, const double* q) {
  const Pattern pattern = pattern_of(p.dtype, RowKind::key);
  const int step = elements_a_lane(p.dtype);
  double sum = 0.0;
  for (int d = 0; d < p.head_dim_k; d += step) {
    const std::uint32_t x = lane(seed, static_cast<std::uint32_t>(d / step), pattern);
    sum += q[d] * first_of(x, p.dtype);
    if (step == 2) sum += q[d + 1] * second_of(x, p.dtype);
  }
  return sum;
}

// Weighted values of `count` tokens: threads are (group of tokens, lane of V); a group has every
// num_groups-th token, and group 0 adds the groups up.
__device__ void weigh_values(const ExactAttention& p, const PartMemory& m, int count, double* out) {
  const Pattern pattern = pattern_of(p.dtype, RowKind::value);
  const int step = elements_a_lane(p.dtype);
  const int lanes = (p.head_dim_v + step - 1) / step;
  const int num_groups = lanes < kThreads ? kThreads / lanes : 1;
  const int width = num_groups > 1 ? lanes : kThreads;
  const int group = static_cast<int>(threadIdx.x) / width;
  for (int base = 0; base < lanes; base += width) {
    const int l = base + static_cast<int>(threadIdx.x) % width;
    const bool is_mine = group < num_groups && l < lanes;
    double first = 0.0;
    double second = 0.0;
    for (int i = group; is_mine && i < count; i += num_groups) {
      const std::uint32_t x = lane(m.seeds[i], static_cast<std::uint32_t>(l), pattern);
      first += m.weights[i] * first_of(x, p.dtype);
      if (step == 2) second += m.weights[i] * second_of(x, p.dtype);
    }
    m.scratch[2 * threadIdx.x] = first;
    m.scratch[2 * threadIdx.x + 1] = second;
    __syncthreads();
    if (group == 0 && l < lanes) {
      for (int g = 1; g < num_groups; ++g) {
        first += m.scratch[2 * (g * width + l - base)];
        second += m.scratch[2 * (g * width + l - base) + 1];
      }
      out[l * step] = first;
      if (step == 2 && l * 2 + 1 < p.head_dim_v) out[l * 2 + 1] = second;
    }
    __syncthreads();
  }
}

// Grid: (part, query head, item).
__global__ void __launch_bounds__(kThreads) partial_attention(ExactAttention p, double scale) {
  extern __shared__ double shared[];
  const Item item = item_at(p, blockIdx.z);
  const int head = static_cast<int>(blockIdx.y);
  const int part = static_cast<int>(blockIdx.x);
  const std::int64_t first = std::int64_t{part} * kPartTokens;
  const int count = static_cast<int>(min(item.token.seq_len - first, std::int64_t{kPartTokens}));
  if (count <= 0) return;
  const PartMemory m = part_memory(reinterpret_cast<std::byte*>(shared), p.head_dim_k);
  load_query(p, item, head, m.q);
  __syncthreads();

  const std::uint64_t* hashes = p.hashes + item.token.first_hash + first;
  const int kv_head = head / (p.num_q_heads / p.num_kv_heads);
  double largest = -INFINITY;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    m.seeds[i] = row_seed(hashes[i], item.layer, RowKind::value, kv_head);
    m.weights[i] = scale * dot(p, row_seed(hashes[i], item.layer, RowKind::key, kv_head), m.q);
    largest = fmax(largest, m.weights[i]);
  }
  largest = reduce(largest, m.scratch, Larger{});
  double sum = 0.0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    m.weights[i] = exp(m.weights[i] - largest);
    sum += m.weights[i];
  }
  sum = reduce(sum, m.scratch, Sum{});
  double* const partial = partial_at(p, item.index, head, part);
  if (threadIdx.x == 0) {
    partial[0] = largest;
    partial[1] = sum;
  }
  weigh_values(p, m, count, partial + 2);
}

// Grid: item. Puts the parts together and compares.
__global__ void __launch_bounds__(kThreads) compare_results(ExactAttention p) {
  __shared__ double scratch[kThreads];
  const Item item = item_at(p, blockIdx.x);
  const int parts = num_parts(item.token.seq_len);
  const std::byte* out = p.out + (item.layer - p.first_layer) * p.layer_stride;
  double exact_sum = 0.0;
  double difference_sum = 0.0;
  for (int head = 0; head < p.num_q_heads; ++head) {
    for (int d = static_cast<int>(threadIdx.x); d < p.head_dim_v; d += kThreads) {
      double largest = -INFINITY;
      for (int i = 0; i < parts; ++i) {
        largest = fmax(largest, partial_at(p, item.index, head, i)[0]);
      }
      double weights = 0.0;
      double values = 0.0;
      for (int i = 0; i < parts; ++i) {
        const double* partial = partial_at(p, item.index, head, i);
        const double factor = exp(partial[0] - largest);
        weights += factor * partial[1];
        values += factor * partial[2 + d];
      }
      const double exact = values / weights;
      const std::int64_t row = std::int64_t{item.token.q_token} * p.num_q_heads + head;
      const double difference = result_at(out, p.out_dtype, row * p.head_dim_v + d) - exact;
      exact_sum += exact * exact;
      difference_sum += difference * difference;
    }
  }
  exact_sum = reduce(exact_sum, scratch, Sum{});
  difference_sum = reduce(difference_sum, scratch, Sum{});
  if (threadIdx.x == 0) p.sums[item.index] = {exact_sum, difference_sum};
}

}  // namespace

std::int64_t partial_bytes(std::int64_t longest_tokens, std::int64_t num_q_heads,
                           std::int64_t head_dim_v) noexcept {
  return num_parts(longest_tokens) * num_q_heads * (head_dim_v + 2) *
         static_cast<std::int64_t>(sizeof(double));
}

Status load_exact_attention() noexcept {
  return kernels::load_kernels(partial_attention, compare_results);
}

Status launch_exact_attention(const ExactAttention& p, cudaStream_t stream) noexcept {
  const auto items = static_cast<unsigned>(p.num_tokens * p.num_layers);
  if (items == 0) return {};
  const double scale = 1.0F / std::sqrt(static_cast<float>(p.head_dim_k));
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(num_parts(p.longest_tokens)),
                        static_cast<unsigned>(p.num_q_heads), items);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = part_memory_bytes(p.head_dim_k);
  config.stream = stream;
  const cudaError_t launched = cudaLaunchKernelEx(&config, partial_attention, p, scale);
  if (launched != cudaSuccess) return kernels::launch_status(launched);
  config.gridDim = dim3(items);
  config.dynamicSmemBytes = 0;
  return kernels::launch_status(cudaLaunchKernelEx(&config, compare_results, p));
}

}  // namespace kvarena::verify
