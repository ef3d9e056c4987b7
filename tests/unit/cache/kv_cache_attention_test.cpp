// What an engine computes through a KvCache equals contiguous attention over KV that the test makes
// itself: dtypes, block sizes, orders, grouped heads, windows, soft caps, steps in flight, with
// streams that run late (manual: only when somebody waits) or on threads; on the host and on a GPU.

#include "support/devices.hpp"
#include "unit/cache/cache_game.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

namespace kvarena {
namespace {

struct Case {
  std::string name;
  DType kv_dtype = DType::f32;
  DType io_dtype = DType::f32;
  std::int32_t block_size = 16;
  BlockOrder order = BlockOrder::block_major;
  std::int32_t q_heads = 4;
  std::int32_t kv_heads = 2;
  std::int32_t head_dim_k = 16;
  std::int32_t head_dim_v = 0;
  std::int32_t window = 0;
  float soft_cap = 0.0F;
  bool has_sinks = false;
  std::int32_t steps_in_flight = 2;
  HostStreams streams = HostStreams::manual;
  std::int32_t num_threads = 2;
  DeviceKind device = DeviceKind::host;
  std::int32_t max_decode_tokens = 1;
  std::int64_t batch_invariant_tokens = 0;
  std::int64_t padding_bytes = 0;
};

std::string case_name(const ::testing::TestParamInfo<Case>& info) { return info.param.name; }
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

test::EngineOptions engine_options(const Case& c) {
  test::EngineOptions options;
  options.cache = {.layout = {.num_layers = 2,
                              .num_kv_heads = c.kv_heads,
                              .head_dim_k = c.head_dim_k,
                              .head_dim_v = c.head_dim_v,
                              .dtype = c.kv_dtype,
                              .block_size_tokens = c.block_size},
                   .size = {.num_blocks = 240 / c.block_size},
                   .order = c.order,
                   .num_q_heads = c.q_heads,
                   .max_sequences = 8,
                   .max_step_tokens = 128,
                   .window_tokens = c.window,
                   .steps_in_flight = c.steps_in_flight,
                   .num_threads = c.num_threads,
                   .max_decode_tokens = c.max_decode_tokens,
                   .batch_invariant_tokens = c.batch_invariant_tokens};
  options.io_dtype = c.io_dtype;
  options.soft_cap = c.soft_cap;
  options.has_sinks = c.has_sinks;
  options.padding_bytes = c.padding_bytes;
  return options;
}

class KvCacheAttention : public ::testing::TestWithParam<Case> {};

TEST_P(KvCacheAttention, EqualsContiguousAttentionThroughAWholeLife) {
  KVARENA_NEEDS_DEVICE(GetParam().device);
  std::int64_t preemptions = 0;
  std::int64_t forks = 0;
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const auto device = test::make_device(GetParam().device,
                                          {.streams = GetParam().streams, .max_queued = 1 << 16});
    ASSERT_NE(device, nullptr);
    test::EngineOptions options = engine_options(GetParam());
    options.seed = seed;
    test::ShadowEngine engine(*device, options);
    ASSERT_OK(engine.created());
    test::CacheGame game(engine, {.seed = seed});
    game.play();
    if (HasFatalFailure()) return;
    EXPECT_GT(engine.mismatches().compared, 1000);
    preemptions += game.num_preemptions();
    forks += game.num_forks();
    const std::uint64_t copies = engine.cache().tables().stats().copies_on_write;
    EXPECT_EQ(copies > 0, GetParam().block_size > 1);  // a block of one token is never half shared
  }
  EXPECT_GT(preemptions, 0) << "the pool is never too small: the case tests less than it should";
  EXPECT_GT(forks, 0);
}

constexpr auto kLayerMajor = BlockOrder::layer_major;
constexpr auto kThreads = HostStreams::threads;
constexpr auto kInline = HostStreams::inline_calls;

/// What every device computes: any shape, in rows order where chunked does not fit.
const std::vector<Case>& any_shape() {
  static const std::vector<Case> list{
      Case{.name = "f32"},
      Case{.name = "f32_layer_major", .order = kLayerMajor},
      Case{.name = "f32_block_1", .block_size = 1, .steps_in_flight = 1},
      Case{.name = "f32_block_1_layer_major", .block_size = 1, .order = kLayerMajor},
      Case{.name = "f32_block_7", .block_size = 7, .steps_in_flight = 3},
      Case{.name = "f16", .kv_dtype = DType::f16, .io_dtype = DType::f16},
      Case{.name = "f16_given_f32", .kv_dtype = DType::f16, .block_size = 7},
      Case{.name = "f16_layer_major_block_7",
           .kv_dtype = DType::f16,
           .io_dtype = DType::f16,
           .block_size = 7,
           .order = kLayerMajor,
           .steps_in_flight = 3},
      Case{.name = "bf16", .kv_dtype = DType::bf16, .io_dtype = DType::bf16},
      Case{.name = "bf16_given_f32_window", .kv_dtype = DType::bf16, .window = 11},
      Case{.name = "window_block_1", .block_size = 1, .window = 5},
      Case{.name = "window_soft_cap", .block_size = 7, .window = 20, .soft_cap = 2.0F},
      Case{.name = "soft_cap", .soft_cap = 0.5F, .steps_in_flight = 1},
      Case{.name = "sinks_window", .window = 9, .has_sinks = true},
      Case{.name = "many_heads", .q_heads = 3, .kv_heads = 3, .head_dim_k = 24},
      Case{.name = "one_kv_head", .q_heads = 8, .kv_heads = 1, .head_dim_k = 8},
      Case{.name = "wide_group_narrow_v",
           .q_heads = 6,
           .kv_heads = 2,
           .head_dim_k = 20,
           .head_dim_v = 12},
      Case{.name = "odd_dim_bf16", .kv_dtype = DType::bf16, .head_dim_k = 7, .head_dim_v = 3},
      Case{.name = "one_thread", .num_threads = 1}};
  return list;
}

/// What decode attention takes on a GPU, beside prefill of the chunks: dims, groups of query heads,
/// block sizes, windows, soft caps, several new tokens a row.
const std::vector<Case>& fast_shapes() {
  constexpr DType kF16 = DType::f16;
  constexpr DType kBf16 = DType::bf16;
  static const std::vector<Case> list{
      Case{.name = "f16_64", .kv_dtype = kF16, .io_dtype = kF16, .head_dim_k = 64},
      Case{.name = "bf16_64_sinks",
           .kv_dtype = kBf16,
           .io_dtype = kBf16,
           .head_dim_k = 64,
           .has_sinks = true},
      Case{.name = "bf16_64_group_7_window",
           .kv_dtype = kBf16,
           .io_dtype = kBf16,
           .q_heads = 14,
           .head_dim_k = 64,
           .window = 21},
      Case{.name = "bf16_96_layer_major",
           .kv_dtype = kBf16,
           .io_dtype = kBf16,
           .order = BlockOrder::layer_major,
           .head_dim_k = 96,
           .steps_in_flight = 3},
      Case{.name = "f16_128_block_48_soft_cap",
           .kv_dtype = kF16,
           .io_dtype = kF16,
           .block_size = 48,
           .head_dim_k = 128,
           .soft_cap = 2.0F},
      Case{.name = "bf16_128_three_tokens_a_row",
           .kv_dtype = kBf16,
           .io_dtype = kBf16,
           .q_heads = 8,
           .head_dim_k = 128,
           .window = 17,
           .max_decode_tokens = 3},
      Case{.name = "f16_256_eight_tokens_a_row",
           .kv_dtype = kF16,
           .io_dtype = kF16,
           .q_heads = 6,
           .head_dim_k = 256,
           .steps_in_flight = 1,
           .max_decode_tokens = 8},
      Case{.name = "f16_64_given_f32", .kv_dtype = kF16, .head_dim_k = 64},
      Case{.name = "bf16_64_wider_v",
           .kv_dtype = kBf16,
           .io_dtype = kBf16,
           .head_dim_k = 64,
           .head_dim_v = 96}};
  return list;
}

/// Groups in which one token, or few, have many query columns, and dims that decode attention does
/// not take.
const std::vector<Case>& many_columns() {
  constexpr DType kF16 = DType::f16;
  constexpr DType kBf16 = DType::bf16;
  static const std::vector<Case> list{Case{.name = "bf16_128_group_8",
                                           .kv_dtype = kBf16,
                                           .io_dtype = kBf16,
                                           .q_heads = 8,
                                           .kv_heads = 1,
                                           .head_dim_k = 128,
                                           .has_sinks = true},
                                      Case{.name = "f16_64_group_16_window",
                                           .kv_dtype = kF16,
                                           .io_dtype = kF16,
                                           .q_heads = 32,
                                           .head_dim_k = 64,
                                           .window = 33},
                                      Case{.name = "bf16_80_soft_cap",
                                           .kv_dtype = kBf16,
                                           .io_dtype = kBf16,
                                           .head_dim_k = 80,
                                           .soft_cap = 3.0F},
                                      Case{.name = "f16_192_group_24",
                                           .kv_dtype = kF16,
                                           .io_dtype = kF16,
                                           .q_heads = 24,
                                           .kv_heads = 1,
                                           .head_dim_k = 192},
                                      Case{.name = "bf16_128_batch_invariant",
                                           .kv_dtype = kBf16,
                                           .io_dtype = kBf16,
                                           .q_heads = 8,
                                           .head_dim_k = 128,
                                           .batch_invariant_tokens = 4096}};
  return list;
}

std::vector<Case> on(DeviceKind kind, const std::vector<Case>& cases) {
  std::vector<Case> list = cases;
  for (Case& c : list) c.device = kind;
  const std::vector<DeviceKind> kinds = test::device_kinds();
  if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) list.clear();
  return list;
}

/// Tokens with bytes between them: as fast kernels take them, and as only the plain ones do.
std::vector<Case> padded(DeviceKind kind, const std::vector<Case>& cases) {
  std::vector<Case> all;
  for (const Case& c : on(kind, cases)) {
    for (const std::int64_t padding : {16, 4}) {
      all.push_back(c);
      all.back().padding_bytes = padding;
      all.back().name += "_padded_" + std::to_string(padding);
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(PaddedShapes, KvCacheAttention,
                         ::testing::ValuesIn(padded(DeviceKind::host, any_shape())), case_name);
INSTANTIATE_TEST_SUITE_P(CudaPaddedShapes, KvCacheAttention,
                         ::testing::ValuesIn(padded(DeviceKind::cuda, any_shape())), case_name);
INSTANTIATE_TEST_SUITE_P(CudaPaddedFastShapes, KvCacheAttention,
                         ::testing::ValuesIn(padded(DeviceKind::cuda, fast_shapes())), case_name);
INSTANTIATE_TEST_SUITE_P(CudaPaddedManyColumns, KvCacheAttention,
                         ::testing::ValuesIn(padded(DeviceKind::cuda, many_columns())), case_name);

INSTANTIATE_TEST_SUITE_P(Shapes, KvCacheAttention,
                         ::testing::ValuesIn(on(DeviceKind::host, any_shape())), case_name);
INSTANTIATE_TEST_SUITE_P(CudaShapes, KvCacheAttention,
                         ::testing::ValuesIn(on(DeviceKind::cuda, any_shape())), case_name);
INSTANTIATE_TEST_SUITE_P(CudaFastShapes, KvCacheAttention,
                         ::testing::ValuesIn(on(DeviceKind::cuda, fast_shapes())), case_name);
INSTANTIATE_TEST_SUITE_P(CudaManyColumns, KvCacheAttention,
                         ::testing::ValuesIn(on(DeviceKind::cuda, many_columns())), case_name);

INSTANTIATE_TEST_SUITE_P(
    Asynchronous, KvCacheAttention,
    ::testing::Values(Case{.name = "one_step", .steps_in_flight = 1, .streams = kThreads},
                      Case{.name = "two_steps", .steps_in_flight = 2, .streams = kThreads},
                      Case{.name = "inline_calls", .steps_in_flight = 2, .streams = kInline},
                      Case{.name = "three_steps_f16_layer_major",
                           .kv_dtype = DType::f16,
                           .block_size = 7,
                           .order = kLayerMajor,
                           .window = 9,
                           .steps_in_flight = 3,
                           .streams = kThreads},
                      Case{.name = "three_steps_manual", .steps_in_flight = 3}),
    case_name);

}  // namespace
}  // namespace kvarena
