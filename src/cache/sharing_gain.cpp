#include "cache/sharing_gain.hpp"

#include <algorithm>

namespace kvarena {
namespace {

/// Fewer sequences, or fewer common tokens, do not gain when they are read together.
constexpr std::int64_t kSharers = 8;
constexpr std::int64_t kSharedTokens = 512;

}  // namespace

SharingThreshold sharing_threshold(std::span<const AppendedRow> rows,
                                   const KvLayerView& kv) noexcept {
  std::int64_t blocks = kSharedTokens / kv.block_size;
  std::int64_t sharers = kSharers;
  if (kv.key.dtype == DType::fp8_e4m3 && !rows.empty()) {
    const auto count = static_cast<std::int64_t>(rows.size());
    std::int64_t tokens = 0;
    for (const AppendedRow& row : rows) tokens += row.length_tokens;
    blocks = std::max(blocks, tokens / (2 * count * kv.block_size));
    sharers = std::max(sharers, (count + 1) / 2);
  }
  return {.block = static_cast<std::int32_t>(std::max<std::int64_t>(1, blocks) - 1),
          .sharers = sharers};
}

}  // namespace kvarena
