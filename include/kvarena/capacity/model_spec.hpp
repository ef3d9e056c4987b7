#pragma once

/// @file
/// `ModelSpec`: the figures that decide how much memory a model takes. They are the shapes of the
/// layers, the data that each kind of layer keeps for a sequence, and the weights. A plain value.
/// It comes from a built-in preset (model_presets.hpp), from a model's files (model_files.hpp) or
/// from the caller. Pure functions for any thread.

#include "kvarena/base/export.hpp"
#include "kvarena/base/result.hpp"
#include "kvarena/capacity/storage_format.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvarena::capacity {

/// The data that a layer keeps for a sequence. `full`: K and V of every token. `window`: K and V of
/// the last `limit_tokens` tokens. `chunked`: K and V of the aligned chunk of `limit_tokens` tokens
/// with the newest token. `latent`: one latent vector a token, for all heads (MLA). `recurrent`: a
/// state of fixed size. `cross`: K and V of `limit_tokens` tokens of an encoder, of fixed size.
enum class CacheKind : std::uint8_t { full, window, chunked, latent, recurrent, cross };

/// Returns "full attention", "sliding window", "chunked attention", "latent (MLA)", "recurrent
/// state" or "cross attention".
KVARENA_EXPORT std::string_view name_of(CacheKind kind) noexcept;

/// A layer of a group, by its place in the model.
struct CacheLayer {
  std::int32_t layer = 0;         ///< counted from 0 over all layers
  std::int32_t reads_layer = -1;  ///< the layer of the same group whose data it reads; -1: it keeps
                                  ///< data of its own
  friend bool operator==(const CacheLayer&, const CacheLayer&) = default;
};

/// Layers that keep the same kind and size of data.
struct CacheGroup {
  CacheKind kind = CacheKind::full;  ///< the data that they keep
  std::int32_t num_layers = 0;       ///< layers that keep data
  std::int32_t num_sharing_layers =
      0;                          ///< more layers, which read another layer's data and keep none
  std::int32_t num_kv_heads = 0;  ///< full, window, chunked, cross
  std::int32_t head_dim_k = 0;    ///< elements of K a head
  std::int32_t head_dim_v = 0;    ///< elements of V a head
  std::int64_t limit_tokens = 0;  ///< window, chunked, cross
  std::int32_t latent_dim = 0;    ///< latent: elements a token, positional part included
  std::int32_t latent_value_dim = 0;  ///< latent: the leading elements that are V too
  std::int32_t index_dim = 0;         ///< elements a token of a sparse-attention index; 0: none
  std::int64_t state_elements = 0;    ///< recurrent: elements of a layer's state, kept in f32
  std::int64_t conv_elements =
      0;  ///< recurrent: elements of a layer's convolution, in kv_format; one of the two may be 0
  /// The places of num_layers and num_sharing_layers layers, ascending; empty: not known. Files and
  /// presets name them.
  std::vector<CacheLayer> layers = {};
};

/// Experts of a mixture. num_experts is 0 when there are none.
struct MoeShape {
  std::int32_t num_experts = 0;        ///< routed
  std::int32_t experts_per_token = 0;  ///< routed experts that a token visits
  std::int32_t ffn = 0;                ///< intermediate elements of one expert
  std::int32_t num_shared = 0;         ///< experts that every token visits
  std::int32_t shared_ffn = 0;         ///< intermediate elements of one shared expert; 0: as ffn
  /// Layers with a dense MLP of `TransformerShape::ffn`: the first layers, unless `is_interleaved`.
  std::int32_t first_dense_layers = 0;
  bool is_interleaved =
      false;  ///< true: the dense layers are assumed to be evenly mixed among all layers
};

/// Multi-head latent attention. kv_lora_rank is 0 when there is none.
struct MlaShape {
  std::int32_t q_lora_rank = 0;   ///< elements of the queries' latent; 0: queries have none
  std::int32_t kv_lora_rank = 0;  ///< latent elements
  std::int32_t nope_dim = 0;      ///< elements of a head's query and key without position
  std::int32_t rope_dim = 0;      ///< elements of the positional key that all heads share
  std::int32_t value_dim = 0;     ///< elements of a head's value
};

/// Mamba-2 layers (arXiv 2405.21060). num_heads is 0 when there are none.
struct MambaShape {
  std::int32_t num_heads = 0;   ///< heads of the state
  std::int32_t head_dim = 0;    ///< elements of a head's input
  std::int32_t state = 0;       ///< elements of the state for each input element
  std::int32_t num_groups = 0;  ///< groups of heads that share B and C
  std::int32_t kernel = 0;      ///< inputs that the convolution reads
  /// Returns the channels of the convolution: x, B and C.
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
  bool tied_embeddings = false;   ///< whether the output head is the embedding
  bool has_biases = false;        ///< whether the configuration says that projections have biases
  MoeShape moe;                   ///< experts
  MlaShape mla;                   ///< latent attention
  MambaShape mamba = {};          ///< recurrent layers of Mamba-2
};

/// How the ranks of a tensor-parallel group share a part.
enum class PartSplit : std::uint8_t {
  replicated,  ///< each rank has the whole part
  even,        ///< each rank has its share, rounded up
  kv_heads,    ///< each rank has whole KV heads, replicated when there are more ranks than heads
};
/// The stages of a pipeline that have a part.
enum class PartPlace : std::uint8_t {
  layers,       ///< `num_layers` layers have it, each on its stage
  first_stage,  ///< the embedding
  last_stage,   ///< final norm and output head
  both_ends,    ///< an embedding that is the output head too
};

/// Parameters of one kind.
struct ParameterPart {
  std::string name;             ///< "query projection"
  std::int64_t each = 0;        ///< parameters of each layer's part, or of the only one
  std::int32_t num_layers = 1;  ///< layers that have it
  /// The first layer with the part; the others follow it. nullopt: the layers with the part are
  /// evenly mixed among all layers.
  std::optional<std::int32_t> first_layer = std::nullopt;
  PartSplit split = PartSplit::replicated;  ///< over tensor-parallel ranks
  PartPlace place = PartPlace::layers;      ///< over pipeline stages
  std::string arithmetic;                   ///< how `each` is computed: "896 x 14 x 64"
  std::int32_t num_experts = 0;             ///< routed experts in `each`; 0: none
  std::int32_t experts_per_token = 0;       ///< routed experts in `each` that a token visits
  /// Returns the parameters of all layers. Saturates.
  KVARENA_EXPORT std::int64_t total() const noexcept;
};

/// Stored tensors of one type.
struct TypeTotal {
  std::string type;           ///< as in the file: "BF16", "q4_K"
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
  std::vector<CacheGroup> groups;       ///< the data that its layers keep, at least one group
  std::string weights_format = "bf16";  ///< storage format of the published weights
  std::string expert_weights_format;    ///< of routed experts; empty: as weights_format
  std::string ends_weights_format;      ///< of embedding and output head; empty: as weights_format
  bool weights_quantised = false;       ///< true: published with scales, which are not counted here
  std::string kv_format =
      "bf16";  ///< storage format of convolutions, and of K and V unless options name another
  std::vector<ParameterPart> parts;        ///< parameters; empty when the shapes do not give them
  std::optional<std::int64_t> parameters;  ///< exact number of all parameters
  std::optional<std::int64_t>
      parameters_about;           ///< published rounded number, when the exact one is unknown
  std::string parameters_source;  ///< their source, or why they are unknown
  std::optional<std::int64_t> weights_bytes;  ///< exact, from the headers of the weights
  bool weights_stated = false;  ///< weights_bytes hold whatever PlanOptions::weights says
  std::vector<TypeTotal> weights_by_dtype;  ///< the tensors by type, most bytes first
  std::vector<std::string> notes;  ///< assumptions and omissions of a reader of files, for people
};

/// Returns the elements that one token adds in all layers of the groups that grow: 2 (K and V) x
/// heads x dim a layer, or the latent. Scales and a sparse-attention index are not counted. The
/// figure compares models. Saturates.
KVARENA_EXPORT std::int64_t kv_elements_per_token(const ModelSpec& model) noexcept;
/// Returns ok, or invalid_argument with the number that is out of its range.
KVARENA_EXPORT Status validate(const ModelSpec& model) noexcept;

}  // namespace kvarena::capacity
