#include "model/naive_prefix.hpp"

#include <algorithm>

namespace kvarena::model {

Status NaiveTables::begin_with(SequenceId id, std::span<const Handle> blocks, std::int64_t length) {
  Sequence& sequence = sequences_.at(id);
  if (Status s = pool_.retain(sequence.holder, blocks); !s) return s;
  sequence.blocks.assign(blocks.begin(), blocks.end());
  sequence.length = length;
  return {};
}

Status NaiveTables::replace(SequenceId id, std::int64_t index, Handle block) {
  Sequence& sequence = sequences_.at(id);
  Handle& own = sequence.blocks[static_cast<std::size_t>(index)];
  if (Status s = pool_.retain(sequence.holder, std::span(&block, 1)); !s) return s;
  static_cast<void>(pool_.release(sequence.holder, std::span(&own, 1)));
  own = block;
  return {};
}

NaivePrefix::NaivePrefix(NaivePool& pool, NaiveTables& tables, const PrefixOptions& options)
    : pool_(pool),
      tables_(tables),
      options_(options),
      block_size_(static_cast<std::size_t>(tables.block_size())) {}

/// Every block adds as many numbers, so that a block's content is a beginning of its children's.
NaivePrefix::Content NaivePrefix::content_of(std::uint64_t salt, std::span<const ExtraKey> keys,
                                             std::span<const std::int32_t> tokens,
                                             std::size_t blocks) const {
  Content content = {static_cast<std::int64_t>(salt)};
  for (std::size_t b = 0; b < blocks; ++b) {
    for (std::size_t i = 0; i < block_size_; ++i) content.push_back(tokens[b * block_size_ + i]);
    const std::size_t before = content.size();
    for (const ExtraKey& key : keys) {
      if (static_cast<std::size_t>(key.first_token) / block_size_ != b) continue;
      content.push_back(static_cast<std::int64_t>(key.key) + 1);
      content.push_back(key.first_token);
    }
    content.resize(before + words_of_keys());
  }
  return content;
}

bool NaivePrefix::begins_with(const Content& content, const Content& beginning) {
  return content.size() >= beginning.size() &&
         std::equal(beginning.begin(), beginning.end(), content.begin());
}

bool NaivePrefix::is_alive(const Entry& entry) const {
  return pool_.generation(entry.block.id) == entry.block.generation &&
         pool_.content(entry.block.id) ==
             (entry.is_published ? BlockContent::published : BlockContent::being_written);
}

const NaivePrefix::Content* NaivePrefix::of_block(BlockId id) const {
  for (const auto& [content, entry] : entries_) {
    if (entry.block.id == id) return &content;
  }
  return nullptr;
}

/// Children go before their parents, those registered last first.
void NaivePrefix::remove(Content top, PrefixRemoval removal) {
  const std::size_t step = block_size_ + words_of_keys();
  std::vector<std::pair<std::uint64_t, Content>> children;
  for (auto at = entries_.lower_bound(top); at != entries_.end() && begins_with(at->first, top);
       ++at) {
    if (at->first.size() == top.size() + step) children.emplace_back(at->second.number, at->first);
  }
  std::sort(children.rbegin(), children.rend());
  for (const auto& [number, child] : children) remove(child, PrefixRemoval::parent_removed);
  const Entry entry = entries_.at(top);
  if (is_alive(entry)) static_cast<void>(pool_.set_content(entry.block, BlockContent::unwritten));
  ++stats_.removals;
  ++stats_.removals_by[static_cast<std::size_t>(removal)];
  if (entry.is_published) removed_[top] = {stats_.removals, removal};
  leave(top, entry);
  entries_.erase(top);
}

PrefixMatch NaivePrefix::match(const PrefixQuery& query) const {
  const std::size_t full = query.tokens.size() / block_size_;
  const bool is_capped = full > 0 && query.tokens.size() % block_size_ == 0;
  const std::size_t most =
      std::min(is_capped ? full - 1 : full, static_cast<std::size_t>(pool_.num_blocks()));
  PrefixMatch match{.stop = is_capped ? PrefixStop::capped : PrefixStop::less_than_a_block};
  for (std::size_t b = 1; b <= most; ++b) {
    const Content content = content_of(query.salt, query.extra_keys, query.tokens, b);
    const auto found = entries_.find(content);
    if (found != entries_.end() && found->second.is_published && is_alive(found->second) &&
        pool_.can_be_found(found->second.block.id)) {
      match.blocks = static_cast<std::int64_t>(b);
      continue;
    }
    if (found != entries_.end() && found->second.is_published) {
      match.stop = PrefixStop::evicted;
      match.removal = PrefixRemoval::lost;
    } else if (found != entries_.end()) {
      match.stop = PrefixStop::not_yet_published;
      match.pending_block = found->second.block.id;
    } else if (const auto gone = removed_.find(content); gone != removed_.end()) {
      match.stop = PrefixStop::evicted;
      match.removal = gone->second.second;
      match.removal_serial = gone->second.first;
      if (const auto its = takers_.find(match.removal_serial); its != takers_.end()) {
        match.removal_time = its->second.time;
        if (its->second.salt == query.salt) match.removal_by = its->second.by;
      }
    } else {
      match.stop = PrefixStop::never_seen;
      const auto seen = ever_.find(content_of(0, {}, query.tokens, b));
      if (seen != ever_.end() && seen->second.first != query.salt) {
        match.stop = PrefixStop::other_salt;
      } else if (seen != ever_.end() && seen->second.second != content) {
        match.stop = PrefixStop::other_extra_key;
      }
    }
    break;
  }
  match.tokens = match.blocks * static_cast<std::int64_t>(block_size_);
  static_cast<void>(find_part(query, match));
  return match;
}

void NaivePrefix::begin(SequenceId id, const SequenceOptions& options) {
  Sequence& s = sequences_[id];
  s.salt = options.salt;
  s.keys.assign(options.extra_keys.begin(), options.extra_keys.end());
  s.has_account = accounts_.contains(s.salt);
  if (s.has_account) ++accounts_.at(s.salt).sequences;
}

void NaivePrefix::adopted(SequenceId id, std::span<const std::int32_t> tokens,
                          const PrefixMatch& match) {
  Sequence& s = sequences_.at(id);
  const auto count = static_cast<std::size_t>(match.tokens);
  s.known.assign(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count));
  for (std::size_t b = 1; b <= count / block_size_; ++b) {
    s.chain.push_back(entries_.at(content_of(s, b)).number);
  }
  s.published = s.chain.size();
  ++stats_.queries;
  stats_.query_tokens += tokens.size();
  stats_.hits += match.blocks > 0 ? 1 : 0;
  stats_.hit_blocks += static_cast<std::uint64_t>(match.blocks);
  stats_.hit_tokens += count;
  ++stats_.stops[static_cast<std::size_t>(match.stop)];
}

void NaivePrefix::abort_written(SequenceId id) {
  const Sequence& s = sequences_.at(id);
  const std::vector<Handle>& table = tables_.sequences().at(id).blocks;
  for (std::size_t i = s.chain.size(); i-- > s.published;) {
    const Content* content = of_block(table[i].id);
    if (content == nullptr) continue;
    const Entry& entry = entries_.at(*content);
    if (!entry.is_published && entry.writer == id) remove(*content, PrefixRemoval::aborted);
  }
}

bool NaivePrefix::is_whole(const Sequence& s) const {
  if (s.chain.empty()) return false;
  const auto last = entries_.find(content_of(s, s.chain.size()));
  return last != entries_.end() && last->second.number == s.chain.back();
}

bool NaivePrefix::holds_together(SequenceId id) {
  Sequence& s = sequences_.at(id);
  if (s.chain.empty() || is_whole(s)) return true;
  ++stats_.broken_chains;
  abort_written(id);
  s.known.clear();
  s.chain.clear();
  s.published = 0;
  s.has_equals = false;
  return false;
}

bool NaivePrefix::add_block(SequenceId id) {
  Sequence& s = sequences_.at(id);
  const std::size_t index = s.chain.size();
  const Content content = content_of(s, index + 1);
  const Handle own = tables_.sequences().at(id).blocks[index];
  auto found = entries_.find(content);
  if (found != entries_.end() && !is_alive(found->second)) {
    remove(content, PrefixRemoval::lost);
    found = entries_.end();
  }
  if (found != entries_.end()) {
    if (found->second.block.id != own.id) {
      ++stats_.duplicates;
      s.has_equals = true;
    }
    s.chain.push_back(found->second.number);
    return true;
  }
  if (const Content* before = of_block(own.id); before != nullptr) {
    remove(*before, PrefixRemoval::lost);
  }
  keep_cap(s);
  const bool has_parent =
      s.chain.empty() || (entries_.contains(content_of(s, index)) &&
                          entries_.at(content_of(s, index)).number == s.chain.back());
  if (!has_parent || pool_.content(own.id) != BlockContent::unwritten) return false;
  static_cast<void>(pool_.set_content(own, BlockContent::being_written));
  entries_[content] = {own, id, ++numbers_, false, s.has_account};
  ++stats_.registrations;
  ever_[content_of(0, {}, s.known, index + 1)] = {s.salt, content};
  s.chain.push_back(numbers_);
  return true;
}

void NaivePrefix::add_tokens(SequenceId id, std::span<const std::int32_t> tokens) {
  Sequence& s = sequences_.at(id);
  for (const std::int32_t token : tokens) {
    if ((s.known.size() + 1) % block_size_ == 0 && !holds_together(id)) return;
    s.known.push_back(token);
    if (s.known.size() % block_size_ != 0 || add_block(id)) continue;
    ++stats_.broken_chains;
    s.known.resize(s.known.size() - block_size_);
    return;
  }
}

void NaivePrefix::publish(SequenceId id, std::int64_t length) {
  Sequence& s = sequences_.at(id);
  const std::size_t end = std::min(s.chain.size(), static_cast<std::size_t>(length) / block_size_);
  if (end <= s.published || !holds_together(id)) return;
  const std::vector<Handle>& table = tables_.sequences().at(id).blocks;
  for (std::size_t i = s.published; i < end; ++i) {
    Entry& entry = entries_.at(content_of(s, i + 1));
    if (entry.block.id != table[i].id || entry.is_published || entry.writer != id) continue;
    if (!is_alive(entry)) {
      remove(content_of(s, i + 1), PrefixRemoval::lost);
      static_cast<void>(holds_together(id));
      return;
    }
    static_cast<void>(pool_.set_content(entry.block, BlockContent::published));
    entry.is_published = true;
  }
  const bool may_share =
      options_.duplicates == DuplicateRule::share && pool_.open_tickets().empty();
  if (s.has_equals && may_share) {
    for (std::size_t i = end; i-- > s.published;) {
      const Entry& entry = entries_.at(content_of(s, i + 1));
      if (entry.block.id == table[i].id || !entry.is_published) continue;
      if (!is_alive(entry) || !pool_.can_be_found(entry.block.id)) continue;
      if (tables_.replace(id, static_cast<std::int64_t>(i), entry.block)) ++stats_.shared;
    }
    s.has_equals = end < s.chain.size();
  }
  s.published = end;
}

void NaivePrefix::register_tokens(SequenceId id, std::span<const std::int32_t> tokens) {
  const Sequence& s = sequences_.at(id);
  for (const std::int32_t& token : tokens) {
    if (std::ssize(s.known) + (&token - tokens.data()) < s.doubt) continue;
    return add_tokens(id, tokens.first(static_cast<std::size_t>(&token - tokens.data())));
  }
  add_tokens(id, tokens);
}

void NaivePrefix::cut(SequenceId id, std::int64_t length) {
  Sequence& s = sequences_.at(id);
  const auto keep = static_cast<std::size_t>(length) / block_size_;
  const bool is_cut = length < tables_.sequences().at(id).length;
  if (is_cut && !is_whole(s) && has_registered(id, keep)) give_up(id);
  if (s.doubt >= length) s.doubt = std::int64_t{1} << 60;
  untell(id, length);
}

void NaivePrefix::distrust(SequenceId id, std::int64_t length) {
  if (length == tables_.sequences().at(id).length) return;
  untell(id, length);
  static_cast<void>(holds_together(id));
  Sequence& s = sequences_.at(id);
  s.doubt = std::min(s.doubt, length);
}

void NaivePrefix::untell(SequenceId id, std::int64_t length) {
  Sequence& s = sequences_.at(id);
  const auto keep = static_cast<std::size_t>(length) / block_size_;
  if (static_cast<std::int64_t>(s.known.size()) <= length) return;
  if (keep < s.chain.size()) {
    if (!holds_together(id)) return;
    if (keep < s.published) give_up(id);
    const std::vector<Handle>& table = tables_.sequences().at(id).blocks;
    for (std::size_t i = s.chain.size(); i-- > keep;) {
      const Content content = content_of(s, i + 1);
      const auto found = entries_.find(content);
      if (found == entries_.end() || found->second.is_published) continue;
      if (found->second.block.id == table[i].id && found->second.writer == id) {
        remove(content, PrefixRemoval::aborted);
      }
    }
    s.chain.resize(keep);
    s.published = std::min(s.published, keep);
  }
  s.known.resize(static_cast<std::size_t>(length));
}

void NaivePrefix::end(SequenceId id) {
  give_up(id);
  abort_written(id);
  if (Account* account = account_of(sequences_.at(id)); account != nullptr) --account->sequences;
  sequences_.erase(id);
}

void NaivePrefix::fork(SequenceId parent, SequenceId child, std::int64_t length) {
  Sequence& c = sequences_[child];
  c.salt = sequences_.at(parent).salt;
  c.has_account = accounts_.contains(c.salt);
  if (c.has_account) ++accounts_.at(c.salt).sequences;
  c.keys = sequences_.at(parent).keys;
  if (sequences_.at(parent).doubt < length) c.doubt = sequences_.at(parent).doubt;
  if (!holds_together(parent)) return;
  const Sequence& p = sequences_.at(parent);
  const std::size_t keep = std::min(p.published, static_cast<std::size_t>(length) / block_size_);
  c.chain.assign(p.chain.begin(), p.chain.begin() + static_cast<std::ptrdiff_t>(keep));
  c.published = keep;
  std::size_t known = std::min(p.known.size(), static_cast<std::size_t>(length));
  if (known - keep * block_size_ >= block_size_) known = keep * block_size_;
  c.known.assign(p.known.begin(), p.known.begin() + static_cast<std::ptrdiff_t>(known));
}

void NaivePrefix::forget(SequenceId id) {
  Sequence& s = sequences_.at(id);
  if (s.chain.empty() || !holds_together(id)) return;
  remove(content_of(s, 1), PrefixRemoval::forgotten);
  abort_written(id);
  s.known.clear();
  s.chain.clear();
  s.published = 0;
  s.has_equals = false;
}

/// By block, as the real one, so that the order of the free blocks is the same.
void NaivePrefix::forget_salt(std::uint64_t salt) {
  for (std::int32_t i = 0; i < pool_.num_blocks(); ++i) {
    const Content* content = of_block(BlockId(i));
    if (content == nullptr || content->front() != static_cast<std::int64_t>(salt)) continue;
    const auto words = static_cast<std::ptrdiff_t>(1 + block_size_ + words_of_keys());
    const Content first(content->begin(), content->begin() + words);
    if (*content == first) remove(first, PrefixRemoval::forgotten);
  }
}

void NaivePrefix::forget_all() {
  for (std::int32_t i = 0; i < pool_.num_blocks(); ++i) {
    if (const Content* content = of_block(BlockId(i)); content != nullptr) {
      remove(*content, PrefixRemoval::forgotten);
    }
  }
}

void NaivePrefix::evicted(std::span<const BlockId> ids,
                          const std::map<BlockId, SequenceId>& takers) {
  for (const BlockId id : ids) {
    const Content* content = of_block(id);
    if (content == nullptr) continue;
    const auto taker = takers.find(id);
    if (taker != takers.end()) {
      remove_for(taker->second, *content);
    } else {
      remove(*content, PrefixRemoval::evicted);
    }
  }
}

/// With what lies behind it.
void NaivePrefix::remove_for(SequenceId taker, Content top) {
  std::uint64_t serial = stats_.removals;
  remove(std::move(top), PrefixRemoval::evicted);
  while (serial++ < stats_.removals) {
    takers_[serial] = {taker, sequences_.at(taker).salt, pool_.clock()};
  }
}

PrefixStats NaivePrefix::stats() const {
  PrefixStats stats = stats_;
  stats.registered = static_cast<std::int64_t>(entries_.size());
  stats.published = std::count_if(entries_.begin(), entries_.end(),
                                  [](const auto& pair) { return pair.second.is_published; });
  return stats;
}

}  // namespace kvarena::model
