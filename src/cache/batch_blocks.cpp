// The limits on the rows of a step and on their table entries.

#include "cache/kv_cache_impl.hpp"

namespace kvarena {

/// Returns the kept blocks of one table, or of the only one, after the demand. 0: append refuses
/// it.
std::int64_t KvCache::Impl::kept_after(const AppendDemand& demand,
                                       std::int32_t part) const noexcept {
  if (demand.num_tokens < 0) return 0;
  if (arena.groups() != nullptr) {
    const Result<std::int64_t> kept = tables->kept_after(demand.sequence, part, demand.num_tokens);
    return kept ? *kept : 0;
  }
  const Result<SequenceInfo> info = tables->info(demand.sequence);
  const std::int64_t block_size = options.layout.block_size_tokens;
  return info ? (info->length_tokens + demand.num_tokens + block_size - 1) / block_size : 0;
}

/// Returns the most entries that an append adds to all tables together.
std::int64_t KvCache::Impl::most_growth(std::int64_t rows) const noexcept {
  if (arena.groups() == nullptr) {
    return options.max_step_tokens / options.layout.block_size_tokens + 2 * rows;
  }
  std::int64_t growth = 0;
  for (const GroupLayout::Part& part : arena.groups()->parts()) {
    const PagedGroup& its = arena.groups()->groups()[static_cast<std::size_t>(part.group)];
    growth += its.kind == PagedKind::cross
                  ? rows * (its.limit_tokens / its.block_size_tokens + 1)
                  : options.max_step_tokens / its.block_size_tokens + 2 * rows;
  }
  return growth;
}

/// Checks that the step has at most max_batch_rows rows, which have at most max_batch_blocks
/// entries in each table. While all tables together have fewer, it counts nothing.
Status KvCache::Impl::check_batch(std::span<const AppendDemand> demands) {
  if (std::ssize(demands) > options.max_batch_rows) {
    return limit_exceeded(Resource::num_sequences, demands.size(),
                          static_cast<std::uint64_t>(options.max_batch_rows),
                          Option::max_batch_rows);
  }
  const std::int64_t most = options.max_batch_blocks;
  if (tables->stats().entries + most_growth(std::ssize(demands)) <= most) return {};
  const std::int64_t num_parts =
      arena.groups() == nullptr ? 1 : std::ssize(arena.groups()->parts());
  for (std::int32_t part = 0; part < num_parts; ++part) {
    std::int64_t blocks = 0;
    for (std::size_t i = 0; i < demands.size(); ++i) {
      blocks += kept_after(demands[i], part);
      if (blocks <= most) continue;
      failed_demand = static_cast<std::int64_t>(i);
      return limit_exceeded(Resource::block, static_cast<std::uint64_t>(blocks),
                            static_cast<std::uint64_t>(most), Option::max_batch_blocks,
                            demands[i].sequence.value);
    }
  }
  return {};
}

}  // namespace kvarena
