#include "capacity/rank_memory.hpp"

#include "base/grouped.hpp"
#include "capacity/amount.hpp"
#include "capacity/share.hpp"
#include "capacity/stage_layers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

namespace kvarena::capacity {
namespace {

/// Parameters of `part` in one layer, or of the one that there is, on one tensor-parallel rank.
std::int64_t each_of_rank(const ParameterPart& part, const TransformerShape& shape,
                          std::int32_t ranks) {
  switch (part.split) {
    case PartSplit::replicated: return part.each;
    case PartSplit::even: return ceil_div(part.each, ranks);
    case PartSplit::kv_heads: {
      const std::int64_t heads = std::max(shape.num_kv_heads, 1);
      return times(ceil_div(part.each, heads), heads_of_rank(shape.num_kv_heads, ranks));
    }
  }
  return part.each;
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

/// `part` with its numbers in, on one rank.
std::string arithmetic_of(const ParameterPart& part, const TransformerShape& shape,
                          std::int64_t each, std::int64_t count, std::int32_t ranks) {
  std::string text = part.arithmetic;
  if (each != part.each && part.split == PartSplit::kv_heads) {
    text += fmt::format(" x {} / {} KV heads", heads_of_rank(shape.num_kv_heads, ranks),
                        shape.num_kv_heads);
  } else if (each != part.each) {
    text = part.each % ranks == 0 ? fmt::format("{} / {} ranks", text, ranks)
                                  : fmt::format("ceil({} / {} ranks)", text, ranks);
  }
  return count == 1 ? text : fmt::format("{} layers x {}", count, text);
}

/// Parameters of a rank, part by part in `lines`, and their sum.
RankParameters count_rank(const ModelSpec& model, const PlanOptions& o, std::int32_t stage,
                          std::vector<PlanLine>* lines) {
  RankParameters sum;
  std::string terms;
  for (const ParameterPart& part : model.parts) {
    const std::int64_t each = each_of_rank(part, model.shape, o.tensor_parallel);
    const std::int64_t count =
        parts_of_stage(part, model.shape.num_layers, o.pipeline_parallel, stage);
    if (count == 0) continue;
    const std::int64_t parameters = times(each, count);
    std::int64_t& total = part.num_experts > 0              ? sum.experts
                          : part.place == PartPlace::layers ? sum.plain
                                                            : sum.ends;
    total = plus(total, parameters);
    if (lines == nullptr) continue;
    terms += fmt::format("{}{}", terms.empty() ? "" : " + ", grouped(parameters));
    lines->push_back({part.name, arithmetic_of(part, model.shape, each, count, o.tensor_parallel),
                      parameters, "parameters"});
  }
  if (!terms.empty()) {
    lines->push_back({"parameters", std::move(terms), sum.total(), "parameters"});
  }
  return sum;
}

std::int64_t bytes_line(const char* name, std::int64_t parameters, const StorageFormat& format,
                        std::vector<PlanLine>* lines) {
  const std::int64_t bytes = stored_bytes(format, parameters);
  if (lines == nullptr) return bytes;
  std::string blocks = grouped(parameters) + " parameters";
  if (parameters % format.elements != 0) {
    blocks = fmt::format("ceil({} / {})", blocks, format.elements);
  } else if (format.elements > 1) {
    blocks += fmt::format(" / {}", format.elements);
  }
  lines->push_back(
      {name, fmt::format("{} x {} B ({})", blocks, format.bytes, format.name), bytes, "B"});
  return bytes;
}

/// a x b / c, rounded up.
std::int64_t share_of(std::int64_t a, std::int64_t b, std::int64_t c) {
  const auto wide = static_cast<__int128>(a) * b;
  return static_cast<std::int64_t>(std::min<__int128>((wide + c - 1) / c, kMostAmount));
}

/// Bytes from headers: a rank has as much of them as it has of the parameters, where those are
/// known.
std::int64_t exact_weights(const ModelSpec& model, const RankParameters& rank, std::int64_t ranks,
                           std::vector<PlanLine>* lines) {
  const std::int64_t all = *model.weights_bytes;
  std::int64_t total = 0;
  for (const ParameterPart& part : model.parts) total = plus(total, part.total());
  const std::int64_t own = rank.total();
  const bool by_parts = total > 0 && own < kMostAmount && ranks > 1;
  const std::int64_t bytes = by_parts ? share_of(all, own, total) : ceil_div(all, ranks);
  if (lines == nullptr) return bytes;
  std::string text = fmt::format("{} B in the headers", grouped(all));
  if (by_parts) {
    text = fmt::format("ceil({} x {} / {} parameters)", text, grouped(own), grouped(total));
  } else if (ranks > 1) {
    text = fmt::format("ceil({} / {} ranks)", text, ranks);
  }
  lines->push_back({"weights", std::move(text), bytes, "B"});
  return bytes;
}

constexpr std::int64_t kBytes = 2;  // of an intermediate number

/// What of a rank's step decides its activations.
struct StepShape {
  std::int64_t tokens = 0;      // new tokens
  std::int64_t rows = 0;        // sequences, of which each has logits
  std::int64_t hidden = 0;      // elements of the residual stream
  std::int64_t q = 0;           // of a token's queries
  std::int64_t kv = 0;          // of its keys
  std::int64_t ffn = 0;         // of a dense MLP
  std::int64_t visits = 0;      // experts that a token visits
  std::int64_t expert_ffn = 0;  // of one of them
  std::int64_t rank_vocab = 0;  // of this rank's logits
  std::int64_t vocab = 0;       // of all logits
};

StepShape step_of(const TransformerShape& s, const PlanOptions& o) {
  const std::int64_t tp = o.tensor_parallel;
  const std::int64_t tokens = o.max_step_tokens;
  const std::int64_t dim =
      s.mla.kv_lora_rank > 0 ? std::max(s.mla.nope_dim, 128) + s.mla.rope_dim : s.head_dim;
  return {.tokens = tokens,
          .rows = std::min<std::int64_t>(tokens, max_sequences_of(o)),
          .hidden = s.hidden,
          .q = ceil_div(times(s.num_q_heads, dim), tp),
          .kv = times(heads_of_rank(s.num_kv_heads, o.tensor_parallel), dim),
          .ffn = ceil_div(s.ffn, tp),
          .visits = s.moe.num_experts > 0 ? s.moe.experts_per_token : 0,
          .expert_ffn = ceil_div(s.moe.ffn, tp),
          .rank_vocab = ceil_div(s.vocab, tp),
          .vocab = s.vocab};
}

}  // namespace

bool has_published_weights(const ModelSpec& model, const PlanOptions& o) noexcept {
  if (!o.weights) return true;
  return o.weights->name == model.weights_format && model.expert_weights_format.empty() &&
         model.ends_weights_format.empty();
}

std::int64_t weights_of_rank(const ModelSpec& model, const PlanOptions& o, std::int32_t stage,
                             std::vector<PlanLine>* lines) {
  const RankParameters rank = count_rank(model, o, stage, lines);
  const std::int64_t ranks = std::int64_t{o.tensor_parallel} * o.pipeline_parallel;
  const bool published = has_published_weights(model, o);
  if (model.weights_bytes && published) return exact_weights(model, rank, ranks, lines);
  const StorageFormat& plain = published ? format_or_bf16(model.weights_format) : *o.weights;
  if (model.parts.empty()) {
    return bytes_line("weights", ceil_div(model.parameters.value_or(0), ranks), plain, lines);
  }
  if (!published) return bytes_line("weights", rank.total(), plain, lines);
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
  std::int64_t bytes = bytes_line("weights", rest, plain, lines);
  for (const auto& [name, parameters, format] : apart) {
    if (format.empty() || parameters == 0) continue;
    bytes = plus(bytes, bytes_line(name, parameters, format_or_bf16(format), lines));
  }
  return bytes;
}

// torch-like engines hold, while a layer runs: the residual and its norm [T, hidden]; in attention
// Q, K, V and the result; in a gated MLP gate and up, and their product; with experts the same for
// each expert a token visits, and the visits' outputs; at the end a rank's logits in 16 bits, and
// all of them, gathered for sampling, in f32.
std::int64_t activations_of_rank(const ModelSpec& model, const PlanOptions& o,
                                 std::vector<PlanLine>* lines) {
  const StepShape step = step_of(model.shape, o);
  const std::int64_t residual = times(kBytes, 2, step.tokens, step.hidden);
  const std::int64_t attention = times(kBytes, step.tokens, 2 * step.q + 2 * step.kv);
  const std::int64_t dense = times(kBytes, step.tokens, 3, step.ffn);
  const std::int64_t visits =
      times(kBytes, step.tokens, step.visits, plus(times(3, step.expert_ffn), step.hidden));
  const std::int64_t mlp = std::max(dense, visits);
  const std::int64_t logits =
      times(step.rows, plus(times(kBytes, step.rank_vocab), times(4, step.vocab)));
  const std::int64_t largest = std::max({attention, mlp, logits});
  const std::int64_t peak = plus(residual, largest);
  if (lines == nullptr) return peak;
  lines->push_back({"residual and norm",
                    fmt::format("2 x {} tokens x {} x 2 B", step.tokens, step.hidden), residual,
                    "B"});
  lines->push_back(
      {"attention's intermediates",
       fmt::format("{} tokens x (2 x {} + 2 x {}) x 2 B", step.tokens, step.q, step.kv), attention,
       "B"});
  lines->push_back({"the MLP's intermediates",
                    visits > dense
                        ? fmt::format("{} tokens x {} experts x (3 x {} + {}) x 2 B", step.tokens,
                                      step.visits, step.expert_ffn, step.hidden)
                        : fmt::format("{} tokens x 3 x {} x 2 B", step.tokens, step.ffn),
                    mlp, "B"});
  lines->push_back(
      {"logits",
       fmt::format("{} sequences x ({} x 2 B + {} x 4 B)", step.rows, step.rank_vocab, step.vocab),
       logits, "B"});
  lines->push_back(
      {"activations",
       fmt::format("{} + the largest of the three, {}", grouped(residual), grouped(largest)), peak,
       "B"});
  return peak;
}

}  // namespace kvarena::capacity
