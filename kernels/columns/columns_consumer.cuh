#pragma once

/// @file
/// The consumers of the columns kernel. A warpgroup multiplies 64 query columns with a slab of K,
/// turns the logits into weights, and multiplies these with V. The logits of the next slab are
/// computed before the products with V of the last one, so that the softmax runs beside them.
/// Included by columns.cuh.

#include "kernels/columns/columns_apart.cuh"
#include "kernels/columns/columns_combine.cuh"
#include "kernels/columns/columns_config.cuh"
#include "kernels/columns/columns_query.cuh"
#include "kernels/columns/columns_softmax.cuh"
#include "kernels/common/grid_dependency.cuh"

#include <type_traits>

namespace kvarena::kernels::columns {

/// A consumer thread: its place, and the slabs of K and of V that it has used.
template <class C>
struct Consumer {
  using T = typename C::T;
  const Launch& launch;
  Shared<C>& shared;
  const int warp;  ///< among the consumers
  const int lane;
  const int g = lane / 4;
  const int t = lane % 4;
  int keys = 0;
  int values = 0;
  /// Of the products of the two columns; with a soft cap, its slopes.
  float scales[2] = {base_scale(), base_scale()};

  __device__ __forceinline__ float base_scale() const {
    return C::kCap ? launch.constants.cap_slope : launch.constants.logit_scale;
  }
  /// Returns what makes the logits of a column those of base 2: the soft cap does it before.
  __device__ __forceinline__ float scale_of(int h) const { return C::kCap ? 1.0F : scales[h]; }
  /// Rounds loaded queries to operands, and finds the scales of their columns.
  __device__ __forceinline__ void narrow_query(Query<C>& query, int head) {
    if constexpr (C::kIsFp8) {
      const float base = base_scale() * stored_scale<C>(launch, launch.params.scales.key, head);
      float power[2];
      query.narrow(launch, power);
      scales[0] = base * power[0];
      scales[1] = base * power[1];
    }
  }
  /// The column of the thread block that this thread has as h = 0; h = 1 is 8 further.
  __device__ __forceinline__ int column() const { return warp * 16 + g; }
  /// One thread a warpgroup tells the producer that a stage may be overwritten.
  __device__ __forceinline__ void release(Barrier* barrier) const {
    if (threadIdx.x % 128 == 0) arrive(barrier);
  }

  /// Does the same for a stage of V. With `each` every thread tells it, after it has read V itself.
  __device__ __forceinline__ void release_value(int stage, bool each = false) const {
    if (each) {
      arrive(&shared.value_empty[stage]);
    } else if (threadIdx.x % 128 == 0) {
      arrive_many(&shared.value_empty[stage], 128);
    }
  }

  /// Waits for the threads of this warpgroup.
  __device__ __forceinline__ void sync_warpgroup() const {
    if (C::kWarpgroups == 1 || warp / 4 == 0) {
      sync_named<kQueryBarrier>(128);
    } else {
      sync_named<kQueryBarrier + 1>(128);
    }
  }

  __device__ __forceinline__ void load_query(Query<C>& query, const ColumnsSegment& segment) const {
    query.load(launch, segment, segment.column_group * C::kColumns + column(), t);
  }
  __device__ __forceinline__ void stage_query(const ColumnsSegment& segment);
  __device__ __forceinline__ void multiply_key(float (&s)[C::kTokens / 2], const Query<C>& query,
                                               int stage) const;
  __device__ __forceinline__ void multiply_value(float (&o)[C::kDim / 2],
                                                 const std::uint32_t (&weights)[C::kTiles][4],
                                                 int stage) const;
  __device__ __forceinline__ void round_weights(std::uint32_t (&weights)[C::kTiles][4],
                                                const float (&s)[C::kTokens / 2]) const;
  __device__ __forceinline__ Sight sight_of(const ColumnsSegment& segment) const;
  __device__ __forceinline__ bool is_partly_seen(const Sight& sight, int slab_token) const;
  __device__ __forceinline__ void add_value(float (&o)[C::kDim / 2],
                                            const std::uint32_t (&weights)[C::kTiles][4],
                                            const Sight& sight, int slab_token);
  __device__ __forceinline__ void find_masked(const ColumnsSegment& segment, int& bottom,
                                              int& top) const;
  template <bool kMasked>
  __device__ __forceinline__ void step(float (&o)[C::kDim / 2], float (&s)[C::kTokens / 2],
                                       std::uint32_t (&weights)[C::kTiles][4], Softmax& state,
                                       const Query<C>& query, const Sight& sight, int slab_token);
  __device__ __forceinline__ void finish(const ColumnsSegment& segment,
                                         const float (&o)[C::kDim / 2], Softmax& state);
  __device__ __forceinline__ bool has_columns(const ColumnsSegment& segment) const;
  __device__ __forceinline__ void skip_slabs(int slabs);
  template <class LoadNext>
  __device__ __forceinline__ void multiply_slabs(float (&o)[C::kDim / 2], Softmax& state,
                                                 Query<C>& query, const ColumnsSegment& segment,
                                                 LoadNext&& load_next);
  __device__ __forceinline__ void run(int words);
};

/// Loads the queries of a segment and stores them as an operand in shared memory.
template <class C>
__device__ __forceinline__ void Consumer<C>::stage_query(const ColumnsSegment& segment) {
  Query<C> query;
  load_query(query, segment);
  narrow_query(query, segment.head);
  sync_warpgroup();  // the products with the queries before have ended in all warps
  query.store_operand(shared.query + warp * 2 * C::kKeyGroupBytes, g, t);
  fence_async_proxy();
  sync_warpgroup();
}

/// Issues s = Q K^T of a slab.
template <class C>
__device__ __forceinline__ void Consumer<C>::multiply_key(float (&s)[C::kTokens / 2],
                                                          const Query<C>& query, int stage) const {
  const std::uint32_t key =
      operand_base(shared_address(shared.key[0]), 16) + stage * (C::kKeySlabBytes >> 4);
#pragma unroll
  for (int i = 0; i < C::kKeyDim / 16; ++i) {
    const int step = i * 32 / C::kPiece * C::kAtomBytes + i * 32 % C::kPiece;
    const std::uint64_t b = operand_at<C::kKeyGroupBytes, C::kSwizzle>(key, step);
    if constexpr (C::kSharedQuery) {
      // The compiler does not know that the index is the same in all lanes, and would keep each
      // step's descriptor in registers.
      const int warpgroup = C::kWarpgroups == 1 ? 0 : __reduce_max_sync(~0U, warp / 4);
      const std::uint32_t a =
          operand_base(shared_address(shared.query), 16) + warpgroup * (64 * C::kKeyDim * 2 >> 4);
      Wgmma<T, C::kTokens>::ss(s, operand_at<C::kKeyGroupBytes, C::kSwizzle>(a, step), b, i > 0);
    } else {
      std::uint32_t a[4];
      query.fragment(a, i);
      Wgmma<T, C::kTokens>::rs_k(s, a, b, i > 0);
    }
  }
}

/// Issues o += P V of a slab.
template <class C>
__device__ __forceinline__ void Consumer<C>::multiply_value(
    float (&o)[C::kDim / 2], const std::uint32_t (&weights)[C::kTiles][4], int stage) const {
  const std::uint32_t value =
      operand_base(shared_address(shared.value[0]), C::kAtomBytes) + stage * (C::kSlabBytes >> 4);
  constexpr int kDims = C::kDim / C::kValueRuns;
#pragma unroll
  for (int i = 0; i < C::kTiles; ++i) {
#pragma unroll
    for (int run = 0; run < C::kValueRuns; ++run) {
      const int step = i * C::kTileBytes + run * (kDims * 2 / C::kPiece * C::kAtomBytes);
      Wgmma<T, kDims>::rs_mn(reinterpret_cast<float(&)[kDims / 2]>(o[run * (kDims / 2)]),
                             weights[i], operand_at<C::kGroupBytes, C::kSwizzle>(value, step));
    }
  }
}

/// Rounds weights to T. The accumulators of 16 tokens are a fragment of 16 columns of P.
template <class C>
__device__ __forceinline__ void Consumer<C>::round_weights(std::uint32_t (&weights)[C::kTiles][4],
                                                           const float (&s)[C::kTokens / 2]) const {
#pragma unroll
  for (int i = 0; i < C::kTiles; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      weights[i][j] = pack<T>(s[i * 8 + 2 * j], s[i * 8 + 2 * j + 1]);
    }
  }
}

/// Returns what this thread's columns see. A window keeps the last tokens of a path, and new tokens
/// before it are taken from the path.
template <class C>
__device__ __forceinline__ Sight Consumer<C>::sight_of(const ColumnsSegment& segment) const {
  const ColumnsParams& p = launch.params;
  const int window = p.window_tokens;
  Sight sight;
  sight.first_new = segment.seq_len - segment.q_len;
  sight.end = segment.seq_len;
  sight.has_window = window > 0;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int at = segment.column_group * C::kColumns + column() + 8 * h;
    const int token = launch.token_of(at);
    std::uint64_t path = 0;
    if (token < segment.q_len) {
      path = ~std::uint64_t{0} >> (63 - token);
      if (p.tree_mask != nullptr) {
        path = p.tree_mask[std::int64_t{segment.q_begin} + token] | std::uint64_t{1} << token;
      }
      path &= ~std::uint64_t{0} >> (64 - segment.q_len);
      while (window > 0 && __popcll(path) > window) path &= path - 1;
    }
    sight.path[h] = path;
    sight.low[h] = window > 0 ? sight.first_new + __popcll(path) - window : 0;
  }
  return sight;
}

/// Returns whether a slab has tokens that some columns of the row see and others may not.
template <class C>
__device__ __forceinline__ bool Consumer<C>::is_partly_seen(const Sight& sight,
                                                            int slab_token) const {
  const int last_low = sight.has_window ? sight.end - launch.params.window_tokens : 0;
  return sight.end - sight.first_new > 1 &&
         (slab_token + C::kTokens > sight.first_new || slab_token < last_low);
}

/// Adds the weighted values of the next slab: multiplied, or token by token if some columns do not
/// see all of its tokens and not all are finite. No product is in flight before or after.
template <class C>
__device__ __forceinline__ void Consumer<C>::add_value(float (&o)[C::kDim / 2],
                                                       const std::uint32_t (&weights)[C::kTiles][4],
                                                       const Sight& sight, int slab_token) {
  const int stage = values % C::kStages;
  wait(&shared.value_full[stage], (values / C::kStages) & 1);
  bool is_apart = false;
  const bool has_read = is_partly_seen(sight, slab_token);
  if (has_read) {
    const bool is_bad =
        !is_finite_value<C>(shared.value[stage], static_cast<int>(threadIdx.x) % 128);
    is_apart = any_of_warpgroup(is_bad, C::kWarpgroups == 1 ? 0 : warp / 4);
  }
  if (is_apart) {
    weigh_apart<C>(o, weights, shared.value[stage], lane);
    sync_warpgroup();
  } else {
    fence_registers(o);
    fence_products();
    multiply_value(o, weights, stage);
    commit_products();
    wait_products<0>();
    fence_registers(o);
  }
  release_value(stage, has_read);
  ++values;
}

/// Finds the steps of a segment that need masks: the first `bottom` ones, because of the window,
/// and those from `top` on, because of the row's new tokens. A step multiplies V of the slab
/// before, so one more than the slabs that a window begins in has masks.
template <class C>
__device__ __forceinline__ void Consumer<C>::find_masked(const ColumnsSegment& segment, int& bottom,
                                                         int& top) const {
  const int first_new = segment.seq_len - segment.q_len - segment.first_token;
  const int window = launch.params.window_tokens;
  const int first_low = segment.seq_len - window - segment.first_token;  // of the last query token
  bottom = window > 0 ? min(segment.slabs, (first_low + C::kTokens - 1) / C::kTokens + 1) : 0;
  top = max(1, min(first_new / C::kTokens, segment.slabs));
}

/// Multiplies with K of one slab and V of the slab before. In a step with masks, the products
/// follow each other.
template <class C>
template <bool kMasked>
__device__ __forceinline__ void Consumer<C>::step(float (&o)[C::kDim / 2],
                                                  float (&s)[C::kTokens / 2],
                                                  std::uint32_t (&weights)[C::kTiles][4],
                                                  Softmax& state, const Query<C>& query,
                                                  const Sight& sight, int slab_token) {
  if constexpr (kMasked) add_value(o, weights, sight, slab_token - C::kTokens);
  const int key = keys % C::kStages;
  const int value = values % C::kStages;
  wait(&shared.key_full[key], (keys / C::kStages) & 1);
  fence_products();
  fence_registers(s);
  multiply_key(s, query, key);
  commit_products();
  if constexpr (!kMasked) {
    wait(&shared.value_full[value], (values / C::kStages) & 1);
    fence_registers(o);
    fence_products();
    multiply_value(o, weights, value);
    commit_products();
  }
  ++keys;
  wait_products<kMasked ? 0 : 1>();
  fence_registers(s);
  release(&shared.key_empty[key]);
  cap_logits<C>(s, launch.constants, scales);
  float keep[2];
  continue_softmax<C, kMasked>(s, state, keep, {scale_of(0), scale_of(1)}, sight, slab_token, t);
  if constexpr (!kMasked) {
    fence_registers(s);
    wait_products<0>();
    fence_registers(o);
    release_value(value);
    ++values;
  }
  round_weights(weights, s);
  if (__any_sync(~0U, keep[0] != 1.0F || keep[1] != 1.0F)) {
#pragma unroll
    for (int i = 0; i < C::kDim / 2; ++i) o[i] *= keep[(i >> 1) & 1];
  }
}

/// Writes the outputs of a whole item, or this thread's columns of a part.
template <class C>
__device__ __forceinline__ void Consumer<C>::finish(const ColumnsSegment& segment,
                                                    const float (&o)[C::kDim / 2], Softmax& state) {
  const bool is_whole = segment.partial < 0;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    state.sum[h] += __shfl_xor_sync(~0U, state.sum[h], 1);
    state.sum[h] += __shfl_xor_sync(~0U, state.sum[h], 2);
    const int in_block = column() + 8 * h;
    const int at = segment.column_group * C::kColumns + in_block;
    const bool is_in = at < segment.columns;
    if (is_whole) {
      write_column<C>(launch, place_of(launch, segment.q_begin, segment.head, at), is_in, o, h,
                      state.maximum[h], state.sum[h], scale_of(h), t);
    } else if (is_in) {
      float maximum = state.maximum[h];
      if (C::kHasScaledMaxima && maximum != -INFINITY) maximum *= scale_of(h);
      write_partial<C>(launch, segment, in_block, o, h, maximum, state.sum[h], t);
    }
  }
}

/// Returns whether the segment has columns for this warpgroup. The second one of a thread block
/// often has none where rows have few columns; its products would take the time of the first one's.
template <class C>
__device__ __forceinline__ bool Consumer<C>::has_columns(const ColumnsSegment& segment) const {
  if constexpr (C::kWarpgroups == 1) return true;
  return warp / 4 * 64 < segment.columns - segment.column_group * C::kColumns;
}

/// Lets slabs pass in the second warpgroup. Its warps stay together, as products keep them: one
/// that lagged behind could miss a phase of a barrier.
template <class C>
__device__ __forceinline__ void Consumer<C>::skip_slabs(int slabs) {
#pragma unroll 1
  for (int i = 0; i < slabs; ++i, ++keys, ++values) {
    const int key = keys % C::kStages;
    const int value = values % C::kStages;
    wait(&shared.key_full[key], (keys / C::kStages) & 1);
    wait(&shared.value_full[value], (values / C::kStages) & 1);
    sync_named<kQueryBarrier + 1>(128);
    release(&shared.key_empty[key]);
    release_value(value);
  }
}

/// Multiplies the slabs of a segment. Calls load_next() when the queries have been used; the last
/// product with V follows.
template <class C>
template <class LoadNext>
__device__ __forceinline__ void Consumer<C>::multiply_slabs(float (&o)[C::kDim / 2], Softmax& state,
                                                            Query<C>& query,
                                                            const ColumnsSegment& segment,
                                                            LoadNext&& load_next) {
  float s[C::kTokens / 2];
  std::uint32_t weights[C::kTiles][4];
  const Sight sight = sight_of(segment);
  int bottom;
  int top;
  find_masked(segment, bottom, top);
#pragma unroll
  for (int i = 0; i < C::kDim / 2; ++i) o[i] = 0.0F;
  if constexpr (C::kSharedQuery) {
    stage_query(segment);
  } else {
    narrow_query(query, segment.head);
    query.arrange(t);
  }
  const int first = keys % C::kStages;
  wait(&shared.key_full[first], (keys / C::kStages) & 1);
  ++keys;
  fence_products();
  fence_registers(s);
  multiply_key(s, query, first);
  commit_products();
  wait_products<0>();
  fence_registers(s);
  release(&shared.key_empty[first]);
  cap_logits<C>(s, launch.constants, scales);
  begin_softmax<C>(s, state, {scale_of(0), scale_of(1)}, sight, segment.first_token, t);
  round_weights(weights, s);
  int i = 1;
  const auto step_at = [&](auto masked) {
    step<decltype(masked)::value>(o, s, weights, state, query, sight,
                                  segment.first_token + i * C::kTokens);
    ++i;
  };
#pragma unroll 1
  while (true) {
    if (i >= bottom) {
#pragma unroll 1
      while (i < top) step_at(std::false_type{});
    }
    if (i >= segment.slabs) break;
    step_at(std::true_type{});
  }
  load_next();
  add_value(o, weights, sight, segment.first_token + (segment.slabs - 1) * C::kTokens);
}

/// Computes all segments of the thread block. The queries of the next segment are on their way
/// during the last product of the current one, or all of it. Segments are loaded two ahead.
template <class C>
__device__ __forceinline__ void Consumer<C>::run(int words) {
  float o[C::kDim / 2];
  Query<C> query;
  wait_for_set_up<C>();
  wait_for_previous_kernel();
  int next = 0;
  {
    const ColumnsSegment segment = segment_of(words);
    if (segment.slabs == 0) return;
    if (segment.next >= 0) next = load_words(launch, segment.next, lane);
    if constexpr (!C::kSharedQuery) load_query(query, segment);
  }
  while (true) {
    const ColumnsSegment segment = segment_of(words);
    const bool has_next = segment.next >= 0;
    int after_next = 0;
    Query<C> ahead;
    if constexpr (C::kQueryAhead) {
      if (has_next) {
        const ColumnsSegment its = segment_of(next);
        if (its.next >= 0) after_next = load_words(launch, its.next, lane);
        load_query(ahead, its);
      }
    }
    const auto load_next = [&] {
      if constexpr (!C::kQueryAhead && !C::kSharedQuery) {
        if (has_next) load_query(query, segment_of(next));
      }
    };
    if (has_columns(segment)) {
      Softmax state;
      multiply_slabs(o, state, query, segment, load_next);
      finish(segment_of(words), o, state);
    } else {
      skip_slabs(segment.slabs);
      load_next();
    }
    const ColumnsSegment done = segment_of(words);
    if (done.arrivals > 0) arrive_part(launch, shared, done, warp, lane);
    if (!has_next) return;
    words = next;
    if constexpr (C::kQueryAhead) {
      query = ahead;
      next = after_next;
    } else {
      const int index = segment_of(words).next;
      next = index >= 0 ? load_words(launch, index, lane) : 0;
    }
  }
}

}  // namespace kvarena::kernels::columns
