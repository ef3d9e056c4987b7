#include "capacity/files/config_parts.hpp"

#include "base/excerpt.hpp"
#include "capacity/ascii.hpp"
#include "capacity/share.hpp"
#include "kvarena/capacity/storage_format.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string>
#include <utility>

namespace kvarena::capacity {
namespace {

class GroupReader {
 public:
  GroupReader(DecoderConfig& config, ModelSpec& model)
      : config_(config), text_(config.text), model_(model) {}

  void read() {
    const std::vector<ConfigLayer> layers = config_layers(text_, *config_.family, model_);
    if (!text_.ok()) return;
    const std::int64_t shared =
        text_.integer({"num_kv_shared_layers"}, {0, model_.shape.num_layers - 1}, 0);
    // Cross-layer attention: the first of so many layers keeps for all of them.
    const std::int64_t sharers =
        text_.flag("use_cla", false) ? text_.integer({"cla_share_factor"}, kLayerRange) : 1;
    const auto keeps = [&](std::int64_t layer) {
      return layer < std::ssize(layers) - shared && layer % sharers == 0;
    };
    for (const ConfigLayer layer :
         {ConfigLayer::full, ConfigLayer::window, ConfigLayer::chunked, ConfigLayer::delta_net,
          ConfigLayer::mamba, ConfigLayer::cross}) {
      CacheGroup group;
      for (std::int32_t i = 0; i < std::ssize(layers); ++i) {
        if (layers[static_cast<std::size_t>(i)] == layer) add_layer(i, keeps(i), group);
      }
      if (group.num_layers > 0) {
        add(layer, std::move(group));
      } else if (group.num_sharing_layers > 0) {
        text_.refuse("num_kv_shared_layers", "", "a layer of each kind before those that share");
      }
    }
    if (text_.ok() && model_.groups.empty()) {
      text_.refuse_object("no layer that keeps anything", "attention or recurrent layers");
    }
  }

 private:
  /// A layer without data of its own reads those of the last layer of its kind that has some.
  static void add_layer(std::int32_t layer, bool keeps, CacheGroup& group) {
    std::int32_t owner = -1;
    for (const CacheLayer& other : group.layers) {
      if (other.reads_layer < 0) owner = other.layer;
    }
    group.layers.push_back({.layer = layer, .reads_layer = keeps ? -1 : owner});
    ++(keeps ? group.num_layers : group.num_sharing_layers);
  }

  void add(ConfigLayer layer, CacheGroup group) {
    switch (layer) {
      case ConfigLayer::full: return add_full(group);
      case ConfigLayer::window:
      case ConfigLayer::chunked: return add_limited(group, layer);
      case ConfigLayer::delta_net:
      case ConfigLayer::mamba:
        group.kind = CacheKind::recurrent;
        model_.groups.push_back(layer == ConfigLayer::mamba ? mamba(group) : delta_net(group));
        return;
      case ConfigLayer::cross:
        group.kind = CacheKind::cross;
        group.num_kv_heads = model_.shape.num_kv_heads;
        group.head_dim_k = model_.shape.head_dim;
        group.head_dim_v = model_.shape.head_dim;
        group.limit_tokens = image_tokens();
        model_.groups.push_back(group);
        return;
      case ConfigLayer::none: return;
    }
  }

  void add_full(CacheGroup group) {
    const MlaShape& mla = model_.shape.mla;
    if (mla.kv_lora_rank > 0) {
      group.kind = CacheKind::latent;
      group.latent_dim = mla.kv_lora_rank + mla.rope_dim;
      group.latent_value_dim = mla.kv_lora_rank;
    } else {
      group.num_kv_heads = model_.shape.num_kv_heads;
      group.head_dim_k = model_.shape.head_dim;
      group.head_dim_v = text_.number({"v_head_dim"}, kDimRange, model_.shape.head_dim);
    }
    const std::int32_t index = text_.number({"index_head_dim"}, kDimRange, 0);
    if (index > 0 && text_.integer({"index_topk_freq"}, kLayerRange, 1) > 1 &&
        !text_.has("indexer_types")) {
      text_.refuse("index_topk_freq", "", "indexer_types beside it, one for each layer");
    }
    const auto types = text_.words("indexer_types");
    const auto own = static_cast<std::int32_t>(std::ranges::count(types, "full"));
    if (index > 0 && !types.empty() && types.size() != num_layers()) {
      text_.refuse("indexer_types", "", fmt::format("one for each of {} layers", num_layers()));
    } else if (index > 0 && !types.empty() && own < group.num_layers) {
      if (own > 0) model_.groups.push_back(taken_with_index(types, own, index, group));
    } else {
      group.index_dim = index;
    }
    model_.groups.push_back(group);
  }

  /// The layers that have an index of their own, which are taken out of `group`.
  static CacheGroup taken_with_index(std::span<const std::string> types, std::int32_t own,
                                     std::int32_t index, CacheGroup& group) {
    CacheGroup indexed = group;
    indexed.num_layers = own;
    indexed.index_dim = index;
    group.num_layers -= own;
    const auto has_index = [&](const CacheLayer& layer) {
      return types[static_cast<std::size_t>(layer.layer)] == "full";
    };
    std::erase_if(group.layers, has_index);
    std::erase_if(indexed.layers, [&](const CacheLayer& layer) { return !has_index(layer); });
    return indexed;
  }

  void add_limited(CacheGroup group, ConfigLayer layer) {
    group.limit_tokens = config_layer_limit(text_, *config_.family, model_, layer);
    if (model_.shape.mla.kv_lora_rank > 0) {
      text_.refuse("kv_lora_rank", "", "no latent attention in layers with a window");
    }
    group.kind = layer == ConfigLayer::chunked ? CacheKind::chunked : CacheKind::window;
    group.num_kv_heads = model_.shape.num_kv_heads;
    group.head_dim_k = model_.shape.head_dim;
    group.head_dim_v = text_.number({"v_head_dim"}, kDimRange, model_.shape.head_dim);
    model_.groups.push_back(group);
  }

  // A gated delta net keeps a [key_dim, value_dim] matrix for each value head, and the last
  // kernel - 1 inputs of its convolution over queries, keys and values.
  CacheGroup delta_net(CacheGroup group) {
    const std::int64_t keys = text_.integer({"linear_num_key_heads"}, kHeadRange);
    const std::int64_t values = text_.integer({"linear_num_value_heads"}, kHeadRange);
    const std::int64_t key_dim = text_.integer({"linear_key_head_dim"}, kDimRange);
    const std::int64_t value_dim = text_.integer({"linear_value_head_dim"}, kDimRange);
    const std::int64_t kernel = text_.integer({"linear_conv_kernel_dim"}, {1, 1024});
    group.state_elements = times(values, key_dim, value_dim);
    group.conv_elements =
        times(plus(times(2, keys, key_dim), times(values, value_dim)), kernel - 1);
    return group;
  }

  CacheGroup mamba(CacheGroup group) {
    MambaShape& mamba = model_.shape.mamba;
    mamba = {.num_heads = text_.number({"mamba_num_heads"}, kHeadRange),
             .head_dim = text_.number({"mamba_head_dim"}, kDimRange),
             .state = text_.number({"ssm_state_size"}, kDimRange),
             .num_groups = text_.number({"n_groups", "mamba_n_groups"}, kHeadRange),
             .kernel = text_.number({"conv_kernel", "mamba_d_conv"}, {1, 1024})};
    const CacheGroup state = state_of(mamba);
    group.state_elements = state.state_elements;
    group.conv_elements = state.conv_elements;
    return group;
  }

  /// Tokens of one image, in as many tiles as it may have: a tile's patches and its class token.
  std::int64_t image_tokens() {
    if (!config_.vision) {
      text_.refuse_object("no vision_config beside it", "the encoder whose tokens layers read");
      return 1;
    }
    ConfigValues& vision = *config_.vision;
    const std::int64_t size = vision.integer({"image_size"}, kDimRange);
    const std::int64_t patch = vision.integer({"patch_size"}, kDimRange);
    const std::int64_t tiles = vision.integer({"max_num_tiles"}, {1, 1024});
    const std::int64_t side = size / patch;
    model_.notes.push_back(
        fmt::format("cross attention is planned for one image of {} tiles", tiles));
    return times(tiles, plus(times(side, side), 1));
  }

  std::size_t num_layers() const { return static_cast<std::size_t>(model_.shape.num_layers); }

  DecoderConfig& config_;
  ConfigValues& text_;
  ModelSpec& model_;
};

/// Layers of a decoder that read an encoder's tokens as well as their own.
void add_encoder_group(ConfigValues& text, ModelSpec& model) {
  CacheGroup cross = model.groups.front();
  cross.kind = CacheKind::cross;
  cross.limit_tokens = text.integer(
      {"max_source_positions", "n_positions", "max_position_embeddings"}, kTokenRange, 0);
  if (cross.limit_tokens == 0) {
    cross.limit_tokens = 512;
    model.notes.emplace_back(
        "the encoder's longest input is not given: 512 tokens, as T5 was trained with");
  }
  model.groups.push_back(cross);
}

constexpr IntegerRange kBitRange{1, 32};

/// The format of so many bits, or "".
std::string_view format_of(std::int64_t bits, bool is_float) {
  if (bits == 4) return is_float ? "nvfp4" : "int4";
  if (bits == 8) return is_float ? "fp8_e4m3" : "int8";
  return "";
}

/// What a quantization_config is about.
struct Quantisation {
  std::string name;         // as the file calls it
  std::string_view format;  // "": not known here
  std::int64_t group_size = 0;
  bool experts_only = false;
};

/// Lists of what is left as it was name attention in all layers only where just experts are stored
/// otherwise.
bool leaves_attention(ConfigValues& q) {
  for (const std::string_view key : {"modules_to_not_convert", "ignore"}) {
    if (!q.is_array(key)) continue;
    for (const std::string& module : q.words(key)) {
      const bool is_pattern = module.starts_with("re:") || module.find('*') != module.npos;
      if (is_pattern && module.find("self_attn") != module.npos &&
          module.find_first_of("0123456789") == module.npos) {
        return true;
      }
    }
  }
  return false;
}

/// Weights of config_groups, where there is one group only: num_bits, type, group_size.
void add_group(ConfigValues& q, Quantisation* found) {
  const auto groups = q.object("config_groups");
  if (!groups) return;
  auto group = groups->only_object();
  auto weights = group ? group->object("weights") : std::nullopt;
  if (!weights) return;
  found->format = format_of(weights->integer({"num_bits"}, kBitRange),
                            same_letters(weights->word("type"), "float"));
  found->group_size = weights->integer({"group_size"}, {-1, kDimRange.largest}, 0);
}

Quantisation read_quantisation(ConfigValues& q) {
  Quantisation found;
  for (const std::string_view key : {"quant_method", "quant_algo"}) {
    if (found.name.empty()) found.name = q.word(key);
  }
  const std::string& name = found.name;
  if (same_letters(name, "mxfp4")) {
    found.format = "mxfp4";
    found.experts_only = true;
  } else if (same_letters(name, "gptq") || same_letters(name, "awq")) {
    found.format = format_of(q.integer({"bits", "w_bit"}, kBitRange), false);
    found.group_size = q.integer({"group_size", "q_group_size"}, {-1, kDimRange.largest}, 0);
  } else if (same_letters(name, "bitsandbytes")) {
    found.format = q.flag("load_in_4bit", false)   ? "int4"
                   : q.flag("load_in_8bit", false) ? "int8"
                                                   : "";
  } else if (q.has("config_groups")) {
    add_group(q, &found);
  } else if (same_letters(name, "fp8") || same_letters(name, "fbgemm_fp8")) {
    found.format = "fp8_e4m3";
  } else if (same_letters(name, "nvfp4")) {
    found.format = "nvfp4";
  }
  found.experts_only = found.experts_only || leaves_attention(q);
  return found;
}

std::string note_of(const Quantisation& q, std::string_view ends) {
  const std::string name = excerpt_of(q.name);
  if (q.format.empty()) {
    return "quantization " + name + " is not known here: weights are counted as without it";
  }
  if (q.format == "mxfp4" || q.format == "nvfp4") {
    return fmt::format("weights in {}, scales included; the rest in {}", q.format, ends);
  }
  const std::string scales = q.group_size > 0
                                 ? fmt::format("the scales of groups of {}", q.group_size)
                                 : std::string("their scales");
  return fmt::format("weights in {}, embedding and head in {}; {} are not counted", q.format, ends,
                     scales);
}

}  // namespace

void add_config_groups(DecoderConfig& config, ModelSpec& model) {
  GroupReader(config, model).read();
  if (config.text.ok() && config.has_encoder) add_encoder_group(config.text, model);
}

void add_config_formats(ConfigValues& text, ConfigValues& outer, ModelSpec& model) {
  std::string dtype;
  std::string_view key = "dtype";
  ConfigValues* owner = &text;
  for (ConfigValues* values : {&text, &outer}) {
    for (const std::string_view name : {"dtype", "torch_dtype"}) {
      if (!dtype.empty()) continue;
      dtype = values->word(name);
      key = name;
      owner = values;
    }
  }
  std::string_view plain = dtype;
  if (plain.starts_with("torch.")) plain.remove_prefix(6);
  if (plain.empty()) {
    plain = "bf16";
    model.notes.emplace_back("no dtype is given: bf16 is assumed");
  }
  const StorageFormat* format = find_storage_format(plain);
  if (format == nullptr) {
    owner->refuse(key, "", "a type such as bfloat16, float16 or float32");
    return;
  }
  model.weights_format = format->name;
  model.kv_format = format->elements == 1 && format->bytes == 2 ? format->name : "bf16";
  if (format->name == "f32") {
    model.notes.emplace_back(
        "dtype is float32, of which engines make 16 bits: K and V are planned as bf16 unless f32 "
        "is "
        "asked for, weights as stored unless bf16 is asked for");
  }
  for (ConfigValues* values : {&text, &outer}) {
    auto config = values->object("quantization_config");
    if (!config) continue;
    const Quantisation quantisation = read_quantisation(*config);
    model.notes.push_back(note_of(quantisation, format->name));
    model.weights_quantised = true;
    if (quantisation.format.empty()) return;
    if (quantisation.experts_only && model.shape.moe.num_experts > 0) {
      model.expert_weights_format = quantisation.format;
      // Nothing else is quantised, and a block has its scale in it.
      model.weights_quantised = quantisation.format != "mxfp4";
      return;
    }
    model.ends_weights_format = format->name;
    model.weights_format = quantisation.format;
    return;
  }
}

}  // namespace kvarena::capacity
