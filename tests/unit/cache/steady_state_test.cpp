// Steps of an engine, attention included, take nothing from the C++ heap and nothing from the
// device.

#include "support/device_buffer.hpp"
#include "support/devices.hpp"
#include "support/heap_counter.hpp"
#include "support/status_matchers.hpp"

#include "kvarena/cache/kv_cache.hpp"

#include <gtest/gtest.h>

#include <array>
#include <memory>

namespace kvarena {
namespace {

constexpr std::int32_t kLayers = 2;
constexpr std::int32_t kHeads = 4;
constexpr std::int32_t kDim = 16;
constexpr std::size_t kRows = 6;
constexpr std::int32_t kChunk = 7;

/// Space for a step's inputs and outputs, large enough for all rows' chunks.
struct Buffers {
  explicit Buffers(Device& device)
      : in(make(device)), out(make(device)), windowed_out(make(device)) {}
  static test::DeviceBuffer make(Device& device) {
    return test::DeviceBuffer::create(device, kRows * kChunk * kHeads * kDim * sizeof(float))
        .value();
  }
  test::DeviceBuffer in, out, windowed_out;
};

class SteadyEngine {
 public:
  /// With `tells` the cache learns the tokens, and some sequences begin with what is cached.
  SteadyEngine(Device& device, KvCache& cache, bool tells)
      : cache_(cache), tells_(tells), buffers_(device) {
    const auto bytes = kRows * kChunk * kHeads * kDim * sizeof(float);
    EXPECT_OK(device.fill(buffers_.in.data(), 0x3f, bytes, cache.stream()));  // about 0.75
    for (SequenceId& id : ids_) id = *cache_.create_sequence();
  }

  /// A whole step: half of the sequences decode, half take a chunk; then some of everything else.
  Status step(std::size_t n) {
    if (Status s = cache_.begin_step(); !s) return s;
    for (std::size_t row = 0; row < kRows; ++row) {
      demands_[row] = {ids_[row], (row + n) % 2 == 0 ? 1 : kChunk};
      if (tells_) {
        for (std::size_t i = 0; i < kChunk; ++i) {
          const bool is_new = n % 64 >= 32;  // then no two steps have the same tokens
          tokens_[row][i] = is_new ? static_cast<std::int32_t>(n * 100 + row * 10 + i) : 0;
        }
        const auto count = static_cast<std::size_t>(demands_[row].num_tokens);
        demands_[row].tokens = std::span(tokens_[row]).first(count);
      }
    }
    const Result<StepBatch> batch = cache_.append(demands_);
    if (!batch) return batch.status();
    for (std::int32_t layer = 0; layer < kLayers; ++layer) {
      if (Status s = cache_.write_kv({layer, buffers_.in.data(), buffers_.in.data(), DType::f32});
          !s) {
        return s;
      }
      AttendArgs args{.layer = layer,
                      .q = buffers_.in.data(),
                      .q_dtype = DType::f32,
                      .out = buffers_.out.data(),
                      .out_dtype = DType::f32};
      if (Status s = cache_.attend(args); !s) return s;
      args.out = buffers_.windowed_out.data();
      args.windowed = true;
      if (Status s = cache_.attend(args); !s) return s;
    }
    if (Status s = cache_.end_step(); !s) return s;
    return change(n);
  }

 private:
  /// Rollback, fork, destruction against a fence, reservation, a refused call, a snapshot.
  Status change(std::size_t n) {
    SequenceId& id = ids_[n % kRows];
    const std::int64_t length = cache_.tables().info(id)->length_tokens;
    if (Status s = cache_.truncate(id, length - 1); !s) return s;
    if (Status s = cache_.reserve_capacity(id, length + 20); !s) return s;
    if (Status s = cache_.promise_capacity(id, length + 40); !s) return s;
    SequenceId& other = ids_[(n + 1) % kRows];
    const Result<SequenceId> child = cache_.fork(id, length - 1);
    const Result<Ticket> ticket = cache_.fence(cache_.stream());
    if (!child || !ticket) return child ? ticket.status() : child.status();
    if (Status s = cache_.destroy(other, *ticket); !s) return s;
    other = *child;
    if (length > 60) {
      if (Status s = cache_.truncate(id, 5); !s) return s;
    }
    if (tells_ && n % 3 == 0) return begin_again(other);
    refused_ += cache_.reserve_capacity(id, 1 << 20).code == StatusCode::exhausted ? 1 : 0;
    published_ = cache_.snapshot();
    return {};
  }

  /// Ends a sequence, and begins another with what is cached of a prompt.
  Status begin_again(SequenceId& id) {
    static constexpr std::array<std::int32_t, 40> kPrompt{};
    static constexpr std::array<ExtraKey, 1> kKeys{{{7, 20}}};
    if (Status s = cache_.destroy(id); !s) return s;
    const Result<SequenceId> begun =
        cache_.create_sequence({.tokens = kPrompt, .salt = 0, .extra_keys = kKeys});
    if (begun) id = *begun;
    return begun.status();
  }

  KvCache& cache_;
  bool tells_;
  std::array<std::array<std::int32_t, kChunk>, kRows> tokens_{};
  std::array<SequenceId, kRows> ids_;
  std::array<AppendDemand, kRows> demands_;
  Buffers buffers_;
  int refused_ = 0;
  PoolSnapshot published_;
};

TEST(SteadyState, TheCounterCounts) {
  const test::HeapCounter heap;
  const auto one = std::make_unique<int>(1);
  *const_cast<volatile int*>(one.get()) = 2;  // or the compiler does without the allocation
  EXPECT_GE(heap.count(), 1);
}

class SteadyStateOn : public ::testing::TestWithParam<DeviceKind> {
 protected:
  static void expect_no_allocation(Scrub scrub, const PrefixOptions& prefix = {});
};
INSTANTIATE_TEST_SUITE_P(Devices, SteadyStateOn, ::testing::ValuesIn(test::device_kinds()),
                         test::kind_name);

void SteadyStateOn::expect_no_allocation(Scrub scrub, const PrefixOptions& prefix) {
  const auto device = test::make_device(GetParam());
  ASSERT_NE(device, nullptr);
  KvCache cache =
      KvCache::create(
          *device, {.layout = {.num_layers = kLayers, .num_kv_heads = kHeads, .head_dim_k = kDim},
                    .size = {.num_blocks = 200},
                    .scrub = scrub,
                    .num_q_heads = kHeads,
                    .max_sequences = 8,
                    .max_step_tokens = kRows * kChunk,
                    .window_tokens = 10,
                    .steps_in_flight = 2,
                    .num_threads = 2,
                    .prefix_cache = prefix})
          .value();
  SteadyEngine engine(*device, cache, prefix.is_on);
  const MemoryBreakdown before = device->tracker().breakdown();
  Status status;
  const test::HeapCounter heap;
  for (std::size_t n = 0; n < 500 && status; ++n) status = engine.step(n);
  if (status) status = cache.synchronize();
  const std::int64_t allocations = heap.count();
  EXPECT_OK(status);
  EXPECT_EQ(allocations, 0);
  const MemoryBreakdown after = device->tracker().breakdown();
  EXPECT_EQ(after.allocations_ever, before.allocations_ever);
  EXPECT_EQ(after.frees_ever, before.frees_ever);
  EXPECT_OK(cache.check_invariants());
  const PrefixStats found = cache.tables().prefix_stats();
  EXPECT_EQ(found.registrations > 100, prefix.is_on) << found.registrations;
  EXPECT_EQ(found.queries > 100, prefix.is_on) << found.queries;
  EXPECT_EQ(found.hits > 10, prefix.is_on) << found.hits;
}

TEST_P(SteadyStateOn, ManyStepsWithAPrefixCacheAllocateNothing) {
  KVARENA_NEEDS_DEVICE(GetParam());
  for (const DuplicateRule rule : {DuplicateRule::duplicate, DuplicateRule::share}) {
    expect_no_allocation(Scrub::on_owner_change,
                         {.is_on = true, .max_extra_keys = 1, .duplicates = rule});
  }
}

TEST_P(SteadyStateOn, ManyStepsAllocateNothing) {
  KVARENA_NEEDS_DEVICE(GetParam());
  for (const Scrub scrub : {Scrub::never, Scrub::on_owner_change, Scrub::always}) {
    expect_no_allocation(scrub);
  }
}

TEST_P(SteadyStateOn, StepsWithGroupsAllocateNothing) {
  KVARENA_NEEDS_DEVICE(GetParam());
  const auto device = test::make_device(GetParam());
  ASSERT_NE(device, nullptr);
  const std::array<GroupLayer, 1> full{{{0}}};
  const std::array<GroupLayer, 2> window{{{1}, {2, 1}}};
  const std::array<LayerGroup, 2> groups{
      {{PagedKind::full, full, kHeads, kDim, 0, DType::f32},
       {PagedKind::window, window, kHeads, kDim, 0, DType::f32, {}, false, 16, 20}}};
  KvCache cache = KvCache::create(*device, {.size = {.num_blocks = 100},
                                            .num_q_heads = kHeads,
                                            .max_sequences = 4,
                                            .max_sequence_tokens = 2000,
                                            .max_step_tokens = 8,
                                            .num_threads = 2,
                                            .groups = groups})
                      .value();
  const Buffers buffers(*device);
  SequenceId id = cache.create_sequence().value();
  const auto step = [&]() -> Status {
    if (Status s = cache.begin_step(); !s) return s;
    const AppendDemand demand{id, 2};
    if (Status s = cache.append(std::span(&demand, 1)).status(); !s) return s;
    for (std::int32_t layer = 0; layer < 3; ++layer) {
      const WriteKvArgs kv{layer, buffers.in.data(), buffers.in.data(), DType::f32};
      if (layer != 2) {
        if (Status s = cache.write_kv(kv); !s) return s;
      }
      if (Status s = cache.attend({.layer = layer,
                                   .q = buffers.in.data(),
                                   .q_dtype = DType::f32,
                                   .out = buffers.out.data(),
                                   .out_dtype = DType::f32});
          !s) {
        return s;
      }
    }
    return cache.end_step();
  };
  const MemoryBreakdown before = device->tracker().breakdown();
  Status status;
  const test::HeapCounter heap;
  for (int n = 0; n < 300 && status; ++n) status = step();
  if (status) status = cache.synchronize();
  EXPECT_EQ(heap.count(), 0);
  EXPECT_OK(status);
  EXPECT_EQ(device->tracker().breakdown().allocations_ever, before.allocations_ever);
  EXPECT_OK(cache.check_invariants());
}

}  // namespace
}  // namespace kvarena
