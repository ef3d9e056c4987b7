#include "plan_inputs.hpp"

#include "device_option.hpp"
#include "option_types.hpp"
#include "quantity.hpp"

#include "base/excerpt.hpp"
#include "capacity/ascii.hpp"
#include "capacity/parameters.hpp"
#include "replay/trace_reader.hpp"

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

std::string names_of_gpus() {
  std::vector<std::string_view> names;
  for (const capacity::GpuSpec& gpu : capacity::gpu_presets()) names.push_back(gpu.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

/// Names that begin as `wanted` does, or that hold it.
std::string similar_models(std::string_view wanted) {
  constexpr std::size_t kMostNames = 6;
  std::vector<std::string_view> found;
  for (const std::string_view name : capacity::model_preset_names()) {
    const std::size_t length = std::min<std::size_t>({wanted.size(), name.size(), 4});
    if (length > 0 && capacity::same_letters(name.substr(0, length), wanted.substr(0, length))) {
      found.push_back(name);
    }
  }
  if (found.size() > kMostNames) found.resize(kMostNames);
  return found.empty() ? "" : fmt::format("did you mean {}? ", fmt::join(found, ", "));
}

std::optional<PlannedMemory> memory_of_card(const Console& console, const DeviceChoice& choice,
                                            ExitCode* code) {
  *code = ExitCode::environment;
  const CudaDeviceList list = list_devices();
  for (const CudaDeviceInfo& gpu : list.devices) {
    if (gpu.ordinal != choice.ordinal || !gpu.status) continue;
    return PlannedMemory{.name = fmt::format("cuda:{} ({})", gpu.ordinal, gpu.name),
                         .bytes = static_cast<std::int64_t>(gpu.memory.total_bytes),
                         .num_sms = gpu.num_sms};
  }
  console.error(list.status ? fmt::format("there is no GPU cuda:{} that works", choice.ordinal)
                            : fmt::format("there is no GPU to plan for: {}", list.error),
                fmt::format("--gpu with a name ({}) or a size such as 80GiB", names_of_gpus()),
                "'kvarena devices' lists what is there");
  return std::nullopt;
}

}  // namespace

std::optional<PlannedMemory> find_memory(const Console& console, const std::string& text,
                                         ExitCode* code) {
  if (const capacity::GpuSpec* gpu = capacity::find_gpu(text)) {
    return PlannedMemory{.name = gpu->name,
                         .bytes = gpu->cuda_memory_bytes.value_or(gpu->memory_bytes),
                         .num_sms = gpu->vendor == "NVIDIA" ? gpu->num_sms : 0,
                         .from_driver = !gpu->cuda_memory_bytes};
  }
  const auto choice = parse_device(text);
  if (choice && choice->kind != DeviceChoice::Kind::cpu) {
    return memory_of_card(console, *choice, code);
  }
  const auto bytes = parse_bytes(text);
  if (bytes && *bytes > 0) return PlannedMemory{.name = human_bytes(*bytes), .bytes = *bytes};
  *code = ExitCode::usage;
  console.error(
      fmt::format("--gpu {}", text),
      fmt::format("one of {}; auto or cuda:N for the card present; or a size such as 80GiB",
                  names_of_gpus()));
  return std::nullopt;
}

void ModelNumbers::declare(CLI::App& command) {
  constexpr const char* kGroup = "A model by numbers";
  const auto number = [&](const char* name, auto& value, std::int64_t largest, const char* help) {
    add_count_option(command, name, value, 1, largest, help)->group(kGroup);
  };
  number("--layers", shape_.num_layers, 4096, "Layers");
  number("--kv-heads", shape_.num_kv_heads, 4096, "KV heads");
  number("--q-heads", shape_.num_q_heads, 65536, "Query heads; without it as many as KV heads");
  number("--head-dim", shape_.head_dim, 4096, "Elements a head");
  number("--hidden", shape_.hidden, 1 << 20, "Elements of the residual stream; heads x head dim");
  number("--ffn", shape_.ffn, 1 << 24, "Intermediate elements of the gated MLP");
  number("--vocab", shape_.vocab, std::int64_t{1} << 31, "Rows of the embedding");
  number("--max-position", shape_.max_position, std::int64_t{1} << 31, "The longest context");
  number("--window", window_, 1 << 30, "Sliding window of every layer, tokens");
  number("--parameters", parameters_, std::int64_t{1} << 50,
         "Parameters, instead of --ffn, --vocab");
}

bool ModelNumbers::any() const noexcept {
  return shape_.num_layers != 0 || shape_.num_kv_heads != 0 || shape_.head_dim != 0 ||
         shape_.num_q_heads != 0 || shape_.hidden != 0 || shape_.ffn != 0 || shape_.vocab != 0 ||
         shape_.max_position != 0 || window_ != 0 || parameters_ != 0;
}

std::optional<ModelSpec> ModelNumbers::model(const Console& console) const {
  ModelSpec model;
  model.name = "custom";
  model.source = "numbers";
  model.architecture = "llama";
  model.shape = shape_;
  if (model.shape.num_q_heads == 0) model.shape.num_q_heads = shape_.num_kv_heads;
  if (model.shape.hidden == 0) model.shape.hidden = model.shape.num_q_heads * shape_.head_dim;
  std::vector<std::string_view> missing;
  if (shape_.num_layers == 0) missing.emplace_back("--layers");
  if (shape_.num_kv_heads == 0) missing.emplace_back("--kv-heads");
  if (shape_.head_dim == 0) missing.emplace_back("--head-dim");
  if (parameters_ == 0 && (shape_.ffn == 0 || shape_.vocab == 0)) {
    missing.emplace_back("--parameters (or --ffn and --vocab)");
  }
  if (!missing.empty()) {
    console.error(fmt::format("the model is incomplete: {} missing", fmt::join(missing, ", ")),
                  "--model with a built-in name or a file, or its numbers",
                  "'kvarena plan --help' lists them");
    return std::nullopt;
  }
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
  return model;
}

std::optional<ModelSpec> find_model(const Console& console, const std::string& text,
                                    ExitCode* code) {
  if (auto preset = capacity::find_model_preset(text)) return preset;
  if (std::error_code unknown; std::filesystem::exists(text, unknown)) {
    std::string why;
    auto read = capacity::read_model(text, why);
    if (read) return *std::move(read);
    *code = ExitCode::bad_input;
    console.error(fmt::format("--model {}", why));
    return std::nullopt;
  }
  *code = ExitCode::usage;
  console.error(
      fmt::format("--model {}: no built-in model is called that, and no file", printable(text)),
      similar_models(text) +
          "a built-in name, a file or folder of a model, or numbers (--layers, ...)",
      "'kvarena plan --list' names all models and GPUs");
  return std::nullopt;
}

std::int64_t TraceLengths::at_percentile(double percent) const {
  const auto count = static_cast<double>(tokens.size());
  const auto rank = static_cast<std::size_t>(std::ceil(percent / 100.0 * count));
  return tokens[std::clamp<std::size_t>(rank, 1, tokens.size()) - 1];
}

std::optional<TraceLengths> read_lengths(const Console& console, const std::string& path,
                                         ExitCode* code) {
  *code = ExitCode::bad_input;
  const auto report = [&](const replay::ParseFailure& failure) {
    console.error(fmt::format("{}: found {}", place_of(failure), failure.found), failure.expected,
                  failure.advice);
    return std::nullopt;
  };
  replay::ParseFailure failure;
  auto reader = replay::TraceReader::open({.path = path}, &failure);
  if (!reader) return report(failure);
  TraceLengths lengths;
  while (true) {
    auto request = reader->next();
    if (!request) return report(reader->failure());
    if (!*request) break;
    lengths.tokens.push_back((*request)->input_tokens + (*request)->output_tokens);
  }
  lengths.requests = static_cast<std::int64_t>(lengths.tokens.size());
  std::ranges::sort(lengths.tokens);
  return lengths;
}

}  // namespace kvarena::tools
