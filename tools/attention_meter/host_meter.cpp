#include "base/half.hpp"
#include "kernels/reference/attention.hpp"
#include "tools/attention_meter/attention_meter.hpp"
#include "tools/attention_meter/comparison.hpp"
#include "tools/attention_meter/device_buffer.hpp"
#include "tools/attention_meter/host_read.hpp"

#include "kvarena/attention/attention.hpp"
#include "kvarena/base/clock.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <random>
#include <span>
#include <utility>
#include <vector>

namespace kvarena::meter {
namespace {

constexpr std::int64_t kComparedWork = std::int64_t{1} << 28;  // multiplications of the reference
constexpr int kScheduleCalls = 16;                             // in a round
constexpr std::size_t kPatternElements = 1 << 16;

/// A problem's data.
struct Batch {
  std::vector<BlockId> tables;            // [num_tables, all rows' blocks]
  std::vector<std::int64_t> row_offsets;  // [rows] in one set of tables
  std::vector<std::int32_t> num_blocks;   // [rows]
  std::vector<std::int64_t> q_offsets;    // [rows + 1]
  std::vector<std::byte> q;               // [query tokens, num_q_heads, head_dim]
  std::vector<std::byte> out;             // as q
};

class HostMeter final : public AttentionMeter {
 public:
  HostMeter(Device& host, const MeterOptions& options)
      : host_(host),
        options_(options),
        workers_(started(options.num_threads)),
        pool_(host, options.pool_bytes + kReadUnit * options.num_threads, MemoryPurpose::kv_cache) {
  }

  Result<ReadCeiling> read_ceiling() override;
  Result<AttentionFigures> measure(const AttentionProblem& problem) override;

 private:
  static CpuWorkers started(std::int32_t num_threads) {
    Result<CpuWorkers> workers = CpuWorkers::create(num_threads);
    require(workers.status());
    return std::move(*workers);
  }
  void fill(std::byte* to, std::int64_t bytes, DType dtype, std::size_t phase);
  void fill_pool(DType dtype);
  Batch make_batch(const AttentionProblem& problem, std::int32_t num_tables) const;
  AttentionArgs args_of(const AttentionProblem& problem, Batch& batch, std::int32_t table) const;
  void compare(const AttentionProblem& problem, Batch& batch, AttentionFigures& figures) const;
  AttentionFigures measured(const AttentionProblem& problem);
  double read_us(std::int64_t bytes, int places, int calls);
  template <class Call>
  double microseconds(int calls, std::int32_t replays, Call call) const;

  Device& host_;
  MeterOptions options_;
  CpuWorkers workers_;
  DeviceBuffer pool_;
  std::optional<DType> filled_;  // what the pool's elements are
};

// Median microseconds of one of `calls` calls of `call(i)`, after a round to warm up.
template <class Call>
double HostMeter::microseconds(int calls, std::int32_t replays, Call call) const {
  const Clock& clock = steady_clock();
  std::vector<std::int64_t> rounds;
  for (std::int32_t round = 0; round <= replays; ++round) {
    const std::int64_t start = clock.now_ns();
    for (int i = 0; i < calls; ++i) {
      if (options_.stop != nullptr && *options_.stop)
        throw Failure{failed_precondition(Resource::none)};
      call(i);
    }
    if (round > 0) rounds.push_back(clock.now_ns() - start);
  }
  const auto middle = rounds.begin() + static_cast<std::ptrdiff_t>(rounds.size() / 2);
  std::nth_element(rounds.begin(), middle, rounds.end());
  return static_cast<double>(*middle) / 1e3 / calls;
}

// About normal elements. Pieces of a pattern, each from another place of it.
void HostMeter::fill(std::byte* to, std::int64_t bytes, DType dtype, std::size_t phase) {
  struct Job {
    std::vector<std::byte> pattern;
    std::byte* to;
    std::size_t bytes;
    std::size_t phase;
    std::size_t workers;
  } job{{},
        to,
        static_cast<std::size_t>(bytes),
        phase,
        static_cast<std::size_t>(workers_.num_threads())};
  job.pattern.resize(2 * kPatternElements * static_cast<std::size_t>(bytes_of(dtype)));
  std::mt19937 random(3);
  for (std::size_t i = 0; i < 2 * kPatternElements; ++i) {
    float sum = -6.0F;
    for (int term = 0; term < 3; ++term) sum += static_cast<float>(random() >> 16) * 0x1p-14F;
    store_f32(job.pattern.data(), dtype, static_cast<std::int64_t>(i), sum * 0.5F);
  }
  workers_.run(
      [](void* argument, std::int32_t worker) {
        const Job& j = *static_cast<const Job*>(argument);
        const std::size_t piece = j.pattern.size() / 2;
        for (std::size_t n = static_cast<std::size_t>(worker); n * piece < j.bytes;
             n += j.workers) {
          const std::size_t first =
              (n + j.phase) * 40503 % kPatternElements * (piece / kPatternElements);
          std::memcpy(j.to + n * piece, j.pattern.data() + first,
                      std::min(piece, j.bytes - n * piece));
        }
      },
      &job);
}

void HostMeter::fill_pool(DType dtype) {
  if (filled_ == dtype) return;
  fill(pool_.data(), options_.pool_bytes + kReadUnit * options_.num_threads, dtype, 0);
  filled_ = dtype;
}

Batch HostMeter::make_batch(const AttentionProblem& problem, std::int32_t num_tables) const {
  const AttentionShape& shape = problem.shape;
  const std::int64_t pool_blocks = options_.pool_bytes / block_bytes(shape);
  const std::int64_t needed = num_tables * meter::num_blocks(problem);
  if (needed > pool_blocks) {
    throw Failure{invalid_argument(Resource::pool_bytes, options_.pool_bytes,
                                   needed * block_bytes(shape), std::int64_t{1} << 48)};
  }
  Batch batch;
  batch.tables = shuffled_blocks(pool_blocks);
  batch.tables.resize(static_cast<std::size_t>(needed));
  batch.q_offsets.push_back(0);
  std::int64_t first = 0;
  for (const std::int32_t length : problem.lengths) {
    batch.row_offsets.push_back(first);
    batch.num_blocks.push_back(static_cast<std::int32_t>(meter::num_blocks(shape, length)));
    batch.q_offsets.push_back(batch.q_offsets.back() + shape.q_len);
    first += batch.num_blocks.back();
  }
  const std::int64_t bytes =
      batch.q_offsets.back() * shape.num_q_heads * shape.head_dim * bytes_of(shape.dtype);
  batch.q.resize(static_cast<std::size_t>(bytes));
  batch.out.assign(batch.q.size(), std::byte{0xff});
  return batch;
}

AttentionArgs HostMeter::args_of(const AttentionProblem& problem, Batch& batch,
                                 std::int32_t table) const {
  const AttentionShape& shape = problem.shape;
  const std::int64_t plane = block_bytes(shape) / 2;
  const std::int64_t row = shape.head_dim * bytes_of(shape.dtype);
  const auto view = [&](std::int64_t offset) {
    return PlaneView{
        pool_.data() + offset, 2 * plane,   shape.block_size * row, row, shape.num_kv_heads,
        shape.head_dim,        shape.dtype, TileOrder::rows};
  };
  const auto rows = static_cast<std::int32_t>(problem.lengths.size());
  AttentionArgs args;
  args.kv = {view(0), view(plane), shape.block_size, options_.pool_bytes / block_bytes(shape)};
  args.batch = {{batch.tables.data() + table * num_blocks(problem), nullptr,
                 batch.row_offsets.data(), 0, rows},
                problem.lengths.data(),
                batch.num_blocks.data(),
                rows};
  args.q_offsets = batch.q_offsets.data();
  args.q = batch.q.data();
  args.q_dtype = shape.dtype;
  args.out = batch.out.data();
  args.out_dtype = shape.dtype;
  args.num_q_heads = shape.num_q_heads;
  args.scale = 1.0F / std::sqrt(static_cast<float>(shape.head_dim));
  args.window_tokens = shape.window_tokens;
  return args;
}

// The result of the last call, which used the first tables, against the reference.
void HostMeter::compare(const AttentionProblem& problem, Batch& batch,
                        AttentionFigures& figures) const {
  const AttentionShape& shape = problem.shape;
  std::vector<std::int64_t> costs;
  for (const std::int64_t length : problem.lengths) {
    costs.push_back(2 * length * shape.q_len * shape.num_q_heads * shape.head_dim);
  }
  const std::int64_t row_outputs = std::int64_t{shape.q_len} * shape.num_q_heads * shape.head_dim;
  std::vector<double> exact(static_cast<std::size_t>(row_outputs));
  Comparison comparison(shape.dtype);
  for (const std::int64_t row : sampled(costs, kComparedWork)) {
    const AttentionArgs all = args_of(problem, batch, 0);
    kernels::AttentionParams one{};
    one.kv = all.kv;
    one.batch = all.batch;
    one.batch.num_rows = one.batch.tables.num_rows = 1;
    one.batch.tables.row_offsets += row;
    one.batch.seq_lens += row;
    one.batch.num_blocks += row;
    one.q_offsets = batch.q_offsets.data();  // the first row's: 0, q_len
    one.q = batch.q.data() + row * row_outputs * bytes_of(shape.dtype);
    one.num_q_heads = shape.num_q_heads;
    one.window_tokens = shape.window_tokens;
    one.scale = all.scale;
    one.q_dtype = one.out_dtype = shape.dtype;
    kernels::reference::attention_paged_exact(one, exact.data());
    for (std::int64_t i = 0; i < row_outputs; ++i) {
      comparison.add(exact[static_cast<std::size_t>(i)], batch.out.data(), row * row_outputs + i);
    }
    figures.num_checked += std::int64_t{shape.q_len} * shape.num_q_heads;
  }
  figures.error = comparison.error();
  figures.error_limit = comparison.error_limit();
}

// The fastest of the loops that read, found in one round each.
double HostMeter::read_us(std::int64_t bytes, int places, int calls) {
  const auto time = [&](ReadKernel kernel, std::int32_t replays) {
    return microseconds(calls, replays, [&](int call) {
      read_together(workers_, kernel, pool_.data() + (call % places) * bytes, bytes);
    });
  };
  ReadKernel best = nullptr;
  double shortest = std::numeric_limits<double>::infinity();
  for (const ReadKernel kernel : read_kernels()) {
    const double us = time(kernel, 1);
    if (us < shortest) best = kernel;
    shortest = std::min(shortest, us);
  }
  return time(best, options_.replays);
}

AttentionFigures HostMeter::measured(const AttentionProblem& problem) {
  const AttentionShape& shape = problem.shape;
  if (!is_cpu_float(shape.dtype)) {
    throw Failure{unsupported(Resource::dtype, static_cast<std::uint64_t>(shape.dtype))};
  }
  fill_pool(shape.dtype);
  AttentionFigures figures;
  figures.kv_bytes = kv_bytes(problem);
  figures.rotation = rotation_of(problem, options_.rotated_bytes, 1);
  const std::int32_t num_tables = figures.rotation.num_tables;
  const std::int32_t num_calls = figures.rotation.num_calls;
  Batch batch = make_batch(problem, num_tables);
  fill(batch.q.data(), static_cast<std::int64_t>(batch.q.size()), shape.dtype, 77);
  AttentionLimits limits;
  limits.max_rows = static_cast<std::int32_t>(problem.lengths.size());
  limits.max_q_tokens = batch.q_offsets.back();
  limits.num_q_heads = shape.num_q_heads;
  limits.num_kv_heads = shape.num_kv_heads;
  limits.head_dim_k = limits.head_dim_v = shape.head_dim;
  limits.num_threads = options_.num_threads;
  const Result<std::int64_t> bytes = attention_workspace_bytes(limits);
  require(bytes.status());
  const DeviceBuffer workspace(host_, *bytes, MemoryPurpose::intermediate_buffers);
  const std::span<std::byte> span(workspace.data(), static_cast<std::size_t>(*bytes));
  const auto planned = [&] {
    const Result<AttentionPlan> plan = plan_attention(args_of(problem, batch, 0), limits, span);
    require(plan.status());
    return *plan;
  };
  const AttentionPlan plan = planned();
  figures.num_parts = plan.num_parts;
  require(run_attention(plan, args_of(problem, batch, 0), workers_));
  compare(problem, batch, figures);
  figures.floor_us = read_us(figures.kv_bytes, num_tables, num_calls);
  const double layer_us = microseconds(num_calls, options_.replays, [&](int call) {
    require(run_attention(plan, args_of(problem, batch, call % num_tables), workers_));
  });
  figures.schedule_us =
      microseconds(kScheduleCalls, options_.replays, [&](int) { static_cast<void>(planned()); });
  figures.attention_us = layer_us + figures.schedule_us / options_.layers_per_schedule;
  return figures;
}

Result<ReadCeiling> HostMeter::read_ceiling() {
  try {
    fill_pool(filled_.value_or(DType::bf16));
    return ReadCeiling{options_.ceiling_bytes, read_us(options_.ceiling_bytes, 1, 1)};
  } catch (const Failure& failure) {
    return failure.status;
  }
}

Result<AttentionFigures> HostMeter::measure(const AttentionProblem& problem) {
  try {
    return measured(problem);
  } catch (const Failure& failure) {
    return failure.status;
  }
}

}  // namespace

Result<std::unique_ptr<AttentionMeter>> make_host_meter(Device& host, const MeterOptions& options) {
  try {
    return std::unique_ptr<AttentionMeter>(std::make_unique<HostMeter>(host, options));
  } catch (const Failure& failure) {
    return failure.status;
  }
}

}  // namespace kvarena::meter
