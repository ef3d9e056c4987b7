#pragma once

/// @file
/// The kernel that combines the parts of cut items. It follows the latent kernel. An item's parts
/// have 32 KiB for each 16 columns, so one thread block alone would take longer to read them than
/// all of them take for the latents. Included by latent.cuh.

#include "kernels/columns/columns_combine.cuh"
#include "kernels/common/grid_dependency.cuh"
#include "kernels/latent/latent_config.cuh"

#include <cub/block/block_scan.cuh>

namespace kvarena::kernels::latent {

inline constexpr int kCombineThreads = 256;
inline constexpr int kCombineWarps = kCombineThreads / 32;
/// Loads of four dims that a lane has under way at once.
inline constexpr int kLoadsAtOnce = 8;
/// Slots that a thread looks at together, for cut items.
inline constexpr int kSlotsOfThread = 4;

/// The sum of some parts of a column: a lane has four neighbouring dims of each run of 128.
template <int kRuns>
struct PartSum {
  float maximum = -INFINITY;
  float sum = 0.0F;
  float4 o[kRuns] = {};

  /// Adds a part, or another sum.
  __device__ __forceinline__ void add(float its_maximum, float its_sum, const float4 (&its)[kRuns],
                                      float scale) {
    const float to = fmaxf(maximum, its_maximum);
    const float keep = maximum == -INFINITY ? 0.0F : exp2_fast((maximum - to) * scale);
    const float x = its_maximum == -INFINITY ? 0.0F : exp2_fast((its_maximum - to) * scale);
    maximum = to;
    sum = sum * keep + its_sum * x;
#pragma unroll
    for (int run = 0; run < kRuns; ++run) {
      o[run].x = o[run].x * keep + its[run].x * x;
      o[run].y = o[run].y * keep + its[run].y * x;
      o[run].z = o[run].z * keep + its[run].z * x;
      o[run].w = o[run].w * keep + its[run].w * x;
    }
  }
};

/// Adds the parts first .. end - 1 of a column, in their order. `dim` is the lane's first.
template <class C, int kRuns>
__device__ __forceinline__ void add_parts(PartSum<kRuns>& result, const Launch& launch,
                                          const ColumnsItem& item, int column, int dim, int first,
                                          int end, float scale) {
  constexpr int kParts = kLoadsAtOnce / kRuns;
#pragma unroll 1
  for (int part = first; part < end; part += kParts) {
    float2 max_sum[kParts];
    float4 v[kParts][kRuns];
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      const std::int64_t row =
          std::int64_t{item.own_row} + min(part + i, end - 1) * C::kColumns + column;
      max_sum[i] = __ldcg(launch.max_sum() + row);
#pragma unroll
      for (int run = 0; run < kRuns; ++run) {
        v[i][run] = __ldcg(
            reinterpret_cast<const float4*>(launch.outputs() + row * C::kDim + dim + run * 128));
      }
    }
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      if (part + i < end) result.add(max_sum[i].x, max_sum[i].y, v[i], scale);
    }
  }
}

/// Normalises and writes the dims of a column that a lane has.
template <class C, int kRuns>
__device__ __forceinline__ void write_sum(const PartSum<kRuns>& result, const Launch& launch,
                                          const ColumnsItem& item, int column, int dim,
                                          float scale) {
  using T = typename C::T;
  const ColumnsParams& p = launch.params;
  const columns::Place place =
      columns::place_of(launch, item.q_begin, item.head, item.first_column + column);
  const float* const sink = p.sinks != nullptr ? p.sinks + place.head : nullptr;
  float sum = result.sum;
  if (sink != nullptr) sum = columns::with_sink<C>(sum, result.maximum, *sink, scale);
  const float factor = sum > 0.0F ? scale_of<C>(p.scales.value) / sum : 0.0F;
#pragma unroll
  for (int run = 0; run < kRuns; ++run) {
    const float4& o = result.o[run];
    *reinterpret_cast<uint2*>(static_cast<char*>(p.out) + place.token * p.out_token_stride +
                              (place.head * C::kDim + dim + run * 128) * 2) =
        make_uint2(columns::pack<T>(o.x * factor, o.y * factor),
                   columns::pack<T>(o.z * factor, o.w * factor));
  }
  if (p.lse != nullptr && dim == 0) {
    p.lse[place.token * p.limits.num_q_heads + place.head] =
        columns::log_sum_exp<C>(sum, result.maximum, scale, sink);
  }
}

/// Cut items of the slots that a thread block looks at together.
struct CutItems {
  static constexpr int kMost = kCombineThreads * kSlotsOfThread;
  int slot[kMost];
  int parts[kMost];
  int first_few[kMost + 1];   ///< units of the items before, where a warp has a unit
  int first_many[kMost + 1];  ///< and where a thread block has one
  int count;

  /// Returns the item that has unit `unit` of those that `first` numbers.
  __device__ __forceinline__ int find(const int* first, int unit) const {
    int low = 0;
    int high = count;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (first[middle] <= unit ? low : high) = middle;
    }
    return low;
  }
};

/// Returns the runs of 128 dims that a warp has of a column of `parts` parts; 0: a thread block has
/// one run.
__device__ __forceinline__ int runs_at_once(int parts) {
  if (parts > kLoadsAtOnce) return 0;
  return parts > kLoadsAtOnce / 2 ? 1 : parts > kLoadsAtOnce / 4 ? 2 : 4;
}

/// Lists the cut items of the slots from `base` on. All threads call it.
template <class C>
__device__ __forceinline__ void list_items(CutItems& items, const Launch& launch, int base) {
  using Scan = cub::BlockScan<unsigned long long, kCombineThreads>;
  constexpr int kRuns = C::kDim / 128;
  __shared__ typename Scan::TempStorage scratch;
  const int first = base + static_cast<int>(threadIdx.x) * kSlotsOfThread;
  int parts[kSlotsOfThread];
  // Items, units of warps and units of thread blocks, in one number: at most 2^10, 2^18 and 2^18.
  unsigned long long before[kSlotsOfThread];
#pragma unroll
  for (int i = 0; i < kSlotsOfThread; ++i) {
    parts[i] = first + i < launch.workspace.max_slots ? __ldg(launch.counters() + first + i) : 0;
  }
#pragma unroll
  for (int i = 0; i < kSlotsOfThread; ++i) {
    const int columns = parts[i] > 0 ? __ldg(&launch.items()[first + i].columns) : 0;
    const int runs = runs_at_once(parts[i]);
    const int units = runs > 0 ? columns * (kRuns / max(runs, 1)) : columns * kRuns;
    before[i] = static_cast<unsigned long long>(units) << (runs > 0 ? 16 : 40);
    before[i] += parts[i] > 0 ? 1 : 0;
  }
  unsigned long long all = 0;
  Scan(scratch).ExclusiveSum(before, before, all);
#pragma unroll
  for (int i = 0; i < kSlotsOfThread; ++i) {
    if (parts[i] == 0) continue;
    const auto at = static_cast<int>(before[i] & 0xFFFF);
    items.slot[at] = first + i;
    items.parts[at] = parts[i];
    items.first_few[at] = static_cast<int>(before[i] >> 16 & 0xFFFFFF);
    items.first_many[at] = static_cast<int>(before[i] >> 40);
  }
  if (threadIdx.x == 0) {
    items.count = static_cast<int>(all & 0xFFFF);
    items.first_few[items.count] = static_cast<int>(all >> 16 & 0xFFFFFF);
    items.first_many[items.count] = static_cast<int>(all >> 40);
  }
  __syncthreads();
}

/// Combines kRuns runs of dims of a column, which is unit `unit` of an item.
template <class C, int kRuns>
__device__ __forceinline__ void combine_few(const Launch& launch, const ColumnsItem& item,
                                            int parts, int unit, float scale, int lane) {
  constexpr int kUnits = C::kDim / 128 / kRuns;  // of a column
  PartSum<kRuns> result;
  const int dim = unit % kUnits * (kRuns * 128) + lane * 4;
  add_parts<C, kRuns>(result, launch, item, unit / kUnits, dim, 0, parts, scale);
  write_sum<C, kRuns>(result, launch, item, unit / kUnits, dim, scale);
}

/// Combines a run of dims of a column, which is unit `unit` of an item: each warp adds some parts.
template <class C>
__device__ __forceinline__ void combine_many(PartSum<1> (&sums)[kCombineWarps][32],
                                             const Launch& launch, const ColumnsItem& item,
                                             int parts, int unit, float scale) {
  constexpr int kRuns = C::kDim / 128;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int dim = unit % kRuns * 128 + lane * 4;
  PartSum<1> result;
  add_parts<C, 1>(result, launch, item, unit / kRuns, dim, warp * parts / kCombineWarps,
                  (warp + 1) * parts / kCombineWarps, scale);
  sums[warp][lane] = result;
  __syncthreads();
  if (warp == 0) {
    for (int w = 1; w < kCombineWarps; ++w) {
      const PartSum<1>& its = sums[w][lane];
      result.add(its.maximum, its.sum, its.o, scale);
    }
    write_sum<C, 1>(result, launch, item, unit / kRuns, dim, scale);
  }
  __syncthreads();
}

/// Combines the parts of all cut items, in an order that depends on their number alone. Where an
/// item has many parts, a thread block takes 128 dims of a column at a time, and each of its warps
/// adds some parts; else each warp has dims of its own. The items are listed before the latent
/// kernel has completed: the schedule, which wrote them, had completed before that began.
template <class C>
__global__ void __launch_bounds__(kCombineThreads, 2)
    combine_latents(const __grid_constant__ Launch launch) {
  __shared__ PartSum<1> sums[kCombineWarps][32];
  __shared__ CutItems items;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  float scale = 0.0F;  // of maxima, to log2
  const int blocks = static_cast<int>(gridDim.x);
  const int cut = __ldg(reinterpret_cast<const int*>(launch.at(launch.workspace.members)));
  bool has_waited = false;
  for (int base = 0; base < launch.workspace.max_slots && cut > 0; base += CutItems::kMost) {
    list_items<C>(items, launch, base);
    if (!has_waited) {
      wait_for_previous_kernel();
      let_next_kernel_begin();
      scale = maximum_scale<C>(launch);
      has_waited = true;
    }
    const int few = items.first_few[items.count];
    for (int at = warp * blocks + static_cast<int>(blockIdx.x); at < few;
         at += blocks * kCombineWarps) {
      const int i = items.find(items.first_few, at);
      const int parts = items.parts[i];
      const int unit = at - items.first_few[i];
      const ColumnsItem item = columns::load_item(launch, items.slot[i]);
      switch (runs_at_once(parts)) {
        case 4: combine_few<C, 4>(launch, item, parts, unit, scale, lane); break;
        case 2: combine_few<C, 2>(launch, item, parts, unit, scale, lane); break;
        default: combine_few<C, 1>(launch, item, parts, unit, scale, lane); break;
      }
    }
    const int many = items.first_many[items.count];
    for (int at = static_cast<int>(blockIdx.x); at < many; at += blocks) {
      const int i = items.find(items.first_many, at);
      const ColumnsItem item = columns::load_item(launch, items.slot[i]);
      combine_many<C>(sums, launch, item, items.parts[i], at - items.first_many[i], scale);
    }
    __syncthreads();
  }
  if (has_waited) return;
  wait_for_previous_kernel();
  let_next_kernel_begin();
}

}  // namespace kvarena::kernels::latent
