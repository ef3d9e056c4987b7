#include "tools/replay/roofline_options.hpp"

#include "tools/nearest_name.hpp"

#include "kvarena/capacity/gpu_spec.hpp"
#include "kvarena/capacity/model_presets.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

namespace kvarena::tools {

CLI::Option* RooflineOptions::declare(CLI::App& command) {
  constexpr const char* kGroup = "Roofline clock";
  const auto share = [&](const char* name, double& value, const char* help) {
    command.add_option(name, value, help)
        ->check(CLI::Range(0.01, 1.0))
        ->type_name("SHARE")
        ->capture_default_str()
        ->group(kGroup);
  };
  share("--efficiency-matrices", efficiency_.matrices, "Of its peak that matrices reach");
  share("--efficiency-attention", efficiency_.attention, "Of its peak that attention reaches");
  share("--efficiency-bandwidth", efficiency_.bandwidth,
        "Of its bandwidth at which weights and KV are read");
  return command.add_option("--gpu", gpu_, "The GPU that serves --model, e.g. H200-SXM")
      ->type_name("GPU")
      ->group(kGroup);
}

std::optional<capacity::StepTimeModel> RooflineOptions::choose(const Console& console,
                                                               const std::string& model) const {
  const capacity::GpuSpec* gpu = capacity::find_gpu(gpu_name_of(gpu_));
  if (gpu == nullptr) {
    console.error(gpu_finding(gpu_));
    return std::nullopt;
  }
  const auto spec =
      capacity::find_model_preset(model_name_of(model, capacity::model_preset_names()));
  if (!spec) {
    console.error(fmt::format("--gpu with the model \"{}\"", model),
                  "a built-in model: step times need all of its parameters",
                  "use --clock step with --prefill-us and --decode-us for any other");
    return std::nullopt;
  }
  auto numbers = capacity::step_time_options(*spec, *gpu);
  if (!numbers) {
    console.error(fmt::format("--gpu with {}: {}", spec->name, describe(numbers.status())),
                  "a model whose parameters are known", "");
    return std::nullopt;
  }
  numbers->efficiency = efficiency_;
  auto made = capacity::StepTimeModel::create(*numbers);
  if (made) return std::move(*made);
  console.error(fmt::format("--gpu {}: {}", gpu_, describe(made.status())), "", "");
  return std::nullopt;
}

}  // namespace kvarena::tools
