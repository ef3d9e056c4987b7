#include "tools/plan/plan_inputs.hpp"

#include "tools/device_option.hpp"
#include "tools/nearest_name.hpp"
#include "tools/quantity.hpp"

#include "base/excerpt.hpp"

#include "kvarena/capacity/gpu_spec.hpp"
#include "kvarena/capacity/model_files.hpp"
#include "kvarena/capacity/model_presets.hpp"
#include "kvarena/device/cuda_device.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <system_error>

namespace kvarena::tools {
namespace {

using capacity::ModelSpec;

constexpr std::int64_t kLeastMemory = std::int64_t{1} << 20;

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
                fmt::format("--gpu with a size such as 80GiB, or {}", expected_gpus("")),
                "'kvarena devices' lists what is there");
  return std::nullopt;
}

}  // namespace

std::optional<PlannedMemory> find_memory(const Console& console, const std::string& text,
                                         ExitCode* code) {
  if (const capacity::GpuSpec* gpu = capacity::find_gpu(text)) {
    const bool is_nvidia = gpu->vendor == "NVIDIA";
    return PlannedMemory{.name = gpu->name,
                         .bytes = gpu->cuda_memory_bytes.value_or(gpu->memory_bytes),
                         .num_sms = is_nvidia ? gpu->num_sms : 0,
                         .from_driver = is_nvidia && !gpu->cuda_memory_bytes};
  }
  const auto choice = parse_device(text);
  if (choice && choice->kind != DeviceChoice::Kind::cpu) {
    return memory_of_card(console, *choice, code);
  }
  const auto bytes = parse_bytes(text);
  if (bytes && *bytes >= kLeastMemory) {
    return PlannedMemory{.name = human_bytes(*bytes), .bytes = *bytes};
  }
  *code = ExitCode::usage;
  console.error(
      bytes ? fmt::format("--gpu {} is {}, less than 1 MiB", text, human_bytes(*bytes))
            : fmt::format("--gpu {}", printable(text)),
      fmt::format("{}; auto or cuda:N for the card present; or a size with its unit (MiB, "
                  "GiB, TiB; MB, GB, TB), such as 80GiB",
                  expected_gpus(text)));
  return std::nullopt;
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
      similar_names(text, capacity::model_preset_names()) +
          "a built-in name, a file or folder of a model, or numbers (--layers, ...)",
      "'kvarena plan --list' names all models and GPUs");
  return std::nullopt;
}

std::int64_t TraceLengths::at_percentile(double percent) const {
  const auto count = static_cast<double>(tokens.size());
  const auto rank = static_cast<std::size_t>(std::ceil(percent / 100.0 * count));
  return tokens[std::clamp<std::size_t>(rank, 1, tokens.size()) - 1];
}

std::optional<TraceLengths> read_lengths(const Console& console,
                                         const trace::TraceReaderOptions& trace, ExitCode* code) {
  *code = ExitCode::bad_input;
  const auto report = [&](const Finding& failure) {
    console.error(failure);
    return std::nullopt;
  };
  Finding failure;
  auto reader = trace::TraceReader::open(trace, &failure);
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
