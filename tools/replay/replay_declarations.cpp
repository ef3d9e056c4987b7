#include "tools/command_line.hpp"
#include "tools/nearest_name.hpp"
#include "tools/option_values.hpp"
#include "tools/replay/replay_command.hpp"

#include "base/excerpt.hpp"

#include "kvarena/capacity/gpu_spec.hpp"
#include "kvarena/capacity/model_presets.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

namespace kvarena::tools {
namespace {

constexpr std::int64_t kMaxCount = std::int64_t{1} << 40;

/// Permille of "2%", "0.5%".
std::optional<std::int32_t> permille(std::string_view text) {
  if (!text.ends_with('%')) return std::nullopt;
  const auto thousandths = parse_microseconds(text.substr(0, text.size() - 1));
  if (!thousandths || *thousandths % 100 != 0 || *thousandths > 90'000) return std::nullopt;
  return static_cast<std::int32_t>(*thousandths / 100);
}

[[noreturn]] void refuse(const char* option, const std::string& text, const char* is,
                         std::string expected) {
  throw CLI::ValidationError(
      option, refusal_text({.found = fmt::format("\"{}\" is {}", printable(text), is),
                            .expected = std::move(expected)}));
}

void take_blocks(const std::string& text, replay::ReplayPool& pool) {
  pool.num_blocks.reset();
  if (text == "unlimited") return;
  pool.num_blocks = parse_whole_number(text);
  if (pool.num_blocks && *pool.num_blocks >= 1 && *pool.num_blocks <= KvLayout::kMaxBlocks) return;
  refuse("--blocks", text, "no number of blocks",
         fmt::format("a whole number 1 .. {}, or unlimited (--pool-bytes takes a size)",
                     KvLayout::kMaxBlocks));
}

void take_watermark(const std::string& text, replay::ReplayPool& pool) {
  const auto share = permille(text);
  pool.watermark_blocks = parse_whole_number(text);
  if (share) pool.watermark_permille = *share;
  if (share || pool.watermark_blocks) return;
  refuse("--watermark", text, "no watermark",
         "a number of blocks, or a share of the pool such as 2% (at most 90%)");
}

constexpr const char* kReplayFooter = R"(
Examples:
  kvarena replay trace.jsonl
      an engine of 256 sequences with as many blocks as it can need; no KV bytes exist
  kvarena replay trace.jsonl --blocks 20000 --reserve none
      a small pool and careless admission: watch the preemptions
  kvarena replay trace.jsonl --model Llama-3.1-8B --pool-bytes 24GiB --timeline series.csv
      the pool of a 24 GiB budget, and how full it was in every second
  kvarena replay trace.jsonl --requests 50 --attention sample --model Qwen2.5-0.5B
      with real bytes: all KV of 24 layers is written, and read back through the tables
  kvarena replay trace.jsonl --device cuda:0 --attention full --model Llama-3.1-8B
      on a GPU: attention of every layer in every step, all of it compared, and its GB/s
  kvarena replay trace.jsonl --model Gemma-3-27B --pool-bytes 40GB
      layers with windows beside full ones: the pages of a pool, its groups and its waste
  kvarena replay trace.jsonl --model Qwen3-Next-80B-A3B --layers 4 --attention sample --device cpu
      the first four layers of a model with recurrent states: each step finds the right one
  kvarena replay trace.jsonl --clock roofline --gpu H200-SXM --model Llama-3.1-8B --blocks 20000
      steps that take what an H200 needs for them: when would each request be served?
  zstdcat day1.zst day2.zst | kvarena replay - --blocks 20000
      a trace from a pipe, which is read once: the pool needs a size
  kvarena replay trace.jsonl --blocks 20000 --prefix-cache
      the same engine with a prefix cache: which prompt tokens need not be computed, and why others
      had to be
  kvarena replay trace.jsonl --blocks 20000 --prefix-cache --policy lfu --salt-column tenant
      what is used often stays longer; tenants find only what they have computed themselves
  kvarena replay trace.jsonl --pure-cache 10000 --policy tail-first
      how many blocks of the prompts a prefix cache of 10000 blocks would have
  kvarena replay trace.jsonl --http 127.0.0.1:15858 --linger
      health, metrics and stats while it runs and after it, until Ctrl-C (see 'kvarena monitor')
  kvarena replay trace.jsonl --reserve full --blocks unlimited --clock linear \
      --prefill-us 100 --decode-us 20000 --json -
      the occupancy of an ideal device as one JSON object

Traces: Mooncake JSONL, Azure CSV, agent JSONL, vLLM-run JSONL (docs/reference/traces.md).
)";

}  // namespace

CLI::App* ReplayCommand::declare(CLI::App& parent) {
  CLI::App* command = parent.add_subcommand(
      "replay", "Serve a request trace through the block manager on a virtual clock");
  command->footer(kReplayFooter);
  command
      ->add_option("TRACE", options_.trace.path,
                   "The trace, plain or compressed by gzip or zstd; '-': standard input")
      ->required()
      ->type_name("FILE|-");
  add_choice_option(*command, "--format", format_, trace::trace_format_names(), "Its format");
  add_count_option(*command, "--requests", options_.limits.max_requests, 0, kMaxCount,
                   "Only the first N requests; 0: all");
  pure_cache_.declare(*command, options_.trace.salt_column);
  declare_clock(*command);
  declare_engine(*command);
  declare_pool(*command);
  shape_.declare(*command);
  declare_attention(*command);
  http_.declare(*command);
  timeline_.declare(*command,
                    "Write the series of running, waiting, blocks ... as CSV to FILE, or to "
                    "standard output for '-'");
  add_count_option(*command, "--timeline-ms", timeline_ms_, 1, std::int64_t{1} << 32,
                   "Virtual time between its rows");
  request_times_.declare(*command,
                         "Write when each request arrived, started and ended as CSV to FILE, or "
                         "to standard output for '-'");
  declare_json_option(*command, json_);
  pure_cache_.exclude_engine(*command);
  return command;
}

void ReplayCommand::declare_clock(CLI::App& command) {
  const OptionGroup group(command, "Engine");
  add_choice_option(command, "--clock", clock_, {"step", "roofline", "linear"},
                    "step: an engine that runs one step after another at fixed costs. roofline: "
                    "the same engine, with the times that --gpu needs. linear: each request on its "
                    "own time line, holding its final length");
  auto* prefill = add_microseconds_option(command, "--prefill-us", options_.costs.prefill_ns,
                                          "Cost of a prompt token");
  auto* decode =
      add_microseconds_option(command, "--decode-us", options_.costs.decode_ns,
                              "Cost of a step that decodes (linear: of an output token)");
  roofline_.declare(command)->excludes(prefill)->excludes(decode);
  add_microseconds_option(command, "--step-us", options_.costs.step_ns, "Cost of any step on top");
}

void ReplayCommand::declare_engine(CLI::App& command) {
  const OptionGroup group(command, "Engine");
  add_choice_option(command, "--reserve", reserve_, {"full", "prompt", "none"},
                    "What admission secures: full (prompt and output), prompt, none "
                    "[default: prompt; linear: full]");
  add_choice_option(command, "--preempted", preempted_, {"drop", "keep"},
                    "Blocks of a preempted sequence: drop all at once, or keep what nobody needs "
                    "meanwhile");
  command.add_flag("--prefix-cache", options_.prefix_cache,
                   "Sequences begin with the cached blocks of equal prompts, by the trace's ids; "
                   "these tokens are not computed");
  add_count_option(command, "--max-running", max_running_, 0, kMaxCount,
                   "Sequences at a time; 0: unlimited [default: 256; linear: 0]");
  add_count_option(command, "--max-batched-tokens", options_.limits.max_batched_tokens, 0,
                   (std::int64_t{1} << 31) - 1,
                   "Tokens a step; prompts are cut into chunks; 0: unlimited");
  add_count_option(command, "--max-context", options_.limits.max_context_tokens, 0, kMaxCount,
                   "Longest prompt + output; longer requests are rejected; 0: unlimited");
  add_count_option(command, "--samples", options_.samples, 1, 256,
                   "Sequences a request forks into after its prompt (copy-on-write)");
}

void ReplayCommand::declare_pool(CLI::App& command) {
  const OptionGroup group(command, "Pool");
  auto* blocks = command.add_option_function<std::string>(
      "--blocks", [this](const std::string& text) { take_blocks(text, options_.pool); },
      "Blocks, or unlimited: the trace's own worst case [default: unlimited]");
  blocks->type_name("N|unlimited");
  add_bytes_option(command, "--pool-bytes", options_.pool.pool_bytes,
                   "Or as many blocks of the model shape as fit")
      ->excludes(blocks);
  command
      .add_option_function<std::string>(
          "--watermark", [this](const std::string& text) { take_watermark(text, options_.pool); },
          "Blocks that admission leaves for running sequences "
          "[default: 1%; none with --reserve full or an unlimited pool]")
      ->type_name("N|P%");
}

void ReplayCommand::declare_attention(CLI::App& command) {
  const OptionGroup group(command, "Attention");
  add_choice_option(command, "--attention", attention_, {"off", "sample", "full"},
                    "off: no bytes exist. sample: all KV is written; each sequence's bytes are "
                    "compared in one layer, attention in some steps. full: compare all");
  add_device_option(command, device_);
  model_.declare(command);
  add_count_option(command, "--sample-every", options_.attention.sample_every, 1, kMaxCount,
                   "Steps from one compared step to the next");
  add_count_option(command, "--threads", threads_, 0, 256,
                   "CPU: threads of attention; 0: one a core");
}

CLI::Option* RooflineOptions::declare(CLI::App& command) {
  const OptionGroup group(command, "Roofline clock");
  const auto share = [&](const char* name, double& value, const char* help) {
    add_number_option(command, name, value, 0.01, 1.0, help)->type_name("SHARE");
  };
  share("--efficiency-matrices", efficiency_.matrices, "Of its peak that matrices reach");
  share("--efficiency-attention", efficiency_.attention, "Of its peak that attention reaches");
  share("--efficiency-bandwidth", efficiency_.bandwidth,
        "Of its bandwidth at which weights and KV are read");
  return command.add_option("--gpu", gpu_, "The GPU that serves --model, e.g. H200-SXM")
      ->type_name("GPU")
      ->check([](const std::string& text) { return refusal_text(gpu_finding(text)); });
}

std::optional<capacity::StepTimeModel> RooflineOptions::choose(const Console& console,
                                                               const std::string& model) const {
  const capacity::GpuSpec* gpu = capacity::find_gpu(gpu_name_of(gpu_));
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

Command replay_command(CLI::App& parent) { return make_command<ReplayCommand>(parent); }

}  // namespace kvarena::tools
