#pragma once

/// @file
/// A step of random rows for the schedule of decode attention, and its schedule in plain loops.

#include "kernel/decode_candidates.hpp"
#include "kernels/decode/decode.h"
#include "kernels/decode/decode_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <vector>

namespace kvarena::test {

/// The rows of a step. Arrays may be empty, as pointers of the parameters may be null.
struct ScheduleCase {
  kernels::DecodeLimits limits;
  std::int32_t window_tokens = 0;
  bool fixed_parts = false;
  std::vector<std::int32_t> seq_lens;
  std::vector<std::int32_t> row_slots;
  std::vector<std::int64_t> q_offsets;
  std::vector<std::int32_t> shared_tokens;

  std::int32_t num_rows() const { return static_cast<std::int32_t>(seq_lens.size()); }
  std::int64_t q_len(std::size_t row) const {
    return q_offsets.empty() ? limits.q_len : q_offsets[row + 1] - q_offsets[row];
  }
  bool is_taken(std::size_t row) const {
    return q_len(row) >= 1 && q_len(row) <= limits.q_len &&
           (row_slots.empty() || row_slots[row] >= 0) &&
           (shared_tokens.empty() || shared_tokens[row] <= 0);
  }
  /// The parameters without pointers.
  kernels::DecodeScheduleParams params() const {
    kernels::DecodeScheduleParams p;
    p.limits = limits;
    p.num_rows = num_rows();
    p.window_tokens = window_tokens;
    p.fixed_parts = fixed_parts;
    return p;
  }
};

/// A row with its cut.
struct ScheduledRow {
  kernels::DecodePart part;  ///< what all of its parts share; first_unit is the row's
  std::int32_t count;        ///< units
  kernels::RowCut cut;
  std::int32_t size_class;
};

/// The rows that a schedule takes, in the order of the batch. They are not cut yet.
inline std::vector<ScheduledRow> rows_of(const ScheduleCase& c) {
  const std::int32_t tokens = kernels::unit_tokens(c.limits.kv_dtype);
  std::vector<ScheduledRow> rows;
  for (std::size_t row = 0; row < c.seq_lens.size(); ++row) {
    if (!c.is_taken(row)) continue;
    const auto q_len = static_cast<std::int32_t>(c.q_len(row));
    const std::int64_t end = c.seq_lens[row];
    const std::int64_t first =
        c.window_tokens == 0 ? 0 : std::max<std::int64_t>(0, end - q_len + 1 - c.window_tokens);
    ScheduledRow r{};
    r.part.first_q = static_cast<std::int32_t>(
        c.q_offsets.empty() ? static_cast<std::int64_t>(row) * q_len : c.q_offsets[row]);
    r.part.first_unit = static_cast<std::int32_t>(first / tokens);
    r.part.q_len = static_cast<std::uint32_t>(q_len) & 0xff;
    r.part.seq_len = c.seq_lens[row];
    r.part.table_row = c.row_slots.empty() ? static_cast<std::int32_t>(row) : c.row_slots[row];
    r.count = static_cast<std::int32_t>((end + tokens - 1) / tokens) - r.part.first_unit;
    rows.push_back(r);
  }
  return rows;
}

/// The parts of a step when a part has at most `part_units` units.
inline std::vector<kernels::DecodePart> parts_of(const ScheduleCase& c, std::int32_t part_units) {
  kernels::PartLength length{part_units, false};
  if (c.fixed_parts) {
    length = kernels::fixed_length(c.limits);
    if (part_units != length.units) {  // the parts did not fit
      length.units = part_units;
      length.short_row = length.short_units = 0;
    }
  }
  const kernels::DecodeWorkspace workspace = kernels::decode_workspace(c.limits);
  const std::int32_t warps = kernels::cut_shape(c.limits, workspace).warps;
  const std::int32_t max_parts = workspace.max_parts;
  std::vector<ScheduledRow> rows = rows_of(c);
  std::int32_t longest = std::max(part_units, length.short_units);
  for (const ScheduledRow& r : rows) {
    longest = std::max(longest, kernels::part_units(length, warps, r.count));
  }
  for (ScheduledRow& r : rows) {
    r.cut = kernels::cut_row(length, warps, r.count);
    r.size_class = kernels::size_class_of(r.count, r.cut, longest);
  }
  std::stable_sort(rows.begin(), rows.end(), [](const ScheduledRow& a, const ScheduledRow& b) {
    return a.size_class > b.size_class;
  });
  std::vector<kernels::DecodePart> parts;
  for (const ScheduledRow& r : rows) {
    const auto place = static_cast<std::int32_t>(parts.size());
    if (place + r.cut.parts > max_parts) break;
    for (std::int32_t i = 0; i < r.cut.parts; ++i) {
      kernels::DecodePart part = r.part;
      part.first_unit += std::min(r.count, r.cut.units * i);
      part.last_unit = r.part.first_unit + std::min(r.count, r.cut.units * (i + 1));
      part.part = i;
      part.num_parts = static_cast<std::uint32_t>(r.cut.parts) & 0xffffff;
      part.first_slot = place;
      parts.push_back(part);
    }
  }
  return parts;
}

/// The estimated cost of a step for each part length that the choice considers, and its units.
inline std::vector<std::pair<float, std::int32_t>> candidates_of(const ScheduleCase& c) {
  const kernels::CutShape cut = kernels::cut_shape(c.limits, kernels::decode_workspace(c.limits));
  std::vector<std::int32_t> units;
  for (const ScheduledRow& r : rows_of(c)) {
    if (r.count > 0) units.push_back(r.count);
  }
  if (units.empty()) return {{0.0F, cut.warps}};
  const std::int32_t longest =
      kernels::divide_up(*std::max_element(units.begin(), units.end()), cut.warps);
  const std::int32_t bits = kernels::step_bits(longest);
  const std::int32_t most = kernels::steps_of(longest, bits);
  std::vector<std::int32_t> rows(static_cast<std::size_t>(most) + 1);
  std::vector<std::uint32_t> steps(rows.size());
  std::vector<std::uint32_t> missing(rows.size());
  for (const std::int32_t count : units) {
    const std::int32_t its = kernels::divide_up(count, cut.warps);
    const auto at = static_cast<std::size_t>(kernels::steps_of(its, bits));
    missing[at] += static_cast<std::uint32_t>(kernels::missing_units(count, cut.warps));
    ++rows[at];
    steps[at] += static_cast<std::uint32_t>(at);
  }
  for (std::size_t i = 1; i < rows.size(); ++i) {
    rows[i] += rows[i - 1];
    steps[i] += steps[i - 1];
    missing[i] += missing[i - 1];
  }
  const kernels::StepCounts counts{rows.data(), steps.data(), missing.data(), most, bits};
  std::vector<std::pair<float, std::int32_t>> candidates;
  for (std::int32_t waves = 1; waves <= kernels::kMaxWaves; ++waves) {
    const kernels::Candidate found = candidate_of(counts, cut, waves);
    candidates.emplace_back(found.cost, std::min(found.steps << bits, longest) * cut.warps);
  }
  return candidates;
}

/// What the workspace is filled with before the schedule is made.
inline constexpr int kUnwrittenByte = 0xEE;
/// The bytes of a workspace that the schedule may write, and some behind them.
inline std::size_t schedule_bytes(const kernels::DecodeWorkspace& workspace) {
  return static_cast<std::size_t>(workspace.counters + 256);
}

/// The chosen length is a candidate of the least cost, but for rounding.
inline void expect_cheap(const ScheduleCase& c, std::int32_t part_units, std::uint64_t seed) {
  float best = std::numeric_limits<float>::max();
  float chosen = std::numeric_limits<float>::max();
  for (const auto& [cost, units] : candidates_of(c)) {
    best = std::min(best, cost);
    if (units == part_units) chosen = std::min(chosen, cost);
  }
  EXPECT_LE(chosen, best * 1.00001F) << "seed " << seed << ", units " << part_units;
}

/// Expects that a schedule is the plain one, to the byte, and that nothing else has been written.
inline void expect_schedule(const ScheduleCase& c, std::span<const std::byte> found,
                            std::uint64_t seed) {
  const kernels::DecodeWorkspace w = kernels::decode_workspace(c.limits);
  kernels::DecodeHeader header;
  std::memcpy(&header, found.data(), sizeof(header));
  const std::vector<kernels::DecodePart> parts = parts_of(c, header.part_units);
  ASSERT_EQ(static_cast<std::size_t>(header.num_parts), parts.size()) << "seed " << seed;
  EXPECT_EQ(header.next_work, 0);
  EXPECT_EQ(header.blocks_done, 0);
  const auto its = found.subspan(static_cast<std::size_t>(w.parts));
  const auto plain = std::as_bytes(std::span(parts));
  EXPECT_TRUE(std::ranges::equal(its.first(plain.size()), plain)) << "seed " << seed;
  const auto is_unwritten = [](std::byte byte) { return byte == std::byte{kUnwrittenByte}; };
  EXPECT_TRUE(std::ranges::all_of(its.subspan(plain.size()), is_unwritten)) << "seed " << seed;
  if (!c.fixed_parts) expect_cheap(c, header.part_units, seed);
}

/// A random step: few rows or many, of equal, ragged or mixed lengths, all kinds of skipped rows.
inline ScheduleCase random_schedule(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::int64_t end) {
    return static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(end));
  };
  const auto one_of = [&](std::initializer_list<std::int32_t> list) {
    return *(list.begin() + below(static_cast<std::int64_t>(list.size())));
  };
  ScheduleCase c;
  const std::int32_t rows = one_of({1, 2 + below(30), 1 + below(300), 1000 + below(60), 3000});
  c.limits = {.max_rows = below(6) == 0 ? 1 + below(rows) : rows,
              .q_len = one_of({1, 2, 8, 16}),
              .num_q_heads = 16,
              .num_kv_heads = one_of({1, 2, 8, 16}),
              .head_dim = one_of({64, 96, 128, 256}),
              .num_sms = one_of({1, 5, 132, 132}),
              .has_clusters = below(2) == 0,
              .kv_dtype = below(3) == 0 ? DType::fp8_e4m3 : DType::bf16};
  c.limits.step_tokens = below(2) == 0 ? 0 : 1 + below(c.limits.q_len);
  if (below(2) == 0) {  // what is said of the rows need not be true
    c.limits.step_rows = one_of({rows, 1 + below(rows), 1000});
    c.limits.step_longest = one_of({16, 200, 1 + below(4000)});
    c.limits.step_row_tokens = c.limits.step_longest / one_of({1, 1, 4});
  }
  c.window_tokens = below(4) == 0 ? 1 + below(2000) : 0;
  const std::int32_t most =
      one_of({16, 1000, 40000, 1 << 20, below(200) == 0 ? 0x7ffffff0 : 70000});
  const std::int32_t kind = below(3);
  const std::int32_t same = below(most);
  for (std::int32_t row = 0; row < rows; ++row) {
    const std::int32_t length = kind == 0 ? same : kind == 1 ? below(most) : below(most / 16);
    c.seq_lens.push_back(row == rows / 2 && kind == 2 ? most : length);
  }
  if (below(2) == 0) {
    for (std::int32_t row = 0; row < rows; ++row) {
      c.row_slots.push_back(below(5) == 0 ? -1 : below(1 << 20));
    }
  }
  if (below(2) == 0) {
    c.q_offsets.push_back(below(100));
    for (std::int32_t row = 0; row < rows; ++row) {
      c.q_offsets.push_back(c.q_offsets.back() + below(c.limits.q_len + 2));
    }
  }
  if (below(3) == 0) {
    for (std::int32_t row = 0; row < rows; ++row) c.shared_tokens.push_back(below(3) == 0 ? 64 : 0);
  }
  if (below(3) == 0) {
    c.fixed_parts = true;
    c.limits.fixed_tokens = 1;
    for (const std::int32_t length : c.seq_lens) c.limits.fixed_tokens += length;
    c.limits.fixed_tokens = std::min(c.limits.fixed_tokens, kernels::kMaxFixedDecodeTokens);
    if (below(3) == 0) c.limits.fixed_tokens = 1 + below(100000);
  }
  return c;
}

}  // namespace kvarena::test
