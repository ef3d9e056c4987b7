#pragma once

/// @file
/// An engine with block tables of its own: a BlockManager, its PrefixPool, and memory that is
/// simulated. It knows what each party was promised: which tokens, of which tenant, a block holds
/// that a sequence has written or was given. It never knows which block it gets, what is found or
/// what is evicted.

#include "effects/program.hpp"
#include "effects/simulated_memory.hpp"

#include "kvarena/allocator/block_manager.hpp"
#include "kvarena/blocktable/prefix_pool.hpp"

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace kvarena::test {

/// Sizes of the pool, and the habits of its engine.
struct PrefixSiteOptions {
  std::int64_t num_blocks = 8;
  std::int32_t block_size_tokens = 2;
  std::int32_t max_sequences = 4;
  std::int32_t max_extra_keys = 0;
  DuplicateRule duplicates = DuplicateRule::duplicate;
  EvictionPolicy eviction = BlockManagerOptions{}.eviction;
  std::uint32_t telling = 0;  ///< of `notice`: 0 always, 1 sometimes, 2 never
};

/// Plays operations. Numbers are resolved modulo what exists; an operation that nothing exists for,
/// or that the contract forbids an engine, is skipped.
class PrefixSite {
 public:
  using Numbers = std::array<std::uint32_t, 4>;

  PrefixSite(const PrefixSiteOptions& options, Story& story);

  // Sequences: prefix_site_sequences.cpp.
  void create_sequence(const Numbers& n);
  void match(const Numbers& n);
  void fork(const Numbers& n);
  void destroy(const Numbers& n);
  void truncate(const Numbers& n);
  void grow(const Numbers& n);
  void check_sequence(const Numbers& n);
  void check_found(const Numbers& n);
  void open_reader(const Numbers& n);
  void retire(const Numbers& n);
  void run_stream(const Numbers& n);

  // Contents of blocks: prefix_site_contents.cpp.
  void write(const Numbers& n);
  void register_blocks(const Numbers& n);
  void publish(const Numbers& n);
  void rewrite(const Numbers& n);
  void fail_write(const Numbers& n);
  void forget(const Numbers& n);
  void forget_many(const Numbers& n);
  void notice(const Numbers& n);
  void hold_others(const Numbers& n);
  void release_others(const Numbers& n);
  void misuse(const Numbers& n);

  /// Everybody checks what they were promised, everything is given back, and the pool must be
  /// whole.
  void finish();

  /// The first broken promise.
  const std::optional<Failure>& failure() const noexcept {
    return failure_ ? failure_ : memory_.failure();
  }

 private:
  static constexpr std::size_t kHome = 0;   // stream
  static constexpr std::size_t kOther = 1;  // of transfers and readers

  using Tokens = std::vector<std::int32_t>;
  /// What sequences are asked for.
  struct Asked {
    std::uint64_t salt = 0;
    Tokens tokens{};
    std::vector<ExtraKey> keys{};

    PrefixQuery query() const { return {tokens, salt, keys}; }
  };
  /// One block of a sequence.
  struct Filled {
    BlockId id{};
    Generation generation{};
    std::vector<Word> words{};  // of its tokens
    bool is_written = false;    // in the order of the home stream
    bool is_published = false;  // since it was registered last
  };
  struct Sequence {
    HolderId holder{};
    std::uint32_t name = 0;
    Asked content{};  // the tokens of its blocks
    std::vector<Filled> blocks{};
    Tokens coming{};  // of its prompt
    PrefixPosition position{};
    std::size_t own = 0;  // blocks from the first on that it has registered itself, or was given
    std::optional<std::size_t> reader{};
  };
  struct Reader {
    Ticket ticket{};
    std::size_t end = 0;  // position on its stream
    bool is_open = true;
  };
  struct Handles {
    std::vector<BlockId> ids;
    std::vector<Generation> generations;
  };
  using Figures = std::vector<std::uint64_t>;
  using Meaning = std::tuple<std::uint64_t, Word, std::int32_t, std::vector<std::uint64_t>>;

  template <class T>
  T* pick(std::vector<T>& list, std::uint32_t number) {
    return list.empty() ? nullptr : &list[number % list.size()];
  }
  void fail(const char* kind, std::string text);
  /// Whether a call was taken. A refusal must be one of those that the engine brings about itself,
  /// and must have changed nothing.
  bool is_taken(const char* name, const Status& status, bool is_allowed);
  void expect_refused(const char* name, const Status& status, StatusCode code, Resource resource);
  void look() { before_ = figures(); }
  Figures figures() const;

  std::vector<Word> words_of(const Asked& content, std::size_t first, std::size_t count);
  std::vector<std::int64_t> slots_of(BlockId id) const;
  void read_blocks(std::size_t stream, Party party, std::span<const Filled> blocks);
  Asked prompt_of(const Numbers& n);
  void remember(const Asked& content);
  Handles handles_of(const Sequence& sequence, std::size_t first, std::size_t count) const;
  void tell(std::span<const BlockId> ids, std::uint32_t number);
  void release(Sequence& sequence, std::size_t first, std::uint32_t number);
  void cut(Sequence& sequence, std::size_t blocks, std::uint32_t number);
  void begin_anew(Sequence& sequence);
  void withdraw_promises();
  void take_prefix(Sequence& sequence, const Asked& asked, const PrefixAdoption& adoption,
                   const Handles& found);
  bool may_rewrite(const Sequence& sequence, std::size_t block) const;
  void add_blocks(Sequence& sequence, const Handles& handles, std::uint32_t number);
  void end_holders();
  void check_whole();

  PrefixSiteOptions options_;
  Story& story_;
  BlockManager manager_;
  PrefixPool pool_;
  SimulatedMemory memory_;
  std::size_t block_size_;
  std::vector<Sequence> sequences_;
  std::vector<Asked> prompts_;
  std::vector<HolderId> leaving_;  // of ended sequences; a reader still reads their blocks
  std::vector<Reader> readers_;    // retired ones keep their place
  HolderId outsider_{};
  Handles others_;  // blocks of the outsider
  std::map<Meaning, Word> meanings_;
  Word last_word_ = 0;
  std::uint32_t num_names_ = 0;
  Figures before_;
  std::optional<Failure> failure_;
};

}  // namespace kvarena::test
