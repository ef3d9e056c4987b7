#pragma once

/// @file
/// The partial results of the columns kernel: a thread block writes the part of an item, and the
/// one that arrives last combines all parts in their order. Rows with a prefix are combined by a
/// kernel that follows. Included by columns.cuh.

#include "kernels/columns/columns_config.cuh"
#include "kernels/columns/columns_softmax.cuh"

namespace kvarena::kernels::columns {

/// The columns that a warp combines at once, and the sum of their parts so far. A lane has four
/// neighbouring dims of each run of 128.
template <class C, int kRows>
struct Combined {
  static constexpr int kRuns = (C::kDim + 127) / 128;
  float maximum[kRows];
  float sum[kRows];
  float o[kRows][4 * kRuns];
};

/// Returns the row of column `column` of part `part` of an item: the parts of the prefix come
/// first.
template <class C>
__device__ __forceinline__ std::int64_t row_of(const ColumnsItem& item, int part, int column) {
  int first = item.own_row;
  if constexpr (C::kHasTiles) {
    first =
        part < item.prefix_parts ? item.prefix_row : item.own_row - item.prefix_parts * C::kColumns;
  }
  return std::int64_t{first} + part * C::kColumns + column;
}

/// Returns the parts of an item of a row.
template <class C>
__device__ __forceinline__ int parts_of(const ColumnsItem& item) {
  return C::kHasTiles ? item.prefix_parts + item.own_parts : item.own_parts;
}

/// Adds the next 32 parts to the maxima and sums. Lane i gets the weights of part first_part + i.
template <class C, int kRows>
__device__ __forceinline__ void weigh_parts(Combined<C, kRows>& result, float (&weight)[kRows],
                                            const Launch& launch, const ColumnsItem& item,
                                            int first_part, int column, int columns, float scale,
                                            int lane) {
  const int part = first_part + lane;
  float2 its[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    its[r] = part < parts_of<C>(item) && column + r < columns
                 ? __ldcg(&launch.max_sum()[row_of<C>(item, part, column + r)])
                 : make_float2(-INFINITY, 0.0F);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float maximum = its[r].x;
    for (int d = 16; d > 0; d /= 2) maximum = fmaxf(maximum, __shfl_xor_sync(~0U, maximum, d));
    const float old = result.maximum[r];
    const float to = fmaxf(old, maximum);
    const float keep = old == -INFINITY ? 0.0F : exp2_fast((old - to) * scale);
    weight[r] = its[r].x == -INFINITY ? 0.0F : exp2_fast((its[r].x - to) * scale);
    float sum = weight[r] * its[r].y;
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(~0U, sum, d);
    result.sum[r] = result.sum[r] * keep + sum;
    result.maximum[r] = to;
#pragma unroll
    for (int e = 0; e < 4 * Combined<C, kRows>::kRuns; ++e) result.o[r][e] *= keep;
  }
}

/// The outputs of some parts, as loaded: kAtOnce parts of kRows columns, for a run of dims.
template <int kRows, int kAtOnce>
using Loaded = float4[kAtOnce][kRows];

/// Loads the outputs of parts `part` and the next ones, of 32 from `first_part` on.
template <class C, int kRows, int kAtOnce>
__device__ __forceinline__ void load_parts(Loaded<kRows, kAtOnce>& v, const Launch& launch,
                                           const ColumnsItem& item, int first_part, int part,
                                           int run, int column, int columns, int lane) {
  const int count = min(32, parts_of<C>(item) - first_part);
  const int dim = min(run * 128 + lane * 4, C::kDim - 4);
#pragma unroll
  for (int u = 0; u < kAtOnce; ++u) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const std::int64_t row =
          row_of<C>(item, first_part + min(part + u, count - 1), min(column + r, columns - 1));
      v[u][r] = __ldcg(reinterpret_cast<const float4*>(launch.outputs() + row * C::kDim + dim));
    }
  }
}

/// Adds the weighted outputs of parts that have been loaded.
template <class C, int kRows, int kAtOnce>
__device__ __forceinline__ void add_loaded(Combined<C, kRows>& result,
                                           const Loaded<kRows, kAtOnce>& v,
                                           const float (&weight)[kRows], int part, int count,
                                           int run) {
#pragma unroll
  for (int u = 0; u < kAtOnce; ++u) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float x =
          __shfl_sync(~0U, weight[r], (part + u) & 31) * (part + u < count ? 1.0F : 0.0F);
      result.o[r][4 * run] += x * v[u][r].x;
      result.o[r][4 * run + 1] += x * v[u][r].y;
      result.o[r][4 * run + 2] += x * v[u][r].z;
      result.o[r][4 * run + 3] += x * v[u][r].w;
    }
  }
}

/// Adds up to 32 parts. Where registers suffice, the first outputs are loaded beside the maxima and
/// sums.
template <class C, int kRows, int kAtOnce>
__device__ __forceinline__ void add_parts(Combined<C, kRows>& result, const Launch& launch,
                                          const ColumnsItem& item, int first_part, int column,
                                          int columns, float scale, int lane) {
  constexpr bool kAhead = C::kKeyDim <= 128 && kRows * kAtOnce > 4;
  const int count = min(32, parts_of<C>(item) - first_part);
  Loaded<kRows, kAtOnce> v;
  if constexpr (kAhead) {
    load_parts<C, kRows, kAtOnce>(v, launch, item, first_part, 0, 0, column, columns, lane);
  }
  float weight[kRows];
  weigh_parts(result, weight, launch, item, first_part, column, columns, scale, lane);
  for (int part = 0; part < count; part += kAtOnce) {
#pragma unroll
    for (int run = 0; run < Combined<C, kRows>::kRuns; ++run) {
      if (!kAhead || part > 0) {
        load_parts<C, kRows, kAtOnce>(v, launch, item, first_part, part, run, column, columns,
                                      lane);
      }
      add_loaded<C, kRows, kAtOnce>(result, v, weight, part, count, run);
    }
  }
}

/// Normalises and writes one combined column.
template <class C, int kRows>
__device__ __forceinline__ void write_combined(const Combined<C, kRows>& result, int r,
                                               const Launch& launch, const ColumnsItem& item,
                                               int column, float scale, int lane) {
  const ColumnsParams& p = launch.params;
  const Place place = place_of(launch, item.q_begin, item.head, item.first_column + column);
  float sum = result.sum[r];
  const float* const sink = p.sinks != nullptr ? p.sinks + place.head : nullptr;
  if (sink != nullptr) sum = with_sink<C>(sum, result.maximum[r], *sink, scale);
  const float factor = sum > 0.0F ? stored_scale<C>(launch, p.scales.value, item.head) / sum : 0.0F;
  if (p.lse != nullptr && lane == 0) {
    p.lse[place.token * p.limits.num_q_heads + place.head] =
        log_sum_exp<C>(sum, result.maximum[r], scale, sink);
  }
#pragma unroll
  for (int e = 0; e < Combined<C, kRows>::kRuns; ++e) {
    const int dim = e * 128 + lane * 4;
    if (dim >= C::kDim) continue;
    const float* const o = result.o[r] + 4 * e;
    *reinterpret_cast<uint2*>(static_cast<char*>(p.out) +
                              bytes_to<C::kDim>(place, p.out_token_stride) + dim * 2) =
        make_uint2(pack_out<C>(launch, o[0] * factor, o[1] * factor),
                   pack_out<C>(launch, o[2] * factor, o[3] * factor));
  }
}

/// Combines all parts of an item. Warp `warp` of `warps` takes kRows columns at a time and loads
/// kAtOnce parts of them at a time; none of these numbers changes the order of the sums.
template <class C, int kRows, int kAtOnce>
__device__ __forceinline__ void combine(const Launch& launch, const ColumnsItem& item, int warp,
                                        int warps, int lane) {
  const float scale = C::kHasScaledMaxima ? 1.0F : launch.constants.logit_scale;
  const int columns = item.columns;
  for (int column = warp * kRows; column < columns; column += warps * kRows) {
    Combined<C, kRows> result;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      result.maximum[r] = -INFINITY;
      result.sum[r] = 0.0F;
#pragma unroll
      for (int e = 0; e < 4 * Combined<C, kRows>::kRuns; ++e) result.o[r][e] = 0.0F;
    }
    for (int part = 0; part < parts_of<C>(item); part += 32) {
      add_parts<C, kRows, kAtOnce>(result, launch, item, part, column, columns, scale, lane);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (column + r < columns) write_combined(result, r, launch, item, column + r, scale, lane);
    }
  }
}

/// Writes a thread's column of a part: the output is not normalised.
template <class C>
__device__ __forceinline__ void write_partial(const Launch& launch, const ColumnsSegment& segment,
                                              int column, const float (&o)[C::kDim / 2], int h,
                                              float maximum, float sum, int t) {
  const std::int64_t row = std::int64_t{segment.partial} + column;
  if (t == 0) __stcg(&launch.max_sum()[row], make_float2(maximum, sum));
  float* const to = launch.outputs() + row * C::kDim + 2 * t;
#pragma unroll
  for (int i = 0; i < C::kDim / 8; ++i) {
    __stcg(reinterpret_cast<float2*>(to + i * 8),
           make_float2(o[i * 4 + 2 * h], o[i * 4 + 2 * h + 1]));
  }
}

/// Counts an arrival of this thread, and of those before it at a barrier, at an item. Returns
/// whether it is the last one; the counter is 0 again then, and this thread and those behind it at
/// a barrier can read all parts.
__device__ __forceinline__ bool arrive_at(const Launch& launch, int item, int arrivals) {
  int* const counter = launch.counters() + item;
  int before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(counter)
               : "memory");
  const bool is_last = before == arrivals - 1;
  if (is_last) *counter = 0;
  return is_last;
}

/// Counts the thread block's part as arrived, after all its consumers have written theirs. The last
/// part to arrive does what there is to do for the item.
template <class C>
__device__ __forceinline__ void arrive_part(const Launch& launch, Shared<C>& shared,
                                            const ColumnsSegment& segment, int warp, int lane) {
  constexpr bool kIsLong = C::kKeyDim > 128;
  constexpr bool kHasFew = C::kCap || C::kIsFp8;  // registers
  ColumnsItem item;
  if constexpr (!kIsLong) item = load_item(launch, segment.item);  // it may be needed soon
  sync_named<kPartBarrier>(C::kConsumers);
  if (warp == 0 && lane == 0) {
    shared.is_last = static_cast<int>(arrive_at(launch, segment.item, segment.arrivals));
  }
  sync_named<kPartBarrier>(C::kConsumers);
  if (shared.is_last != 0) {
    constexpr int kWarps = C::kConsumers / 32;
    if constexpr (kIsLong) item = load_item(launch, segment.item);
    if (parts_of<C>(item) > 4) {
      if (!kIsLong && item.columns > 2 * kWarps) {
        combine<C, 4, kHasFew ? 3 : 6>(launch, item, warp, kWarps, lane);
      } else {
        combine<C, 2, kIsLong ? 6 : kHasFew ? 8 : 14>(launch, item, warp, kWarps, lane);
      }
    } else {
      combine<C, kIsLong ? 4 : 8, 2>(launch, item, warp, kWarps, lane);
    }
  }
  sync_named<kPartBarrier>(C::kConsumers);
}

}  // namespace kvarena::kernels::columns
