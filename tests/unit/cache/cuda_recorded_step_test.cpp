// A decode step recorded in a CUDA graph once and replayed while sequences grow, join, leave, fork
// and are cut, with steps run call by call in between: every output equals contiguous attention
// over KV that the test makes itself.

#include "support/gpu.hpp"
#include "support/status_matchers.hpp"
#include "unit/cache/cuda_graph.hpp"
#include "unit/cache/scrub_cache.hpp"
#include "unit/cache/shadow_engine.hpp"
#include "unit/cache/small_cache.hpp"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <vector>

namespace kvarena {
namespace {

using Demands = std::vector<AppendDemand>;
using test::Graph;

struct Case {
  const char* name;
  DType dtype = DType::bf16;
  std::int32_t tokens_per_row = 1;
  std::int32_t head_dim = 64;
  std::int32_t q_heads = 8;
  std::int32_t window = 0;
  std::int32_t block_size = 16;
  BlockOrder order = BlockOrder::block_major;
  std::int32_t steps_in_flight = 2;
  bool shares_a_stream = false;  ///< the engine's own instead of the cache's
  Scrub scrub = Scrub::never;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
std::string case_name(const ::testing::TestParamInfo<Case>& info) { return info.param.name; }

constexpr std::int32_t kRows = 12;          // of the recorded step
constexpr std::int64_t kMaxSequences = 16;  // some sit a step out
constexpr std::int64_t kLongest = 150;      // tokens

test::EngineOptions engine_options(const Case& c, void* stream) {
  test::EngineOptions options;
  options.cache = {.layout = {.num_layers = 2,
                              .num_kv_heads = 2,
                              .head_dim_k = c.head_dim,
                              .dtype = c.dtype,
                              .block_size_tokens = c.block_size},
                   .size = {.num_blocks = 4 * kMaxSequences * kLongest / c.block_size},
                   .order = c.order,
                   .scrub = c.scrub,
                   .num_q_heads = c.q_heads,
                   .max_sequences = kMaxSequences,
                   .max_sequence_tokens = 2 * kLongest,
                   .max_step_tokens = 256,
                   .window_tokens = c.window,
                   .steps_in_flight = c.steps_in_flight,
                   .max_decode_tokens = c.tokens_per_row,
                   .home_stream = stream};
  options.io_dtype = c.dtype;
  options.checked_outputs = 6;
  return options;
}

/// Sequences that come and go around a recorded step.
class RecordedGame {
 public:
  RecordedGame(test::ShadowEngine& engine, const Graph& graph, const RecordedStep& shape)
      : engine_(engine), graph_(graph), shape_(shape) {}

  void play(int replays) {
    for (int n = 0; n < replays; ++n) {
      change_sequences();
      if (n % 7 == 3) prefill();
      replay();
      ASSERT_EQ(engine_.mismatches().wrong, 0)
          << "replay " << n << ": " << engine_.mismatches().first;
      if (::testing::Test::HasFatalFailure()) return;
      if (n % 200 == 199) {
        ASSERT_OK(engine_.finish());
        ASSERT_OK(engine_.cache().check_invariants());
        for (const auto& [id, seeds] : engine_.sequences()) engine_.compare_bytes(id);
      }
    }
    ASSERT_OK(engine_.finish());
    ASSERT_EQ(engine_.mismatches().wrong, 0) << engine_.mismatches().first;
  }
  int num_forks() const noexcept { return num_forks_; }
  int num_ends() const noexcept { return num_ends_; }

 private:
  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  std::vector<SequenceId> ids() {
    std::vector<SequenceId> list;
    for (const auto& [id, seeds] : engine_.sequences()) list.push_back(id);
    std::shuffle(list.begin(), list.end(), random_);
    return list;
  }
  std::int64_t length_of(SequenceId id) const { return std::ssize(engine_.sequences().at(id)); }

  void change_sequences() {
    const std::vector<SequenceId> list = ids();
    const bool is_room = std::ssize(list) < kMaxSequences;
    if (is_room && (std::ssize(list) < 4 || below(6) == 0)) {
      ASSERT_NE(engine_.create_sequence(), kNoSequence);  // grows from nothing
    }
    if (list.empty()) return;
    const SequenceId chosen = list.front();
    const std::int64_t length = length_of(chosen);
    const std::uint64_t roll = below(12);
    if (length > kLongest || roll < 3) {
      ++num_ends_;
      ASSERT_OK(engine_.destroy(chosen));
    } else if (roll < 6 && std::ssize(list) + 1 < kMaxSequences && length > 0) {
      ++num_forks_;
      ASSERT_NE(engine_.fork(chosen, length - static_cast<std::int64_t>(below(2))), kNoSequence);
    } else if (roll < 8 && length > 5) {
      ASSERT_OK(engine_.truncate(chosen, length - static_cast<std::int64_t>(1 + below(5))));
    } else if (roll == 8 && length > 0) {
      const auto kept = static_cast<std::int64_t>(below(static_cast<std::uint64_t>(length)));
      ASSERT_OK(engine_.truncate(chosen, kept));
    }
  }
  /// A step run call by call: chunks of some, a token of others.
  void prefill() {
    Demands demands;
    for (const SequenceId id : ids()) {
      if (demands.size() == 5) break;
      demands.push_back({id, static_cast<std::int32_t>(below(2) == 0 ? 1 : below(40))});
    }
    ASSERT_OK(engine_.step(demands));
  }
  void replay() {
    Demands demands;
    for (const SequenceId id : ids()) {
      if (std::ssize(demands) == shape_.num_rows || below(8) == 0) break;
      demands.push_back({id, shape_.tokens_per_row});
    }
    ASSERT_OK(engine_.replay(shape_, demands, [this] { return graph_.launch(); }));
  }

  test::ShadowEngine& engine_;
  const Graph& graph_;
  RecordedStep shape_;
  std::mt19937_64 random_{5};
  int num_forks_ = 0;
  int num_ends_ = 0;
};

class CudaRecordedStep : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override { KVARENA_NEEDS_GPU(); }
};

TEST_P(CudaRecordedStep, StaysRightWhileSequencesGrowJoinAndLeave) {
  const auto device = test::make_cuda({.max_host_functions = 1 << 16});
  ASSERT_NE(device, nullptr);
  cudaStream_t shared = nullptr;
  if (GetParam().shares_a_stream) {
    ASSERT_EQ(cudaStreamCreateWithFlags(&shared, cudaStreamNonBlocking), cudaSuccess);
  }
  {
    test::ShadowEngine engine(*device, engine_options(GetParam(), shared));
    ASSERT_OK(engine.created()) << device->describe(engine.created());
    const auto stream = static_cast<cudaStream_t>(*device->native_stream(engine.cache().stream()));
    if (shared != nullptr) {
      EXPECT_EQ(stream, shared);
    }
    ASSERT_OK(engine.finish());
    const RecordedStep shape{.num_rows = kRows, .tokens_per_row = GetParam().tokens_per_row};
    Graph graph(stream);
    ASSERT_OK(graph.capture([&] { return engine.record(shape); }));
    const std::uint64_t allocations = device->tracker().breakdown().allocations_ever;
    RecordedGame game(engine, graph, shape);
    game.play(1000);
    EXPECT_GT(game.num_forks(), 20);
    EXPECT_GT(game.num_ends(), 20);
    EXPECT_GT(engine.mismatches().compared, 100000);
    EXPECT_GT(engine.cache().tables().stats().copies_on_write, 10U);
    EXPECT_EQ(device->tracker().breakdown().allocations_ever, allocations);
  }
  if (shared != nullptr) {
    EXPECT_EQ(cudaStreamDestroy(shared), cudaSuccess);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, CudaRecordedStep,
    ::testing::Values(Case{.name = "bf16_one_token"},
                      Case{.name = "bf16_one_token_window", .window = 37, .steps_in_flight = 3},
                      Case{.name = "bf16_four_tokens_window", .tokens_per_row = 4, .window = 20},
                      Case{.name = "f16_four_tokens_layer_major",
                           .dtype = DType::f16,
                           .tokens_per_row = 4,
                           .head_dim = 128,
                           .order = BlockOrder::layer_major,
                           .shares_a_stream = true},
                      Case{.name = "bf16_four_tokens_scrub",
                           .tokens_per_row = 4,
                           .scrub = Scrub::on_owner_change},
                      Case{.name = "f16_scrub_always_layer_major",
                           .dtype = DType::f16,
                           .order = BlockOrder::layer_major,
                           .scrub = Scrub::always},
                      Case{.name = "f32_by_prefill_block_5",
                           .dtype = DType::f32,
                           .tokens_per_row = 2,
                           .block_size = 5,
                           .steps_in_flight = 1}),
    case_name);

// The pointers of a recording serve every replay; rows behind those of the step are skipped ones.
TEST(CudaRecording, KernelsOfTheEngineReadTheBatchOfEachReplay) {
  KVARENA_NEEDS_GPU();
  test::SmallCache t(DeviceKind::cuda);
  auto& device = dynamic_cast<CudaDevice&>(*t.device);
  const auto stream = static_cast<cudaStream_t>(*device.native_stream(t.cache.stream()));
  ASSERT_OK(t.cache.synchronize());
  const RecordedStep shape{.num_rows = 3};
  DeviceBatch recorded;
  Graph graph(stream);
  ASSERT_OK(graph.capture([&]() -> Status {
    if (Status s = t.cache.begin_recording(shape).status(); !s) return s;
    recorded = t.cache.device_batch().value();
    return t.cache.end_recording();
  }));
  EXPECT_EQ(recorded.num_rows, 3);
  EXPECT_EQ(recorded.num_tokens, 3);
  EXPECT_EQ(recorded.max_new_tokens, 1);
  EXPECT_EQ(recorded.max_length_tokens, test::kSmallBlocks * test::kSmallBlockSize);
  EXPECT_FAILS(t.cache.device_batch(), failed_precondition, step);
  const SequenceId a = t.sequence_of(5);
  ASSERT_OK(t.cache.begin_step());
  ASSERT_OK(t.cache.append_recorded(shape, Demands{{a, 1}}));
  const DeviceBatch batch = t.cache.device_batch().value();
  EXPECT_EQ(batch.row_slots, recorded.row_slots);
  EXPECT_EQ(batch.num_rows, 1);
  EXPECT_EQ(batch.max_length_tokens, 6);
  ASSERT_OK(graph.launch());
  std::array<std::int32_t, 3> slots{};
  std::array<std::int32_t, 3> lengths{};
  std::array<BlockId, 2> blocks;
  const StreamId home = t.cache.stream();
  ASSERT_OK(device.copy(slots.data(), recorded.row_slots, sizeof slots, home));
  ASSERT_OK(device.copy(lengths.data(), recorded.lengths, sizeof lengths, home));
  ASSERT_OK(t.cache.end_step());
  ASSERT_OK(t.cache.synchronize());
  EXPECT_EQ(lengths, (std::array<std::int32_t, 3>{6, 0, 0}));
  EXPECT_GE(slots[0], 0);
  EXPECT_EQ(slots[1], -1);
  EXPECT_EQ(slots[2], -1);
  ASSERT_OK(device.copy(blocks.data(), recorded.block_tables + slots[0] * recorded.table_stride,
                        sizeof blocks, home));
  ASSERT_OK(t.cache.synchronize());
  EXPECT_EQ(blocks[0], *t.cache.tables().lookup(a, 0));
  EXPECT_EQ(blocks[1], *t.cache.tables().lookup(a, 1));
}

TEST(CudaRecording, RefusesWhatDoesNotFitAndChangesNothing) {
  KVARENA_NEEDS_GPU();
  KvCacheOptions options = test::small_options();
  options.max_decode_tokens = 2;
  test::SmallCache t(DeviceKind::cuda, options);
  auto& device = dynamic_cast<CudaDevice&>(*t.device);
  const auto stream = static_cast<cudaStream_t>(*device.native_stream(t.cache.stream()));
  const RecordedStep shape{.num_rows = 3, .tokens_per_row = 2};
  EXPECT_FAILS(t.cache.begin_recording({.num_rows = 0}), invalid_argument, num_sequences);
  EXPECT_FAILS(t.cache.begin_recording({.num_rows = 5}), invalid_argument, num_sequences);
  EXPECT_FAILS(t.cache.begin_recording({.num_rows = 1, .row_tokens = -1}), invalid_argument,
               sequence_length);
  EXPECT_FAILS(t.cache.begin_recording({.num_rows = 1, .tokens_per_row = 3}), invalid_argument,
               num_tokens);
  EXPECT_FAILS(t.cache.begin_recording(shape), failed_precondition, stream);
  EXPECT_FAILS(t.cache.end_recording(), failed_precondition, step);
  ASSERT_OK(t.cache.synchronize());
  Graph graph(stream);
  ASSERT_OK(graph.capture([&]() -> Status {
    const Result<StepBatch> batch = t.cache.begin_recording(shape);
    if (!batch) return batch.status();
    EXPECT_EQ(batch->num_tokens, 6);
    EXPECT_NE(batch->device_slots, nullptr);
    EXPECT_FAILS(t.cache.begin_recording(shape), failed_precondition, step);
    EXPECT_FAILS(t.cache.begin_step(), failed_precondition, step);
    EXPECT_FAILS(t.cache.write_kv({.layer = 1}), invalid_argument, layer);
    EXPECT_FAILS(t.cache.write_kv({.layer = 0}), invalid_argument, pointer);
    if (Status s = t.cache.write_kv({0, t.buffer(), t.buffer(), DType::f32}); !s) return s;
    return t.cache.end_recording();
  }));
  const SequenceId a = *t.cache.create_sequence();
  const SequenceId b = *t.cache.create_sequence();
  EXPECT_FAILS(t.cache.append_recorded(shape, Demands{{a, 2}}), failed_precondition, step);
  ASSERT_OK(t.cache.begin_step());
  const auto before = t.state();
  EXPECT_FAILS(t.cache.append_recorded(shape, Demands{{a, 2}, {b, 1}}), invalid_argument,
               num_tokens);
  EXPECT_EQ(t.cache.failed_demand(), 1);
  EXPECT_FAILS(
      t.cache.append_recorded({.num_rows = 1, .tokens_per_row = 2}, Demands{{a, 2}, {b, 2}}),
      invalid_argument, num_sequences);
  EXPECT_EQ(t.state(), before);
  ASSERT_OK(t.cache.append_recorded(shape, Demands{{b, 2}}));
  EXPECT_FAILS(t.cache.write_kv({0, t.buffer(), t.buffer(), DType::f32}), failed_precondition,
               step);
  ASSERT_OK(graph.launch());
  ASSERT_OK(t.cache.end_step());
  ASSERT_OK(t.cache.synchronize());
  EXPECT_OK(t.cache.check_invariants());
}

/// A recorded step of a cache that scrubs; tokens of 2.5.
class RecordedScrub {
 public:
  RecordedScrub(const test::ScrubShape& shape, Scrub scrub)
      : t(shape, scrub),
        graph_(static_cast<cudaStream_t>(
            *dynamic_cast<CudaDevice&>(*t.device).native_stream(t.cache.stream()))) {}

  Status record() {
    return graph_.capture([this]() -> Status {
      if (const Result<StepBatch> batch = t.cache.begin_recording(kShape); !batch) {
        return batch.status();
      }
      for (std::int32_t layer = 0; layer < test::ScrubCache::kLayers; ++layer) {
        if (Status s = t.cache.write_kv({layer, t.key(), t.value(), DType::f32}); !s) return s;
      }
      return t.cache.end_recording();
    });
  }
  Status begin(const Demands& demands) {
    if (Status s = t.cache.begin_step(); !s) return s;
    return t.cache.append_recorded(kShape, demands).status();
  }
  Status launch_and_end() {
    if (Status s = t.give_input(std::vector<float>(kShape.num_rows, 2.5F)); !s) return s;
    if (Status s = graph_.launch(); !s) return s;
    return t.end();
  }
  std::int64_t dirty_slots(BlockId block) {
    const std::vector<std::byte> pool = t.pool();
    std::int64_t dirty = 0;
    for (std::int64_t token = 0; token < t.block_size(); ++token) {
      dirty += test::is_zero(t.token_bytes(pool, block, token)) ? 0 : 1;
    }
    return dirty;
  }

  test::ScrubCache t;

 private:
  static constexpr RecordedStep kShape{.num_rows = 4};
  Graph graph_;
};

TEST(CudaRecordedScrub, AnotherTenantFindsZerosAndItsSharedTokens) {
  KVARENA_NEEDS_GPU();
  for (const test::ScrubShape& shape : test::scrub_shapes()) {
    if (shape.kind == DeviceKind::host) continue;
    SCOPED_TRACE(shape.name);
    for (const Scrub scrub : {Scrub::on_owner_change, Scrub::always}) {
      RecordedScrub r(shape, scrub);
      test::ScrubCache& t = r.t;
      ASSERT_OK(r.record());
      const auto size = static_cast<std::int32_t>(t.block_size());
      const SequenceId ann = t.create(7);
      ASSERT_OK(t.grow(ann, size, 1.5F));
      const SequenceId copied = *t.cache.fork(ann, 2, {.owner = 8});
      const SequenceId fresh = t.create(8);
      // Given up before its launch: what was copied and cleared is right the second time too.
      ASSERT_OK(r.begin({{copied, 1}, {fresh, 1}}));
      ASSERT_OK(t.cache.abort_step());
      ASSERT_OK(r.begin({{copied, 1}, {fresh, 1}}));
      ASSERT_OK(r.launch_and_end());
      const BlockId copy = t.blocks_of(copied).front();
      EXPECT_NE(copy, t.blocks_of(ann).front());
      EXPECT_EQ(r.dirty_slots(copy), 3) << "two shared tokens and one of its own";
      EXPECT_EQ(r.dirty_slots(t.blocks_of(fresh).front()), 1);
      EXPECT_EQ(r.dirty_slots(t.blocks_of(ann).front()), size);
      const SequenceId heir = *t.cache.fork(ann, 1, {.owner = 8});
      const BlockId inherited = t.blocks_of(ann).front();
      ASSERT_OK(t.cache.destroy(ann));
      ASSERT_OK(r.begin({{heir, 1}}));
      ASSERT_OK(r.launch_and_end());
      EXPECT_EQ(t.blocks_of(heir).front(), inherited) << "in place";
      EXPECT_EQ(r.dirty_slots(inherited), 2);
      EXPECT_OK(t.cache.check_invariants());
    }
  }
}

}  // namespace
}  // namespace kvarena
