#include "replay/pressure/pressure_instance.hpp"

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

std::int64_t instance_bytes(const PressureOptions& options, const PressureEngineOptions& engine,
                            std::int64_t blocks) {
  const Result<KvLayout> layout = KvLayout::create(options.model.shape);
  const std::int64_t pool = layout ? layout->block_bytes() * blocks : 0;
  return options.model.weights_bytes + pool +
         PressureEngine::step_memory_bytes(*options.device, options.model, engine);
}

}  // namespace kvarena::replay::pressure
