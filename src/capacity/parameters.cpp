#include "capacity/parameters.hpp"

#include "capacity/amount.hpp"
#include "capacity/formula.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

namespace kvarena::capacity {
namespace {

/// What an architecture has beside its matrices. Names are model_type of Hugging Face
/// configurations.
struct Conventions {
  std::string_view architecture;
  bool has_qkv_bias = false;
  bool has_qk_norm = false;
  std::int32_t norms = 2;        // of `hidden` elements, a layer
  bool has_router_bias = false;  // one number an expert
  bool has_shared_gate = false;  // a number of the residual stream decides on the shared expert
  bool has_sinks = false;        // one number a head, and biases of all projections and experts
  bool is_hybrid = false;  // a layer is Mamba-2, attention or an MLP, which has no gate, alone
};

constexpr auto kConventions = std::to_array<Conventions>({
    {.architecture = "llama"},
    {.architecture = "mistral"},
    {.architecture = "mixtral"},
    {.architecture = "phi3"},
    {.architecture = "qwen2", .has_qkv_bias = true},
    {.architecture = "qwen2_vl", .has_qkv_bias = true},
    {.architecture = "qwen2_vl_text", .has_qkv_bias = true},
    {.architecture = "qwen2_5_vl", .has_qkv_bias = true},
    {.architecture = "qwen2_5_vl_text", .has_qkv_bias = true},
    {.architecture = "qwen2_moe", .has_qkv_bias = true, .has_shared_gate = true},
    {.architecture = "qwen3", .has_qk_norm = true},
    {.architecture = "qwen3_moe", .has_qk_norm = true},
    {.architecture = "qwen3_vl_text", .has_qk_norm = true},
    {.architecture = "qwen3_vl_moe_text", .has_qk_norm = true},
    {.architecture = "gemma"},
    {.architecture = "gemma2", .norms = 4},
    {.architecture = "gemma3_text", .has_qk_norm = true, .norms = 4},
    {.architecture = "cohere2", .norms = 1},
    {.architecture = "deepseek_v2"},
    {.architecture = "deepseek_v3", .has_router_bias = true},
    {.architecture = "kimi_k2", .has_router_bias = true},
    {.architecture = "gpt_oss", .has_router_bias = true, .has_sinks = true},
    {.architecture = "nemotron_h", .norms = 1, .has_router_bias = true, .is_hybrid = true},
});

const Conventions* find_conventions(std::string_view architecture) noexcept {
  const auto* found =
      std::find_if(kConventions.begin(), kConventions.end(),
                   [&](const Conventions& c) { return c.architecture == architecture; });
  return found == kConventions.end() ? nullptr : found;
}

/// None: dense layers are among the sparse ones.
std::optional<std::int32_t> first_sparse_layer(const MoeShape& moe) noexcept {
  if (moe.is_interleaved) return std::nullopt;
  return moe.first_dense_layers;
}

/// The parts of one model, one after another.
class Parts {
 public:
  Parts(const ModelSpec& model, const Conventions& c) : s_(model.shape), c_(c) {
    for (const CacheGroup& group : model.groups) {
      (group.kind == CacheKind::recurrent ? recurrent_ : attention_) += group.num_layers;
    }
    if (!c.is_hybrid) attention_ = s_.num_layers;
  }

  std::vector<ParameterPart> all();

 private:
  void add_ends();
  void add_attention();
  void add_latent_attention();
  void add_mamba();
  void add_mlps();
  void add_experts(std::int32_t sparse);

  /// A matrix or vector of every layer of `num_layers`.
  ParameterPart& add(std::string name, const Formula& each, std::int32_t num_layers,
                     PartSplit split = PartSplit::even) {
    return parts_.emplace_back(ParameterPart{.name = std::move(name),
                                             .each = each.value(),
                                             .num_layers = num_layers,
                                             .split = split,
                                             .arithmetic = each.text()});
  }
  /// The matrices of an MLP: gate, up and down, or the last two.
  Formula mlp(std::int32_t ffn) const { return Formula(c_.is_hybrid ? 2 : 3) * s_.hidden * ffn; }

  const TransformerShape& s_;
  const Conventions& c_;
  std::int32_t attention_ = 0;  // layers that have it
  std::int32_t recurrent_ = 0;
  std::vector<ParameterPart> parts_;
};

void Parts::add_ends() {
  const Formula matrix = Formula(s_.vocab) * s_.hidden;
  const bool tied = s_.tied_embeddings;
  add(tied ? "embedding, tied to the output head" : "embedding", matrix, 1).place =
      tied ? PartPlace::both_ends : PartPlace::first_stage;
  add("final norm", s_.hidden, 1, PartSplit::replicated).place = PartPlace::last_stage;
  if (!tied) add("output head", matrix, 1).place = PartPlace::last_stage;
}

// The query's width is heads x head dim, which need not be hidden; K and V have the KV heads only.
void Parts::add_attention() {
  const std::int64_t q = times(s_.num_q_heads, s_.head_dim);
  const std::int64_t kv = times(s_.num_kv_heads, s_.head_dim);
  const Formula hidden = s_.hidden;
  add("query projection", hidden * q, attention_);
  add("key projection", hidden * kv, attention_, PartSplit::kv_heads);
  add("value projection", hidden * kv, attention_, PartSplit::kv_heads);
  add("output projection", Formula(q) * hidden, attention_);
  if (c_.has_qkv_bias) add("query bias", q, attention_);
  if (c_.has_sinks) {
    add("query bias and sinks", Formula(q) + s_.num_q_heads, attention_);
    add("output bias", hidden, attention_, PartSplit::replicated);
  }
  if (c_.has_qkv_bias || c_.has_sinks) {
    add("key and value biases", Formula(2) * kv, attention_, PartSplit::kv_heads);
  }
  if (c_.has_qk_norm) {
    add("query and key norms", Formula(2) * s_.head_dim, attention_, PartSplit::replicated);
  }
}

// DeepSeek-V2 (arXiv 2405.04434), section 2.1: queries and the latent of K and V are projected
// down, normalised, and projected up a head; the latent of K and V and the positional key are what
// is kept.
void Parts::add_latent_attention() {
  const MlaShape& m = s_.mla;
  const std::int64_t heads = s_.num_q_heads;
  const std::int64_t q = times(heads, m.nope_dim + m.rope_dim);
  const Formula hidden = s_.hidden;
  if (m.q_lora_rank > 0) {
    add("query down-projection", hidden * m.q_lora_rank, attention_, PartSplit::replicated);
    add("query latent norm", m.q_lora_rank, attention_, PartSplit::replicated);
    add("query up-projection", Formula(m.q_lora_rank) * q, attention_);
  } else {
    add("query projection", hidden * q, attention_);
  }
  add("latent down-projection", hidden * (Formula(m.kv_lora_rank) + m.rope_dim), attention_,
      PartSplit::replicated);
  add("latent norm", m.kv_lora_rank, attention_, PartSplit::replicated);
  add("key and value up-projection",
      Formula(m.kv_lora_rank) * heads * (Formula(m.nope_dim) + m.value_dim), attention_);
  add("output projection", Formula(heads) * m.value_dim * hidden, attention_);
}

// Mamba-2 (arXiv 2405.21060), section 8: one projection makes the gate, x, B, C and the time steps;
// x, B and C pass a convolution with biases; a head has a decay, a skip and a bias of its time
// step; what comes out is normalised and projected back.
void Parts::add_mamba() {
  const MambaShape& m = s_.mamba;
  const Formula inner = Formula(m.num_heads, "heads") * m.head_dim;
  const Formula states = Formula(2) * m.num_groups * m.state;
  add("Mamba input projection", Formula(s_.hidden) * (Formula(2) * inner + states + m.num_heads),
      recurrent_);
  add("Mamba convolution", (inner + states) * (Formula(m.kernel) + 1), recurrent_);
  add("Mamba heads", Formula(3) * m.num_heads, recurrent_);
  add("Mamba norm", inner, recurrent_);
  add("Mamba output projection", inner * s_.hidden, recurrent_);
}

void Parts::add_mlps() {
  const MoeShape& moe = s_.moe;
  const std::int32_t layers =
      c_.is_hybrid ? s_.num_layers - attention_ - recurrent_ : s_.num_layers;
  const std::int32_t dense = moe.num_experts == 0 ? layers : moe.first_dense_layers;
  if (dense > 0) {
    ParameterPart& part = add(c_.is_hybrid ? "MLP" : "gated MLP", mlp(s_.ffn), dense);
    if (!moe.is_interleaved && !c_.is_hybrid) part.first_layer = 0;
  }
  if (layers > dense) add_experts(layers - dense);
}

void Parts::add_experts(std::int32_t sparse) {
  const MoeShape& moe = s_.moe;
  const std::size_t first = parts_.size();
  const Formula experts(moe.num_experts, "experts");
  add("router", Formula(s_.hidden) * moe.num_experts, sparse, PartSplit::replicated);
  if (c_.has_router_bias) add("router bias", moe.num_experts, sparse, PartSplit::replicated);
  ParameterPart& part = add("experts", mlp(moe.ffn) * experts, sparse);
  part.num_experts = moe.num_experts;
  part.experts_per_token = moe.experts_per_token;
  if (c_.has_sinks) {
    add("experts' biases", (Formula(2) * moe.ffn + s_.hidden) * experts, sparse);
  }
  if (c_.has_shared_gate) add("shared expert's gate", s_.hidden, sparse);
  if (moe.num_shared > 0) {
    add("shared experts", mlp(moe.shared_ffn > 0 ? moe.shared_ffn : moe.ffn) * moe.num_shared,
        sparse);
  }
  if (c_.is_hybrid) return;  // they are evenly among all layers
  for (std::size_t i = first; i < parts_.size(); ++i) {
    parts_[i].first_layer = first_sparse_layer(moe);
  }
}

std::vector<ParameterPart> Parts::all() {
  add_ends();
  if (s_.mla.kv_lora_rank > 0) {
    add_latent_attention();
  } else {
    add_attention();
  }
  if (recurrent_ > 0) add_mamba();
  add_mlps();
  add("norms", Formula(c_.norms) * s_.hidden, s_.num_layers, PartSplit::replicated);
  return std::move(parts_);
}

/// What of a shape is missing for a count, or "".
std::string missing_shape(const TransformerShape& s, const Conventions& c) {
  if (s.num_layers < 1 || s.hidden < 1 || s.vocab < 1 || s.num_q_heads < 1) {
    return "layers, hidden, heads or vocabulary are not given";
  }
  if (s.mla.kv_lora_rank > 0) {
    return s.mla.nope_dim < 1 || s.mla.value_dim < 1 ? "the head dims of MLA are not given" : "";
  }
  if (s.num_kv_heads < 1 || s.head_dim < 1) return "KV heads or head dim are not given";
  if (c.is_hybrid && s.mamba.num_heads < 1) return "the heads of Mamba are not given";
  const std::int32_t dense = s.moe.num_experts == 0 ? s.num_layers : s.moe.first_dense_layers;
  if (dense > s.num_layers) return "more dense layers than layers";
  if (dense > 0 && s.ffn < 1) return "the MLP's width is not given";
  return dense < s.num_layers && s.moe.ffn < 1 ? "the experts' width is not given" : "";
}

/// Gated experts, where the shapes tell how many they are and the total has so many.
std::optional<ParameterPart> experts_of_total(const TransformerShape& s, std::int64_t total) {
  const MoeShape& moe = s.moe;
  const Formula each = Formula(3) * s.hidden * moe.ffn * Formula(moe.num_experts, "experts");
  ParameterPart part{.name = "experts",
                     .each = each.value(),
                     .num_layers = s.num_layers - moe.first_dense_layers,
                     .first_layer = first_sparse_layer(moe),
                     .split = PartSplit::even,
                     .arithmetic = each.text(),
                     .num_experts = moe.num_experts,
                     .experts_per_token = moe.experts_per_token};
  if (part.each == 0 || part.num_layers < 1 || part.total() >= total) return std::nullopt;
  return part;
}

}  // namespace

std::vector<ParameterPart> parts_of_total(const TransformerShape& s, std::int64_t total,
                                          std::string_view origin) {
  std::vector<ParameterPart> parts;
  Formula rest(total, fmt::format("({})", origin));
  if (const auto experts = experts_of_total(s, total)) {
    parts.push_back(*experts);
    rest = rest - Formula(experts->total(), "of the experts");
  }
  const Formula each = rounded_up(rest, s.num_layers);
  parts.push_back({.name = parts.empty() ? "all parameters" : "everything else",
                   .each = each.value(),
                   .num_layers = s.num_layers,
                   .split = PartSplit::even,
                   .arithmetic = each.text()});
  return parts;
}

void count_parameters(ModelSpec& model) {
  const Conventions* conventions = find_conventions(model.architecture);
  const TransformerShape& shape = model.shape;
  std::string missing;
  if (conventions == nullptr) {
    missing = fmt::format("no formula for the architecture '{}'", model.architecture);
  } else {
    missing = missing_shape(shape, *conventions);
  }
  if (missing.empty() && conventions->has_sinks != shape.has_biases) {
    missing = shape.has_biases ? "biases that the formula leaves out" : "biases are not given";
  }
  if (missing.empty()) {
    model.parts = Parts(model, *conventions).all();
    std::int64_t total = 0;
    for (const ParameterPart& part : model.parts) total = plus(total, part.total());
    model.parameters = total;
    model.parameters_source = "from shapes";
    return;
  }
  model.parts.clear();
  model.parameters.reset();
  if (model.parameters_about && shape.num_layers > 0) {
    model.parts = parts_of_total(shape, *model.parameters_about, "published, rounded");
    missing += "; published, rounded";
  }
  model.parameters_source = std::move(missing);
}

}  // namespace kvarena::capacity
