#include "tools/attention_bench/attention_bench_options.hpp"

#include "tools/nearest_name.hpp"
#include "tools/option_values.hpp"

#include "base/excerpt.hpp"

#include "kvarena/base/shapes.hpp"
#include "tools/attention_meter/known_rows.hpp"
#include "tools/attention_meter/work_rows.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <utility>

namespace kvarena::tools {
namespace {

using meter::AttentionProblem;
using meter::AttentionShape;
using Json = nlohmann::json;

constexpr std::int32_t kMaxBatch = 1 << 16;
constexpr std::int32_t kMaxContext = 1 << 24;
constexpr std::int32_t kMaxHeads = 1024;
constexpr std::int32_t kMaxHeadDim = 1024;
constexpr std::int32_t kMaxBlockSize = 4096;
constexpr double kMaxSoftCap = 1e6;

std::string preset_names() {
  std::string names;
  for (const meter::Preset& preset : meter::presets()) names += fmt::format("{}, ", preset.name);
  return names;
}

// The array of a file that is one, or has one under "lengths"; empty when it is not of lengths.
std::vector<std::int32_t> lengths_in(const Json& document) {
  const Json* array = &document;
  if (document.is_object() && document.contains("lengths")) array = &document.at("lengths");
  std::vector<std::int32_t> lengths;
  if (!array->is_array() || array->size() > static_cast<std::size_t>(kMaxBatch)) return {};
  for (const Json& entry : *array) {
    if (!entry.is_number_integer() || entry < 1 || entry > kMaxContext) return {};
    lengths.push_back(entry.get<std::int32_t>());
  }
  return lengths;
}

std::optional<std::vector<std::int32_t>> read_lengths(const Console& console,
                                                      const std::string& path) {
  std::ifstream file(path);
  const Json document = file ? Json::parse(file, nullptr, false) : Json();
  std::vector<std::int32_t> lengths = lengths_in(document);
  if (!lengths.empty()) return lengths;
  const char* what = !file                     ? "cannot be read"
                     : document.is_discarded() ? "is not JSON"
                                               : "holds no lengths";
  console.error(fmt::format("--lengths {}: {}", printable(path), what),
                fmt::format("a JSON array of 1 .. {} whole numbers 1 .. {}, or an object with "
                            "such an array as \"lengths\"",
                            kMaxBatch, kMaxContext),
                "write for example [512, 4096, 65536] into the file");
  return std::nullopt;
}

/// Numbers such as "512", "4k" (x 1024), in lists with commas.
std::vector<std::int32_t> counts_in(const std::string& option,
                                    const std::vector<std::string>& texts, std::int32_t largest,
                                    std::int32_t smallest = 1) {
  std::vector<std::int32_t> counts;
  for (std::string_view text : list_elements(option, texts)) {
    const bool is_kilo = text.ends_with('k');
    const auto count = parse_whole_number(text.substr(0, text.size() - (is_kilo ? 1 : 0)));
    const std::int32_t most = is_kilo ? largest / 1024 : largest;
    if (!count || *count < smallest || *count > most) {
      throw CLI::ValidationError(
          option, refusal_text({.found = fmt::format("\"{}\" is not in the range", printable(text)),
                                .expected = fmt::format("whole numbers {} .. {}, such as 512 or 4k",
                                                        smallest, largest)}));
    }
    counts.push_back(static_cast<std::int32_t>(is_kilo ? *count * 1024 : *count));
  }
  return counts;
}

/// What is wrong with the name of a preset; nothing: it is one.
Finding preset_finding(const std::string& name) {
  const bool is_known =
      name == "all" || meter::find_preset(name) != nullptr || find_shape(name) != nullptr;
  if (is_known) return {};
  return {
      .found = fmt::format("there is no preset \"{}\"", printable(name)),
      .expected = preset_names() +
                  "all, or a model's name from 'kvarena shapes'; or numbers, as in --heads 32/8 "
                  "--head-dim 128"};
}

}  // namespace

void AttentionBenchOptions::declare_counts(CLI::App& command) {
  const auto list = [&](const char* name, std::vector<std::int32_t>& counts, std::int32_t largest,
                        const char* help) {
    const auto take = [=, &counts](const std::vector<std::string>& texts) {
      counts = counts_in(name, texts, largest);
    };
    return command.add_option_function<std::vector<std::string>>(name, take, help)
        ->type_name("N[,N...]")
        ->default_str(fmt::format("{}", counts.front()));
  };
  auto* batch =
      list("--batch", batches_, kMaxBatch, "Sequences (k: x 1024); a row for each number");
  auto* context = list("--context", contexts_, kMaxContext, "Tokens of each sequence, likewise");
  const auto take_cached = [this](const std::vector<std::string>& texts) {
    cached_ = counts_in("--cached", texts, kMaxContext, 0);
  };
  auto* cached = command
                     .add_option_function<std::vector<std::string>>(
                         "--cached", take_cached,
                         "Tokens of each sequence before its query tokens (instead of --context)")
                     ->type_name("N[,N...]")
                     ->excludes(context);
  command
      .add_option("--lengths", lengths_path_,
                  "Lengths of a ragged batch instead: a JSON array of numbers")
      ->type_name("FILE")
      ->excludes(batch)
      ->excludes(context)
      ->excludes(cached);
  batch_option_ = batch;
  context_option_ = context;
}

void AttentionBenchOptions::declare(CLI::App& command) {
  const auto take_heads = [this](const std::string& text) {
    const auto parts = CLI::detail::split(text, '/');
    const std::int64_t q = parse_whole_number(parts.front()).value_or(0);
    const std::int64_t kv = parse_whole_number(parts.back()).value_or(0);
    if (parts.size() > 2 || q < 1 || kv < 1 || q > kMaxHeads || q % kv != 0) {
      throw CLI::ValidationError(
          "--heads", fmt::format("\"{}\" are no heads; expected query heads / KV heads such as "
                                 "32/8, the first a multiple of the second, at most {}",
                                 printable(text), kMaxHeads));
    }
    shape_.num_q_heads = static_cast<std::int32_t>(q);
    shape_.num_kv_heads = static_cast<std::int32_t>(kv);
  };
  auto* heads =
      command.add_option_function<std::string>("--heads", take_heads, "Query heads / KV heads");
  heads->type_name("Q/KV")->default_str("32/8");
  auto* head_dim =
      add_count_option(command, "--head-dim", shape_.head_dim, 1, kMaxHeadDim, "Elements a head");
  command
      .add_option("--preset", preset_,
                  "Heads of a model: " + preset_names() +
                      "all (of these), or a model of 'kvarena shapes'. Without --batch, --context "
                      "and --lengths also the rows of docs/benchmarks.md")
      ->type_name("NAME")
      ->check([](const std::string& text) { return refusal_text(preset_finding(text)); })
      ->excludes(heads)
      ->excludes(head_dim);
  declare_counts(command);
  declare_row(command);
  declare_known_rows(command);
  declare_batch_invariant(command);
}

void AttentionBenchOptions::declare_row(CLI::App& command) {
  add_choice_option(command, "--dtype", dtype_, {"bf16", "f16", "fp8"}, "Type of K and V");
  add_count_option(command, "--block-size", shape_.block_size, 1, kMaxBlockSize, "Tokens a block");
  add_count_option(command, "--q-len,--query-tokens", shape_.q_len, 1, kMaxContext,
                   "Query tokens a sequence, the last of its tokens; a prompt has no others");
  add_count_option(command, "--window", shape_.window_tokens, 0, kMaxContext,
                   "Sliding window, tokens; 0: none");
  add_number_option(command, "--soft-cap", soft_cap_, 0.0, kMaxSoftCap,
                    "Soft cap of the logits; 0: none");
  add_count_option(command, "--shared", shared_tokens_, 0, kMaxContext,
                   "Leading tokens that the sequences of a group share, in whole blocks");
  add_count_option(command, "--groups", num_groups_, 1, kMaxBatch,
                   "Groups that share tokens (--shared)");
}

void AttentionBenchOptions::declare_known_rows(CLI::App& command) {
  const auto flag = [&](const char* name, bool& value, const char* help) {
    CLI::Option* option = command.add_flag(name, value, help);
    for (const char* other :
         {"--preset", "--heads", "--head-dim", "--batch", "--context", "--cached", "--lengths",
          "--dtype", "--q-len", "--window", "--soft-cap", "--shared", "--groups"}) {
      option->excludes(other);
    }
  };
  flag("--prefill", prefill_, "Rows of prompts, of the types and heads of several models");
  flag("--columns", columns_, "Rows of sequences with 9 to 128 query columns");
  flag("--latents", latents_, "Rows of decode and drafts over latents (MLA)");
  flag("--kinds", kinds_, "Rows of windows and chunks, and of V with fewer dims than K");
  flag("--shared-prefix", shared_prefix_, "Rows of sequences that begin with the same blocks");
  const auto take = [this](const std::vector<std::string>& texts) {
    names_ = list_elements("--row", texts);
  };
  command
      .add_option_function<std::vector<std::string>>("--row", take,
                                                     "Only these of the known rows, by name")
      ->type_name("NAME[,NAME...]");
}

void AttentionBenchOptions::declare_batch_invariant(CLI::App& command) {
  CLI::Option* option = command.add_flag(
      "--batch-invariant", batch_invariant_,
      "GPU: results that do not depend on the batch, beside the same rows without this");
  for (const char* other : {"--shared", "--shared-prefix"}) option->excludes(other);
}

bool AttentionBenchOptions::has_lengths() const {
  return !lengths_path_.empty() || batch_option_->count() > 0 || context_option_->count() > 0 ||
         !cached_.empty();
}

template <class Heads>
AttentionShape AttentionBenchOptions::with_heads_of(const Heads& heads) const {
  AttentionShape shape = shape_;
  shape.num_q_heads = heads.num_q_heads;
  shape.num_kv_heads = heads.num_kv_heads;
  shape.head_dim = heads.head_dim;
  shape.soft_cap = static_cast<float>(soft_cap_);
  shape.dtype = is_fp8() ? DType::fp8_e4m3 : dtype_ == "f16" ? DType::f16 : DType::bf16;
  return shape;
}

std::vector<AttentionShape> AttentionBenchOptions::shapes() const {
  if (preset_.empty()) return {with_heads_of(shape_)};
  std::vector<AttentionShape> shapes;
  for (const meter::Preset& preset : meter::presets()) {
    if (preset_ != "all" && preset_ != preset.name) continue;
    shapes.push_back(with_heads_of(preset));
  }
  if (shapes.empty()) shapes.push_back(with_heads_of(*find_shape(preset_)));
  return shapes;
}

std::vector<AttentionProblem> AttentionBenchOptions::rows_of_presets() const {
  std::vector<AttentionProblem> problems;
  for (const meter::KnownRow& row : meter::known_rows()) {
    const bool fp8_row = row.dtype == DType::fp8_e4m3;
    if (fp8_row != is_fp8() || (preset_ != "all" && preset_ != row.preset)) continue;
    problems.push_back({with_heads_of(*meter::find_preset(row.preset)), lengths_of(row)});
  }
  return problems;
}

bool AttentionBenchOptions::is_valid(const Console& console,
                                     const AttentionProblem& problem) const {
  const auto shortest = std::min_element(problem.lengths.begin(), problem.lengths.end());
  if (*shortest < shape_.q_len) {
    console.error(
        fmt::format("a sequence of {} tokens cannot have {} query tokens", *shortest, shape_.q_len),
        "sequences at least as long as --q-len",
        "raise --context or the lengths, or lower --q-len");
    return false;
  }
  if (problem.shared_tokens == 0) return true;
  const std::int32_t most = *shortest - shape_.q_len;
  if (problem.shared_tokens > most || problem.shared_tokens % shape_.block_size != 0) {
    console.error(fmt::format("--shared {} in sequences of {} tokens and more, {} of them query "
                              "tokens, with blocks of {}",
                              problem.shared_tokens, *shortest, shape_.q_len, shape_.block_size),
                  fmt::format("whole blocks of at most {} tokens", most),
                  "lower --shared, or raise --context");
    return false;
  }
  if (shape_.window_tokens == 0) return true;
  console.error("--shared with --window: a window does not see the shared tokens of all rows",
                "one of the two", "leave --window out");
  return false;
}

ChosenProblems AttentionBenchOptions::known_rows(const Console& console) const {
  std::vector<AttentionProblem> all;
  const auto add = [&](bool is_wanted, std::vector<AttentionProblem> rows) {
    if (is_wanted) std::move(rows.begin(), rows.end(), std::back_inserter(all));
  };
  add(prefill_, meter::prefill_rows());
  add(columns_, meter::columns_rows());
  add(latents_, meter::latent_rows());
  add(kinds_, meter::kinds_rows());
  add(shared_prefix_, meter::shared_prefix_rows());
  ChosenProblems result;
  std::vector<std::string> unknown = names_;
  std::vector<std::string> names;
  for (AttentionProblem& row : all) {
    names.push_back(row.name);
    row.shape.block_size = shape_.block_size;
    for (AttentionProblem& other : row.beside) other.shape.block_size = shape_.block_size;
    if (std::erase(unknown, row.name) == 0 && !names_.empty()) continue;
    if (batch_invariant_) row = meter::batch_invariant(std::move(row));
    result.problems.push_back(std::move(row));
  }
  if (unknown.empty()) return result;
  console.error(fmt::format("--row {}: none of the rows has this name", printable(unknown.front())),
                all.empty() ? "rows of --prefill, --columns, --latents, --kinds or --shared-prefix"
                            : fmt::to_string(fmt::join(names, ", ")),
                all.empty() ? "add one of these options" : "choose from these names");
  return {ExitCode::usage, {}};
}

std::vector<AttentionProblem> AttentionBenchOptions::uniform_rows(
    const AttentionShape& shape) const {
  const std::vector<std::int32_t>& lengths = cached_.empty() ? contexts_ : cached_;
  std::vector<AttentionProblem> problems;
  for (const std::int32_t batch : batches_) {
    for (const std::int32_t length : lengths) {
      const std::int32_t tokens = cached_.empty() ? length : length + shape.q_len;
      problems.push_back(
          {shape, std::vector<std::int32_t>(static_cast<std::size_t>(batch), tokens)});
    }
  }
  return problems;
}

ChosenProblems AttentionBenchOptions::choose(const Console& console) const {
  if (prefill_ || columns_ || latents_ || kinds_ || shared_prefix_ || !names_.empty())
    return known_rows(console);
  ChosenProblems result;
  if (!preset_.empty() && !has_lengths()) result.problems = rows_of_presets();
  if (!lengths_path_.empty()) {
    const auto lengths = read_lengths(console, lengths_path_);
    if (!lengths) return {ExitCode::bad_input, {}};
    for (const AttentionShape& shape : shapes()) result.problems.push_back({shape, *lengths});
  } else if (result.problems.empty()) {
    for (const AttentionShape& shape : shapes()) {
      std::vector<AttentionProblem> rows = uniform_rows(shape);
      std::move(rows.begin(), rows.end(), std::back_inserter(result.problems));
    }
  }
  for (AttentionProblem& problem : result.problems) {
    problem.shared_tokens = shared_tokens_;
    problem.num_groups = shared_tokens_ > 0 ? num_groups_ : 1;
  }
  for (AttentionProblem& problem : result.problems) {
    if (!is_valid(console, problem)) return {ExitCode::usage, {}};
    problem = batch_invariant_ ? meter::batch_invariant(std::move(problem))
                               : meter::with_comparison(std::move(problem));
  }
  return result;
}

}  // namespace kvarena::tools
