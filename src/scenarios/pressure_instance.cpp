#include "scenarios/pressure_instance.hpp"

#include <algorithm>
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

Result<std::int64_t> fitting_blocks(const PressureOptions& options,
                                    const PressureEngineOptions& engine) {
  constexpr std::int64_t kSparePart = 16;
  const Result<KvLayout> layout = KvLayout::create(options.model.shape);
  if (!layout) return layout.status();
  const Result<MemoryInfo> memory = options.device->memory_info();
  if (!memory) return memory.status();
  const auto free_bytes = static_cast<std::int64_t>(memory->free_bytes);
  const std::int64_t taken = instance_bytes(options, engine, 0) + free_bytes / kSparePart;
  const std::int64_t blocks = std::max<std::int64_t>(0, free_bytes - taken) / layout->block_bytes();
  if (blocks > 0) return blocks;
  return insufficient_vram(static_cast<std::uint64_t>(taken + layout->block_bytes()),
                           memory->free_bytes);
}

}  // namespace kvarena::replay::pressure
