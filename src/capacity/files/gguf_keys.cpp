#include "capacity/files/gguf.hpp"

#include "capacity/amount.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace kvarena::capacity {

const GgufValue* GgufKeys::find(std::string_view key) const {
  return header_.find(fmt::format("{}.{}", architecture_, key));
}

std::int64_t GgufKeys::optional(std::string_view key, std::int64_t absent, std::int64_t smallest,
                                std::int64_t largest) {
  const GgufValue* value = find(key);
  if (value == nullptr) return absent;
  const auto* number = std::get_if<std::int64_t>(value);
  if (number != nullptr && *number >= smallest && *number <= largest) return *number;
  refuse(key, name_of(*value), fmt::format("a whole number {} .. {}", smallest, largest));
  return absent;
}

std::int64_t GgufKeys::required(std::string_view key, std::int64_t smallest, std::int64_t largest) {
  if (find(key) == nullptr) {
    refuse(key, "no such key", fmt::format("a whole number {} .. {}", smallest, largest));
  }
  return optional(key, smallest, smallest, largest);
}

std::int32_t GgufKeys::dim(std::string_view key, std::int64_t absent) {
  return static_cast<std::int32_t>(optional(key, absent, 0, kMostDim));
}

std::vector<std::int64_t> GgufKeys::by_layer(std::string_view key,
                                             const std::vector<std::int64_t>& absent,
                                             std::int64_t largest) {
  const GgufValue* value = find(key);
  if (value == nullptr) return absent;
  const auto* array = std::get_if<GgufArray>(value);
  if (array == nullptr) return std::vector(absent.size(), optional(key, 0, 0, largest));
  const auto fits = [largest](std::int64_t n) { return n >= 0 && n <= largest; };
  if (array->numbers.size() >= absent.size() &&
      std::all_of(array->numbers.begin(), array->numbers.end(), fits)) {
    const auto end = array->numbers.begin() + static_cast<std::ptrdiff_t>(absent.size());
    return {array->numbers.begin(), end};
  }
  refuse(key, name_of(*value),
         fmt::format("a whole number 0 .. {} for each of {} layers", largest, absent.size()));
  return absent;
}

void GgufKeys::refuse(std::string_view key, std::string found, std::string expected) {
  if (failed_) return;
  failed_ = true;
  static_cast<void>(capacity::refuse(failure_, file_,
                                     {.subject = fmt::format("{}.{}", architecture_, key),
                                      .found = std::move(found),
                                      .expected = std::move(expected)}));
}

namespace {

// LFM2 keeps the last inputs of a short convolution and nothing else.
CacheGroup short_convolution(GgufKeys& keys, const TransformerShape& shape) {
  const std::int64_t length = keys.required("shortconv.l_cache", 2, kMostDim);
  return {.kind = CacheKind::recurrent, .conv_elements = times(length - 1, shape.hidden)};
}

// Kimi Delta Attention: a square matrix a head, and convolutions over queries, keys and values.
CacheGroup delta_attention(GgufKeys& keys, const TransformerShape& shape) {
  const std::int64_t dim = keys.required("kda.head_dim", 1, kMostDim);
  const std::int64_t kernel = keys.required("ssm.conv_kernel", 1, kMostDim);
  return {.kind = CacheKind::recurrent,
          .state_elements = times(dim, dim, shape.num_q_heads),
          .conv_elements = times(3, kernel - 1, shape.num_q_heads, dim)};
}

// Mamba, and gated delta nets, which are stored in its terms.
CacheGroup state_space(GgufKeys& keys) {
  const std::int64_t state = keys.required("ssm.state_size", 1, kMostDim);
  const std::int64_t inner = keys.required("ssm.inner_size", 1, kMostDim);
  const std::int64_t kernel = keys.required("ssm.conv_kernel", 1, kMostDim);
  const std::int64_t kinds = keys.optional("ssm.group_count", 0, 0, kMostHeads);
  return {.kind = CacheKind::recurrent,
          .state_elements = times(state, inner),
          .conv_elements = times(kernel - 1, plus(inner, times(2, kinds, state)))};
}

}  // namespace

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

std::vector<bool> recurrent_layers(GgufKeys& keys, std::int32_t num_layers, std::int64_t interval) {
  constexpr std::string_view kListed = "attention.recurrent_layers";
  std::vector<bool> layers(static_cast<std::size_t>(num_layers), false);
  if (keys.find(kListed) != nullptr) {
    const auto flags = keys.by_layer(kListed, std::vector<std::int64_t>(layers.size(), 0), 1);
    std::transform(flags.begin(), flags.end(), layers.begin(),
                   [](std::int64_t flag) { return flag != 0; });
    return layers;
  }
  const std::int64_t full = keys.optional("full_attention_interval", interval, 1, kMostLayers);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    layers[i] = static_cast<std::int64_t>(i + 1) % full != 0;
  }
  return layers;
}

std::optional<CacheGroup> recurrent_state(GgufKeys& keys, const TransformerShape& shape) {
  if (keys.find("shortconv.l_cache") != nullptr) return short_convolution(keys, shape);
  if (keys.find("kda.head_dim") != nullptr) return delta_attention(keys, shape);
  if (keys.find("ssm.state_size") != nullptr) return state_space(keys);
  return std::nullopt;
}

}  // namespace kvarena::capacity
