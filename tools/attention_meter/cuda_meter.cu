#include "tools/attention_meter/attention_meter.hpp"

#include "kernels/decode/decode_workspace.h"
#include "tools/attention_meter/comparison.hpp"
#include "tools/attention_meter/cuda_batch.cuh"
#include "tools/attention_meter/cuda_graph_timer.cuh"
#include "tools/attention_meter/cuda_read.cuh"
#include "tools/attention_meter/device_buffer.hpp"
#include "tools/attention_meter/plain_decode.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstring>
#include <optional>
#include <vector>

namespace kvarena::meter {
namespace {

constexpr std::int64_t kComparedTokens = std::int64_t{1} << 25;  // of K and V, over all pairs
constexpr int kScheduleCalls = 16;                               // in a graph
constexpr int kCeilingCalls = 2;                                 // in a graph

/// A stream of the device, destroyed with the object.
class OwnStream {
 public:
  explicit OwnStream(CudaDevice& device) : device_(device) {
    const Result<StreamId> created = device.create_stream();
    require(created.status());
    id_ = *created;
    native_ = static_cast<cudaStream_t>(device.native_stream(id_).value());
  }
  ~OwnStream() { static_cast<void>(device_.destroy_stream(id_)); }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;

  StreamId id() const noexcept { return id_; }
  cudaStream_t native() const noexcept { return native_; }

 private:
  CudaDevice& device_;
  StreamId id_;
  cudaStream_t native_ = nullptr;
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
  void fill_pool(DType dtype);
  std::vector<BlockId> make_tables(const AttentionProblem& problem, std::int32_t num_tables,
                                   std::int64_t stride) const;
  CudaBatch make_batch(const AttentionProblem& problem, std::int32_t num_tables);
  double read_us(std::int64_t bytes, int places, int calls);
  Status launch(const CudaBatch& batch, int tables);
  template <class Q, class T>
  void compare(const AttentionProblem& problem, const CudaBatch& batch, AttentionFigures& figures);
  AttentionFigures measured(const AttentionProblem& problem);

  CudaDevice& device_;
  MeterOptions options_;
  std::int32_t num_sms_;
  OwnStream stream_;
  DeviceBuffer pool_;
  DeviceBuffer sink_;
  std::optional<CudaGraphTimer> timer_;
  std::optional<DType> filled_;  // what the pool's elements are
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
    default: throw Failure{unsupported(Resource::dtype, static_cast<std::uint64_t>(dtype))};
  }
}

void CudaMeter::fill_pool(DType dtype) {
  if (filled_ == dtype) return;
  with_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    fill_normal<<<4 * num_sms_, 256, 0, stream_.native()>>>(
        pool_.data<T>(), static_cast<std::size_t>(options_.pool_bytes) / sizeof(T), 3);
  });
  check(cudaGetLastError());
  synchronize();
  filled_ = dtype;
}

std::vector<BlockId> CudaMeter::make_tables(const AttentionProblem& problem,
                                            std::int32_t num_tables, std::int64_t stride) const {
  const std::int64_t pool_blocks = options_.pool_bytes / block_bytes(problem.shape);
  const std::int64_t needed = num_tables * num_blocks(problem);
  if (needed > pool_blocks) {
    const std::int64_t bytes = needed * block_bytes(problem.shape);
    throw Failure{
        invalid_argument(Resource::pool_bytes, options_.pool_bytes, bytes, std::int64_t{1} << 48)};
  }
  const std::vector<BlockId> ids = shuffled_blocks(pool_blocks);
  const std::size_t rows = problem.lengths.size() * static_cast<std::size_t>(num_tables);
  std::vector<BlockId> tables(rows * static_cast<std::size_t>(stride));
  auto next = ids.begin();
  for (std::size_t row = 0; row < rows; ++row) {
    const std::int64_t blocks =
        num_blocks(problem.shape, problem.lengths[row % problem.lengths.size()]);
    std::copy_n(next, blocks, tables.begin() + static_cast<std::ptrdiff_t>(row * stride));
    next += blocks;
  }
  return tables;
}

// The problem's data on the device and its schedule, made.
CudaBatch CudaMeter::make_batch(const AttentionProblem& problem, std::int32_t num_tables) {
  CudaBatch batch(device_, problem, num_tables, num_sms_, pool_.data());
  upload(batch.tables, make_tables(problem, num_tables, batch.table_stride()));
  upload(batch.lengths, problem.lengths);
  with_type(problem.shape.q_dtype(), [&](auto zero) {
    using T = decltype(zero);
    fill_normal<<<256, 256, 0, stream_.native()>>>(
        batch.q.data<T>(), static_cast<std::size_t>(batch.num_outputs()), 77);
  });
  check(cudaGetLastError());
  const auto fill = [&](const DeviceBuffer& buffer, std::uint8_t value, std::int64_t bytes) {
    require(device_.fill(buffer.data(), value, static_cast<std::uint64_t>(bytes), stream_.id()));
  };
  fill(batch.out, 0xff, batch.output_bytes());
  fill(batch.workspace, 0, batch.workspace_bytes());
  require(kernels::launch_decode_schedule(batch.schedule, stream_.native()));
  synchronize();
  return batch;
}

// The best of several plain kernels that read `bytes` at `places` places of the pool in turn.
double CudaMeter::read_us(std::int64_t bytes, int places, int calls) {
  const auto count = static_cast<std::size_t>(bytes / 16);
  const std::int64_t step = (bytes + 4095) / 4096 * 4096;
  const auto at = [&](int call) {
    return reinterpret_cast<const uint4*>(pool_.data() + (call % places) * step);
  };
  auto* sink = sink_.data<unsigned>();
  const auto launched = [this] { return device_.check(cudaGetLastError(), Resource::stream); };
  double best = timer_->microseconds(calls, [&](int call) {
    const auto blocks = static_cast<unsigned>((count + kReadOnceUnits - 1) / kReadOnceUnits);
    read_once<<<blocks, kReadThreads, 0, stream_.native()>>>(at(call), count, sink);
    return launched();
  });
  for (const int grid : kReadGrids) {
    best = std::min(best, timer_->microseconds(calls, [&](int call) {
      read_strided<<<static_cast<unsigned>(grid * num_sms_), kReadThreads, 0, stream_.native()>>>(
          at(call), count, sink);
      return launched();
    }));
  }
  return best;
}

Status CudaMeter::launch(const CudaBatch& batch, int tables) {
  return kernels::launch_decode(batch.with_tables(tables), true, stream_.native());
}

template <class Q, class T>
void CudaMeter::compare(const AttentionProblem& problem, const CudaBatch& batch,
                        AttentionFigures& figures) {
  const AttentionShape& shape = problem.shape;
  std::vector<PlainPair> all;
  std::vector<std::int64_t> costs;
  for (std::int32_t row = 0; row < batch.decode.num_rows; ++row) {
    for (std::int32_t i = 0; i < shape.q_len * shape.num_q_heads; ++i) {
      all.push_back({row, i / shape.num_q_heads, i % shape.num_q_heads, 0});
      costs.push_back(problem.lengths[static_cast<std::size_t>(row)]);
    }
  }
  std::vector<PlainPair> pairs;
  std::int64_t scratch_floats = 0;
  for (const std::int64_t i : sampled(costs, kComparedTokens)) {
    pairs.push_back(all[static_cast<std::size_t>(i)]);
    pairs.back().scratch = scratch_floats;
    scratch_floats += costs[static_cast<std::size_t>(i)];
  }
  const auto num_pairs = static_cast<std::int64_t>(pairs.size());
  const DeviceBuffer on_device = buffer(num_pairs * std::int64_t{sizeof(PlainPair)});
  const DeviceBuffer scratch = buffer(scratch_floats * 4);
  const DeviceBuffer exact = buffer(num_pairs * shape.head_dim * 8);
  upload(on_device, pairs);
  require(launch(batch, 0));
  synchronize();
  plain_decode<Q, T><<<static_cast<unsigned>(num_pairs), kPlainThreads, 0, stream_.native()>>>(
      batch.decode, batch.schedule.seq_lens, on_device.data<PlainPair>(), scratch.data<float>(),
      exact.data<double>());
  check(cudaGetLastError());
  const auto want = downloaded<double>(exact, num_pairs * shape.head_dim);
  const auto have = downloaded<std::uint16_t>(batch.out, batch.num_outputs());
  Comparison comparison(shape.q_dtype());
  for (std::size_t at = 0; at < want.size(); ++at) {
    const PlainPair& pair = pairs[at / static_cast<std::size_t>(shape.head_dim)];
    const std::int64_t query = std::int64_t{pair.row} * shape.q_len + pair.query;
    const std::int64_t head = query * shape.num_q_heads + pair.head;
    const auto dim = static_cast<std::int64_t>(at) % shape.head_dim;
    comparison.add(want[at], have.data(), head * shape.head_dim + dim);
  }
  figures.num_checked = num_pairs;
  figures.error = comparison.error();
  figures.error_limit = comparison.error_limit();
}

AttentionFigures CudaMeter::measured(const AttentionProblem& problem) {
  fill_pool(problem.shape.dtype);
  AttentionFigures figures;
  figures.kv_bytes = kv_bytes(problem);
  figures.rotation = rotation_of(problem, options_.rotated_bytes, 2);
  const std::int32_t num_tables = figures.rotation.num_tables;
  const std::int32_t num_calls = figures.rotation.num_calls;
  const CudaBatch batch = make_batch(problem, num_tables);
  const auto compare_as = [&](auto q, auto kv) {
    compare<decltype(q), decltype(kv)>(problem, batch, figures);
  };
  switch (problem.shape.dtype) {
    case DType::f16: compare_as(__half{}, __half{}); break;
    case DType::fp8_e4m3: compare_as(__nv_bfloat16{}, __nv_fp8_e4m3{}); break;
    default: compare_as(__nv_bfloat16{}, __nv_bfloat16{});
  }
  figures.floor_us = read_us(figures.kv_bytes, num_tables, num_calls);
  figures.schedule_us = timer_->microseconds(kScheduleCalls, [&](int) {
    return kernels::launch_decode_schedule(batch.schedule, stream_.native());
  });
  const double layer_us =
      timer_->microseconds(num_calls, [&](int call) { return launch(batch, call % num_tables); });
  figures.attention_us = layer_us + figures.schedule_us / options_.layers_per_schedule;
  const auto header = downloaded<std::byte>(batch.workspace, sizeof(kernels::DecodeHeader));
  kernels::DecodeHeader schedule;
  std::memcpy(&schedule, header.data(), sizeof schedule);
  figures.num_parts = schedule.num_parts;
  return figures;
}

Result<ReadCeiling> CudaMeter::read_ceiling() {
  try {
    check(cudaSetDevice(device_.ordinal()));
    fill_pool(filled_.value_or(DType::bf16));
    const double us = read_us(options_.ceiling_bytes, 1, kCeilingCalls);
    return ReadCeiling{options_.ceiling_bytes, us};
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
