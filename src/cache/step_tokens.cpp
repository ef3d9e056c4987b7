#include "cache/step_tokens.hpp"

#include <algorithm>

namespace kvarena {

StepTokens::StepTokens(std::int32_t max_rows, std::int32_t block_size_tokens)
    : block_size_(block_size_tokens) {
  rows_.reserve(static_cast<std::size_t>(max_rows));
}

void StepTokens::note(std::span<const AppendDemand> demands,
                      const AppendResult& appended) noexcept {
  rows_.clear();
  for (std::size_t i = 0; i < demands.size(); ++i) {
    if (demands[i].num_tokens == 0) continue;
    const std::int32_t after = appended.rows[i].length_tokens;
    rows_.push_back({demands[i].sequence, after - demands[i].num_tokens, after});
  }
}

/// Most rows of a decode step fill no block. A sequence that was destroyed meanwhile is not found.
void StepTokens::publish(BlockTables& tables) noexcept {
  for (const Row& row : rows_) {
    if (row.after / block_size_ == row.before / block_size_) continue;
    static_cast<void>(tables.publish(row.sequence));
  }
  rows_.clear();
}

void StepTokens::withdraw(BlockTables& tables) noexcept {
  for (const Row& row : rows_) {
    const Result<SequenceInfo> info = tables.info(row.sequence);
    if (!info) continue;
    const std::int64_t keep = std::min<std::int64_t>(row.before, info->length_tokens);
    static_cast<void>(tables.distrust_tokens(row.sequence, keep));
  }
  rows_.clear();
}

}  // namespace kvarena
