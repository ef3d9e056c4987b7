#pragma once

/// @file
/// Comparisons of a GroupEngine beside those of attention. Included by group_engine.hpp.

#include "step/group_rows.hpp"
#include "unit/cache/group_engine.hpp"

namespace kvarena::test {

/// A row of the kernels has the entries of its kept blocks; the others have no meaning.
inline void GroupEngine::check_device_tables(const Record& record) {
  const GroupLayout& layout = *cache_->arena().groups();
  std::vector<SequenceId> ids;
  for (const AppendDemand& demand : record.demands) ids.push_back(demand.sequence);
  constexpr std::int64_t kStride = kLongest;
  for (std::size_t part = 0; part < layout.parts().size(); ++part) {
    SCOPED_TRACE("part " + std::to_string(part));
    const auto& group = layout.groups()[static_cast<std::size_t>(layout.parts()[part].group)];
    const TableGroup table{.kind = group.kind,
                           .block_size_tokens = group.block_size_tokens,
                           .limit_tokens = group.limit_tokens};
    const DeviceBatch batch = cache_->device_batch(static_cast<std::int32_t>(part)).value();
    const auto slots = read(batch.row_slots, batch.num_rows);
    const auto lengths = read(batch.lengths, batch.num_rows);
    const auto blocks = read(batch.num_blocks, batch.num_rows);
    const auto offsets = read(batch.row_offsets, batch.num_rows);
    const auto first_q = read(batch.q_offsets, batch.num_rows + 1);
    std::vector<std::int32_t> tables(ids.size() * static_cast<std::size_t>(kStride));
    std::vector<std::int32_t> tokens(ids.size());
    ASSERT_OK(
        cache_->tables().copy_rows(ids, tables, kStride, tokens, static_cast<std::int32_t>(part)));
    std::size_t row = 0;
    std::int64_t token = 0;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      // An encoder's blocks come with the first token.
      const std::int32_t first = tables[i * static_cast<std::size_t>(kStride)];
      if (table.kind == PagedKind::cross && first == kNoBlock.value) tokens[i] = 0;
      for_each_row(table, tokens[i], record.demands[i].num_tokens, [&](const GroupRow& its) {
        if (::testing::Test::HasFailure()) return;
        ASSERT_LT(row, lengths.size());
        ASSERT_EQ(lengths[row], its.length) << "row " << row;
        ASSERT_EQ(first_q[row], token) << "row " << row;
        ASSERT_EQ(offsets[row], slots[row] * batch.table_stride) << "row " << row;
        const auto entries = read(batch.block_tables + offsets[row], blocks[row]);
        const std::int32_t* const expected =
            tables.data() + static_cast<std::int64_t>(i) * kStride + its.first_block;
        for (std::size_t j = 0; j < entries.size(); ++j) {
          if (expected[j] == kNoBlock.value) continue;
          ASSERT_EQ(entries[j].value, expected[j])
              << "row " << row << ", block " << its.first_block << " + " << j;
        }
        ++row;
        ++num_tables_;
        token += its.num_new;
      });
    }
    ASSERT_EQ(row, lengths.size());
    ASSERT_EQ(first_q[row], token);
  }
}

/// In front of the step's writes, the blocks that its tokens enter hold zeros where K, V, indices
/// and scales lie, and so do those that it takes for encoders. Before, nobody had them: they were
/// NaN.
inline void GroupEngine::check_scrubbed(const std::vector<AppendDemand>& demands) {
  const Arena& arena = cache_->arena();
  std::vector<std::byte> pool(static_cast<std::size_t>(arena.bytes()));
  ASSERT_OK(device_->copy(pool.data(), arena.base(), pool.size(), cache_->stream()));
  ASSERT_OK(cache_->synchronize());
  const GroupLayout& layout = *arena.groups();
  const auto expect_zeros = [&](const GroupLayout::Part& part, std::int64_t block) {
    for (std::size_t plane = 0; plane < part.layout.planes().size(); ++plane) {
      const auto number = static_cast<std::int32_t>(plane);
      const std::int64_t first = block * part.blocks.id_stride_bytes +
                                 part.layout.plane_offset(number, BlockOrder::block_major, 1);
      const auto at = pool.begin() + first;
      const std::int64_t bytes =
          part.layout.planes()[plane].num_heads *
          (part.layout.head_stride(number) +
           (part.layout.scales_offset(number) > 0 ? 4 * part.layout.block_size() : 0));
      ASSERT_EQ(std::count(at, at + bytes, std::byte{0}), bytes) << "block " << block;
    }
  };
  for (std::size_t p = 0; p < layout.parts().size(); ++p) {
    const GroupLayout::Part& part = layout.parts()[p];
    const std::int64_t size = part.layout.block_size();
    const bool is_cross =
        layout.groups()[static_cast<std::size_t>(part.group)].kind == PagedKind::cross;
    for (const AppendDemand& demand : demands) {
      const Life& life = lives_.at(demand.sequence);
      const std::int64_t first = is_cross ? 0 : (life.length + size - 1) / size;
      const std::int64_t end = is_cross ? life.cross_tokens : life.length + demand.num_tokens;
      if (is_cross && (life.length > 0 || life.layers.contains(part.layout.planes()[0].layer))) {
        continue;
      }
      for (std::int64_t block = first; block * size < end; ++block) {
        const auto slot =
            cache_->tables().slot_of(demand.sequence, block * size, static_cast<std::int32_t>(p));
        if (slot && *slot >= 0) expect_zeros(part, *slot / size);
      }
    }
  }
}

inline void GroupEngine::check_caches() {
  ASSERT_OK(cache_->check_invariants());
  if (!host_) return;
  std::vector<SequenceId> ids;
  for (const auto& [id, life] : lives_) ids.push_back(id);
  const auto num_parts = std::ssize(cache_->arena().groups()->parts());
  for (std::int32_t part = 0; part < num_parts; ++part) {
    const auto rows_of = [&](const KvCache& cache) {
      std::vector<std::int32_t> rows(ids.size() * static_cast<std::size_t>(kLongest));
      EXPECT_OK(cache.tables().copy_rows(ids, rows, kLongest, {}, part));
      return rows;
    };
    ASSERT_EQ(rows_of(*cache_), rows_of(*host_)) << "part " << part;
  }
}

}  // namespace kvarena::test
