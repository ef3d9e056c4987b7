#include "tools/command_line.hpp"
#include "tools/option_values.hpp"
#include "tools/plan/plan_case.hpp"
#include "tools/result_file.hpp"

#include "kvarena/capacity/gpu_spec.hpp"
#include "kvarena/capacity/model_presets.hpp"

#include "base/excerpt.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

namespace kvarena::tools {
namespace {

using capacity::KeptTokens;
using capacity::ModelSpec;

constexpr const char* kPlanFooter = R"(
Examples:
  kvarena plan --model Llama-3.1-8B --gpu H100-SXM            what fits, and what to set
  kvarena plan --model Qwen2.5-0.5B --gpu L4 --context 2048   at another context
  kvarena plan --model ./model/config.json --gpu 24GiB        a model's own file, a size
  kvarena plan --model Llama-3.1-70B --gpu H200-SXM --tp 2 --kv-dtype fp8 --batch 64 --explain
  kvarena plan --model Llama-3.1-8B,Qwen3-8B --gpu L4,A10,L40S     a table of all of them
  kvarena plan --model Llama-3.1-8B --gpu H100-SXM --trace requests.jsonl --percentile 99
  kvarena plan --layers 24 --kv-heads 2 --q-heads 14 --head-dim 64 --ffn 4864 --vocab 151936 --tied
      --context 2048 --gpu L4                                 a model by its numbers
  kvarena plan --model GLM-5 --parameters 744000000000 --gpu H200-SXM --tp 16

Exit code 3: what was asked for does not fit; the smallest changes that would are listed, and --json
is written all the same. docs/reference/capacity.md has every formula.
)";

std::vector<std::string> format_names() {
  std::vector<std::string> names;
  for (const capacity::StorageFormat& format : capacity::storage_formats()) {
    names.emplace_back(format.name);
  }
  return names;
}

/// The most thousandths that are no more than `share`, 0.001 .. 1: of memory that may be used, none
/// is added by rounding.
std::int32_t permille_of(double share) {
  const auto nearest = static_cast<std::int32_t>(std::lround(share * 1000.0));
  return nearest / 1000.0 > share ? nearest - 1 : nearest;
}

Finding format_finding(const std::string& name) {
  if (capacity::find_storage_format(name) != nullptr) return {};
  return {.found = fmt::format("\"{}\" is no type", printable(name)),
          .expected = fmt::format("one of {}", fmt::join(format_names(), ", "))};
}

/// The elements of `lists`, of which `finding_of` finds nothing wrong.
std::vector<std::string> names_in(const std::string& option, const std::vector<std::string>& lists,
                                  Finding (*finding_of)(const std::string&)) {
  std::vector<std::string> names = list_elements(option, lists);
  for (const std::string& name : names) {
    const Finding why = finding_of(name);
    if (!why.is_empty()) throw CLI::ValidationError(option, refusal_text(why));
  }
  return names;
}

class PlanCommand {
 public:
  CLI::App* declare(CLI::App& parent);
  ExitCode run(const Console& console);

 private:
  void declare_engine(CLI::App& command);
  void complete();
  std::optional<double> hit_rate() const {
    return hit_rate_option_->count() > 0 ? std::optional(hit_rate_) : std::nullopt;
  }
  std::optional<std::vector<capacity::ModelSpec>> models(PlanRefusal& refusal) const;
  std::optional<std::vector<PlannedCase>> cases(PlanRefusal& refusal);
  ExitCode list(const Console& console) const;
  ExitCode report(const Console& console, const std::vector<PlannedCase>& cases) const;

  capacity::PlanOptions options_;
  std::vector<std::string> model_names_;
  std::vector<std::string> gpu_names_;
  ModelNumbers numbers_;
  std::string scales_ = "none";
  std::string kept_ = "model";
  double utilization_ = 0.9;
  std::optional<std::int64_t> context_overhead_;
  std::optional<std::int64_t> graph_bytes_;
  std::string trace_path_;
  std::string trace_format_ = "auto";
  double percentile_ = 95.0;
  double hit_rate_ = 0.0;
  const CLI::Option* hit_rate_option_ = nullptr;
  std::optional<TraceLengths> lengths_;
  std::string json_;
  bool explain_ = false;
  bool list_ = false;
};

CLI::App* PlanCommand::declare(CLI::App& parent) {
  CLI::App* command = parent.add_subcommand(
      "plan", "How many requests fit into a GPU's memory, what limits them, what to set");
  command->footer(kPlanFooter);
  using Texts = std::vector<std::string>;
  CLI::Option* model = command->add_option_function<Texts>(
      "--model",
      [this](const Texts& texts) { model_names_ = names_in("--model", texts, model_finding); },
      "Built-in models or files, separated by commas");
  model->type_name("NAME|FILE");
  numbers_.declare(*command, *model);
  command
      ->add_option_function<Texts>(
          "--gpu",
          [this](const Texts& texts) { gpu_names_ = names_in("--gpu", texts, memory_finding); },
          "GPUs by name, 'auto' or cuda:N for the card present, or sizes; default: auto")
      ->type_name("NAME|SIZE");
  add_count_option(*command, "--context", options_.context_tokens, 1, (std::int64_t{1} << 31) - 1,
                   "Tokens of each sequence; without it the model's longest");
  add_count_option(*command, "--batch", options_.batch, 1, 1 << 24, "Sequences asked for");
  command->add_option("--trace", trace_path_, "Also: how many requests of this trace fit")
      ->type_name("FILE");
  add_choice_option(*command, "--format", trace_format_, trace::trace_format_names(),
                    "The trace's format");
  add_number_option(*command, "--percentile", percentile_, 0.0, 100.0,
                    "Of the trace's lengths, beside the median");
  hit_rate_option_ =
      add_number_option(*command, "--hit-rate", hit_rate_, 0.0, 1.0,
                        "Share of the trace's prompt tokens that a prefix cache has, such as the "
                        "token_hit_rate of 'kvarena replay --pure-cache'");
  declare_engine(*command);
  command->add_flag("--explain", explain_, "Show the arithmetic with its numbers");
  command->add_flag("--list", list_, "Name all built-in models and GPUs");
  declare_json_option(*command, json_);
  return command;
}

void PlanCommand::declare_engine(CLI::App& command) {
  const OptionGroup group(command, "Engine");
  const auto format = [&](const char* name, std::optional<capacity::StorageFormat>& value,
                          const char* help) {
    const auto take = [&value](const std::string& text) {
      value = *capacity::find_storage_format(text);
    };
    command.add_option_function<std::string>(name, take, help)->check([](const std::string& text) {
      return refusal_text(format_finding(text));
    });
  };
  format("--weights-dtype", options_.weights, "Weights as they are kept; default: as published");
  format("--kv-dtype", options_.kv, "K and V as they are kept; default: the model's");
  add_choice_option(command, "--kv-scales", scales_, {"none", "per_token_head"},
                    "Scales of 8-bit K and V that take memory of the pool");
  add_choice_option(command, "--retention", kept_, {"full", "model"},
                    "Tokens kept: those that the model's layers read, or all");
  const auto count = [&](const char* name, auto& value, std::int64_t largest, const char* help) {
    add_count_option(command, name, value, 1, largest, help);
  };
  count("--block-size", options_.block_size_tokens, 65536, "Tokens a block");
  count("--tp", options_.tensor_parallel, 4096, "Ranks that split each layer");
  count("--pp", options_.pipeline_parallel, 4096, "Stages that split the layers");
  count("--dp", options_.data_parallel, 4096, "Replicas");
  count("--max-sequences", options_.max_sequences, 1 << 20, "Sequences of a step");
  count("--max-batched-tokens", options_.max_step_tokens, 1 << 24, "Tokens of a step");
  add_number_option(command, "--utilization", utilization_, 0.001, 1.0,
                    "Share of the memory that may be used, in whole thousandths");
  add_bytes_option(command, "--context-overhead", context_overhead_, "CUDA context and kernels", 0)
      ->default_str("536MiB");
  add_bytes_option(command, "--graph-memory", graph_bytes_, "Captured CUDA graphs", 0)
      ->default_str("0B");
}

void PlanCommand::complete() {
  options_.utilization_permille = permille_of(utilization_);
  options_.kv_scale = scales_ == "none" ? ScaleKind::none : ScaleKind::per_token_head;
  options_.kept = kept_ == "full" ? KeptTokens::full : KeptTokens::model;
  if (context_overhead_) options_.context_overhead_bytes = *context_overhead_;
  if (graph_bytes_) options_.graph_bytes = *graph_bytes_;
}

std::optional<std::vector<ModelSpec>> PlanCommand::models(PlanRefusal& refusal) const {
  std::vector<ModelSpec> models;
  if (model_names_.empty() && !numbers_.any()) {
    refusal.what = {
        .found = "no model to plan for",
        .expected = "--model with built-in names or files, or the numbers of one (--layers, ...)",
        .advice = "'kvarena plan --list' names all models and GPUs"};
    return std::nullopt;
  }
  if (model_names_.empty()) {
    auto model = numbers_.model(refusal.what);
    if (!model) return std::nullopt;
    models.push_back(*std::move(model));
  }
  for (const std::string& name : model_names_) {
    auto model = find_model(name, refusal);
    if (!model) {
      refusal.what.found = "--model " + refusal.what.found;
      return std::nullopt;
    }
    numbers_.add_weights(*model);
    models.push_back(*std::move(model));
  }
  return models;
}

std::optional<std::vector<PlannedCase>> PlanCommand::cases(PlanRefusal& refusal) {
  complete();
  const auto chosen = models(refusal);
  if (!chosen) return std::nullopt;
  if (gpu_names_.empty()) gpu_names_.emplace_back("auto");
  std::vector<PlannedMemory> memories;
  for (const std::string& name : gpu_names_) {
    auto memory = find_memory(name, refusal);
    if (!memory) return std::nullopt;
    memories.push_back(*std::move(memory));
  }
  if (hit_rate_ > 0.0 && trace_path_.empty()) {
    refusal.what = {.found = "--hit-rate without --trace",
                    .expected = "--trace with the requests whose prompts it is a share of"};
    return std::nullopt;
  }
  if (!trace_path_.empty()) {
    lengths_ = read_lengths({.path = trace_path_, .format = *trace::trace_format_of(trace_format_)},
                            refusal);
    if (!lengths_) return std::nullopt;
  }
  std::vector<PlannedCase> cases;
  for (const ModelSpec& model : *chosen) {
    for (const PlannedMemory& memory : memories) {
      cases.push_back(plan_case(model, memory, options_));
      PlannedCase& planned = cases.back();
      if (lengths_ && !planned.refusal) {
        planned.trace = plan_trace(planned, *lengths_, percentile_, hit_rate());
      }
    }
  }
  return cases;
}

ExitCode PlanCommand::run(const Console& console) {
  if (list_) return list(console);
  PlanRefusal refusal;
  const auto planned = cases(refusal);
  if (!planned) {
    console.error(refusal.what);
    return refusal.code;
  }
  const PlannedCase& first = planned->front();
  if (planned->size() > 1 || !first.refusal) return report(console, *planned);
  Finding named = *first.refusal;
  named.found = fmt::format("{}: {}", first.model.name, named.found);
  console.error(named);
  return ExitCode::usage;
}

ExitCode PlanCommand::list(const Console& console) const {
  nlohmann::ordered_json json{{"models", capacity::model_preset_names()},
                              {"gpus", nlohmann::ordered_json::array()}};
  std::string text =
      fmt::format("models\n  {}\nGPUs\n", fmt::join(capacity::model_preset_names(), "\n  "));
  for (const capacity::GpuSpec& gpu : capacity::gpu_presets()) {
    const std::int64_t bytes = gpu.cuda_memory_bytes.value_or(gpu.memory_bytes);
    text += fmt::format("  {:<14} {:>11}\n", gpu.name, human_bytes(bytes));
    json["gpus"].push_back({{"name", gpu.name},
                            {"vendor", gpu.vendor},
                            {"memory_bytes", bytes},
                            {"bandwidth_bytes_per_second", gpu.bandwidth_bytes_per_second},
                            {"bf16_flops_per_second", gpu.bf16_flops_per_second},
                            {"multiprocessors", gpu.num_sms},
                            {"memory_source", gpu.memory_source},
                            {"bandwidth_source", gpu.bandwidth_source},
                            {"flops_source", gpu.flops_source}});
  }
  return print_result(console, json_, text, json);
}

ExitCode PlanCommand::report(const Console& console, const std::vector<PlannedCase>& cases) const {
  std::ostream& text = json_on_stdout(json_) ? console.err : console.out;
  const bool one = cases.size() == 1;
  if (!json_on_stdout(json_) || !console.quiet) {
    if (!one) text << comparison_of(cases);
    for (const PlannedCase& planned : cases) {
      if (one) text << text_of(planned);
      if (explain_ && !planned.refusal) text << explanation_of(planned);
    }
  }
  nlohmann::ordered_json json;
  for (const PlannedCase& planned : cases) {
    if (one) {
      json = json_of(planned, explain_);
    } else {
      json["plans"].push_back(json_of(planned, explain_));
    }
  }
  const ExitCode written = write_json(console, json_, json);
  if (written != ExitCode::ok) return written;
  if (std::ranges::any_of(cases, [](const PlannedCase& p) { return p.plan.fits; })) {
    return ExitCode::ok;
  }
  const bool any_planned =
      std::ranges::any_of(cases, [](const PlannedCase& p) { return !p.refusal; });
  return any_planned ? ExitCode::does_not_fit : ExitCode::usage;
}

}  // namespace

Command plan_command(CLI::App& parent) { return make_command<PlanCommand>(parent); }

}  // namespace kvarena::tools
