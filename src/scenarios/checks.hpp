#pragma once

/// @file
/// Checks that several scenarios make. Each writes what it expected and what it saw into the
/// report.

#include "scenarios/engine.hpp"
#include "scenarios/report.hpp"
#include "scenarios/scenario.hpp"
#include "verify/failure.hpp"

#include "kvarena/allocator/arena.hpp"
#include "kvarena/device/device.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace kvarena::scenarios {

/// Why weights or a cache of `model` could not be made on `device`, as the scenario's end.
Failure not_created(const Device& device, const ServedModel& model, const Status& status);
/// As above, on the scenario's device.
inline Failure not_created(const ScenarioContext& context, const Status& status) {
  return not_created(context.device(), context.model(), status);
}

/// Bytes of KV a token of the model takes, from its numbers alone: what layouts are held to.
std::int64_t model_bytes_per_token(const ServedModel& model) noexcept;

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
PoolState pool_state(const CheckedEngine& engine);
/// `what`: nothing changed from `before` to now, and the accounts prove.
void expect_unchanged(ScenarioReport& report, const std::string& what, const PoolState& before,
                      const CheckedEngine& engine);

/// `refused` says context_length_exceeded with the length asked for and the maximum.
void expect_too_long(ScenarioReport& report, const std::string& what, const Status& refused,
                     std::int64_t length_tokens, std::int64_t maximum_tokens);
/// `refused` says exhausted (block) with what was asked for and what there was.
void expect_exhausted(ScenarioReport& report, const std::string& what, const Status& refused,
                      std::int64_t required_blocks, std::int64_t available_blocks);

/// Adds what was looked at and how far it was from the reference, and holds it to the tolerance.
/// `attention_rows`: how many results must have been compared; none: at least one.
void expect_verified(ScenarioReport& report, const CheckedEngine& engine,
                     std::optional<std::int64_t> attention_rows = std::nullopt);
/// Results that must have been compared: on a GPU all of them; a host samples.
std::optional<std::int64_t> due_on_gpu(const ScenarioContext& context, const CheckedEngine& engine);
/// What a driver may keep for its own use after the first time, bytes; a host keeps nothing.
std::int64_t driver_may_keep(const ScenarioContext& context) noexcept;
/// The same as the name of a check.
std::string what_driver_keeps(const ScenarioContext& context);
/// An engine of `options` but for the pool, which holds one context, comes and goes: what a GPU
/// loads at the first launch of each kernel must not come when nothing is left.
MaybeFailure warm_up(const ScenarioContext& context, EngineOptions options);
/// No sequence is left, every block is free, the accounts prove.
void expect_idle(ScenarioReport& report, const CheckedEngine& engine);
/// The weights are what they were filled with.
MaybeFailure expect_weights_intact(ScenarioReport& report, const ModelWeights& weights);

/// What asking for all planes gave.
struct PlaneResidency {
  std::int64_t planes = 0;      ///< K and V of all layers
  std::int64_t ranges = 0;      ///< asked about: each plane's range of the first and the last block
  std::int64_t permitted = 0;   ///< of them, where the policy wants them
  std::string place;            ///< of all of them; "a, b" where they differ
  std::string first_violation;  ///< layer, kind and what the driver said; empty when none
};

/// Asks for the first and the last block of every plane. Returns what Device::place_of returns.
Result<PlaneResidency> check_planes(const Device& device, const Arena& arena);

/// Every plane, and every tracked allocation, is where it must be: figures and checks named after
/// `moment`, e.g. "before decode".
MaybeFailure expect_resident(ScenarioReport& report, const std::string& moment,
                             const Device& device, const Arena& arena);

}  // namespace kvarena::scenarios
