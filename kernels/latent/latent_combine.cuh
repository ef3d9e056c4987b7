#pragma once

/// @file
/// The kernel that combines the parts of cut items. It follows the latent kernel. An item's parts
/// have 32 KiB for each 16 columns, so one thread block alone would take longer to read them than
/// all of them take for the latents. Included by latent.cuh.

#include "kernels/columns/columns_combine.cuh"
#include "kernels/latent/latent_config.cuh"

namespace kvarena::kernels::latent {

inline constexpr int kCombineThreads = 256;
inline constexpr int kCombineWarps = kCombineThreads / 32;
/// Most parts whose outputs a warp loads at once.
inline constexpr int kPartsAtOnce = 8;

/// The sum of some parts of a column: a lane has four neighbouring dims.
struct PartSum {
  float maximum = -INFINITY;
  float sum = 0.0F;
  float4 o = make_float4(0.0F, 0.0F, 0.0F, 0.0F);

  /// Adds a part, or another sum.
  __device__ __forceinline__ void add(float its_maximum, float its_sum, const float4& its,
                                      float scale) {
    const float to = fmaxf(maximum, its_maximum);
    const float keep = maximum == -INFINITY ? 0.0F : exp2_fast((maximum - to) * scale);
    const float x = its_maximum == -INFINITY ? 0.0F : exp2_fast((its_maximum - to) * scale);
    maximum = to;
    sum = sum * keep + its_sum * x;
    o.x = o.x * keep + its.x * x;
    o.y = o.y * keep + its.y * x;
    o.z = o.z * keep + its.z * x;
    o.w = o.w * keep + its.w * x;
  }
};

/// Adds the parts first .. end - 1 of a column, in their order. `dim` is the lane's first.
template <class C>
__device__ __forceinline__ void add_parts(PartSum& result, const Launch& launch,
                                          const ColumnsItem& item, int column, int dim, int first,
                                          int end, float scale) {
#pragma unroll 1
  for (int part = first; part < end; part += kPartsAtOnce) {
    float2 max_sum[kPartsAtOnce];
    float4 v[kPartsAtOnce];
#pragma unroll
    for (int i = 0; i < kPartsAtOnce; ++i) {
      const std::int64_t row =
          std::int64_t{item.own_row} + min(part + i, end - 1) * C::kColumns + column;
      max_sum[i] = __ldcg(launch.max_sum() + row);
      v[i] = __ldcg(reinterpret_cast<const float4*>(launch.outputs() + row * C::kDim + dim));
    }
#pragma unroll
    for (int i = 0; i < kPartsAtOnce; ++i) {
      if (part + i < end) result.add(max_sum[i].x, max_sum[i].y, v[i], scale);
    }
  }
}

/// Normalises and writes four dims of a column.
template <class C>
__device__ __forceinline__ void write_sum(const PartSum& result, const Launch& launch,
                                          const ColumnsItem& item, int column, int dim,
                                          float scale) {
  using T = typename C::T;
  const ColumnsParams& p = launch.params;
  const columns::Place place =
      columns::place_of(launch, item.q_begin, item.head, item.first_column + column);
  const float* const sink = p.sinks != nullptr ? p.sinks + place.head : nullptr;
  float sum = result.sum;
  if (sink != nullptr) sum = columns::with_sink<C>(sum, result.maximum, *sink, scale);
  const float factor = sum > 0.0F ? 1.0F / sum : 0.0F;
  const float4& o = result.o;
  *reinterpret_cast<uint2*>(static_cast<char*>(p.out) + place.token * p.out_token_stride +
                            (place.head * C::kDim + dim) * 2) =
      make_uint2(columns::pack<T>(o.x * factor, o.y * factor),
                 columns::pack<T>(o.z * factor, o.w * factor));
  if (p.lse != nullptr && dim == 0) {
    p.lse[place.token * p.limits.num_q_heads + place.head] =
        columns::log_sum_exp<C>(sum, result.maximum, scale, sink);
  }
}

/// Combines the parts of all cut items, in an order that depends on their number alone. A thread
/// block takes 128 dims of a column at a time where there are many parts, and each of its warps
/// adds a run of them; else each warp takes 128 dims of a column.
template <class C>
__global__ void __launch_bounds__(kCombineThreads, 2)
    combine_latents(const __grid_constant__ Launch launch) {
  __shared__ PartSum sums[kCombineWarps][32];
  constexpr int kRuns = C::kDim / 128;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const float scale = launch.constants.logit_scale;
  const int blocks = static_cast<int>(gridDim.x);
  int turn = static_cast<int>(blockIdx.x);  // of this thread block among those with many parts
  int own = static_cast<int>(blockIdx.x) * kCombineWarps + warp;
  wait_for_previous_kernel();
  let_next_kernel_begin();
  for (int base = 0; base < launch.workspace.max_slots; base += 32) {
    const int slot = base + lane;
    const int count = slot < launch.workspace.max_slots ? __ldg(launch.counters() + slot) : 0;
    for (unsigned listed = __ballot_sync(~0U, count > 0); listed != 0; listed &= listed - 1) {
      const int bit = __ffs(static_cast<int>(listed)) - 1;
      const int parts = __shfl_sync(~0U, count, bit);
      const ColumnsItem item = columns::load_item(launch, base + bit);
      const int units = item.columns * kRuns;
      if (parts <= kPartsAtOnce) {
        for (; own < units; own += blocks * kCombineWarps) {
          PartSum result;
          const int dim = own % kRuns * 128 + lane * 4;
          add_parts<C>(result, launch, item, own / kRuns, dim, 0, parts, scale);
          write_sum<C>(result, launch, item, own / kRuns, dim, scale);
        }
        own -= units;
        continue;
      }
      for (; turn < units; turn += blocks) {
        const int dim = turn % kRuns * 128 + lane * 4;
        const int first = warp * parts / kCombineWarps;
        const int end = (warp + 1) * parts / kCombineWarps;
        PartSum result;
        add_parts<C>(result, launch, item, turn / kRuns, dim, first, end, scale);
        sums[warp][lane] = result;
        __syncthreads();
        if (warp == 0) {
          for (int w = 1; w < kCombineWarps; ++w) {
            const PartSum& its = sums[w][lane];
            result.add(its.maximum, its.sum, its.o, scale);
          }
          write_sum<C>(result, launch, item, turn / kRuns, dim, scale);
        }
        __syncthreads();
      }
      turn -= units;
    }
  }
}

}  // namespace kvarena::kernels::latent
