#include "tools/attention_bench/attention_bench_run.hpp"

#include "tools/attention_meter/known_rows.hpp"
#include "tools/option_values.hpp"
#include "tools/result_file.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <numeric>
#include <utility>

namespace kvarena::tools {
namespace {

using meter::AttentionFigures;
using meter::AttentionProblem;
using meter::AttentionShape;
using meter::KnownRow;
using meter::ReadCeiling;
using Json = nlohmann::ordered_json;

constexpr const char* kPeersMethod =
    R"(How kvarena's decode attention is compared with public kernels.
NOTHING BELOW WAS MEASURED IN THIS RUN. The figures are of one NVIDIA H200 (driver 580, CUDA 13.0),
2026-11-20.

Method, the same for every kernel and for 'kvarena bench attention' on a GPU:
- q, K, V and output in bf16 (fp8: K and V in e4m3); blocks of 16 tokens in random order.
- Calls back to back in a CUDA graph with all kernels of a call (attention, merging of splits,
  metadata); median of 31 replays after 5 to warm up, divided by the calls. No host time is in it.
- Block tables rotate over 1 GB of K and V or more (at most 64 tables): the L2 holds nothing.
- Floor: the best of several kernels that only read as many bytes, timed the same way.
- Every result is compared with an f32 reference. GB/s are those of K and V alone.
- The best of all settings of each kernel counts: FlashInfer fb28d72 (tensor cores, CUDA cores,
  persistent), TensorRT-LLM XQA from the same source, FlashAttention-3 0251105, cuDNN 9.19.0 with
  page tables, vLLM's paged_attention v1 and v2 (2026-02) and its Triton kernel (2026-04).
Cards differ by 2 %: compare ratios to the floor, not microseconds. docs/benchmarks.md has kvarena's
figures.
)";

std::string count_text(std::int32_t count) {
  return count % 1024 == 0 ? fmt::format("{}k", count / 1024) : fmt::format("{}", count);
}

double gb_per_s(std::int64_t bytes, double us) { return static_cast<double>(bytes) / us / 1e3; }

double megabytes(std::int64_t bytes) { return static_cast<double>(bytes) / 1e6; }

double fraction_of_ceiling(const AttentionFigures& figures, const ReadCeiling& ceiling) {
  return gb_per_s(figures.kv_bytes, figures.attention_us) / gb_per_s(ceiling.bytes, ceiling.us);
}

bool is_uniform(const AttentionProblem& problem) {
  const auto [low, high] = std::minmax_element(problem.lengths.begin(), problem.lengths.end());
  return *low == *high;
}

Json json_of(const AttentionProblem& problem) {
  const AttentionShape& shape = problem.shape;
  Json json = {{"q_heads", shape.num_q_heads},         {"kv_heads", shape.num_kv_heads},
               {"head_dim", shape.head_dim},           {"dtype", name_of(shape.dtype)},
               {"block_size", shape.block_size},       {"q_len", shape.q_len},
               {"window_tokens", shape.window_tokens}, {"batch", problem.lengths.size()}};
  json["context"] = is_uniform(problem) ? Json(problem.lengths.front()) : Json();
  if (!is_uniform(problem)) json["lengths"] = problem.lengths;
  json["tokens"] = std::accumulate(problem.lengths.begin(), problem.lengths.end(), std::int64_t{0});
  json["kv_bytes"] = kv_bytes(problem);
  return json;
}

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
Json header_json(const Device& device, const meter::MeterOptions& options,
                 const ReadCeiling* ceiling) {
  const bool is_host = device.kind() == DeviceKind::host;
  return {{"device", device.name()},
          {"threads", is_host ? Json(options.num_threads) : Json()},
          {"read_ceiling_gb_per_s",
           ceiling != nullptr ? Json(gb_per_s(ceiling->bytes, ceiling->us)) : Json()},
          {"read_ceiling_bytes", ceiling != nullptr ? Json(ceiling->bytes) : Json()},
          {"replays", options.replays},
          {"layers_per_schedule", options.layers_per_schedule},
          {"rotated_bytes", options.rotated_bytes}};
}

}  // namespace

std::string heads_text(const AttentionShape& shape) {
  return fmt::format("{}/{} D={}", shape.num_q_heads, shape.num_kv_heads, shape.head_dim);
}

std::string batch_text(std::span<const std::int32_t> lengths) {
  const auto [low, high] = std::minmax_element(lengths.begin(), lengths.end());
  if (*low == *high) return fmt::format("{} x {}", lengths.size(), count_text(*low));
  return fmt::format("{} x {}..{}", lengths.size(), *low, *high);
}

std::string table_header() {
  return fmt::format("{:<12} {:<16} {:>9} {:>10} {:>10} {:>8} {:>7} {:>8} {:>9} {:>8}\n", "heads",
                     "batch x context", "KV MB", "floor us", "us", "GB/s", "ratio", "of read",
                     "plan us", "error");
}

std::string table_line(const AttentionProblem& problem, const AttentionFigures& figures,
                       const ReadCeiling& ceiling) {
  return fmt::format(
      "{:<12} {:<16} {:>9.1f} {:>10.1f} {:>10.1f} {:>8.1f} {:>7.3f} {:>6.1f} % {:>9.2f} {:>8.1e}"
      "{}\n",
      heads_text(problem.shape), batch_text(problem.lengths), megabytes(figures.kv_bytes),
      figures.floor_us, figures.attention_us, gb_per_s(figures.kv_bytes, figures.attention_us),
      figures.attention_us / figures.floor_us, 100.0 * fraction_of_ceiling(figures, ceiling),
      figures.schedule_us, figures.error, figures.is_correct() ? "" : "  WRONG");
}

Json json_of(const AttentionProblem& problem, const AttentionFigures& figures,
             const ReadCeiling& ceiling) {
  Json json = json_of(problem);
  json["floor_us"] = figures.floor_us;
  json["us"] = figures.attention_us;
  json["gb_per_s"] = gb_per_s(figures.kv_bytes, figures.attention_us);
  json["ratio_to_floor"] = figures.attention_us / figures.floor_us;
  json["fraction_of_read_ceiling"] = fraction_of_ceiling(figures, ceiling);
  json["schedule_us"] = figures.schedule_us;
  json["tables"] = figures.rotation.num_tables;
  json["calls"] = figures.rotation.num_calls;
  json["parts"] = figures.num_parts;
  json["checked_heads"] = figures.num_checked;
  json["relative_error"] = figures.error;
  json["relative_error_limit"] = figures.error_limit;
  json["correct"] = figures.is_correct();
  return json;
}

std::string peers_text(std::span<const AttentionProblem> problems) {
  std::string lines;
  for (const AttentionProblem& problem : problems) {
    const KnownRow* row = find_known_row(problem);
    if (row == nullptr) continue;
    lines += fmt::format("{:<12} {:<16} {:>9.1f} {:>10.1f} {:>15.1f} {:>7.3f}  {}\n",
                         heads_text(problem.shape), batch_text(problem.lengths),
                         megabytes(kv_bytes(problem)), row->floor_us, row->public_us,
                         row->public_us / row->floor_us, row->public_name);
  }
  if (lines.empty()) {
    return std::string(kPeersMethod) +
           "\nNone of the chosen rows was measured with public kernels; '--preset all --peers' "
           "lists those that were.\n";
  }
  return fmt::format("{}\n{:<12} {:<16} {:>9} {:>10} {:>15} {:>7}  {}\n{}", kPeersMethod, "heads",
                     "batch x context", "KV MB", "floor us", "best public us", "ratio", "kernel",
                     lines);
}

Json peers_json(std::span<const AttentionProblem> problems) {
  Json rows = Json::array();
  for (const AttentionProblem& problem : problems) {
    const KnownRow* row = find_known_row(problem);
    if (row == nullptr) continue;
    Json json = json_of(problem);
    json["floor_us"] = row->floor_us;
    json["best_public_us"] = row->public_us;
    json["best_public_ratio_to_floor"] = row->public_us / row->floor_us;
    json["best_public_kernel"] = row->public_name;
    rows.push_back(json);
  }
  return {{"measured_in_this_run", false},
          {"device", "NVIDIA H200"},
          {"date", "2026-11-20"},
          {"rows", rows}};
}

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
  if (ceiling) {
    print(fmt::format("{}: reads {:.1f} GB/s ({} at once)\n{}", device.name(),
                      gb_per_s(ceiling->bytes, ceiling->us), human_bytes(ceiling->bytes),
                      table_header()));
  }
  Json rows = Json::array();
  ExitCode code = ExitCode::ok;
  bool is_correct = true;
  for (const AttentionProblem& problem : problems) {
    const std::string name = heads_text(problem.shape) + ", " + batch_text(problem.lengths);
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
  Json document = header_json(device, options, ceiling ? &*ceiling : nullptr);
  document["interrupted"] = code == ExitCode::interrupted;
  document["failure"] = is_refused ? Json(console.failure.found) : Json();
  document["correct"] = is_correct;
  document["rows"] = std::move(rows);
  const ExitCode written = write_json(console, json, document);
  if (code != ExitCode::ok) return code;
  return is_correct ? written : ExitCode::check_failed;
}

}  // namespace kvarena::tools
