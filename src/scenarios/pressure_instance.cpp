#include "scenarios/pressure_instance.hpp"

#include <utility>

namespace kvarena::replay::pressure {

Result<PressureInstance> PressureInstance::create(const PressureOptions& options,
                                                  const PressureEngineOptions& engine) {
  Result<ModelWeights> weights = ModelWeights::load(
      *options.device,
      {.bytes = options.model.weights_bytes, .piece_bytes = options.sizes.weights_piece_bytes});
  if (!weights) return weights.status();
  auto made = PressureEngine::create(*options.device, options.model, engine);
  if (!made) return made.status();
  return PressureInstance(std::move(*weights), std::move(*made));
}

Result<std::int64_t> instance_bytes(const PressureOptions& options,
                                    const PressureEngineOptions& engine) {
  const auto bytes = PressureEngine::device_bytes(*options.device, options.model, engine);
  if (!bytes) return bytes.status();
  return options.model.weights_bytes + *bytes;
}

}  // namespace kvarena::replay::pressure
