#include "capacity/files/config_json.hpp"

#include "capacity/files/bounded_json.hpp"
#include "capacity/files/config_parts.hpp"
#include "capacity/parameters.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <functional>

namespace kvarena::capacity {
namespace {

constexpr IntegerRange kExpertRange{0, 65'536};

/// The decoder's object: `outer` itself, or what it holds of a model that also sees or hears.
ConfigValues decoder_of(ConfigValues outer) {
  for (const std::string_view key :
       {"thinker_config", "text_config", "language_config", "llm_config"}) {
    if (auto inner = outer.object(key)) outer = *inner;
  }
  return outer;
}

std::int32_t kv_heads_of(ConfigValues& text, const ModelFamily& family, std::int32_t num_heads) {
  if (text.flag("multi_query_attention", false)) {
    return text.number({"multi_query_group_num"}, kHeadRange);
  }
  const bool is_new = text.flag("new_decoder_architecture", false);
  if (!is_new && text.flag("multi_query", family.has_single_kv_head)) return 1;
  if (auto attention = text.object("attn_config"); attention && attention->has("kv_n_heads")) {
    return attention->number({"kv_n_heads"}, kHeadRange);
  }
  return text.number({"num_key_value_heads", "num_kv_heads", "n_head_kv", "num_attention_groups"},
                     kHeadRange, family.num_kv_heads > 0 ? family.num_kv_heads : num_heads);
}

std::int32_t head_dim_of(ConfigValues& text, const ModelFamily& family,
                         const TransformerShape& shape) {
  std::int32_t dim =
      text.number({"head_dim", "kv_channels", "attention_head_dim"}, kDimRange, family.head_dim);
  if (dim > 0 || !text.ok()) return dim;
  if (shape.hidden % shape.num_q_heads != 0 || shape.hidden < shape.num_q_heads) {
    text.refuse_object(fmt::format("no head_dim, and a hidden size of {} for {} heads",
                                   shape.hidden, shape.num_q_heads),
                       "head_dim, or a hidden size that the heads share");
  }
  return shape.hidden / shape.num_q_heads;
}

void add_mla(ConfigValues& text, TransformerShape& shape) {
  MlaShape& mla = shape.mla;
  mla.kv_lora_rank = text.number({"kv_lora_rank"}, kDimRange);
  mla.rope_dim = text.number({"qk_rope_head_dim"}, kDimRange);
  mla.q_lora_rank = text.number({"q_lora_rank"}, {0, kDimRange.largest}, 0);
  mla.nope_dim = text.number({"qk_nope_head_dim"}, kDimRange, 0);
  mla.value_dim = text.number({"v_head_dim"}, kDimRange, 0);
}

/// By layer: whether the array at `key` names it.
std::vector<bool> named_layers(ConfigValues& text, std::string_view key, std::int32_t layers) {
  std::vector<bool> named(static_cast<std::size_t>(layers), false);
  for (const std::int64_t layer : text.integers(key, {0, layers - 1})) {
    named[static_cast<std::size_t>(layer)] = true;
  }
  return named;
}

/// By layer: whether its one of `kinds`, which `key` gives for each, is `dense`.
template <class Kind>
std::vector<bool> layers_of_kind(ConfigValues& text, std::string_view key,
                                 const std::vector<Kind>& kinds, const Kind& dense,
                                 std::int32_t layers) {
  if (std::ssize(kinds) != layers) {
    text.refuse(key, "", fmt::format("one for each of {} layers", layers));
  }
  std::vector<bool> is_dense;
  for (const Kind& kind : kinds) is_dense.push_back(kind == dense);
  return is_dense;
}

/// By layer of a model with experts: whether its MLP is dense.
std::vector<bool> dense_layers(ConfigValues& text, std::int32_t layers) {
  constexpr std::string_view kTypes = "mlp_layer_types";
  constexpr std::string_view kSparse = "moe_layers";
  constexpr std::string_view kFrequency = "moe_layer_freq";
  if (text.has(kTypes)) {
    return layers_of_kind<std::string>(text, kTypes, text.words(kTypes), "dense", layers);
  }
  if (text.has(kSparse)) {
    std::vector<bool> dense = named_layers(text, kSparse, layers);
    dense.flip();
    return dense;
  }
  if (text.is_array(kFrequency)) {
    return layers_of_kind<std::int64_t>(text, kFrequency, text.integers(kFrequency, {0, 1}), 0,
                                        layers);
  }
  const std::int64_t first = text.integer({"first_k_dense_replace"}, {0, layers}, 0);
  const std::int64_t every = text.integer({kFrequency}, kLayerRange, 1);
  const std::int64_t step =
      text.integer({"decoder_sparse_step", "interleave_moe_layer_step"}, kLayerRange, 1);
  std::vector<bool> dense = named_layers(text, "mlp_only_layers", layers);
  for (std::int64_t i = 0; i < layers; ++i) {
    if (i < first || i % every != 0 || (i + 1) % step != 0)
      dense[static_cast<std::size_t>(i)] = true;
  }
  return dense;
}

/// Layers of a hybrid that are a dense MLP.
std::int32_t hybrid_mlps(ConfigValues& text) {
  constexpr std::string_view kTypes = "layers_block_type";
  if (text.is_array(kTypes)) {
    return static_cast<std::int32_t>(std::ranges::count(text.words(kTypes), "mlp"));
  }
  return static_cast<std::int32_t>(std::ranges::count(text.word("hybrid_override_pattern"), '-'));
}

void add_mlps(ConfigValues& text, const ModelFamily& family, TransformerShape& shape) {
  MoeShape& moe = shape.moe;
  moe.num_experts =
      text.number({"num_local_experts", "num_experts", "n_routed_experts"}, kExpertRange, 0);
  // Gemma 3n has one width for each layer, all alike in what is published.
  if (!text.is_array("intermediate_size")) {
    // Llama 4 has two widths: that of its experts, and that of dense layers among them.
    shape.ffn = family.has_shared_expert
                    ? text.number({"intermediate_size_mlp"}, kWidthRange, 0)
                    : text.number({"intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim",
                                   "d_ff", "decoder_ffn_dim"},
                                  kWidthRange, family.ffn);
  }
  if (moe.num_experts == 0) return;
  moe.experts_per_token = text.number(
      {"num_experts_per_tok", "num_experts_per_token", "moe_top_k", "top_k_experts", "moe_topk"},
      {1, moe.num_experts}, 0);
  moe.ffn = text.number({"moe_intermediate_size", "expert_ffn_hidden_size"}, kWidthRange, 0);
  if (moe.ffn == 0 && !text.is_array("intermediate_size")) {
    moe.ffn = text.number({"intermediate_size"}, kWidthRange, 0);
  }
  moe.num_shared = text.number({"n_shared_experts", "num_shared_experts"}, kExpertRange,
                               family.has_shared_expert ? 1 : 0);
  moe.shared_ffn =
      text.number({"shared_expert_intermediate_size", "moe_shared_expert_intermediate_size"},
                  {0, kWidthRange.largest}, 0);
  if (moe.shared_ffn > 0 && moe.num_shared == 0) moe.num_shared = 1;
  if (family.rule == LayerRule::hybrid_pattern) {
    moe.first_dense_layers = hybrid_mlps(text);
    return;
  }
  const std::vector<bool> dense = dense_layers(text, shape.num_layers);
  moe.first_dense_layers = static_cast<std::int32_t>(std::ranges::count(dense, true));
  moe.is_interleaved = !std::ranges::is_partitioned(dense, std::identity{});
}

/// A number that must be there, unless the family has one for those that leave it out.
std::int32_t number_of(ConfigValues& text, ConfigValues::Keys keys, IntegerRange range,
                       std::int32_t usual, ModelSpec& model) {
  if (usual == 0 || std::ranges::any_of(keys, [&](auto key) { return text.has(key); })) {
    return text.number(keys, range);
  }
  model.notes.push_back(
      fmt::format("no {}: {}, what is usual of '{}'", *keys.begin(), usual, model.architecture));
  return usual;
}

std::int32_t num_layers_of(ConfigValues& text, const ModelFamily& family, ModelSpec& model) {
  constexpr std::string_view kKey = "num_hidden_layers";
  if (family.rule == LayerRule::hybrid_pattern && !text.has(kKey)) {
    const std::size_t listed = text.is_array("layers_block_type")
                                   ? text.words("layers_block_type").size()
                                   : text.word("hybrid_override_pattern").size();
    const auto most = static_cast<std::size_t>(kLayerRange.largest);
    if (listed > 0) return static_cast<std::int32_t>(std::min(listed, most));
  }
  if (family.attentions > 1 && !text.has(kKey)) {
    const IntegerRange range{1, kLayerRange.largest / family.attentions};
    return family.attentions * text.number({"num_layers"}, range);
  }
  return number_of(text, {kKey, "n_layer", "n_layers", "num_layers"}, kLayerRange,
                   family.num_layers, model);
}

/// Shapes of a decoder; of the decoder of an encoder and a decoder.
void add_shape(DecoderConfig& config, ModelSpec& model) {
  ConfigValues& text = config.text;
  const ModelFamily& family = *config.family;
  TransformerShape& shape = model.shape;
  if (config.has_encoder) {
    shape.num_layers =
        text.number({"num_decoder_layers", "decoder_layers", "num_layers"}, kLayerRange);
    shape.num_q_heads = text.number({"decoder_attention_heads", "num_heads"}, kHeadRange);
  } else {
    shape.num_layers = num_layers_of(text, family, model);
    shape.num_q_heads = number_of(text, {"num_attention_heads", "n_head", "n_heads", "num_heads"},
                                  kHeadRange, family.num_heads, model);
  }
  shape.hidden = number_of(text, {"hidden_size", "n_embd", "n_embed", "d_model"}, kWidthRange,
                           family.hidden, model);
  shape.vocab = text.integer({"padded_vocab_size", "vocab_size"}, kVocabRange, family.vocab);
  shape.max_position =
      text.integer({"max_position_embeddings", "max_target_positions", "n_positions",
                    "max_sequence_length", "max_seq_len", "seq_length", "n_ctx"},
                   kTokenRange, family.max_position);
  if (!text.ok()) return;
  if (text.has("kv_lora_rank")) {
    add_mla(text, shape);
    shape.num_kv_heads = text.number({"num_key_value_heads"}, kHeadRange, shape.num_q_heads);
  } else if (config.has_encoder) {
    shape.num_kv_heads = shape.num_q_heads;
    shape.head_dim =
        text.has("d_kv") ? text.number({"d_kv"}, kDimRange) : head_dim_of(text, family, shape);
  } else {
    shape.num_kv_heads = kv_heads_of(text, family, shape.num_q_heads);
    shape.head_dim = head_dim_of(text, family, shape);
  }
  add_mlps(text, family, shape);
  for (const std::string_view key : {"attention_bias", "mlp_bias", "mamba_proj_bias"}) {
    shape.has_biases |= text.flag(key, false);
  }
}

/// What plan() would refuse in numbers that are each within their range.
void check_whole(ConfigValues& text, const ModelSpec& model) {
  const Status status = validate(model);
  if (!text.ok() || status) return;
  text.refuse_object(describe(status), "numbers that make a model");
}

/// Printable, and short enough for a message.
bool is_printable(std::string_view name) {
  return name.size() <= 100 &&
         std::ranges::all_of(name, [](char c) { return c >= ' ' && c <= '~'; });
}

/// Python's json writes Infinity, as in a bound of Mamba's time step, and NaN; JSON has neither:
/// null takes their place.
std::string without_python_numbers(std::string_view text) {
  std::string plain;
  plain.reserve(text.size());
  bool in_string = false;
  while (!text.empty()) {
    std::size_t length = 1;
    if (in_string && text.front() == '\\') {
      length = std::min<std::size_t>(2, text.size());
    } else if (text.front() == '"') {
      in_string = !in_string;
    } else if (!in_string) {
      for (const std::string_view word : {"-Infinity", "Infinity", "NaN"}) {
        if (!text.starts_with(word)) continue;
        plain += "null";
        text.remove_prefix(word.size());
        length = 0;
        break;
      }
    }
    plain += text.substr(0, length);
    text.remove_prefix(length);
  }
  return plain;
}

}  // namespace

Status model_from_config(const nlohmann::json& config, const std::string& file, ModelSpec& model,
                         ReadFailure& failure) {
  model = {};
  if (!config.is_object()) {
    return refuse(failure, file,
                  {.found = "no object", .expected = "an object with the model's numbers"});
  }
  failure = {.what = {.subject = file}};
  ConfigValues outer(config, "$", failure);
  DecoderConfig decoder{.text = decoder_of(outer), .vision = outer.object("vision_config")};
  ConfigValues& text = decoder.text;
  model.source = file;
  model.architecture = text.word("model_type");
  ConfigValues& namer = model.architecture.empty() ? outer : text;
  if (model.architecture.empty()) model.architecture = outer.word("model_type");
  if (!is_printable(model.architecture)) namer.refuse("model_type", "", "the name of a family");
  decoder.family = &find_family(model.architecture);
  decoder.has_encoder = text.flag("is_encoder_decoder", decoder.family->has_encoder);
  model.name = outer.word("_name_or_path");
  if (model.name.empty() || !is_printable(model.name)) model.name = model.architecture;
  add_shape(decoder, model);
  if (text.ok()) add_config_groups(decoder, model);
  if (text.ok()) add_config_formats(text, outer, model);
  TransformerShape& shape = model.shape;
  const bool says = text.has("tie_word_embeddings") || outer.has("tie_word_embeddings");
  shape.tied_embeddings =
      says ? text.flag("tie_word_embeddings", false) || outer.flag("tie_word_embeddings", false)
           : decoder.family->tied_embeddings;
  if (text.integer({"num_nextn_predict_layers", "mtp_num_hidden_layers"}, {0, kLayerRange.largest},
                   0) > 0) {
    model.notes.emplace_back("layers that predict further tokens are left out");
  }
  if (text.ok()) check_whole(text, model);
  if (!text.ok()) return status_of(failure);
  count_parameters(model);
  if (decoder.vision && model.parameters) {
    model.notes.emplace_back("parameters are those of the text model; the encoder's are left out");
  }
  return {};
}

Status model_from_config_text(std::string_view text, const std::string& file, ModelSpec& model,
                              ReadFailure& failure) {
  nlohmann::json config;
  const JsonLimits limits;
  // An over-long text is not copied first; parse_json refuses it.
  const bool is_long = static_cast<std::int64_t>(text.size()) > limits.max_bytes;
  const std::string plain = is_long ? std::string() : without_python_numbers(text);
  const JsonText json{is_long ? text : std::string_view(plain), file};
  if (Status parsed = parse_json(json, limits, config, failure); !parsed) return parsed;
  return model_from_config(config, file, model, failure);
}

}  // namespace kvarena::capacity
