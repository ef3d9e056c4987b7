#include "tools/plan/plan_case.hpp"

#include "tools/option_values.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvarena::tools {
namespace {

constexpr const char* kScalesOfInt8 = "a KvCache has no scales of int8: --kv-scales none";

using capacity::ModelSpec;
using capacity::PlanOptions;

/// Numbers of ranks that the heads can be split over: "1, 2, 4 or 8".
std::string rank_choices(const ModelSpec& model) {
  constexpr std::size_t kMost = 16;
  std::vector<std::int32_t> ranks = capacity::tensor_parallel_choices(model);
  if (ranks.size() == 1) return "1";
  if (ranks.size() > kMost)
    return fmt::format("{}, ...", fmt::join(ranks.begin(), ranks.begin() + kMost, ", "));
  return fmt::format("{} or {}", fmt::join(ranks.begin(), ranks.end() - 1, ", "), ranks.back());
}

/// What plan() would refuse by a number alone, in the words of the command line.
std::optional<Finding> refusal_of(const PlannedCase& p) {
  const PlanOptions& o = p.options;
  const capacity::TransformerShape& shape = p.model.shape;
  if (shape.num_kv_heads > 0 && shape.num_q_heads % shape.num_kv_heads != 0) {
    return Finding{.found = fmt::format("{} query heads over {} KV heads", shape.num_q_heads,
                                        shape.num_kv_heads),
                   .expected = "a multiple of the KV heads",
                   .advice = p.model.source == "numbers" ? "change --q-heads or --kv-heads"
                                                         : "look at the model's file"};
  }
  if (o.context_tokens == 0 && shape.max_position == 0) {
    return Finding{.found = "no --context, and the model's longest is not known",
                   .expected = "--context, or --max-position with a model's numbers"};
  }
  if (o.pipeline_parallel > shape.num_layers) {
    return Finding{.found = fmt::format("--pp {}: the model has {} layers", o.pipeline_parallel,
                                        shape.num_layers),
                   .expected = "at least a layer for each stage"};
  }
  const capacity::StorageFormat* kv = capacity::find_storage_format(kv_format_of(p));
  const bool has_8_bits = kv != nullptr && kv->elements == 1 && kv->bytes == 1;
  if (o.kv_scale != ScaleKind::none && !has_8_bits) {
    return Finding{.found = fmt::format("--kv-scales per_token_head for {}", kv_format_of(p)),
                   .expected = "--kv-dtype with a type of 8 bits, such as fp8_e4m3 or int8"};
  }
  return std::nullopt;
}

Finding refusal_of(const PlannedCase& p, const Status& status) {
  const std::int32_t block_size = p.options.block_size_tokens;
  if (status.option == Option::limit_tokens && status.code == StatusCode::invalid_argument) {
    return {.found = fmt::format("chunks of {} tokens are no whole blocks of {} (--block-size)",
                                 status.subject, block_size),
            .expected = fmt::format("a --block-size that divides {}", status.subject)};
  }
  if (status.resource == Resource::block_bytes && status.code == StatusCode::invalid_argument) {
    return {
        .found = fmt::format("a block of {} tokens is too large for the pages that the groups of "
                             "layers share: {} B for some layers of one group",
                             block_size, grouped(static_cast<std::int64_t>(status.subject))),
        .expected = fmt::format("at most {} B, so a smaller --block-size",
                                grouped(static_cast<std::int64_t>(status.available)))};
  }
  if (status.code != StatusCode::unsupported) {
    return {.found = describe(status), .expected = "numbers within their ranges"};
  }
  if (status.resource == Resource::num_q_heads) {
    const capacity::TransformerShape& shape = p.model.shape;
    return {.found = fmt::format("--tp {}: {} query heads over {} KV heads cannot be split over {} "
                                 "ranks",
                                 p.options.tensor_parallel, shape.num_q_heads, shape.num_kv_heads,
                                 p.options.tensor_parallel),
            .expected = fmt::format("--tp with {}", rank_choices(p.model))};
  }
  const std::string_view name = kv_format_of(p);
  const capacity::StorageFormat* kv = capacity::find_storage_format(name);
  return {.found = fmt::format("K and V as {}: blocks of {} elements do not divide heads of {}",
                               name, kv == nullptr ? 0 : kv->elements, status.subject),
          .expected =
              "--kv-dtype with an element, or blocks of 32 at most, such as fp8_e4m3, q8_0 "
              "or q4_0"};
}

/// The tokens of a prompt that a prefix cache with this hit rate has: whole blocks, and one token
/// of the prompt is always computed.
std::int64_t cached_tokens_of(std::int64_t prompt_tokens, double hit_rate,
                              std::int64_t block_size) {
  const auto found = static_cast<std::int64_t>(hit_rate * static_cast<double>(prompt_tokens));
  return std::min(found, prompt_tokens - 1) / block_size * block_size;
}

/// Whether a hit rate says what a request takes: where a prefix with windows, chunks or states is
/// found, and what is held for it, follows from more than a share of tokens.
bool shares_prefixes(const PlannedCase& p) {
  return std::ranges::all_of(p.plan.groups, [](const capacity::GroupPlan& group) {
    return group.memory.kind == capacity::CacheKind::full ||
           group.memory.kind == capacity::CacheKind::latent;
  });
}

}  // namespace

PlannedCase plan_case(const ModelSpec& model, const PlannedMemory& memory,
                      const PlanOptions& options) {
  PlannedCase planned;
  planned.model = model;
  planned.memory = memory;
  planned.options = options;
  planned.options.memory_bytes = memory.bytes;
  if (memory.num_sms > 0) {
    planned.options.target = {.kind = DeviceKind::cuda, .num_sms = memory.num_sms};
  }
  planned.refusal = refusal_of(planned);
  if (planned.refusal) return planned;
  Result<capacity::MemoryPlan> made = capacity::plan(model, planned.options);
  if (!made) {
    planned.refusal = refusal_of(planned, made.status());
    return planned;
  }
  planned.plan = *std::move(made);
  Result<capacity::PlannedCache> settings =
      capacity::cache_options(model, planned.options, planned.plan);
  planned.cache = settings.status();
  if (settings) planned.settings = std::move(*settings);
  planned.changes = capacity::changes_that_fit(model, planned.options);
  return planned;
}

std::int64_t PlannedTrace::cached_tokens() const noexcept {
  return std::llround(hit_rate.value_or(0.0) * static_cast<double>(prompt_tokens));
}

PlannedTrace plan_trace(const PlannedCase& planned, const TraceLengths& lengths, double percentile,
                        std::optional<double> given_hit_rate) {
  const bool counts = shares_prefixes(planned);
  const std::optional<double> hit_rate = counts ? given_hit_rate : std::nullopt;
  PlannedTrace trace{.requests = lengths.requests,
                     .prompt_tokens = lengths.prompt_tokens,
                     .hit_rate = hit_rate,
                     .rows = {},
                     .ignores_hit_rate = given_hit_rate.has_value() && !counts};
  for (const double percent : {50.0, percentile}) {
    const TraceLengths::Length& length = lengths.at_percentile(percent);
    PlannedTrace::Row row{.percentile = percent, .tokens = length.tokens};
    PlanOptions at = planned.options;
    at.context_tokens = length.tokens;
    const Result<capacity::MemoryPlan> made = capacity::plan(planned.model, at);
    if (made) {
      row.batch = row.batch_sharing = made->max_batch;
      row.limited_by = made->batch_limited_by;
    }
    row.cached_tokens = cached_tokens_of(length.prompt_tokens, hit_rate.value_or(0.0),
                                         planned.options.block_size_tokens);
    at.context_tokens = length.tokens - row.cached_tokens;
    if (row.batch > 0 && row.cached_tokens > 0) {
      const Result<capacity::MemoryPlan> sharing = capacity::plan(planned.model, at);
      if (sharing) row.batch_sharing = sharing->max_batch;
    }
    trace.rows.push_back(row);
  }
  return trace;
}

std::string weights_types_of(const PlannedCase& p) {
  if (p.options.weights && !p.model.weights_stated) return std::string(p.options.weights->name);
  std::string types;
  for (const capacity::TypeTotal& total : p.model.weights_by_dtype) {
    const capacity::StorageFormat* format = capacity::find_storage_format(total.type);
    if (!types.empty()) types += " + ";
    types += format != nullptr ? format->name : std::string_view(total.type);
  }
  if (!types.empty()) return types;
  types = p.model.weights_format;
  if (!p.model.expert_weights_format.empty()) types += ", experts " + p.model.expert_weights_format;
  if (!p.model.ends_weights_format.empty()) types += ", ends " + p.model.ends_weights_format;
  return types;
}

std::string_view kv_format_of(const PlannedCase& p) {
  return p.options.kv ? p.options.kv->name : std::string_view(p.model.kv_format);
}

std::vector<capacity::PlanLine> lines_of(const PlannedCase& p) {
  std::vector<capacity::PlanLine> lines;
  if (!p.options.weights) {
    for (const capacity::TypeTotal& total : p.model.weights_by_dtype) {
      lines.push_back({fmt::format("weights in {}", total.type),
                       fmt::format("{} tensors of {} elements in the headers",
                                   grouped(total.tensors), grouped(total.elements)),
                       total.bytes, "B"});
    }
  }
  lines.insert(lines.end(), p.plan.lines.begin(), p.plan.lines.end());
  return lines;
}

std::string_view name_of(capacity::KeptTokens kept) {
  return kept == capacity::KeptTokens::full ? "full" : "model";
}

std::string weights_advice_of(const PlannedCase& p) {
  return fmt::format("{}: give --weights-bytes, --parameters, or a folder with the weights",
                     p.model.parameters_source);
}

std::string option_of(const capacity::PlanChange& change) {
  const PlanOptions& o = change.options;
  switch (change.field) {
    using enum capacity::PlanField;
    case context_tokens: return fmt::format("--context {}", o.context_tokens);
    case batch: return fmt::format("--batch {}", o.batch);
    case max_step_tokens: return fmt::format("--max-batched-tokens {}", o.max_step_tokens);
    case max_sequences: return fmt::format("--max-sequences {}", o.max_sequences);
    case utilization_permille:
      return fmt::format("--utilization {:.3g}", o.utilization_permille / 1000.0);
    case kept: return fmt::format("--retention {}", name_of(o.kept));
    case kv: return fmt::format("--kv-dtype {}", o.kv->name);
    case weights: return fmt::format("--weights-dtype {}", o.weights->name);
    case tensor_parallel: return fmt::format("--tp {}", o.tensor_parallel);
    case pipeline_parallel: return fmt::format("--pp {}", o.pipeline_parallel);
  }
  return {};
}

std::string settings_refusal_of(const PlannedCase& p) {
  if (!p.plan.fits) return "what was asked for does not fit";
  if (!p.plan.weights_known) return "the weights are not known";
  if (p.memory.num_sms == 0) return "kvarena runs on NVIDIA GPUs and on the CPU";
  if (p.cache) return "";
  if (p.cache.code != StatusCode::unsupported) return describe(p.cache);
  switch (p.cache.option) {
    case Option::kind: return "a KvCache has no pool for recurrent states alone";
    case Option::index_dim: return "a KvCache has no index of more than 128 elements";
    case Option::scale: return kScalesOfInt8;
    default: break;
  }
  switch (p.cache.resource) {
    case Resource::dtype:
      return fmt::format("a KvCache keeps K and V as bf16, f16, f32 or fp8_e4m3 yet, not as {}",
                         kv_format_of(p));
    case Resource::scale: return kScalesOfInt8;
    default: return describe(p.cache);
  }
}

std::vector<std::string> notes_of(const PlannedCase& p) {
  std::vector<std::string> notes;
  if (p.plan.weights_known && !p.plan.weights_exact) {
    notes.push_back(
        p.model.parameters
            ? fmt::format("weights are an estimate: {}; norms and scales, and with --weights-dtype "
                          "embeddings, often take more",
                          weights_types_of(p))
        : p.model.parameters_source == "--parameters"
            ? "weights are estimated from --parameters"
            : fmt::format("weights are estimated: {}", p.model.parameters_source));
  }
  if (p.model.weights_stated && p.options.weights) {
    notes.emplace_back("--weights-dtype is not used: the weights are those of --weights-bytes");
  }
  notes.insert(notes.end(), p.model.notes.begin(), p.model.notes.end());
  if (p.trace && p.trace->ignores_hit_rate) {
    notes.emplace_back(
        p.options.kept == capacity::KeptTokens::model
            ? "--hit-rate is not used: it does not say what windows, chunks or states of a prefix "
              "take; for windows and chunks see --retention full"
            : "--hit-rate is not used: it does not say what states of a prefix take");
  }
  if (p.memory.from_driver) {
    notes.emplace_back("memory is nvidia-smi's figure; CUDA gives a process up to 2 % less");
  }
  return notes;
}

}  // namespace kvarena::tools
