// After create and one warm-up round nothing allocates on the heap: every global operator new is
// counted here.

#include "kvarena/blocktable/block_tables.hpp"
#include "kvarena/blocktable/prefix_pool.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

namespace {

std::atomic<std::uint64_t> allocations{0};

void* counted(std::size_t bytes, std::size_t alignment) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* memory = std::aligned_alloc(alignment, rounded == 0 ? alignment : rounded);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) { return counted(bytes, alignof(std::max_align_t)); }
void* operator new[](std::size_t bytes) { return counted(bytes, alignof(std::max_align_t)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace kvarena {
namespace {

constexpr std::size_t kSequences = 64;

/// One round of everything an engine does in its steady state, in preallocated arrays.
class Engine {
 public:
  Engine()
      : manager_(BlockManager::create({.num_blocks = 4096, .watermark_blocks = 16}).value()),
        tables_(BlockTables::create(manager_, {.max_sequences = 256}).value()),
        living_(kSequences),
        forks_(kSequences / 2),
        demands_(kSequences),
        blocks_(4096) {}

  void round() {
    for (std::size_t i = 0; i < kSequences; ++i) {
      living_[i] = tables_.create_sequence({.max_length_tokens = 100'000}).value();
      demands_[i] = {living_[i], static_cast<std::int32_t>(17 * i + 1)};
    }
    expect(tables_.append(demands_, Urgency::admission).status());
    for (int step = 0; step < 20; ++step) {
      expect(tables_.append_one_each(living_).status());
      expect(tables_.view(living_).status());
    }
    for (std::size_t i = 0; i < forks_.size(); ++i) {
      forks_[i] = tables_.fork(living_[i], 17 * static_cast<std::int64_t>(i) + 3).value();
    }
    expect(tables_.append_one_each(forks_).status());  // copies on write
    for (const SequenceId id : living_) {
      const std::int64_t length = tables_.info(id)->length_tokens;
      expect(tables_.truncate(id, length - 1));
      expect(tables_.reserve_capacity(id, length + 40));
      expect(tables_.promise_capacity(id, length + 100));
      expect(tables_.lookup(id, 0).status());
      expect(tables_.slot_of(id, 0).status());
      expect(tables_.blocks_of(id, blocks_).status());
    }
    demands_[0].num_tokens = 99'999;  // refused: exhausted or too long
    if (tables_.append(demands_)) ++failures_;
    const Ticket ticket = manager_.open_ticket().value();
    expect(tables_.truncate(living_[5], 1, ticket));
    expect(tables_.destroy_many(forks_, ticket));
    expect(tables_.destroy(living_[0]));
    expect(tables_.destroy_many(std::span(living_).subspan(1)));
    expect(manager_.retire(ticket));
    static_cast<void>(manager_.stats());
    static_cast<void>(manager_.available_after(ticket));
    static_cast<void>(manager_.explain(3));
    static_cast<void>(tables_.stats());
  }

  std::int64_t free_blocks() const { return manager_.stats().free; }
  std::uint64_t copies() const { return tables_.stats().copies_on_write; }
  int failures() const { return failures_; }

 private:
  void expect(const Status& status) { failures_ += status.is_ok() ? 0 : 1; }

  BlockManager manager_;
  BlockTables tables_;
  std::vector<SequenceId> living_;
  std::vector<SequenceId> forks_;
  std::vector<AppendDemand> demands_;
  std::vector<BlockId> blocks_;
  int failures_ = 0;
};

TEST(SteadyState, TheCounterCounts) {
  const std::uint64_t before = allocations.load();
  const std::vector<int> something(100);
  EXPECT_EQ(allocations.load(), before + 1) << something.size();
}

TEST(SteadyState, NoCallAllocatesAfterWarmUp) {
  Engine engine;
  engine.round();
  const std::uint64_t before = allocations.load();
  for (int i = 0; i < 50; ++i) engine.round();
  const std::uint64_t after = allocations.load();
  EXPECT_EQ(after - before, 0U);
  EXPECT_EQ(engine.failures(), 0);
  EXPECT_GT(engine.copies(), 500U);
  EXPECT_EQ(engine.free_blocks(), 4096);
}

TEST(SteadyState, NotEvenTheFirstRoundAllocates) {
  Engine engine;
  const std::uint64_t before = allocations.load();
  engine.round();
  EXPECT_EQ(allocations.load(), before);
}

TEST(SteadyState, NoCallWithGroupsAllocates) {
  constexpr BlockGroup kBlocks[] = {{5, 100}, {1, 520}, {3, 170}, {2, 250}};
  constexpr TableGroup kGroups[] = {
      {.kind = PagedKind::full},
      {.kind = PagedKind::window, .limit_tokens = 100},
      {.kind = PagedKind::chunk, .limit_tokens = 64},
      {.kind = PagedKind::state, .rollback_tokens = 1, .num_parts = 2}};
  BlockManager manager = BlockManager::create({.num_blocks = 800, .groups = kBlocks}).value();
  BlockTables tables =
      BlockTables::create(
          manager,
          {.max_sequences = 40, .can_undo = true, .groups = kGroups, .checkpoint_every_tokens = 64})
          .value();
  std::vector<SequenceId> ids(16);
  std::vector<std::int32_t> rows(16 * 64);
  int failures = 0;
  const auto expect = [&](const Status& status) { failures += status.is_ok() ? 0 : 1; };
  const std::uint64_t before = allocations.load();
  for (int round = 0; round < 5; ++round) {
    for (SequenceId& id : ids) {
      id = tables.create_sequence().value();
      expect(tables.promise_capacity(id, 300));
    }
    for (int step = 0; step < 400; ++step) {
      expect(tables.append_one_each(ids).status());
      if (step % 7 == 0) expect(tables.undo_append(false));
      expect(tables.view(ids, step % 3).status());
      tables.settle_append();
      if (step % 50 == 0) expect(tables.checkpoint(ids[3]));
    }
    const SequenceId child = tables.fork(ids[0], tables.info(ids[0])->length_tokens).value();
    const HolderId pin = tables.pin(child).value();
    expect(tables.append_one_each(std::span(&child, 1)).status());
    expect(tables.copy_rows(ids, rows, 64, {}, 1));
    expect(tables.reserve_capacity(ids[1], 500));
    if (tables.reserve_capacity(ids[2], 100'000)) ++failures;  // refused
    static_cast<void>(tables.explain(3));
    expect(tables.unpin(pin));
    expect(tables.destroy(child));
    expect(tables.destroy_many(ids));
  }
  EXPECT_EQ(allocations.load(), before);
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(manager.page_stats().available(), 800);
}

TEST(SteadyState, NoCallWithAPrefixCacheAllocates) {
  std::uint64_t told = 0;
  const PrefixEventSink sink{[](const PrefixEvent& event, void* context) {
                               *static_cast<std::uint64_t*>(context) += event.tokens.size() + 1;
                             },
                             &told};
  BlockManager manager = BlockManager::create({.num_blocks = 256}).value();
  BlockTables tables =
      BlockTables::create(
          manager,
          {.block_size_tokens = 4,
           .max_sequences = 40,
           .prefix_cache = {.is_on = true, .max_accounts = 3, .ghost_blocks = 256, .events = sink}})
          .value();
  std::vector<std::int32_t> tokens(120);
  int failures = 0;
  const auto expect = [&](const Status& status) { failures += status.is_ok() ? 0 : 1; };
  const std::uint64_t before = allocations.load();
  expect(tables.set_salt_limits(1, {.floor_blocks = 20}));
  expect(tables.set_salt_limits(2, {.cap_blocks = 30}));
  for (int round = 0; round < 200; ++round) {
    const auto salt = static_cast<std::uint64_t>(round % 4);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = static_cast<std::int32_t>(i < 40 ? i : i * static_cast<std::size_t>(round));
    }
    const SequenceId id = tables.create_sequence({.tokens = tokens, .salt = salt}).value();
    const auto covered = static_cast<std::size_t>(tables.prefix_of(id)->tokens);
    const AppendDemand rest{
        id, static_cast<std::int32_t>(120 - covered), {}, std::span(tokens).subspan(covered)};
    expect(tables.append(std::span(&rest, 1)).status());
    expect(tables.publish(id));
    const SequenceId child = tables.fork(id, 50).value();
    expect(tables.truncate(id, 60));
    expect(tables.destroy(child));
    expect(tables.destroy(id));
    static_cast<void>(tables.explain(3));
    static_cast<void>(tables.prefix_use());
    static_cast<void>(tables.prefix_stats());
  }
  expect(tables.forget_salt(3));
  EXPECT_EQ(allocations.load(), before);
  EXPECT_EQ(failures, 0);
  EXPECT_GT(told, 1000U);
  EXPECT_GT(tables.prefix_stats().hits, 100U);
}

/// Prompts that begin alike, through a pool that evicts.
TEST(SteadyState, APrefixPoolDoesNotAllocate) {
  BlockManager manager = BlockManager::create({.num_blocks = 40}).value();
  PrefixPool pool =
      PrefixPool::create(manager, {.block_size_tokens = 4, .prefix = {.ghost_blocks = 64}}).value();
  const HolderId holder = manager.register_holder({}).value();
  std::vector<std::int32_t> tokens(60);
  std::vector<BlockId> ids(15);
  std::vector<Generation> generations(15);
  int failures = 0;
  const auto expect = [&](const Status& status) { failures += status.is_ok() ? 0 : 1; };
  const std::uint64_t before = allocations.load();
  for (std::size_t round = 0; round < 200; ++round) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = static_cast<std::int32_t>(i < 20 ? i : i * round);
    }
    PrefixAdoption begun = pool.adopt(holder, {tokens, round % 2}, ids, generations).value();
    const auto cached = static_cast<std::size_t>(begun.found.blocks);
    const std::span rest = std::span(ids).subspan(cached);
    const std::span numbers = std::span(generations).subspan(cached);
    expect(manager.allocate(holder, rest, numbers).status());
    pool.notice(manager.evicted());
    expect(pool.register_blocks(begun.end, std::span(tokens).subspan(4 * cached), rest, numbers)
               .status());
    expect(pool.publish(rest, numbers).status());
    expect(pool.forget(rest.last(1)));
    expect(manager.release(holder, ids, generations));
    pool.notice(ids);
    static_cast<void>(pool.stats());
  }
  pool.forget_salt(0);
  pool.forget_all();
  EXPECT_EQ(allocations.load(), before);
  EXPECT_EQ(failures, 0);
  EXPECT_GT(pool.stats().hits, 100U);
}

}  // namespace
}  // namespace kvarena
