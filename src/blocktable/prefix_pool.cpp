// The public calls of PrefixPool.

#include "kvarena/blocktable/prefix_pool.hpp"

#include "base/range_checks.hpp"
#include "blocktable/prefix_blocks.hpp"

#include <algorithm>
#include <new>
#include <utility>

namespace kvarena {
namespace {

constexpr std::int64_t kMaxBlockSize = 65536;

/// The options as the cache of tables has them.
BlockTablesOptions tables_of(const PrefixPoolOptions& options) noexcept {
  BlockTablesOptions result;
  result.block_size_tokens = options.block_size_tokens;
  result.max_sequences = 0;
  result.prefix_cache = options.prefix;
  result.prefix_cache.is_on = true;
  return result;
}

/// What only tables can do.
Status check_supported(const BlockManager& manager, const PrefixOptions& options) noexcept {
  if (!manager.groups().empty()) return unsupported(Resource::num_groups, manager.groups().size());
  if (options.duplicates == DuplicateRule::share) {
    return unsupported_option(Option::duplicates, static_cast<std::uint64_t>(options.duplicates));
  }
  if (options.share_parts) return unsupported_option(Option::share_parts, 1);
  if (options.max_accounts == 0) return {};
  return unsupported_option(Option::max_accounts, static_cast<std::uint64_t>(options.max_accounts));
}

Status check_spans(std::span<const BlockId> ids, std::span<const Generation> generations) noexcept {
  if (generations.size() == ids.size()) return {};
  return invalid_argument(Resource::span_size, std::ssize(generations), std::ssize(ids),
                          std::ssize(ids));
}

}  // namespace

struct PrefixPool::Impl {
  Impl(BlockManager& manager, const BlockTablesOptions& options) : blocks(manager, options) {}

  PrefixBlocks blocks;
};

PrefixPool::PrefixPool(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
PrefixPool::PrefixPool(PrefixPool&&) noexcept = default;

PrefixPool& PrefixPool::operator=(PrefixPool&& other) noexcept {
  PrefixPool old(std::move(*this));  // forgets the blocks that were here
  impl_ = std::move(other.impl_);
  return *this;
}

PrefixPool::~PrefixPool() {
  if (impl_ != nullptr) impl_->blocks.cache().forget_all();
}

Result<PrefixPool> PrefixPool::create(BlockManager& manager, const PrefixPoolOptions& options) {
  if (Status s =
          check_option(Option::block_size_tokens, options.block_size_tokens, 1, kMaxBlockSize);
      !s) {
    return s;
  }
  BlockTablesOptions its = tables_of(options);
  if (Status s = PrefixCache::prepare(its, manager); !s) return s;
  if (Status s = check_supported(manager, options.prefix); !s) return s;
  try {
    return PrefixPool(std::make_unique<Impl>(manager, its));
  } catch (const std::bad_alloc&) {
    return exhausted(Resource::host_memory,
                     static_cast<std::uint64_t>(PrefixBlocks::bytes(manager.num_blocks(), its)), 0);
  }
}

std::int64_t PrefixPool::host_bytes(std::int64_t num_blocks,
                                    const PrefixPoolOptions& options) noexcept {
  return PrefixBlocks::bytes(num_blocks, tables_of(options));
}

PrefixPosition PrefixPool::begin(std::uint64_t salt) const noexcept {
  return impl_->blocks.begin(salt);
}

Result<PrefixMatch> PrefixPool::match(const PrefixQuery& query, std::span<BlockId> ids,
                                      std::span<Generation> generations) const {
  if (Status s = check_spans(ids, generations); !s) return s;
  PrefixBlocks& blocks = impl_->blocks;
  const Result<PrefixMatch> found = blocks.match(query);
  if (!found) return found;
  const auto count = std::min(ids.size(), static_cast<std::size_t>(found->blocks));
  std::ranges::copy(blocks.found_ids(*found).first(count), ids.begin());
  std::ranges::copy(blocks.found_generations(*found).first(count), generations.begin());
  return found;
}

Result<PrefixAdoption> PrefixPool::adopt(HolderId holder, const PrefixQuery& query,
                                         std::span<BlockId> ids,
                                         std::span<Generation> generations) {
  if (Status s = check_spans(ids, generations); !s) return s;
  PrefixBlocks& blocks = impl_->blocks;
  const Result<PrefixMatch> found = blocks.match(query);
  if (!found) return found.status();
  if (std::ssize(ids) < found->blocks) {
    return invalid_argument(Resource::span_size, std::ssize(ids), found->blocks, -1);
  }
  const Result<PrefixPosition> end = blocks.take(holder, query, *found);
  if (!end) return end.status();
  std::ranges::copy(blocks.found_ids(*found), ids.begin());
  std::ranges::copy(blocks.found_generations(*found), generations.begin());
  return PrefixAdoption{*found, *end};
}

Result<std::int64_t> PrefixPool::register_blocks(PrefixPosition& position,
                                                 std::span<const std::int32_t> tokens,
                                                 std::span<const BlockId> ids,
                                                 std::span<const Generation> generations,
                                                 std::span<const ExtraKey> extra_keys) {
  return impl_->blocks.add(position, {tokens, {ids, generations}, extra_keys});
}

Result<std::int64_t> PrefixPool::publish(std::span<const BlockId> ids,
                                         std::span<const Generation> generations) {
  return impl_->blocks.publish({ids, generations});
}

Status PrefixPool::forget(std::span<const BlockId> ids) { return impl_->blocks.forget(ids); }
void PrefixPool::forget_salt(std::uint64_t salt) noexcept {
  impl_->blocks.cache().forget_salt(salt);
}
void PrefixPool::forget_all() noexcept { impl_->blocks.cache().forget_all(); }
void PrefixPool::notice(std::span<const BlockId> ids) noexcept { impl_->blocks.notice(ids); }

std::int32_t PrefixPool::block_size_tokens() const noexcept { return impl_->blocks.block_size(); }
PrefixStats PrefixPool::stats() const noexcept { return impl_->blocks.cache().stats(); }
PrefixUse PrefixPool::use() const noexcept { return impl_->blocks.cache().use(); }
Status PrefixPool::check_invariants() const { return impl_->blocks.check(); }

}  // namespace kvarena
