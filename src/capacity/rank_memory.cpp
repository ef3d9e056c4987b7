#include "capacity/rank_memory.hpp"

#include "base/grouped.hpp"
#include "capacity/amount.hpp"
#include "capacity/share.hpp"

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

/// How many of them a stage has: layers, or one or none.
std::int64_t count_of_stage(const ParameterPart& part, std::int32_t stages, std::int32_t stage) {
  switch (part.place) {
    case PartPlace::layers: return layers_of_stage(part.num_layers, stages, stage);
    case PartPlace::first_stage: return stage == 0 ? 1 : 0;
    case PartPlace::last_stage: return stage == stages - 1 ? 1 : 0;
    case PartPlace::both_ends: return stage == 0 || stage == stages - 1 ? 1 : 0;
  }
  return 0;
}

const StorageFormat& format_or_bf16(std::string_view name) {
  const StorageFormat* format = find_storage_format(name);
  return format != nullptr ? *format : *find_storage_format("bf16");
}

/// Parameters of a rank by what they are stored as.
struct RankParameters {
  std::int64_t plain = 0;
  std::int64_t experts = 0;
};

RankParameters count_rank(const ModelSpec& model, const PlanOptions& o, std::int32_t stage,
                          std::vector<PlanLine>* lines) {
  RankParameters sum;
  for (const ParameterPart& part : model.parts) {
    const std::int64_t each = each_of_rank(part, model.shape, o.tensor_parallel);
    const std::int64_t count = count_of_stage(part, o.pipeline_parallel, stage);
    if (count == 0) continue;
    const std::int64_t parameters = times(each, count);
    std::int64_t& total = part.num_experts > 0 ? sum.experts : sum.plain;
    total = plus(total, parameters);
    std::string split = each == part.each ? "" : fmt::format(" / {} ranks", o.tensor_parallel);
    if (!split.empty() && part.split == PartSplit::kv_heads) {
      split = fmt::format(" x {} of {} KV heads",
                          heads_of_rank(model.shape.num_kv_heads, o.tensor_parallel),
                          model.shape.num_kv_heads);
    }
    lines->push_back({part.name,
                      count == 1 ? part.arithmetic + split
                                 : fmt::format("{} layers x {}{}", count, part.arithmetic, split),
                      parameters, "parameters"});
  }
  return sum;
}

std::int64_t bytes_line(const char* name, std::int64_t parameters, const StorageFormat& format,
                        std::vector<PlanLine>* lines) {
  const std::int64_t bytes = stored_bytes(format, parameters);
  const std::string each = format.elements == 1
                               ? fmt::format("{} B", format.bytes)
                               : fmt::format("{} B / {}", format.bytes, format.elements);
  lines->push_back({name,
                    fmt::format("{} parameters x {} ({})", grouped(parameters), each, format.name),
                    bytes, "B"});
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
  const std::int64_t own = plus(rank.plain, rank.experts);
  const bool by_parts = total > 0 && own < kMostAmount && ranks > 1;
  const std::int64_t bytes = by_parts ? share_of(all, own, total) : ceil_div(all, ranks);
  std::string share = ranks == 1 ? "" : fmt::format(" / {} ranks", ranks);
  if (by_parts) share = fmt::format(" x {} of {} parameters", grouped(own), grouped(total));
  lines->push_back(
      {"weights", fmt::format("{} B in the headers{}", grouped(all), share), bytes, "B"});
  return bytes;
}

}  // namespace

std::int64_t weights_of_rank(const ModelSpec& model, const PlanOptions& o, std::int32_t stage,
                             std::vector<PlanLine>* lines) {
  const RankParameters rank = count_rank(model, o, stage, lines);
  const std::int64_t ranks = std::int64_t{o.tensor_parallel} * o.pipeline_parallel;
  if (model.weights_bytes && !o.weights) return exact_weights(model, rank, ranks, lines);
  const StorageFormat& plain = o.weights ? *o.weights : format_or_bf16(model.weights_format);
  const bool apart = !o.weights && !model.expert_weights_format.empty();
  const StorageFormat& experts = apart ? format_or_bf16(model.expert_weights_format) : plain;
  if (model.parts.empty()) {
    return bytes_line("weights", ceil_div(model.parameters.value_or(0), ranks), plain, lines);
  }
  if (!apart) return bytes_line("weights", plus(rank.plain, rank.experts), plain, lines);
  return plus(bytes_line("weights", rank.plain, plain, lines),
              bytes_line("weights of the experts", rank.experts, experts, lines));
}

// torch-like engines hold, while a layer runs: the residual and its norm [T, hidden]; in attention
// Q, K, V and the result; in a gated MLP gate and up, and their product; with experts the same for
// each expert a token visits, and the visits' outputs; at the end a rank's logits in 16 bits, and
// all of them, gathered for sampling, in f32.
std::int64_t activations_of_rank(const ModelSpec& model, const PlanOptions& o,
                                 std::vector<PlanLine>* lines) {
  constexpr std::int64_t kBytes = 2;
  const TransformerShape& s = model.shape;
  const std::int64_t tokens = o.max_step_tokens;
  const std::int64_t tp = o.tensor_parallel;
  const std::int64_t residual = times(kBytes, 2, tokens, s.hidden);
  const std::int64_t dim =
      s.mla.kv_lora_rank > 0 ? std::max(s.mla.nope_dim, 128) + s.mla.rope_dim : s.head_dim;
  const std::int64_t q = ceil_div(times(s.num_q_heads, dim), tp);
  const std::int64_t kv = times(heads_of_rank(s.num_kv_heads, o.tensor_parallel), dim);
  const std::int64_t attention = times(kBytes, tokens, 2 * q + 2 * kv);
  const std::int64_t dense = ceil_div(s.ffn, tp);
  std::int64_t mlp = times(kBytes, tokens, 3, dense);
  std::string mlp_arithmetic = fmt::format("{} tokens x 3 x {} x 2 B", tokens, dense);
  if (s.moe.num_experts > 0) {
    const std::int64_t visited = ceil_div(s.moe.ffn, tp);
    const std::int64_t visits =
        times(kBytes, tokens, s.moe.experts_per_token, plus(times(3, visited), s.hidden));
    if (visits > mlp) {
      mlp = visits;
      mlp_arithmetic = fmt::format("{} tokens x {} experts x (3 x {} + {}) x 2 B", tokens,
                                   s.moe.experts_per_token, visited, s.hidden);
    }
  }
  const std::int64_t rows = std::min<std::int64_t>(tokens, max_sequences_of(o));
  const std::int64_t logits =
      times(rows, plus(times(kBytes, ceil_div(s.vocab, tp)), times(4, s.vocab)));
  lines->push_back({"residual and norm", fmt::format("2 x {} tokens x {} x 2 B", tokens, s.hidden),
                    residual, "B"});
  lines->push_back({"attention's intermediates",
                    fmt::format("{} tokens x (2 x {} + 2 x {}) x 2 B", tokens, q, kv), attention,
                    "B"});
  lines->push_back({"the MLP's intermediates", std::move(mlp_arithmetic), mlp, "B"});
  lines->push_back(
      {"logits",
       fmt::format("{} sequences x ({} x 2 B + {} x 4 B)", rows, ceil_div(s.vocab, tp), s.vocab),
       logits, "B"});
  const std::int64_t peak = plus(residual, std::max({attention, mlp, logits}));
  lines->push_back({"activations", "residual and norm + the largest of the three", peak, "B"});
  return peak;
}

}  // namespace kvarena::capacity
