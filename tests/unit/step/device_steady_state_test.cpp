// A step of device tables makes no call that allocates or frees memory or waits: the linker sends
// those calls of the whole program here, where they are counted (CMakeLists.txt lists them).

#include "support/gpu.hpp"
#include "support/heap_counter.hpp"
#include "support/status_matchers.hpp"
#include "unit/step/steady_steps.hpp"

#include "kvarena/cache/kv_cache.hpp"
#include "step/device_tables.hpp"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <vector>

namespace {

std::atomic<std::int64_t> memory_calls{0};
std::atomic<std::int64_t> waits{0};

}  // namespace

/// Counts calls of `name` in `counter` and passes them on.
#define KVARENA_COUNT(counter, name, parameters, arguments) \
  cudaError_t __real_##name parameters;                     \
  cudaError_t __wrap_##name parameters;                     \
  cudaError_t __wrap_##name parameters {                    \
    ++counter;                                              \
    return __real_##name arguments;                         \
  }                                                         \
  static_assert(true)

extern "C" {
KVARENA_COUNT(memory_calls, cudaMalloc, (void** to, std::size_t bytes), (to, bytes));
KVARENA_COUNT(memory_calls, cudaFree, (void* pointer), (pointer));
KVARENA_COUNT(memory_calls, cudaHostAlloc, (void** to, std::size_t bytes, unsigned flags),
              (to, bytes, flags));
KVARENA_COUNT(memory_calls, cudaFreeHost, (void* pointer), (pointer));
KVARENA_COUNT(memory_calls, cudaMallocAsync, (void** to, std::size_t bytes, cudaStream_t stream),
              (to, bytes, stream));
KVARENA_COUNT(memory_calls, cudaFreeAsync, (void* pointer, cudaStream_t stream), (pointer, stream));
KVARENA_COUNT(waits, cudaStreamSynchronize, (cudaStream_t stream), (stream));
KVARENA_COUNT(waits, cudaDeviceSynchronize, (), ());
KVARENA_COUNT(waits, cudaEventSynchronize, (cudaEvent_t event), (event));
KVARENA_COUNT(waits, cudaMemcpy,
              (void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind),
              (to, from, bytes, kind));
}

namespace kvarena {
namespace {

TEST(DeviceSteadyState, AStepCallsTheDriverForNothingButTheLaunch) {
  KVARENA_NEEDS_GPU();
  const auto device = test::make_cuda();
  ASSERT_NE(device, nullptr);
  const StreamId stream = device->create_stream().value();
  DeviceTables tables = DeviceTables::create(*device, test::SteadySteps::options()).value();
  EXPECT_GE(memory_calls.load(), 2) << "the counter counts";
  EXPECT_GE(waits.load(), 1) << "the counter counts";
  test::SteadySteps steps;
  // Two steps at once are in flight; the ring is waited for outside of what is counted.
  std::int64_t memory_in_steps = 0;
  std::int64_t waits_in_steps = 0;
  std::int64_t heap_in_steps = 0;
  bool all_ok = true;
  for (int i = 0; i < 500; ++i) {
    const std::int64_t memory_before = memory_calls;
    const std::int64_t waits_before = waits;
    const test::HeapCounter heap;
    for (int in_flight = 0; in_flight < 2; ++in_flight) {
      all_ok &= tables.stage(steps.tables, steps.next()).is_ok();
      all_ok &= tables.launch(stream).is_ok();
      tables.advance();
      all_ok &= tables.misses() == 0;
    }
    heap_in_steps += heap.count();
    memory_in_steps += memory_calls - memory_before;
    waits_in_steps += waits - waits_before;
    all_ok &= device->synchronize(stream).is_ok();
  }
  EXPECT_TRUE(all_ok);
  EXPECT_EQ(memory_in_steps, 0);
  EXPECT_EQ(waits_in_steps, 0);
  EXPECT_EQ(heap_in_steps, 0);
}

/// Sequences that grow by a block a step until the pool of a million is empty, then end and begin
/// again, with no call that allocates or frees memory.
TEST(DeviceSteadyState, AMillionBlocksComeAndGoWithoutAMemoryCall) {
  KVARENA_NEEDS_GPU();
  constexpr std::int64_t kBlocks = 1'000'000;
  constexpr std::int32_t kSequences = 500;
  const auto device = test::make_cuda();
  ASSERT_NE(device, nullptr);
  if (device->memory_info().value().free_bytes < std::uint64_t{6} << 30) {
    GTEST_SKIP() << "6 GiB of free memory are needed";
  }
  KvCache cache = KvCache::create(*device, {.layout = {.num_layers = 1,
                                                       .num_kv_heads = 1,
                                                       .head_dim_k = 64,
                                                       .dtype = DType::bf16,
                                                       .block_size_tokens = 16},
                                            .size = {.num_blocks = kBlocks},
                                            .num_q_heads = 1,
                                            .max_sequences = kSequences,
                                            .max_sequence_tokens = 16 * (kBlocks / kSequences),
                                            .max_step_tokens = 16 * kSequences,
                                            .max_batch_blocks = kBlocks})
                      .value();
  std::vector<AppendDemand> demands(kSequences);
  for (AppendDemand& demand : demands) demand = {cache.create_sequence().value(), 16};
  const std::int64_t memory_before = memory_calls;
  bool all_ok = true;
  std::int64_t taken = 0;
  for (std::int64_t step = 0; taken < 2 * kBlocks && all_ok; ++step) {
    if (taken == kBlocks) {
      for (AppendDemand& demand : demands) {
        all_ok &= cache.destroy(demand.sequence).is_ok();
        demand.sequence = cache.create_sequence().value();
      }
    }
    all_ok &= cache.begin_step().is_ok();
    const Result<StepBatch> batch = cache.append(demands);
    all_ok &= batch.is_ok() && cache.end_step().is_ok();
    taken += batch.is_ok() ? batch->new_blocks : 0;
  }
  EXPECT_TRUE(all_ok);
  EXPECT_EQ(taken, 2 * kBlocks);
  EXPECT_EQ(memory_calls - memory_before, 0);
  EXPECT_OK(cache.synchronize());
  EXPECT_OK(cache.check_invariants());
}

}  // namespace
}  // namespace kvarena
