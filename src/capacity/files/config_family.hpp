#pragma once

/// @file
/// Families of models by the `model_type` of their configuration: which layers look at a part of
/// the context, and what a key that is not there means. A static table; pure functions.

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

/// A family. Defaults are those of transformers' configuration class (5.23), for keys that
/// published files leave out; 0: none, or the general rule.
struct ConfigFamily {
  std::string_view model_type;
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
  bool has_single_kv_head = false;  ///< multi_query is true unless it says otherwise
  std::int32_t attentions = 1;      ///< of each that num_layers counts; num_hidden_layers has all
};

/// The family of that name; one with LayerRule::unknown when there is none. O(number of families).
const ConfigFamily& find_config_family(std::string_view model_type) noexcept;

}  // namespace kvarena::capacity
