#include "capacity/share.hpp"

#include <algorithm>
#include <cstddef>
#include <queue>

namespace kvarena::capacity {
namespace {

/// The next layer of a group of `num_layers`, of which `taken` came before it.
struct NextLayer {
  std::size_t group = 0;
  std::int64_t num_layers = 0;
  std::int64_t taken = 0;

  /// Later on the way through all layers: layer i of n is at (2 i + 1) / 2 n.
  friend bool operator<(const NextLayer& a, const NextLayer& b) noexcept {
    const std::int64_t x = (2 * a.taken + 1) * b.num_layers;
    const std::int64_t y = (2 * b.taken + 1) * a.num_layers;
    return x != y ? x > y : a.group > b.group;
  }
};

/// How many of the layers that `part` begins with are on the stage.
std::int64_t successive_layers(const ParameterPart& part, std::int32_t num_layers,
                               std::int32_t stages, std::int32_t stage) noexcept {
  const std::int64_t begin = first_layer_of_stage(num_layers, stages, stage);
  const std::int64_t end = begin + layers_of_stage(num_layers, stages, stage);
  const std::int64_t first = *part.first_layer;
  const std::int64_t shared = std::min(end, first + part.num_layers) - std::max(begin, first);
  return std::max<std::int64_t>(shared, 0);
}

}  // namespace

std::int64_t parts_of_stage(const ParameterPart& part, std::int32_t num_layers, std::int32_t stages,
                            std::int32_t stage) noexcept {
  switch (part.place) {
    case PartPlace::layers:
      return part.first_layer ? successive_layers(part, num_layers, stages, stage)
                              : layers_of_stage(part.num_layers, stages, stage);
    case PartPlace::first_stage: return stage == 0 ? 1 : 0;
    case PartPlace::last_stage: return stage == stages - 1 ? 1 : 0;
    case PartPlace::both_ends: return stage == 0 || stage == stages - 1 ? 1 : 0;
  }
  return 0;
}

std::vector<std::vector<std::int32_t>> layers_by_stage(std::span<const CacheGroup> groups,
                                                       std::int32_t stages) {
  std::int64_t all = 0;
  std::priority_queue<NextLayer> order;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    order.push({.group = i, .num_layers = groups[i].num_layers});
    all += groups[i].num_layers;
  }
  std::vector<std::vector<std::int32_t>> shares;
  for (std::int32_t stage = 0; stage < stages; ++stage) {
    auto& share = shares.emplace_back(groups.size());
    for (std::int64_t left = layers_of_stage(all, stages, stage); left > 0; --left) {
      NextLayer next = order.top();
      order.pop();
      ++share[next.group];
      if (++next.taken < next.num_layers) order.push(next);
    }
  }
  return shares;
}

}  // namespace kvarena::capacity
