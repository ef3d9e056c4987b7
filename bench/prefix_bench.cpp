// Cost of the prefix cache: a prompt of 32,768 tokens hashed, looked up, begun with, and computed
// for the first time, with a free pool and when every block evicts; short prompts by the size of
// the pool and by the number of tenants; decode steps with their tokens, of tables and of a whole
// cache on the host.

#include "blocktable/prefix_hash.hpp"
#include "kvarena/allocator/block_manager.hpp"
#include "kvarena/blocktable/block_tables.hpp"
#include "kvarena/cache/kv_cache.hpp"
#include "kvarena/device/host_device.hpp"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <random>
#include <span>
#include <vector>

namespace kvarena {
namespace {

constexpr std::int32_t kBlockSize = 16;
constexpr std::int32_t kPromptTokens = 32'768;
constexpr std::int64_t kPromptBlocks = kPromptTokens / kBlockSize;

/// Tables with a prefix cache.
struct Cache {
  Cache(std::int64_t num_blocks, std::int32_t num_sequences, const PrefixOptions& options)
      : manager(BlockManager::create({.num_blocks = num_blocks, .max_holders = num_sequences + 2})
                    .value()),
        tables(BlockTables::create(manager, {.block_size_tokens = kBlockSize,
                                             .max_sequences = num_sequences,
                                             .prefix_cache = options})
                   .value()) {}
  Cache(std::int64_t num_blocks, std::int32_t num_sequences, bool is_on = true)
      : Cache(num_blocks, num_sequences, PrefixOptions{.is_on = is_on}) {}

  /// Begins a sequence, computes the rest of its tokens and publishes it.
  SequenceId compute(std::span<const std::int32_t> tokens, std::uint64_t salt = 0) {
    const SequenceId id = tables.create_sequence({.tokens = tokens, .salt = salt}).value();
    const auto covered = static_cast<std::size_t>(tables.prefix_of(id)->tokens);
    const AppendDemand rest{
        id, static_cast<std::int32_t>(tokens.size() - covered), {}, tokens.subspan(covered)};
    if (!tables.append(std::span(&rest, 1)) || !tables.publish(id)) std::abort();
    return id;
  }

  /// The blocks of a pool that is free will be taken in any order.
  void shuffle_free_blocks() {
    const HolderId holder = manager.register_holder({}).value();
    std::vector<BlockId> ids(static_cast<std::size_t>(manager.num_blocks()));
    std::vector<Generation> generations(ids.size());
    if (!manager.allocate(holder, ids, generations)) std::abort();
    std::shuffle(ids.begin(), ids.end(), std::mt19937_64{7});
    for (std::size_t i = 0; i < ids.size(); ++i) generations[i] = manager.generation(ids[i]);
    if (!manager.release(holder, ids, generations)) std::abort();
    if (!manager.unregister_holder(holder)) std::abort();
  }

  BlockManager manager;
  BlockTables tables;
};

std::vector<std::int32_t> prompt(std::int32_t first) {
  std::vector<std::int32_t> tokens(kPromptTokens);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

/// Hashes the blocks of a prompt.
void BM_hash(benchmark::State& state) {
  const PrefixHash hash({1, 2});
  const std::vector<std::int32_t> tokens = prompt(1);
  std::array<Hash128, PrefixHash::kBatch> chains;
  for (auto _ : state) {
    Hash128 chain;
    for (std::size_t i = 0; i < tokens.size(); i += kBlockSize * chains.size()) {
      hash.extend(chain, tokens.data() + i, kBlockSize, chains);
      chain = chains.back();
    }
    benchmark::DoNotOptimize(chain);
  }
}

/// Hashes, finds and compares all blocks of a prompt that is cached.
void BM_match(benchmark::State& state) {
  Cache cache(4 * kPromptBlocks, 4);
  const std::vector<std::int32_t> tokens = prompt(1);
  cache.compute(tokens);
  for (auto _ : state) benchmark::DoNotOptimize(cache.tables.match({.tokens = tokens}));
}

/// Begins a sequence with a cached prompt: with one of range(0) prompts in turn. Their blocks lie
/// one behind the other, or anywhere when range(1) is 1.
void BM_begin(benchmark::State& state) {
  Cache cache(state.range(0) * kPromptBlocks, 4);
  if (state.range(1) == 1) cache.shuffle_free_blocks();
  std::vector<std::vector<std::int32_t>> prompts;
  for (std::int32_t i = 0; i < state.range(0); ++i) {
    prompts.push_back(prompt(1 + i * 1'000'003));
    if (!cache.tables.destroy(cache.compute(prompts.back()))) return;
  }
  std::size_t next = 0;
  for (auto _ : state) {
    const auto& tokens = prompts[next++ % prompts.size()];
    const SequenceId id = cache.tables.create_sequence({.tokens = tokens}).value();
    state.PauseTiming();
    static_cast<void>(cache.tables.destroy(id));
    state.ResumeTiming();
  }
}

/// Begins a sequence with a cached prompt, and ends it.
void BM_begin_and_end(benchmark::State& state) {
  Cache cache(4 * kPromptBlocks, 4);
  const std::vector<std::int32_t> tokens = prompt(1);
  if (!cache.tables.destroy(cache.compute(tokens))) return;
  for (auto _ : state) {
    const SequenceId id = cache.tables.create_sequence({.tokens = tokens}).value();
    static_cast<void>(cache.tables.destroy(id));
  }
}

/// The same with what is off by default: an account, with a floor of range(0) blocks unless that is
/// negative, ghosts that see about range(1) ids, and events when range(2) is 1.
void BM_begin_and_end_watched(benchmark::State& state) {
  static std::uint64_t told = 0;
  PrefixOptions options{.is_on = true, .ghost_blocks = state.range(1)};
  if (state.range(0) >= 0) options.max_accounts = 1;
  if (state.range(2) == 1) options.events.tell = [](const PrefixEvent&, void*) { ++told; };
  Cache cache(4 * kPromptBlocks, 4, options);
  const std::vector<std::int32_t> tokens = prompt(1);
  if (state.range(0) >= 0 && !cache.tables.set_salt_limits(0, {.floor_blocks = state.range(0)})) {
    std::abort();
  }
  if (!cache.tables.destroy(cache.compute(tokens))) return;
  for (auto _ : state) {
    const SequenceId id = cache.tables.create_sequence({.tokens = tokens}).value();
    static_cast<void>(cache.tables.destroy(id));
  }
}

/// Takes the figures for a publication.
void BM_figures(benchmark::State& state) {
  Cache cache(kPromptBlocks, 4, PrefixOptions{.is_on = true, .ghost_blocks = state.range(0)});
  for (auto _ : state) {
    benchmark::DoNotOptimize(cache.tables.prefix_stats());
    benchmark::DoNotOptimize(cache.tables.prefix_use());
  }
}

/// Takes the blocks of a prompt that nobody has seen, registers and publishes them, in a pool of
/// four prompts. With range(0) 1 every block evicts another; with 0 the pool is free.
void BM_cold_prompt(benchmark::State& state) {
  constexpr std::int64_t kPoolPrompts = 4;
  Cache cache(kPoolPrompts * kPromptBlocks, 4);
  const bool evicts = state.range(0) == 1;
  std::int32_t first = 0;
  std::vector<std::vector<std::int32_t>> prompts;
  for (std::int32_t i = 0; i < 64; ++i) prompts.push_back(prompt(first += 1'000'003));
  std::size_t next = 0;
  const auto compute = [&] {
    const std::size_t number = next++;
    return cache.compute(prompts[number % prompts.size()], number / prompts.size());
  };
  for (std::int64_t i = 0; evicts && i < 2 * kPoolPrompts; ++i) {
    static_cast<void>(cache.tables.destroy(compute()));
  }
  for (auto _ : state) {
    const SequenceId id = compute();
    state.PauseTiming();
    static_cast<void>(cache.tables.destroy(id));
    if (!evicts) static_cast<void>(cache.tables.forget_all());
    state.ResumeTiming();
  }
}

constexpr std::int64_t kShortBlocks = 31;

/// A prompt of kShortBlocks blocks and a token.
class ShortPrompt {
 public:
  std::span<const std::int32_t> number(std::int64_t n) {
    std::iota(tokens_.begin(), tokens_.end(), static_cast<std::int32_t>(n * 7919 % 2'000'000'000));
    return tokens_;
  }

 private:
  std::array<std::int32_t, kShortBlocks * kBlockSize + 1> tokens_;
};

/// A pool of range(0) blocks, which are all cached, of range(1) tenants that have accounts unless
/// there is one. Begins sequences with prompts that are cached, and ends them; when range(2) is 1,
/// with prompts that nobody has seen, and every block evicts. Time for each block.
void BM_short_prompts(benchmark::State& state) {
  const std::int64_t num_prompts = state.range(0) / (kShortBlocks + 1);
  const std::int64_t tenants = state.range(1);
  const auto accounts = static_cast<std::int32_t>(tenants > 1 ? tenants : 0);
  Cache cache(state.range(0), 4, PrefixOptions{.is_on = true, .max_accounts = accounts});
  for (std::int64_t salt = 0; salt < accounts; ++salt) {
    if (!cache.tables.set_salt_limits(static_cast<std::uint64_t>(salt), {})) std::abort();
  }
  ShortPrompt tokens;
  const auto salt_of = [&](std::int64_t n) { return static_cast<std::uint64_t>(n % tenants); };
  std::int64_t next = 0;
  const auto compute_next = [&] {
    const SequenceId id = cache.compute(tokens.number(next), salt_of(next));
    ++next;
    if (!cache.tables.destroy(id)) std::abort();
  };
  while (next < num_prompts + 1) compute_next();
  std::mt19937_64 random{7};
  for (auto _ : state) {
    if (state.range(2) == 1) {
      compute_next();
      continue;
    }
    const auto n =
        next - 1 -
        static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(num_prompts - 1));
    const SequenceId id =
        cache.tables.create_sequence({.tokens = tokens.number(n), .salt = salt_of(n)}).value();
    if (cache.tables.prefix_of(id)->blocks != kShortBlocks) std::abort();
    static_cast<void>(cache.tables.destroy(id));
  }
  state.SetItemsProcessed(state.iterations() * kShortBlocks);
}

/// A token for each of range(0) sequences: told, registered and published when range(1) is not 0.
/// In a full pool others begin, with new tokens. With range(1) 2 they evict; else all is forgotten.
void BM_decode_step(benchmark::State& state) {
  const auto num_sequences = static_cast<std::int32_t>(state.range(0));
  const bool is_on = state.range(1) != 0;
  Cache cache(num_sequences * std::int64_t{64}, num_sequences, is_on);
  std::vector<SequenceId> ids;
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(num_sequences));
  const auto begin = [&] {
    ids.clear();
    std::iota(tokens.begin(), tokens.end(), tokens.back() + 1);
    for (std::int32_t i = 0; i < num_sequences; ++i) {
      ids.push_back(cache.tables.create_sequence().value());
      const std::vector<std::int32_t> start(static_cast<std::size_t>(1 + i % kBlockSize),
                                            tokens[static_cast<std::size_t>(i)]);
      const AppendDemand demand{ids.back(), static_cast<std::int32_t>(start.size()), {}, start};
      static_cast<void>(cache.tables.append(std::span(&demand, 1)));
    }
  };
  begin();
  for (auto _ : state) {
    const bool grown = is_on ? cache.tables.append_one_each(ids, tokens).is_ok()
                             : cache.tables.append_one_each(ids).is_ok();
    if (grown) [[likely]] {
      if (!is_on) continue;
      for (const SequenceId id : ids) static_cast<void>(cache.tables.publish(id));
      continue;
    }
    state.PauseTiming();
    static_cast<void>(cache.tables.destroy_many(ids));
    if (state.range(1) == 1) static_cast<void>(cache.tables.forget_all());
    begin();
    state.ResumeTiming();
  }
  state.SetItemsProcessed(state.iterations() * num_sequences);
}

/// The host's part of a decode step of a KvCache without layers: begin_step, append, end_step. The
/// cache is off (range(1) 0), on without tokens (1), or is told every token (2).
void BM_cache_decode_step(benchmark::State& state) {
  const auto num_sequences = static_cast<std::int32_t>(state.range(0));
  const auto device = HostDevice::create({.streams = HostStreams::inline_calls}).value();
  KvCache cache =
      KvCache::create(*device, {.layout = {.num_layers = 1,
                                           .num_kv_heads = 1,
                                           .head_dim_k = 8,
                                           .block_size_tokens = kBlockSize},
                                .size = {.num_blocks = num_sequences * std::int64_t{64}},
                                .num_q_heads = 1,
                                .max_sequences = num_sequences,
                                .max_step_tokens = num_sequences * std::int64_t{kBlockSize},
                                .num_threads = 1,
                                .prefix_cache = {.is_on = state.range(1) > 0}})
          .value();
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(num_sequences));
  std::vector<SequenceId> ids;
  std::vector<AppendDemand> demands;
  const auto step = [&] {
    return cache.begin_step() && cache.append(demands).is_ok() && cache.end_step();
  };
  const auto begin = [&] {
    static_cast<void>(cache.destroy_many(ids));
    ids.clear();
    demands.clear();
    std::iota(tokens.begin(), tokens.end(), tokens.back() + 1);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      ids.push_back(cache.create_sequence().value());
      demands.push_back({ids.back(), static_cast<std::int32_t>(1 + i % kBlockSize)});
    }
    if (!step()) std::abort();
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const std::vector<std::int32_t> first(static_cast<std::size_t>(1 + i % kBlockSize),
                                            tokens[i]);
      if (state.range(1) == 2) static_cast<void>(cache.register_tokens(ids[i], first));
      demands[i] = {ids[i], 1};
      if (state.range(1) == 2) demands[i].tokens = std::span(tokens).subspan(i, 1);
    }
  };
  begin();
  std::int64_t steps = 0;
  for (auto _ : state) {
    if (!step()) std::abort();
    if (++steps % 900 != 0) continue;
    state.PauseTiming();
    begin();
    state.ResumeTiming();
  }
  state.SetItemsProcessed(state.iterations() * num_sequences);
}

BENCHMARK(BM_hash)->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_match)->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_begin)
    ->ArgsProduct({{1, 64}, {0, 1}})
    ->ArgNames({"prompts", "anywhere"})
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_begin_and_end)->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_begin_and_end_watched)
    ->Args({0, 0, 0})
    ->Args({64, 0, 0})
    ->Args({2048, 0, 0})
    ->Args({-1, 4096, 0})
    ->Args({-1, 1 << 16, 0})
    ->Args({-1, 0, 1})
    ->ArgNames({"floor", "ghosts", "events"})
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_figures)->Arg(0)->Arg(4096)->ArgName("ghosts");
BENCHMARK(BM_cold_prompt)->Arg(0)->Arg(1)->ArgName("evicts")->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_short_prompts)
    ->ArgsProduct({{1'000, 10'000, 100'000, 1'000'000, 10'000'000}, {1}, {0, 1}})
    ->ArgsProduct({{1'000'000}, {10, 1'000, 100'000}, {0, 1}})
    ->ArgNames({"blocks", "tenants", "evicts"})
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_decode_step)
    ->ArgsProduct({{256, 1024}, {0, 1, 2}})
    ->ArgNames({"sequences", "on"})
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_cache_decode_step)
    ->ArgsProduct({{256, 1024}, {0, 1, 2}})
    ->ArgNames({"sequences", "tells"})
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace kvarena

BENCHMARK_MAIN();
