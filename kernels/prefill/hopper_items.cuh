#pragma once

/// @file
/// The order of a launch's items, and the warp that gives them out. A section of KV heads has the
/// tiles of a row from the last, which sees the most tokens, to the first. Thread blocks take items
/// with an atomic counter. Included by prefill_hopper.cuh.

#include "kernels/common/grid_dependency.cuh"
#include "kernels/prefill/hopper_tile.cuh"
#include "kernels/prefill/prefill_rows.cuh"

#include <climits>

namespace kvarena::kernels::prefill {

inline constexpr unsigned kAllLanes = ~0U;

/// Returns a row of the batch, cut into sections. `first_item` is left out.
__device__ inline PlanRow plan_row(const PrefillParams& p, std::int32_t row) {
  const AttentionParams& a = p.attention;
  const PrefillRow loaded = load_row(p, row);
  const int kv_heads = a.kv.key.num_heads;
  const std::int64_t rows = std::int64_t{loaded.count} * (a.num_q_heads / kv_heads);
  const std::int64_t head_bytes =
      std::int64_t{loaded.seq_len} * 2 * a.kv.key.head_dim * bytes_of(a.kv.key.dtype);
  PlanRow plan{};
  plan.q_tiles = static_cast<int>((rows + kPlanRows - 1) / kPlanRows);
  plan.section_heads = kv_heads;
  while (plan.section_heads % 2 == 0 && plan.section_heads * head_bytes > kSectionBytes) {
    plan.section_heads /= 2;
  }
  plan.q_begin = static_cast<int>(loaded.first_q);
  plan.q_len = loaded.count;
  plan.seq_len = loaded.seq_len;
  plan.table = a.batch.tables.row_offsets[row];
  return plan;
}

/// The rows of a launch as a warp sees them: each lane holds a row. Without a plan the warp orders
/// the rows itself. With one it moves through the plan, because items are asked for in rising
/// order.
struct ItemOrder {
  const PlanRow* rows;  ///< of the plan, or null
  int num_rows;
  int kv_heads;
  int position = 0;  ///< the row that lane 0 holds
  int num_items;
  PlanRow held;

  __device__ ItemOrder(const PrefillParams& p, int lane)
      : rows(nullptr),
        num_rows(p.attention.batch.num_rows),
        kv_heads(p.attention.kv.key.num_heads) {
    if (num_rows > kRowsWithoutPlan) {
      rows = reinterpret_cast<const PlanRow*>(p.plan + 1);
      num_items = p.plan->num_items;
      load(lane);
    } else {
      order_rows(p, lane);
    }
  }

  /// Holds the rows of the plan from `position` on.
  __device__ void load(int lane) {
    held = PlanRow{};
    held.first_item = INT_MAX;
    if (position + lane < num_rows) held = rows[position + lane];
  }

  /// Puts the rows of the batch in order of falling length.
  __device__ void order_rows(const PrefillParams& p, int lane) {
    PlanRow row{};
    row.seq_len = -1;
    if (lane < num_rows) row = plan_row(p, lane);
    int place = 0;
    for (int j = 0; j < num_rows; ++j) {
      const int other = __shfl_sync(kAllLanes, row.seq_len, j);
      place += other > row.seq_len || (other == row.seq_len && j < lane) ? 1 : 0;
    }
    int from = 0;
    for (int j = 0; j < 32; ++j) {
      if (__shfl_sync(kAllLanes, place, j) == lane) from = j;
    }
    if (lane >= num_rows) from = lane;
    held.q_tiles = __shfl_sync(kAllLanes, row.q_tiles, from);
    held.section_heads = __shfl_sync(kAllLanes, row.section_heads, from);
    held.q_begin = __shfl_sync(kAllLanes, row.q_begin, from);
    held.q_len = __shfl_sync(kAllLanes, row.q_len, from);
    held.seq_len = __shfl_sync(kAllLanes, row.seq_len, from);
    held.table = __shfl_sync(kAllLanes, row.table, from);
    const int items = held.q_tiles * kv_heads;
    int sum = items;
    for (int distance = 1; distance < 32; distance *= 2) {
      const int before = __shfl_up_sync(kAllLanes, sum, distance);
      if (lane >= distance) sum += before;
    }
    num_items = __shfl_sync(kAllLanes, sum, 31);
    held.first_item = lane < num_rows ? sum - items : INT_MAX;
  }

  /// Returns item `index`, without its tiles of tokens. `index` is below num_items and not below
  /// that of the last call.
  __device__ Item find(int index, int lane) {
    int holder = 0;
    while (true) {
      holder = __popc(__ballot_sync(kAllLanes, held.first_item <= index)) - 1;
      if (holder < 31 || position + 32 >= num_rows) break;
      position += 31;
      load(lane);
    }
    const auto of = [&](auto x) { return __shfl_sync(kAllLanes, x, holder); };
    const int heads = of(held.section_heads);
    const int q_tiles = of(held.q_tiles);
    const int in_row = index - of(held.first_item);
    const int section = in_row / (q_tiles * heads);
    const int in_section = in_row - section * q_tiles * heads;
    const int level = in_section / heads;
    Item item;
    item.table = of(held.table);
    item.rows_tile = q_tiles - 1 - level;
    item.head = section * heads + in_section - level * heads;
    item.q_begin = of(held.q_begin);
    item.q_len = of(held.q_len);
    item.seq_len = of(held.seq_len);
    return item;
  }
};

/// The warp that gives out items.
template <class Tile>
struct ItemGiver {
  const PrefillParams& p;
  const HopperLaunch& launch;
  HopperShared<Tile>& shared;
  int lane;

  /// Finds the tiles of tokens that an item's rows see. An item that sees none has one tile, of
  /// which nothing is seen.
  __device__ void cut_tiles(Item& item) const {
    const int first_row = item.rows_tile * Tile::kRows;
    const int last_row = min(first_row + Tile::kRows, item.q_len * launch.group.value) - 1;
    const int end = visible_end(item, launch, last_row);
    const int window = p.attention.window_tokens;
    item.from = window > 0 ? max(0, visible_end(item, launch, first_row) - window) : 0;
    item.first_tile = item.from / Tile::N;
    item.end_tile = max((end + Tile::N - 1) / Tile::N, item.first_tile + 1);
  }

  /// Hands an item to the other warps.
  __device__ void put(const Item& item, int slot) const {
    Item& to = shared.items[slot];
    if (lane == 0) {
      to.table = item.table;
      to.rows_tile = item.rows_tile;
      to.head = item.head;
      to.first_tile = item.first_tile;
      to.end_tile = item.end_tile;
      to.q_begin = item.q_begin;
      to.q_len = item.q_len;
      to.seq_len = item.seq_len;
      to.from = item.from;
    }
    if (lane < Tile::kBlocks && item.end_tile > 0) {
      const int tile = (item.end_tile - 1) * Tile::kBlocks + lane;
      const int token = tile * kTileTokens;
      const BlockId* table = p.attention.batch.tables.entries + item.table;
      to.blocks[lane] = token < item.seq_len && token + kTileTokens > item.from
                            ? table[launch.tiles_per_block.divide(tile)]
                            : BlockId{0};
    }
    arrive_as_warp(&shared.item_full[slot], lane);
  }

  /// Waits until all but kTilesAhead of the tiles of K that were given out are copied.
  __device__ __forceinline__ void wait_for_copies(int tiles_given) const {
    const volatile int* copied = &shared.tiles_copied;
    while (tiles_given - (kWarpArrivals > 1 ? atomicAdd(&shared.tiles_copied, 0) : *copied) >
           kTilesAhead) {
      __nanosleep(40);
    }
  }

  /// Counts this thread block as ended. The last one resets the counters for the next launch: every
  /// block has taken its last item by then.
  __device__ void end() const {
    if (lane != 0) return;
    if (atomicAdd(&p.counters->ended, 1) == static_cast<int>(gridDim.x) - 1) {
      p.counters->taken = 0;
      p.counters->ended = 0;
    }
  }

  __device__ void run() const {
    ItemOrder order(p, lane);
    int tiles_given = 0;
    for (int n = 0;; ++n) {
      const RingPlace<kItemSlots> place(n);
      wait(&shared.item_empty[place.stage], place.parity ^ 1);
      auto index = static_cast<int>(blockIdx.x);
      if (n > 0) {
        wait_for_copies(tiles_given);
        if (lane == 0) {
          index = static_cast<int>(gridDim.x) + atomicAdd(&p.counters->taken, 1);
        }
        index = __shfl_sync(kAllLanes, index, 0);
      }
      if (index >= order.num_items) {
        end();
        put(Item{}, place.stage);
        let_next_kernel_begin();
        return;
      }
      Item item = order.find(index, lane);
      cut_tiles(item);
      tiles_given += item.end_tile - item.first_tile;
      put(item, place.stage);
    }
  }
};

/// The warp that asks for the items' Q ahead of their consumers, into the L2.
template <class Tile>
__device__ void prefetch_queries(const PrefillParams& p, const HopperLaunch& launch,
                                 HopperShared<Tile>& shared, int lane) {
  constexpr int kLines = (Tile::D * 2 + 127) / 128;
  for (int n = 0;; ++n) {
    const RingPlace<kItemSlots> place(n);
    wait(&shared.item_full[place.stage], place.parity);
    const Item& item = shared.items[place.stage];
    const int tiles = item.end_tile - item.first_tile;
    Item kept;
    kept.q_begin = item.q_begin;
    kept.head = item.head;
    const int first_row = item.rows_tile * Tile::kRows;
    const int rows = item.q_len * launch.group.value;
    __syncwarp();
    if (tiles == 0) return;
    if (kWarpArrivals > 1 || lane == 0) arrive(&shared.item_empty[place.stage]);
#pragma unroll 1
    for (int i = lane; i < Tile::kRows * kLines; i += 32) {
      const int row = first_row + i / kLines;
      if (row >= rows) break;
      const std::int64_t at =
          place_of(kept, launch, row).bytes(p.attention.q_token_stride, Tile::D * 2);
      asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const char*>(p.attention.q) + at +
                                                    i % kLines * 128));
    }
  }
}

}  // namespace kvarena::kernels::prefill
