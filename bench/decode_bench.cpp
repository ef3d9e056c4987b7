// Decode attention on CUDA against the time to only read the same bytes, both measured in this run,
// over all rows of docs/benchmarks.md. `decode_bench [row...]` measures only rows whose name
// contains one of the words.

#include "tools/attention_meter/attention_meter.hpp"
#include "tools/attention_meter/known_rows.hpp"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

namespace {

using namespace kvarena;
using namespace kvarena::meter;

constexpr MeterOptions kOptions{.pool_bytes = std::int64_t{9} << 30,
                                .ceiling_bytes = std::int64_t{8} << 30};

/// Ends the program with one line when `status` failed.
void check(const Status& status, const char* what) {
  if (status) return;
  std::fprintf(stderr, "decode_bench: %s: %s\n", what, describe_cuda(status).c_str());
  std::exit(5);
}

bool is_wanted(const KnownRow& row, int argc, char** argv) {
  bool wanted = argc == 1;
  for (int i = 1; i < argc; ++i) wanted = wanted || row.name.find(argv[i]) != std::string::npos;
  return wanted;
}

AttentionProblem problem_of(const KnownRow& row) {
  const Preset& preset = *find_preset(row.preset);
  AttentionProblem problem;
  problem.shape.num_q_heads = preset.num_q_heads;
  problem.shape.num_kv_heads = preset.num_kv_heads;
  problem.shape.head_dim = preset.head_dim;
  problem.shape.dtype = row.dtype;
  problem.lengths = lengths_of(row);
  return problem;
}

void print(const KnownRow& row, const AttentionFigures& figures) {
  const double ratio = figures.attention_us / figures.floor_us;
  const double best_public = row.public_us / row.floor_us;
  const char* verdict = !figures.is_correct()       ? "WRONG"
                        : ratio <= row.target_ratio ? "met"
                        : ratio < best_public       ? "beaten"
                                                    : "behind";
  const auto bytes = static_cast<double>(figures.kv_bytes);
  std::printf("%-12s %8.1f %8.1f %8.1f %7.2f %7.1f %7.3f %7.3f %7.3f %-6s %8.1e\n",
              std::string(row.name).c_str(), bytes / 1e6, figures.floor_us, figures.attention_us,
              figures.schedule_us, bytes / figures.attention_us / 1e3, ratio, best_public,
              row.target_ratio, verdict, figures.error);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  auto device = CudaDevice::create();
  check(device.status(), "no CUDA device");
  auto meter = make_cuda_meter(**device, kOptions);
  check(meter.status(), "pool");
  const auto ceiling = (*meter)->read_ceiling();
  check(ceiling.status(), "read ceiling");
  std::printf(
      "%s, %d multiprocessors; bf16 (F: K and V fp8), blocks of 16 tokens in random order; reads "
      "%.0f GB/s\n",
      (*device)->info().name.c_str(), (*device)->info().num_sms,
      static_cast<double>(ceiling->bytes) / ceiling->us / 1e3);
  std::printf("%-12s %8s %8s %8s %7s %7s %7s %7s %7s %6s %8s\n", "heads, batch", "KV MB",
              "floor us", "us", "plan us", "GB/s", "ratio", "public", "target", "", "error");
  bool all_correct = true;
  for (const KnownRow& row : known_rows()) {
    if (!is_wanted(row, argc, argv)) continue;
    const auto figures = (*meter)->measure(problem_of(row));
    check(figures.status(), std::string(row.name).c_str());
    print(row, *figures);
    all_correct = all_correct && figures->is_correct();
  }
  return all_correct ? 0 : 1;
}
