// The same calls give the same operation log through C and through C++: the model test's operations
// on a block manager, and random steps of a cache.

#include "kvarena/cache/kv_cache.hpp"
#include "kvarena/device/host_device.hpp"
#include "kvarena/kvarena.h"
#include "model/model_driver.hpp"
#include "support/status_matchers.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <vector>

namespace kvarena {
namespace {

/// An operation of either interface.
struct Logged {
  int kind = 0;
  int outcome = 0;
  int flag = 0;
  std::uint64_t holder = 0;
  std::uint64_t ticket = 0;
  std::int64_t count = 0;
  std::vector<std::int32_t> blocks;
  int group = 0;
  int left_in_call = 0;
  friend bool operator==(const Logged&, const Logged&) = default;
};
using Log = std::vector<Logged>;

class Recorder final : public OperationLog {
 public:
  void append(const Operation& o) override {
    Logged& entry = log.emplace_back(Logged{static_cast<int>(o.kind),
                                            static_cast<int>(o.outcome),
                                            o.flag,
                                            o.holder.value,
                                            o.ticket,
                                            o.count,
                                            {},
                                            o.group,
                                            o.left_in_call});
    for (const BlockId id : o.ids) entry.blocks.push_back(id.value);
  }
  Log log;
};

void record(void* user, const kvarena_operation* o) {
  static_cast<Log*>(user)->push_back(Logged{o->kind,
                                            o->outcome,
                                            o->flag,
                                            o->holder,
                                            o->ticket,
                                            o->count,
                                            {o->blocks, o->blocks + o->num_blocks},
                                            o->group,
                                            o->left_in_call});
}

/// A struct of the C interface with its size, the rest zero.
template <class Struct>
Struct sized() {
  Struct value{};
  value.struct_size = sizeof value;
  return value;
}

Status status_of(const kvarena_status& status) { return std::bit_cast<Status>(status); }

/// The place of the first difference.
std::size_t common(const Log& a, const Log& b) {
  return static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first -
                                  a.begin());
}

// ---- a pool: the operations of the model test ---------------------------------------------------

/// Repeats logged operations on a pool of the C interface.
class PoolPlayer {
 public:
  explicit PoolPlayer(kvarena_pool* pool) : pool_(pool) {}

  Status play(const Logged& o) {
    std::vector<std::uint32_t> generations;
    for (const std::int32_t block : o.blocks) {
      auto info = sized<kvarena_block_info>();
      if (Status s = status_of(kvarena_pool_block(pool_, block, &info)); !s) return s;
      generations.push_back(info.generation);
    }
    std::vector<std::int32_t> taken(static_cast<std::size_t>(std::max<std::int64_t>(o.count, 0)));
    const std::int32_t urgency = o.flag == 0 ? KVARENA_GROWTH : KVARENA_ADMISSION;
    const std::size_t n = o.blocks.size();
    switch (o.kind) {
      case KVARENA_OPERATION_REGISTER_HOLDER: {
        kvarena_holder holder = 0;
        return status_of(kvarena_pool_open_holder(pool_, nullptr, &holder));
      }
      case KVARENA_OPERATION_UNREGISTER_HOLDER:
        return status_of(kvarena_pool_close_holder(pool_, o.holder));
      case KVARENA_OPERATION_RESERVE:
        return status_of(kvarena_pool_reserve(pool_, o.holder, o.count, urgency));
      case KVARENA_OPERATION_ALLOCATE:
        generations.resize(taken.size());
        return status_of(kvarena_pool_allocate(pool_, o.holder, taken.size(), urgency, taken.data(),
                                               generations.data(), nullptr));
      case KVARENA_OPERATION_RETAIN:
        return status_of(
            kvarena_pool_retain(pool_, o.holder, o.blocks.data(), generations.data(), n));
      case KVARENA_OPERATION_RELEASE:
        return status_of(
            kvarena_pool_free(pool_, o.holder, o.blocks.data(), generations.data(), n, 0));
      case KVARENA_OPERATION_RELEASE_AFTER:
        return status_of(kvarena_pool_free(pool_, o.holder, o.blocks.data(), generations.data(), n,
                                           tickets_[o.ticket]));
      case KVARENA_OPERATION_SET_CONTENT:
        return status_of(kvarena_pool_set_content(pool_, o.blocks[0], generations[0], o.flag));
      case KVARENA_OPERATION_QUARANTINE:
        return status_of(kvarena_pool_quarantine(pool_, o.blocks[0], nullptr));
      case KVARENA_OPERATION_RESTORE: return status_of(kvarena_pool_restore(pool_, o.blocks[0]));
      case KVARENA_OPERATION_OPEN_TICKET:
        return status_of(kvarena_pool_open_ticket(pool_, &tickets_[o.ticket]));
      case KVARENA_OPERATION_RETIRE:
        return status_of(kvarena_pool_retire(pool_, tickets_[o.ticket]));
      default: return unsupported(Resource::none);
    }
  }

 private:
  kvarena_pool* pool_;
  std::map<std::uint64_t, kvarena_ticket> tickets_;
};

TEST(CapiLog, TheModelTestsOperationsGiveTheSameLog) {
  for (const std::uint64_t seed : {1U, 2U, 3U}) {
    Recorder first;
    model::Game game;
    game.name = "C";
    game.pool = {.num_blocks = 48,
                 .watermark_blocks = 2,
                 .max_holders = 64,
                 .max_open_tickets = 8,
                 .log = &first};
    game.tables = {.block_size_tokens = 7, .max_sequences = 20, .max_append_tokens = 4096};
    game.longest_chunk = 60;
    game.seed = seed;
    game.operations = 4000;
    ASSERT_EQ(model::ModelDriver(game).play(), "");
    // A refused call has changed nothing, and not everything that was wrong with it is in the log.
    std::erase_if(first.log, [](const Logged& o) { return o.outcome != KVARENA_OK; });
    ASSERT_GT(first.log.size(), 1000U);

    Log second;
    kvarena_pool* pool = nullptr;
    kvarena_pool_options options{};
    options.struct_size = sizeof options;
    options.num_blocks = 48;
    options.watermark_blocks = 2;
    options.max_holders = 64;
    options.max_open_tickets = 8;
    options.log = record;
    options.log_user = &second;
    ASSERT_TRUE(status_of(kvarena_pool_create(&options, &pool)));
    PoolPlayer player(pool);
    for (const Logged& operation : first.log) ASSERT_TRUE(player.play(operation));
    EXPECT_EQ(first.log, second) << "from operation " << common(first.log, second) << " on";
    EXPECT_TRUE(status_of(kvarena_pool_check(pool)));
    EXPECT_TRUE(status_of(kvarena_pool_release(pool)));
  }
}

// ---- a cache: random steps ----------------------------------------------------------------------

/// What both interfaces can do. Every call returns its status; ids are numbers.
class Engine {
 public:
  virtual ~Engine() = default;
  virtual Status create(std::uint64_t owner, std::uint64_t& id) = 0;
  virtual Status fork(std::uint64_t parent, std::int64_t length, std::uint64_t& id) = 0;
  virtual Status destroy(const std::vector<std::uint64_t>& ids, std::uint64_t ticket) = 0;
  virtual Status truncate(std::uint64_t id, std::int64_t length, std::uint64_t ticket) = 0;
  virtual Status reserve(std::uint64_t id, std::int64_t tokens, bool growth) = 0;
  virtual Status promise(std::uint64_t id, std::int64_t tokens) = 0;
  virtual Status begin() = 0;
  virtual Status append(const std::vector<std::pair<std::uint64_t, int>>& demands) = 0;
  virtual Status end(bool abort) = 0;
  virtual Status publish() = 0;
  virtual Status open_ticket(std::uint64_t& ticket) = 0;
  virtual Status retire(std::uint64_t ticket) = 0;
};

class CppEngine final : public Engine {
 public:
  explicit CppEngine(KvCache& cache) : cache_(cache) {}
  Status create(std::uint64_t owner, std::uint64_t& id) override {
    return take(cache_.create_sequence({.owner = owner}), id);
  }
  Status fork(std::uint64_t parent, std::int64_t length, std::uint64_t& id) override {
    return take(cache_.fork(SequenceId(parent), length), id);
  }
  Status destroy(const std::vector<std::uint64_t>& ids, std::uint64_t ticket) override {
    std::vector<SequenceId> sequences;
    for (const std::uint64_t id : ids) sequences.emplace_back(id);
    return cache_.destroy_many(sequences, Ticket(ticket));
  }
  Status truncate(std::uint64_t id, std::int64_t length, std::uint64_t ticket) override {
    return cache_.truncate(SequenceId(id), length, Ticket(ticket));
  }
  Status reserve(std::uint64_t id, std::int64_t tokens, bool growth) override {
    return cache_.reserve_capacity(SequenceId(id), tokens,
                                   growth ? Urgency::growth : Urgency::admission);
  }
  Status promise(std::uint64_t id, std::int64_t tokens) override {
    return cache_.promise_capacity(SequenceId(id), tokens);
  }
  Status begin() override { return cache_.begin_step(); }
  Status append(const std::vector<std::pair<std::uint64_t, int>>& demands) override {
    std::vector<AppendDemand> rows;
    for (const auto& [id, tokens] : demands) rows.push_back({SequenceId(id), tokens});
    return cache_.append(rows).status();
  }
  Status end(bool abort) override { return abort ? cache_.abort_step() : cache_.end_step(); }
  Status publish() override { return cache_.publish(); }
  Status open_ticket(std::uint64_t& ticket) override { return take(cache_.open_ticket(), ticket); }
  Status retire(std::uint64_t ticket) override { return cache_.retire(Ticket(ticket)); }

 private:
  template <class Id>
  static Status take(const Result<Id>& result, std::uint64_t& id) {
    if (result) id = result->value;
    return result.status();
  }
  KvCache& cache_;
};

class CEngine final : public Engine {
 public:
  explicit CEngine(kvarena_cache* cache) : cache_(cache) {}
  Status create(std::uint64_t owner, std::uint64_t& id) override {
    auto options = sized<kvarena_sequence_options>();
    options.owner = owner;
    return status_of(kvarena_sequence_create(cache_, &options, &id));
  }
  Status fork(std::uint64_t parent, std::int64_t length, std::uint64_t& id) override {
    return status_of(kvarena_sequence_fork(cache_, parent, length, nullptr, &id));
  }
  Status destroy(const std::vector<std::uint64_t>& ids, std::uint64_t ticket) override {
    return status_of(kvarena_sequence_destroy(cache_, ids.data(), ids.size(), ticket));
  }
  Status truncate(std::uint64_t id, std::int64_t length, std::uint64_t ticket) override {
    return status_of(kvarena_sequence_truncate(cache_, id, length, ticket));
  }
  Status reserve(std::uint64_t id, std::int64_t tokens, bool growth) override {
    return status_of(kvarena_sequence_reserve(cache_, id, tokens, growth ? KVARENA_GROWTH : 0));
  }
  Status promise(std::uint64_t id, std::int64_t tokens) override {
    return status_of(kvarena_sequence_promise(cache_, id, tokens));
  }
  Status begin() override { return status_of(kvarena_step_begin(cache_, nullptr)); }
  Status append(const std::vector<std::pair<std::uint64_t, int>>& demands) override {
    std::vector<kvarena_demand> rows;
    for (const auto& [id, tokens] : demands) rows.push_back({id, tokens, 0});
    auto batch = sized<kvarena_batch>();
    return status_of(kvarena_step_append(cache_, rows.data(), rows.size(), 0, &batch));
  }
  Status end(bool abort) override {
    return status_of(abort ? kvarena_step_abort(cache_) : kvarena_step_end(cache_));
  }
  Status publish() override { return status_of(kvarena_cache_publish(cache_)); }
  Status open_ticket(std::uint64_t& ticket) override {
    return status_of(kvarena_ticket_open(cache_, nullptr, &ticket));
  }
  Status retire(std::uint64_t ticket) override {
    return status_of(kvarena_ticket_retire(cache_, ticket));
  }

 private:
  kvarena_cache* cache_;
};

/// Plays random operations, right and wrong ones, by seed. Ids are remembered by their order, since
/// two caches may have different ones.
class Player {
 public:
  Player(Engine& engine, std::uint64_t seed) : engine_(engine), random_(seed) {}

  /// Returns how each operation ended.
  std::vector<std::pair<int, int>> play(int operations) {
    while (operations-- > 0) {
      const Status s = move();
      ends_.emplace_back(static_cast<int>(s.code), static_cast<int>(s.resource));
    }
    return ends_;
  }

 private:
  std::uint64_t below(std::uint64_t end) { return random_() % end; }
  std::uint64_t any(const std::vector<std::uint64_t>& ids) {
    return ids.empty() ? 3 : ids[below(ids.size())];
  }
  std::uint64_t any_ticket() { return below(3) == 0 ? any(tickets_) : 0; }
  Status create() {
    std::uint64_t id = 0;
    const std::uint64_t owner = below(5);
    const bool forks = below(2) == 0;
    const auto length = static_cast<std::int64_t>(below(40));
    const std::uint64_t parent = any(ids_);
    const Status s = forks ? engine_.fork(parent, length, id) : engine_.create(owner, id);
    if (s) ids_.push_back(id);
    return s;
  }
  Status destroy() {
    const std::size_t place = below(ids_.size() + 1);
    const std::uint64_t id = place < ids_.size() ? ids_[place] : 3;
    const Status s = engine_.destroy({id}, any_ticket());
    if (s) ids_.erase(ids_.begin() + static_cast<std::ptrdiff_t>(place));
    return s;
  }
  Status append() {
    std::vector<std::pair<std::uint64_t, int>> demands;
    for (std::uint64_t rows = below(4); rows-- > 0;) {
      const std::uint64_t id = any(ids_);
      demands.emplace_back(id, static_cast<int>(below(30)));
    }
    return engine_.append(demands);
  }
  Status move() {
    std::uint64_t ticket = 0;
    switch (below(12)) {
      case 0:
      case 1: return create();
      case 2: return destroy();
      case 3: {
        const std::uint64_t id = any(ids_);
        const auto length = static_cast<std::int64_t>(below(30));
        return engine_.truncate(id, length, any_ticket());
      }
      case 4: {
        const std::uint64_t id = any(ids_);
        const auto tokens = static_cast<std::int64_t>(below(100));
        return engine_.reserve(id, tokens, below(2) == 0);
      }
      case 5: {
        const std::uint64_t id = any(ids_);
        return engine_.promise(id, static_cast<std::int64_t>(below(100)));
      }
      case 6: return engine_.begin();
      case 7:
      case 8: return append();
      case 9: return engine_.end(below(4) == 0);
      case 10: {
        const Status s = engine_.open_ticket(ticket);
        if (s) tickets_.push_back(ticket);
        return s;
      }
      default: return below(2) == 0 ? engine_.retire(any(tickets_)) : engine_.publish();
    }
  }

  Engine& engine_;
  std::mt19937_64 random_;
  std::vector<std::uint64_t> ids_;
  std::vector<std::uint64_t> tickets_;
  std::vector<std::pair<int, int>> ends_;
};

TEST(CapiLog, RandomStepsOfACacheGiveTheSameLogAndStatuses) {
  for (const std::uint64_t seed : {11U, 12U, 13U, 14U}) {
    Recorder first;
    auto device = HostDevice::create();
    ASSERT_TRUE(device.is_ok());
    Result<KvCache> cache =
        KvCache::create(**device, {.layout = {.num_layers = 1, .num_kv_heads = 1, .head_dim_k = 8},
                                   .size = {.num_blocks = 24},
                                   .num_q_heads = 1,
                                   .max_sequences = 8,
                                   .watermark_blocks = 2,
                                   .max_open_tickets = 6,
                                   .num_threads = 1,
                                   .log = &first});
    ASSERT_TRUE(cache.is_ok());
    CppEngine cpp(*cache);
    const auto expected = Player(cpp, seed).play(3000);

    Log second;
    kvarena_device* handle = nullptr;
    kvarena_cache* other = nullptr;
    ASSERT_TRUE(status_of(kvarena_device_open_host(nullptr, &handle)));
    auto options = sized<kvarena_cache_options>();
    options.num_layers = options.num_kv_heads = options.num_q_heads = 1;
    options.head_dim_k = 8;
    options.num_blocks = 24;
    options.max_sequences = 8;
    options.watermark_blocks = 2;
    options.max_open_tickets = 6;
    options.num_threads = 1;
    options.log = record;
    options.log_user = &second;
    ASSERT_TRUE(status_of(kvarena_cache_create(handle, &options, &other)));
    CEngine c(other);
    EXPECT_EQ(Player(c, seed).play(3000), expected);
    EXPECT_EQ(first.log, second) << "from operation " << common(first.log, second) << " on";
    EXPECT_GT(second.size(), 500U);
    EXPECT_TRUE(status_of(kvarena_cache_check(other)));
    EXPECT_TRUE(status_of(kvarena_device_release(handle)));
    EXPECT_TRUE(status_of(kvarena_cache_release(other)));
  }
}

}  // namespace
}  // namespace kvarena
