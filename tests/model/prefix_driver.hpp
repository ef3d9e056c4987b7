#pragma once

/// @file
/// `PrefixDriver`: plays operations on block tables with a prefix cache and on the naive model, and
/// compares everything that can be seen after each.

#include "kvarena/blocktable/block_tables.hpp"
#include "model/naive_pool.hpp"
#include "model/naive_prefix.hpp"
#include "model/naive_tables.hpp"

#include <array>
#include <cstdint>
#include <map>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace kvarena::model {

/// The sizes of a game.
struct PrefixGame {
  std::string name;
  std::int64_t num_blocks = 12;
  std::int32_t block_size = 2;
  std::int32_t max_sequences = 6;
  DuplicateRule duplicates = DuplicateRule::duplicate;
  std::int32_t alphabet = 2;   ///< different tokens
  std::int32_t num_salts = 2;  ///< tenants
  std::int32_t longest = 12;   ///< tokens of a prompt
  bool has_outsiders = true;   ///< others allocate, quarantine and set contents
  bool has_limits = false;     ///< salts have floors and caps, which change
  bool shares_parts = false;   ///< PrefixOptions::share_parts
  EvictionPolicy eviction = EvictionPolicy::tail_first;  ///< of the pool
  std::array<std::uint64_t, 2> hash_key{7, 1};           ///< PrefixOptions::hash_key
  OperationLog* log = nullptr;                           ///< of the pool
  std::uint64_t seed = 1;
};

/// Plays one game.
class PrefixDriver {
 public:
  explicit PrefixDriver(const PrefixGame& game);
  /// Plays random operations. Empty, or what differed at which operation.
  std::string play(std::int64_t operations);
  /// Plays one operation of the enumeration, 0 .. kNumSteps - 1. The first kNumBeginnings need no
  /// sequence; the others do nothing without one.
  void step(int number);
  /// The same with other operations: another salt, tokens that are told later, a part that is
  /// published, what is forgotten.
  void other_step(int number);
  static constexpr int kNumSteps = 7;
  static constexpr int kNumBeginnings = 2;
  /// Compares both sides.
  void compare();
  /// Destroys everything and forgets it, for the next program.
  void clear();
  const std::string& failure() const { return failure_; }
  /// How often each operation ended in each way, and each stop of a match.
  const std::map<std::string, std::uint64_t>& outcomes() const { return outcomes_; }

 private:
  using Tokens = std::vector<std::int32_t>;
  struct Move {
    const char* name;
    int weight;
    void (PrefixDriver::*play)();
  };
  static std::span<const Move> moves();

  void create_sequence();
  void fork_sequence();
  void append_tokens();
  void decode_step();
  void register_tokens();
  void doubt_tokens();
  void publish();
  void truncate();
  void destroy();
  void forget();
  void ask();
  void pin_or_unpin();
  void play_outsider();
  void set_limits();
  void set_retention();
  void advance_clock();

  void set_limits(std::uint64_t salt, const SaltLimits& limits);
  void create(const Tokens& prompt, const SequenceOptions& options);
  void append(SequenceId id, const Tokens& tokens, bool tells);
  void fork(SequenceId parent, std::int64_t length);
  void truncate(SequenceId id, std::int64_t length);
  void publish(SequenceId id, std::int64_t length);
  void destroy(SequenceId id);
  void compare_match(const PrefixQuery& query);
  void compare_match(const PrefixMatch& real, const PrefixMatch& model);
  void compare_stats();
  void compare_salts();
  void expect(std::int64_t real, std::int64_t predicted, const std::string& what);
  void expect(const Status& real, const Status& predicted, const char* what);
  void fail(const std::string& what);

  std::uint64_t below(std::uint64_t end) { return end == 0 ? 0 : random_() % end; }
  bool one_in(std::uint64_t n) { return below(n) == 0; }
  Tokens any_tokens(std::size_t at_most);
  SequenceId any_sequence() {
    return living_.empty() ? kNoSequence : living_[below(living_.size())];
  }
  std::int64_t length_of(SequenceId id) const { return naive_.sequences().at(id).length; }

  PrefixGame game_;
  std::mt19937_64 random_;
  BlockManager manager_;
  BlockTables tables_;
  NaivePool pool_;
  NaiveTables naive_;
  NaivePrefix prefix_;
  std::vector<SequenceId> living_;
  std::map<SequenceId, Tokens> prompts_;  // tokens still to come
  std::array<ExtraKey, 2> keys_{};
  HolderId outsider_;
  std::vector<Handle> outside_;
  std::vector<Ticket> tickets_;
  std::int64_t operation_ = 0;
  const char* move_ = "create";
  std::string failure_;
  std::map<std::string, std::uint64_t> outcomes_;
};

}  // namespace kvarena::model
