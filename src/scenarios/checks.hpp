#pragma once

/// @file
/// Checks that several scenarios make. Each check writes the expected and the seen value into the
/// report.

#include "scenarios/engine.hpp"
#include "scenarios/report.hpp"
#include "scenarios/suite.hpp"
#include "verify/failure.hpp"

#include "kvarena/allocator/arena.hpp"
#include "kvarena/device/device.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace kvarena::scenarios {

/// Makes the failure for weights or a cache of `model` that could not be made on `device`.
Failure not_created(const Device& device, const ServedModel& model, const Status& status);
inline Failure not_created(const ScenarioContext& context, const Status& status) {
  return not_created(context.device(), context.model(), status);
}

/// Returns the bytes of KV of a token, computed from the model's numbers alone. Layouts are checked
/// against it.
std::int64_t model_bytes_per_token(const ServedModel& model) noexcept;

/// The figures of blocks and tables at one moment.
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
PoolState pool_state(const CheckedEngine& engine);
/// Checks that nothing changed from `before` to now and that the accounts are right. `what` names
/// the check.
void expect_unchanged(ScenarioReport& report, const std::string& what, const PoolState& before,
                      const CheckedEngine& engine);

/// Checks that `refused` is context_length_exceeded with the requested length and the maximum.
void expect_too_long(ScenarioReport& report, const std::string& what, const Status& refused,
                     std::int64_t length_tokens, std::int64_t maximum_tokens);
/// Checks that `refused` is exhausted (block) with the requested and the available blocks.
void expect_exhausted(ScenarioReport& report, const std::string& what, const Status& refused,
                      std::int64_t required_blocks, std::int64_t available_blocks);

/// Adds the counts and the error of verification, and checks the error against the tolerance.
/// `attention_rows` is the number of results that must have been compared; nullopt: at least one.
void expect_verified(ScenarioReport& report, const CheckedEngine& engine,
                     std::optional<std::int64_t> attention_rows = std::nullopt);
/// Results that must have been compared: on a GPU all of them; a host samples.
std::optional<std::int64_t> due_on_gpu(const ScenarioContext& context, const CheckedEngine& engine);
/// Returns the bytes that a driver may keep for its own use after the first run; 0 on a host.
std::int64_t driver_may_keep(const ScenarioContext& context) noexcept;
/// Returns the same bytes as the name of a check.
std::string what_driver_keeps(const ScenarioContext& context);
/// Makes and destroys an engine of `options` with a pool for one context. A GPU loads code at the
/// first launch of each kernel; this call makes it do so while memory is free.
MaybeFailure warm_up(const ScenarioContext& context, EngineOptions options);
/// Checks that no sequence is left, that every block is free, and that the accounts are right.
void expect_idle(ScenarioReport& report, const CheckedEngine& engine);
/// Checks that the weights have the values with which they were filled.
MaybeFailure expect_weights_intact(ScenarioReport& report, const ModelWeights& weights);

/// The result of asking for the places of all planes.
struct PlaneResidency {
  std::int64_t planes = 0;      ///< K and V of all layers
  std::int64_t ranges = 0;      ///< asked about: each plane's range of the first and the last block
  std::int64_t permitted = 0;   ///< of them, where the policy wants them
  std::string place;            ///< of all of them; "a, b" where they differ
  std::string first_violation;  ///< layer, kind and what the driver said; empty when none
};

/// Asks for the place of the first and the last block of every plane. Returns what Device::place_of
/// returns.
Result<PlaneResidency> check_planes(const Device& device, const Arena& arena);

/// Checks that every plane and every tracked allocation is in the required memory. Figures and
/// checks are named after `moment`, such as "before decode".
MaybeFailure expect_resident(ScenarioReport& report, const std::string& moment,
                             const Device& device, const Arena& arena);

}  // namespace kvarena::scenarios
