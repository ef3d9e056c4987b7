// Cost of the prefix cache of a pool, for engines with block tables of their own: a prompt of
// 32,768 tokens begun with and given back, and computed for the first time, with a free pool and
// when every block evicts; one full block for each of some sequences.

#include "kvarena/blocktable/prefix_pool.hpp"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <span>
#include <vector>

namespace kvarena {
namespace {

constexpr std::int32_t kBlockSize = 16;
constexpr std::int32_t kPromptTokens = 32'768;
constexpr std::int64_t kPromptBlocks = kPromptTokens / kBlockSize;

void require(const Status& status) {
  if (!status) std::abort();
}

/// One prompt at a time in a pool with a prefix cache.
struct Engine {
  explicit Engine(std::int64_t num_blocks)
      : manager(BlockManager::create({.num_blocks = num_blocks}).value()),
        prefixes(PrefixPool::create(manager, {.block_size_tokens = kBlockSize}).value()),
        holder(manager.register_holder({}).value()),
        ids(static_cast<std::size_t>(kPromptBlocks)),
        generations(ids.size()) {}

  /// Begins with what is cached, takes the rest, registers and publishes it.
  void compute(std::span<const std::int32_t> tokens, std::uint64_t salt = 0) {
    PrefixAdoption adopted = prefixes.adopt(holder, {tokens, salt}, ids, generations).value();
    const auto cached = static_cast<std::size_t>(adopted.found.blocks);
    const auto rest = std::span(ids).subspan(cached);
    const auto numbers = std::span(generations).subspan(cached);
    require(manager.allocate(holder, rest, numbers).status());
    prefixes.notice(manager.evicted());
    require(
        prefixes.register_blocks(adopted.end, tokens.subspan(cached * kBlockSize), rest, numbers)
            .status());
    require(prefixes.publish(rest, numbers).status());
  }
  void give_back() {
    std::ranges::reverse(ids);
    std::ranges::reverse(generations);
    require(manager.release(holder, ids, generations));
  }

  BlockManager manager;
  PrefixPool prefixes;
  HolderId holder;
  std::vector<BlockId> ids;
  std::vector<Generation> generations;
};

std::vector<std::int32_t> prompt(std::int32_t first) {
  std::vector<std::int32_t> tokens(kPromptTokens);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

void BM_pool_match(benchmark::State& state) {
  Engine engine(4 * kPromptBlocks);
  const std::vector<std::int32_t> tokens = prompt(1);
  engine.compute(tokens);
  for (auto _ : state) benchmark::DoNotOptimize(engine.prefixes.match({tokens}));
}

void BM_pool_adopt_and_release(benchmark::State& state) {
  Engine engine(4 * kPromptBlocks);
  const std::vector<std::int32_t> tokens = prompt(1);
  engine.compute(tokens);
  engine.give_back();
  for (auto _ : state) {
    const auto adopted =
        engine.prefixes.adopt(engine.holder, {tokens}, engine.ids, engine.generations);
    const auto count = static_cast<std::size_t>(adopted->found.blocks);
    const auto ids = std::span(engine.ids).first(count);
    const auto generations = std::span(engine.generations).first(count);
    std::ranges::reverse(ids);
    std::ranges::reverse(generations);
    require(engine.manager.release(engine.holder, ids, generations));
  }
}

/// With range(0) 1 every block evicts another; with 0 the pool is free.
void BM_pool_cold_prompt(benchmark::State& state) {
  constexpr std::int64_t kPoolPrompts = 4;
  Engine engine(kPoolPrompts * kPromptBlocks);
  const bool evicts = state.range(0) == 1;
  std::vector<std::vector<std::int32_t>> prompts;
  for (std::int32_t i = 0; i < 64; ++i) prompts.push_back(prompt((i + 1) * 1'000'003));
  std::size_t next = 0;
  const auto compute = [&] {
    const std::size_t number = next++;
    engine.compute(prompts[number % prompts.size()], number / prompts.size());
  };
  for (std::int64_t i = 0; evicts && i < 2 * kPoolPrompts; ++i) {
    compute();
    engine.give_back();
  }
  for (auto _ : state) {
    compute();
    state.PauseTiming();
    engine.give_back();
    if (!evicts) engine.prefixes.forget_all();
    state.ResumeTiming();
  }
}

/// Registers and publishes one block for each of range(0) sequences.
void BM_pool_register_one_each(benchmark::State& state) {
  const auto count = static_cast<std::size_t>(state.range(0));
  Engine engine(2 * state.range(0));
  engine.ids.resize(count);
  engine.generations.resize(count);
  require(engine.manager.allocate(engine.holder, engine.ids, engine.generations).status());
  std::vector<std::int32_t> tokens(kBlockSize);
  std::int32_t number = 0;
  for (auto _ : state) {
    for (std::size_t i = 0; i < count; ++i) {
      tokens[0] = ++number;
      PrefixPosition position = engine.prefixes.begin();
      const auto id = std::span(engine.ids).subspan(i, 1);
      const auto generation = std::span(engine.generations).subspan(i, 1);
      require(engine.prefixes.register_blocks(position, tokens, id, generation).status());
      require(engine.prefixes.publish(id, generation).status());
    }
    state.PauseTiming();
    engine.prefixes.forget_all();
    state.ResumeTiming();
  }
}

BENCHMARK(BM_pool_match)->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_pool_adopt_and_release)->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_pool_cold_prompt)->Arg(0)->Arg(1)->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_pool_register_one_each)->Arg(256)->Arg(1024)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace kvarena

BENCHMARK_MAIN();
