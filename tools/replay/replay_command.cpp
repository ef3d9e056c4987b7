#include "tools/replay/replay_command.hpp"

#include "tools/interrupt.hpp"
#include "tools/option_values.hpp"
#include "tools/replay/replay_output.hpp"

#include "replay/replay.hpp"

#include "kvarena/cache/kv_cache_options.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace kvarena::tools {
namespace {

using replay::AttentionMode;
using replay::ClockKind;
using replay::ReplayEnd;
using replay::ReplayOutcome;
using replay::ReplayReport;
using replay::Reserve;

constexpr std::chrono::milliseconds kRepublish{250};  // while it lingers

/// The distance of checkpoints that is next to the usual one, in whole blocks.
std::int64_t checkpoint_distance(std::int64_t block_size) {
  const std::int64_t usual = KvCacheOptions{}.checkpoint_every_tokens;
  return std::max<std::int64_t>(usual / block_size, 1) * block_size;
}

}  // namespace

bool ReplayCommand::take_roofline(const Console& console) {
  if (!roofline_.is_given()) return true;
  if (shape_.any_number()) {
    console.error("--gpu with numbers of a model shape", "a built-in model as it is",
                  "leave the numbers out, or use --clock step");
    return false;
  }
  options_.roofline = roofline_.choose(console, model_.name());
  return options_.roofline.has_value();
}

bool ReplayCommand::uses_stdout() const noexcept {
  return json_on_stdout(json_) || timeline_.is_on_stdout() || request_times_.is_on_stdout();
}

bool ReplayCommand::take_outputs(const Console& console) const {
  return are_different_files(console, {{"--json", json_}, timeline_.file(), request_times_.file()},
                             {"the trace", options_.trace.path});
}

// What cannot be written is refused before anything runs.
ExitCode ReplayCommand::open_outputs(const Console& console) {
  ExitCode code = probe_json(console, json_);
  if (code == ExitCode::ok) code = timeline_.open(console);
  if (code == ExitCode::ok) code = request_times_.open(console);
  options_.timeline = timeline_.stream();
  options_.request_times = request_times_.stream();
  return code;
}

// A GPU that is named is used, or the command fails.
bool ReplayCommand::take_device(const Console& console) {
  if (device_.kind != DeviceChoice::Kind::cuda || attention_ != "off") return true;
  console.error(fmt::format("--device cuda:{} with --attention off", device_.ordinal),
                "attention: without it no bytes exist, and nothing runs on a device",
                "add --attention sample, or leave --device out");
  return false;
}

bool ReplayCommand::take_prefix_cache(const Console& console) {
  options_.policy = pure_cache_.policy();
  const std::string option = pure_cache_.cache_option_given();
  if (options_.prefix_cache || option.empty()) return true;
  console.error(fmt::format("{} without a prefix cache", option), "a cache that it is about",
                "add --prefix-cache or --pure-cache BLOCKS");
  return false;
}

bool ReplayCommand::complete(const Console& console) {
  if (!take_outputs(console)) return false;  // first: other refusals are written to --json
  auto chosen = model_.choose(console, shape_);
  if (!chosen || !take_device(console) || !take_roofline(console) || !take_prefix_cache(console)) {
    return false;
  }
  chosen_ = std::move(*chosen);
  options_.groups = {.list = chosen_.groups.groups,
                     .page_sequence_tokens = chosen_.longest_context,
                     .checkpoint_every_tokens = checkpoint_distance(shape_.block_size())};
  const ChosenShape* const shape = &chosen_.shape;
  options_.trace.format = *trace::trace_format_of(format_);
  options_.clock = clock_ == "linear"     ? ClockKind::linear
                   : clock_ == "roofline" ? ClockKind::roofline
                                          : ClockKind::step;
  options_.keep_preempted = preempted_ == "keep";
  const bool linear = options_.clock == ClockKind::linear;
  if (reserve_.empty()) reserve_ = linear ? "full" : "prompt";
  options_.reserve = reserve_ == "full"     ? Reserve::full
                     : reserve_ == "prompt" ? Reserve::prompt
                                            : Reserve::none;
  options_.limits.max_running = max_running_.value_or(linear ? 0 : 256);
  options_.timeline_ns = timeline_ms_ * 1'000'000;
  auto& attention = options_.attention;
  attention.mode = attention_ == "off"      ? AttentionMode::off
                   : attention_ == "sample" ? AttentionMode::sample
                                            : AttentionMode::full;
  attention.num_q_heads = shape->num_q_heads;
  attention.num_threads =
      threads_ > 0
          ? threads_
          : static_cast<std::int32_t>(std::clamp(std::thread::hardware_concurrency(), 1U, 256U));
  attention.shape.num_layers = shape->num_layers;
  attention.shape.num_kv_heads = shape->num_kv_heads;
  attention.shape.head_dim_k = shape->head_dim_k;
  attention.shape.head_dim_v = shape->head_dim_v;
  attention.shape.dtype = shape->dtype;
  attention.shape.block_size_tokens = shape->block_size;
  return true;
}

std::optional<ReplayOutcome> ReplayCommand::replay(const Console& console, ExitCode* code) {
  *code = ExitCode::environment;
  if (options_.attention.mode != AttentionMode::off) {
    opened_ = open_device(console, device_);
    if (!opened_) return std::nullopt;
    options_.attention.device = opened_->device.get();
  }
  if (http_.is_given()) {
    const auto token = http_.token(console);
    if (!token) {
      *code = ExitCode::bad_input;
      return std::nullopt;
    }
    server_ =
        ReplayServer::start(console, http_.address(), *token, options_.attention.device, code);
    if (!server_) return std::nullopt;
  }
  const Clock& clock = steady_clock();
  const std::int64_t start_ns = clock.now_ns();
  ReplayOutcome outcome;
  {
    ProgressBar bar(console, clock);
    outcome = run_replay(options_, &bar, server_.get());
  }
  options_.attention.device = nullptr;
  elapsed_s_ = static_cast<double>(clock.now_ns() - start_ns) / 1e9;
  return outcome;
}

void ReplayCommand::warn(const Console& console, const ReplayReport& report) const {
  if (report.rejected > 0 && report.completed > 0) {
    console.warning(
        fmt::format("{} of {} requests were rejected: longer than the context or the pool "
                    "can ever hold; the first, {}",
                    report.rejected, report.requests, report.first_rejection));
  }
  if (report.worst_case_blocks > 0) {
    console.warning(fmt::format(
        "the worst case of {} blocks does not fit: the pool has {}, what the "
        "free memory of {} holds",
        grouped(report.worst_case_blocks), grouped(report.num_blocks), report.measured.device));
  }
}

ExitCode ReplayCommand::run_pure_cache(const Console& console) {
  if (!take_outputs(console)) return ExitCode::usage;
  Interrupt interrupt;
  replay::PureCacheOptions options;
  options.trace = options_.trace;
  options.trace.format = *trace::trace_format_of(format_);
  options.trace.stop = &interrupt.came();
  options.max_requests = options_.limits.max_requests;
  return pure_cache_.run(console, std::move(options), json_);
}

ExitCode ReplayCommand::run(const Console& console) {
  if (pure_cache_.is_given()) return run_pure_cache(console);
  if (!complete(console)) return ExitCode::usage;
  Interrupt interrupt;
  ExitCode code = open_outputs(console);
  if (code != ExitCode::ok) return code;
  options_.trace.stop = &interrupt.came();
  const auto replayed = replay(console, &code);
  if (!replayed) return code;
  code = report(console, *replayed);
  if (http_.lingers() && replayed->has_report && !interrupt.came()) {
    console.note("serving on; Ctrl-C ends it");
    while (!interrupt.wait_for(kRepublish)) server_->publish();
  }
  return code;
}

ExitCode ReplayCommand::write_results(const Console& console, const ReplayOutcome& outcome) {
  const ExitCode codes[] = {timeline_.commit(console), request_times_.commit(console),
                            write_json(console, json_, json_of(options_, outcome))};
  const auto* failed =
      std::ranges::find_if(codes, [](ExitCode code) { return code != ExitCode::ok; });
  return failed == std::end(codes) ? ExitCode::ok : *failed;
}

ExitCode ReplayCommand::report(const Console& console, const ReplayOutcome& outcome) {
  const bool is_cut = outcome.end == ReplayEnd::interrupted && console.is_unread();
  if (outcome.end != ReplayEnd::completed && !is_cut) console.error(outcome.why);
  if (!outcome.has_report) return exit_code_of(outcome.end);
  const auto& report = outcome.report;
  if (!is_cut) warn(console, report);
  if (!console.quiet && !is_cut) {
    std::ostream& stream = uses_stdout() ? console.err : console.out;
    stream << summary_of(console, stream, options_, outcome, chosen_.shape.name) << std::flush;
    const auto tokens = static_cast<double>(report.prefill_tokens + report.decode_tokens);
    const auto rate = static_cast<std::int64_t>(tokens / std::max(elapsed_s_, 1e-9));
    console.note(
        fmt::format("replayed in {:.2f} s ({} tokens a second)", elapsed_s_, grouped(rate)));
  }
  const ExitCode written = write_results(console, outcome);
  const ExitCode code = exit_code_of(outcome.end);
  return code == ExitCode::ok ? written : code;
}

}  // namespace kvarena::tools
