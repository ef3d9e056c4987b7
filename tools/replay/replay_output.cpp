#include "tools/replay/replay_output.hpp"

#include "health/render/json.hpp"
#include "tools/option_values.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

namespace kvarena::tools {
namespace {

using Json = nlohmann::ordered_json;
using replay::AttentionMode;
using replay::ClockKind;
using replay::DurationSummary;
using replay::ReplayOptions;
using replay::ReplayOutcome;
using replay::ReplayReport;
using verify::MeasuredReport;

constexpr std::int64_t kRedrawNs = 200'000'000;
constexpr int kBarCells = 24;

// Of no durations there is nothing to say.
Json json_of(const DurationSummary& durations) {
  if (durations.count == 0) return nullptr;
  return {{"count", durations.count},   {"mean_us", durations.mean_us},
          {"p50_us", durations.p50_us}, {"p90_us", durations.p90_us},
          {"p99_us", durations.p99_us}, {"max_us", durations.max_us}};
}

// What the roofline clock computes with; null on any other.
Json roofline_json(const ReplayOptions& options) {
  if (!options.roofline) return nullptr;
  const capacity::StepTimeOptions& numbers = options.roofline->options();
  return {{"flops_per_second", numbers.flops_per_second},
          {"bandwidth_bytes_per_second", numbers.bandwidth_bytes_per_second},
          {"layer_bytes", numbers.layer_bytes},
          {"head_bytes", numbers.head_bytes},
          {"efficiency_matrices", numbers.efficiency.matrices},
          {"efficiency_attention", numbers.efficiency.attention},
          {"efficiency_bandwidth", numbers.efficiency.bandwidth}};
}

Json options_json(const ReplayOptions& options) {
  return {
      {"clock", name_of(options.clock)},
      {"roofline", roofline_json(options)},
      {"reserve", name_of(options.reserve)},
      {"preempted", options.keep_preempted ? "keep" : "drop"},
      {"prefix_cache", options.prefix_cache},
      {"policy", options.prefix_cache ? Json(name_of(options.policy)) : Json()},
      {"salt_column", options.trace.salt_column.empty() ? Json() : Json(options.trace.salt_column)},
      {"prefill_us", static_cast<double>(options.costs.prefill_ns) / 1e3},
      {"decode_us", static_cast<double>(options.costs.decode_ns) / 1e3},
      {"step_us", static_cast<double>(options.costs.step_ns) / 1e3},
      {"max_running", options.limits.max_running},
      {"max_context", options.limits.max_context_tokens},
      {"max_batched_tokens", options.limits.max_batched_tokens},
      {"samples", options.samples}};
}

Json verification_json(const ReplayOptions& options, const ReplayReport& report) {
  const auto& seen = report.verification;
  return {{"mode", name_of(options.attention.mode)},
          {"kv_bytes_written", seen.kv_bytes_written},
          {"kv_bytes_compared", seen.kv_bytes_compared},
          {"state_bytes_written", seen.state_bytes_written},
          {"state_bytes_compared", seen.state_bytes_compared},
          {"index_bytes_written", seen.index_bytes_written},
          {"index_bytes_compared", seen.index_bytes_compared},
          {"sequences_compared", seen.sequences_compared},
          {"attention_rows", seen.attention_rows},
          {"max_error", seen.max_error},
          {"tolerance", seen.tolerance},
          {"failures", seen.failures}};
}

Json measured_json(const MeasuredReport& measured) {
  if (measured.device.empty()) return nullptr;
  return {{"device", measured.device},
          {"decode_steps", measured.decode_steps},
          {"decode_kv_bytes", measured.decode_kv_bytes},
          {"decode_us", measured.decode_us},
          {"decode_gb_per_s", measured.decode_gb_per_s()},
          {"prompt_steps", measured.prompt_steps},
          {"prompt_us", measured.prompt_us}};
}

std::string milliseconds(std::int64_t us) {
  if (us < 1'000'000) return fmt::format("{:.1f} ms", static_cast<double>(us) / 1e3);
  return fmt::format("{:.1f} s", static_cast<double>(us) / 1e6);
}

std::string durations_line(const DurationSummary& durations) {
  if (durations.count == 0) return "of no request";
  return fmt::format("median {}, 90 % {}, 99 % {}, longest {}", milliseconds(durations.p50_us),
                     milliseconds(durations.p90_us), milliseconds(durations.p99_us),
                     milliseconds(durations.max_us));
}

double percent(double part, double whole) { return whole > 0.0 ? 100.0 * part / whole : 0.0; }

std::string traffic_lines(const ReplayReport& r) {
  return fmt::format(
      "  requests       {} served{}, of {}; {} prompt and {} output tokens\n"
      "  virtual time   {:.1f} s\n",
      grouped(r.completed),
      r.rejected > 0
          ? fmt::format(", {} rejected (too long for pool or context)", grouped(r.rejected))
          : "",
      grouped(r.requests), grouped(r.input_tokens), grouped(r.output_tokens),
      static_cast<double>(r.virtual_us) / 1e6);
}

std::string engine_lines(const ReplayOptions& options, const ReplayReport& r) {
  std::string text = fmt::format(
      "  queueing       {}\n"
      "  latency        {}\n",
      durations_line(r.queueing), durations_line(r.latency));
  if (options.clock == ClockKind::linear) return text;
  text += fmt::format("  engine         {} steps: {} prompt and {} output tokens computed\n",
                      grouped(r.steps), grouped(r.prefill_tokens), grouped(r.decode_tokens));
  text += fmt::format("  preemptions    {}; {} tokens computed again\n", grouped(r.preemptions),
                      grouped(r.recomputed_tokens));
  if (r.forks > 0) {
    text += fmt::format("  forks          {}; {} blocks copied on write\n", grouped(r.forks),
                        grouped(r.copies_on_write));
  }
  return text;
}

std::string pool_lines(const ReplayOptions& options, const ReplayReport& r,
                       const std::string& model_name) {
  const auto total = static_cast<double>(r.num_blocks);
  std::string size = r.pool_bytes > 0 ? ", " + human_bytes(r.pool_bytes) : "";
  if (options.pool.pool_bytes) {
    size = fmt::format(", what {} hold of {}", human_bytes(*options.pool.pool_bytes), model_name);
  } else if (!options.pool.num_blocks) {
    size += r.worst_case_blocks > 0 ? ", what fits" : ", sized for the worst case";
  }
  const bool has_groups = !r.groups.empty();
  const std::string units = has_groups ? fmt::format("pages of {} B", grouped(r.pages.page_bytes))
                                       : fmt::format("blocks of {} tokens", r.block_size);
  std::string text = fmt::format(
      "  pool           {} {}{}{}\n"
      "  in use         peak {} {} ({:.1f} %), mean over time {:.3f}; peak {} sequences\n",
      grouped(r.num_blocks), units, size,
      r.watermark_blocks > 0 ? fmt::format(", watermark {}", grouped(r.watermark_blocks)) : "",
      grouped(r.peak_blocks), has_groups ? "pages" : "blocks",
      percent(static_cast<double>(r.peak_blocks), total), r.time_mean_blocks,
      grouped(r.peak_requests));
  if (has_groups) return text + group_lines(r);
  return text +
         fmt::format("  waste          {:.4f} % of the slots of {} blocks at final lengths\n",
                     100.0 * r.waste, grouped(r.final_blocks));
}

std::string verification_lines(const ReplayOptions& options, const ReplayReport& r,
                               const std::string& model_name) {
  if (options.attention.mode == AttentionMode::off) {
    return "  attention      off: no bytes exist\n";
  }
  const auto& seen = r.verification;
  std::string states;
  if (seen.state_bytes_written > 0) {
    states =
        fmt::format("  states         {} written, {} read back at the slots of steps and equal\n",
                    human_bytes(seen.state_bytes_written), human_bytes(seen.state_bytes_compared));
  }
  std::string indexes;
  if (seen.index_bytes_written > 0) {
    indexes =
        fmt::format("  index keys     {} written, {} read back through the tables and equal\n",
                    human_bytes(seen.index_bytes_written), human_bytes(seen.index_bytes_compared));
  }
  return states + indexes +
         fmt::format(
             "  KV content     {}, {} layers: {} written, {} read back through the tables "
             "and equal\n"
             "  attention      {} rows against contiguous double precision, largest "
             "relative error {:.1e} "
             "(limit {:.1e})\n",
             model_name, options.attention.shape.num_layers, human_bytes(seen.kv_bytes_written),
             human_bytes(seen.kv_bytes_compared), grouped(seen.attention_rows), seen.max_error,
             seen.tolerance);
}

std::string measured_lines(const MeasuredReport& measured) {
  if (measured.device.empty()) return {};
  return fmt::format(
      "  measured       {}, attention of all layers: {} decode steps read {:.1f} GB of K and V in "
      "{:.3f} s, {:.0f} GB/s; {} steps with prompts took {:.3f} s\n",
      measured.device, grouped(measured.decode_steps),
      static_cast<double>(measured.decode_kv_bytes) / 1e9, measured.decode_us / 1e6,
      measured.decode_gb_per_s(), grouped(measured.prompt_steps), measured.prompt_us / 1e6);
}

std::string seconds(double s) {
  const std::int64_t whole = std::llround(s);
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
}

std::string rate_text(double per_second) {
  if (per_second >= 1e6) return fmt::format("{:.1f}M tokens/s", per_second / 1e6);
  if (per_second >= 1e3) return fmt::format("{:.1f}k tokens/s", per_second / 1e3);
  return fmt::format("{:.0f} tokens/s", per_second);
}

}  // namespace

Json json_of(const ReplayOptions& options, const ReplayOutcome& outcome) {
  const ReplayReport& r = outcome.report;
  Json json;
  json["trace"] = options.trace.path;
  json["format"] = r.trace_format;
  json["ok"] = outcome.end == replay::ReplayEnd::completed;
  if (outcome.end == replay::ReplayEnd::interrupted) json["interrupted"] = true;
  if (!outcome.why.is_empty()) json["failure"] = headline(outcome.why);
  json["options"] = options_json(options);
  json["requests"] = r.requests;
  json["completed"] = r.completed;
  json["rejected"] = r.rejected;
  json["input_tokens"] = r.input_tokens;
  json["output_tokens"] = r.output_tokens;
  json["block_size"] = r.block_size;
  json["num_blocks"] = r.num_blocks;
  if (r.worst_case_blocks > 0) json["worst_case_blocks"] = r.worst_case_blocks;
  json["pool_bytes"] = r.pool_bytes;
  json["watermark_blocks"] = r.watermark_blocks;
  json["peak_blocks"] = r.peak_blocks;
  json["peak_requests"] = r.peak_requests;
  json["time_mean_blocks"] = r.time_mean_blocks;
  json["final_blocks"] = r.final_blocks;
  json["final_tokens"] = r.final_tokens;
  json["waste"] = r.waste;
  json["virtual_us"] = r.virtual_us;
  json["steps"] = r.steps;
  json["prefill_tokens"] = r.prefill_tokens;
  json["decode_tokens"] = r.decode_tokens;
  json["preemptions"] = r.preemptions;
  json["recomputed_tokens"] = r.recomputed_tokens;
  json["forks"] = r.forks;
  json["copies_on_write"] = r.copies_on_write;
  json["prefix_cache"] = prefix_json(r);
  json["queueing"] = json_of(r.queueing);
  json["latency"] = json_of(r.latency);
  json["groups"] = groups_json(r);
  json["pages"] = pages_json(r);
  json["balanced"] = r.balanced;
  json["account"] = blocks_json(r.account);
  json["verification"] = verification_json(options, r);
  json["measured"] = measured_json(r.measured);
  return json;
}

std::string summary_of(const Console& console, const std::ostream& stream,
                       const ReplayOptions& options, const ReplayOutcome& outcome,
                       const std::string& model_name) {
  const ReplayReport& r = outcome.report;
  const bool ok = outcome.end == replay::ReplayEnd::completed;
  const bool interrupted = outcome.end == replay::ReplayEnd::interrupted;
  std::string text =
      fmt::format("{}{}{} ({} trace, {} clock, reserve {}){}\n", console.bold(stream),
                  options.trace.path, console.plain(stream), r.trace_format, name_of(options.clock),
                  name_of(options.reserve), interrupted ? ": interrupted" : "");
  text += traffic_lines(r);
  text += engine_lines(options, r);
  text += pool_lines(options, r, model_name);
  text += prefix_lines(options, r);
  text += verification_lines(options, r, model_name);
  text += measured_lines(r.measured);
  const BlockStats& a = r.account;
  text += fmt::format(
      "  account        {}{}{}: {} free + {} fenced + {} evictable + {} referenced + {} offline = "
      "{}\n",
      (ok || interrupted) && r.balanced ? console.green(stream) : console.red(stream),
      r.balanced ? "balanced" : "NOT balanced", console.plain(stream), grouped(a.free),
      grouped(a.fenced), grouped(a.evictable), grouped(a.referenced), grouped(a.offline),
      grouped(a.num_blocks));
  text += page_account_line(r);
  return text;
}

std::string progress_line(const replay::ReplayProgress& progress, double elapsed_s) {
  const double rate = elapsed_s > 0.0 ? static_cast<double>(progress.tokens_done) / elapsed_s : 0.0;
  if (progress.tokens_total == 0) {
    return fmt::format("{} requests  {}", grouped(progress.requests_done), rate_text(rate));
  }
  // Recomputed tokens are done but not in the total: the share stays below 1 until the end.
  const double share = std::min(
      1.0, static_cast<double>(progress.tokens_done) / static_cast<double>(progress.tokens_total));
  const auto filled = static_cast<std::size_t>(share * kBarCells);
  const double left_s =
      rate > 0.0 ? (1.0 - share) * static_cast<double>(progress.tokens_total) / rate : 0.0;
  return fmt::format("[{}{}] {:5.1f} %  {}/{} requests  {}  {} left", std::string(filled, '#'),
                     std::string(kBarCells - filled, '.'), share * 100.0,
                     grouped(progress.requests_done), grouped(progress.requests_total),
                     rate_text(rate), seconds(left_s));
}

ProgressBar::ProgressBar(const Console& console, const Clock& clock)
    : console_(console),
      clock_(clock),
      enabled_(console.err_is_terminal && !console.quiet),
      start_ns_(clock.now_ns()),
      next_ns_(start_ns_ + kRedrawNs) {}

ProgressBar::~ProgressBar() { erase(); }

void ProgressBar::on_progress(const replay::ReplayProgress& progress) {
  if (!enabled_) return;
  const std::int64_t now_ns = clock_.now_ns();
  if (now_ns < next_ns_) return;
  next_ns_ = now_ns + kRedrawNs;
  drawn_ = true;
  console_.err << "\r\x1b[K"
               << progress_line(progress, static_cast<double>(now_ns - start_ns_) / 1e9)
               << std::flush;
}

void ProgressBar::erase() {
  if (drawn_) console_.err << "\r\x1b[K" << std::flush;
  drawn_ = false;
}

}  // namespace kvarena::tools
