// The schedule of a step, made on the device by one thread block. It decides the length of parts,
// and the row and place of each part. It reads only the lengths of all rows.

#include "kernels/common/launch_checks.h"
#include "kernels/common/load_kernel.h"
#include "kernels/decode/decode.h"
#include "kernels/decode/decode_workspace.h"

#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>

namespace kvarena::kernels {
namespace {

constexpr int kSizeClasses = 8;
constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kSkipped = -1;  ///< the number of units of a skipped row

/// Units [first, first + count) of a row.
struct Units {
  int first;
  int count;
};

/// Returns the table row of a row, -1 when the row is skipped.
__device__ int table_row(const DecodeScheduleParams& p, int row) {
  return p.row_slots == nullptr ? row : p.row_slots[row];
}

/// Returns the first query token of a row in q and out.
__device__ int first_query(const DecodeScheduleParams& p, int row) {
  return p.q_offsets == nullptr ? row * p.limits.q_len : static_cast<int>(p.q_offsets[row]);
}

/// Returns the units of a row that some query token sees.
__device__ Units units_of(const DecodeScheduleParams& p, int seq_len) {
  const int tokens = unit_tokens(p.limits.kv_dtype);
  const int end = seq_len / tokens + (seq_len % tokens != 0 ? 1 : 0);
  const int first_seen =
      p.window_tokens == 0 ? 0 : max(0, seq_len - p.limits.q_len + 1 - p.window_tokens);
  const int first = first_seen / tokens;
  return {first, max(0, end - first)};
}

/// Returns the number of parts of a row. An empty row has one empty part, which writes zeros. A
/// skipped row has none.
__device__ int pieces_of(int count, int length) {
  return count == kSkipped ? 0 : max(1, (count + length - 1) / length);
}

/// Returns the size class of a row: the length of its parts, in kSizeClasses-ths of `length`.
__device__ int size_class_of(int count, int length) {
  return count == kSkipped ? 0 : count / pieces_of(count, length) * kSizeClasses / length;
}

/// A part length and its estimated cost.
struct Candidate {
  float cost;
  int length;
};

/// The numbers of units of this many first rows are kept, because they are read many times.
constexpr int kCached = 2048;

/// Returns the number of units of a row, or kSkipped, from the tables of the step.
__device__ int load_count(const DecodeScheduleParams& p, int row) {
  return table_row(p, row) < 0 ? kSkipped : units_of(p, p.seq_lens[row]).count;
}
/// Returns the same, from the kept numbers if possible.
__device__ int count_of(const DecodeScheduleParams& p, const int* cached, int row) {
  return row < kCached ? cached[row] : load_count(p, row);
}

/// Chooses the best part length, in units. It is a multiple of `warps`, so that the warps of a
/// thread block have equal shares. Warp `w` finds the shortest parts of which there are at most `w
/// + 1` waves, and estimates their cost. The cheapest length wins.
__device__ int choose_length(const DecodeScheduleParams& p, const int* cached, int places,
                             int heads, DecodeShape shape, int longest, long long total,
                             float overhead) {
  __shared__ Candidate candidates[kWarps];
  const int warps = shape.warps;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int waves = warp + 1;
  // When thread blocks share a multiprocessor, each warp needs at least two units to be worth the
  // start of the block.
  int low = shape.per_sm == 1 ? 1 : 2;
  int high = max(low, (longest + warps - 1) / warps);
  while (low < high) {
    const int middle = (low + high) / 2;
    const int tried = middle * warps;
    long long parts = 0;
    for (int row = lane; row < p.num_rows; row += 32) {
      parts += (max(0, count_of(p, cached, row)) + tried - 1) / tried;
    }
    for (int offset = 16; offset > 0; offset /= 2) parts += __shfl_xor_sync(~0U, parts, offset);
    if (parts * heads <= static_cast<long long>(waves) * places) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  const int length = low * warps;
  long long parts = 0;
  long long large = 0;        // parts longer than half of `length`
  long long large_units = 0;  // units of these parts
  for (int row = lane; row < p.num_rows; row += 32) {
    const int units = max(0, count_of(p, cached, row));
    const int pieces = (units + length - 1) / length;
    const bool is_large = pieces > 0 && units / pieces * 2 > length;
    parts += pieces;
    large += is_large ? pieces : 0;
    large_units += is_large ? units : 0;
  }
  for (int offset = 16; offset > 0; offset /= 2) {
    parts += __shfl_xor_sync(~0U, parts, offset);
    large += __shfl_xor_sync(~0U, large, offset);
    large_units += __shfl_xor_sync(~0U, large_units, offset);
  }
  if (lane == 0) {
    const auto real = [](long long value) { return static_cast<float>(value); };
    const float rounds = ceilf(real(large * heads) / real(places));
    const float by_rounds = rounds * (real(large_units) / fmaxf(1.0F, real(large)) + overhead);
    const float by_work = (real(total) * heads + overhead * real(parts * heads)) / real(places);
    const float uneven = 1.0F - real(large) / fmaxf(1.0F, real(parts));
    const bool allowed = waves <= kMaxWaves || length >= longest;
    const float cost =
        fmaxf(fmaxf(by_rounds, by_work), length + overhead) + 0.25F * length * uneven;
    candidates[warp] = {allowed ? cost : 3.0e38F, length};
  }
  __syncthreads();
  Candidate best = candidates[0];
  for (int i = 1; i < kWarps; ++i) {
    if (candidates[i].cost < best.cost) best = candidates[i];
  }
  return best.length;
}

/// Makes the schedule of a step.
__global__ void __launch_bounds__(kThreads)
    decode_schedule(DecodeScheduleParams p, DecodeWorkspace w, DecodeShape shape) {
  using Reduce = cub::BlockReduce<long long, kThreads>;
  using Scan = cub::BlockScan<int, kThreads>;
  __shared__ union {
    typename Reduce::TempStorage reduce;
    typename Scan::TempStorage scan;
  } scratch;
  __shared__ long long shared_total;
  __shared__ int shared_longest;
  __shared__ int cached[kCached];
  auto* header = static_cast<DecodeHeader*>(p.workspace);
  auto* parts = reinterpret_cast<DecodePart*>(static_cast<char*>(p.workspace) + w.parts);

  long long sum = 0;
  long long most = 0;
  for (int row = threadIdx.x; row < p.num_rows; row += kThreads) {
    const int units = load_count(p, row);
    if (row < kCached) cached[row] = units;
    sum += max(0, units);
    most = max(most, static_cast<long long>(units));
  }
  const long long total = Reduce(scratch.reduce).Sum(sum);
  __syncthreads();
  const long long longest =
      Reduce(scratch.reduce).Reduce(most, [](long long a, long long b) { return a > b ? a : b; });
  if (threadIdx.x == 0) {
    shared_total = total;
    shared_longest = static_cast<int>(longest);
  }
  __syncthreads();
  const int heads = p.limits.num_kv_heads * w.chunks;
  const int places = p.limits.num_sms * shape.per_sm;
  const int warps = shape.warps;
  // The cost of starting and ending a part, in units that a thread block could have read meanwhile.
  const float overhead = shape.per_sm == 1 ? 24.0F : 6.0F;
  const int length =
      choose_length(p, cached, places, heads, shape, shared_longest, shared_total, overhead);

  // Long parts come first, so that short parts fill the end (longest processing time first; Graham,
  // 1969). There is a pass for each size class, in row order. A thread first handles a row, then a
  // part.
  __shared__ int classes;  // a bit for each class that occurs
  if (threadIdx.x == 0) classes = 0;
  __syncthreads();
  for (int row = static_cast<int>(threadIdx.x); row < p.num_rows; row += kThreads) {
    atomicOr(&classes, 1 << size_class_of(count_of(p, cached, row), length));
  }
  __syncthreads();
  __shared__ int first_place[kThreads + 1];
  __shared__ int first_slot[kThreads];
  int next_part = 0;
  int next_slot = 0;
  for (int size_class = kSizeClasses; size_class >= 0; --size_class) {
    if ((classes >> size_class & 1) == 0) continue;
    for (int base = 0; base < p.num_rows; base += kThreads) {
      const int row = base + static_cast<int>(threadIdx.x);
      const int count = row < p.num_rows ? count_of(p, cached, row) : 0;
      const bool takes_part = row < p.num_rows && size_class_of(count, length) == size_class;
      const int pieces = takes_part ? pieces_of(count, length) : 0;
      int place = 0;
      int slot = 0;
      int all_parts = 0;
      int all_slots = 0;
      Scan(scratch.scan).ExclusiveSum(pieces, place, all_parts);
      __syncthreads();
      Scan(scratch.scan).ExclusiveSum(pieces > 1 ? pieces : 0, slot, all_slots);
      first_place[threadIdx.x] = place;
      first_slot[threadIdx.x] = next_slot + slot;
      if (threadIdx.x == 0) first_place[kThreads] = all_parts;
      __syncthreads();
      for (int i = static_cast<int>(threadIdx.x); i < all_parts; i += kThreads) {
        int low = 0;  // the last row whose parts begin at or before i
        for (int step = kThreads / 2; step > 0; step /= 2) {
          if (first_place[low + step] <= i) low += step;
        }
        const int its_row = base + low;
        const int seq_len = p.seq_lens[its_row];
        const Units units = units_of(p, seq_len);
        const int its_pieces = first_place[low + 1] - first_place[low];
        const int part = i - first_place[low];
        const int share = (units.count + its_pieces - 1) / its_pieces;
        const int step = min(length, (share + warps - 1) / warps * warps);
        parts[next_part + i] = {first_query(p, its_row),
                                units.first + min(units.count, step * part),
                                units.first + min(units.count, step * (part + 1)),
                                part,
                                its_pieces,
                                first_slot[low],
                                seq_len,
                                table_row(p, its_row)};
      }
      next_part += all_parts;
      next_slot += all_slots;
      __syncthreads();
    }
  }
  if (threadIdx.x == 0) *header = {next_part, 0, 0, 0};
}

}  // namespace

Status load_decode_schedule() noexcept { return load_kernels(decode_schedule); }

Status launch_decode_schedule(const DecodeScheduleParams& params, cudaStream_t stream) noexcept {
  const DecodeLimits& limits = params.limits;
  if (Status s = check_decode_limits(limits); !s) return s;
  if (Status s = in_range(Resource::num_sequences, params.num_rows, 0, limits.max_rows); !s) {
    return s;
  }
  if (params.num_rows > 0) {
    if (Status s = not_null(params.seq_lens); !s) return s;
  }
  if (Status s = check_decode_workspace(limits, params.workspace, params.workspace_bytes); !s) {
    return s;
  }
  decode_schedule<<<1, kThreads, 0, stream>>>(params, decode_workspace(limits),
                                              decode_shape(limits));
  return launch_status(cudaGetLastError());
}

}  // namespace kvarena::kernels
