// Decode attention beside the machine's read bandwidth, in one run: 32 query heads, 8 KV heads, D =
// 128, 4,096 tokens a sequence, 32 layers, blocks of 16 tokens in random order, pool beyond all
// caches. Reading and attention alternate; medians over rounds. Usage: attention_bench [rounds]
// [sequences].

#include "tools/attention_meter/host_batch.hpp"

#include "kvarena/attention/attention.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace {

using namespace kvarena;
using meter::read_kernels;
using meter::read_together;
using meter::ReadKernel;

constexpr std::int32_t kLayers = 32;
constexpr std::int32_t kQueryHeads = 32;
constexpr std::int32_t kKvHeads = 8;
constexpr std::int32_t kHeadDim = 128;
constexpr std::int32_t kContext = 4096;
constexpr std::int32_t kBlockSize = 16;
constexpr std::int32_t kThreads = 2;
constexpr std::int64_t kTileBytes = std::int64_t{kBlockSize} * kHeadDim * 2;
constexpr std::int64_t kPlaneBytes = kTileBytes * kKvHeads;
constexpr std::int64_t kBlockBytes = 2 * kPlaneBytes * kLayers;

double seconds_of(auto&& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Anonymous memory with huge pages advised, as the arena's.
class Memory {
 public:
  explicit Memory(std::int64_t bytes) : bytes_(static_cast<std::size_t>(bytes) + kHugePage) {
    mapped_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped_ == MAP_FAILED) {
      std::perror("attention_bench: cannot map the pool");
      std::exit(1);
    }
    madvise(mapped_, bytes_, MADV_HUGEPAGE);
  }
  ~Memory() { munmap(mapped_, bytes_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::byte* base() const {
    const auto address = reinterpret_cast<std::uintptr_t>(mapped_);
    return static_cast<std::byte*>(mapped_) + (kHugePage - address % kHugePage) % kHugePage;
  }

 private:
  static constexpr std::size_t kHugePage = std::size_t{1} << 21;
  std::size_t bytes_;
  void* mapped_;
};

/// Reads `bytes` with all workers; returns GB/s.
double read_rate(CpuWorkers& workers, ReadKernel kernel, const std::byte* from,
                 std::int64_t bytes) {
  std::int64_t read = 0;
  const double seconds = seconds_of([&] { read = read_together(workers, kernel, from, bytes); });
  return static_cast<double>(read) / seconds / 1e9;
}

/// The batch: tables in random order over the pool, one query token a sequence.
struct Batch {
  std::vector<BlockId> entries;
  std::vector<std::int64_t> row_offsets;
  std::vector<std::int32_t> seq_lens;
  std::vector<std::int32_t> num_blocks;
  std::vector<std::uint16_t> q;
  std::vector<std::uint16_t> out;

  explicit Batch(std::int32_t sequences) {
    const std::int32_t blocks = kContext / kBlockSize;
    std::vector<std::int32_t> ids(static_cast<std::size_t>(sequences * blocks));
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(1));
    for (const std::int32_t id : ids) entries.emplace_back(id);
    for (std::int32_t row = 0; row < sequences; ++row) row_offsets.push_back(row * blocks);
    seq_lens.assign(static_cast<std::size_t>(sequences), kContext);
    num_blocks.assign(static_cast<std::size_t>(sequences), blocks);
    q.assign(static_cast<std::size_t>(sequences * kQueryHeads * kHeadDim), 0x3C00);
    out.resize(q.size());
  }

  AttentionArgs args(std::byte* pool, std::int32_t layer, DType dtype) {
    const auto plane = [&](std::int64_t offset) {
      return PlaneView{pool + offset, kBlockBytes, kTileBytes, kHeadDim * 2,
                       kKvHeads,      kHeadDim,    dtype,      TileOrder::rows};
    };
    const auto rows = static_cast<std::int32_t>(seq_lens.size());
    AttentionArgs a;
    a.kv = {plane(2 * layer * kPlaneBytes), plane((2 * layer + 1) * kPlaneBytes), kBlockSize,
            static_cast<std::int64_t>(entries.size())};
    a.batch = {{entries.data(), nullptr, row_offsets.data(), 0, rows},
               seq_lens.data(),
               num_blocks.data(),
               rows};
    a.q = q.data();
    a.q_dtype = dtype;
    a.out = out.data();
    a.out_dtype = dtype;
    a.num_q_heads = kQueryHeads;
    a.scale = 1.0F / std::sqrt(static_cast<float>(kHeadDim));
    return a;
  }
};

/// One decode step, all layers; returns GB/s of K and V.
double attention_rate(CpuWorkers& workers, Batch& batch, std::byte* pool, std::int64_t bytes,
                      DType dtype, CpuPath path) {
  AttentionLimits limits;
  limits.max_rows = static_cast<std::int32_t>(batch.seq_lens.size());
  limits.max_q_tokens = limits.max_rows;
  limits.num_q_heads = kQueryHeads;
  limits.num_kv_heads = kKvHeads;
  limits.head_dim_k = limits.head_dim_v = kHeadDim;
  limits.num_threads = workers.num_threads();
  limits.path = path;
  const auto workspace_bytes = static_cast<std::size_t>(attention_workspace_bytes(limits).value());
  const Memory workspace(static_cast<std::int64_t>(workspace_bytes));
  bool ok = true;
  const double seconds = seconds_of([&] {
    const auto plan =
        plan_attention(batch.args(pool, 0, dtype), limits, {workspace.base(), workspace_bytes});
    for (std::int32_t layer = 0; layer < kLayers; ++layer) {
      ok = ok && run_attention(plan.value(), batch.args(pool, layer, dtype), workers).is_ok();
    }
  });
  if (!ok) std::exit(1);
  return static_cast<double>(bytes) / seconds / 1e9;
}

struct Series {
  const char* name;
  DType dtype;
  CpuPath path;
  std::vector<double> rates[kThreads];
};

void print(const Series& series, const std::vector<double> (&read)[kThreads], double machine) {
  for (std::size_t t = 0; t < kThreads; ++t) {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < series.rates[t].size(); ++i) {
      ratios.push_back(series.rates[t][i] / read[t][i]);
    }
    const double rate = median(series.rates[t]);
    std::printf("%-16s %7zu %10.2f %12.2f %14.0f %% %17.0f %%\n", series.name, t + 1, rate,
                median(read[t]), 100.0 * median(ratios), 100.0 * rate / machine);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 5;
  const int sequences = argc > 2 ? std::max(1, std::atoi(argv[2])) : 4;
  const std::int64_t bytes = std::int64_t{sequences} * (kContext / kBlockSize) * kBlockBytes;
  const Memory pool(bytes);
  auto* halves = reinterpret_cast<std::uint16_t*>(pool.base());
  for (std::int64_t i = 0; i < bytes / 2; ++i) {
    halves[i] =
        static_cast<std::uint16_t>(0x3000 + (i * 2654435761) % 0x0C00);  // f16 of 0.125 to 1
  }
  Batch batch(sequences);
  std::vector<Series> all{{"f16", DType::f16, CpuPath::best, {}},
                          {"bf16", DType::bf16, CpuPath::best, {}},
                          {"bf16, portable", DType::bf16, CpuPath::portable, {}}};
  std::vector<double> read[kThreads];
  for (int round = 0; round < rounds; ++round) {
    for (std::int32_t t = 0; t < kThreads; ++t) {
      auto workers = CpuWorkers::create(t + 1);
      double best = 0.0;
      for (const ReadKernel kernel : read_kernels()) {
        best = std::max(best, read_rate(*workers, kernel, pool.base(), bytes));
      }
      read[t].push_back(best);
      for (Series& series : all) {
        series.rates[t].push_back(
            attention_rate(*workers, batch, pool.base(), bytes, series.dtype, series.path));
      }
    }
  }
  const double machine = median(read[kThreads - 1]);
  std::printf(
      "decode attention, %d q heads, %d kv heads, D=%d, %d sequences of %d tokens, %d layers, "
      "block %d, %.2f GB of KV a step; %s path; medians of %d rounds\n",
      kQueryHeads, kKvHeads, kHeadDim, sequences, kContext, kLayers, kBlockSize,
      static_cast<double>(bytes) / 1e9, best_cpu_path() == CpuPath::avx512 ? "avx512" : "portable",
      rounds);
  std::printf("%-16s %7s %10s %12s %16s %19s\n", "K and V", "threads", "GB/s", "read GB/s",
              "of read, same", "of machine's read");
  for (const Series& series : all) print(series, read, machine);
  return 0;
}
