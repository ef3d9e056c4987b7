#include "tools/attention_bench/attention_bench_run.hpp"

#include "tools/attention_meter/known_rows.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <numeric>

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

double megabytes(std::int64_t bytes) { return static_cast<double>(bytes) / 1e6; }

double fraction_of_ceiling(const AttentionFigures& figures, const ReadCeiling& ceiling) {
  return gb_per_s(figures.kv_bytes, figures.attention_us) / gb_per_s(ceiling.bytes, ceiling.us);
}

/// Whether all sequences have the same length and the same number of query tokens.
bool is_uniform(const AttentionProblem& problem) {
  for (std::size_t row = 1; row < problem.lengths.size(); ++row) {
    if (problem.lengths[row] != problem.lengths[0]) return false;
    if (problem.queries_of(row) != problem.queries_of(0)) return false;
  }
  return true;
}

double flop_per_us(const AttentionProblem& problem, const AttentionFigures& figures) {
  return flops(problem) / figures.attention_us;
}

/// The operations a second as a multiple of those of the problems beside this one; 0: there are
/// none.
double speed_beside(const AttentionProblem& problem, const AttentionFigures& figures) {
  double beside = 0.0;
  for (const AttentionProblem& other : problem.beside) beside += flops(other);
  if (beside == 0.0) return 0.0;
  return flop_per_us(problem, figures) / (beside / figures.beside_us);
}

double fraction_of_peak(const AttentionProblem& problem, const AttentionFigures& figures,
                        const Ceilings& ceilings) {
  if (ceilings.flops_per_second == 0.0) return 0.0;
  return flop_per_us(problem, figures) * 1e6 / ceilings.flops_per_second;
}

Json or_null(double value) { return value > 0.0 ? Json(value) : Json(); }

Json json_of(const AttentionProblem& problem) {
  const AttentionShape& shape = problem.shape;
  Json json = {{"name", problem.name.empty() ? Json() : Json(problem.name)},
               {"q_heads", shape.num_q_heads},
               {"kv_heads", shape.num_kv_heads},
               {"head_dim", shape.head_dim},
               {"value_dim", shape.value_dim()},
               {"dtype", name_of(shape.dtype)},
               {"block_size", shape.block_size},
               {"q_len", is_uniform(problem) ? Json(problem.queries_of(0)) : Json()},
               {"window_tokens", shape.window_tokens},
               {"soft_cap", shape.soft_cap},
               {"batch", problem.lengths.size()}};
  json["context"] = is_uniform(problem) ? Json(problem.lengths.front()) : Json();
  if (!is_uniform(problem)) json["lengths"] = problem.lengths;
  if (!problem.query_tokens.empty()) json["query_tokens"] = problem.query_tokens;
  json["batch_invariant"] = problem.batch_invariant;
  json["shared_tokens"] = problem.shared_tokens;
  json["groups"] = problem.num_groups;
  json["tokens"] = std::accumulate(problem.lengths.begin(), problem.lengths.end(), std::int64_t{0});
  json["kv_bytes"] = kv_bytes(problem);
  json["flops"] = flops(problem);
  return json;
}

}  // namespace

double gb_per_s(std::int64_t bytes, double us) { return static_cast<double>(bytes) / us / 1e3; }

std::string heads_text(const AttentionShape& shape) {
  const std::string value =
      shape.own_value_dim > 0 ? fmt::format("/{}", shape.own_value_dim) : std::string();
  return fmt::format("{}/{} D={}{}", shape.num_q_heads, shape.num_kv_heads, shape.head_dim, value);
}

std::string batch_text(const AttentionProblem& problem) {
  const std::vector<std::int32_t>& lengths = problem.lengths;
  const auto [low, high] = std::minmax_element(lengths.begin(), lengths.end());
  std::string text = fmt::format("{} x ", lengths.size());
  const std::int32_t queries = problem.queries_of(0);
  if (!is_uniform(problem)) {
    text += fmt::format("{}..{}", *low, *high);
  } else if (queries == 1 || queries == *low) {
    text += count_text(*low);
  } else {
    text += fmt::format("{} + {}", count_text(queries), count_text(*low - queries));
  }
  if (problem.shared_tokens == 0) return text;
  return text + fmt::format(" ({} shared)", count_text(problem.shared_tokens));
}

const capacity::GpuSpec* data_sheet_of(std::string_view device_name, std::int32_t num_sms) {
  for (const capacity::GpuSpec& gpu : capacity::gpu_presets()) {
    // "H200-SXM" is called "NVIDIA H200", "RTX-4090" "NVIDIA GeForce RTX 4090".
    const std::string_view first = std::string_view(gpu.name).substr(0, gpu.name.find('-'));
    if (gpu.num_sms == num_sms && device_name.find(first) != device_name.npos) return &gpu;
  }
  return nullptr;
}

bool shows_work(std::span<const AttentionProblem> problems) {
  constexpr std::int64_t kDecodeColumns = 8;
  return std::any_of(problems.begin(), problems.end(), [](const AttentionProblem& problem) {
    return !problem.beside.empty() || most_columns(problem) > kDecodeColumns;
  });
}

std::string table_header(bool shows_work) {
  if (shows_work) {
    return fmt::format(
        "{:<12} {:<22} {:<8} {:>10} {:>8} {:>8} {:>7} {:>9} {:>8} {:>10} {:>8} {:>8}\n", "heads",
        "batch x query + cached", "K and V", "us", "TFLOP/s", "of peak", "beside", "KV MB", "GB/s",
        "floor us", "ratio", "error");
  }
  return fmt::format("{:<12} {:<16} {:>9} {:>10} {:>10} {:>8} {:>7} {:>8} {:>9} {:>8}\n", "heads",
                     "batch x context", "KV MB", "floor us", "us", "GB/s", "ratio", "of read",
                     "plan us", "error");
}

std::string table_line(const AttentionProblem& problem, const AttentionFigures& figures,
                       const Ceilings& ceilings, bool shows_work) {
  const double ratio = figures.attention_us / figures.floor_us;
  const char* verdict = figures.is_correct() ? "" : "  WRONG";
  const double gb = gb_per_s(figures.kv_bytes, figures.attention_us);
  if (shows_work) {
    const double tflops = flop_per_us(problem, figures) / 1e6;
    const double peak = 100.0 * fraction_of_peak(problem, figures, ceilings);
    const double beside = speed_beside(problem, figures);
    return fmt::format(
        "{:<12} {:<22} {:<8} {:>10.1f} {:>8} {:>8} {:>7} {:>9.1f} {:>8.1f} {:>10.1f} {:>8.3f} "
        "{:>8.1e}{}\n",
        heads_text(problem.shape), batch_text(problem), name_of(problem.shape.dtype),
        figures.attention_us, fmt::format("{:.{}f}", tflops, tflops < 10.0 ? 3 : 1),
        peak > 0.0 ? fmt::format("{:.1f} %", peak) : "-",
        beside > 0.0 ? fmt::format("{:.3f}", beside) : "-", megabytes(figures.kv_bytes), gb,
        figures.floor_us, ratio, figures.error, verdict);
  }
  return fmt::format(
      "{:<12} {:<16} {:>9.1f} {:>10.1f} {:>10.1f} {:>8.1f} {:>7.3f} {:>6.1f} % {:>9.2f} {:>8.1e}"
      "{}\n",
      heads_text(problem.shape), batch_text(problem), megabytes(figures.kv_bytes), figures.floor_us,
      figures.attention_us, gb, ratio, 100.0 * fraction_of_ceiling(figures, ceilings.read),
      figures.schedule_us, figures.error, verdict);
}

Json json_of(const AttentionProblem& problem, const AttentionFigures& figures,
             const Ceilings& ceilings) {
  Json json = json_of(problem);
  json["floor_us"] = figures.floor_us;
  json["us"] = figures.attention_us;
  json["gb_per_s"] = gb_per_s(figures.kv_bytes, figures.attention_us);
  json["tflop_per_s"] = flop_per_us(problem, figures) / 1e6;
  json["fraction_of_matrix_peak"] = or_null(fraction_of_peak(problem, figures, ceilings));
  json["beside_us"] = or_null(figures.beside_us);
  json["speed_beside"] = or_null(speed_beside(problem, figures));
  json["ratio_to_floor"] = figures.attention_us / figures.floor_us;
  json["fraction_of_read_ceiling"] = fraction_of_ceiling(figures, ceilings.read);
  json["schedule_us"] = figures.schedule_us;
  json["tables"] = figures.rotation.num_tables;
  json["calls"] = figures.rotation.num_calls;
  json["rounds"] = figures.num_rounds;
  json["parts"] = figures.num_parts > 0 ? Json(figures.num_parts) : Json();
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
                         heads_text(problem.shape), batch_text(problem),
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

}  // namespace kvarena::tools
