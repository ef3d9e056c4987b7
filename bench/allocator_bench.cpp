// Cost of the block manager: a block allocated and released, beside an array-stack pop and push of
// the same blocks, from pools that fit every cache to pools that fit none; and in a pool with
// groups, a block in a page that its sequence has turned before, and a page turned.

#include "kvarena/allocator/block_manager.hpp"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

namespace kvarena {
namespace {

constexpr std::int64_t kBatch = 1024;

/// A pool whose free list is in random order, as after a long run.
struct ShuffledPool {
  explicit ShuffledPool(std::int64_t num_blocks)
      : manager(BlockManager::create({.num_blocks = num_blocks}).value()),
        holder(manager.register_holder({.purpose = "bench"}).value()),
        ids(static_cast<std::size_t>(num_blocks)),
        generations(static_cast<std::size_t>(num_blocks)) {
    static_cast<void>(manager.allocate(holder, ids, generations));
    std::vector<std::size_t> order(ids.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.end(), std::mt19937_64(7));
    std::vector<BlockId> shuffled(ids.size());
    std::vector<Generation> their(ids.size());
    for (std::size_t i = 0; i < order.size(); ++i) {
      shuffled[i] = ids[order[i]];
      their[i] = generations[order[i]];
    }
    static_cast<void>(manager.release(holder, shuffled, their));
  }
  BlockManager manager;
  HolderId holder;
  std::vector<BlockId> ids;
  std::vector<Generation> generations;
};

/// Batches are taken until the pool is empty and then given back in the order taken.
void allocate_and_release(benchmark::State& state, bool time_allocate) {
  ShuffledPool pool(state.range(0));
  const auto batch = static_cast<std::size_t>(std::min(kBatch, state.range(0)));
  const std::size_t batches = pool.ids.size() / batch;
  std::size_t next = 0;
  const auto span_of = [&](std::size_t i) { return std::span(pool.ids).subspan(i * batch, batch); };
  const auto generations_of = [&](std::size_t i) {
    return std::span(pool.generations).subspan(i * batch, batch);
  };
  const auto allocate_all = [&] {
    for (std::size_t i = 0; i < batches; ++i) {
      static_cast<void>(pool.manager.allocate(pool.holder, span_of(i), generations_of(i)));
    }
  };
  const auto release_all = [&] {
    for (std::size_t i = 0; i < batches; ++i) {
      static_cast<void>(pool.manager.release(pool.holder, span_of(i), generations_of(i)));
    }
  };
  if (!time_allocate) allocate_all();
  for (auto _ : state) {
    if (next == batches) {
      state.PauseTiming();
      time_allocate ? release_all() : allocate_all();
      next = 0;
      state.ResumeTiming();
    }
    const bool ok =
        time_allocate
            ? pool.manager.allocate(pool.holder, span_of(next), generations_of(next)).is_ok()
            : pool.manager.release(pool.holder, span_of(next), generations_of(next)).is_ok();
    if (!ok) state.SkipWithError("the call was refused");
    ++next;
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(batch));
}

void BM_allocate(benchmark::State& state) { allocate_and_release(state, true); }
void BM_release(benchmark::State& state) { allocate_and_release(state, false); }

/// The limit: pop from, or push to, a plain array of ids.
void BM_array_stack_pop_and_push(benchmark::State& state) {
  std::vector<std::int32_t> stack(static_cast<std::size_t>(state.range(0)));
  std::iota(stack.begin(), stack.end(), 0);
  std::shuffle(stack.begin(), stack.end(), std::mt19937_64(7));
  const std::int64_t batch = std::min(kBatch, state.range(0));
  std::vector<std::int32_t> out(static_cast<std::size_t>(batch));
  std::int64_t top = state.range(0);
  for (auto _ : state) {
    for (std::int64_t i = 0; i < batch; ++i) {
      out[static_cast<std::size_t>(i)] = stack[static_cast<std::size_t>(--top)];
      benchmark::DoNotOptimize(top);
    }
    for (std::int64_t i = 0; i < batch; ++i) {
      stack[static_cast<std::size_t>(top++)] = out[static_cast<std::size_t>(i)];
      benchmark::DoNotOptimize(top);
    }
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * batch * 2);
}

/// Sequences that each get one block a call, in a pool whose pages have been turned in random
/// order.
struct PagedSequences {
  static constexpr std::size_t kSequences = 256;
  static constexpr std::array<BlockGroup, 2> kPages = {BlockGroup{.blocks_per_page = 64},
                                                       BlockGroup{.blocks_per_page = 1}};

  /// `group` 0 has 64 blocks a page, group 1 has one.
  PagedSequences(std::int64_t num_pages, std::int32_t group)
      : manager(BlockManager::create(
                    {.num_blocks = num_pages, .max_holders = kSequences + 1, .groups = kPages})
                    .value()) {
    shuffle_pages(num_pages);
    for (std::size_t i = 0; i < kSequences; ++i) {
      demands.push_back({.holder = manager.register_holder({.purpose = "bench"}).value(),
                         .count = 1,
                         .group = group});
    }
  }

  void shuffle_pages(std::int64_t num_pages) {
    const HolderDemand all{.holder = manager.register_holder({.purpose = "bench"}).value(),
                           .count = static_cast<std::uint32_t>(num_pages),
                           .group = 1};
    std::vector<BlockId> blocks(all.count);
    std::vector<Generation> theirs(all.count);
    static_cast<void>(manager.allocate_each(std::span(&all, 1), blocks, theirs));
    std::shuffle(blocks.begin(), blocks.end(), std::mt19937_64(7));  // all generations are 0
    static_cast<void>(manager.release(all.holder, blocks, theirs));
  }
  bool take() {
    const std::size_t first = ids.size();
    ids.resize(first + kSequences);
    generations.resize(first + kSequences);
    return manager
        .allocate_each(demands, std::span(ids).subspan(first),
                       std::span(generations).subspan(first))
        .is_ok();
  }
  /// Gives everything but the first `rounds` rounds back, newest first.
  void give_back(std::size_t rounds) {
    for (std::size_t round = ids.size() / kSequences; round-- > rounds;) {
      for (std::size_t i = 0; i < kSequences; ++i) {
        const std::size_t at = round * kSequences + i;
        static_cast<void>(manager.release(demands[i].holder, std::span(ids).subspan(at, 1),
                                          std::span(generations).subspan(at, 1)));
      }
    }
    ids.resize(rounds * kSequences);
    generations.resize(rounds * kSequences);
  }

  BlockManager manager;
  std::vector<HolderDemand> demands;
  std::vector<BlockId> ids;
  std::vector<Generation> generations;
};

/// Each sequence has a page; the call takes its next block there.
void BM_block_in_carved_page(benchmark::State& state) {
  PagedSequences pool(state.range(0), 0);
  bool ok = pool.take();
  std::size_t rounds = 1;
  for (auto _ : state) {
    if (rounds == 64) {
      state.PauseTiming();
      pool.give_back(1);
      rounds = 1;
      state.ResumeTiming();
    }
    ok = ok && pool.take();
    ++rounds;
  }
  if (!ok) state.SkipWithError("the call was refused");
  state.SetItemsProcessed(state.iterations() *
                          static_cast<std::int64_t>(PagedSequences::kSequences));
}

/// Each block is a page.
void BM_page_turned(benchmark::State& state) {
  PagedSequences pool(state.range(0), 1);
  const auto most = static_cast<std::size_t>(state.range(0)) / PagedSequences::kSequences;
  bool ok = true;
  std::size_t rounds = 0;
  for (auto _ : state) {
    if (rounds == most) {
      state.PauseTiming();
      pool.give_back(0);
      rounds = 0;
      state.ResumeTiming();
    }
    ok = ok && pool.take();
    ++rounds;
  }
  if (!ok) state.SkipWithError("the call was refused");
  state.SetItemsProcessed(state.iterations() *
                          static_cast<std::int64_t>(PagedSequences::kSequences));
}

/// The same call in a pool without groups: what a demand costs without pages.
void BM_block_of_each_sequence(benchmark::State& state) {
  ShuffledPool pool(state.range(0));
  std::vector<HolderDemand> demands;
  for (std::size_t i = 0; i < PagedSequences::kSequences; ++i) {
    demands.push_back(
        {.holder = pool.manager.register_holder({.purpose = "bench"}).value(), .count = 1});
  }
  constexpr std::size_t kMost = 64 * PagedSequences::kSequences;
  std::size_t taken = 0;
  bool ok = true;
  const auto part = [&](auto& all, std::size_t first, std::size_t count) {
    return std::span(all).subspan(first, count);
  };
  for (auto _ : state) {
    if (taken >= std::min(kMost, pool.ids.size() / 2)) {
      state.PauseTiming();
      for (std::size_t i = taken; i-- > 0;) {
        static_cast<void>(pool.manager.release(demands[i % demands.size()].holder,
                                               part(pool.ids, i, 1), part(pool.generations, i, 1)));
      }
      taken = 0;
      state.ResumeTiming();
    }
    ok = ok && pool.manager
                   .allocate_each(demands, part(pool.ids, taken, demands.size()),
                                  part(pool.generations, taken, demands.size()))
                   .is_ok();
    taken += demands.size();
  }
  if (!ok) state.SkipWithError("the call was refused");
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(demands.size()));
}

/// One sequence takes many blocks in a call: `group` 0 has 64 of them a page, group 1 one.
void take_many(benchmark::State& state, std::int32_t group) {
  PagedSequences pool(state.range(0), group);
  const HolderDemand demand{.holder = pool.demands[0].holder, .count = 4096, .group = group};
  std::vector<BlockId> ids(demand.count);
  std::vector<Generation> generations(demand.count);
  bool ok = true;
  for (auto _ : state) {
    ok = ok && pool.manager.allocate_each(std::span(&demand, 1), ids, generations).is_ok();
    state.PauseTiming();
    ok = ok && pool.manager.release(demand.holder, ids, generations).is_ok();
    state.ResumeTiming();
  }
  if (!ok) state.SkipWithError("the call was refused");
  state.SetItemsProcessed(state.iterations() * demand.count);
}
void BM_many_blocks_in_pages(benchmark::State& state) { take_many(state, 0); }
void BM_many_pages(benchmark::State& state) { take_many(state, 1); }

/// A sequence gives up the blocks of whole pages.
void BM_release_pages(benchmark::State& state) {
  PagedSequences pool(state.range(0), 0);
  constexpr std::uint32_t kBlocks = 1024;
  const HolderDemand demand{.holder = pool.demands[0].holder, .count = kBlocks, .group = 0};
  std::vector<BlockId> ids(kBlocks);
  std::vector<Generation> generations(kBlocks);
  bool ok = true;
  for (auto _ : state) {
    ok = ok && pool.manager.allocate_each(std::span(&demand, 1), ids, generations).is_ok();
    ok = ok && pool.manager.release(demand.holder, ids, generations).is_ok();
  }
  if (!ok) state.SkipWithError("the call was refused");
  state.SetItemsProcessed(state.iterations() * kBlocks);
}

BENCHMARK(BM_block_in_carved_page)->Arg(10'000)->Arg(100'000);
BENCHMARK(BM_block_of_each_sequence)->Arg(100'000);
BENCHMARK(BM_many_blocks_in_pages)->Arg(10'000)->Arg(100'000);
BENCHMARK(BM_many_pages)->Arg(10'000)->Arg(100'000);
BENCHMARK(BM_page_turned)->Arg(10'000)->Arg(100'000);
BENCHMARK(BM_release_pages)->Arg(10'000)->Arg(100'000);
BENCHMARK(BM_allocate)->RangeMultiplier(10)->Range(1000, 10'000'000)->Arg(65536);
BENCHMARK(BM_release)->RangeMultiplier(10)->Range(1000, 10'000'000)->Arg(65536);
BENCHMARK(BM_array_stack_pop_and_push)->RangeMultiplier(10)->Range(1000, 10'000'000)->Arg(65536);

}  // namespace
}  // namespace kvarena

BENCHMARK_MAIN();
