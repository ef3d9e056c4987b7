// Decoding on a GPU: prompts run call by call, then one decode step is recorded in a CUDA graph and
// replayed while sequences grow, join and leave.

#include <kvarena/cache/kv_cache.hpp>
#include <kvarena/device/cuda_device.hpp>

#include <cuda_runtime_api.h>

#include <cstdio>
#include <vector>

using namespace kvarena;

namespace {

constexpr int kLayers = 4, kHeads = 8, kKvHeads = 2, kDim = 64, kPrompt = 100;
constexpr RecordedStep kShape{.num_rows = 8};

/// K, V and Q come from the model; here every element is the same bf16 number, 0x3f3f.
bool run_layers(KvCache& cache, void* in, void* out) {
  bool ok = true;
  for (std::int32_t layer = 0; layer < kLayers; ++layer) {
    ok = ok && cache.write_kv({layer, in, in, DType::bf16}) &&
         cache.attend({layer, in, DType::bf16, out, DType::bf16});
  }
  return ok;
}

bool decode(CudaDevice& device, KvCache& cache, void* in, void* out) {
  const auto stream = static_cast<cudaStream_t>(*device.native_stream(cache.stream()));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t step = nullptr;
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
  bool ok = cache.begin_recording(kShape) && run_layers(cache, in, out) && cache.end_recording();
  cudaStreamEndCapture(stream, &graph);
  ok = ok && cudaGraphInstantiate(&step, graph, 0) == cudaSuccess;
  std::vector<AppendDemand> rows;
  for (int n = 0; n < 100; ++n) {
    if (n % 20 == 0) {  // a sequence joins: its prompt is a step of its own
      const std::vector<AppendDemand> prompt{{cache.create_sequence().value(), kPrompt}};
      rows.push_back({prompt[0].sequence, 1});
      ok = ok && cache.begin_step() && cache.append(prompt) && run_layers(cache, in, out) &&
           cache.end_step();
    }
    ok = ok && cache.begin_step() && cache.append_recorded(kShape, rows) &&
         device.check(cudaGraphLaunch(step, stream), Resource::stream) && cache.end_step();
    if (n == 50) {  // another leaves
      ok = ok && cache.destroy(rows.front().sequence);
      rows.erase(rows.begin());
    }
  }
  ok = cache.synchronize() && ok;
  cudaGraphExecDestroy(step);
  cudaGraphDestroy(graph);
  return ok;
}

}  // namespace

int main() {
  auto device = CudaDevice::create();
  if (!device) return std::printf("no GPU: %s\n", describe_cuda(device.status()).c_str()) < 0;
  KvCacheOptions options{.layout = {.num_layers = kLayers, .num_kv_heads = kKvHeads}};
  options.layout.head_dim_k = kDim;
  options.layout.dtype = DType::bf16;
  options.size.num_blocks = 512;
  options.num_q_heads = kHeads;
  auto cache = KvCache::create(**device, options).value();
  constexpr std::uint64_t kBytes = std::uint64_t{kPrompt} * kHeads * kDim * 2;
  void* const in = (*device)->allocate({.bytes = 2 * kBytes}).value();
  void* const out = static_cast<char*>(in) + kBytes;
  std::uint16_t element = 0;
  const bool ok = (*device)->fill(in, 0x3f, kBytes, cache.stream()) &&
                  decode(**device, cache, in, out) &&
                  (*device)->copy(&element, out, sizeof element, cache.stream()) &&
                  cache.synchronize() && (*device)->free(in);
  std::printf("%lld tokens cached, out[0] = 0x%04x\n",
              static_cast<long long>(cache.tables().stats().tokens), element);
  return ok ? 0 : 1;
}
