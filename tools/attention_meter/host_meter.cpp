#include "base/half.hpp"
#include "tools/attention_meter/attention_meter.hpp"
#include "tools/attention_meter/comparison.hpp"
#include "tools/attention_meter/device_buffer.hpp"
#include "tools/attention_meter/host_batch.hpp"
#include "tools/attention_meter/series.hpp"

#include "kvarena/attention/attention.hpp"
#include "kvarena/base/clock.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <utility>
#include <vector>

namespace kvarena::meter {
namespace {

constexpr TimeLimits kHostLimits{.round_us = 4e5, .all_us = 2e7};
constexpr int kScheduleCalls = 16;  // in a round
constexpr std::size_t kPatternElements = 1 << 16;

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
  void fill_pool(const std::vector<DType>& types);
  PoolPart pool() const { return {pool_.data(), options_.pool_bytes}; }
  HostBatch make_row(const AttentionProblem& problem, const PoolPart& pool);
  void time(std::vector<HostBatch>& rows, AttentionFigures& figures);
  AttentionFigures measured(const AttentionProblem& problem);
  double read_us(std::int64_t bytes, int places, int calls);
  Series attend(const HostBatch& row);
  double round_us(const Series& series) const;
  Medians medians(const std::vector<Series>& all, std::int32_t replays) const;

  Device& host_;
  MeterOptions options_;
  CpuWorkers workers_;
  DeviceBuffer pool_;
  std::vector<DType> filled_;  // what the elements of the pool's equal parts are
};

// Microseconds of one round.
double HostMeter::round_us(const Series& series) const {
  const Clock& clock = steady_clock();
  const std::int64_t start = clock.now_ns();
  for (std::int32_t i = 0; i < series.num_calls; ++i) {
    if (options_.stop != nullptr && *options_.stop) {
      throw Failure{failed_precondition(Resource::none)};
    }
    require(series.call(i));
  }
  return static_cast<double>(clock.now_ns() - start) / 1e3;
}

// Median microseconds of one call of each series. The series take turns, after a round to warm up.
Medians HostMeter::medians(const std::vector<Series>& all, std::int32_t replays) const {
  std::vector<std::vector<double>> times(all.size());
  double longest = 0.0;
  for (const Series& series : all) longest = std::max(longest, round_us(series));
  const std::int32_t rounds = rounds_within(kHostLimits, replays, longest);
  for (std::int32_t round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < all.size(); ++i) times[i].push_back(round_us(all[i]));
  }
  Medians medians{{}, rounds};
  for (std::size_t i = 0; i < all.size(); ++i) {
    medians.us.push_back(median(times[i]) / all[i].num_calls);
  }
  return medians;
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

// Fills equal parts of the pool, one for each of `types`.
void HostMeter::fill_pool(const std::vector<DType>& types) {
  if (filled_ == types) return;
  const std::int64_t more = kReadUnit * options_.num_threads;  // read_together reads so far
  for (std::size_t i = 0; i < types.size(); ++i) {
    const PoolPart part = part_of(pool(), i, types.size());
    fill(part.base, part.bytes + (i + 1 == types.size() ? more : 0), types[i], 0);
  }
  filled_ = types;
}

// The problem's data and its plan, made.
HostBatch HostMeter::make_row(const AttentionProblem& problem, const PoolPart& pool) {
  const AttentionShape& shape = problem.shape;
  const Rotation rotation = rotation_of(problem, options_.rotated_bytes, 1);
  const std::int64_t pool_blocks = pool.bytes / block_bytes(shape);
  const std::int64_t needed = rotation.num_tables * meter::num_blocks(problem);
  if (needed > pool_blocks) {
    throw Failure{invalid_argument(Resource::pool_bytes, pool.bytes, needed * block_bytes(shape),
                                   std::int64_t{1} << 48)};
  }
  const std::int64_t queries = num_query_tokens(problem);
  AttentionLimits limits;
  limits.max_rows = static_cast<std::int32_t>(problem.lengths.size());
  limits.max_q_tokens = queries;
  limits.num_q_heads = shape.num_q_heads;
  limits.num_kv_heads = shape.num_kv_heads;
  limits.head_dim_k = shape.head_dim;
  limits.head_dim_v = shape.value_dim();
  limits.num_threads = options_.num_threads;
  const Result<std::int64_t> bytes = attention_workspace_bytes(limits);
  require(bytes.status());
  const std::int64_t stride =
      num_blocks(shape, *std::max_element(problem.lengths.begin(), problem.lengths.end()));
  const auto element = static_cast<std::size_t>(bytes_of(shape.dtype));
  const auto heads = static_cast<std::size_t>(queries * shape.num_q_heads);
  const std::size_t q_bytes = heads * static_cast<std::size_t>(shape.head_dim) * element;
  const std::size_t out_bytes = heads * static_cast<std::size_t>(shape.value_dim()) * element;
  HostBatch row{
      problem,
      rotation,
      pool,
      stride,
      block_tables(problem, rotation.num_tables, stride, shuffled_blocks(pool_blocks), BlockId(0)),
      row_offsets(problem, stride),
      {},
      q_offsets(problem),
      std::vector<std::byte>(q_bytes),
      std::vector<std::byte>(out_bytes, std::byte{0xff}),
      limits,
      DeviceBuffer(host_, *bytes, MemoryPurpose::intermediate_buffers),
      {},
      {}};
  row.workspace_bytes = {row.workspace.data(), static_cast<std::size_t>(*bytes)};
  for (const std::int32_t length : problem.lengths) {
    row.num_blocks.push_back(static_cast<std::int32_t>(num_blocks(shape, length)));
  }
  fill(row.q.data(), static_cast<std::int64_t>(q_bytes), shape.dtype, 77);
  require(make_plan(row));
  return row;
}

// The fastest of the loops that read, found in one round each.
double HostMeter::read_us(std::int64_t bytes, int places, int calls) {
  const auto time = [&](ReadKernel kernel, std::int32_t replays) {
    return medians({{calls,
                     [&](std::int32_t call) {
                       read_together(workers_, kernel, pool_.data() + (call % places) * bytes,
                                     bytes);
                       return Status{};
                     }}},
                   replays)
        .us.front();
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

Series HostMeter::attend(const HostBatch& row) {
  return {row.rotation.num_calls, [this, &row](std::int32_t call) {
            return run_attention(row.plan, args_of(row, call % row.rotation.num_tables), workers_);
          }};
}

// Attention and plans in turn: those of the first row, and of the rows beside it.
void HostMeter::time(std::vector<HostBatch>& rows, AttentionFigures& figures) {
  std::vector<Series> series;
  for (HostBatch& row : rows) {
    Series one = attend(row);
    one.num_calls = 1;
    const double us = round_us(one);
    compare(row, figures);
    row.rotation.num_calls = calls_within(kHostLimits, row.rotation.num_calls, us);
    row.rotation.num_tables = std::min(row.rotation.num_tables, row.rotation.num_calls);
    series.push_back(attend(row));
    series.push_back({kScheduleCalls, [&row](std::int32_t) { return make_plan(row); }});
  }
  const auto [us, rounds] = medians(series, options_.replays);
  const auto with_schedule = [&, &us = us](std::size_t row) {
    return us[2 * row] + us[2 * row + 1] / options_.layers_per_schedule;
  };
  figures.rotation = rows.front().rotation;
  figures.num_rounds = rounds;
  figures.num_parts = rows.front().plan.num_parts;
  figures.attention_us = with_schedule(0);
  figures.schedule_us = us[1];
  for (std::size_t row = 1; row < rows.size(); ++row) figures.beside_us += with_schedule(row);
}

AttentionFigures HostMeter::measured(const AttentionProblem& problem) {
  std::vector<const AttentionProblem*> problems{&problem};
  for (const AttentionProblem& other : problem.beside) problems.push_back(&other);
  std::vector<DType> types;
  for (const AttentionProblem* each : problems) {
    types.push_back(each->shape.dtype);
    if (!is_cpu_float(types.back())) {
      throw Failure{unsupported(Resource::dtype, static_cast<std::uint64_t>(types.back()))};
    }
  }
  fill_pool(types);
  AttentionFigures figures;
  figures.kv_bytes = kv_bytes(problem);
  std::vector<HostBatch> rows;
  rows.reserve(problems.size());  // the series refer to them
  for (std::size_t i = 0; i < problems.size(); ++i) {
    rows.push_back(make_row(*problems[i], part_of(pool(), i, problems.size())));
  }
  const Rotation rotation = rows.front().rotation;
  figures.floor_us = read_us(figures.kv_bytes, rotation.num_tables, rotation.num_calls);
  time(rows, figures);
  return figures;
}

Result<ReadCeiling> HostMeter::read_ceiling() {
  try {
    if (filled_.empty()) fill_pool({DType::bf16});
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
