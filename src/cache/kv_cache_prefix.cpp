// The prefix cache of a KvCache: what an engine does with it beside the steps.

#include "cache/group_plan.hpp"
#include "cache/kv_cache_impl.hpp"
#include "kvarena/cache/kv_cache.hpp"

#include <algorithm>

namespace kvarena {

/// A sequence that begins with blocks of others may continue in one of them after a cut. The steps
/// that have ended were to write them.
void KvCache::Impl::note_prefix(SequenceId sequence) noexcept {
  const Result<PrefixMatch> found = tables->prefix_of(sequence);
  if (!found || found->blocks == 0) return;
  if (scrubs) scrubs->note_foreign_tails();
  if (step > 0) in_flight->note(sequence, 0, step - 1);
}

/// Publishes what the step has filled, unless it left K and V or the index of a layer unwritten.
void KvCache::Impl::settle_tokens() noexcept {
  if (!told) return;
  const bool is_written =
      phase == StepPhase::replaying || (kv_written.is_whole() && index_written.is_whole());
  if (is_written) {
    told->publish(*tables);
  } else {
    told->withdraw(*tables);
  }
}

/// What is about to be published may be given up for equal blocks of steps that have ended.
void KvCache::Impl::note_sharing(SequenceId sequence) noexcept {
  if (options.prefix_cache.duplicates != DuplicateRule::share || !told || step == 0) return;
  const Result<SequenceInfo> info = tables->info(sequence);
  if (!info) return;
  const std::int64_t size = options.layout.block_size_tokens;
  in_flight->note(sequence, info->published_blocks * size, step - 1);
}

Result<PrefixMatch> KvCache::adopt(SequenceId sequence, std::span<const std::int32_t> tokens) {
  impl_->notice_lost_steps(impl_->step);
  Result<PrefixMatch> found = impl_->tables->adopt(sequence, tokens);
  if (found) impl_->note_prefix(sequence);
  return found;
}

/// What a step is about to write cannot be published before its end.
Status KvCache::register_tokens(SequenceId sequence, std::span<const std::int32_t> tokens) {
  Impl& c = *impl_;
  if (c.has_work()) {
    return out_of_order(StepCall::register_tokens, c.phase, c.step);
  }
  c.notice_lost_steps(c.step);
  c.note_sharing(sequence);
  if (Status s = c.tables->register_tokens(sequence, tokens); !s) return s;
  return c.tables->publish(sequence);
}

Status KvCache::forget(SequenceId sequence) { return impl_->tables->forget(sequence); }
Status KvCache::forget_salt(std::uint64_t salt) { return impl_->tables->forget_salt(salt); }
Status KvCache::forget_all() { return impl_->tables->forget_all(); }

/// Says it for the blocks of a range of tokens in one table. Blocks that are not published have no
/// retention, and of those that a window has given up the sequence knows nothing.
Result<std::int64_t> KvCache::Impl::retain_blocks(SequenceId sequence, TokenRange range,
                                                  std::int64_t block_size, std::int32_t part,
                                                  const RetentionHint& hint) {
  std::int64_t set = 0;
  for (std::int64_t i = range.begin / block_size; i * block_size < range.end; ++i) {
    const BlockId block = *tables->lookup(sequence, i, part);
    if (block == kNoBlock || manager.content(block) != BlockContent::published) continue;
    if (Status s = manager.set_retention(block, manager.generation(block), hint); !s) return s;
    ++set;
  }
  return set;
}

Result<std::int64_t> KvCache::set_retention(SequenceId sequence, std::int64_t first_token,
                                            std::int64_t num_tokens, const RetentionHint& hint) {
  Impl& c = *impl_;
  const Result<SequenceInfo> info = c.tables->info(sequence);
  if (!info) return info.status();
  const std::int64_t length = info->length_tokens;
  if (Status s = check_range(Resource::token_index, first_token, 0, length); !s) return s;
  if (Status s = check_range(Resource::num_tokens, num_tokens, 0, length - first_token); !s) {
    return s;
  }
  if (c.options.eviction != EvictionPolicy::priority) {
    return unsupported_option(Option::eviction, static_cast<std::uint64_t>(c.options.eviction));
  }
  const std::int64_t end = num_tokens == 0 ? 0 : first_token + num_tokens;
  const GroupLayout* const groups = c.arena.groups();
  if (groups == nullptr) {
    return c.retain_blocks(sequence, {first_token, end}, c.options.layout.block_size_tokens, 0,
                           hint);
  }
  std::int64_t set = 0;
  for (std::size_t part = 0; part < groups->parts().size(); ++part) {
    const TableGroup its = table_group(*groups, part);
    if (its.kind == PagedKind::cross) continue;
    const Result<std::int64_t> of_part = c.retain_blocks(
        sequence, {first_token, end}, its.block_size_tokens, static_cast<std::int32_t>(part), hint);
    if (!of_part) return of_part;
    set += *of_part;
  }
  return set;
}

Status KvCache::advance_clock(std::int64_t now) { return impl_->manager.advance_clock(now); }

Status KvCache::set_salt_limits(std::uint64_t salt, const SaltLimits& limits) {
  return impl_->tables->set_salt_limits(salt, limits);
}

Status KvCache::close_salt_account(std::uint64_t salt) {
  return impl_->tables->close_salt_account(salt);
}

}  // namespace kvarena
