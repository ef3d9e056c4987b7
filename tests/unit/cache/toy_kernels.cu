#include "unit/cache/toy_kernels.h"

#include "unit/cache/toy_recurrence.hpp"

namespace kvarena::test {
namespace {

__device__ float* plane_of(const ToyLayer& k, std::int32_t slot, int number) {
  return reinterpret_cast<float*>(k.view.base + slot * k.view.slot_stride +
                                  k.view.planes.data()[number].offset);
}

__device__ void copy(const float* from, float* to, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) to[i] = from[i];
}

/// A kernel in place has no memory for a state; the other one has no slot for its work.
__global__ void run_toy(const __grid_constant__ ToyLayer k) {
  const auto row = static_cast<std::int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row >= k.num_rows) return;
  const std::int64_t first = k.q_offsets[row];
  const std::int64_t end = k.q_offsets[row + 1];
  const std::int64_t parts = k.slots.num_parts;
  const std::int32_t read = k.slots.read[row * parts + k.view.part];
  const std::int32_t write = k.slots.write[row * parts + k.view.part];
  if (write == -1 || first == end) return;
  float own_state[ToyShape::kState] = {};
  float own_conv[ToyShape::kConv] = {};
  float* const state = k.in_place ? plane_of(k, write, 0) : own_state;
  float* const conv = k.in_place ? plane_of(k, write, 1) : own_conv;
  if (!k.in_place && read != -1) {
    copy(plane_of(k, read, 0), state, ToyShape::kState);
    copy(plane_of(k, read, 1), conv, ToyShape::kConv);
  }
  std::int32_t extra = k.slots.extra_offsets[row];
  const std::int32_t last = k.slots.extra_offsets[row + 1];
  for (std::int64_t i = first; i < end; ++i) {
    toy_step(k.kind, k.tokens[i], k.layer, state, conv, k.out + i * std::int64_t{ToyShape::kOut});
    if (extra == last || k.slots.extra_tokens[extra] != i - first) continue;
    const std::int32_t slot = k.slots.extra_slots[extra++ * parts + k.view.part];
    copy(state, plane_of(k, slot, 0), ToyShape::kState);
    copy(conv, plane_of(k, slot, 1), ToyShape::kConv);
  }
  if (k.in_place) return;
  copy(state, plane_of(k, write, 0), ToyShape::kState);
  copy(conv, plane_of(k, write, 1), ToyShape::kConv);
}

}  // namespace

cudaError_t launch_toy(const ToyLayer& layer, cudaStream_t stream) {
  if (layer.num_rows == 0) return cudaSuccess;
  constexpr int kThreads = 32;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>((layer.num_rows + kThreads - 1) / kThreads));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, run_toy, layer);
}

}  // namespace kvarena::test
