#include "capacity/files/config_parts.hpp"

#include "base/excerpt.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace kvarena::capacity {
namespace {

/// Keys of layers that are not read here: a model with one of them keeps other things than the rest
/// of its configuration says.
constexpr std::array<std::string_view, 18> kOtherLayers = {"attn_layer_indices",
                                                           "attn_layer_period",
                                                           "block_configs",
                                                           "block_types",
                                                           "compress_ratios",
                                                           "conv_L_cache",
                                                           "full_attn_idxs",
                                                           "global_head_dim",
                                                           "hybrid_layer_ids",
                                                           "hybrid_layer_pattern",
                                                           "linear_attn_config",
                                                           "lru_width",
                                                           "mamba_d_state",
                                                           "num_global_key_value_heads",
                                                           "sparse_attention_config",
                                                           "state_size",
                                                           "swa_head_dim",
                                                           "swa_num_key_value_heads"};

constexpr std::array<std::pair<std::string_view, ConfigLayer>, 12> kLayerTypes = {{
    {"attention", ConfigLayer::full},
    {"chunked_attention", ConfigLayer::chunked},
    {"deepseek_sparse_attention", ConfigLayer::full},
    {"full_attention", ConfigLayer::full},
    {"global", ConfigLayer::full},
    {"indexed_attention", ConfigLayer::full},
    {"linear_attention", ConfigLayer::delta_net},
    {"local", ConfigLayer::window},
    {"mamba", ConfigLayer::mamba},
    {"mlp", ConfigLayer::none},
    {"moe", ConfigLayer::none},
    {"sliding_attention", ConfigLayer::window},
}};

/// Where a configuration has the kind of each layer.
constexpr std::array<std::string_view, 3> kTypeKeys = {"layer_types", "layers_block_type",
                                                       "attention_layers"};

/// The first of those keys that it has; "" where it has none.
std::string_view type_key_of(const ConfigValues& text) {
  const auto* key = std::ranges::find_if(kTypeKeys, [&](auto k) { return text.has(k); });
  return key == kTypeKeys.end() ? std::string_view() : *key;
}

/// Headers of GGUF files tell the states of recurrent layers by themselves.
constexpr const char* kAdvice = "name a GGUF file of the model";

using Layers = std::vector<ConfigLayer>;

class LayerReader {
 public:
  LayerReader(ConfigValues& text, const ModelFamily& family, ModelSpec& model)
      : text_(text), family_(family), model_(model) {}

  void refuse_other_layers() {
    const std::string expected = "no such key: layers of that kind are not known here";
    for (const std::string_view key : kOtherLayers) {
      if (text_.has(key)) text_.refuse(key, "", expected, kAdvice);
    }
    if (family_.rule == LayerRule::unknown && text_.has("ssm_state_size")) {
      text_.refuse("ssm_state_size", "", expected, kAdvice);
    }
    if (text_.has("attention_types") && !text_.has("attention_layers")) {
      text_.refuse("attention_types", "", "attention_layers beside it, one for each layer");
    }
    const auto attention = text_.integers("attn_type_list", {0, 1});  // MiniMax: 0 is recurrent
    if (std::ranges::count(attention, 0) > 0) {
      text_.refuse("attn_type_list", "a recurrent layer", "1 for each layer");
    }
  }

  Layers by_rule() {
    if (!type_key_of(text_).empty()) return by_types();
    const bool used = text_.flag("use_sliding_window", false);
    switch (family_.rule) {
      case LayerRule::full: return all(ConfigLayer::full);
      case LayerRule::window: return all(ConfigLayer::window);
      case LayerRule::window_if_used: return all(used ? ConfigLayer::window : ConfigLayer::full);
      case LayerRule::window_from:
      case LayerRule::window_even_below:
        return used ? by_max_window_layers() : all(ConfigLayer::full);
      case LayerRule::window_but_every:
        return all_but_every(ConfigLayer::window, ConfigLayer::full);
      case LayerRule::chunk_but_every:
        return all_but_every(ConfigLayer::chunked, ConfigLayer::full);
      case LayerRule::recurrent_but_every:
        return all_but_every(ConfigLayer::delta_net, ConfigLayer::full);
      case LayerRule::hybrid_pattern: return by_pattern();
      case LayerRule::cross_layers: return by_cross_layers();
      case LayerRule::unknown: break;
    }
    return by_unknown_rule();
  }

  /// Says what an unknown family is taken for.

  void note_unknown(const Layers& layers) {
    const std::string_view key = type_key_of(text_);
    const bool has_window = std::ranges::count(layers, ConfigLayer::window) > 0;
    std::string taken = fmt::format("{} layers of full attention with {} KV heads are taken",
                                    num_layers(), model_.shape.num_kv_heads);
    if (model_.shape.mla.kv_lora_rank > 0) {
      taken = fmt::format("{} layers of latent attention are taken", num_layers());
    } else if (!key.empty()) {
      taken = fmt::format("its {} are taken, with {} KV heads", key, model_.shape.num_kv_heads);
    } else if (has_window) {
      taken = fmt::format("its sliding_window is taken for every layer, with {} KV heads",
                          model_.shape.num_kv_heads);
    }
    model_.notes.push_back(fmt::format("'{}' is not known here: {}", model_.architecture, taken));
  }

 private:
  Layers by_types() {
    const std::string_view key = type_key_of(text_);
    Layers layers;
    for (const std::string& name : text_.words(key)) {
      const auto* type =
          std::ranges::find(kLayerTypes, name, &std::pair<std::string_view, ConfigLayer>::first);
      if (type == kLayerTypes.end()) {
        text_.refuse(fmt::format("{}[{}]", key, layers.size()), "the string " + excerpt_of(name),
                     "a kind of layer that is known here, such as full_attention");
        return {};
      }
      const bool is_mamba =
          family_.rule == LayerRule::hybrid_pattern && type->second == ConfigLayer::delta_net;
      layers.push_back(is_mamba ? ConfigLayer::mamba : type->second);
    }
    if (layers.size() != num_layers()) {
      text_.refuse(key, "", fmt::format("one for each of {} layers", num_layers()));
    }
    return layers;
  }

  Layers by_pattern() {
    constexpr std::string_view kKey = "hybrid_override_pattern";
    Layers layers;
    for (const char c : text_.word(kKey)) {
      switch (c) {
        case 'M': layers.push_back(ConfigLayer::mamba); break;
        case '*': layers.push_back(ConfigLayer::full); break;
        case '-':
        case 'E': layers.push_back(ConfigLayer::none); break;
        default: text_.refuse(kKey, "", "M, *, - or E for each layer"); return {};
      }
    }
    if (layers.size() != num_layers()) {
      text_.refuse(kKey, "", fmt::format("one letter for each of {} layers", num_layers()));
    }
    return layers;
  }

  Layers all(ConfigLayer layer) const { return Layers(num_layers(), layer); }

  Layers all_but_every(ConfigLayer most, ConfigLayer rest) {
    const std::int64_t period =
        family_.period_key.empty()
            ? family_.period
            : text_.integer({family_.period_key}, kLayerRange, family_.period);
    Layers layers = all(most);
    for (std::size_t i = 0; i < layers.size(); ++i) {
      if ((static_cast<std::int64_t>(i) + 1) % period == 0) layers[i] = rest;
    }
    if (most != ConfigLayer::chunked || !text_.is_array("no_rope_layers")) return layers;
    const auto with_rope =
        text_.integers("no_rope_layers", {0, 1});  // 1: has rope, despite the name
    if (with_rope.empty()) return layers;
    if (with_rope.size() != layers.size()) {
      text_.refuse("no_rope_layers", "", fmt::format("one for each of {} layers", num_layers()));
      return layers;
    }
    for (std::size_t i = 0; i < layers.size(); ++i) layers[i] = with_rope[i] == 1 ? most : rest;
    return layers;
  }

  Layers by_max_window_layers() {
    const std::int64_t edge =
        text_.integer({family_.period_key}, {0, kLayerRange.largest}, family_.period);
    Layers layers = all(ConfigLayer::full);
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const bool below = static_cast<std::int64_t>(i) < edge;
      const bool from = family_.rule == LayerRule::window_from;
      if (from ? !below : below && i % 2 == 0) layers[i] = ConfigLayer::window;
    }
    return layers;
  }

  Layers by_cross_layers() {
    Layers layers = all(ConfigLayer::full);
    if (!text_.has("cross_attention_layers")) {
      text_.refuse_object("no cross_attention_layers", "the layers that read an image");
    }
    for (const std::int64_t layer :
         text_.integers("cross_attention_layers", {0, model_.shape.num_layers - 1})) {
      layers[static_cast<std::size_t>(layer)] = ConfigLayer::cross;
    }
    return layers;
  }

  Layers by_unknown_rule() {
    const bool has_window = text_.has("sliding_window") && text_.flag("use_sliding_window", true);
    return all(has_window ? ConfigLayer::window : ConfigLayer::full);
  }

  std::size_t num_layers() const { return static_cast<std::size_t>(model_.shape.num_layers); }

  ConfigValues& text_;
  const ModelFamily& family_;
  ModelSpec& model_;
};

}  // namespace

std::int64_t config_layer_limit(ConfigValues& text, const ModelFamily& family,
                                const ModelSpec& model, ConfigLayer layer) {
  const std::string_view types = type_key_of(text);
  const std::string_view key = layer == ConfigLayer::chunked ? "attention_chunk_size"
                               : types == "attention_layers" ? "window_size"
                                                             : "sliding_window";
  const bool is_named = !types.empty() && family.window == 0;
  if (text.is_null(key)) return 0;
  const IntegerRange range{0, kTokenRange.largest};
  const std::int64_t limit =
      is_named ? text.integer({key}, range) : text.integer({key}, range, family.window);
  const std::int64_t longest = model.shape.max_position;
  return longest > 0 && limit >= longest ? 0 : limit;
}

std::vector<ConfigLayer> config_layers(ConfigValues& text, const ModelFamily& family,
                                       ModelSpec& model) {
  LayerReader reader(text, family, model);
  reader.refuse_other_layers();
  if (!text.ok()) return {};
  Layers layers = reader.by_rule();
  if (family.rule == LayerRule::unknown && text.ok()) reader.note_unknown(layers);
  for (const ConfigLayer limited : {ConfigLayer::window, ConfigLayer::chunked}) {
    if (!text.ok() || std::ranges::count(layers, limited) == 0) continue;
    if (config_layer_limit(text, family, model, limited) == 0) {
      std::ranges::replace(layers, limited, ConfigLayer::full);
    }
  }
  return layers;
}

}  // namespace kvarena::capacity
