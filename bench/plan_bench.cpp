// What `kvarena plan` computes for one model on one GPU: the plan, and the changes that would make
// it fit where it does not.

#include "kvarena/capacity/gpu_spec.hpp"
#include "kvarena/capacity/memory_plan.hpp"
#include "kvarena/capacity/model_presets.hpp"

#include <benchmark/benchmark.h>

#include <cstdint>

namespace kvarena::capacity {
namespace {

PlanOptions options_on(const char* gpu_name) {
  const GpuSpec& gpu = *find_gpu(gpu_name);
  return {.memory_bytes = gpu.cuda_memory_bytes.value_or(gpu.memory_bytes),
          .target = CacheTarget{.kind = DeviceKind::cuda, .num_sms = gpu.num_sms}};
}

void plan_with_changes(benchmark::State& state, const char* model_name, PlanOptions options) {
  const ModelSpec model = *find_model_preset(model_name);
  bool is_fitting = false;
  for (auto _ : state) {
    is_fitting = plan(model, options).value().fits;
    benchmark::DoNotOptimize(changes_that_fit(model, options));
  }
  state.SetLabel(is_fitting ? "fits" : "does not fit");
}

void one_gpu(benchmark::State& state) {
  plan_with_changes(state, "Llama-3.1-8B", options_on("H100-SXM"));
}
BENCHMARK(one_gpu)->Unit(benchmark::kMicrosecond);

void no_room_for_weights(benchmark::State& state) {
  plan_with_changes(state, "Llama-3.1-405B", options_on("L4"));
}
BENCHMARK(no_room_for_weights)->Unit(benchmark::kMicrosecond);

void several_groups(benchmark::State& state) {
  PlanOptions options = options_on("H200-SXM");
  options.kept = KeptTokens::model;
  options.batch = 64;
  plan_with_changes(state, "Gemma-3-27B", options);
}
BENCHMARK(several_groups)->Unit(benchmark::kMicrosecond);

void a_million_sequences(benchmark::State& state) {
  PlanOptions options = options_on("H200-SXM");
  options.batch = 1'000'000;
  options.context_tokens = 1;
  options.pipeline_parallel = 8;
  plan_with_changes(state, "Mixtral-8x7B-v0.1", options);
}
BENCHMARK(a_million_sequences)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace kvarena::capacity

BENCHMARK_MAIN();
