#include "capacity/files/gguf.hpp"

#include "base/excerpt.hpp"
#include "base/utf8.hpp"
#include "capacity/amount.hpp"
#include "capacity/files/families.hpp"
#include "capacity/parameters.hpp"
#include "kvarena/capacity/storage_format.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

namespace kvarena::capacity {
namespace {

constexpr std::int64_t kAllLayers = 0;  // the period of windows on every layer

/// Every so manieth layer has no window or chunk, where it is the family's rule.
std::int64_t window_period_of(const ModelFamily& family) noexcept {
  const bool is_mixed =
      family.rule == LayerRule::window_but_every || family.rule == LayerRule::chunk_but_every;
  return is_mixed ? family.period : kAllLayers;
}

class Reader {
 public:
  Reader(const GgufHeader& header, const std::string& file, std::string_view architecture,
         const ModelFamily& family, ModelSpec& model)
      : header_(header),
        family_(family),
        keys_(header, file, architecture),
        model_(model),
        shape_(model.shape) {}

  bool read() {
    shape();
    experts();
    groups();
    weights();
    return !keys_.failed();
  }
  const ReadFailure& failure() const { return keys_.failure(); }

 private:
  void shape() {
    std::int64_t blocks = keys_.required("block_count", 1, kMostLayers);
    // Of an encoder's layers nothing is kept.
    if (has_encoder()) blocks = keys_.optional("decoder_block_count", blocks, 1, kMostLayers);
    // Layers that only predict further tokens come last and keep nothing for the others.
    const std::int64_t predictors = keys_.optional("nextn_predict_layers", 0, 0, blocks - 1);
    shape_.num_layers = static_cast<std::int32_t>(blocks - predictors);
    const auto layers = static_cast<std::size_t>(shape_.num_layers);
    shape_.hidden = static_cast<std::int32_t>(keys_.required("embedding_length", 1, kMostDim));
    shape_.max_position = keys_.optional("context_length", 0, 0, kMostTokens);
    const bool is_recurrent = keys_.find("ssm.state_size") != nullptr;
    if (keys_.find("attention.head_count") == nullptr && !is_recurrent) {
      keys_.required("attention.head_count", 1, kMostHeads);
    }
    const std::vector<std::int64_t> zeros(layers, 0);
    q_heads_ = keys_.by_layer("attention.head_count", zeros, kMostHeads);
    kv_heads_ = keys_.by_layer("attention.head_count_kv", q_heads_, kMostHeads);
    mlps_ = keys_.by_layer("feed_forward_length", zeros, kMostDim);
    shape_.num_q_heads = largest_of(q_heads_);
    shape_.num_kv_heads = largest_of(kv_heads_);
    shape_.ffn = largest_of(mlps_);
    const std::int32_t head_dim = shape_.num_q_heads > 0 ? shape_.hidden / shape_.num_q_heads : 0;
    head_dim_k_ = keys_.dim("attention.key_length", head_dim);
    head_dim_v_ = keys_.dim("attention.value_length", head_dim);
    shape_.head_dim = head_dim_k_;
    vocabulary();
    latent();
  }

  bool has_encoder() const {
    return family_.has_encoder || keys_.find("decoder_block_count") != nullptr;
  }

  static std::int32_t largest_of(const std::vector<std::int64_t>& numbers) {
    return static_cast<std::int32_t>(*std::max_element(numbers.begin(), numbers.end()));
  }

  void vocabulary() {
    const TensorInfo* embedding = find_tensor(header_.weights, "token_embd.weight");
    shape_.vocab = keys_.optional("vocab_size", header_.length("tokenizer.ggml.tokens").value_or(0),
                                  0, kMostTokens);
    if (embedding == nullptr) return;
    if (embedding->shape.size() == 2) shape_.vocab = embedding->shape[1];
    shape_.tied_embeddings = find_tensor(header_.weights, "output.weight") == nullptr;
  }

  // Files of before the latent was cached have the expanded head's dims as key_length and
  // value_length; later ones the latent's, and the head's as ..._mla.
  void latent() {
    MlaShape& mla = shape_.mla;
    mla.kv_lora_rank = keys_.dim("attention.kv_lora_rank");
    if (mla.kv_lora_rank == 0) return;
    mla.q_lora_rank = keys_.dim("attention.q_lora_rank");
    mla.rope_dim = static_cast<std::int32_t>(keys_.required("rope.dimension_count", 1, kMostDim));
    const std::int32_t key = keys_.dim("attention.key_length_mla", head_dim_k_);
    mla.nope_dim = std::max(0, key - mla.rope_dim);
    mla.value_dim = keys_.dim("attention.value_length_mla", head_dim_v_);
    shape_.head_dim = 0;
    shape_.num_kv_heads = shape_.num_q_heads;
  }

  void experts() {
    MoeShape& moe = shape_.moe;
    moe.num_experts = keys_.dim("expert_count");
    if (moe.num_experts == 0) return;
    if (!family_.mixture.empty()) model_.architecture = family_.mixture;
    moe.experts_per_token =
        static_cast<std::int32_t>(keys_.required("expert_used_count", 1, moe.num_experts));
    moe.ffn = keys_.dim("expert_feed_forward_length", shape_.ffn);
    moe.shared_ffn = keys_.dim("expert_shared_feed_forward_length");
    const bool has_shared = moe.shared_ffn > 0 || family_.has_shared_expert;
    moe.num_shared = keys_.dim("expert_shared_count", has_shared ? 1 : 0);
    const auto step =
        static_cast<std::int32_t>(keys_.optional("interleave_moe_layer_step", 1, 1, kMostLayers));
    const std::int32_t dense = shape_.num_layers - shape_.num_layers / step;
    moe.first_dense_layers = static_cast<std::int32_t>(
        keys_.optional("leading_dense_block_count", dense, 0, shape_.num_layers));
    moe.is_interleaved = step > 1 && keys_.find("leading_dense_block_count") == nullptr;
  }

  // Whether each layer is limited to a window or chunk.
  std::vector<bool> limited_layers(std::int64_t window) {
    const auto layers = static_cast<std::size_t>(shape_.num_layers);
    std::vector<bool> limited(layers, false);
    const bool is_known = family_.rule != LayerRule::unknown;
    const GgufValue* pattern = keys_.find("attention.sliding_window_pattern");
    const bool in_effect = window > 0 && (shape_.max_position == 0 || window < shape_.max_position);
    if (!in_effect || (pattern == nullptr && !is_known)) return limited;
    if (pattern != nullptr && std::holds_alternative<GgufArray>(*pattern)) {
      const auto flags = keys_.by_layer("attention.sliding_window_pattern",
                                        std::vector<std::int64_t>(layers, 0), 1);
      std::transform(flags.begin(), flags.end(), limited.begin(),
                     [](std::int64_t flag) { return flag != 0; });
      return limited;
    }
    const std::int64_t period = keys_.optional("attention.sliding_window_pattern",
                                               window_period_of(family_), 0, kMostLayers);
    for (std::size_t i = 0; i < layers; ++i) {
      const auto layer = static_cast<std::int64_t>(i);
      limited[i] = period == kAllLayers || layer % period < period - 1;
    }
    return limited;
  }

  void groups() {
    const std::int64_t window =
        keys_.optional("attention.sliding_window", family_.gguf_window, 0, kMostTokens);
    const std::vector<bool> limited = limited_layers(window);
    const std::int64_t sharing =
        keys_.optional("attention.shared_kv_layers", 0, 0, shape_.num_layers - 1);
    const std::vector<bool> recurrent =
        recurrent_layers(keys_, shape_.num_layers,
                         family_.rule == LayerRule::recurrent_but_every ? family_.period : 1);
    const std::optional<CacheGroup> state = recurrent_state(keys_, shape_);
    const std::vector<bool> images = image_layers(keys_, shape_.num_layers);
    const bool reads_images = std::find(images.begin(), images.end(), true) != images.end();
    const std::int64_t image = reads_images ? image_tokens(keys_, model_.notes) : 0;
    for (std::int64_t layer = 0; layer < shape_.num_layers && !keys_.failed(); ++layer) {
      const auto i = static_cast<std::size_t>(layer);
      const bool has_attention = kv_heads_[i] > 0 && !recurrent[i];
      if (has_attention) {
        CacheGroup group = attention(i, limited[i], window);
        if (images[i]) {
          group.kind = CacheKind::cross;
          group.limit_tokens = image;
        }
        add(i, std::move(group), layer >= shape_.num_layers - sharing);
      }
      if (!has_attention || family_.has_both) add_state(i, state);
    }
    if (model_.groups.empty()) {
      keys_.refuse("attention.head_count_kv", "no layer that keeps anything", "KV heads");
    }
    if (has_encoder()) add_encoder_group(keys_, model_);
  }

  CacheGroup attention(std::size_t layer, bool limited, std::int64_t window) {
    CacheGroup group;
    if (shape_.mla.kv_lora_rank > 0) {
      group.kind = CacheKind::latent;
      group.latent_dim = shape_.mla.kv_lora_rank + shape_.mla.rope_dim;
      group.latent_value_dim = shape_.mla.kv_lora_rank;
      group.index_dim = keys_.dim("attention.indexer.key_length");
      return group;
    }
    const bool is_chunked = family_.rule == LayerRule::chunk_but_every;
    group.kind = !limited ? CacheKind::full : is_chunked ? CacheKind::chunked : CacheKind::window;
    group.limit_tokens = limited ? window : 0;
    group.num_kv_heads = static_cast<std::int32_t>(kv_heads_[layer]);
    group.head_dim_k = limited ? keys_.dim("attention.key_length_swa", head_dim_k_) : head_dim_k_;
    group.head_dim_v = limited ? keys_.dim("attention.value_length_swa", head_dim_v_) : head_dim_v_;
    if (group.head_dim_k < 1 || group.head_dim_v < 1) {
      keys_.refuse("attention.key_length", "a head of no elements", "key and value lengths");
    }
    return group;
  }

  void add_state(std::size_t layer, const std::optional<CacheGroup>& state) {
    const bool some_have_no_mlp = std::find(mlps_.begin(), mlps_.end(), 0) != mlps_.end();
    // DeciLM replaces attention by a matrix, which keeps nothing.
    const bool keeps_nothing = q_heads_[layer] == 0 || family_.may_keep_nothing;
    if (state) {
      // Where some layers have no MLP, the others are one alone.
      if (!some_have_no_mlp || mlps_[layer] == 0) add(layer, *state, false);
    } else if (!keeps_nothing) {
      keys_.refuse("attention.head_count_kv",
                   fmt::format("layer {} without attention, and no state that is known", layer),
                   "KV heads, or the keys of a recurrent layer: ssm, kda or shortconv");
    }
  }

  void add(std::size_t layer, CacheGroup group, bool shares) {
    const auto alike = [&](const CacheGroup& other) {
      return other.kind == group.kind && other.num_kv_heads == group.num_kv_heads &&
             other.head_dim_k == group.head_dim_k && other.head_dim_v == group.head_dim_v;
    };
    auto at = std::find_if(model_.groups.begin(), model_.groups.end(), alike);
    if (at == model_.groups.end()) at = model_.groups.insert(at, group);
    ++(shares ? at->num_sharing_layers : at->num_layers);
    std::int32_t owner = -1;
    for (const CacheLayer& other : at->layers) {
      if (other.reads_layer < 0) owner = other.layer;
    }
    at->layers.push_back(
        {.layer = static_cast<std::int32_t>(layer), .reads_layer = shares ? owner : -1});
  }

  void weights() {
    const TensorIndex& weights = header_.weights;
    if (weights.tensors.empty() || keys_.failed()) return;
    model_.weights_bytes = weights.bytes;
    model_.weights_by_dtype = weights.types;
    const std::string_view most = weights.types.front().type;
    const StorageFormat* format = find_storage_format(most);
    model_.weights_format = format != nullptr ? format->name : most;
    if (most != "bf16") model_.kv_format = "f16";
    // Tables for rotary embeddings are stored as tensors, and are no parameters.
    std::int64_t parameters = weights.elements;
    bool has_router_bias = false;
    for (const TensorInfo& tensor : weights.tensors) {
      if (tensor.name.find("rope_f") != tensor.name.npos) parameters -= tensor.elements;
      has_router_bias |= tensor.name.ends_with("exp_probs_b.bias");
    }
    if (model_.architecture == "deepseek_v2" && has_router_bias)
      model_.architecture = "deepseek_v3";
    count_parameters(model_);
    if (model_.parameters != parameters) {  // another variant: its parts are not known
      model_.parts = parts_of_total(shape_, parameters, "the file's tensors");
    }
    model_.parameters = parameters;
    model_.parameters_source = "the file's tensors";
  }

  const GgufHeader& header_;
  const ModelFamily& family_;
  GgufKeys keys_;
  ModelSpec& model_;
  TransformerShape& shape_;
  std::vector<std::int64_t> q_heads_;   // by layer
  std::vector<std::int64_t> kv_heads_;  // by layer
  std::vector<std::int64_t> mlps_;      // by layer
  std::int32_t head_dim_k_ = 0;
  std::int32_t head_dim_v_ = 0;
};

bool is_plain(std::string_view name) {
  constexpr std::size_t kMostBytes = 64;
  return !name.empty() && name.size() <= kMostBytes &&
         std::all_of(name.begin(), name.end(), [](char c) { return c > 0x20 && c < 0x7f; });
}

std::string shown_name(std::string_view name) {
  constexpr std::size_t kMostBytes = 128;
  return printable(name.substr(0, utf8_end(name.substr(0, kMostBytes))));
}

}  // namespace

Status model_from_gguf(const GgufHeader& header, const std::string& file, ModelSpec& model,
                       ReadFailure& failure) {
  model = {};
  const auto name = header.text("general.architecture");
  if (!name || !is_plain(*name)) {
    const GgufValue* value = header.find("general.architecture");
    return refuse(failure, file,
                  {.subject = "general.architecture",
                   .found = value == nullptr ? "no such key" : name_of(*value),
                   .expected = "the name of an architecture, such as \"llama\""});
  }
  const ModelFamily& family = find_gguf_family(*name);
  model.architecture = family.model_type.empty() ? *name : family.model_type;
  model.name = shown_name(header.text("general.name").value_or(""));
  if (model.name.empty()) model.name = shown_name(std::filesystem::path(file).stem().string());
  model.source = file;
  Reader reader(header, file, *name, family, model);
  if (!reader.read()) {
    failure = reader.failure();
    return status_of(failure);
  }
  if (validate(model)) return {};
  return refuse(failure, file,
                {.found = describe(validate(model)), .expected = "layers and heads of a decoder"});
}

}  // namespace kvarena::capacity
