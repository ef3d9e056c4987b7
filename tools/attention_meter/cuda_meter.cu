#include "tools/attention_meter/attention_meter.hpp"

#include "tools/attention_meter/comparison.hpp"
#include "tools/attention_meter/cuda_batch.cuh"
#include "tools/attention_meter/cuda_graph_timer.cuh"
#include "tools/attention_meter/cuda_read.cuh"
#include "tools/attention_meter/device_buffer.hpp"
#include "tools/attention_meter/plain_attention.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

namespace kvarena::meter {
namespace {

constexpr int kScheduleCalls = 16;  // in a graph
constexpr int kCeilingCalls = 2;    // in a graph

/// A problem on the device, and its rotation.
struct Row {
  const AttentionProblem& problem;
  Rotation rotation;
  CudaBatch batch;
};

class CudaMeter final : public AttentionMeter {
 public:
  CudaMeter(CudaDevice& device, const MeterOptions& options)
      : device_(device),
        options_(options),
        num_sms_(device.info().num_sms),
        stream_(device),
        pool_(device, options.pool_bytes, MemoryPurpose::kv_cache),
        sink_(device, sizeof(unsigned), MemoryPurpose::intermediate_buffers) {
    check(cudaSetDevice(device.ordinal()));
    timer_.emplace(device, stream_.native(), options.replays);
  }

  Result<ReadCeiling> read_ceiling() override;
  Result<AttentionFigures> measure(const AttentionProblem& problem) override;

 private:
  void check(cudaError_t error) const { require(device_.check(error, Resource::stream)); }
  void synchronize() { require(device_.synchronize(stream_.id())); }
  DeviceBuffer buffer(std::int64_t bytes) {
    return {device_, bytes, MemoryPurpose::intermediate_buffers};
  }
  template <class T>
  void upload(const DeviceBuffer& to, const std::vector<T>& from);
  template <class T>
  std::vector<T> downloaded(const DeviceBuffer& from, std::int64_t count);
  template <class Visit>
  void with_type(DType dtype, Visit visit);
  template <class Visit>
  void with_float(DType dtype, Visit visit);
  void fill_pool(const std::vector<DType>& types);
  PoolPart pool() const { return {pool_.data(), options_.pool_bytes}; }
  Row make_row(const AttentionProblem& problem, const PoolPart& pool);
  std::vector<Series> reads(std::int64_t bytes, std::int32_t places, std::int32_t calls);
  Status schedule(const Row& row);
  Status launch(const Row& row, std::int32_t tables);
  template <class Q, class T>
  void compare(const Row& row, AttentionFigures& figures);
  void check_row(const Row& row, AttentionFigures& figures);
  void time(std::vector<Row>& rows, AttentionFigures& figures);
  AttentionFigures measured(const AttentionProblem& problem);

  CudaDevice& device_;
  MeterOptions options_;
  std::int32_t num_sms_;
  OwnStream stream_;
  DeviceBuffer pool_;
  DeviceBuffer sink_;
  std::optional<CudaGraphTimer> timer_;
  std::vector<DType> filled_;  // what the elements of the pool's equal parts are
};

template <class T>
void CudaMeter::upload(const DeviceBuffer& to, const std::vector<T>& from) {
  require(device_.copy(to.data(), from.data(), from.size() * sizeof(T), stream_.id()));
  synchronize();
}

template <class T>
std::vector<T> CudaMeter::downloaded(const DeviceBuffer& from, std::int64_t count) {
  std::vector<T> values(static_cast<std::size_t>(count));
  require(device_.copy(values.data(), from.data(), values.size() * sizeof(T), stream_.id()));
  synchronize();
  return values;
}

// Calls `visit` with a zero of the element type. Types without a kernel are refused here.
template <class Visit>
void CudaMeter::with_type(DType dtype, Visit visit) {
  switch (dtype) {
    case DType::bf16: return visit(__nv_bfloat16{});
    case DType::f16: return visit(__half{});
    case DType::fp8_e4m3: return visit(__nv_fp8_e4m3{});
    case DType::latent_fp8: return visit(LatentRow{});
    default: throw Failure{unsupported(Resource::dtype, static_cast<std::uint64_t>(dtype))};
  }
}

// The same for the types of q.
template <class Visit>
void CudaMeter::with_float(DType dtype, Visit visit) {
  return dtype == DType::f16 ? visit(__half{}) : visit(__nv_bfloat16{});
}

// Fills equal parts of the pool, one for each of `types`.
void CudaMeter::fill_pool(const std::vector<DType>& types) {
  if (filled_ == types) return;
  for (std::size_t i = 0; i < types.size(); ++i) {
    const PoolPart part = part_of(pool(), i, types.size());
    with_type(types[i], [&](auto zero) {
      using T = decltype(zero);
      const std::size_t count = static_cast<std::size_t>(part.bytes) / sizeof(T);
      if constexpr (std::is_same_v<T, LatentRow>) {
        fill_latents<<<4 * num_sms_, 256, 0, stream_.native()>>>(part.base, count, 3);
      } else {
        fill_normal<<<4 * num_sms_, 256, 0, stream_.native()>>>(reinterpret_cast<T*>(part.base),
                                                                count, 3);
      }
    });
  }
  check(cudaGetLastError());
  synchronize();
  filled_ = types;
}

// The problem's data on the device and its schedule, made.
Row CudaMeter::make_row(const AttentionProblem& problem, const PoolPart& pool) {
  const Rotation rotation = rotation_of(problem, options_.rotated_bytes, 2);
  const std::int64_t pool_blocks = pool.bytes / block_bytes(problem.shape);
  const std::int64_t needed = rotation.num_tables * num_blocks(problem);
  if (needed > pool_blocks) {
    throw Failure{invalid_argument(Resource::pool_bytes, pool.bytes,
                                   needed * block_bytes(problem.shape), std::int64_t{1} << 48)};
  }
  Row row{problem, rotation, CudaBatch(device_, problem, rotation.num_tables, pool)};
  CudaBatch& batch = row.batch;
  const std::int64_t stride = batch.table_stride();
  upload(batch.tables, block_tables(problem, rotation.num_tables, stride,
                                    shuffled_blocks(pool_blocks), kNoBlock));
  upload(batch.lengths, problem.lengths);
  std::vector<std::int32_t> blocks;
  for (const std::int32_t length : problem.lengths) {
    blocks.push_back(static_cast<std::int32_t>(num_blocks(problem.shape, length)));
  }
  upload(batch.num_blocks, blocks);
  upload(batch.row_offsets, row_offsets(problem, stride));
  upload(batch.q_offsets, q_offsets(problem));
  with_float(problem.shape.q_dtype(), [&](auto zero) {
    using T = decltype(zero);
    fill_normal<<<256, 256, 0, stream_.native()>>>(
        batch.q.data<T>(), static_cast<std::size_t>(batch.num_inputs()), 77);
  });
  check(cudaGetLastError());
  require(device_.fill(batch.out.data(), 0xff, static_cast<std::uint64_t>(batch.output_bytes()),
                       stream_.id()));
  require(cuda::launch_reset(batch.step, stream_.native()));
  require(schedule(row));
  synchronize();
  return row;
}

// Several plain kernels that read `bytes` at `places` places of the pool in turn.
std::vector<Series> CudaMeter::reads(std::int64_t bytes, std::int32_t places, std::int32_t calls) {
  const auto count = static_cast<std::size_t>(bytes / 16);
  const std::int64_t step = (bytes + 4095) / 4096 * 4096;
  const auto at = [this, places, step](std::int32_t call) {
    return reinterpret_cast<const uint4*>(pool_.data() + (call % places) * step);
  };
  auto* sink = sink_.data<unsigned>();
  const auto launched = [this] { return device_.check(cudaGetLastError(), Resource::stream); };
  std::vector<Series> all{
      {calls, [=, this](std::int32_t call) {
         const auto blocks = static_cast<unsigned>((count + kReadOnceUnits - 1) / kReadOnceUnits);
         read_once<<<blocks, kReadThreads, 0, stream_.native()>>>(at(call), count, sink);
         return launched();
       }}};
  for (const int grid : kReadGrids) {
    all.push_back({calls, [=, this](std::int32_t call) {
                     read_strided<<<static_cast<unsigned>(grid * num_sms_), kReadThreads, 0,
                                    stream_.native()>>>(at(call), count, sink);
                     return launched();
                   }});
  }
  return all;
}

Status CudaMeter::schedule(const Row& row) {
  return cuda::launch_schedule(row.batch.step, row.batch.args, stream_.native());
}

Status CudaMeter::launch(const Row& row, std::int32_t tables) {
  return cuda::launch_attention(row.batch.step, row.batch.with_tables(tables), stream_.native());
}

// Compares a call's results with plain loops. The worse of this row and those before it stays.
template <class Q, class T>
void CudaMeter::compare(const Row& row, AttentionFigures& figures) {
  const AttentionShape& shape = row.problem.shape;
  const std::vector<PlainPair> pairs = compared_pairs(row.problem);
  const auto last_row = static_cast<std::size_t>(pairs.back().row);
  const std::int64_t scratch_floats = pairs.back().scratch + row.problem.lengths[last_row];
  const auto num_pairs = static_cast<std::int64_t>(pairs.size());
  const DeviceBuffer on_device = buffer(num_pairs * std::int64_t{sizeof(PlainPair)});
  const DeviceBuffer scratch = buffer(scratch_floats * 4);
  const DeviceBuffer exact = buffer(num_pairs * shape.value_dim() * 8);
  upload(on_device, pairs);
  require(launch(row, 0));
  synchronize();
  plain_attention<Q, T><<<static_cast<unsigned>(num_pairs), kPlainThreads, 0, stream_.native()>>>(
      row.batch.args, on_device.data<PlainPair>(), scratch.data<float>(), exact.data<double>());
  check(cudaGetLastError());
  const auto want = downloaded<double>(exact, num_pairs * shape.value_dim());
  const auto have = downloaded<std::uint16_t>(row.batch.out, row.batch.num_outputs());
  const std::vector<std::int64_t> first_query = q_offsets(row.problem);
  Comparison comparison(shape.q_dtype());
  const auto dims = static_cast<std::size_t>(shape.value_dim());
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const std::int64_t query = first_query[static_cast<std::size_t>(pairs[i].row)] + pairs[i].query;
    comparison.add_head(std::span(want).subspan(i * dims, dims), have.data(),
                        (query * shape.num_q_heads + pairs[i].head) * shape.value_dim());
  }
  figures.num_checked += num_pairs;
  comparison.keep_worse(figures.error, figures.error_limit);
}

void CudaMeter::check_row(const Row& row, AttentionFigures& figures) {
  switch (row.problem.shape.dtype) {
    case DType::f16: return compare<__half, __half>(row, figures);
    case DType::fp8_e4m3: return compare<__nv_bfloat16, __nv_fp8_e4m3>(row, figures);
    case DType::latent_fp8: return compare<__nv_bfloat16, LatentRow>(row, figures);
    default: return compare<__nv_bfloat16, __nv_bfloat16>(row, figures);
  }
}

// Reads, schedules and attention in turn: those of the first row, and of the rows beside it.
void CudaMeter::time(std::vector<Row>& rows, AttentionFigures& figures) {
  const Rotation& rotation = rows.front().rotation;
  std::vector<Series> series = reads(figures.kv_bytes, rotation.num_tables, rotation.num_calls);
  const auto num_reads = static_cast<std::ptrdiff_t>(series.size());
  for (Row& row : rows) {
    const auto attend = [this, &row](std::int32_t call) {
      return launch(row, call % row.rotation.num_tables);
    };
    row.rotation.num_calls = timer_->calls_of(row.rotation.num_calls, attend);
    series.push_back({row.rotation.num_calls, attend});
    series.push_back({kScheduleCalls, [this, &row](std::int32_t) { return schedule(row); }});
  }
  const Medians medians = timer_->medians(series);
  const std::vector<double>& us = medians.us;
  figures.num_rounds = medians.rounds;
  figures.rotation = {std::min(rotation.num_tables, rotation.num_calls), rotation.num_calls};
  figures.floor_us = *std::min_element(us.begin(), us.begin() + num_reads);
  const auto with_schedule = [&](std::size_t row) {
    const std::size_t at = static_cast<std::size_t>(num_reads) + 2 * row;
    return us[at] + us[at + 1] / options_.layers_per_schedule;
  };
  figures.attention_us = with_schedule(0);
  figures.schedule_us = us[static_cast<std::size_t>(num_reads) + 1];
  for (std::size_t row = 1; row < rows.size(); ++row) figures.beside_us += with_schedule(row);
}

AttentionFigures CudaMeter::measured(const AttentionProblem& problem) {
  std::vector<const AttentionProblem*> problems{&problem};
  for (const AttentionProblem& other : problem.beside) problems.push_back(&other);
  std::vector<DType> types;
  for (const AttentionProblem* each : problems) types.push_back(each->shape.dtype);
  fill_pool(types);
  AttentionFigures figures;
  figures.kv_bytes = kv_bytes(problem);
  std::vector<Row> rows;
  rows.reserve(problems.size());  // the series refer to them
  for (std::size_t i = 0; i < problems.size(); ++i) {
    rows.push_back(make_row(*problems[i], part_of(pool(), i, problems.size())));
    check_row(rows.back(), figures);
  }
  time(rows, figures);
  return figures;
}

Result<ReadCeiling> CudaMeter::read_ceiling() {
  try {
    check(cudaSetDevice(device_.ordinal()));
    if (filled_.empty()) fill_pool({DType::bf16});
    const auto us = timer_->medians(reads(options_.ceiling_bytes, 1, kCeilingCalls)).us;
    return ReadCeiling{options_.ceiling_bytes, *std::min_element(us.begin(), us.end())};
  } catch (const Failure& failure) {
    return failure.status;
  }
}

Result<AttentionFigures> CudaMeter::measure(const AttentionProblem& problem) {
  try {
    check(cudaSetDevice(device_.ordinal()));
    return measured(problem);
  } catch (const Failure& failure) {
    return failure.status;
  }
}

}  // namespace

Result<std::unique_ptr<AttentionMeter>> make_cuda_meter(CudaDevice& device,
                                                        const MeterOptions& options) {
  try {
    return std::unique_ptr<AttentionMeter>(std::make_unique<CudaMeter>(device, options));
  } catch (const Failure& failure) {
    return failure.status;
  }
}

}  // namespace kvarena::meter
