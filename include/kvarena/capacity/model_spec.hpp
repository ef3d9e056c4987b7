#pragma once

/// @file
/// `ModelSpec`: what decides how much memory a model takes: the shapes of its layers, what each
/// kind of layer keeps for a sequence, and its weights. A plain value; made by hand, from a
/// built-in preset (model_presets.hpp) or from a model's files (model_files.hpp). Pure functions,
/// any thread.

#include "kvarena/base/export.hpp"
#include "kvarena/base/result.hpp"
#include "kvarena/capacity/storage_format.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvarena::capacity {

/// What a layer keeps for a sequence. `full`: K and V of every token. `window`: of the last
/// `limit_tokens`. `chunked`: of the aligned chunk of `limit_tokens` that the newest token is in.
/// `latent`: one latent vector a token, for all heads (MLA). `recurrent`: a state of fixed size.
/// `cross`: K and V of `limit_tokens` tokens of an encoder, of fixed size.
enum class CacheKind : std::uint8_t { full, window, chunked, latent, recurrent, cross };

/// "full attention", "sliding window", "chunked attention", "latent (MLA)", "recurrent state",
/// "cross attention".
KVARENA_EXPORT std::string_view name_of(CacheKind kind) noexcept;

/// Layers alike in what they keep.
struct CacheGroup {
  CacheKind kind = CacheKind::full;     ///< what they keep
  std::int32_t num_layers = 0;          ///< layers that keep it
  std::int32_t num_sharing_layers = 0;  ///< further layers that read one of those and keep nothing
  std::int32_t num_kv_heads = 0;        ///< full, window, chunked, cross
  std::int32_t head_dim_k = 0;          ///< elements of K a head
  std::int32_t head_dim_v = 0;          ///< elements of V a head
  std::int64_t limit_tokens = 0;        ///< window, chunked, cross
  std::int32_t latent_dim = 0;          ///< latent: elements a token, positional part included
  std::int32_t latent_value_dim = 0;    ///< latent: the leading elements that are V too
  std::int32_t index_dim = 0;           ///< elements a token of a sparse-attention index; 0: none
  std::int64_t state_elements = 0;      ///< recurrent: of a layer's state, kept in f32
  std::int64_t conv_elements = 0;       ///< recurrent: of a layer's convolution, in kv_format;
                                        ///< it may have either alone
};

/// Experts of a mixture; num_experts 0: none.
struct MoeShape {
  std::int32_t num_experts = 0;        ///< routed
  std::int32_t experts_per_token = 0;  ///< of them a token visits
  std::int32_t ffn = 0;                ///< intermediate elements of one expert
  std::int32_t num_shared = 0;         ///< experts every token visits
  std::int32_t shared_ffn = 0;         ///< of one shared expert; 0: as ffn
  /// Layers with a dense MLP of `TransformerShape::ffn`: the leading ones, or `is_interleaved`.
  std::int32_t first_dense_layers = 0;
  bool is_interleaved = false;  ///< they are not the leading ones but taken as evenly among all
};

/// Multi-head latent attention; kv_lora_rank 0: none.
struct MlaShape {
  std::int32_t q_lora_rank = 0;   ///< 0: queries are projected at once
  std::int32_t kv_lora_rank = 0;  ///< latent elements
  std::int32_t nope_dim = 0;      ///< of a head's query and key without position
  std::int32_t rope_dim = 0;      ///< of the positional key that all heads share
  std::int32_t value_dim = 0;     ///< of a head's value
};

/// Mamba-2 layers (arXiv 2405.21060); num_heads 0: none.
struct MambaShape {
  std::int32_t num_heads = 0;   ///< of the state
  std::int32_t head_dim = 0;    ///< elements of a head's input
  std::int32_t state = 0;       ///< elements of the state for each of them
  std::int32_t num_groups = 0;  ///< of heads that share B and C
  std::int32_t kernel = 0;      ///< inputs that the convolution sees
  /// Channels of the convolution: x, B and C.
  constexpr std::int64_t channels() const noexcept {
    return std::int64_t{num_heads} * head_dim + std::int64_t{2} * num_groups * state;
  }
};

/// Shapes of a decoder.
struct TransformerShape {
  std::int32_t num_layers = 0;    ///< all layers, with or without attention
  std::int32_t hidden = 0;        ///< elements of the residual stream
  std::int32_t num_q_heads = 0;   ///< query heads
  std::int32_t num_kv_heads = 0;  ///< KV heads
  std::int32_t head_dim = 0;      ///< elements a head; 0 with MLA
  std::int32_t ffn = 0;           ///< intermediate elements of a dense MLP
  std::int64_t vocab = 0;         ///< rows of the embedding
  std::int64_t max_position = 0;  ///< the longest context, tokens; 0: unknown
  bool tied_embeddings = false;   ///< the output head is the embedding
  bool has_biases = false;        ///< a configuration says that projections have biases
  MoeShape moe;                   ///< experts
  MlaShape mla;                   ///< latent attention
  MambaShape mamba = {};          ///< recurrent layers of Mamba-2
};

/// How ranks of a tensor-parallel group share a part.
enum class PartSplit : std::uint8_t {
  replicated,  ///< each has all of it
  even,        ///< each has its share, rounded up
  kv_heads,    ///< whole KV heads each, replicated where there are more ranks than heads
};
/// Which stages of a pipeline have a part.
enum class PartPlace : std::uint8_t {
  layers,       ///< `num_layers` layers have it, with their stage
  first_stage,  ///< the embedding
  last_stage,   ///< final norm and output head
  both_ends,    ///< an embedding that is the output head too
};

/// Parameters of one kind.
struct ParameterPart {
  std::string name;             ///< "query projection"
  std::int64_t each = 0;        ///< parameters a layer, or of the one that there is
  std::int32_t num_layers = 1;  ///< layers that have it
  /// The first of them, which the others follow; none: they are evenly among all layers.
  std::optional<std::int32_t> first_layer = std::nullopt;
  PartSplit split = PartSplit::replicated;  ///< over tensor-parallel ranks
  PartPlace place = PartPlace::layers;      ///< over pipeline stages
  std::string arithmetic;                   ///< `each` with its numbers in, "896 x 14 x 64"
  std::int32_t num_experts = 0;             ///< routed experts in `each`; 0: none
  std::int32_t experts_per_token = 0;       ///< of them that a token visits
  /// All of them. Saturates.
  KVARENA_EXPORT std::int64_t total() const noexcept;
};

/// Stored tensors of one type.
struct TypeTotal {
  std::string type;           ///< as the file has it: "BF16", "q4_K"
  std::int64_t tensors = 0;   ///< how many
  std::int64_t elements = 0;  ///< of all of them
  std::int64_t bytes = 0;     ///< of all of them
};

/// A model.
struct ModelSpec {
  std::string name;                     ///< "Llama-3.1-8B"
  std::string source;                   ///< "preset", or the file
  std::string architecture;             ///< "llama", as the file names it; may be empty
  TransformerShape shape;               ///< its shapes
  std::vector<CacheGroup> groups;       ///< what its layers keep, at least one
  std::string weights_format = "bf16";  ///< a storage format: of the published weights
  std::string expert_weights_format;    ///< of routed experts where it differs; empty: as the rest
  std::string ends_weights_format;      ///< of embedding and head where it differs; empty: the same
  bool weights_quantised = false;       ///< published with scales that nothing here counts
  std::string kv_format = "bf16";  ///< a storage format: of K and V unless asked otherwise, and of
                                   ///< convolutions always
  std::vector<ParameterPart> parts;              ///< parameters; empty where shapes do not tell
  std::optional<std::int64_t> parameters;        ///< all of them, exactly
  std::optional<std::int64_t> parameters_about;  ///< as published, rounded, where not exactly
  std::string parameters_source;                 ///< where they are from, or why there are none
  std::optional<std::int64_t> weights_bytes;     ///< exactly, from the headers of the weights
  std::vector<TypeTotal> weights_by_dtype;       ///< what makes them up, by bytes, descending
  std::vector<std::string> notes;  ///< what a reader of files assumed or left out, for a person
};

/// What one token adds to every group that grows, without scales: 2 (K and V) x heads x dim, or the
/// latent, of all layers, a sparse-attention index left out. The figure that models are compared
/// by. Saturates.
KVARENA_EXPORT std::int64_t kv_elements_per_token(const ModelSpec& model) noexcept;
/// ok, or invalid_argument naming the number that is out of its range.
KVARENA_EXPORT Status validate(const ModelSpec& model) noexcept;

}  // namespace kvarena::capacity
