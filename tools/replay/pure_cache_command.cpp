#include "tools/replay/replay_command.hpp"

#include "tools/nearest_name.hpp"
#include "tools/option_values.hpp"
#include "tools/replay/replay_output.hpp"
#include "tools/result_file.hpp"

#include "base/excerpt.hpp"

#include "kvarena/base/clock.hpp"
#include "kvarena/base/layout.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

namespace kvarena::tools {
namespace {

using replay::PureCacheOptions;
using replay::PureCacheOutcome;
using replay::PureCacheReport;

// What chooses the requests and where the results go; all other options are an engine's.
constexpr std::array<std::string_view, 8> kSharedOptions{"TRACE",    "--format",     "--requests",
                                                         "--json",   "--help",       "--pure-cache",
                                                         "--policy", "--salt-column"};

// A trace says nothing of priorities.
constexpr bool is_for_traces(EvictionPolicy policy) { return policy != EvictionPolicy::priority; }

std::vector<std::string> policy_names() {
  std::vector<std::string> names;
  for (const EvictionPolicy policy : kEvictionPolicies) {
    if (is_for_traces(policy)) names.emplace_back(name_of(policy));
  }
  return names;
}

Finding policy_finding(const std::string& text) {
  if (const auto policy = eviction_policy_of(text); policy && is_for_traces(*policy)) return {};
  // The nearest name of "lru" is "lfu", which is not what is meant.
  const std::string meant = text == "lru" || text == "LRU" ? std::string("tail-first")
                                                           : nearest_name(text, policy_names());
  return {.found = fmt::format("\"{}\" is no eviction policy", printable(text)),
          .expected = fmt::format("{}one of {} (tail-first and head-first evict the least recently "
                                  "used block)",
                                  meant.empty() ? "" : fmt::format("did you mean {}? ", meant),
                                  fmt::join(policy_names(), ", "))};
}

std::string row(std::string_view name, std::int64_t all, std::int64_t hit, double rate) {
  return fmt::format("  {:<10}{:>16}{:>16}{:>11.4f} %\n", name, grouped(all), grouped(hit),
                     100.0 * rate);
}

}  // namespace

void PureCacheCommand::declare(CLI::App& command, std::string& salt_column) {
  const OptionGroup group(command, "Prefix cache");
  option_ = add_count_option(
      command, "--pure-cache", capacity_, 1, KvLayout::kMaxBlocks,
      "Count the hits of a prefix cache of so many blocks of the trace's own size: no engine, no "
      "clock. Of the other options only --format, --requests, --json, --policy and --salt-column "
      "go with it");
  option_->type_name("BLOCKS");
  policy_option_ = command.add_option(
      "--policy", policy_,
      "Which cached block is evicted first, with --pure-cache or --prefix-cache");
  policy_option_->type_name(fmt::format("{}", fmt::join(policy_names(), "|")))
      ->check([](const std::string& text) { return refusal_text(policy_finding(text)); })
      ->capture_default_str();
  salt_option_ = command.add_option(
      "--salt-column", salt_column,
      "Field of the JSON, or column of the CSV, that names the tenant; blocks of one tenant are "
      "never found by another. With --pure-cache or --prefix-cache");
  salt_option_->type_name("NAME");
}

std::string PureCacheCommand::cache_option_given() const {
  if (policy_option_->count() > 0) return "--policy";
  return salt_option_->count() > 0 ? "--salt-column" : "";
}

void PureCacheCommand::exclude_engine(CLI::App& command) {
  for (CLI::Option* other : command.get_options()) {
    const bool is_shared = std::ranges::any_of(kSharedOptions, [other](std::string_view name) {
      return other->check_name(std::string(name));
    });
    if (!is_shared) option_->excludes(other);
  }
}

ExitCode PureCacheCommand::run(const Console& console, PureCacheOptions options,
                               const std::string& json) const {
  options.capacity_blocks = *capacity_;
  options.policy = policy();
  if (const ExitCode code = probe_json(console, json); code != ExitCode::ok) return code;
  const Clock& clock = steady_clock();
  const std::int64_t start_ns = clock.now_ns();
  PureCacheOutcome outcome;
  {
    ProgressBar bar(console, clock);
    outcome = run_pure_cache(options, &bar);
  }
  const auto elapsed_s = static_cast<double>(clock.now_ns() - start_ns) / 1e9;
  const bool is_cut = outcome.end == verify::RunEnd::interrupted && console.is_unread();
  if (outcome.end != verify::RunEnd::completed && !is_cut) console.error(outcome.why);
  const ExitCode code = exit_code_of(outcome.end);
  if (!outcome.has_report) return code;
  if (!console.quiet && !is_cut) {
    std::ostream& stream = json_on_stdout(json) ? console.err : console.out;
    stream << table_of(console, stream, options, outcome) << std::flush;
    console.note(fmt::format("replayed in {:.2f} s", elapsed_s));
  }
  const ExitCode written = write_json(console, json, json_of(options, outcome));
  return code == ExitCode::ok ? written : code;
}

nlohmann::ordered_json json_of(const PureCacheOptions& options, const PureCacheOutcome& outcome) {
  const PureCacheReport& r = outcome.report;
  nlohmann::ordered_json json;
  json["trace"] = options.trace.path;
  json["format"] = r.trace_format;
  json["ok"] = outcome.end == verify::RunEnd::completed;
  if (outcome.end == verify::RunEnd::interrupted) json["interrupted"] = true;
  if (!outcome.why.is_empty()) json["failure"] = headline(outcome.why);
  json["policy"] = name_of(options.policy);
  json["capacity"] = options.capacity_blocks;
  json["block_tokens"] = r.block_tokens;
  json["requests"] = r.requests;
  json["requests_with_hit"] = r.requests_with_hit;
  json["input_tokens"] = r.input_tokens;
  if (r.salts > 0) json["salts"] = r.salts;
  json["block_refs"] = r.block_refs;
  json["hit_blocks"] = r.hit_blocks;
  json["hit_tokens"] = r.hit_tokens;
  json["evictions"] = r.evictions;
  json["cached_blocks"] = r.cached_blocks;
  json["block_hit_rate"] = r.block_hit_rate();
  json["token_hit_rate"] = r.token_hit_rate();
  return json;
}

std::string table_of(const Console& console, const std::ostream& stream,
                     const PureCacheOptions& options, const PureCacheOutcome& outcome) {
  const PureCacheReport& r = outcome.report;
  const bool is_interrupted = outcome.end == verify::RunEnd::interrupted;
  std::string text =
      fmt::format("{}{}{} ({} trace, prefix cache of {} blocks of {} tokens, {}){}\n",
                  console.bold(stream), printable(options.trace.path), console.plain(stream),
                  r.trace_format, grouped(options.capacity_blocks), r.block_tokens,
                  name_of(options.policy), is_interrupted ? ": interrupted" : "");
  text += fmt::format("  {:<10}{:>16}{:>16}{:>13}\n", "", "asked for", "hit", "rate");
  text += row("requests", r.requests, r.requests_with_hit,
              r.requests > 0
                  ? static_cast<double>(r.requests_with_hit) / static_cast<double>(r.requests)
                  : 0.0);
  text += row("blocks", r.block_refs, r.hit_blocks, r.block_hit_rate());
  text += row("tokens", r.input_tokens, r.hit_tokens, r.token_hit_rate());
  text += fmt::format("  {:<10}{:>16}\n  {:<10}{:>16}\n", "evicted", grouped(r.evictions), "cached",
                      grouped(r.cached_blocks));
  if (r.salts > 0) text += fmt::format("  {:<10}{:>16}\n", "salts", grouped(r.salts));
  return text;
}

}  // namespace kvarena::tools
