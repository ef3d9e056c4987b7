#pragma once

/// @file
/// Families of models, by the `model_type` of their configuration and by their architecture in GGUF
/// files: which layers look at a part of the context, and what a key that is not there means. A
/// static table; pure functions.

#include <cstdint>
#include <string_view>

namespace kvarena::capacity {

/// Which layers of a family keep what, where `layer_types` does not say.
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

/// A family. What GGUF files leave out is as llama.cpp has it (load_arch_hparams of src/models);
/// for configurations defaults are those of transformers' configuration class (5.23), for keys that
/// published files leave out; 0: none, or the general rule.
struct ModelFamily {
  std::string_view model_type;
  std::string_view gguf = {};     ///< its architecture in GGUF files; "": none that is known
  std::string_view mixture = {};  ///< model_type of those of that architecture that have experts
  LayerRule rule = LayerRule::full;
  bool tied_embeddings = false;
  std::int32_t period = 0;           ///< of the rule, or its max_window_layers
  std::string_view period_key = {};  ///< what overrides the period
  std::int32_t num_layers = 0;
  std::int32_t hidden = 0;
  std::int32_t ffn = 0;
  std::int32_t num_heads = 0;
  std::int32_t num_kv_heads = 0;
  std::int32_t head_dim = 0;
  std::int64_t vocab = 0;
  std::int64_t max_position = 0;
  std::int64_t window = 0;
  std::int64_t gguf_window = 0;     ///< of GGUF files that give none
  bool has_single_kv_head = false;  ///< multi_query is true unless it says otherwise
  bool has_encoder = false;         ///< every layer also reads an encoder's tokens
  bool has_shared_expert = false;   ///< beside its routed ones, whatever its file says
  bool has_both = false;            ///< attention and a recurrent state side by side in each layer
  bool may_keep_nothing = false;    ///< layers without KV heads keep no state either
  std::int32_t attentions = 1;      ///< of each that num_layers counts; num_hidden_layers has all
};

/// The family of that name; one with LayerRule::unknown when there is none. O(number of families).
const ModelFamily& find_family(std::string_view model_type) noexcept;
/// The family of that architecture of GGUF files, likewise.
const ModelFamily& find_gguf_family(std::string_view architecture) noexcept;

}  // namespace kvarena::capacity
