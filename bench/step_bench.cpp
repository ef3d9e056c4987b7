// What a decode step's tables cost: on the host, block tables' append, publishing the step, staging
// what it changed, and launching what brings it to the device; on the device, that launch inside a
// graph. Every row
// grows by a token a step; one in sixteen takes a block. Without a GPU staging goes to ordinary
// memory and nothing is launched. Last, what a small layer of a host device costs an engine that
// waits for it.

#include "kvarena/allocator/block_manager.hpp"
#include "kvarena/blocktable/block_tables.hpp"
#include "kvarena/cache/kv_cache.hpp"
#include "kvarena/device/cuda_device.hpp"
#include "kvarena/device/host_device.hpp"
#include "kvarena/step/step_publisher.hpp"
#include "step/device_tables.hpp"
#include "step/device_tables_memory.hpp"
#include "step/staging_ring.hpp"

#ifdef KVARENA_BENCH_CUDA
#include <cuda_runtime_api.h>
#endif

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <vector>

namespace kvarena {
namespace {

constexpr std::int32_t kBlockSize = 16;
constexpr std::int32_t kBlocksARow = 64;
constexpr int kSteps = 60;  // between two beginnings, and in a graph
constexpr int kRounds = 101;

/// Rows of staggered lengths.
class Engine {
 public:
  Engine(std::int32_t num_rows, bool report_rows)
      : manager_(BlockManager::create(
                     {.num_blocks = std::int64_t{num_rows} * kBlocksARow, .max_holders = num_rows})
                     .value()),
        tables(BlockTables::create(manager_, {.block_size_tokens = kBlockSize,
                                              .max_sequences = num_rows,
                                              .report_rows = report_rows})
                   .value()) {
    for (std::int32_t i = 0; i < num_rows; ++i) ids_.push_back(tables.create_sequence().value());
    grow_back();
  }
  StepPublisher publisher(std::int64_t audit_blocks) const {
    return StepPublisher::create(manager_, tables, {.audit_blocks = audit_blocks}).value();
  }
  AppendResult append() { return tables.append_one_each(ids_).value(); }
  /// Cuts every row back to its first length; all of it will be staged anew.
  void grow_back() {
    for (std::size_t i = 0; i < ids_.size(); ++i) {
      static_cast<void>(tables.truncate(ids_[i], 0));
      const AppendDemand demand{ids_[i], static_cast<std::int32_t>(100 + i % kBlockSize)};
      static_cast<void>(tables.append(std::span(&demand, 1)));
    }
  }

 private:
  BlockManager manager_;

 public:
  BlockTables tables;

 private:
  std::vector<SequenceId> ids_;
};

DeviceTablesOptions options_of(std::int32_t num_rows, std::int32_t in_flight = 2) {
  return {.limits = {.steps_in_flight = in_flight,
                     .max_rows = num_rows,
                     .max_tokens = 16'384,
                     .max_blocks = std::int64_t{num_rows} * kBlocksARow},
          .max_sequences = num_rows,
          .max_sequence_blocks = kBlocksARow,
          .block_size_tokens = kBlockSize};
}

/// Median time of a step, µs; a clock's reading is in it. `begin` runs untimed before each round,
/// `end` after each step.
template <class Begin, class Step, class End>
double median_us(Begin begin, Step step, End end) {
  std::vector<double> times;
  times.reserve(std::size_t{kRounds} * kSteps);
  for (int round = 0; round < kRounds; ++round) {
    begin();
    for (int i = 0; i < kSteps; ++i) {
      const auto start = std::chrono::steady_clock::now();
      step();
      const std::chrono::duration<double, std::micro> time =
          std::chrono::steady_clock::now() - start;
      times.push_back(time.count());
      end();
    }
  }
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

void nothing() {}

double append_us(std::int32_t num_rows, bool report_rows) {
  Engine engine(num_rows, report_rows);
  return median_us([&] { engine.grow_back(); }, [&] { static_cast<void>(engine.append()); },
                   nothing);
}

/// What KvCache adds to a step to publish it, right after the append.
double publish_us(std::int32_t num_rows, std::int64_t audit_blocks) {
  Engine engine(num_rows, false);
  StepPublisher publisher = engine.publisher(audit_blocks);
  std::uint64_t steps = 0;
  const auto append = [&] { static_cast<void>(engine.append()); };
  return median_us(
      [&] {
        engine.grow_back();
        append();
      },
      [&] {
        publisher.begin_step();
        publisher.publish({.steps_ended = ++steps});
      },
      append);
}

/// Staging into the memory of the process.
double stage_us(std::int32_t num_rows) {
  Engine engine(num_rows, true);
  const DeviceTablesMemory plan = plan_memory(options_of(num_rows));
  std::vector<std::max_align_t> memory(static_cast<std::size_t>(plan.staging_bytes) /
                                       sizeof(std::max_align_t));
  StagingRing ring(reinterpret_cast<std::byte*>(memory.data()) + plan.ring, plan.shape);
  const auto step = [&] {
    static_cast<void>(ring.stage(engine.tables, engine.append()));
    ring.advance();
  };
  return median_us(
      [&] {
        engine.grow_back();
        step();
      },
      step, nothing);
}

/// Staging into pinned memory, with or without the launch.
double device_us(CudaDevice& device, std::int32_t num_rows, bool launches) {
  Engine engine(num_rows, true);
  DeviceTables tables = DeviceTables::create(device, options_of(num_rows)).value();
  const StreamId stream = device.create_stream().value();
  const auto step = [&] {
    static_cast<void>(tables.stage(engine.tables, engine.append()));
    if (launches) static_cast<void>(tables.launch(stream));
    tables.advance();
  };
  const double time = median_us(
      [&] {
        engine.grow_back();
        step();
        static_cast<void>(device.synchronize(stream));
      },
      step, [&] { static_cast<void>(device.synchronize(stream)); });
  static_cast<void>(device.destroy_stream(stream));
  if (launches && tables.misses() > 0)
    std::printf("%llu launches found no step\n", static_cast<unsigned long long>(tables.misses()));
  return time;
}

#ifdef KVARENA_BENCH_CUDA
/// Time of a launch among launches in a graph, each with its own step, µs.
double graph_us(CudaDevice& device, std::int32_t num_rows) {
  Engine engine(num_rows, true);
  DeviceTables tables = DeviceTables::create(device, options_of(num_rows, kSteps)).value();
  const StreamId stream = device.create_stream().value();
  auto* const native = static_cast<cudaStream_t>(device.native_stream(stream).value());
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  std::vector<float> times;
  for (int replay = 0; replay < 36; ++replay) {
    engine.grow_back();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    cudaStreamBeginCapture(native, cudaStreamCaptureModeThreadLocal);
    for (int i = 0; i < kSteps; ++i) {
      static_cast<void>(tables.stage(engine.tables, engine.append()));
      static_cast<void>(tables.launch(stream));
      tables.advance();
    }
    cudaStreamEndCapture(native, &graph);
    cudaGraphInstantiate(&exec, graph, 0);
    cudaGraphUpload(exec, native);
    cudaStreamSynchronize(native);
    cudaEventRecord(begin, native);
    cudaGraphLaunch(exec, native);
    cudaEventRecord(end, native);
    cudaStreamSynchronize(native);
    float milliseconds = 0;
    cudaEventElapsedTime(&milliseconds, begin, end);
    if (replay >= 5) times.push_back(milliseconds * 1e3F / kSteps);
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
  }
  if (tables.misses() > 0)
    std::printf("%llu replays found no step\n", static_cast<unsigned long long>(tables.misses()));
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  static_cast<void>(device.destroy_stream(stream));
  std::nth_element(times.begin(), times.begin() + 15, times.end());
  return times[15];
}
#endif

/// Writing, attention and waiting for one layer of one short sequence on a host device: next to no
/// work, so mostly what the calls cost.
double host_layer_us(HostStreams streams) {
  const auto device = HostDevice::create({.capacity_bytes = 1 << 28, .streams = streams}).value();
  KvCache cache = KvCache::create(*device, {.layout = {.num_layers = kSteps,
                                                       .num_kv_heads = 2,
                                                       .head_dim_k = 64,
                                                       .dtype = DType::f16,
                                                       .block_size_tokens = kBlockSize},
                                            .size = {.num_blocks = 16},
                                            .num_q_heads = 8,
                                            .max_sequences = 1,
                                            .num_threads = 1})
                      .value();
  const SequenceId id = cache.create_sequence().value();
  const std::vector<std::uint16_t> in(std::size_t{8} * 64);
  std::vector<std::uint16_t> out(in.size());
  std::int32_t layer = kSteps;
  return median_us(
      [&] {
        if (layer == kSteps) static_cast<void>(cache.end_step());  // none before the first
        static_cast<void>(cache.truncate(id, 0));
        static_cast<void>(cache.begin_step());
        const AppendDemand demand{id, 1};
        static_cast<void>(cache.append(std::span(&demand, 1)));
        layer = 0;
      },
      [&] {
        static_cast<void>(cache.write_kv({.layer = layer, .key = in.data(), .value = in.data()}));
        static_cast<void>(cache.attend({.layer = layer, .q = in.data(), .out = out.data()}));
        static_cast<void>(cache.synchronize());
        ++layer;
      },
      nothing);
}

void print_host(std::int32_t num_rows, CudaDevice* device) {
  const double plain = append_us(num_rows, false);
  const double reported = append_us(num_rows, true);
  const double staged =
      device == nullptr ? stage_us(num_rows) : device_us(*device, num_rows, false);
  std::printf("%5d rows: append %6.2f us, with rows reported %6.2f, + stage %6.2f", num_rows, plain,
              reported, staged);
  const double launched = device == nullptr ? staged : device_us(*device, num_rows, true);
  if (device != nullptr) std::printf(", + launch %6.2f", launched);
  std::printf("; on top of append %5.2f us (%.2f x)\n", launched - plain, launched / plain);
  for (const std::int64_t audited : {0, 64, 256}) {
    const double published = publish_us(num_rows, audited);
    std::printf("%5d rows: publish, %3lld blocks audited: %5.2f us (%.3f of append)\n", num_rows,
                static_cast<long long>(audited), published, published / plain);
  }
}

int run() {
  const auto device = CudaDevice::create();
  CudaDevice* const gpu = device ? device->get() : nullptr;
  std::printf("%s\n", gpu != nullptr ? gpu->name().c_str()
                                     : "no GPU: staging into ordinary memory, nothing launched");
  for (const std::int32_t num_rows : {256, 1024}) print_host(num_rows, gpu);
  std::printf(
      "write, attend, synchronize of a layer on a host device: %.2f us, inline calls %.2f us\n",
      host_layer_us(HostStreams::threads), host_layer_us(HostStreams::inline_calls));
#ifdef KVARENA_BENCH_CUDA
  for (const std::int32_t num_rows : {1, 256, 1024, 4096}) {
    if (gpu == nullptr) break;
    std::printf("%5d rows: %6.2f us a launch in a graph\n", num_rows, graph_us(*gpu, num_rows));
  }
#endif
  return 0;
}

}  // namespace
}  // namespace kvarena

int main() { return kvarena::run(); }
