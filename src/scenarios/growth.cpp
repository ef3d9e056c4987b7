// Scenario 2: memory and blocks while one sequence grows.

#include "scenarios/checks.hpp"
#include "scenarios/memory_reading.hpp"
#include "scenarios/suite.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace kvarena::scenarios {
namespace {

std::vector<std::int64_t> lengths_up_to(std::int64_t longest) {
  std::vector<std::int64_t> lengths;
  for (const std::int64_t tokens : {0, 1, 16, 128, 1000, 2048, 4096}) {
    if (tokens < longest) lengths.push_back(tokens);
  }
  lengths.push_back(longest);
  return lengths;
}

/// What one length showed.
struct Row {
  std::int64_t tokens = 0;
  std::int64_t blocks = 0;
  std::int64_t kv_bytes = 0;  ///< of those blocks, by the tracker's word on the pool
  MemoryReading memory;
};

Result<Row> read_row(const ScenarioContext& context, const CheckedEngine& engine,
                     std::int64_t tokens) {
  const Result<MemoryReading> memory = read_memory(context.device());
  if (!memory) return memory.status();
  const BlockStats stats = engine.cache().manager().stats();
  return Row{.tokens = tokens,
             .blocks = stats.referenced,
             .kv_bytes = memory->kv_cache / stats.num_blocks * stats.referenced,
             .memory = *memory};
}

void judge(const ScenarioContext& context, const std::vector<Row>& rows, ScenarioReport& report) {
  const std::int64_t per_token = model_bytes_per_token(context.model());
  const std::int64_t per_block = per_token * context.model().shape.block_size_tokens;
  std::int64_t outside = 0;
  std::int64_t lowest_free = rows.front().memory.driver_free;
  std::int64_t highest_free = lowest_free;
  std::int64_t highest_resident = 0;
  FigureTable blocks{{"tokens", "blocks", "kv_bytes", "expected_kv_bytes"}, {}};
  MemoryTable memory({"tokens"});
  for (const Row& row : rows) {
    const std::int64_t expected = row.tokens * per_token;
    outside += row.kv_bytes < expected || row.kv_bytes >= expected + per_block ? 1 : 0;
    lowest_free = std::min(lowest_free, row.memory.driver_free);
    highest_free = std::max(highest_free, row.memory.driver_free);
    highest_resident = std::max(highest_resident, row.memory.process.resident);
    blocks.rows.push_back({row.tokens, row.blocks, row.kv_bytes, expected});
    memory.add({row.tokens}, row.memory);
  }
  report.add("blocks", std::move(blocks));
  report.add("memory", memory.table());
  report.expect_equal("lengths whose KV bytes are not tokens x bytes a token, within one block", 0,
                      outside);
  report.expect_equal("growth of what the driver says is used, bytes", 0,
                      highest_free - lowest_free);
  report.expect_equal("growth of what is tracked, bytes", 0,
                      rows.back().memory.tracked - rows.front().memory.tracked);
  report.expect_at_most("growth of the process's resident memory, bytes",
                        context.sizes().resident_growth_bytes,
                        highest_resident - rows.front().memory.process.resident);
}

void judge_layout(const ServedModel& model, const CheckedEngine& engine, ScenarioReport& report) {
  const KvLayout& layout = engine.cache().arena().layout();
  const std::int64_t expected = model_bytes_per_token(model);
  report.add("bytes_per_token", layout.bytes_per_token());
  report.add("bytes_per_token_per_layer", layout.bytes_per_token() / model.shape.num_layers);
  report.add("bytes_per_block", layout.block_bytes());
  report.expect_equal("bytes a token", expected, layout.bytes_per_token());
  report.expect_equal("bytes a token and layer", expected / model.shape.num_layers,
                      layout.bytes_per_token() / model.shape.num_layers);
}

EngineOptions engine_of(const ScenarioContext& context) {
  return {.pool = {.num_blocks = context_blocks(context.model())},
          .max_step_tokens = context.sizes().chunk_tokens,
          .touch_pool = true,
          .num_threads = context.options.num_threads,
          .stop = context.options.stop};
}

MaybeFailure run(const ScenarioContext& context, ScenarioReport& report) {
  const ServedModel& model = context.model();
  const std::int64_t longest = model.max_context_tokens;
  auto instance = ServedInstance::create(context.options, engine_of(context));
  if (!instance) return not_created(context, instance.status());
  CheckedEngine& engine = instance->engine();
  const Result<MemoryReading> created = read_memory(context.device());
  if (!created) return unexpected("memory_info", created.status());
  if (auto failure = engine.warm_up()) return failure;

  const Result<Job*> job = engine.add(longest, 0);
  if (!job) return unexpected("create_sequence", job.status());
  // Comparisons would take memory of their own on the host: they come last.
  std::vector<Row> rows;
  for (const std::int64_t tokens : lengths_up_to(longest)) {
    if (auto failure = engine.extend(**job, tokens, StepWork::write)) return failure;
    if (Status s = engine.cache().synchronize(); !s) return unexpected("synchronize", s);
    const Result<Row> row = read_row(context, engine, tokens);
    if (!row) return unexpected("memory_info", row.status());
    rows.push_back(*row);
  }
  judge_layout(model, engine, report);
  report.expect_equal("growth since creation, by the driver, bytes", 0,
                      created->driver_free - rows.front().memory.driver_free);
  judge(context, rows, report);
  if (auto failure = engine.finish(**job)) return failure;
  expect_verified(report, engine);
  expect_idle(report, engine);
  return expect_weights_intact(report, instance->weights());
}

}  // namespace

Scenario growth() {
  return {"growth", "Memory while a sequence grows", run, [](const ScenarioContext& context) {
            return instance_bytes(context.options, engine_of(context));
          }};
}

}  // namespace kvarena::scenarios
