#include "plan_command.hpp"

#include "json_output.hpp"
#include "option_types.hpp"
#include "quantity.hpp"

#include "kvarena/capacity/gpu_spec.hpp"
#include "kvarena/capacity/model_presets.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <cmath>

namespace kvarena::tools {
namespace {

using capacity::KeptTokens;
using capacity::MemoryPlan;
using capacity::ModelSpec;
using capacity::PlanOptions;

constexpr const char* kFooter = R"(
Examples:
  kvarena plan --model Llama-3.1-8B --gpu H100-SXM            what fits, and what to set
  kvarena plan --model Qwen2.5-0.5B --gpu L4 --context 2048   at another context
  kvarena plan --model ./model/config.json --gpu 24GiB        a model's own file, a size
  kvarena plan --model Llama-3.1-70B --gpu H200-SXM --tp 2 --kv-dtype fp8 --batch 64 --explain
  kvarena plan --model Llama-3.1-8B,Qwen3-8B --gpu L4,A10,L40S     a table of all of them
  kvarena plan --model Llama-3.1-8B --gpu H100-SXM --trace requests.jsonl --percentile 99
  kvarena plan --layers 24 --kv-heads 2 --q-heads 14 --head-dim 64 --parameters 494032768 --gpu L4

Exit code 3: what was asked for does not fit; the smallest changes that would are listed, and --json
is written all the same. docs/capacity.md has every formula.
)";

std::vector<std::string> format_names() {
  std::vector<std::string> names;
  for (const capacity::StorageFormat& format : capacity::storage_formats()) {
    names.emplace_back(format.name);
  }
  return names;
}

std::string list_text() {
  std::string text = "models\n";
  for (const std::string_view name : capacity::model_preset_names()) {
    text += fmt::format("  {}\n", name);
  }
  text += "GPUs\n";
  for (const capacity::GpuSpec& gpu : capacity::gpu_presets()) {
    text += fmt::format("  {:<14} {:>11}\n", gpu.name,
                        human_bytes(gpu.cuda_memory_bytes.value_or(gpu.memory_bytes)));
  }
  return text;
}

bool take_format(const Console& console, const char* option, const std::string& name,
                 std::optional<capacity::StorageFormat>* format) {
  if (name.empty()) return true;
  const capacity::StorageFormat* found = capacity::find_storage_format(name);
  if (found != nullptr) {
    *format = *found;
    return true;
  }
  console.error(fmt::format("{} {}", option, name),
                fmt::format("one of {}", fmt::join(format_names(), ", ")));
  return false;
}

}  // namespace

CLI::App* PlanCommand::declare(CLI::App& parent) {
  CLI::App* command = parent.add_subcommand(
      "plan", "How many requests fit into a GPU's memory, what limits them, what to set");
  command->footer(kFooter);
  command->add_option("--model", model_names_, "Built-in models or files, separated by commas")
      ->delimiter(',')
      ->type_name("NAME|FILE");
  numbers_.declare(*command);
  command
      ->add_option("--gpu", gpu_names_,
                   "GPUs by name, 'auto' or cuda:N for the card present, or sizes; default: auto")
      ->delimiter(',')
      ->type_name("NAME|SIZE");
  add_count_option(*command, "--context", options_.context_tokens, 1, (std::int64_t{1} << 31) - 1,
                   "Tokens of each sequence; without it the model's longest");
  add_count_option(*command, "--batch", options_.batch, 1, 1 << 24, "Sequences asked for")
      ->capture_default_str();
  command->add_option("--trace", trace_path_, "Also: how many requests of this trace fit")
      ->type_name("FILE");
  command->add_option("--percentile", percentile_, "Of the trace's lengths, beside the median")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  declare_engine(*command);
  command->add_flag("--explain", explain_, "Show the arithmetic with its numbers");
  command->add_flag("--list", list_, "Name all built-in models and GPUs");
  declare_json_option(*command, json_);
  return command;
}

void PlanCommand::declare_engine(CLI::App& command) {
  constexpr const char* kGroup = "Engine";
  command
      .add_option("--weights-dtype", weights_, "Weights as they are kept; default: as published")
      ->group(kGroup);
  command.add_option("--kv-dtype", kv_, "K and V as they are kept; default: the model's")
      ->group(kGroup);
  add_choice_option(command, "--kv-scales", scales_, {"none", "per_token_head"},
                    "Scales of 8-bit K and V that take memory of the pool")
      ->group(kGroup);
  add_choice_option(command, "--retention", kept_, {"full", "model"},
                    "Tokens kept: all, as kvarena does, or those in the layers' windows")
      ->group(kGroup);
  const auto count = [&](const char* name, auto& value, std::int64_t largest, const char* help) {
    add_count_option(command, name, value, 1, largest, help)->capture_default_str()->group(kGroup);
  };
  count("--block-size", options_.block_size_tokens, 65536, "Tokens a block");
  count("--tp", options_.tensor_parallel, 4096, "Ranks that split each layer");
  count("--pp", options_.pipeline_parallel, 4096, "Stages that split the layers");
  count("--dp", options_.data_parallel, 4096, "Replicas");
  count("--max-sequences", options_.max_sequences, 1 << 20, "Sequences of a step");
  count("--max-batched-tokens", options_.max_step_tokens, 1 << 24, "Tokens of a step");
  command.add_option("--utilization", utilization_, "Share of the memory that may be used")
      ->check(CLI::Range(0.001, 1.0))
      ->capture_default_str()
      ->group(kGroup);
  add_bytes_option(command, "--context-overhead", context_overhead_,
                   "CUDA context and kernels; default 536MiB")
      ->group(kGroup);
  add_bytes_option(command, "--graph-memory", graph_bytes_, "Captured CUDA graphs; default 0B")
      ->group(kGroup);
}

bool PlanCommand::take_formats(const Console& console) {
  options_.utilization_permille = static_cast<std::int32_t>(std::lround(utilization_ * 1000.0));
  options_.kv_scale = scales_ == "none" ? ScaleKind::none : ScaleKind::per_token_head;
  options_.kept = kept_ == "full" ? KeptTokens::full : KeptTokens::model;
  if (context_overhead_) options_.context_overhead_bytes = *context_overhead_;
  if (graph_bytes_) options_.graph_bytes = *graph_bytes_;
  return take_format(console, "--weights-dtype", weights_, &options_.weights) &&
         take_format(console, "--kv-dtype", kv_, &options_.kv);
}

std::optional<std::vector<ModelSpec>> PlanCommand::models(const Console& console,
                                                          ExitCode* code) const {
  std::vector<ModelSpec> models;
  *code = ExitCode::usage;
  if (numbers_.any() == !model_names_.empty()) {
    console.error(model_names_.empty() ? "no model to plan for" : "--model and numbers of a model",
                  "--model with built-in names or files, or the numbers of one (--layers, ...)",
                  "'kvarena plan --list' names all models and GPUs");
    return std::nullopt;
  }
  if (model_names_.empty()) {
    auto model = numbers_.model(console);
    if (!model) return std::nullopt;
    models.push_back(*std::move(model));
  }
  for (const std::string& name : model_names_) {
    auto model = find_model(console, name, code);
    if (!model) return std::nullopt;
    models.push_back(*std::move(model));
  }
  return models;
}

PlannedTrace PlanCommand::plan_trace(const ModelSpec& model, const PlanOptions& options) const {
  PlannedTrace trace{.requests = lengths_->requests, .rows = {}};
  for (const double percentile : {50.0, percentile_}) {
    PlanOptions at = options;
    at.context_tokens = lengths_->at_percentile(percentile);
    const Result<MemoryPlan> made = capacity::plan(model, at);
    const bool runs = made && made->batch_limited_by != capacity::PlanLimit::max_position;
    trace.rows.push_back({percentile, at.context_tokens, runs ? made->max_batch : 0});
  }
  return trace;
}

std::optional<PlannedCase> PlanCommand::plan_case(const Console& console, const ModelSpec& model,
                                                  const PlannedMemory& memory,
                                                  ExitCode* code) const {
  PlannedCase planned;
  planned.model = model;
  planned.memory = memory;
  planned.options = options_;
  planned.options.memory_bytes = memory.bytes;
  if (memory.num_sms > 0) {
    planned.options.target = {.kind = DeviceKind::cuda, .num_sms = memory.num_sms};
  }
  Result<MemoryPlan> made = capacity::plan(model, planned.options);
  if (!made) {
    *code = ExitCode::usage;
    const bool unknown = made.status().code == StatusCode::unsupported;
    if (!unknown && made.status().resource == Resource::sequence_length) {
      console.error(fmt::format("{}: its longest context is not known", model.name),
                    "--context, the tokens of each sequence", "");
      return std::nullopt;
    }
    console.error(fmt::format("{} cannot be planned: {}", model.name,
                              unknown ? "neither its parameters nor its weights are known"
                                      : describe(made.status())),
                  unknown ? "a file with its weights' headers (safetensors, GGUF), or --parameters"
                          : "numbers within their ranges",
                  unknown ? model.parameters_source : "");
    return std::nullopt;
  }
  planned.plan = *std::move(made);
  planned.cache = capacity::cache_options(model, planned.options, planned.plan).status();
  planned.changes = capacity::changes_that_fit(model, planned.options);
  if (lengths_) planned.trace = plan_trace(model, planned.options);
  return planned;
}

ExitCode PlanCommand::run(const Console& console) {
  if (list_) {
    console.out << list_text();
    return ExitCode::ok;
  }
  if (!take_formats(console)) return ExitCode::usage;
  ExitCode code = ExitCode::usage;
  const auto chosen = models(console, &code);
  if (!chosen) return code;
  if (gpu_names_.empty()) gpu_names_.emplace_back("auto");
  std::vector<PlannedMemory> memories;
  for (const std::string& name : gpu_names_) {
    auto memory = find_memory(console, name, &code);
    if (!memory) return code;
    memories.push_back(*std::move(memory));
  }
  if (!trace_path_.empty()) {
    lengths_ = read_lengths(console, trace_path_, &code);
    if (!lengths_) return code;
  }
  std::vector<PlannedCase> cases;
  for (const ModelSpec& model : *chosen) {
    for (const PlannedMemory& memory : memories) {
      auto planned = plan_case(console, model, memory, &code);
      if (!planned) return code;
      cases.push_back(*std::move(planned));
    }
  }
  return report(console, cases);
}

ExitCode PlanCommand::report(const Console& console, const std::vector<PlannedCase>& cases) const {
  std::ostream& text = json_on_stdout(json_) ? console.err : console.out;
  const bool one = cases.size() == 1;
  if (!json_on_stdout(json_) || !console.quiet) {
    if (!one) text << comparison_of(cases);
    for (const PlannedCase& planned : cases) {
      if (one) text << text_of(planned);
      if (explain_) text << explanation_of(planned);
    }
  }
  nlohmann::ordered_json json;
  bool any_fits = false;
  for (const PlannedCase& planned : cases) {
    any_fits |= planned.plan.fits;
    if (one) {
      json = json_of(planned, explain_);
    } else {
      json["plans"].push_back(json_of(planned, explain_));
    }
  }
  const ExitCode written = write_json(console, json_, json);
  return any_fits ? written : ExitCode::does_not_fit;
}

}  // namespace kvarena::tools
