// Cost of a block that is allocated by evicting another, for each eviction policy: the pool is full
// of evictable blocks, which became evictable in random order. In batches, and one block a call.
// Also what it costs to find a cached block again: retain and release.

#include "kvarena/allocator/block_manager.hpp"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace kvarena {
namespace {

/// A pool whose blocks are all evictable, in random order. Some were used more often than others.
struct CachedPool {
  CachedPool(std::int64_t num_blocks, EvictionPolicy policy)
      : manager(BlockManager::create({.num_blocks = num_blocks, .eviction = policy}).value()),
        holder(manager.register_holder({.purpose = "bench"}).value()),
        ids(static_cast<std::size_t>(num_blocks)),
        generations(ids.size()) {
    static_cast<void>(manager.allocate(holder, ids, generations));
  }

  /// Publishes all blocks, which are held, and releases them.
  void cache_all() {
    std::shuffle(ids.begin(), ids.end(), random);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      generations[i] = manager.generation(ids[i]);
      static_cast<void>(manager.set_content(ids[i], generations[i], BlockContent::published));
      for (std::uint64_t uses = random() % 3; uses > 0; --uses) {
        static_cast<void>(manager.retain(holder, part(ids, i, 1), part(generations, i, 1)));
        static_cast<void>(manager.release(holder, part(ids, i, 1), part(generations, i, 1)));
      }
      if (manager.eviction() == EvictionPolicy::priority) {
        const auto priority = static_cast<std::int32_t>(random() % 8);
        const auto end = manager.clock_time() + 1 + static_cast<std::int64_t>(random() % 1'000'000);
        static_cast<void>(manager.set_retention(ids[i], generations[i], {priority, end}));
      }
    }
    for (std::size_t i = 0; i < ids.size(); i += kCall) {
      const std::size_t count = std::min(kCall, ids.size() - i);
      static_cast<void>(manager.release(holder, part(ids, i, count), part(generations, i, count)));
    }
  }

  template <class T>
  static std::span<T> part(std::vector<T>& all, std::size_t first, std::size_t count) {
    return std::span(all).subspan(first, count);
  }

  static constexpr std::size_t kCall = 1024;
  BlockManager manager;
  HolderId holder;
  std::vector<BlockId> ids;
  std::vector<Generation> generations;
  std::mt19937_64 random{7};
};

void evict(benchmark::State& state, EvictionPolicy policy, std::size_t batch) {
  CachedPool pool(state.range(0), policy);
  pool.cache_all();
  std::size_t first = 0;
  bool ok = true;
  for (auto _ : state) {
    if (first + batch > pool.ids.size()) {
      state.PauseTiming();
      const std::size_t left = pool.ids.size() - first;
      ok = ok && pool.manager
                     .allocate(pool.holder, pool.part(pool.ids, first, left),
                               pool.part(pool.generations, first, left))
                     .is_ok();
      pool.cache_all();
      first = 0;
      state.ResumeTiming();
    }
    ok = ok && pool.manager
                   .allocate(pool.holder, pool.part(pool.ids, first, batch),
                             pool.part(pool.generations, first, batch))
                   .is_ok();
    first += batch;
  }
  if (!ok) state.SkipWithError("the call was refused");
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(batch));
}

/// A batch of cached blocks, which lie anywhere, is found and given back.
void find_again(benchmark::State& state, EvictionPolicy policy) {
  constexpr std::size_t kBatch = 128;
  CachedPool pool(state.range(0), policy);
  pool.cache_all();
  std::size_t first = 0;
  bool ok = true;
  for (auto _ : state) {
    if (first + kBatch > pool.ids.size()) first = 0;
    const auto ids = pool.part(pool.ids, first, kBatch);
    const auto generations = pool.part(pool.generations, first, kBatch);
    ok = ok && pool.manager.retain(pool.holder, ids, generations).is_ok() &&
         pool.manager.release(pool.holder, ids, generations).is_ok();
    first += kBatch;
  }
  if (!ok) state.SkipWithError("the call was refused");
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(kBatch));
}

void register_all() {
  for (const EvictionPolicy policy : kEvictionPolicies) {
    const std::string name(name_of(policy));
    for (const std::int64_t blocks : {10'000, 100'000, 1'000'000}) {
      benchmark::RegisterBenchmark(("evict_batch/" + name).c_str(), [policy](auto& state) {
        evict(state, policy, 1024);
      })->Arg(blocks);
      benchmark::RegisterBenchmark(("evict_one/" + name).c_str(), [policy](auto& state) {
        evict(state, policy, 1);
      })->Arg(blocks);
      benchmark::RegisterBenchmark(("find_again/" + name).c_str(), [policy](auto& state) {
        find_again(state, policy);
      })->Arg(blocks);
    }
  }
}

}  // namespace
}  // namespace kvarena

int main(int argc, char** argv) {
  kvarena::register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
