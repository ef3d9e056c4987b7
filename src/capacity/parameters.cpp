#include "capacity/parameters.hpp"

#include "base/grouped.hpp"
#include "capacity/amount.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

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
  explicit Parts(const TransformerShape& shape) : s_(shape) {}

  void add_ends();
  void add_attention(const Conventions& c);
  void add_latent_attention();
  void add_mlps(const Conventions& c);
  void add_experts(const Conventions& c, std::int32_t sparse);
  void add_norms(std::int32_t norms);
  std::vector<ParameterPart> take() { return std::move(parts_); }

 private:
  /// A matrix of every layer of `num_layers`, split over ranks.
  void add_matrix(std::string name, std::int64_t rows, std::int64_t columns,
                  std::int32_t num_layers, PartSplit split = PartSplit::even) {
    parts_.push_back({.name = std::move(name),
                      .each = times(rows, columns),
                      .num_layers = num_layers,
                      .split = split,
                      .arithmetic = fmt::format("{} x {}", rows, columns)});
  }
  void add_vector(std::string name, std::int64_t elements, std::string arithmetic,
                  PartSplit split = PartSplit::replicated) {
    parts_.push_back({.name = std::move(name),
                      .each = elements,
                      .num_layers = s_.num_layers,
                      .split = split,
                      .arithmetic = std::move(arithmetic)});
  }

  const TransformerShape& s_;
  std::vector<ParameterPart> parts_;
};

void Parts::add_ends() {
  const std::string arithmetic = fmt::format("{} x {}", s_.vocab, s_.hidden);
  parts_.push_back({.name = s_.tied_embeddings ? "embedding, tied to the output head" : "embedding",
                    .each = times(s_.vocab, s_.hidden),
                    .split = PartSplit::even,
                    .place = s_.tied_embeddings ? PartPlace::both_ends : PartPlace::first_stage,
                    .arithmetic = arithmetic});
  parts_.push_back({.name = "final norm",
                    .each = s_.hidden,
                    .place = PartPlace::last_stage,
                    .arithmetic = fmt::format("{}", s_.hidden)});
  if (s_.tied_embeddings) return;
  parts_.push_back({.name = "output head",
                    .each = times(s_.vocab, s_.hidden),
                    .split = PartSplit::even,
                    .place = PartPlace::last_stage,
                    .arithmetic = arithmetic});
}

// The query's width is heads x head dim, which need not be hidden; K and V have the KV heads only.
void Parts::add_attention(const Conventions& c) {
  const std::int64_t q = times(s_.num_q_heads, s_.head_dim);
  const std::int64_t kv = times(s_.num_kv_heads, s_.head_dim);
  add_matrix("query projection", s_.hidden, q, s_.num_layers);
  add_matrix("key projection", s_.hidden, kv, s_.num_layers, PartSplit::kv_heads);
  add_matrix("value projection", s_.hidden, kv, s_.num_layers, PartSplit::kv_heads);
  add_matrix("output projection", q, s_.hidden, s_.num_layers);
  if (c.has_qkv_bias) {
    add_vector("query bias", q, fmt::format("{}", q), PartSplit::even);
    add_vector("key and value biases", 2 * kv, fmt::format("2 x {}", kv), PartSplit::kv_heads);
  }
  if (c.has_sinks) {
    add_vector("query bias and sinks", q + s_.num_q_heads,
               fmt::format("{} + {}", q, s_.num_q_heads), PartSplit::even);
    add_vector("key and value biases", 2 * kv, fmt::format("2 x {}", kv), PartSplit::kv_heads);
    add_vector("output bias", s_.hidden, fmt::format("{}", s_.hidden));
  }
  if (c.has_qk_norm) {
    add_vector("query and key norms", 2 * s_.head_dim, fmt::format("2 x {}", s_.head_dim));
  }
}

// DeepSeek-V2 (arXiv 2405.04434), section 2.1: queries and the latent of K and V are projected
// down, normalised, and projected up a head; the latent of K and V and the positional key are what
// is kept.
void Parts::add_latent_attention() {
  const MlaShape& m = s_.mla;
  const std::int64_t heads = s_.num_q_heads;
  const std::int64_t q = times(heads, m.nope_dim + m.rope_dim);
  if (m.q_lora_rank > 0) {
    add_matrix("query down-projection", s_.hidden, m.q_lora_rank, s_.num_layers,
               PartSplit::replicated);
    add_vector("query latent norm", m.q_lora_rank, fmt::format("{}", m.q_lora_rank));
    add_matrix("query up-projection", m.q_lora_rank, q, s_.num_layers);
  } else {
    add_matrix("query projection", s_.hidden, q, s_.num_layers);
  }
  add_matrix("latent down-projection", s_.hidden, m.kv_lora_rank + m.rope_dim, s_.num_layers,
             PartSplit::replicated);
  add_vector("latent norm", m.kv_lora_rank, fmt::format("{}", m.kv_lora_rank));
  add_matrix("key and value up-projection", m.kv_lora_rank, times(heads, m.nope_dim + m.value_dim),
             s_.num_layers);
  add_matrix("output projection", times(heads, m.value_dim), s_.hidden, s_.num_layers);
}

// Gated: gate, up and down.
void Parts::add_mlps(const Conventions& c) {
  const MoeShape& moe = s_.moe;
  const std::int32_t dense = moe.num_experts == 0 ? s_.num_layers : moe.first_dense_layers;
  const std::int32_t sparse = s_.num_layers - dense;
  if (dense > 0) {
    add_matrix("gated MLP", times(3, s_.hidden), s_.ffn, dense);
    parts_.back().arithmetic = fmt::format("3 x {} x {}", s_.hidden, s_.ffn);
    if (!moe.is_interleaved) parts_.back().first_layer = 0;
  }
  if (sparse > 0) add_experts(c, sparse);
}

void Parts::add_experts(const Conventions& c, std::int32_t sparse) {
  const MoeShape& moe = s_.moe;
  const std::size_t first = parts_.size();
  add_matrix("router", s_.hidden, moe.num_experts, sparse, PartSplit::replicated);
  if (c.has_router_bias) {
    add_matrix("router bias", 1, moe.num_experts, sparse, PartSplit::replicated);
  }
  add_matrix("experts", times(3, s_.hidden, moe.ffn), moe.num_experts, sparse);
  parts_.back().arithmetic =
      fmt::format("3 x {} x {} x {} experts", s_.hidden, moe.ffn, moe.num_experts);
  parts_.back().num_experts = moe.num_experts;
  parts_.back().experts_per_token = moe.experts_per_token;
  if (c.has_sinks) {
    add_matrix("experts' biases", 2 * std::int64_t{moe.ffn} + s_.hidden, moe.num_experts, sparse);
  }
  if (c.has_shared_gate) add_matrix("shared expert's gate", s_.hidden, 1, sparse);
  if (moe.num_shared > 0) {
    const std::int32_t ffn = moe.shared_ffn > 0 ? moe.shared_ffn : moe.ffn;
    add_matrix("shared experts", times(3, s_.hidden, ffn), moe.num_shared, sparse);
    parts_.back().arithmetic = fmt::format("3 x {} x {} x {}", s_.hidden, ffn, moe.num_shared);
  }
  for (std::size_t i = first; i < parts_.size(); ++i) {
    parts_[i].first_layer = first_sparse_layer(moe);
  }
}

void Parts::add_norms(std::int32_t norms) {
  add_vector("norms", times(norms, s_.hidden), fmt::format("{} x {}", norms, s_.hidden));
}

/// What of a shape is missing for a count, or "".
std::string missing_shape(const TransformerShape& s) {
  if (s.num_layers < 1 || s.hidden < 1 || s.vocab < 1 || s.num_q_heads < 1) {
    return "layers, hidden, heads or vocabulary are not given";
  }
  if (s.mla.kv_lora_rank > 0) {
    return s.mla.nope_dim < 1 || s.mla.value_dim < 1 ? "the head dims of MLA are not given" : "";
  }
  if (s.num_kv_heads < 1 || s.head_dim < 1) return "KV heads or head dim are not given";
  const std::int32_t dense = s.moe.num_experts == 0 ? s.num_layers : s.moe.first_dense_layers;
  if (dense > s.num_layers) return "more dense layers than layers";
  if (dense > 0 && s.ffn < 1) return "the MLP's width is not given";
  return dense < s.num_layers && s.moe.ffn < 1 ? "the experts' width is not given" : "";
}

/// Gated experts, where so many are less than the total; else as many as make the difference
/// between all parameters and those that a token visits. Of 0 parameters where neither tells.
ParameterPart experts_of_total(const TransformerShape& s, std::int64_t total, std::int64_t active) {
  const MoeShape& moe = s.moe;
  ParameterPart part{
      .name = "experts",
      .each = times(3, s.hidden, moe.ffn, moe.num_experts),
      .num_layers = s.num_layers - moe.first_dense_layers,
      .first_layer = first_sparse_layer(moe),
      .split = PartSplit::even,
      .arithmetic = fmt::format("3 x {} x {} x {} experts", s.hidden, moe.ffn, moe.num_experts),
      .num_experts = moe.num_experts,
      .experts_per_token = moe.experts_per_token};
  const auto is_part = [&] { return part.num_layers > 0 && part.total() < total; };
  if (part.each > 0 && is_part()) return part;
  const std::int64_t unvisited = moe.num_experts - moe.experts_per_token;
  part.each = 0;
  if (active < 1 || active >= total || unvisited < 1) return part;
  part.num_layers = s.num_layers;
  part.first_layer.reset();
  part.each = times((total - active) / unvisited / s.num_layers, moe.num_experts);
  part.arithmetic = fmt::format(
      "floor(({} - {} that a token visits) / (({} - {}) x {})) x {} experts", grouped(total),
      grouped(active), moe.num_experts, moe.experts_per_token, s.num_layers, moe.num_experts);
  if (!is_part()) part.each = 0;
  return part;
}

}  // namespace

std::vector<ParameterPart> parts_of_total(const TransformerShape& s, std::int64_t total,
                                          std::string_view origin, std::int64_t active) {
  std::vector<ParameterPart> parts;
  std::string rest = fmt::format("{} ({})", grouped(total), origin);
  const ParameterPart experts = experts_of_total(s, total, active);
  if (experts.each > 0) {
    parts.push_back(experts);
    total -= experts.total();
    rest = fmt::format("({} - {} of the experts)", rest, grouped(experts.total()));
  }
  parts.push_back({.name = parts.empty() ? "all parameters" : "everything else",
                   .each = ceil_div(total, s.num_layers),
                   .num_layers = s.num_layers,
                   .split = PartSplit::even,
                   .arithmetic = fmt::format("ceil({} / {})", rest, s.num_layers)});
  return parts;
}

void count_parameters(ModelSpec& model) {
  const Conventions* conventions = find_conventions(model.architecture);
  const TransformerShape& shape = model.shape;
  std::string missing = missing_shape(shape);
  if (conventions == nullptr) {
    missing = fmt::format("no formula for the architecture '{}'", model.architecture);
  }
  if (missing.empty() && conventions->has_sinks != shape.has_biases) {
    missing = shape.has_biases ? "biases that the formula leaves out" : "biases are not given";
  }
  if (missing.empty()) {
    Parts parts(shape);
    parts.add_ends();
    if (shape.mla.kv_lora_rank > 0) {
      parts.add_latent_attention();
    } else {
      parts.add_attention(*conventions);
    }
    parts.add_mlps(*conventions);
    parts.add_norms(conventions->norms);
    model.parts = parts.take();
    std::int64_t total = 0;
    for (const ParameterPart& part : model.parts) total = plus(total, part.total());
    model.parameters = total;
    model.parameters_source = "from shapes";
    return;
  }
  model.parts.clear();
  model.parameters.reset();
  if (model.parameters_about && shape.num_layers > 0) {
    model.parts = parts_of_total(shape, *model.parameters_about, "published, rounded",
                                 model.parameters_active_about.value_or(0));
    missing += "; published, rounded";
  }
  model.parameters_source = std::move(missing);
}

}  // namespace kvarena::capacity
