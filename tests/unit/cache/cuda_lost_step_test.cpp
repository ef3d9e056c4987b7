// Recorded steps that are lost or given up: the device never runs a step's rows for another, the
// host says which steps are missing, and what is given up leaves nothing behind.

#include "support/gpu.hpp"
#include "support/status_matchers.hpp"
#include "unit/cache/cuda_graph.hpp"
#include "unit/cache/small_cache.hpp"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace kvarena {
namespace {

using Demands = std::vector<AppendDemand>;
using test::Graph;

/// A cache with a recorded decode step that writes K and V.
class RecordedWrites {
 public:
  explicit RecordedWrites(const KvCacheOptions& options)
      : cache_(DeviceKind::cuda, options),
        graph_(static_cast<cudaStream_t>(
            *dynamic_cast<CudaDevice&>(*cache_.device).native_stream(cache_.cache.stream()))) {
    EXPECT_OK(cache_.cache.synchronize());
    EXPECT_OK(graph_.capture([&]() -> Status {
      const Result<StepBatch> batch = cache_.cache.begin_recording(kShape);
      if (!batch) return batch.status();
      const WriteKvArgs args{0, cache_.buffer(), cache_.buffer(), DType::f32};
      if (Status s = cache_.cache.write_kv(args); !s) return s;
      return cache_.cache.end_recording();
    }));
  }
  KvCache& cache() { return cache_.cache; }
  const Graph& graph() const { return graph_; }
  /// Begins a step of these sequences; the slots that the host says they write to.
  std::vector<std::int64_t> begin(const std::vector<SequenceId>& ids) {
    Demands demands;
    for (const SequenceId id : ids) demands.push_back({id, 1});
    EXPECT_OK(cache().begin_step());
    const Result<StepBatch> batch = cache().append_recorded(kShape, demands);
    EXPECT_OK(batch);
    if (!batch) return {};
    device_slots_ = batch->device_slots;
    std::vector<std::int64_t> slots(batch->slots.begin(), batch->slots.end());
    slots.resize(static_cast<std::size_t>(kShape.num_rows), -1);
    return slots;
  }
  /// What the device has run with.
  std::vector<std::int64_t> slots_on_device() const {
    std::vector<std::int64_t> slots(static_cast<std::size_t>(kShape.num_rows));
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(slots.data(), device_slots_, slots.size() * sizeof(std::int64_t),
                         cudaMemcpyDeviceToHost),
              cudaSuccess);
    return slots;
  }
  /// A whole step, launched; whether the device ran with the host's slots.
  bool step(const std::vector<SequenceId>& ids) {
    const std::vector<std::int64_t> expected = begin(ids);
    EXPECT_OK(graph_.launch());
    EXPECT_OK(cache().end_step());
    return slots_on_device() == expected;
  }

  static constexpr RecordedStep kShape{.num_rows = 3, .tokens_per_row = 1};

 private:
  test::SmallCache cache_;
  Graph graph_;
  const std::int64_t* device_slots_ = nullptr;
};

TEST(CudaLostStep, IsSkippedBySuccessorsSaidOnceAndLeft) {
  KVARENA_NEEDS_GPU();
  for (const std::int32_t k : {1, 2, 3}) {
    KvCacheOptions options = test::small_options();
    options.steps_in_flight = k;
    options.size.num_blocks = 32;
    RecordedWrites t(options);
    const SequenceId a = *t.cache().create_sequence();
    const SequenceId b = *t.cache().create_sequence();
    EXPECT_TRUE(t.step({a}));
    EXPECT_TRUE(t.step({a, b}));
    t.begin({a});  // step 2, whose graph is not launched
    ASSERT_OK(t.cache().end_step());
    const std::vector<std::int64_t> nothing(3, -1);
    for (std::int32_t later = 1; later < k; ++later) {
      t.begin({b});
      ASSERT_OK(t.graph().launch());
      EXPECT_EQ(t.slots_on_device(), nothing) << "never the rows of another step";
      ASSERT_OK(t.cache().end_step());
    }
    const Status lost = t.cache().begin_step();
    EXPECT_FAILS(lost, device_error, step);
    EXPECT_EQ(lost.subject, 2U);
    EXPECT_EQ(lost.required, 1U + static_cast<std::uint64_t>(k));
    EXPECT_NE(t.cache().describe(lost).find("was not launched"), std::string::npos);
    EXPECT_EQ(t.cache().snapshot().steps_lost, static_cast<std::uint64_t>(k));
    EXPECT_EQ(t.cache().snapshot().missed_launches, static_cast<std::uint64_t>(k - 1));
    ASSERT_OK(t.cache().destroy(a));
    const SequenceId c = *t.cache().create_sequence();
    for (int i = 0; i < 6; ++i) EXPECT_TRUE(t.step({c, b})) << "step " << i << " after the loss";
    EXPECT_OK(t.cache().synchronize());
    EXPECT_OK(t.cache().check_invariants());
  }
}

TEST(CudaLostStep, IsSaidBySynchronizeToo) {
  KVARENA_NEEDS_GPU();
  RecordedWrites t(test::small_options());
  const SequenceId a = *t.cache().create_sequence();
  EXPECT_TRUE(t.step({a}));
  t.begin({a});
  ASSERT_OK(t.cache().end_step());
  EXPECT_FAILS(t.cache().synchronize(), device_error, step);
  EXPECT_OK(t.cache().synchronize()) << "once";
  EXPECT_TRUE(t.step({a}));
}

TEST(CudaLostStep, AGraphLaunchedTwiceWritesOnce) {
  KVARENA_NEEDS_GPU();
  RecordedWrites t(test::small_options());
  const SequenceId a = *t.cache().create_sequence();
  t.begin({a});
  ASSERT_OK(t.graph().launch());
  ASSERT_OK(t.graph().launch());
  ASSERT_OK(t.cache().end_step());
  EXPECT_EQ(t.slots_on_device(), (std::vector<std::int64_t>{-1, -1, -1}));
  EXPECT_TRUE(t.step({a}));
  EXPECT_OK(t.cache().synchronize());
  EXPECT_EQ(t.cache().snapshot().missed_launches, 1U);
}

TEST(CudaAbortedStep, LeavesSequencesAndTablesAsTheyWere) {
  KVARENA_NEEDS_GPU();
  for (const bool is_launched : {false, true}) {
    RecordedWrites t(test::small_options());
    const SequenceId a = *t.cache().create_sequence();
    for (int i = 0; i < 5; ++i) EXPECT_TRUE(t.step({a}));
    const SequenceId b = *t.cache().fork(a, 5);
    t.begin({a, b});  // one of them copies its last block
    if (is_launched) {
      ASSERT_OK(t.graph().launch());
    }
    ASSERT_OK(t.cache().abort_step());
    EXPECT_EQ(t.cache().tables().info(a)->length_tokens, 5);
    EXPECT_EQ(t.cache().tables().info(b)->length_tokens, 5);
    EXPECT_OK(t.cache().check_invariants());
    for (int i = 0; i < 5; ++i) EXPECT_TRUE(t.step({b, a})) << "step " << i << " after the abort";
    EXPECT_OK(t.cache().synchronize());
    EXPECT_EQ(t.cache().snapshot().steps_lost, 0U);
  }
}

TEST(CudaLostStep, PublishedBlocksAreForgotten) {
  KVARENA_NEEDS_GPU();
  KvCacheOptions options = test::small_options();
  options.prefix_cache = {.is_on = true};
  RecordedWrites t(options);
  const std::vector<std::int32_t> prompt{1, 2, 3, 4, 5};
  const SequenceId id = t.cache().create_sequence({.tokens = prompt}).value();
  const auto decode = [&](std::size_t token, bool launches) {
    const AppendDemand demand{id, 1, {}, std::span(prompt).subspan(token, 1)};
    ASSERT_OK(t.cache().begin_step());
    ASSERT_OK(t.cache().append_recorded(RecordedWrites::kShape, std::span(&demand, 1)));
    if (launches) {
      ASSERT_OK(t.graph().launch());
    }
    ASSERT_OK(t.cache().end_step());
  };
  for (std::size_t token = 0; token < 3; ++token) decode(token, true);
  decode(3, false);  // the step that fills the block is lost
  EXPECT_EQ(t.cache().tables().match({.tokens = prompt})->blocks, 1) << "nobody knows yet";
  EXPECT_EQ(t.cache().synchronize().code, StatusCode::device_error);
  EXPECT_EQ(t.cache().tables().match({.tokens = prompt})->blocks, 0);
  ASSERT_OK(t.cache().truncate(id, 3));
  EXPECT_OK(t.cache().check_invariants());
}

}  // namespace
}  // namespace kvarena
