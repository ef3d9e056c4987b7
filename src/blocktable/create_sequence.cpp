// New sequences: what is checked before one is made, and the prefix that it begins with.

#include "base/range_checks.hpp"
#include "blocktable/block_tables_impl.hpp"
#include "blocktable/group_tables.hpp"
#include "kvarena/blocktable/block_tables.hpp"

namespace kvarena {

Status BlockTables::Impl::check_insert(const SequenceOptions& options) const noexcept {
  if (Status s = check_option(Option::max_length_tokens, options.max_length_tokens, 0, kMaxTokens);
      !s) {
    return s;
  }
  if (Status s = check_option(Option::cross_tokens, options.cross_tokens, 0, max_cross_tokens);
      !s) {
    return s;
  }
  if (!sequences.is_full()) return {};
  return exhausted(Resource::sequence, 1, 0, 0, Option::max_sequences);
}

/// Checks the options of a new sequence that concern the prefix cache. The tokens of an import are
/// told when they are written; a fork has everything of its parent.
Status BlockTables::Impl::check_prefix_options(const SequenceOptions& options,
                                               Origin origin) const noexcept {
  if (prefix == nullptr) return {};
  const std::int64_t count = std::ssize(options.tokens);
  if (origin != Origin::created && count != 0) return invalid_option(Option::tokens, count, 0, 0);
  if (count > kMaxTokens) return invalid_argument(Resource::num_tokens, count, 0, kMaxTokens);
  if (origin != Origin::forked) return prefix->check_keys(options.extra_keys);
  if (options.salt != 0) {
    return invalid_option(Option::salt, static_cast<std::int64_t>(options.salt), 0, 0);
  }
  if (options.extra_keys.empty()) return {};
  return invalid_option(Option::extra_keys, std::ssize(options.extra_keys), 0, 0);
}

Result<SequenceId> BlockTables::Impl::insert_any(const SequenceOptions& options) {
  return groups ? groups->insert(options, 0) : insert(options, 0);
}

/// The prefix is found before the sequence is made, so that a refusal changes nothing.
Result<SequenceId> BlockTables::Impl::create_with_prefix(const SequenceOptions& options) {
  if (Status s = check_prefix_options(options, Origin::created); !s) return s;
  if (options.tokens.empty()) return insert_any(options);
  const std::int64_t most = options.max_length_tokens > 0 ? options.max_length_tokens : kMaxTokens;
  if (Status s = check_insert(options); !s) return s;
  const Result<PrefixMatch> found =
      find_prefix({options.tokens, prefix->known_as(options.salt), options.extra_keys}, 0, most);
  if (!found) return found.status();
  const Result<SequenceId> id = insert_any(options);
  if (!id) return id;
  Sequence& sequence = *sequences.find(*id);
  if (Status s = take_prefix(sequence, options.tokens, *found); !s) {
    prefix->end(prefix_owner(sequence));  // pages are missing, or a block has all its references
    erase(*id, sequence);
    --sequences_ever;
    return s;
  }
  return id;
}

Result<SequenceId> BlockTables::create_sequence(const SequenceOptions& options) {
  return impl_->prefix == nullptr ? impl_->insert_any(options) : impl_->create_with_prefix(options);
}

}  // namespace kvarena
