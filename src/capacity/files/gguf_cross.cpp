#include "capacity/files/gguf_cross.hpp"

#include "capacity/amount.hpp"
#include "capacity/model_limits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

namespace kvarena::capacity {

std::vector<bool> image_layers(GgufKeys& keys, std::int32_t num_layers) {
  constexpr std::string_view kKey = "attention.cross_attention_layers";
  std::vector<bool> layers(static_cast<std::size_t>(num_layers), false);
  const GgufValue* value = keys.find(kKey);
  if (value == nullptr) return layers;
  const auto* array = std::get_if<GgufArray>(value);
  const auto is_layer = [&](std::int64_t n) { return n >= 0 && n < num_layers; };
  if (array == nullptr || array->numbers.empty() ||
      !std::ranges::all_of(array->numbers, is_layer)) {
    keys.refuse(kKey, name_of(*value), fmt::format("layers 0 .. {}", num_layers - 1));
    return layers;
  }
  for (const std::int64_t layer : array->numbers) layers[static_cast<std::size_t>(layer)] = true;
  return layers;
}

std::int64_t image_tokens(GgufKeys& keys, std::vector<std::string>& notes) {
  const std::int64_t size = keys.required("vision.image_size", 1, kMostDim);
  const std::int64_t patch = keys.required("vision.patch_size", 1, size);
  const std::int64_t tiles = keys.required("vision.max_num_tiles", 1, 1024);
  if (keys.failed()) return 1;
  notes.push_back(fmt::format("cross attention is planned for one image of {} tiles", tiles));
  const std::int64_t side = size / patch;
  return times(tiles, plus(times(side, side), 1));
}

void add_encoder_group(GgufKeys& keys, ModelSpec& model) {
  if (keys.failed() || model.groups.empty()) return;
  CacheGroup cross = model.groups.front();
  cross.kind = CacheKind::cross;
  cross.limit_tokens = keys.required("context_length", 1, kMostTokens);
  model.groups.push_back(cross);
}

}  // namespace kvarena::capacity
