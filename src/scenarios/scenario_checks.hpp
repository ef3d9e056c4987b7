#pragma once

/// @file
/// Checks that several scenarios make. Each writes what it expected and what it saw into the
/// report.

#include "replay/failure.hpp"
#include "scenarios/pressure_context.hpp"
#include "scenarios/pressure_engine.hpp"
#include "scenarios/pressure_instance.hpp"
#include "scenarios/scenario_report.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace kvarena::replay::pressure {

/// Why weights or a cache of `model` could not be made on `device`, as the scenario's end.
ReplayFailure not_created(const Device& device, const PressureModel& model, const Status& status);

/// Bytes of KV a token of the model takes, from its numbers alone: what layouts are held to.
std::int64_t model_bytes_per_token(const PressureModel& model) noexcept;

/// Blocks and tables at one moment.
struct PoolState {
  std::int64_t free = 0;
  std::int64_t references = 0;
  std::int64_t reserved = 0;
  std::int64_t sequences = 0;
  std::int64_t tokens = 0;
  std::int64_t entries = 0;
  std::uint64_t allocations = 0;

  friend bool operator==(const PoolState&, const PoolState&) = default;
};
/// The state now.
PoolState pool_state(const PressureEngine& engine);
/// `what`: nothing changed from `before` to now, and the accounts prove.
void expect_unchanged(ScenarioReport& report, const std::string& what, const PoolState& before,
                      const PressureEngine& engine);

/// `refused` says context_length_exceeded with the length asked for and the maximum.
void expect_too_long(ScenarioReport& report, const std::string& what, const Status& refused,
                     std::int64_t length_tokens, std::int64_t maximum_tokens);
/// `refused` says exhausted (block) with what was asked for and what there was.
void expect_exhausted(ScenarioReport& report, const std::string& what, const Status& refused,
                      std::int64_t required_blocks, std::int64_t available_blocks);

/// Adds what was looked at and how far it was from the reference, and holds it to the tolerance.
/// `attention_rows`: how many results must have been compared; none: at least one.
void expect_verified(ScenarioReport& report, const PressureEngine& engine,
                     std::optional<std::int64_t> attention_rows = std::nullopt);
/// Results that must have been compared: on a GPU all of them; a host samples.
std::optional<std::int64_t> due_on_gpu(const PressureContext& context,
                                       const PressureEngine& engine);
/// What a driver may keep for its own use after the first time, bytes; a host keeps nothing.
std::int64_t driver_may_keep(const PressureContext& context) noexcept;
/// The same as the name of a check.
std::string what_driver_keeps(const PressureContext& context);
/// An engine of `options` but for the pool, which holds one context, comes and goes: what a GPU
/// loads at the first launch of each kernel must not come when nothing is left.
MaybeFailure warm_up(const PressureContext& context, PressureEngineOptions options);
/// No sequence is left, every block is free, the accounts prove.
void expect_idle(ScenarioReport& report, const PressureEngine& engine);
/// The weights are what they were filled with.
MaybeFailure expect_weights_intact(ScenarioReport& report, const ModelWeights& weights);

}  // namespace kvarena::replay::pressure
