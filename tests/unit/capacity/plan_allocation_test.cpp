// Planned == allocated: a plan, its weights and activations, and the cache that it is for, on
// devices as large as GPUs whose memory is reserved and never touched, and on a GPU.

#include "kvarena/capacity/gpu_spec.hpp"
#include "kvarena/capacity/memory_plan.hpp"
#include "kvarena/capacity/model_presets.hpp"

#include "support/gpu.hpp"
#include "support/process_memory.hpp"
#include "support/reserved_memory.hpp"
#include "support/status_matchers.hpp"

#include <gtest/gtest.h>

#include <iostream>

namespace kvarena::capacity {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

/// Memory that an engine holds beside its cache.
class Engine {
 public:
  Engine(Device& device, const MemoryPlan& plan) : device_(device) {
    weights_ = allocate(plan.weights_bytes, MemoryPurpose::model_weights);
    activations_ = allocate(plan.activation_bytes, MemoryPurpose::intermediate_buffers);
  }
  ~Engine() {
    EXPECT_OK(device_.free(weights_));
    EXPECT_OK(device_.free(activations_));
  }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

 private:
  void* allocate(std::int64_t bytes, MemoryPurpose purpose) {
    const auto memory =
        device_.allocate({.bytes = static_cast<std::uint64_t>(bytes), .purpose = purpose});
    EXPECT_OK(memory);
    return memory ? *memory : nullptr;
  }
  Device& device_;
  void* weights_;
  void* activations_;
};

std::int64_t bytes_of(const Device& device, MemoryPurpose purpose) {
  const MemoryBreakdown now = device.tracker().breakdown();
  return static_cast<std::int64_t>(now.by_purpose[static_cast<std::size_t>(purpose)].bytes);
}

void expect_as_planned(const Device& device, const MemoryPlan& plan, const PlanOptions& options) {
  EXPECT_EQ(bytes_of(device, MemoryPurpose::model_weights), plan.weights_bytes);
  EXPECT_EQ(bytes_of(device, MemoryPurpose::kv_cache), plan.kv_cache_bytes);
  EXPECT_EQ(bytes_of(device, MemoryPurpose::intermediate_buffers),
            plan.activation_bytes + plan.table_bytes);
  EXPECT_EQ(static_cast<std::int64_t>(device.tracker().breakdown().total.bytes),
            plan.total_bytes - options.context_overhead_bytes - options.graph_bytes);
}

/// A preset with one layer of 12 only, so that its weights fit any GPU, and with this much for
/// them.
ModelSpec one_in_six(std::string_view name, std::int64_t weights_bytes) {
  ModelSpec model = *find_model_preset(name);
  model.name += ", few layers";
  model.shape.num_layers = 0;
  for (CacheGroup& group : model.groups) {
    group.num_layers = (group.num_layers + 5) / 6;
    group.layers.clear();
    for (std::int32_t i = 0; i < group.num_layers; ++i) {
      group.layers.push_back({.layer = model.shape.num_layers++});
    }
  }
  model.parts.clear();
  model.parameters.reset();
  model.weights_bytes = weights_bytes;
  model.weights_stated = true;
  return model;
}

TEST(PlanAllocation, OfEveryPresetOnAHostAsLargeAsAGpu) {
  int created = 0;
  int with_states = 0;
  for (const std::string_view name : model_preset_names()) {
    for (const std::int64_t memory_bytes :
         {find_gpu("L4")->memory_bytes, find_gpu("H200-SXM")->memory_bytes, kMiB * kMiB}) {
      if (test::kSanitized && memory_bytes == kMiB * kMiB) continue;  // slow
      SCOPED_TRACE(std::string(name) + " in " + std::to_string(memory_bytes));
      test::ReservedMemory memory;
      const auto capacity = static_cast<std::uint64_t>(memory_bytes);
      const auto device =
          HostDevice::create(
              {.capacity_bytes = capacity, .streams = HostStreams::manual, .memory = &memory})
              .value();
      const ModelSpec model = *find_model_preset(name);
      const PlanOptions options{.memory_bytes = static_cast<std::int64_t>(capacity),
                                .context_tokens = 4096,
                                .max_step_tokens = 2048,
                                .target = target_of(*device).value()};
      const Result<MemoryPlan> planned = plan(model, options);
      if (!planned || !planned->weights_known) continue;  // GLM-5: parameters are not known
      const auto cache_of = cache_options(model, options, *planned);
      if (!cache_of) {
        EXPECT_EQ(cache_of.status().code, StatusCode::insufficient_vram)
            << describe(cache_of.status());
        continue;
      }
      const Engine engine(*device, *planned);
      const Result<KvCache> cache = KvCache::create(*device, cache_of->options);
      ASSERT_OK(cache);
      ++created;
      with_states +=
          cache->arena().groups() != nullptr && !cache->arena().groups()->states().empty();
      const bool has_pages = planned->page_bytes > 0;
      EXPECT_EQ(cache->arena().num_blocks(), has_pages ? planned->num_pages : planned->num_blocks);
      expect_as_planned(*device, *planned, options);
      EXPECT_EQ(static_cast<std::int64_t>(device->memory_info()->free_bytes),
                planned->free_bytes + options.context_overhead_bytes);
    }
  }
  EXPECT_GE(created, test::kSanitized ? 30 : 30 + 27) << "in 1 TiB all 27 whose layers are alike";
  EXPECT_GE(with_states, test::kSanitized ? 3 : 3 + 1) << "in 141 GB, and one more in 1 TiB";
}

TEST(PlanAllocation, WhatACacheCannotHoldYetIsPlannedAndRefusedByName) {
  const auto refusal = [](std::string_view name, PlanOptions options) {
    options.memory_bytes = std::int64_t{4096} << 30;
    options.context_tokens = 4096;
    const ModelSpec model = *find_model_preset(name);
    const Result<MemoryPlan> planned = plan(model, options);
    EXPECT_OK(planned);
    EXPECT_TRUE(planned->fits) << name;
    EXPECT_GT(planned->max_batch, 1);
    return cache_options(model, options, *planned).status();
  };
  const Status no_dtype = refusal("Llama-3.1-8B", {.kv = *find_storage_format("q8_0")});
  EXPECT_FAILS(no_dtype, unsupported, dtype);
  EXPECT_EQ(no_dtype.subject, kNoDType) << "and not f32, which is 0";
  EXPECT_FAILS(refusal("Llama-3.1-8B",
                       {.kv = *find_storage_format("int8"), .kv_scale = ScaleKind::per_token_head}),
               unsupported, scale);
  EXPECT_OK(refusal("Gemma-3-27B", {}));
  EXPECT_OK(refusal("Gemma-3-27B", {.kept = KeptTokens::model}));
  EXPECT_OK(refusal("Mistral-7B-v0.1", {.kept = KeptTokens::model}));
  EXPECT_OK(refusal("DeepSeek-V3", {}));
  EXPECT_OK(refusal("DeepSeek-V3.2", {}));
  EXPECT_OK(refusal("DeepSeek-V3.2", {.kv = *find_storage_format("fp8_e4m3")}));
  EXPECT_OK(refusal("Llama-3.1-8B", {.kv = *find_storage_format("fp8_e4m3"),
                                     .kv_scale = ScaleKind::per_token_head}));
  EXPECT_OK(refusal("Qwen3.5-27B", {}));
}

// The page of a plan is that of its cache, whatever the length of its sequences.
TEST(PlanAllocation, APoolOfSeveralGroupsHasThePlansPages) {
  test::ReservedMemory memory;
  const auto device = HostDevice::create({.capacity_bytes = std::uint64_t{141} << 30,
                                          .streams = HostStreams::manual,
                                          .memory = &memory})
                          .value();
  for (const std::int64_t context : {512, 8192, 131'072}) {
    const ModelSpec model = *find_model_preset("Gemma-3-27B");
    const PlanOptions options{.memory_bytes = std::int64_t{141} << 30,
                              .kept = KeptTokens::model,
                              .context_tokens = context,
                              .target = target_of(*device).value()};
    const MemoryPlan planned = plan(model, options).value();
    EXPECT_EQ(planned.page_bytes, 6'815'744);
    const PlannedCache made = cache_options(model, options, planned).value();
    const Result<KvCache> cache = KvCache::create(*device, made.options);
    ASSERT_OK(cache);
    EXPECT_EQ(cache->arena().num_blocks(), planned.num_pages);
    EXPECT_EQ(cache->arena().bytes(), planned.kv_cache_bytes);
    EXPECT_EQ(planned.kv_cache_bytes, planned.num_pages * planned.page_bytes);
  }
}

/// Models of one kind of layers; and of windows, and of states, with few layers.
ModelSpec tested_model(std::string_view name) {
  const bool is_large = name == "Gemma-3-27B" || name == "Qwen3-Next-80B-A3B";
  return is_large ? one_in_six(name, std::int64_t{3} << 30) : *find_model_preset(name);
}

TEST(PlanAllocation, OfFewLayersOfSeveralKinds) {
  for (const char* name : {"Gemma-3-27B", "Qwen3-Next-80B-A3B"}) {
    SCOPED_TRACE(name);
    test::ReservedMemory memory;
    const auto device = HostDevice::create({.capacity_bytes = std::uint64_t{24} << 30,
                                            .streams = HostStreams::manual,
                                            .memory = &memory})
                            .value();
    const ModelSpec model = tested_model(name);
    const PlanOptions options{.memory_bytes = std::int64_t{24} << 30,
                              .context_tokens = 4096,
                              .target = target_of(*device).value()};
    const Result<MemoryPlan> planned = plan(model, options);
    ASSERT_OK(planned);
    const Engine engine(*device, *planned);
    const auto made = cache_options(model, options, *planned);
    ASSERT_OK(made);
    const Result<KvCache> cache = KvCache::create(*device, made->options);
    ASSERT_OK(cache);
    expect_as_planned(*device, *planned, options);
    EXPECT_NE(cache->arena().groups(), nullptr);
  }
}

class PlanOnAGpu : public ::testing::TestWithParam<const char*> {};

TEST_P(PlanOnAGpu, IsWhatIsAllocatedAndWhatTheDriverSays) {
  KVARENA_NEEDS_GPU();
  const auto device = test::make_cuda();
  ASSERT_NE(device, nullptr);
  const ModelSpec model = tested_model(GetParam());
  const MemoryInfo before = device->memory_info().value();
  const PlanOptions options{.memory_bytes = static_cast<std::int64_t>(before.total_bytes),
                            .context_tokens = 4096,
                            .target = target_of(*device).value()};
  const MemoryPlan planned = plan(model, options).value();
  const Engine engine(*device, planned);
  const Result<KvCache> cache =
      KvCache::create(*device, cache_options(model, options, planned).value().options);
  ASSERT_OK(cache) << device->describe(cache.status());
  expect_as_planned(*device, planned, options);
  EXPECT_EQ(cache->arena().bytes(), planned.kv_cache_bytes);
  const MemoryInfo now = device->memory_info().value();
  const auto used = static_cast<std::int64_t>(now.total_bytes - now.free_bytes);
  std::cout << "[ FIGURE   ] " << model.name << ": planned " << planned.total_bytes
            << ", driver-reported use " << used << " bytes, "
            << 100.0 * static_cast<double>(used - planned.total_bytes) /
                   static_cast<double>(planned.total_bytes)
            << " %; weights " << planned.weights_bytes << ", pool " << planned.kv_cache_bytes
            << " of " << planned.num_blocks << " blocks, activations " << planned.activation_bytes
            << ", tables " << planned.table_bytes << "; context at open "
            << (before.total_bytes - before.free_bytes) / kMiB << " MiB\n";
  EXPECT_NEAR(static_cast<double>(used), static_cast<double>(planned.total_bytes),
              0.01 * static_cast<double>(planned.total_bytes));
}

INSTANTIATE_TEST_SUITE_P(Models, PlanOnAGpu,
                         ::testing::Values("Phi-3-mini-4k-instruct", "Llama-3.1-8B", "Qwen2.5-0.5B",
                                           "Gemma-3-27B", "Qwen3-Next-80B-A3B"));

}  // namespace
}  // namespace kvarena::capacity
