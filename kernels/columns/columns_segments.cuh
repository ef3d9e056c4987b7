#pragma once

/// @file
/// The segments of the columns kernel: from a run of units in a thread block to what the kernel
/// reads, and the places of partial results. Included by columns_schedule.cuh.

#include "kernels/columns/columns_units.cuh"

namespace kvarena::kernels::columns_schedule {

/// Returns the first slab of the items of a row that is no member.
__device__ inline int first_slab(const Context& c, const Unit& unit) {
  return first_seen(c.p, row_of(c, unit.entry)) / c.shape.slab_tokens;
}

/// Returns the run that has unit `x`.
__device__ inline int run_of(const Context& c, int x) {
  int low = 0;
  int high = c.runs;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (c.shared.bound[middle] <= x) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

/// The place of the partial results of an item, as rows.
struct Parts {
  int row;    // of part 0; -1: there is one part, and it needs no partial result
  int count;  // each is a thread block's columns further
};

/// Returns the place of the parts of an item of `slabs` units from `start`. Without fixed parts, a
/// run has one part of an item, and results are numbered by run: a run has at most two, of the item
/// that it begins with and of the one that it ends with. The result of an item that is not cut is
/// at `whole`.
__device__ inline Parts parts_at(const Context& c, int start, int slabs, int whole) {
  const int first = run_of(c, start);
  const int last = run_of(c, start + slabs - 1);
  if (first == last) return {whole, 1};
  const int slot = c.shared.first_cut[first + 1] - 1;
  return {slot * c.team * c.shape.columns, c.shared.first_cut[last] - slot + 1};
}

/// A part of an item in run `run`: `length` units from `unit`, which is number `x`. It is that of
/// thread block `member` of the team.
struct Part {
  Unit unit;
  int x;
  int length;
  int run;
  int member;

  __device__ int item_start() const { return x - unit.slab; }
};

/// Returns the first row of the result of a part, whose item has these parts.
__device__ inline int partial_of(const Context& c, const Part& part, const Parts& parts) {
  if (parts.count == 1) return parts.row;
  const int* const cut = c.shared.first_cut;
  const int slot = part.unit.slab > 0 ? cut[part.run] : cut[part.run + 1] - 1;
  if (c.team == 1) return slot * c.shape.columns;
  // The results of a team's items lie one after another.
  const int first = parts.row / c.shape.columns;
  return (first + part.member * parts.count + slot - first / c.team) * c.shape.columns;
}

/// Writes what to do when an item is complete, if the part is the item's first.
__device__ inline void write_item(const Context& c, const Part& part, int index,
                                  const ColumnsItem& item) {
  if (part.unit.slab > 0) return;
  reinterpret_cast<ColumnsItem*>(static_cast<char*>(c.p.workspace) + c.w.items)[index] = item;
  if (is_latent(c)) {
    reinterpret_cast<int*>(static_cast<char*>(c.p.workspace) + c.w.counters)[index] =
        item.own_parts;
    atomicAdd(reinterpret_cast<int*>(static_cast<char*>(c.p.workspace) + c.w.members), 1);
  }
}

/// Returns the segment of a part of a row that is no member.
__device__ inline ColumnsSegment row_segment(const Context& c, const Part& its) {
  const Unit& unit = its.unit;
  const int row = batch_row(c, unit.entry);
  const ColumnsRow r = row_of(c, unit.entry);
  const int groups = items_of(c, r) / c.p.limits.num_kv_heads;
  const int item = unit.item * c.team + its.member;
  ColumnsSegment segment{};
  segment.table_row = table_row_of(c.p, row);
  segment.head = item / groups;
  segment.q_begin = r.q_begin;
  segment.q_len = r.q_len;
  segment.seq_len = r.seq_len;
  segment.columns = r.q_len * c.group();
  segment.column_group = item % groups;
  segment.first_seen = first_seen(c.p, r);
  const int first = segment.first_seen / c.shape.slab_tokens;
  segment.first_token = (first + unit.slab) * c.shape.slab_tokens;
  segment.partial = -1;
  Parts parts{};
  if (c.part_slabs > 0) {
    const int length = part_slabs_of(c, unit.entry, c.part_slabs);
    parts.count = parts_of(first, unit.slabs, length);
    const int slot = c.entries.first_slot[unit.entry] + item * parts.count;
    const int part = (first + unit.slab) / length - first / length;
    parts.row = slot * c.shape.columns;
    if (parts.count > 1) segment.partial = parts.row + part * c.shape.columns;
  } else {
    parts = parts_at(c, its.item_start(), unit.slabs, -1);
    segment.partial = partial_of(c, its, parts);
    if (parts.count > 1) parts.row += its.member * parts.count * c.shape.columns;
  }
  if (parts.count == 1) return segment;
  segment.item = parts.row / c.shape.columns;
  segment.arrivals = is_latent(c) ? 0 : parts.count;  // a kernel that follows combines latents
  const int first_column = segment.column_group * c.shape.columns;
  write_item(c, its, segment.item,
             {.q_begin = r.q_begin,
              .head = segment.head,
              .first_column = first_column,
              .columns = min(c.shape.columns, segment.columns - first_column),
              .own_row = parts.row,
              .own_parts = parts.count});
  return segment;
}

/// Returns the place of the partial results of a tile for a KV head.
__device__ inline Parts tile_parts(const Context& c, int index, int head) {
  const PrefixTile& tile = c.tile(index);
  const int tokens = tile.end_token - tile.first_token;
  const int first = c.w.max_slots * c.shape.columns +
                    (c.w.max_shared_tokens + tile.first_token) * c.p.limits.num_q_heads;
  const int slabs = c.entries.slabs[index];
  return parts_at(c, c.entries.first_unit[index] + head * slabs, slabs,
                  first + head * tokens * c.group());
}

/// Returns the segment of a part of a tile.
__device__ inline ColumnsSegment tile_segment(const Context& c, const Part& its) {
  const int index = its.unit.entry;
  const PrefixTile& tile = c.tile(index);
  const Parts parts = tile_parts(c, index, its.unit.item);
  ColumnsSegment segment{};
  segment.table_row = tile.table_row;
  segment.head = its.unit.item;
  segment.q_begin = tile.first_token;
  segment.seq_len = tile.shared_tokens;
  segment.columns = (tile.end_token - tile.first_token) * c.group();
  segment.first_token = its.unit.slab * c.shape.slab_tokens;
  segment.partial = partial_of(c, its, parts);
  return segment;
}

/// Returns the segment of a part of a member: its tokens after the shared ones.
__device__ inline ColumnsSegment member_segment(const Context& c, const Part& its) {
  const int index = its.unit.entry - c.num_tiles;
  const PrefixMember& member = c.member(index);
  const PrefixTile& tile = c.tile(member.tile);
  const ColumnsRow r = load_row(c.p, member.row);
  const int head = its.unit.item;
  const int whole = c.w.max_slots * c.shape.columns + member.first_token * c.p.limits.num_q_heads +
                    head * r.q_len * c.group();
  const Parts parts = parts_at(c, its.item_start(), its.unit.slabs, whole);
  const Parts prefix = tile_parts(c, member.tile, head);
  ColumnsSegment segment{};
  segment.table_row = table_row_of(c.p, member.row);
  segment.head = head;
  segment.q_begin = r.q_begin;
  segment.q_len = r.q_len;
  segment.seq_len = r.seq_len;
  segment.columns = r.q_len * c.group();
  segment.first_token = tile.shared_tokens + its.unit.slab * c.shape.slab_tokens;
  segment.first_seen = tile.shared_tokens;
  segment.partial = partial_of(c, its, parts);
  write_item(c, its, c.w.max_slots + index * c.p.limits.num_kv_heads + head,
             {.q_begin = r.q_begin,
              .head = head,
              .columns = segment.columns,
              .own_row = parts.row,
              .own_parts = parts.count,
              .prefix_row = prefix.row + (member.first_token - tile.first_token) * c.group(),
              .prefix_parts = prefix.count});
  return segment;
}

/// Returns the segment of a part.
__device__ inline ColumnsSegment segment_of(const Context& c, const Part& its) {
  const int entry = its.unit.entry;
  ColumnsSegment segment = entry < c.num_tiles                   ? tile_segment(c, its)
                           : entry < c.num_tiles + c.num_members ? member_segment(c, its)
                                                                 : row_segment(c, its);
  segment.slabs = its.length;
  return segment;
}

}  // namespace kvarena::kernels::columns_schedule
