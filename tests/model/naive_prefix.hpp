#pragma once

/// @file
/// `NaivePrefix`: what the prefix cache of BlockTables promises, over a NaivePool and NaiveTables,
/// written as plainly as possible: a registered block is an entry of a map from everything that its
/// content depends on. It has no hash.

#include "kvarena/blocktable/block_tables.hpp"
#include "model/naive_tables.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace kvarena::model {

/// The plain model of a prefix cache.
class NaivePrefix {
 public:
  /// The salt, and then for each block its tokens and its extra keys.
  using Content = std::vector<std::int64_t>;
  struct Sequence {
    std::uint64_t salt = 0;
    std::vector<ExtraKey> keys;
    std::vector<std::int32_t> known;   // tokens told
    std::vector<std::uint64_t> chain;  // entries of its leading blocks
    std::size_t published = 0;
    bool has_equals = false;
    bool has_account = false;                    // its salt had one when it began
    std::int64_t doubt = std::int64_t{1} << 60;  // the first token that may be unwritten
  };
  /// A salt with limits.
  struct Account {
    SaltLimits limits;
    HolderId holder;            // of the floor
    std::vector<Content> idle;  // given up and not kept, oldest first
    std::vector<Content> kept;  // by the floor, oldest first
    std::int64_t sequences = 0;
  };
  struct Entry {
    Handle block;
    SequenceId writer;
    std::uint64_t number = 0;
    bool is_published = false;
    bool has_account = false;
  };

  NaivePrefix(NaivePool& pool, NaiveTables& tables, const PrefixOptions& options);

  PrefixMatch match(const PrefixQuery& query) const;
  /// The blocks that a sequence begins with, and what is covered then: perhaps without the part.
  std::vector<Handle> blocks_to_take(const PrefixQuery& query, PrefixMatch& match) const;
  void begin(SequenceId id, const SequenceOptions& options);
  void adopted(SequenceId id, std::span<const std::int32_t> tokens, const PrefixMatch& match);
  void fork(SequenceId parent, SequenceId child, std::int64_t length);
  void add_tokens(SequenceId id, std::span<const std::int32_t> tokens);
  void publish(SequenceId id, std::int64_t length);
  /// Tells tokens that no append has told: not those that may be unwritten.
  void register_tokens(SequenceId id, std::span<const std::int32_t> tokens);
  void untell(SequenceId id, std::int64_t length);
  void cut(SequenceId id, std::int64_t length);
  void distrust(SequenceId id, std::int64_t length);
  void end(SequenceId id);
  void forget(SequenceId id);
  void forget_salt(std::uint64_t salt);
  void forget_all();
  /// The tables' own allocation has evicted these, for these sequences.
  void evicted(std::span<const BlockId> ids, const std::map<BlockId, SequenceId>& takers);
  const Sequence& sequence(SequenceId id) const { return sequences_.at(id); }
  PrefixStats stats() const;

  // naive_salts.cpp
  /// The real tables have set these limits, and `holder` is that of the floor.
  void set_limits(std::uint64_t salt, const SaltLimits& limits, HolderId holder);
  void close_account(std::uint64_t salt) { accounts_.erase(salt); }
  bool has_account(std::uint64_t salt) const { return accounts_.contains(salt); }
  SaltFigures figures(std::uint64_t salt) const;
  /// Lets floors go for an append that wants more blocks than there are.
  void yield(std::span<const AppendDemand> demands, std::span<const Want> wants);

 private:
  Content content_of(std::uint64_t salt, std::span<const ExtraKey> keys,
                     std::span<const std::int32_t> tokens, std::size_t blocks) const;
  Content content_of(const Sequence& s, std::size_t blocks) const {
    return content_of(s.salt, s.keys, s.known, blocks);
  }
  /// What the extra keys of a block take in a content: ids and first tokens.
  std::size_t words_of_keys() const {
    return 2 * static_cast<std::size_t>(options_.max_extra_keys);
  }
  static bool begins_with(const Content& content, const Content& beginning);
  bool is_alive(const Entry& entry) const;
  bool add_block(SequenceId id);
  bool is_whole(const Sequence& s) const;
  bool holds_together(SequenceId id);
  void abort_written(SequenceId id);
  void remove_for(SequenceId taker, Content top);
  void remove(Content content, PrefixRemoval removal);
  const Content* of_block(BlockId id) const;
  // naive_parts.cpp
  std::vector<Handle> blocks_of(const PrefixQuery& query, const PrefixMatch& match) const;
  std::vector<std::int64_t> words_of(const Content& content, std::size_t token) const;
  std::optional<Handle> find_part(const PrefixQuery& query, PrefixMatch& match) const;
  // naive_salts.cpp
  Account* account_of(const Sequence& sequence);
  std::int64_t registered_of(std::uint64_t salt) const;
  void let_go(Account& account, const Content& content);
  bool comes_back(const Content& content) const;
  bool has_registered(SequenceId id, std::size_t number) const;
  std::vector<Content> registered_prefix(SequenceId id) const;
  void give_up(SequenceId id);
  bool give_up(Account& account, const Content& content, std::size_t number);
  void keep_floor(Account& account);
  void leave(const Content& content, const Entry& entry);
  void keep_cap(const Sequence& sequence);

  NaivePool& pool_;
  NaiveTables& tables_;
  PrefixOptions options_;
  std::size_t block_size_;
  std::map<Content, Entry> entries_;
  std::map<Content, std::pair<std::uint64_t, PrefixRemoval>> removed_;
  struct Taker {
    SequenceId by;
    std::uint64_t salt = 0;
    std::int64_t time = 0;
  };
  std::map<std::uint64_t, Taker> takers_;                      // by serial of a removal
  std::map<Content, std::pair<std::uint64_t, Content>> ever_;  // by tokens: salt and content
  std::map<SequenceId, Sequence> sequences_;
  std::map<std::uint64_t, Account> accounts_;
  std::uint64_t numbers_ = 0;
  PrefixStats stats_;
};

}  // namespace kvarena::model
