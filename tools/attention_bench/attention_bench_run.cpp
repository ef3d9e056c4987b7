#include "tools/attention_bench/attention_bench_run.hpp"

#include "tools/option_values.hpp"
#include "tools/result_file.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <utility>

namespace kvarena::tools {
namespace {

using meter::AttentionFigures;
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

/// What holds for all rows. `ceiling`: nullptr where the large read was interrupted.
Json header_json(const AttentionBenchRun& run, const ReadCeiling* ceiling) {
  const bool is_host = run.device.kind() == DeviceKind::host;
  const capacity::GpuSpec* gpu = run.data_sheet;
  return {{"device", run.device.name()},
          {"threads", is_host ? Json(run.options.num_threads) : Json()},
          {"read_ceiling_gb_per_s",
           ceiling != nullptr ? Json(gb_per_s(ceiling->bytes, ceiling->us)) : Json()},
          {"read_ceiling_bytes", ceiling != nullptr ? Json(ceiling->bytes) : Json()},
          {"matrix_peak_tflop_per_s",
           gpu != nullptr ? Json(static_cast<double>(gpu->bf16_flops_per_second) / 1e12) : Json()},
          {"matrix_peak_of", gpu != nullptr ? Json(gpu->name) : Json()},
          {"replays", run.options.replays},
          {"layers_per_schedule", run.options.layers_per_schedule},
          {"rotated_bytes", run.options.rotated_bytes}};
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

namespace {

double peak_of(const capacity::GpuSpec* data_sheet) {
  return data_sheet == nullptr ? 0.0 : static_cast<double>(data_sheet->bf16_flops_per_second);
}

/// What the device reads and computes, and the head of the table.
std::string opening_lines(const AttentionBenchRun& run, const ReadCeiling& ceiling, bool has_work) {
  std::string text = fmt::format("{}: reads {:.1f} GB/s ({} at once)", run.device.name(),
                                 gb_per_s(ceiling.bytes, ceiling.us), human_bytes(ceiling.bytes));
  if (has_work && run.data_sheet != nullptr) {
    text += fmt::format("; peak {:.0f} TFLOP/s of dense bf16 by the data sheet of {}",
                        peak_of(run.data_sheet) / 1e12, run.data_sheet->name);
  }
  return text + "\n" + table_header(has_work);
}

/// Says how far an interrupted run came.
void warn_of_interrupt(const Console& console, std::size_t measured, std::size_t all) {
  if (console.is_unread()) return;
  console.warning(fmt::format("interrupted: {} of {} rows were measured", measured, all));
}

}  // namespace

ExitCode AttentionBenchRun::run(const Console& console, meter::AttentionMeter& meter) const {
  const auto is_stopped = [this] { return options.stop != nullptr && *options.stop; };
  const Result<ReadCeiling> ceiling = meter.read_ceiling();
  if (!ceiling && !is_stopped()) return report(console, "the large read", ceiling.status());
  const auto print = [&](const std::string& text) {
    if (json_on_stdout(json) && console.quiet) return;
    (json_on_stdout(json) ? console.err : console.out) << text << std::flush;
  };
  const bool has_work = shows_work(problems);
  if (ceiling) print(opening_lines(*this, *ceiling, has_work));
  Json rows = Json::array();
  ExitCode code = ExitCode::ok;
  bool is_correct = true;
  for (const AttentionProblem& problem : problems) {
    const std::string name = heads_text(problem.shape) + ", " + batch_text(problem);
    const auto figures = is_stopped()
                             ? Result<AttentionFigures>(failed_precondition(Resource::none))
                             : meter.measure(problem);
    if (!figures && is_stopped()) {
      warn_of_interrupt(console, rows.size(), problems.size());
      code = ExitCode::interrupted;
      break;
    }
    if (!figures) {
      code = report(console, name, figures.status());
      break;
    }
    const Ceilings ceilings{*ceiling, peak_of(data_sheet)};
    print(table_line(problem, *figures, ceilings, has_work));
    rows.push_back(json_of(problem, *figures, ceilings));
    if (figures->is_correct()) continue;
    is_correct = false;
    console.error(
        fmt::format("{}: the result has a relative error of {:.2e}", name, figures->error),
        fmt::format("at most {:.2e}, twice that of rounding", figures->error_limit),
        "do not use this build on this device; run the kernel tests and report it");
  }
  const bool is_refused = code != ExitCode::ok && code != ExitCode::interrupted;
  Json document = header_json(*this, ceiling ? &*ceiling : nullptr);
  document["interrupted"] = code == ExitCode::interrupted;
  document["failure"] = is_refused ? Json(console.failure.found) : Json();
  document["correct"] = is_correct;
  document["rows"] = std::move(rows);
  const ExitCode written = write_json(console, json, document);
  if (code != ExitCode::ok) return code;
  return is_correct ? written : ExitCode::check_failed;
}

}  // namespace kvarena::tools
