#include "bench_command.hpp"

#include "attention_bench_output.hpp"
#include "json_output.hpp"
#include "option_types.hpp"
#include "quantity.hpp"

#include "kvarena/attention/cpu_workers.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <thread>

namespace kvarena::tools {
namespace {

using meter::AttentionProblem;
using meter::ReadCeiling;
using Json = nlohmann::ordered_json;

constexpr const char* kFooter = R"(
Examples:
  kvarena bench attention                                  64 sequences of 1,024 tokens, 32/8 heads of 128
  kvarena bench attention --preset all                     every row of docs/benchmarks.md
  kvarena bench attention --batch 1,8,64 --context 1k,8k   six rows
  kvarena bench attention --heads 64/8 --lengths FILE.json a ragged batch
  kvarena bench attention --device cpu --dtype f16 --json -
  kvarena bench attention --preset all --peers             what public kernels take; measures nothing

A row: the bytes of K and V; the time to only read as many (floor); the time of attention in one layer, its
share of the schedule included; the same in GB/s, as a multiple of the floor and as a share of what a large
read reaches; the time of a schedule, made once for all layers; the relative error. Exit code 1: an error
above twice that of rounding.
)";

constexpr std::int64_t kCudaCeilingTurns = 8;  // of the rotated bytes: 8 GB
constexpr std::int64_t kCeilingUnit = 4096;

ExitCode exit_code_of(const Status& status) {
  switch (status.code) {
    case StatusCode::insufficient_vram:
    case StatusCode::exhausted: return ExitCode::does_not_fit;
    case StatusCode::unsupported:
    case StatusCode::invalid_argument: return ExitCode::usage;
    default: return ExitCode::environment;
  }
}

// What went wrong with `what`.
ExitCode report(const Console& console, const OpenedDevice& opened, const std::string& what,
                const Status& status) {
  const ExitCode code = exit_code_of(status);
  const std::string happened = code == ExitCode::environment && opened.cuda != nullptr
                                   ? describe_cuda(status)
                                   : opened.device->describe(status);
  const char* advice =
      code == ExitCode::does_not_fit ? "choose smaller rows, or lower --rotate"
      : code == ExitCode::usage
          ? "change the shape, --dtype or --block-size; docs/cli.md says what each "
            "device computes"
          : "'kvarena devices' says whether the device can be used";
  console.error(fmt::format("{} on {}: {}", what, opened.device->name(), happened), "", advice);
  return code;
}

}  // namespace

CLI::App* BenchCommand::declare(CLI::App& parent) {
  CLI::App* bench = parent.add_subcommand("bench", "Measure kernels on this machine");
  bench->require_subcommand(1);
  bench->footer("\nExamples:\n  kvarena bench attention --help\n");
  CLI::App* command = bench->add_subcommand(
      "attention", "Decode attention beside the time to only read the same bytes");
  command->footer(kFooter);
  add_device_option(*command, device_);
  rows_.declare(*command);
  add_count_option(*command, "--layers-per-schedule", options_.layers_per_schedule, 1, 1 << 16,
                   "Layers that share one schedule's time")
      ->capture_default_str();
  add_count_option(*command, "--replays", options_.replays, 1, 1 << 16,
                   "Rounds that a median is taken of")
      ->capture_default_str();
  add_bytes_option(*command, "--rotate", rotated_bytes_,
                   "K and V that the calls go round, so that caches hold nothing [default: 1GB]");
  add_count_option(*command, "--threads", threads_, 0, CpuWorkers::kMaxThreads,
                   "Threads on the CPU; 0: one a core")
      ->capture_default_str();
  command->add_flag("--peers", peers_,
                    "Only print how kvarena is compared with public kernels, and what those take");
  declare_json_option(*command, json_);
  return bench;
}

ExitCode BenchCommand::print_peers(const Console& console) const {
  if (!json_on_stdout(json_)) console.out << peers_text(chosen_.problems);
  return write_json(console, json_, peers_json(chosen_.problems));
}

// The sizes that depend on the device. Reports when the largest row does not fit.
bool BenchCommand::complete(const Console& console, const Device& device) {
  const Result<MemoryInfo> memory = device.memory_info();
  const auto free = memory ? static_cast<std::int64_t>(memory->free_bytes) : 0;
  if (rotated_bytes_) options_.rotated_bytes = *rotated_bytes_;
  std::int64_t needed = 0;
  for (const AttentionProblem& problem : chosen_.problems) {
    needed = std::max(needed, pool_bytes(problem, options_.rotated_bytes));
  }
  if (needed > free) {
    console.error(fmt::format("the largest row needs {} B of K and V ({}), {} has {} B free ({})",
                              grouped(needed), human_bytes(needed), device.name(), grouped(free),
                              human_bytes(free)),
                  "rows that fit",
                  "lower --batch, --context or --rotate, or choose another --device");
    return false;
  }
  const std::int64_t turns = device.kind() == DeviceKind::cuda ? kCudaCeilingTurns : 1;
  const std::int64_t most = std::min(free / 2, std::max(needed, turns * options_.rotated_bytes));
  options_.ceiling_bytes = std::max(kCeilingUnit, most / kCeilingUnit * kCeilingUnit);
  options_.pool_bytes = std::max(needed, options_.ceiling_bytes);
  const auto cores =
      static_cast<std::int32_t>(std::clamp(std::thread::hardware_concurrency(), 1U, 256U));
  options_.num_threads = threads_ > 0 ? threads_ : cores;
  return true;
}

ExitCode BenchCommand::measure(const Console& console, const OpenedDevice& opened,
                               meter::AttentionMeter& meter) const {
  const Result<ReadCeiling> ceiling = meter.read_ceiling();
  if (!ceiling) return report(console, opened, "the read ceiling", ceiling.status());
  const double read_rate = static_cast<double>(ceiling->bytes) / ceiling->us / 1e3;
  std::ostream& out = json_on_stdout(json_) ? console.err : console.out;
  const auto print = [&](const std::string& text) {
    if (!console.quiet) out << text << std::flush;
  };
  print(fmt::format("{}: reads {:.1f} GB/s ({} at once)\n{}", opened.device->name(), read_rate,
                    human_bytes(ceiling->bytes), table_header()));
  Json rows = Json::array();
  ExitCode code = ExitCode::ok;
  for (const AttentionProblem& problem : chosen_.problems) {
    const std::string name = heads_text(problem.shape) + ", " + batch_text(problem.lengths);
    const auto figures = meter.measure(problem);
    if (!figures) return report(console, opened, name, figures.status());
    print(table_line(problem, *figures, *ceiling));
    rows.push_back(json_of(problem, *figures, *ceiling));
    if (figures->is_correct()) continue;
    code = ExitCode::check_failed;
    console.error(
        fmt::format("{}: the result has a relative error of {:.2e}", name, figures->error),
        fmt::format("at most {:.2e}, twice that of rounding", figures->error_limit),
        "do not use this build on this device; run the kernel tests and report it");
  }
  const ExitCode written =
      write_json(console, json_,
                 {{"device", opened.device->name()},
                  {"threads", opened.cuda == nullptr ? Json(options_.num_threads) : Json()},
                  {"read_ceiling_gb_per_s", read_rate},
                  {"read_ceiling_bytes", ceiling->bytes},
                  {"replays", options_.replays},
                  {"layers_per_schedule", options_.layers_per_schedule},
                  {"rotated_bytes", options_.rotated_bytes},
                  {"correct", code == ExitCode::ok},
                  {"rows", rows}});
  return code == ExitCode::ok ? written : code;
}

ExitCode BenchCommand::run(const Console& console) {
  chosen_ = rows_.choose(console);
  if (chosen_.code != ExitCode::ok) return chosen_.code;
  if (peers_) return print_peers(console);
  if (rows_.is_fp8()) {
    console.error("--dtype fp8: decode attention over fp8 K and V is not built yet", "bf16 or f16",
                  "leave --dtype out; with --peers fp8 shows what public kernels take");
    return ExitCode::usage;
  }
  const auto opened = open_device(console, device_);
  if (!opened) return ExitCode::environment;
  if (!complete(console, *opened->device)) return ExitCode::does_not_fit;
  auto meter = opened->cuda != nullptr ? meter::make_cuda_meter(*opened->cuda, options_)
                                       : meter::make_host_meter(*opened->device, options_);
  if (!meter) return report(console, *opened, "the pool", meter.status());
  return measure(console, *opened, **meter);
}

}  // namespace kvarena::tools
