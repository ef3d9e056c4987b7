// Decode attention of a cache with groups on a GPU: the layers of Gemma-3-27B, 64 sequences of 8k
// tokens. Prints the time of a layer of each kind and the bytes of K and V that it has to read.

#include "kvarena/cache/kv_cache.hpp"
#include "kvarena/device/cuda_device.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <vector>

namespace {

using namespace kvarena;

constexpr std::int32_t kLayers = 62;
constexpr std::int32_t kEvery = 6;  // each sixth layer keeps all tokens
constexpr std::int64_t kWindow = 1024;
constexpr std::int32_t kHeads = 16;
constexpr std::int32_t kQHeads = 32;
constexpr std::int32_t kDim = 128;
constexpr std::int32_t kRows = 64;
constexpr std::int64_t kTokens = 8192;
constexpr std::int64_t kAtOnce = 8192;
constexpr int kSteps = 40;

void check(const Status& status, const char* what) {
  if (status) return;
  std::fprintf(stderr, "%s: %s\n", what, describe(status).c_str());
  std::exit(1);
}
template <class T>
T take(Result<T> result, const char* what) {
  check(result.status(), what);
  return std::move(result).value();
}
void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

bool is_full(std::int32_t layer) { return layer % kEvery == kEvery - 1; }

/// One decode step's inputs, and the events around its layers.
struct Run {
  KvCache& cache;
  cudaStream_t stream;
  void* q;
  void* out;
  std::vector<AppendDemand> demands;
  cudaEvent_t before;
  cudaEvent_t after;

  double microseconds_of(std::int32_t kind, int& count) {
    check(cudaEventRecord(before, stream), "record");
    count = 0;
    for (std::int32_t layer = 0; layer < kLayers; ++layer) {
      if (is_full(layer) != (kind == 1)) continue;
      check(cache.attend({.layer = layer,
                          .q = q,
                          .q_dtype = DType::bf16,
                          .out = out,
                          .out_dtype = DType::bf16,
                          .kv_is_written = true}),
            "attend");
      ++count;
    }
    check(cudaEventRecord(after, stream), "record");
    check(cudaEventSynchronize(after), "wait");
    float ms = 0.0F;
    check(cudaEventElapsedTime(&ms, before, after), "time");
    return static_cast<double>(ms) * 1e3;
  }
};

/// A cache with room for all sequences, whose groups are those of the model.
KvCache create_cache(Device& device, cudaStream_t stream) {
  std::vector<GroupLayer> full;
  std::vector<GroupLayer> window;
  for (std::int32_t layer = 0; layer < kLayers; ++layer) {
    (is_full(layer) ? full : window).push_back({layer});
  }
  const LayerGroup shape{
      .layers = {}, .num_kv_heads = kHeads, .head_dim_k = kDim, .dtype = DType::bf16};
  std::vector<LayerGroup> groups(2, shape);
  groups[0].layers = full;
  groups[1].layers = window;
  groups[1].kind = PagedKind::window;
  groups[1].limit_tokens = kWindow;
  const std::int64_t room = kTokens + 3 * kSteps + 64;
  const GroupLayout layout = take(GroupLayout::create(groups, room, TileOrder::chunked), "layout");
  const std::int64_t pages = layout.pages_of_sequence(room) * kRows + kAtOnce / 16 + 64;
  std::printf("pool: %lld pages of %lld bytes, %zu parts\n", static_cast<long long>(pages),
              static_cast<long long>(layout.page_bytes()), layout.parts().size());
  return take(KvCache::create(device, {.size = {.num_blocks = pages},
                                       .num_q_heads = kQHeads,
                                       .max_sequences = kRows,
                                       .max_sequence_tokens = room,
                                       .max_step_tokens = kAtOnce,
                                       .home_stream = stream,
                                       .groups = groups}),
              "cache");
}

/// Creates the sequences, with their prompts, and returns a token for each.
std::vector<AppendDemand> create_sequences(KvCache& cache) {
  std::vector<AppendDemand> demands;
  for (std::int32_t row = 0; row < kRows; ++row) {
    const SequenceId id = take(cache.create_sequence(), "sequence");
    for (std::int64_t had = 0; had < kTokens; had += kAtOnce) {
      const AppendDemand demand{id, static_cast<std::int32_t>(kAtOnce)};
      check(cache.begin_step(), "begin");
      check(cache.append(std::span(&demand, 1)).status(), "append");
      check(cache.end_step(), "end");
    }
    demands.push_back({id, 1});
  }
  check(cache.synchronize(), "prompts");
  return demands;
}

/// Zeros on the device, for the life of the program.
void* zeros(Device& device, std::uint64_t bytes) {
  void* const memory = take(device.allocate({.bytes = bytes,
                                             .purpose = MemoryPurpose::intermediate_buffers,
                                             .description = "queries and outputs"}),
                            "memory");
  check(cudaMemset(memory, 0, bytes), "memory");
  return memory;
}

/// What append takes on the host, with its launches, while the device is idle.
double append_microseconds(KvCache& cache, const std::vector<AppendDemand>& demands) {
  std::vector<double> times;
  for (int step = 0; step < kSteps; ++step) {
    check(cache.begin_step(), "begin");
    const auto begin = std::chrono::steady_clock::now();
    check(cache.append(demands).status(), "append");
    const auto end = std::chrono::steady_clock::now();
    times.push_back(std::chrono::duration<double, std::micro>(end - begin).count());
    check(cache.end_step(), "end");
    check(cache.synchronize(), "wait");
  }
  return median(times);
}

/// The same rows in a cache of two layers that are alike.
double uniform_append_microseconds(Device& device) {
  const std::int64_t blocks = (kTokens + 3 * kSteps + 64) / 16 * kRows;
  KvCache cache = take(KvCache::create(device, {.layout = {.num_layers = 2,
                                                           .num_kv_heads = kHeads,
                                                           .head_dim_k = kDim,
                                                           .dtype = DType::bf16},
                                                .size = {.num_blocks = blocks},
                                                .num_q_heads = kQHeads,
                                                .max_sequences = kRows,
                                                .max_step_tokens = kAtOnce}),
                       "cache");
  const std::vector<AppendDemand> demands = create_sequences(cache);
  return append_microseconds(cache, demands);
}

}  // namespace

int main() {
  auto device = take(CudaDevice::create({}), "device");
  const double uniform_us = uniform_append_microseconds(*device);
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  KvCache cache = create_cache(*device, stream);
  check(cudaMemset(cache.arena().base(), 0, static_cast<std::size_t>(cache.arena().bytes())),
        "memory");
  constexpr std::uint64_t kBytes = std::uint64_t{kRows} * kQHeads * kDim * 2;
  Run run{cache, stream, zeros(*device, kBytes), zeros(*device, kBytes), {}, nullptr, nullptr};
  check(cudaEventCreate(&run.before), "event");
  check(cudaEventCreate(&run.after), "event");
  run.demands = create_sequences(cache);
  std::vector<double> times[2];
  int count[2] = {};
  for (int step = 0; step < kSteps; ++step) {
    check(cache.begin_step(), "begin");
    check(cache.append(run.demands).status(), "append");
    check(cudaStreamSynchronize(stream), "wait");
    for (const int kind : {0, 1}) {
      times[kind].push_back(run.microseconds_of(kind, count[kind]) / count[kind]);
    }
    check(cache.end_step(), "end");
  }
  for (const int kind : {0, 1}) {
    const double tokens = static_cast<double>(kind == 0 ? kWindow : kTokens + kSteps / 2);
    const double bytes = tokens * kRows * kHeads * kDim * 2 * 2;
    const double us = median(times[kind]);
    std::printf("%s layers: %d, %.1f us a layer, %.1f MB of K and V, %.0f GB/s\n",
                kind == 0 ? "window" : "full", count[kind], us, bytes / 1e6, bytes / us / 1e3);
  }
  std::printf(
      "append of %d sequences on the host, with its launches: %.1f us; layers alike: %.1f\n", kRows,
      append_microseconds(cache, run.demands), uniform_us);
  check(device->free(run.q), "free");
  check(device->free(run.out), "free");
  return 0;
}
