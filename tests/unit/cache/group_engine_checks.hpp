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
