#pragma once

/// @file
/// `NaivePrefixPool`: what a PrefixPool promises, written as plainly as possible: a registered
/// block is an entry of a map from everything that its content depends on. It has no hash.

#include "kvarena/blocktable/prefix_pool.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <ostream>
#include <span>
#include <utility>
#include <vector>

namespace kvarena::model {

/// A game of PrefixPoolModelTest.
struct PrefixPoolGame {
  const char* name;
  std::int64_t num_blocks;
  std::int32_t block_size;
  int alphabet;
  DuplicateRule duplicates = DuplicateRule::duplicate;
  bool is_told = true;  // of allocations and releases; else only what is safe is compared
};
inline void PrintTo(const PrefixPoolGame& game, std::ostream* out) { *out << game.name; }

/// A sequence of the engine.
struct EngineLine {
  HolderId holder{};
  std::uint64_t salt = 0;
  std::vector<std::int32_t> tokens{};
  std::vector<ExtraKey> keys{};
  std::vector<BlockId> ids{};
  std::vector<Generation> generations{};
  PrefixPosition position{};
  std::uint64_t last = 0;  // the naive index's number of the last registered block; 0: none
};

/// What a prefix pool promises, without hashes.
class NaivePrefixPool {
 public:
  /// The salt, and then for each block its tokens and its extra keys.
  using Content = std::vector<std::int64_t>;
  struct Entry {
    BlockId id{};
    Generation generation{};
    std::uint64_t number = 0;
    bool is_published = false;
  };

  NaivePrefixPool(const BlockManager& manager, const PrefixPoolGame& game)
      : manager_(manager), game_(game) {}

  Content content_of(const EngineLine& line, std::size_t blocks) const {
    Content content{static_cast<std::int64_t>(line.salt)};
    const auto size = static_cast<std::size_t>(game_.block_size);
    for (std::size_t i = 0; i < blocks; ++i) {
      for (std::size_t t = i * size; t < (i + 1) * size; ++t) content.push_back(line.tokens[t]);
      for (std::size_t k = 0; k < 2; ++k) {
        const bool is_here =
            k < line.keys.size() && static_cast<std::size_t>(line.keys[k].first_token) / size == i;
        content.push_back(is_here ? static_cast<std::int64_t>(line.keys[k].key) : -1);
        content.push_back(is_here ? line.keys[k].first_token : -1);
      }
    }
    return content;
  }
  bool is_alive(const Entry& e) const {
    return manager_.generation(e.id) == e.generation &&
           manager_.content(e.id) ==
               (e.is_published ? BlockContent::published : BlockContent::being_written);
  }
  bool is_stale(std::uint64_t last) const {
    return last != 0 && std::ranges::none_of(entries_, [&](const auto& entry) {
             return entry.second.number == last && is_alive(entry.second);
           });
  }

  PrefixMatch match(const EngineLine& line, std::vector<BlockId>& ids) const {
    const auto size = static_cast<std::size_t>(game_.block_size);
    const bool is_capped = !line.tokens.empty() && line.tokens.size() % size == 0;
    PrefixMatch found{.stop = is_capped ? PrefixStop::capped : PrefixStop::less_than_a_block};
    const std::size_t most = std::min(line.tokens.size() / size - (is_capped ? 1 : 0),
                                      static_cast<std::size_t>(game_.num_blocks));
    ids.clear();
    for (std::size_t i = 1; i <= most; ++i) {
      const Content content = content_of(line, i);
      const auto entry = entries_.find(content);
      if (entry == entries_.end()) {
        explain(line, i, content, found);
        break;
      }
      if (!entry->second.is_published) {
        found.stop = PrefixStop::not_yet_published;
        found.pending_block = entry->second.id;
        break;
      }
      ids.push_back(entry->second.id);
    }
    found.blocks = std::ssize(ids);
    found.tokens = found.blocks * game_.block_size;
    return found;
  }
  void count(const EngineLine& line, const PrefixMatch& found) {
    ++stats.queries;
    stats.query_tokens += line.tokens.size();
    stats.hits += found.blocks > 0 ? 1 : 0;
    stats.hit_tokens += static_cast<std::uint64_t>(found.tokens);
    stats.hit_blocks += static_cast<std::uint64_t>(found.blocks);
    ++stats.stops[static_cast<std::size_t>(found.stop)];
  }
  /// Registers blocks [first, end) of a line. Returns how many were not there.
  std::int64_t add(EngineLine& line, std::size_t first, std::size_t end) {
    std::int64_t added = 0;
    for (std::size_t i = first; i < end; ++i) {
      const Content content = content_of(line, i + 1);
      const auto [entry, is_new] = entries_.try_emplace(
          content, Entry{line.ids[i], line.generations[i], numbers_ + 1, false});
      if (is_new) {
        ++numbers_;
        ++added;
        ++stats.registrations;
        const auto tokens =
            static_cast<std::ptrdiff_t>((i + 1) * static_cast<std::size_t>(game_.block_size));
        ever_[{line.tokens.begin(), line.tokens.begin() + tokens}] = {line.salt, content};
      } else if (entry->second.id != line.ids[i]) {
        ++stats.duplicates;
      }
      line.last = entry->second.number;
    }
    return added;
  }
  std::uint64_t last_of(const EngineLine& line, std::size_t blocks) const {
    return blocks == 0 ? 0 : entries_.at(content_of(line, blocks)).number;
  }
  std::int64_t publish(std::span<const BlockId> ids) {
    std::int64_t published = 0;
    for (auto& [content, entry] : entries_) {
      if (entry.is_published || std::ranges::find(ids, entry.id) == ids.end()) continue;
      entry.is_published = true;
      ++published;
    }
    return published;
  }
  void notice(std::span<const BlockId> ids) {
    for (const BlockId id : ids) {
      const auto at = find(id);
      if (at == entries_.end() || is_alive(at->second)) continue;
      remove(at->first, at->second.is_published ? PrefixRemoval::evicted : PrefixRemoval::aborted);
    }
  }
  void forget(std::span<const BlockId> ids) {
    for (std::size_t i = ids.size(); i-- > 0;) {
      const auto at = find(ids[i]);
      if (at == entries_.end()) continue;
      remove(at->first,
             at->second.is_published ? PrefixRemoval::forgotten : PrefixRemoval::aborted);
    }
  }
  void forget_salt(std::uint64_t salt) {
    const auto is_first = [&](const auto& entry) {
      return entry.first[0] == static_cast<std::int64_t>(salt);
    };
    for (auto at = std::ranges::find_if(entries_, is_first); at != entries_.end();
         at = std::ranges::find_if(entries_, is_first)) {
      remove(at->first, PrefixRemoval::forgotten);
    }
  }
  /// By the ids of the blocks.
  void forget_all() {
    for (std::int32_t i = 0; i < game_.num_blocks; ++i) {
      const auto at = find(BlockId(i));
      if (at != entries_.end()) remove(at->first, PrefixRemoval::forgotten);
    }
  }
  PrefixStats now() const {
    PrefixStats result = stats;
    result.registered = std::ssize(entries_);
    result.published = std::ranges::count_if(
        entries_, [](const auto& entry) { return entry.second.is_published; });
    return result;
  }

  PrefixStats stats;

 private:
  std::map<Content, Entry>::iterator find(BlockId id) {
    return std::ranges::find_if(entries_, [&](const auto& e) { return e.second.id == id; });
  }
  /// Everything that begins with the content goes with it.
  void remove(Content content, PrefixRemoval removal) {
    for (auto at = entries_.lower_bound(content); at != entries_.end();) {
      const bool is_behind = at->first.size() >= content.size() &&
                             std::equal(content.begin(), content.end(), at->first.begin());
      if (!is_behind) break;
      const PrefixRemoval cause =
          at->first.size() == content.size() ? removal : PrefixRemoval::parent_removed;
      ++stats.removals;
      ++stats.removals_by[static_cast<std::size_t>(cause)];
      if (at->second.is_published) removed_[at->first] = cause;
      at = entries_.erase(at);
    }
  }
  void explain(const EngineLine& line, std::size_t blocks, const Content& content,
               PrefixMatch& found) const {
    if (const auto removed = removed_.find(content); removed != removed_.end()) {
      found.stop = PrefixStop::evicted;
      found.removal = removed->second;
      return;
    }
    found.stop = PrefixStop::never_seen;
    const auto tokens =
        static_cast<std::ptrdiff_t>(blocks * static_cast<std::size_t>(game_.block_size));
    const auto ever = ever_.find({line.tokens.begin(), line.tokens.begin() + tokens});
    if (ever == ever_.end()) return;
    if (ever->second.first != line.salt) {
      found.stop = PrefixStop::other_salt;
    } else if (ever->second.second != content) {
      found.stop = PrefixStop::other_extra_key;
    }
  }

  const BlockManager& manager_;
  PrefixPoolGame game_;
  std::map<Content, Entry> entries_;
  std::map<Content, PrefixRemoval> removed_;
  std::map<std::vector<std::int32_t>, std::pair<std::uint64_t, Content>> ever_;
  std::uint64_t numbers_ = 0;
};

}  // namespace kvarena::model
