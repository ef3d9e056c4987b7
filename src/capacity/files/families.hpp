#pragma once

/// @file
/// Families of models, by the `model_type` of their configuration and by their architecture in GGUF
/// files. A family says which layers see a part of the context, and the value of a missing key. A
/// static table; pure functions.

#include <cstdint>
#include <string_view>

namespace kvarena::capacity {

/// The kinds of a family's layers, when `layer_types` is missing.
enum class LayerRule : std::uint8_t {
  full,                 ///< all tokens in every layer; a sliding_window has no effect
  window,               ///< sliding_window in every layer
  window_if_used,       ///< the same, with use_sliding_window only
  window_from,          ///< with use_sliding_window, layers from max_window_layers on
  window_even_below,    ///< with use_sliding_window, even layers below max_window_layers
  window_but_every,     ///< all but every `period`-th
  chunk_but_every,      ///< no_rope_layers, or all but every `period`-th, in chunks
  recurrent_but_every,  ///< all but every `period`-th are gated delta nets
  hybrid_pattern,       ///< hybrid_override_pattern: M, *, - and E
  cross_layers,         ///< cross_attention_layers read an image, the rest is full
  unknown,              ///< not in the table
};

/// A family of models with the values of missing keys. Values for GGUF files are from llama.cpp
/// (load_arch_hparams of src/models). Values for configurations are the defaults of transformers'
/// configuration class (5.23), for keys that published files leave out. 0: none, or the general
/// rule.
struct ModelFamily {
  std::string_view model_type;
  std::string_view gguf = {};     ///< its architecture in GGUF files; "": none is known
  std::string_view mixture = {};  ///< model_type of the same architecture's models with experts
  LayerRule rule = LayerRule::full;
  bool tied_embeddings = false;
  std::int32_t period = 0;           ///< of the rule, or its max_window_layers
  std::string_view period_key = {};  ///< key that overrides the period
  std::int32_t num_layers = 0;
  std::int32_t hidden = 0;
  std::int32_t ffn = 0;
  std::int32_t num_heads = 0;
  std::int32_t num_kv_heads = 0;
  std::int32_t head_dim = 0;
  std::int64_t vocab = 0;
  std::int64_t max_position = 0;
  std::int64_t window = 0;
  std::int64_t gguf_window = 0;     ///< window of GGUF files that have no key for it
  bool has_single_kv_head = false;  ///< multi_query is true when it is missing
  bool has_encoder = false;         ///< every layer also reads an encoder's tokens
  bool has_shared_expert = false;   ///< always, beside the routed experts
  bool has_both = false;            ///< each layer has attention and a recurrent state
  bool may_keep_nothing = false;    ///< layers without KV heads keep no state either
  std::int32_t attentions =
      1;  ///< attentions in each counted layer; num_hidden_layers counts attentions
};

/// Returns the family with this model_type, or a family with LayerRule::unknown. O(number of
/// families).
const ModelFamily& find_family(std::string_view model_type) noexcept;
/// Returns the family with this architecture of GGUF files, or one with LayerRule::unknown.
const ModelFamily& find_gguf_family(std::string_view architecture) noexcept;

}  // namespace kvarena::capacity
