#pragma once

/// @file
/// One cache of the world of caches: a KvCache on a host device whose streams run by hand and whose
/// calls can be made to fail, and the parties to whom something is promised.

#include "effects/cache_bytes.hpp"
#include "effects/program.hpp"
#include "effects/visible_state.hpp"
#include "support/faulty_device.hpp"
#include "support/status_matchers.hpp"

#include "kvarena/cache/kv_cache.hpp"
#include "kvarena/device/host_device.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

namespace kvarena::test {

/// The stream on which only work runs that open tickets stand for: nobody may wait for it.
inline constexpr std::size_t kLongStream = 2;
/// As FaultyDevice::fail_after: no call fails.
inline constexpr std::int64_t kNoFailure = std::int64_t{1} << 60;

/// A device, and streams of engines that work beside its caches.
struct CacheDevice {
  /// While one exists the engine runs streams, not a cache.
  class ByHand {
   public:
    explicit ByHand(CacheDevice& device) noexcept : device_(device) { ++device_.num_by_hand; }
    ~ByHand() { --device_.num_by_hand; }
    ByHand(const ByHand&) = delete;
    ByHand& operator=(const ByHand&) = delete;

   private:
    CacheDevice& device_;
  };

  explicit CacheDevice(std::uint32_t max_queued);

  std::unique_ptr<HostDevice> host;
  FaultyDevice faulty;  // what caches are given; everybody else uses `host`
  std::array<StreamId, 3> streams;
  EventId event;
  int num_by_hand = 0;
};

/// Sizes of a cache.
struct CacheSiteOptions {
  std::uint32_t name = 0;  ///< for the story
  std::int64_t num_blocks = 8;
  std::int32_t block_size_tokens = 4;
  std::int32_t num_layers = 1;
  std::int32_t max_sequences = 4;
  std::int32_t steps_in_flight = 2;
  std::int32_t max_open_tickets = 8;
  BlockOrder order = BlockOrder::block_major;
  bool eager_retire = false;
  bool has_prefix_cache = false;  ///< then sequences of equal tokens have equal content
  bool shares_parts = false;      ///< PrefixOptions::share_parts
  bool has_extra_keys = false;    ///< prompts have up to two
  EvictionPolicy eviction = EvictionPolicy::tail_first;
  bool has_accounts = false;  ///< both tenants have floors and caps, which change
  DuplicateRule duplicates = DuplicateRule::duplicate;
  bool expects_scrubbing = false;  ///< recycled slots may hold nothing of another owner
};

/// Plays operations; numbers are resolved as in TablesPool.
class CacheSite {
 public:
  using Numbers = std::array<std::uint32_t, 4>;

  CacheSite(CacheDevice& device, const CacheSiteOptions& options, Story& story);
  /// Work that is still queued reads this: it ends first.
  ~CacheSite();
  CacheSite(const CacheSite&) = delete;
  CacheSite& operator=(const CacheSite&) = delete;

  // Sequences: cache_site_sequences.cpp.
  void create_sequence(const Numbers& n);
  void fork(const Numbers& n);
  void destroy(const Numbers& n);
  void destroy_many(const Numbers& n);
  void truncate(const Numbers& n);
  void reserve_capacity(const Numbers& n);
  void promise_capacity(const Numbers& n);

  // Imports and pins: cache_site_imports.cpp.
  void import_sequence(const Numbers& n);
  void end_import(const Numbers& n);
  void pin(const Numbers& n);
  void unpin(const Numbers& n);

  // Cached prefixes: cache_site_prefix.cpp.
  void create_with_prompt(const Numbers& n);
  void adopt(const Numbers& n);
  void register_tokens(const Numbers& n);
  void forget(const Numbers& n);
  void retain(const Numbers& n);

  // Floors and caps of tenants: cache_site_salts.cpp.
  void set_limits(const Numbers& n);
  /// What the floors keep is found, whatever others have done. For the end of each operation.
  void judge_floors();

  // Steps: cache_site_steps.cpp.
  void begin_step(const Numbers& n);
  void append(const Numbers& n);
  void append_with_failure(const Numbers& n);
  void write(const Numbers& n);
  void attend(const Numbers& n);
  void abort_step(const Numbers& n);
  void step(const Numbers& n);
  void publish(const Numbers& n);

  // Steps whose work fails: cache_site_losses.cpp.
  void lose_step(const Numbers& n);

  // Readers, tickets, streams, failures: cache_site_readers.cpp.
  void check_sequence(const Numbers& n);
  void open_reader(const Numbers& n);
  void open_long_reader(const Numbers& n);
  void retire(const Numbers& n);
  void run_stream(const Numbers& n);
  void synchronize(const Numbers& n);
  void plant_failure(const Numbers& n);

  // Calls that must be refused: cache_site_misuse.cpp.
  void misuse(const Numbers& n);
  void offer_foreign_stream(const Numbers& n, const CacheSite& other);
  void offer_foreign_ticket(const Numbers& n, const CacheSite& other);

  /// Everybody checks what they were promised, everything is given back, and the pool must be
  /// whole.
  void finish();
  /// The first broken promise.
  const std::optional<Failure>& failure() const noexcept { return failure_; }

 private:
  /// A sequence and the word of each of its tokens.
  struct Sequence {
    SequenceId id{};
    std::uint32_t name = 0;
    std::uint32_t family = 0;  // name of the sequence at the root of its forks
    std::vector<Word> words{};
    std::optional<std::size_t> reader{};  // reads it; an index of readers_
    bool may_append = true;               // false: from the reader's opening to the first release
    bool is_import = false;               // others write its tokens, or have given up
    std::uint64_t salt = 0;               // its tenant
    std::vector<ExtraKey> keys{};         // of its prompt
    std::vector<std::int32_t> coming{};   // the rest of its prompt
  };
  /// Tokens that a tenant has asked for.
  struct Asked {
    std::uint64_t salt = 0;
    std::vector<std::int32_t> tokens{};
    std::vector<ExtraKey> keys{};
  };
  /// What the floor of a tenant keeps of the sequence that it ended last. The tenant itself ends
  /// the promise by its next call that changes blocks.
  struct Floor {
    std::vector<std::int32_t> tokens{};  // whole blocks, and a token
    std::vector<ExtraKey> keys{};
    std::int64_t blocks = 0;
    std::uint64_t forgotten = 0;  // blocks that the engine or a failure made the cache forget
  };
  /// Blocks that a tenant had registered before a call.
  using Registered = std::array<std::int64_t, 2>;
  /// Blocks that a pin holds, and what its tokens are.
  struct Pin {
    HolderId holder{};
    std::uint32_t name = 0;
    std::vector<Word> words{};
  };
  /// Writes the tokens of an import when a stream gets there.
  struct Filling {
    CacheSite* site = nullptr;
    std::vector<std::int64_t> slots{};
    std::vector<Word> words{};

    static Status run(void* self);
  };
  /// Reads slots when a stream gets there.
  struct Reading {
    CacheSite* site = nullptr;
    const char* kind = "";
    std::uint32_t name = 0;
    std::vector<std::int64_t> slots{};
    std::vector<Word> words{};
    bool is_long = false;  // no call of a cache waits for it
    bool has_run = false;

    static Status run(void* self);
  };
  /// Whose work a ticket stands for, and who retires it.
  enum class Work : std::uint8_t {
    step,       ///< short work on a stream: the cache
    stream,     ///< work on a stream: the engine, or with eager_retire the cache
    elsewhere,  ///< the engine alone
  };
  /// A ticket, and the readings that it stands for.
  struct Reader {
    Ticket ticket{};
    std::uint32_t name = 0;
    Work work = Work::step;
    std::uint64_t num_steps_before = 0;  // begun when it was opened
    std::vector<Reading*> readings{};
    bool is_open = true;

    bool has_ended() const {
      return std::all_of(readings.begin(), readings.end(),
                         [](const Reading* reading) { return reading->has_run; });
    }
  };
  /// What the step's append grew.
  struct Growth {
    SequenceId id{};
    std::size_t length = 0;  // before
  };

  template <class T>
  T* pick(std::vector<T>& list, std::uint32_t number) {
    return list.empty() ? nullptr : &list[number % list.size()];
  }
  void fail(const char* kind, std::string text);
  template <class Call>
  auto guarded(const char* name, Call call) {
    before_.look(cache_.manager(), cache_.tables());
    auto outcome = call();
    if (!outcome) require_unchanged(name, status_of(outcome));
    return outcome;
  }
  template <class Call>
  void refused(const char* kind, const char* name, Call call) {
    before_.look(cache_.manager(), cache_.tables());
    const Status status = status_of(call());
    if (!status) return require_unchanged(name, status);
    story_.tell(site_, name, " is TAKEN");
    fail(kind, std::string(name) + " was taken");
  }
  void require_unchanged(const char* name, const Status& status);

  std::vector<std::int64_t> slots_of(const Sequence& sequence);
  Word promised(Word word) const;
  Reading reading_of(const char* kind, std::uint32_t name, const Sequence& sequence,
                     std::size_t length);
  bool queue_reading(StreamId stream, Reading reading);
  void run_fillings();
  void check_on_home(const Sequence& sequence);
  Ticket ticket_for(const std::optional<std::size_t>& reader, std::uint32_t number) const;
  std::string name_of_ticket(Ticket ticket) const;
  void forget_sequence(std::size_t index);
  void open_reader(const Numbers& n, Work work, std::size_t stream);
  std::vector<std::size_t> read_several(const Numbers& n, Reader& reader, StreamId stream);
  void run_by_hand(StreamId stream);
  void end_work_elsewhere(const Reader& reader);
  void retire(Reader& reader);
  bool must_retire(const Reader& reader) const;
  void find_retired();
  void close(Reader& reader);
  void judge_recycled(const Sequence& sequence);
  bool enter_step(StreamId stream = {});
  void forget_append();
  template <class Call>
  void end_with(const char* name, Call call);
  void require_former(const char* name, bool with_blocks);
  std::vector<AppendDemand> demands_of(const Numbers& n);
  Floor floor_of(const Sequence& sequence) const;
  void end_floor(std::uint64_t salt) { floors_[salt % 2].reset(); }
  void end_floors_of_step();
  std::uint64_t salt_of(SequenceId id) const;
  Registered registered() const;
  void judge_caps(const char* name, const Registered& before);
  void add_word(Sequence& sequence, std::int32_t token);
  std::vector<Word> contents_of(std::span<const Word> words) const;
  std::vector<std::int32_t> tokens_of(const Sequence& sequence, std::size_t first) const;
  std::vector<std::int32_t> next_tokens(const Sequence& sequence, std::size_t count,
                                        std::uint32_t number) const;
  void remember(const Sequence& sequence);
  Asked prompt_of(const Numbers& n);
  void take_prefix(Sequence& sequence, std::span<const std::int32_t> prompt,
                   const PrefixMatch& found);
  bool grow(const Numbers& n);
  bool break_stream();
  void take_failure(std::uint32_t number);
  void lose_words(Sequence& sequence, std::size_t first, std::size_t last);
  void lose_words_of_step(bool loses_copies);
  void note_growth(std::span<const AppendDemand> demands, const StepBatch& batch);
  void write_layer(std::size_t layer);
  void leave_step();
  void check_whole();

  std::string site_;  // "cache 0: "
  Story& story_;
  CacheDevice& device_;
  CacheSiteOptions options_;
  std::deque<Reading> readings_;            // stay where they are
  std::deque<Filling> fillings_;            // too
  std::deque<std::vector<float>> buffers_;  // of write_kv; live as long as the work
  KvCache cache_;
  StreamId home_;  // on which it began
  std::vector<Sequence> sequences_;
  std::vector<Pin> pins_;
  std::vector<Reader> readers_;
  bool is_in_step_ = false;
  bool has_appended_ = false;
  std::uint64_t num_steps_ = 0;   // begun
  std::vector<Growth> growths_;   // of the step's append
  std::vector<Word> step_words_;  // of its new tokens
  std::int64_t num_copies_ = 0;   // that it made
  std::vector<bool> is_layer_written_;
  bool is_loss_pending_ = false;  // the cache may not have seen yet that work has failed
  std::int64_t clock_ = 0;        // of retentions
  std::uint32_t num_names_ = 0;
  std::vector<std::uint32_t> families_{0};  // by word: who wrote it
  std::vector<bool> is_written_{false};     // by word: every layer of it was
  std::vector<bool> is_lost_{false};        // by word: a step was to write it whose work has failed
  std::vector<Word> contents_{0};           // by word: the word of the same content that came first
  std::vector<std::int32_t> tokens_{0};     // by word
  /// A token behind a tenant's prefix, and the extra keys that begin with it.
  using Meaning = std::tuple<std::uint64_t, Word, std::int32_t, std::vector<std::uint64_t>>;
  std::map<Meaning, Word> meanings_;
  std::vector<Asked> prompts_;                    // of before
  std::array<std::optional<Floor>, 2> floors_{};  // by tenant
  std::vector<std::vector<std::int32_t>> told_;   // by demand
  VisibleState before_;
  VisibleState after_;
  VisibleState appended_;  // right after the step's append
  VisibleState former_;    // what stood before it
  VisibleState former_without_blocks_;
  VisibleState after_without_blocks_;
  std::optional<Failure> failure_;
};

}  // namespace kvarena::test
