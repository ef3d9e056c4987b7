#include "capacity/planning.hpp"

#include "capacity/amount.hpp"
#include "capacity/formula.hpp"
#include "capacity/share.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

namespace kvarena::capacity {
namespace {

/// Parameters of `part` in one layer, or of the one that there is, on one tensor-parallel rank.
Formula each_of_rank(const ParameterPart& part, const TransformerShape& shape, std::int32_t ranks) {
  const Formula all = Formula::product(part.each, part.arithmetic);
  if (part.split == PartSplit::replicated || ranks == 1) return all;
  if (part.split == PartSplit::even) return rounded_up(all, Formula(ranks, "ranks"));
  const std::int32_t heads = std::max(shape.num_kv_heads, 1);
  return rounded_up(all, Formula(heads, "KV heads")) * heads_of_rank(shape.num_kv_heads, ranks);
}

const StorageFormat& format_or_bf16(std::string_view name) {
  const StorageFormat* format = find_storage_format(name);
  return format != nullptr ? *format : *find_storage_format("bf16");
}

/// Parameters of a rank by what they are stored as.
struct RankParameters {
  std::int64_t plain = 0;
  std::int64_t experts = 0;
  std::int64_t ends = 0;
  std::int64_t total() const noexcept { return plus(plus(plain, experts), ends); }
};

/// Parameters of a rank, part by part in `lines`, and their sum.
RankParameters count_rank(const ModelSpec& model, const PlanOptions& o, std::int32_t stage,
                          std::vector<PlanLine>& lines) {
  RankParameters rank;
  std::optional<Formula> sum;
  for (const ParameterPart& part : model.parts) {
    const std::int64_t count =
        parts_of_stage(part, model.shape.num_layers, o.pipeline_parallel, stage);
    if (count == 0) continue;
    Formula parameters = each_of_rank(part, model.shape, o.tensor_parallel);
    if (count > 1) parameters = Formula(count, "layers") * parameters;
    lines.push_back(line_of(part.name, parameters, "parameters"));
    const Formula term = parameters.value();
    sum = sum ? *sum + term : term;
    std::int64_t& total = part.num_experts > 0              ? rank.experts
                          : part.place == PartPlace::layers ? rank.plain
                                                            : rank.ends;
    total = plus(total, parameters.value());
  }
  if (sum) lines.push_back(line_of("parameters", *sum, "parameters"));
  return rank;
}

Formula bytes_of(const Formula& parameters, const StorageFormat& format) {
  return rounded_up(parameters, format.elements) *
         Formula(format.bytes, fmt::format("B ({})", format.name));
}

/// Bytes from headers: a rank has as much of them as it has of the parameters, where those are
/// known.
Formula exact_weights(const ModelSpec& model, const RankParameters& rank, std::int64_t ranks) {
  const Formula all(*model.weights_bytes, "B in all");
  std::int64_t total = 0;
  for (const ParameterPart& part : model.parts) total = plus(total, part.total());
  const std::int64_t own = rank.total();
  if (total > 0 && own < kMostAmount && ranks > 1) {
    return rounded_up(all * own, Formula(total, "parameters"));
  }
  return rounded_up(all, Formula(ranks, "ranks"));
}

constexpr const char* kWeights = "weights";

/// Published weights of which some kinds may be stored apart.
std::vector<PlanLine> weights_by_kind(const ModelSpec& model, const RankParameters& rank) {
  const struct {
    const char* name;
    std::int64_t parameters;
    const std::string& format;
  } apart[] = {{"weights of the experts", rank.experts, model.expert_weights_format},
               {"weights of embedding and head", rank.ends, model.ends_weights_format}};
  std::int64_t rest = rank.plain;
  for (const auto& kind : apart) {
    if (kind.format.empty()) rest = plus(rest, kind.parameters);
  }
  const auto bytes = [](std::int64_t parameters, const std::string& format) {
    return bytes_of(Formula(parameters, "parameters"), format_or_bf16(format));
  };
  std::vector<PlanLine> lines = {line_of(kWeights, bytes(rest, model.weights_format))};
  for (const auto& [name, parameters, format] : apart) {
    if (format.empty() || parameters == 0) continue;
    lines.push_back(line_of(name, bytes(parameters, format)));
  }
  return lines;
}

/// What of a rank's step decides its activations.
struct StepShape {
  Formula tokens;      // new tokens
  Formula rows;        // sequences, of which each has logits
  Formula hidden;      // elements of the residual stream
  Formula q;           // of a token's queries
  Formula kv;          // of its keys
  Formula ffn;         // of a dense MLP
  Formula visits;      // experts that a token visits
  Formula expert_ffn;  // of one of them
  Formula rank_vocab;  // of this rank's logits
  Formula vocab;       // of all logits
};

StepShape step_of(const TransformerShape& s, const PlanOptions& o) {
  const std::int64_t tp = o.tensor_parallel;
  const std::int64_t dim =
      s.mla.kv_lora_rank > 0 ? std::max(s.mla.nope_dim, 128) + s.mla.rope_dim : s.head_dim;
  return {.tokens = {o.max_step_tokens, "tokens"},
          .rows = {std::min<std::int64_t>(o.max_step_tokens, max_sequences_of(o)), "sequences"},
          .hidden = s.hidden,
          .q = ceil_div(times(s.num_q_heads, dim), tp),
          .kv = times(heads_of_rank(s.num_kv_heads, o.tensor_parallel), dim),
          .ffn = ceil_div(s.ffn, tp),
          .visits = {s.moe.num_experts > 0 ? s.moe.experts_per_token : 0, "experts"},
          .expert_ffn = ceil_div(s.moe.ffn, tp),
          .rank_vocab = ceil_div(s.vocab, tp),
          .vocab = s.vocab};
}

}  // namespace

bool has_weights(const ModelSpec& model) noexcept {
  return model.weights_bytes || model.parameters || !model.parts.empty();
}

bool has_published_weights(const ModelSpec& model, const PlanOptions& o) noexcept {
  if (!o.weights || (model.weights_stated && model.weights_bytes)) return true;
  return o.weights->name == model.weights_format && model.expert_weights_format.empty() &&
         model.ends_weights_format.empty();
}

RankMemory weights_of_rank(const ModelSpec& model, const PlanOptions& o, std::int32_t stage) {
  RankMemory memory;
  if (!has_weights(model)) return memory;
  const RankParameters rank = count_rank(model, o, stage, memory.lines);
  const std::int64_t ranks = std::int64_t{o.tensor_parallel} * o.pipeline_parallel;
  const bool published = has_published_weights(model, o);
  const StorageFormat& plain = published ? format_or_bf16(model.weights_format) : *o.weights;
  std::vector<PlanLine> weights;
  if (model.weights_bytes && published) {
    weights = {line_of(kWeights, exact_weights(model, rank, ranks))};
  } else if (model.parts.empty()) {
    const Formula all(model.parameters.value_or(0), "parameters");
    weights = {line_of(kWeights, bytes_of(rounded_up(all, Formula(ranks, "ranks")), plain))};
  } else if (published) {
    weights = weights_by_kind(model, rank);
  } else {
    weights = {line_of(kWeights, bytes_of(Formula(rank.total(), "parameters"), plain))};
  }
  for (PlanLine& line : weights) {
    memory.bytes = plus(memory.bytes, line.value);
    memory.lines.push_back(std::move(line));
  }
  return memory;
}

// torch-like engines hold, while a layer runs: the residual and its norm [T, hidden]; in attention
// Q, K, V and the result; in a gated MLP gate and up, and their product; with experts the same for
// each expert a token visits, and the visits' outputs; at the end a rank's logits in 16 bits, and
// all of them, gathered for sampling, in f32.
RankMemory activations_of_rank(const ModelSpec& model, const PlanOptions& o) {
  const StepShape s = step_of(model.shape, o);
  const Formula half(2, "B");
  const Formula residual = Formula(2) * s.tokens * s.hidden * half;
  const Formula attention = s.tokens * (Formula(2) * s.q + Formula(2) * s.kv) * half;
  const Formula dense = s.tokens * Formula(3) * s.ffn * half;
  const Formula visits = s.tokens * s.visits * (Formula(3) * s.expert_ffn + s.hidden) * half;
  const Formula mlp = visits.value() > dense.value() ? visits : dense;
  const Formula logits = s.rows * (s.rank_vocab * half + s.vocab * Formula(4, "B"));
  const Formula peak =
      Formula(residual.value()) + largest({attention.value(), mlp.value(), logits.value()});
  return {peak.value(),
          {line_of("residual and norm", residual), line_of("attention's intermediates", attention),
           line_of("the MLP's intermediates", mlp), line_of("logits", logits),
           line_of("activations", peak)}};
}

}  // namespace kvarena::capacity
