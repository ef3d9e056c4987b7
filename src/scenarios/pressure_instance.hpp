#pragma once

/// @file
/// `PressureInstance`: a model as it is served: weights and an engine. Owns both; everything goes
/// when it does. One thread at a time.

#include "scenarios/model_weights.hpp"
#include "scenarios/pressure_engine.hpp"
#include "scenarios/pressure_options.hpp"

#include <memory>

namespace kvarena::replay::pressure {

/// Weights and an engine.
class PressureInstance {
 public:
  /// Loads the weights of `options.model` on `options.device`, then creates the engine. Returns
  /// what ModelWeights::load and PressureEngine::create return; nothing is left behind then.
  static Result<PressureInstance> create(const PressureOptions& options,
                                         const PressureEngineOptions& engine);

  ModelWeights& weights() noexcept { return weights_; }
  PressureEngine& engine() noexcept { return *engine_; }

 private:
  PressureInstance(ModelWeights weights, std::unique_ptr<PressureEngine> engine) noexcept
      : weights_(std::move(weights)), engine_(std::move(engine)) {}

  ModelWeights weights_;
  std::unique_ptr<PressureEngine> engine_;
};

/// Device bytes that PressureInstance::create takes. Returns what PressureEngine::device_bytes
/// returns.
Result<std::int64_t> instance_bytes(const PressureOptions& options,
                                    const PressureEngineOptions& engine);

}  // namespace kvarena::replay::pressure
