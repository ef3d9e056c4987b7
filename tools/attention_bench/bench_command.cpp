#include "tools/attention_bench/attention_bench_options.hpp"
#include "tools/attention_bench/attention_bench_run.hpp"
#include "tools/command_line.hpp"
#include "tools/device_option.hpp"
#include "tools/interrupt.hpp"
#include "tools/option_values.hpp"
#include "tools/result_file.hpp"

#include "kvarena/attention/cpu_workers.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <thread>
#include <vector>

namespace kvarena::tools {
namespace {

using meter::AttentionProblem;

constexpr const char* kBenchFooter = R"(
Examples:
  kvarena bench attention                                  64 x 1,024 tokens, 32/8 heads of 128
  kvarena bench attention --preset all                     every row of docs/benchmarks.md
  kvarena bench attention --batch 1,8,64 --context 1k,8k   six rows
  kvarena bench attention --heads 64/8 --lengths FILE.json a ragged batch
  kvarena bench attention --device cpu --dtype f16 --json -
  kvarena bench attention --prefill                        prompts
  kvarena bench attention --columns --shared-prefix        drafts, wide groups, shared blocks
  kvarena bench attention --latents                        latents (MLA)
  kvarena bench attention --kinds                          windows, chunks, V with fewer dims
  kvarena bench attention --prefill --row 1x8k,fp8-1x8k    two rows of these
  kvarena bench attention --batch 4 --q-len 2048 --cached 6k four chunks behind cached tokens
  kvarena bench attention --preset all --peers             what public kernels take

A row: the bytes of K and V; the time to only read as many (floor); the time of attention in one
layer, its share of the schedule included; the same in GB/s, as a multiple of the floor and as a
share of what a large read reaches; the time of a schedule, made once for all layers; the relative
error. Exit code 1: an error above twice that of rounding.
Rows of prompts and of more than 8 query columns also have TFLOP/s, their share of the GPU's peak,
and their speed as a multiple of what is measured beside them: a prompt of as much work, bf16 K and
V, two batches in place of a mixed one, or the same batch that is not told what is shared, or
without --batch-invariant.
)";

constexpr std::int64_t kCudaCeilingTurns = 8;  // of the rotated bytes: 8 GB
constexpr std::int64_t kCeilingUnit = 4096;
constexpr double kCpuFlops = 5e10;  // of the largest known row that a CPU measures

class BenchCommand {
 public:
  CLI::App* declare(CLI::App& parent);
  ExitCode run(const Console& console);

 private:
  bool complete(const Console& console, const Device& device);
  bool fit_to_cpu(const Console& console);

  AttentionBenchOptions rows_;
  ChosenProblems chosen_;
  DeviceChoice device_;
  meter::MeterOptions options_;
  std::optional<std::int64_t> rotated_bytes_;
  std::int32_t threads_ = 0;
  bool peers_ = false;
  std::string json_;
};

CLI::App* BenchCommand::declare(CLI::App& parent) {
  CLI::App* bench = parent.add_subcommand("bench", "Measure kernels on this machine");
  bench->require_subcommand(1);
  bench->footer("\nExamples:\n  kvarena bench attention --help\n");
  CLI::App* command =
      bench->add_subcommand("attention", "Attention beside the time to only read the same bytes");
  command->footer(kBenchFooter);
  add_device_option(*command, device_);
  rows_.declare(*command);
  add_count_option(*command, "--layers-per-schedule", options_.layers_per_schedule, 1, 1 << 16,
                   "Layers that share one schedule's time");
  add_count_option(*command, "--replays", options_.replays, 1, 1 << 16,
                   "Rounds that a median is taken of");
  add_bytes_option(*command, "--rotate", rotated_bytes_,
                   "K and V that the calls go round, so that caches hold nothing [default: 1GB]");
  add_count_option(*command, "--threads", threads_, 0, CpuWorkers::kMaxThreads,
                   "Threads on the CPU; 0: one a core");
  command->add_flag("--peers", peers_,
                    "Only print how kvarena is compared with public kernels, and what those take");
  declare_json_option(*command, json_);
  return bench;
}

// Leaves out the known rows that a CPU cannot compute, or not in a reasonable time. Reports when
// none is left.
bool BenchCommand::fit_to_cpu(const Console& console) {
  std::vector<AttentionProblem>& rows = chosen_.problems;
  const auto is_too_large = [](const AttentionProblem& row) {
    const bool is_fp8 = bytes_of(row.shape.dtype) == 1;
    return !row.name.empty() && (is_fp8 || flops(row) > kCpuFlops);
  };
  const std::size_t left_out = std::erase_if(rows, is_too_large);
  // The CPU has no other way to read shared blocks.
  for (AttentionProblem& row : rows) {
    std::erase_if(row.beside, [](const AttentionProblem& other) { return !other.reads_shared; });
  }
  const std::string text = fmt::format(
      "{} rows are left out on the CPU: they have fp8 K and V, or more than {:.0f} "
      "GFLOP",
      left_out, kCpuFlops / 1e9);
  if (rows.empty()) {
    console.error(text, "rows that a CPU can measure", "choose a GPU, or other rows");
    return false;
  }
  if (left_out > 0) console.warning(text);
  return true;
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

ExitCode BenchCommand::run(const Console& console) {
  if (!are_different_files(console, {{"--json", json_}}, {"--lengths", rows_.lengths_path()})) {
    return ExitCode::usage;
  }
  chosen_ = rows_.choose(console);
  if (chosen_.code != ExitCode::ok) return chosen_.code;
  if (peers_) {
    return print_result(console, json_, peers_text(chosen_.problems), peers_json(chosen_.problems));
  }
  if (const ExitCode code = probe_json(console, json_); code != ExitCode::ok) return code;
  const Interrupt interrupt;
  options_.stop = &interrupt.came();
  const auto opened = open_device(console, device_);
  if (!opened) return ExitCode::environment;
  if (rows_.is_fp8() && opened->cuda == nullptr) {
    console.error("--dtype fp8: attention on the CPU has no fp8", "bf16 or f16, or a GPU",
                  "leave --dtype out; with --peers fp8 shows what public kernels take");
    return ExitCode::usage;
  }
  if (rows_.is_batch_invariant() && opened->cuda == nullptr) {
    console.error("--batch-invariant: on the CPU no result depends on the batch", "a GPU",
                  "leave --batch-invariant out");
    return ExitCode::usage;
  }
  if (opened->cuda == nullptr && !fit_to_cpu(console)) return ExitCode::usage;
  if (!complete(console, *opened->device)) return ExitCode::does_not_fit;
  AttentionBenchRun rows{*opened->device, options_, chosen_.problems, json_};
  if (opened->cuda != nullptr) {
    const CudaDeviceInfo info = opened->cuda->info();
    rows.data_sheet = data_sheet_of(info.name, info.num_sms);
  }
  auto meter = opened->cuda != nullptr ? meter::make_cuda_meter(*opened->cuda, options_)
                                       : meter::make_host_meter(*opened->device, options_);
  if (!meter) return rows.report(console, "the pool", meter.status());
  return rows.run(console, **meter);
}

}  // namespace

Command bench_command(CLI::App& parent) { return make_command<BenchCommand>(parent); }

}  // namespace kvarena::tools
