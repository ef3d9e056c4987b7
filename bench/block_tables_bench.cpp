// Cost of block tables: a decode step, a rollback, a fork, a destroy, from few sequences to many.

#include "kvarena/allocator/block_manager.hpp"
#include "kvarena/blocktable/block_tables.hpp"

#include <benchmark/benchmark.h>

#include <cstdint>
#include <vector>

namespace kvarena {
namespace {

constexpr std::int32_t kBlockSize = 16;

/// Sequences of staggered lengths, so that one in sixteen takes a block at each step.
struct Batch {
  Batch(std::int64_t num_sequences, std::int64_t num_blocks)
      : manager(BlockManager::create({.num_blocks = num_blocks,
                                      .max_holders = static_cast<std::int32_t>(num_sequences + 2)})
                    .value()),
        tables(BlockTables::create(manager,
                                   {.block_size_tokens = kBlockSize,
                                    .max_sequences = static_cast<std::int32_t>(num_sequences + 2)})
                   .value()) {
    for (std::int64_t i = 0; i < num_sequences; ++i) {
      const SequenceId id = tables.create_sequence().value();
      const AppendDemand start{id, static_cast<std::int32_t>(1 + i % kBlockSize)};
      static_cast<void>(tables.append(std::span(&start, 1)));
      ids.push_back(id);
    }
  }
  SequenceId sequence_of(std::int32_t tokens) {
    const SequenceId id = tables.create_sequence().value();
    const AppendDemand demand{id, tokens};
    static_cast<void>(tables.append(std::span(&demand, 1)));
    return id;
  }
  BlockManager manager;
  BlockTables tables;
  std::vector<SequenceId> ids;
};

/// One token for each sequence; cut back to the start, untimed, when the pool is used up.
void BM_decode_step(benchmark::State& state) {
  const std::int64_t num_sequences = state.range(0);
  Batch batch(num_sequences, num_sequences * 64);
  for (auto _ : state) {
    if (batch.tables.append_one_each(batch.ids)) [[likely]]
      continue;
    state.PauseTiming();
    std::int64_t i = 0;
    for (const SequenceId id : batch.ids) {
      static_cast<void>(batch.tables.truncate(id, 1 + i++ % kBlockSize));
    }
    state.ResumeTiming();
  }
  state.SetItemsProcessed(state.iterations() * num_sequences);
}

/// One token for each sequence of a model like Gemma-3-27B: blocks of all tokens, five a page, and
/// of a window. The sequences are longer than the window, so blocks come and go.
void BM_decode_step_of_two_groups(benchmark::State& state) {
  const std::int64_t num_sequences = state.range(0);
  constexpr BlockGroup kBlocks[] = {{5, 1'310'720}, {1, 6'815'744}};
  constexpr TableGroup kGroups[] = {
      {.kind = PagedKind::full, .ids_per_page = 26, .ids_per_block = 5},
      {.kind = PagedKind::window, .limit_tokens = 1024, .ids_per_page = 1, .ids_per_block = 1}};
  BlockManager manager =
      BlockManager::create({.num_blocks = num_sequences * 100, .groups = kBlocks}).value();
  BlockTables tables =
      BlockTables::create(manager, {.max_sequences = static_cast<std::int32_t>(num_sequences),
                                    .report_rows = true,
                                    .can_undo = true,
                                    .groups = kGroups})
          .value();
  std::vector<SequenceId> ids;
  for (std::int64_t i = 0; i < num_sequences; ++i) {
    ids.push_back(tables.create_sequence().value());
    const AppendDemand start{ids.back(), static_cast<std::int32_t>(1100 + i % kBlockSize)};
    static_cast<void>(tables.append(std::span(&start, 1)));
    tables.settle_append();
  }
  for (auto _ : state) {
    if (!tables.append_one_each(ids)) [[unlikely]] {
      state.PauseTiming();
      for (std::size_t i = 0; i < ids.size(); ++i) {
        static_cast<void>(tables.truncate(ids[i], 0));
        const AppendDemand start{ids[i], static_cast<std::int32_t>(1100 + i % kBlockSize)};
        static_cast<void>(tables.append(std::span(&start, 1)));
        tables.settle_append();
      }
      state.ResumeTiming();
    }
    tables.settle_append();
  }
  state.SetItemsProcessed(state.iterations() * num_sequences);
}

/// One token for each sequence of a model like Qwen3-Next-80B: blocks of all tokens, eleven a page,
/// and states of 18 parts. `keeps` says whether a step leaves the states before it as they were.
void BM_decode_step_with_states(benchmark::State& state) {
  const std::int64_t num_sequences = state.range(0);
  constexpr BlockGroup kBlocks[] = {{11, 393'216}, {1, 4'292'608}};
  const TableGroup groups[] = {{.kind = PagedKind::full, .ids_per_page = 11, .ids_per_block = 1},
                               {.kind = PagedKind::state,
                                .ids_per_page = 1,
                                .ids_per_block = 1,
                                .num_parts = 18,
                                .mode = StateMode::read_write,
                                .keeps_for_undo = state.range(1) != 0}};
  BlockManager manager =
      BlockManager::create({.num_blocks = num_sequences * 70, .groups = kBlocks}).value();
  BlockTables tables =
      BlockTables::create(manager, {.max_sequences = static_cast<std::int32_t>(num_sequences),
                                    .report_rows = true,
                                    .can_undo = true,
                                    .groups = groups})
          .value();
  std::vector<SequenceId> ids;
  for (std::int64_t i = 0; i < num_sequences; ++i) {
    ids.push_back(tables.create_sequence().value());
    const AppendDemand start{ids.back(), static_cast<std::int32_t>(100 + i % kBlockSize)};
    static_cast<void>(tables.append(std::span(&start, 1)));
    tables.settle_append();
  }
  std::int64_t steps = 0;
  for (auto _ : state) {
    if (++steps % 4000 == 0) [[unlikely]] {
      state.PauseTiming();
      for (const SequenceId id : ids) static_cast<void>(tables.destroy(id));
      for (std::size_t i = 0; i < ids.size(); ++i) {
        ids[i] = tables.create_sequence().value();
        const AppendDemand start{ids[i], static_cast<std::int32_t>(100 + i % kBlockSize)};
        static_cast<void>(tables.append(std::span(&start, 1)));
        tables.settle_append();
      }
      state.ResumeTiming();
    }
    if (!tables.append_one_each(ids)) state.SkipWithError("refused");
    tables.settle_append();
  }
  state.SetItemsProcessed(state.iterations() * num_sequences);
}

/// Speculative decoding takes a token back. The append that makes room is timed alone below it.
void BM_append_and_truncate_one_token(benchmark::State& state) {
  Batch batch(1, 1024);
  const std::vector<SequenceId> one{batch.sequence_of(100)};
  for (auto _ : state) {
    static_cast<void>(batch.tables.append_one_each(one));
    static_cast<void>(batch.tables.truncate(one[0], 100));
  }
}

void BM_truncate_one_token(benchmark::State& state) {
  constexpr std::int64_t kRollbacks = 8000;  // within blocks of 8192 tokens: no block is released
  BlockManager manager = BlockManager::create({.num_blocks = 4}).value();
  BlockTables tables = BlockTables::create(manager, {.block_size_tokens = 8192}).value();
  const SequenceId id = tables.create_sequence().value();
  const AppendDemand full{id, 8191};
  static_cast<void>(tables.append(std::span(&full, 1)));
  std::int64_t length = 8191;
  for (auto _ : state) {
    static_cast<void>(tables.truncate(id, --length));
    if (length == 8191 - kRollbacks) {
      state.PauseTiming();
      const AppendDemand refill{id, static_cast<std::int32_t>(kRollbacks)};
      static_cast<void>(tables.append(std::span(&refill, 1)));
      length = 8191;
      state.ResumeTiming();
    }
  }
}

void BM_fork(benchmark::State& state) {
  Batch batch(state.range(0), 1'000'000);
  const SequenceId parent = batch.sequence_of(3072);
  for (auto _ : state) {
    const SequenceId child = batch.tables.fork(parent, 3072).value();
    state.PauseTiming();
    static_cast<void>(batch.tables.destroy(child));
    state.ResumeTiming();
  }
}

void BM_fork_and_destroy(benchmark::State& state) {
  Batch batch(state.range(0), 1'000'000);
  const SequenceId parent = batch.sequence_of(3072);
  for (auto _ : state) {
    const SequenceId child = batch.tables.fork(parent, 3072).value();
    static_cast<void>(batch.tables.destroy(child));
  }
}

void BM_append_and_destroy_3072(benchmark::State& state) {
  Batch batch(state.range(0), 1'000'000);
  for (auto _ : state) {
    static_cast<void>(batch.tables.destroy(batch.sequence_of(3072)));
  }
}

BENCHMARK(BM_decode_step)
    ->Arg(10)
    ->Arg(100)
    ->Arg(256)
    ->Arg(1000)
    ->Arg(1024)
    ->Arg(10'000)
    ->Arg(100'000);
BENCHMARK(BM_decode_step_of_two_groups)->Arg(256);
BENCHMARK(BM_decode_step_with_states)->Args({256, 0})->Args({256, 1});
BENCHMARK(BM_append_and_truncate_one_token);
BENCHMARK(BM_truncate_one_token);
BENCHMARK(BM_fork)->Arg(10)->Iterations(20'000);
BENCHMARK(BM_fork_and_destroy)->Arg(10)->Arg(1000)->Arg(100'000);
BENCHMARK(BM_append_and_destroy_3072)->Arg(10)->Arg(100'000);

}  // namespace
}  // namespace kvarena

BENCHMARK_MAIN();
