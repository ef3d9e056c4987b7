#include "scenarios/pool_search.hpp"

#include <algorithm>
#include <string_view>

namespace kvarena::replay::pressure {
namespace {

/// The line of a failed allocation's description that says what was asked for, and what for.
std::string request_of(const std::string& description) {
  constexpr std::string_view kBegin = "requested: ";
  const std::size_t begin = description.find(kBegin);
  if (begin == std::string::npos) return description;
  const std::size_t end = description.find('\n', begin);
  return description.substr(begin + kBegin.size(), end - begin - kBegin.size());
}

}  // namespace

Result<LargestPool> find_largest_pool(Device& device, const PressureModel& model,
                                      const PressureEngineOptions& options) {
  const std::int64_t least_blocks = options.pool.num_blocks;
  const Result<KvLayout> layout = KvLayout::create(model.shape);
  if (!layout) return layout.status();
  const Result<MemoryInfo> memory = device.memory_info();
  if (!memory) return memory.status();
  LargestPool found;
  const auto attempt = [&](std::int64_t num_blocks) -> Status {
    PressureEngineOptions sized = options;
    sized.pool = {.num_blocks = num_blocks};
    ++found.attempts;
    return PressureEngine::create(device, model, sized).status();
  };
  if (Status s = attempt(least_blocks); !s) return s;
  found.num_blocks = least_blocks;
  // The first that cannot fit: its pool alone is more than what is free.
  std::int64_t too_many = std::max(
      least_blocks + 1, static_cast<std::int64_t>(memory->free_bytes) / layout->block_bytes() + 1);
  while (too_many - found.num_blocks > 1 || found.refused.is_ok()) {
    const std::int64_t middle = too_many - found.num_blocks > 1
                                    ? found.num_blocks + (too_many - found.num_blocks) / 2
                                    : too_many;
    const Status status = attempt(middle);
    if (status) {
      found.num_blocks = middle;
      too_many = std::max(too_many, middle + 1);
    } else if (status.code == StatusCode::insufficient_vram) {
      too_many = middle;
      found.refused = status;
      found.refused_request = request_of(device.describe(status));
    } else {
      return status;
    }
  }
  return found;
}

}  // namespace kvarena::replay::pressure
