#pragma once

/// @file
/// The last steps of the decode kernel. It combines the warps of a thread block into one partial
/// result, and the partial results of an item into its output, always in the order of units.
/// Included by decode.cuh.

namespace kvarena::kernels::decode {

/// Items of this many parts or more are combined in two rounds: first the parts of each group of
/// kGroupParts, then the groups. The thread block that arrives last in a group, or in the item,
/// combines it. So nobody waits for another part, and the order of the sums is always the same. In
/// a cluster the thread blocks of the same index do so, each with its share of the elements.
inline constexpr int kGroupedParts = 24;
inline constexpr int kGroupParts = 12;

__device__ __forceinline__ void add_scaled(float4& sum, float weight, const float4& v) {
  sum.x += weight * v.x;
  sum.y += weight * v.y;
  sum.z += weight * v.z;
  sum.w += weight * v.w;
}
__device__ __forceinline__ void scale_by(float4& v, float factor) {
  v.x *= factor;
  v.y *= factor;
  v.z *= factor;
  v.w *= factor;
}

/// Normalises and stores an element of the output.
template <class T, class S, int D, int W, class Mode>
__device__ __forceinline__ void Kernel<T, S, D, W, Mode>::write_output(const WorkItem& item,
                                                                       int column, int dim,
                                                                       const Merged& result) const {
  const Place place = place_of(item, item.chunk * kChunkColumns + column);
  // When a sink is far above every logit, the sum is infinite and the output 0, which is correct.
  const float* const sink = p.sinks == nullptr ? nullptr : p.sinks + place.head;
  float sum = result.sum;
  const bool is_empty = sum == 0.0F;  // no token is seen; a NaN stays one
  constexpr float kBits = static_cast<float>(kWeightBits<Math>);
  if (sink != nullptr && !is_empty) sum += exp2f(*sink * kLog2e - result.maximum + kBits);
  float4 o = result.o;
  scale_by(o, is_empty ? 0.0F : head_scale(p.scales.value, item) / sum);
  const uint2 packed = {pack_pair<T>(o.x, o.y), pack_pair<T>(o.z, o.w)};
  *reinterpret_cast<uint2*>(static_cast<char*>(p.out) + bytes_to(place, p.out_token_stride) +
                            dim * 2) = packed;
  if (p.lse != nullptr && dim == 0) {
    const float lse = is_empty ? -INFINITY : (result.maximum + log2f(sum) - kBits) / kLog2e;
    p.lse[std::int64_t{place.token} * p.limits.num_q_heads + place.head] =
        lse == INFINITY ? *sink : lse;
  }
}

/// Stores an element of a partial result. With dim 0, or if it is the first element of its thread
/// block, what belongs to its column too: two thread blocks of a cluster may store the same.
template <class T, class S, int D, int W, class Mode>
__device__ __forceinline__ void Kernel<T, S, D, W, Mode>::store_partial(
    std::int64_t slot, bool of_group, int column, int dim, bool is_first,
    const Merged& result) const {
  __stcg(reinterpret_cast<float4*>(outputs(slot) + column * D + dim), result.o);
  if (dim == 0 || (kCluster > 1 && is_first)) {
    __stcg(max_sum(slot, of_group) + column, make_float2(result.maximum, result.sum));
  }
}

/// Adds up the results of the warps, which are staged in shared memory.
template <class T, class S, int D, int W, class Mode>
__device__ __forceinline__ auto Kernel<T, S, D, W, Mode>::merge_warps(int column, int dim) const
    -> Merged {
  Merged result{-INFINITY, 0.0F, make_float4(0.0F, 0.0F, 0.0F, 0.0F)};
#pragma unroll
  for (int i = 0; i < W; ++i) result.maximum = fmaxf(result.maximum, shared.max_sum[i][column][0]);
#pragma unroll
  for (int i = 0; i < W; ++i) {
    const float its = shared.max_sum[i][column][0];
    const float weight = its == -INFINITY ? 0.0F : exp2_fast(its - result.maximum);
    result.sum += weight * shared.max_sum[i][column][1];
    add_scaled(result.o, weight, *reinterpret_cast<const float4*>(&shared.warps[i].o[column][dim]));
  }
  return result;
}

/// Adds up the results of the warps, and stores the output or a partial result.
template <class T, class S, int D, int W, class Mode>
__device__ __forceinline__ void Kernel<T, S, D, W, Mode>::merge_block(const WorkItem& item) const {
  const int columns = min(kChunkColumns, num_columns(item) - item.chunk * kChunkColumns);
  const bool whole = item.part.num_parts == 1;
  const std::int64_t at = whole ? 0 : slot(item, item.part.part);
  for (int e = thread; e < columns * kElements; e += W * 32) {
    const int column = e / kElements;
    const int dim = e % kElements * 4;
    const Merged result = merge_warps(column, dim);
    if (whole) {
      write_output(item, column, dim, result);
    } else {
      store_partial(at, false, column, dim, false, result);
    }
  }
}

/// Adds up the results of the warps, and stages the sum for the other thread blocks of the cluster.
template <class T, class S, int D, int W, class Mode>
__device__ __forceinline__ void Kernel<T, S, D, W, Mode>::stage_block(const WorkItem& item) const {
  const int columns = min(kChunkColumns, num_columns(item) - item.chunk * kChunkColumns);
  for (int e = thread; e < columns * kElements; e += W * 32) {
    const int column = e / kElements;
    const int dim = e % kElements * 4;
    const Merged result = merge_warps(column, dim);
    float* const staged = shared.warps[0].o[column];
    *reinterpret_cast<float4*>(staged + dim) = result.o;
    if (dim == 0) *reinterpret_cast<float2*>(staged + D) = make_float2(result.maximum, result.sum);
  }
}

/// Adds up this thread block's share of the results of the cluster, which are staged, and stores
/// the output or a partial result.
template <class T, class S, int D, int W, class Mode>
__device__ __forceinline__ void Kernel<T, S, D, W, Mode>::merge_cluster(
    const WorkItem& item) const {
  const Share share = share_of(item);
  const bool whole = item.part.num_parts == 1;
  const std::int64_t at = whole ? 0 : slot(item, item.part.part);
  for (int e = share.begin + thread; e < share.end; e += W * 32) {
    const int column = e / kElements;
    const int dim = e % kElements * 4;
    const float* const staged = shared.warps[0].o[column];
    float2 its[kCluster];
    float4 o[kCluster];
#pragma unroll
    for (int i = 0; i < kCluster; ++i) {
      const std::uint32_t from = address_in_cluster(staged, i);
      its[i] = load_float2_in_cluster(from + D * 4);
      o[i] = load_float4_in_cluster(from + dim * 4);
    }
    Merged result{-INFINITY, 0.0F, make_float4(0.0F, 0.0F, 0.0F, 0.0F)};
#pragma unroll
    for (const float2& v : its) result.maximum = fmaxf(result.maximum, v.x);
#pragma unroll
    for (int i = 0; i < kCluster; ++i) {
      const float weight = its[i].x == -INFINITY ? 0.0F : exp2_fast(its[i].x - result.maximum);
      result.sum += weight * its[i].y;
      add_scaled(result.o, weight, o[i]);
    }
    if (whole) {
      write_output(item, column, dim, result);
    } else {
      store_partial(at, false, column, dim, e == share.begin, result);
    }
  }
}

/// Combines the partial results `from` of an item. Stores the output, or with `is_group` the result
/// of the group that begins at `from.first`. An element is four dims of a column. With many
/// results, several lanes share an element. The order depends on the shape, their number and the
/// columns.
template <class T, class S, int D, int W, class Mode>
template <int kAtOnce>
__device__ __forceinline__ void Kernel<T, S, D, W, Mode>::combine_by(const WorkItem& item,
                                                                     const Partials& from,
                                                                     bool is_group) const {
  const Share share = share_of(item);
  const int end = share.end;
  int lanes = 1;
  while (lanes < 32 && lanes * kAtOnce < from.count) lanes *= 2;
  const int stride = W * 32 / lanes;
  const int mine = thread % lanes;
  for (int base = share.begin; base < end; base += stride) {
    const int wanted = base + thread / lanes;
    const int e = min(wanted, end - 1);
    const int column = e / kElements;
    const int dim = e % kElements * 4;
    float maximum = -INFINITY;
    float sum = 0.0F;
    float4 o = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
    for (int i0 = mine; i0 < from.count; i0 += lanes * kAtOnce) {
      float2 ms[kAtOnce];
      float4 v[kAtOnce];
      float highest = maximum;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int index = i0 + i * lanes;
        const std::int64_t at = slot(item, from.first + from.step * min(index, from.count - 1));
        ms[i] = __ldcg(max_sum(at, from.of_groups) + column);
        v[i] = __ldcg(reinterpret_cast<const float4*>(outputs(at) + column * D + dim));
        if (index >= from.count) ms[i] = make_float2(-INFINITY, 0.0F);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) highest = fmaxf(highest, ms[i].x);
      const float zero = highest == -INFINITY ? 0.0F : highest;
      const float keep = exp2_fast(maximum - zero);
      maximum = highest;
      sum *= keep;
      scale_by(o, keep);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const float weight = exp2_fast(ms[i].x - zero);
        sum += weight * ms[i].y;
        if (weight > 0.0F) add_scaled(o, weight, v[i]);
      }
    }
    float highest = maximum;
    for (int offset = lanes / 2; offset > 0; offset /= 2) {
      highest = fmaxf(highest, __shfl_xor_sync(~0U, highest, offset));
    }
    const float keep = maximum == -INFINITY ? 0.0F : exp2_fast(maximum - highest);
    sum *= keep;
    scale_by(o, keep);
    for (int offset = lanes / 2; offset > 0; offset /= 2) {
      sum += __shfl_xor_sync(~0U, sum, offset);
      o.x += __shfl_xor_sync(~0U, o.x, offset);
      o.y += __shfl_xor_sync(~0U, o.y, offset);
      o.z += __shfl_xor_sync(~0U, o.z, offset);
      o.w += __shfl_xor_sync(~0U, o.w, offset);
    }
    if (mine != 0 || wanted >= end) continue;
    if (!is_group) {
      write_output(item, column, dim, {highest, sum, o});
    } else {
      store_partial(slot(item, from.first), is_group, column, dim, e == share.begin,
                    {highest, sum, o});
    }
  }
}

/// Combines the partial results `from` of an item. With head_dim 128 and one thread block a
/// multiprocessor, registers suffice to load all parts of a group at once, where there are no
/// threads to share an element. In a cluster there are many.
template <class T, class S, int D, int W, class Mode>
__device__ __forceinline__ void Kernel<T, S, D, W, Mode>::combine(const WorkItem& item,
                                                                  const Partials& from,
                                                                  bool is_group) const {
  if constexpr (kCluster > 1) return combine_by<2>(item, from, is_group);
  if constexpr (D == 128 && W == 8) {
    if (from.count > 8 && share_of(item).end > W * 16) return combine_by<16>(item, from, is_group);
  }
  combine_by<8>(item, from, is_group);
}

/// Counts an arrival. Returns, to all threads, whether it is the last of `expected`; the counter is
/// 0 again then. What this thread block has stored is visible to the block that is last.
template <class T, class S, int D, int W, class Mode>
__device__ __forceinline__ bool Kernel<T, S, D, W, Mode>::is_last_of(int* arrived,
                                                                     int expected) const {
  __syncthreads();
  if (threadIdx.x == 0) {
    int before;
    // One operation that releases and acquires costs half of one between two fences.
    asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;"
                 : "=r"(before)
                 : "l"(arrived)
                 : "memory");
    shared.is_last = before == expected - 1;
    if (shared.is_last) *arrived = 0;
  }
  __syncthreads();
  return shared.is_last;
}

/// Counts this part as arrived, and combines what is complete then.
template <class T, class S, int D, int W, class Mode>
__device__ __forceinline__ void Kernel<T, S, D, W, Mode>::arrive(const WorkItem& item) const {
  const int parts = item.part.num_parts;
  int* const arrived = counters(slot(item, 0));
  if (parts < kGroupedParts) {
    if (is_last_of(arrived, parts)) combine(item, {0, 1, parts, false}, false);
    return;
  }
  const int first = item.part.part / kGroupParts * kGroupParts;
  const int count = min(kGroupParts, parts - first);
  if (!is_last_of(counters(slot(item, first)), count)) return;
  combine(item, {first, 1, count, false}, true);
  const int groups = (parts + kGroupParts - 1) / kGroupParts;
  if (is_last_of(arrived + 1, groups)) combine(item, {0, kGroupParts, groups, true}, false);
}

/// Stores this warp's result where merge_warps reads it.
template <class T, class S, int D, int W, class Mode>
__device__ __forceinline__ void Kernel<T, S, D, W, Mode>::stage(const Accumulator& acc) const {
  __syncwarp();  // all lanes have finished reading q from the same memory
#pragma unroll
  for (int n = 0; n < kOperands; ++n) {
    const int column = n * kColumns + 2 * t;
    if (g == 0) {
      shared.max_sum[warp][column][0] = acc.maximum[n][0];
      shared.max_sum[warp][column][1] = acc.sum[n][0];
      shared.max_sum[warp][column + 1][0] = acc.maximum[n][1];
      shared.max_sum[warp][column + 1][1] = acc.sum[n][1];
    }
#pragma unroll
    for (int i = 0; i < Tile::kSteps; ++i) {
      const int dim = Tile::dim_of(i, g);
      const float(&o)[4] = acc.o[n][i];
      *reinterpret_cast<float2*>(&shared.warps[warp].o[column][dim]) = make_float2(o[0], o[2]);
      *reinterpret_cast<float2*>(&shared.warps[warp].o[column + 1][dim]) = make_float2(o[1], o[3]);
    }
  }
}

/// Returns this thread's index, opaque to the compiler as well.
__device__ __forceinline__ int fresh_thread() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

/// Merges the results of a thread block's warps, and in a cluster those of its thread blocks, and
/// combines what is complete then. `next` is the index of the next item, which all thread blocks of
/// a cluster get from the first one.
template <class T, class S, int D, int W, class Mode>
__device__ __forceinline__ void Kernel<T, S, D, W, Mode>::finish(WorkItem (&items)[2], int turn,
                                                                 bool more, int& next) const {
  const WorkItem& item = items[turn];
  if constexpr (kCluster == 1) {
    if (more && thread == 0) fetch_item(items[turn ^ 1], next);
    merge_block(item);
    if (item.part.num_parts > 1) arrive(item);
  } else {
    if (more && thread == 0) shared.next = next;
    stage_block(item);
    sync_cluster();
    if (more && thread == 0) {
      next = load_int_in_cluster(address_in_cluster(&shared.next, 0));
      fetch_item(items[turn ^ 1], next);
    }
    merge_cluster(item);
    arrive_at_cluster();  // the others' shared memory has been read
    if (item.part.num_parts > 1) arrive(item);
    wait_for_cluster();
  }
}

/// The dynamic shared memory of a launch of W warps, in bytes: not 0 where a thread block needs
/// more than the 48 KiB of static shared memory that every GPU allows.
template <int D, int W, int kOperands>
inline constexpr std::size_t kDynamicBytes = sizeof(Shared<D, W, kOperands>) > 48 * 1024
                                                 ? sizeof(Shared<D, W, kOperands>)
                                                 : 0;

template <int D, int W, int kOperands>
__device__ __forceinline__ Shared<D, W, kOperands>& shared_memory() {
  using Memory = Shared<D, W, kOperands>;
  if constexpr (kDynamicBytes < D, W, kOperands >> 0) {
    extern __shared__ __align__(alignof(Memory)) char dynamic_memory[];
    return *reinterpret_cast<Memory*>(dynamic_memory);
  } else {
    __shared__ Memory memory;
    return memory;
  }
}

/// Runs a thread block: it takes work items until there are none, together with its cluster. The
/// first item is the own index of the block, or of the cluster. It takes each later item from a
/// counter while it works on the item before.
template <class T, class S, int D, int W, int PerSm, class Mode>
__global__ void __launch_bounds__(W * 32, PerSm)
    decode_kernel(__grid_constant__ const DecodeParams p, __grid_constant__ const DecodeWorkspace w,
                  DecodeConstants constants) {
  using Kernel = decode::Kernel<T, S, D, W, Mode>;
  auto& shared = shared_memory<D, W, Mode::kOperands>();
  const int first = static_cast<int>(blockIdx.x) / Mode::kCluster;
  int index = first;
  // The item is read next to the header, not after it. The array is long enough for any index, but
  // the content may be old.
  WorkItem item = Kernel{p, w, constants, shared, fresh_thread()}.item_at(index);
  for (int turn = 0;; turn ^= 1) {
    const Kernel kernel{p, w, constants, shared, fresh_thread()};
    kernel.empty_padding(item);
    const int total = kernel.header()->num_parts * kernel.heads;
    const bool works = index < total;
    const bool more = total > kernel.num_turns();
    const bool late = kernel.reads_new_tokens(item);
    typename Kernel::Tile tiles[Kernel::kTiles];
    int next_blocks[Kernel::kTiles];
    if (works && !late) {
      kernel.load_first(tiles, next_blocks, item);
      if (index < kernel.num_turns()) kernel.prefetch_second(next_blocks, item);
    }
    wait_for_previous_kernel();
    let_next_kernel_begin();
    if (!works) {
      if (more) kernel.leave();
      return;
    }
    if (late) kernel.load_first(tiles, next_blocks, item);
    if (index == first && kernel.thread == 0) shared.items[0] = item;
    typename Kernel::Accumulator result;
    result.clear();
    int next = 0;
    kernel.stream(result, tiles, next_blocks, item, more && kernel.rank() == 0, next);
    kernel.stage(result);
    __syncthreads();
    kernel.finish(shared.items, turn, more, next);
    if (!more) return;
    if (kernel.thread == 0) {
      shared.next = next;
      asm volatile("cp.async.wait_all;" ::: "memory");
    }
    __syncthreads();
    index = shared.next;
    item = shared.items[turn ^ 1];
  }
}

}  // namespace kvarena::kernels::decode
