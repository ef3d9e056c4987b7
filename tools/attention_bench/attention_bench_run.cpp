#include "tools/attention_bench/attention_bench_run.hpp"

#include "tools/attention_bench/attention_bench_output.hpp"
#include "tools/interrupt.hpp"
#include "tools/json_output.hpp"
#include "tools/quantity.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <utility>

namespace kvarena::tools {
namespace {

using meter::AttentionProblem;
using meter::ReadCeiling;
using Json = nlohmann::ordered_json;

ExitCode exit_code_of(const Status& status) {
  switch (status.code) {
    case StatusCode::insufficient_vram:
    case StatusCode::exhausted: return ExitCode::does_not_fit;
    case StatusCode::unsupported:
    case StatusCode::invalid_argument: return ExitCode::usage;
    default: return ExitCode::environment;
  }
}

double gb_per_s(const ReadCeiling& ceiling) {
  return static_cast<double>(ceiling.bytes) / ceiling.us / 1e3;
}

/// What holds for all rows.
Json header_json(const Device& device, const meter::MeterOptions& options,
                 const ReadCeiling& ceiling) {
  const bool is_host = device.kind() == DeviceKind::host;
  return {{"device", device.name()},
          {"threads", is_host ? Json(options.num_threads) : Json()},
          {"read_ceiling_gb_per_s", gb_per_s(ceiling)},
          {"read_ceiling_bytes", ceiling.bytes},
          {"replays", options.replays},
          {"layers_per_schedule", options.layers_per_schedule},
          {"rotated_bytes", options.rotated_bytes}};
}

}  // namespace

ExitCode AttentionBenchRun::report(const Console& console, const std::string& what,
                                   const Status& status) const {
  const ExitCode code = exit_code_of(status);
  const bool is_cuda = device.kind() == DeviceKind::cuda;
  const std::string happened =
      code == ExitCode::environment && is_cuda ? describe_cuda(status) : device.describe(status);
  const char* advice = code == ExitCode::does_not_fit ? "choose smaller rows, or lower --rotate"
                       : code == ExitCode::usage
                           ? "change the heads, --head-dim, --dtype or --block-size"
                           : "'kvarena devices' says whether the device can be used";
  console.error(fmt::format("{} on {}: {}", what, device.name(), happened), "", advice);
  return code;
}

ExitCode AttentionBenchRun::run(const Console& console, meter::AttentionMeter& meter) const {
  const Result<ReadCeiling> ceiling = meter.read_ceiling();
  if (!ceiling) return report(console, "the large read", ceiling.status());
  const auto print = [&](const std::string& text) {
    if (json_on_stdout(json) && console.quiet) return;
    (json_on_stdout(json) ? console.err : console.out) << text << std::flush;
  };
  print(fmt::format("{}: reads {:.1f} GB/s ({} at once)\n{}", device.name(), gb_per_s(*ceiling),
                    human_bytes(ceiling->bytes), table_header()));
  Json rows = Json::array();
  ExitCode code = ExitCode::ok;
  bool is_correct = true;
  const Interrupt interrupt;
  for (const AttentionProblem& problem : problems) {
    if (interrupt.came()) {
      console.warning(
          fmt::format("interrupted: {} of {} rows were measured", rows.size(), problems.size()));
      code = ExitCode::interrupted;
      break;
    }
    const std::string name = heads_text(problem.shape) + ", " + batch_text(problem.lengths);
    const auto figures = meter.measure(problem);
    if (!figures) {
      code = report(console, name, figures.status());
      break;
    }
    print(table_line(problem, *figures, *ceiling));
    rows.push_back(json_of(problem, *figures, *ceiling));
    if (figures->is_correct()) continue;
    is_correct = false;
    console.error(
        fmt::format("{}: the result has a relative error of {:.2e}", name, figures->error),
        fmt::format("at most {:.2e}, twice that of rounding", figures->error_limit),
        "do not use this build on this device; run the kernel tests and report it");
  }
  const bool is_refused = code != ExitCode::ok && code != ExitCode::interrupted;
  Json document = header_json(device, options, *ceiling);
  document["interrupted"] = code == ExitCode::interrupted;
  document["failure"] = is_refused ? Json(console.failure.found) : Json();
  document["correct"] = is_correct;
  document["rows"] = std::move(rows);
  const ExitCode written = write_json(console, json, document);
  if (code != ExitCode::ok) return code;
  return is_correct ? written : ExitCode::check_failed;
}

}  // namespace kvarena::tools
