#include "tools/plan/plan_inputs.hpp"

#include "tools/device_option.hpp"
#include "tools/nearest_name.hpp"
#include "tools/option_values.hpp"

#include "base/excerpt.hpp"
#include "capacity/parameters.hpp"

#include "kvarena/capacity/gpu_spec.hpp"
#include "kvarena/capacity/model_files.hpp"
#include "kvarena/capacity/model_presets.hpp"
#include "kvarena/device/cuda_device.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <system_error>

namespace kvarena::tools {
namespace {

using capacity::ModelSpec;

constexpr std::int64_t kLeastMemory = std::int64_t{1} << 20;

std::optional<PlannedMemory> memory_of_card(const DeviceChoice& choice, PlanRefusal& refusal) {
  const CudaDeviceList list = list_devices();
  for (const CudaDeviceInfo& gpu : list.devices) {
    if (gpu.ordinal != choice.ordinal || !gpu.status) continue;
    return PlannedMemory{.name = fmt::format("cuda:{} ({})", gpu.ordinal, gpu.name),
                         .bytes = static_cast<std::int64_t>(gpu.memory.total_bytes),
                         .num_sms = gpu.num_sms};
  }
  refusal = {
      .what = {.found = list.status
                            ? fmt::format("there is no GPU cuda:{} that works", choice.ordinal)
                            : fmt::format("there is no GPU to plan for: {}", list.error),
               .expected = fmt::format("--gpu with a size such as 80GiB, or {}", expected_gpus("")),
               .advice = "'kvarena devices' lists what is there"},
      .code = ExitCode::environment};
  return std::nullopt;
}

/// Whether something of that name is there, though it may not be readable: a broken link, a loop of
/// links, a folder that may not be entered.
bool is_there(const std::string& path) {
  std::error_code error;
  const auto type = std::filesystem::symlink_status(path, error).type();
  return type != std::filesystem::file_type::not_found && error != std::errc::filename_too_long;
}

}  // namespace

std::optional<PlannedMemory> find_memory(const std::string& text, PlanRefusal& refusal) {
  if (const capacity::GpuSpec* gpu = capacity::find_gpu(gpu_name_of(text))) {
    const bool is_nvidia = gpu->vendor == "NVIDIA";
    return PlannedMemory{.name = gpu->name,
                         .bytes = gpu->cuda_memory_bytes.value_or(gpu->memory_bytes),
                         .num_sms = is_nvidia ? gpu->num_sms : 0,
                         .from_driver = is_nvidia && !gpu->cuda_memory_bytes};
  }
  const auto choice = parse_device(text);
  if (choice && choice->kind != DeviceChoice::Kind::cpu) return memory_of_card(*choice, refusal);
  const auto bytes = parse_bytes(text);
  if (bytes && *bytes >= kLeastMemory) {
    return PlannedMemory{.name = human_bytes(*bytes), .bytes = *bytes};
  }
  refusal.what = memory_finding(text);
  return std::nullopt;
}

Finding memory_finding(const std::string& text) {
  const Finding unknown = gpu_finding(text);
  const auto choice = parse_device(text);
  const bool is_card = choice && choice->kind != DeviceChoice::Kind::cpu;
  const auto bytes = parse_bytes(text);
  if (unknown.is_empty() || is_card || (bytes && *bytes >= kLeastMemory)) return {};
  return {.found = bytes ? fmt::format("{} is {}, less than 1 MiB", text, human_bytes(*bytes))
                         : unknown.found,
          .expected = fmt::format("{}; auto or cuda:N for the card present; or a size with its "
                                  "unit (MiB, GiB, TiB; MB, GB, TB), such as 80GiB",
                                  unknown.expected)};
}

std::optional<ModelSpec> find_model(const std::string& text, PlanRefusal& refusal) {
  if (auto preset = capacity::find_model_preset(text)) return preset;
  if (is_there(text)) {
    std::string why;
    auto read = capacity::read_model(text, why);
    if (read) return *std::move(read);
    refusal = {.what = {.found = why}, .code = ExitCode::bad_input};
    return std::nullopt;
  }
  const std::string name = model_name_of(text, capacity::model_preset_names());
  if (auto preset = capacity::find_model_preset(name)) return preset;
  refusal.what = model_finding(text);
  return std::nullopt;
}

Finding model_finding(const std::string& text) {
  const std::string name = model_name_of(text, capacity::model_preset_names());
  const auto is_preset = [](const std::string& one) {
    return capacity::find_model_preset(one).has_value();
  };
  if (is_preset(text) || is_there(text) || is_preset(name)) return {};
  return {.found = fmt::format("no built-in model is called \"{}\", and no file", printable(text)),
          .expected = similar_names(name, capacity::model_preset_names()) +
                      "a built-in name, or a file or folder of a model",
          .advice = "'kvarena plan --list' names all models and GPUs"};
}

void ModelNumbers::declare(CLI::App& command, CLI::Option& model) {
  const OptionGroup group(command, "A model by numbers");
  const auto of_layers = [&](const char* name, auto& value, std::int64_t largest,
                             const char* help) {
    add_count_option(command, name, value, 1, largest, help)->excludes(&model);
  };
  of_layers("--layers", shape_.num_layers, 4096, "Layers");
  of_layers("--kv-heads", shape_.num_kv_heads, 4096, "KV heads");
  of_layers("--q-heads", shape_.num_q_heads, 65536,
            "Query heads, a multiple of the KV heads; without it as many");
  of_layers("--head-dim", shape_.head_dim, 4096, "Elements a head");
  of_layers("--hidden", shape_.hidden, 1 << 20,
            "Elements of the residual stream; heads x head dim");
  of_layers("--ffn", shape_.ffn, 1 << 24, "Intermediate elements of the gated MLP");
  of_layers("--vocab", shape_.vocab, std::int64_t{1} << 31, "Rows of the embedding");
  command.add_flag("--tied", shape_.tied_embeddings, "The output head is the embedding")
      ->excludes(&model);
  of_layers("--max-position", shape_.max_position, std::int64_t{1} << 31, "The longest context");
  of_layers("--window", window_, 1 << 30, "Sliding window of every layer, tokens");
  add_count_option(command, "--parameters", parameters_, 1, std::int64_t{1} << 50,
                   "All parameters, where numbers, --model's file or preset do not tell them");
  add_bytes_option(command, "--weights-bytes", weights_bytes_,
                   "All weights of all ranks together, whatever else tells them");
}

bool ModelNumbers::any() const noexcept {
  return shape_.num_layers != 0 || shape_.num_kv_heads != 0 || shape_.head_dim != 0 ||
         shape_.num_q_heads != 0 || shape_.hidden != 0 || shape_.ffn != 0 || shape_.vocab != 0 ||
         shape_.max_position != 0 || shape_.tied_embeddings || window_ != 0;
}

bool ModelNumbers::is_complete(Finding& refusal) const {
  std::vector<std::string_view> missing;
  if (shape_.num_layers == 0) missing.emplace_back("--layers");
  if (shape_.num_kv_heads == 0) missing.emplace_back("--kv-heads");
  if (shape_.head_dim == 0) missing.emplace_back("--head-dim");
  if (!missing.empty()) {
    refusal = {
        .found = fmt::format("the model is incomplete: {} missing", fmt::join(missing, ", ")),
        .expected = "--model with a built-in name or a file, or its numbers",
        .advice = "'kvarena plan --help' lists them"};
    return false;
  }
  return true;
}

std::optional<ModelSpec> ModelNumbers::model(Finding& refusal) const {
  if (!is_complete(refusal)) return std::nullopt;
  ModelSpec model;
  model.name = "custom";
  model.source = "numbers";
  model.architecture = "llama";
  model.shape = shape_;
  if (model.shape.num_q_heads == 0) model.shape.num_q_heads = shape_.num_kv_heads;
  if (model.shape.hidden == 0) model.shape.hidden = model.shape.num_q_heads * shape_.head_dim;
  model.groups.push_back(
      {.kind = window_ > 0 ? capacity::CacheKind::window : capacity::CacheKind::full,
       .num_layers = shape_.num_layers,
       .num_kv_heads = shape_.num_kv_heads,
       .head_dim_k = shape_.head_dim,
       .head_dim_v = shape_.head_dim,
       .limit_tokens = window_});
  if (parameters_ == 0) {
    capacity::count_parameters(model);
  } else {
    model.parameters = parameters_;
    model.parameters_source = "--parameters";
  }
  model.weights_bytes = weights_bytes_;
  model.weights_stated = weights_bytes_.has_value();
  const bool has_mlp = shape_.ffn > 0;
  const bool has_logits = shape_.vocab > 0;
  if (!has_mlp || !has_logits) {
    model.notes.push_back(fmt::format("activations leave out {}",
                                      has_logits ? "the MLP: --ffn is not given"
                                      : has_mlp
                                          ? "logits: --vocab is not given"
                                          : "logits and the MLP: --ffn and --vocab are not given"));
  }
  return model;
}

void ModelNumbers::add_weights(ModelSpec& model) const {
  if (weights_bytes_) {
    model.weights_bytes = weights_bytes_;
    model.weights_stated = true;
    model.weights_by_dtype.clear();
    model.notes.emplace_back("weights are those of --weights-bytes");
  }
  if (parameters_ == 0) return;
  if (model.parameters || model.weights_bytes) {
    model.notes.emplace_back("--parameters is not used: the model's own are known");
    return;
  }
  model.parameters_about = parameters_;
  model.parts = capacity::parts_of_total(model.shape, parameters_, "--parameters");
  model.parameters_source = "--parameters";
}

const TraceLengths::Length& TraceLengths::at_percentile(double percent) const {
  const auto count = static_cast<double>(lengths.size());
  const auto rank = static_cast<std::size_t>(std::ceil(percent / 100.0 * count));
  return lengths[std::clamp<std::size_t>(rank, 1, lengths.size()) - 1];
}

std::optional<TraceLengths> read_lengths(const trace::TraceReaderOptions& trace,
                                         PlanRefusal& refusal) {
  const auto refuse = [&](const Finding& failure) {
    refusal = {.what = failure, .code = ExitCode::bad_input};
    return std::nullopt;
  };
  Finding failure;
  auto reader = trace::TraceReader::open(trace, &failure);
  if (!reader) return refuse(failure);
  TraceLengths lengths;
  while (true) {
    auto request = reader->next();
    if (!request) return refuse(reader->failure());
    if (!*request) break;
    const std::int64_t prompt = (*request)->input_tokens;
    lengths.lengths.push_back({prompt + (*request)->output_tokens, prompt});
    lengths.prompt_tokens += prompt;
  }
  lengths.requests = std::ssize(lengths.lengths);
  std::ranges::sort(lengths.lengths);
  return lengths;
}

}  // namespace kvarena::tools
