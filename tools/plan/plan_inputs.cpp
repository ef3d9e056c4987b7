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
  const Finding unknown = gpu_finding(text);
  refusal.what = {
      .found = bytes ? fmt::format("--gpu {} is {}, less than 1 MiB", text, human_bytes(*bytes))
                     : unknown.found,
      .expected = fmt::format("{}; auto or cuda:N for the card present; or a size with its unit "
                              "(MiB, GiB, TiB; MB, GB, TB), such as 80GiB",
                              unknown.expected)};
  return std::nullopt;
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
  refusal.what = {
      .found = fmt::format("no built-in model is called \"{}\", and no file", printable(text)),
      .expected = similar_names(name, capacity::model_preset_names()) +
                  "a built-in name, or a file or folder of a model",
      .advice = "'kvarena plan --list' names all models and GPUs"};
  return std::nullopt;
}

std::int64_t TraceLengths::at_percentile(double percent) const {
  const auto count = static_cast<double>(tokens.size());
  const auto rank = static_cast<std::size_t>(std::ceil(percent / 100.0 * count));
  return tokens[std::clamp<std::size_t>(rank, 1, tokens.size()) - 1];
}

std::optional<TraceLengths> read_lengths(const trace::TraceReaderOptions& trace,
                                         PlanRefusal& refusal) {
  const auto refuse = [&](const trace::ParseFailure& failure) {
    refusal = {.what = {.found = fmt::format("{}: found {}", place_of(failure), failure.found),
                        .expected = failure.expected,
                        .advice = failure.advice},
               .code = ExitCode::bad_input};
    return std::nullopt;
  };
  trace::ParseFailure failure;
  auto reader = trace::TraceReader::open(trace, &failure);
  if (!reader) return refuse(failure);
  TraceLengths lengths;
  while (true) {
    auto request = reader->next();
    if (!request) return refuse(reader->failure());
    if (!*request) break;
    lengths.tokens.push_back((*request)->input_tokens + (*request)->output_tokens);
  }
  lengths.requests = static_cast<std::int64_t>(lengths.tokens.size());
  std::ranges::sort(lengths.tokens);
  return lengths;
}

}  // namespace kvarena::tools
