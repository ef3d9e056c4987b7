// Step times worked out by hand on a GPU of 1,000 bytes and 100,000 operations a microsecond, and
// the numbers of real models.

#include "kvarena/capacity/step_time.hpp"

#include "kvarena/capacity/model_presets.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace kvarena::capacity {
namespace {

constexpr double kMicrosecond = 1000.0;

StepTimeOptions small_model() {
  StepTimeOptions o;
  o.bandwidth_bytes_per_second = 1'000'000'000;  // 1000 bytes a microsecond
  o.flops_per_second = 100'000'000'000;          // 100,000 operations a microsecond
  o.efficiency = {.matrices = 1.0, .attention = 1.0, .bandwidth = 1.0};
  return o;
}

StepTime time_of(const StepTimeOptions& options, const std::vector<StepTimeRow>& rows) {
  const auto model = StepTimeModel::create(options);
  EXPECT_TRUE(model.is_ok()) << describe(model.status());
  return model->time_of(rows);
}

TEST(StepTime, IsTheLongerOfWeightsAndTheirArithmetic) {
  StepTimeOptions o = small_model();
  o.layer_parameters = 10'000;
  o.layer_bytes = 20'000;
  // 20 us to read; 0.2 us of arithmetic a token.
  EXPECT_EQ(time_of(o, {{7, 1}}).total_ns(), 20'000);
  EXPECT_DOUBLE_EQ(time_of(o, {{7, 1}}).arithmetic_ns, 0.2 * kMicrosecond);
  EXPECT_EQ(time_of(o, {{0, 100}}).total_ns(), 20'000);
  EXPECT_EQ(time_of(o, {{0, 100}, {5, 100}}).total_ns(), 40'000);
  o.efficiency.matrices = 0.5;
  EXPECT_EQ(time_of(o, {{0, 100}, {5, 100}}).total_ns(), 80'000);
  o.efficiency.bandwidth = 0.1;
  EXPECT_EQ(time_of(o, {{0, 100}, {5, 100}}).total_ns(), 200'000);
  EXPECT_EQ(time_of(o, {}).total_ns(), 0) << "no step";
}

TEST(StepTime, TheHeadComputesARowASequence) {
  StepTimeOptions o = small_model();
  o.head_parameters = 1'000'000;
  o.head_bytes = 3'000;
  EXPECT_DOUBLE_EQ(time_of(o, {{0, 500}, {9, 1}}).arithmetic_ns, 2 * 20 * kMicrosecond);
  EXPECT_DOUBLE_EQ(time_of(o, {{0, 500}, {9, 1}}).traffic_ns, 3 * kMicrosecond);
}

TEST(StepTime, AttentionReadsEveryTokenAndMultipliesEveryPair) {
  StepTimeOptions o = small_model();
  o.attention = {{.num_layers = 3,
                  .prompt_flops_per_pair = 2'000,
                  .decode_flops_per_pair = 1'000,
                  .kv_bytes_per_token = 50}};
  // 10 + 20 tokens of 50 bytes in 3 layers.
  const StepTime decode = time_of(o, {{9, 1}, {19, 1}});
  EXPECT_DOUBLE_EQ(decode.traffic_ns, 4.5 * kMicrosecond);
  EXPECT_DOUBLE_EQ(decode.arithmetic_ns, 3 * 30 * 1'000 / 100'000.0 * kMicrosecond);
  // 4 new tokens after 10: 11 + 12 + 13 + 14 pairs, 14 tokens read.
  o.efficiency.attention = 0.5;
  const StepTime prompt = time_of(o, {{10, 4}});
  EXPECT_DOUBLE_EQ(prompt.arithmetic_ns, 2 * 3 * 50 * 2'000 / 100'000.0 * kMicrosecond);
  EXPECT_DOUBLE_EQ(prompt.traffic_ns, 3 * 14 * 50 / 1'000.0 * kMicrosecond);
}

TEST(StepTime, OnlyVisitedExpertsAreRead) {
  StepTimeOptions o = small_model();
  o.experts = {{.num_layers = 2,
                .num_experts = 4,
                .experts_per_token = 1,
                .parameters_each = 1'000'000,
                .bytes_each = 1'000}};
  EXPECT_DOUBLE_EQ(time_of(o, {{0, 1}}).traffic_ns, 2 * kMicrosecond);
  // Two tokens: the second visits another expert three times out of four.
  EXPECT_DOUBLE_EQ(time_of(o, {{0, 2}}).traffic_ns, 2 * 1.75 * kMicrosecond);
  EXPECT_NEAR(time_of(o, {{0, 1000}}).traffic_ns, 2 * 4 * kMicrosecond, 1e-6);
  // Arithmetic is that of the experts a token visits, not of all.
  EXPECT_DOUBLE_EQ(time_of(o, {{0, 10}}).arithmetic_ns, 2 * 10 * 20 * kMicrosecond);
}

TEST(StepTime, StatesAreReadAndWrittenOnceAStep) {
  StepTimeOptions o = small_model();
  o.attention = {{.kind = CacheKind::recurrent, .num_layers = 2, .state_bytes_per_sequence = 500}};
  EXPECT_DOUBLE_EQ(time_of(o, {{1'000'000, 1}, {3, 1}}).traffic_ns, 2 * kMicrosecond);
}

// What a token sees, one after another.
TEST(StepTime, ClosedFormsOfAttentionEqualTheSums) {
  StepTimeOptions o = small_model();  // a nanosecond for each pair and each token
  o.bandwidth_bytes_per_second = o.flops_per_second = 1'000'000'000;
  for (const CacheKind kind :
       {CacheKind::full, CacheKind::window, CacheKind::chunked, CacheKind::cross}) {
    o.attention = {{.kind = kind,
                    .num_layers = 1,
                    .limit_tokens = 5,
                    .prompt_flops_per_pair = 1,
                    .decode_flops_per_pair = 1,
                    .kv_bytes_per_token = 1}};
    for (std::int64_t context = 0; context < 13; ++context) {
      for (std::int64_t fresh = 1; fresh < 13; ++fresh) {
        double pairs = 0.0;
        std::int64_t first_seen = context + fresh;
        for (std::int64_t at = context; at < context + fresh; ++at) {
          const std::int64_t from = kind == CacheKind::window    ? std::max<std::int64_t>(0, at - 4)
                                    : kind == CacheKind::chunked ? at / 5 * 5
                                                                 : 0;
          pairs += kind == CacheKind::cross ? 5.0 : static_cast<double>(at + 1 - from);
          first_seen = std::min(first_seen, from);
        }
        const auto tokens =
            static_cast<double>(kind == CacheKind::cross ? 5 : context + fresh - first_seen);
        const StepTime time = time_of(o, {{context, fresh}});
        EXPECT_EQ(time.arithmetic_ns, pairs) << name_of(kind) << context;
        EXPECT_EQ(time.traffic_ns, tokens) << name_of(kind) << context;
      }
    }
  }
}

TEST(StepTime, RefusesWhatIsNoRate) {
  StepTimeOptions o = small_model();
  o.bandwidth_bytes_per_second = 0;
  EXPECT_EQ(StepTimeModel::create(o).status().option, Option::bandwidth_bytes_per_second);
  for (const double share : {0.0, -0.5, 1.001, std::numeric_limits<double>::quiet_NaN()}) {
    o = small_model();
    o.efficiency.attention = share;
    EXPECT_EQ(StepTimeModel::create(o).status().option, Option::efficiency) << share;
  }
  o = small_model();
  o.attention = {{.kind = CacheKind::window, .num_layers = 1, .limit_tokens = 0}};
  EXPECT_EQ(StepTimeModel::create(o).status().option, Option::attention);
  o = small_model();
  o.experts = {{.num_layers = 1, .num_experts = 0}};
  EXPECT_EQ(StepTimeModel::create(o).status().option, Option::experts);
  constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
  o = small_model();
  o.attention = {{.kind = CacheKind::window, .num_layers = 1, .limit_tokens = kLeast}};
  EXPECT_EQ(StepTimeModel::create(o).status().option, Option::attention);
  o = small_model();
  o.experts = {{.num_layers = 1, .num_experts = kLeast, .experts_per_token = 1}};
  EXPECT_EQ(StepTimeModel::create(o).status().option, Option::experts);
}

TEST(StepTime, AbsurdStepsSaturate) {
  StepTimeOptions o = small_model();
  o.layer_parameters = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(time_of(o, {{0, 1 << 30}, {0, 1 << 30}}).total_ns(),
            std::numeric_limits<std::int64_t>::max());
}

StepTimeOptions numbers_of(const char* model) {
  const auto spec = find_model_preset(model);
  const GpuSpec* gpu = find_gpu("RTX-4090");
  auto options = step_time_options(*spec, *gpu);
  EXPECT_TRUE(options.is_ok()) << describe(options.status());
  return *options;
}

TEST(StepTimeNumbers, OfADenseModel) {
  const StepTimeOptions o = numbers_of("Llama-3.1-8B");
  constexpr std::int64_t kHead = 128'256 * 4'096;
  constexpr std::int64_t kFinalNorm = 4'096;
  EXPECT_EQ(o.head_parameters, kHead + kFinalNorm);
  EXPECT_EQ(o.layer_parameters, 8'030'261'248 - 2 * kHead - kFinalNorm);
  EXPECT_EQ(o.layer_bytes, 2 * o.layer_parameters);
  ASSERT_EQ(o.attention.size(), 1U);
  EXPECT_EQ(o.attention[0].num_layers * o.attention[0].kv_bytes_per_token, 131'072);
  EXPECT_EQ(o.attention[0].decode_flops_per_pair, 4 * 32 * 128);
  EXPECT_EQ(o.flops_per_second, 165'200'000'000'000);
  EXPECT_TRUE(o.experts.empty());
}

TEST(StepTimeNumbers, OfTiedEmbeddingsAndWindows) {
  const StepTimeOptions o = numbers_of("Gemma-3-27B");
  EXPECT_GE(o.head_parameters, std::int64_t{262'144} * 5'376) << "the embedding is the head";
  ASSERT_EQ(o.attention.size(), 2U);
  const std::int64_t windowed = o.attention[0].kind == CacheKind::window ? 0 : 1;
  EXPECT_EQ(o.attention[static_cast<std::size_t>(windowed)].limit_tokens, 1'024);
}

TEST(StepTimeNumbers, OfExpertsAndLatents) {
  const StepTimeOptions o = numbers_of("DeepSeek-V3");
  ASSERT_EQ(o.experts.size(), 1U);
  EXPECT_EQ(o.experts[0].num_layers, 58);
  EXPECT_EQ(o.experts[0].parameters_each, 3 * 7'168 * 2'048);
  EXPECT_EQ(o.experts[0].bytes_each, 3 * 7'168 * 2'048) << "fp8";
  ASSERT_EQ(o.attention.size(), 1U);
  EXPECT_EQ(o.attention[0].num_layers * o.attention[0].kv_bytes_per_token, 70'272);
  EXPECT_EQ(o.attention[0].decode_flops_per_pair, 2 * 128 * (576 + 512));
  EXPECT_EQ(o.attention[0].prompt_flops_per_pair, 2 * 128 * (192 + 128));
  ModelSpec spec = *find_model_preset("DeepSeek-V3");
  spec.shape.mla.nope_dim = spec.shape.mla.value_dim = 0;
  const auto unknown = step_time_options(spec, *find_gpu("B200"));
  ASSERT_TRUE(unknown.is_ok());
  EXPECT_EQ(unknown->attention[0].prompt_flops_per_pair, o.attention[0].decode_flops_per_pair);
}

TEST(StepTimeNumbers, OfEveryPresetThatIsCounted) {
  const GpuSpec* gpu = find_gpu("H200-SXM");
  int counted = 0;
  for (const std::string_view name : model_preset_names()) {
    const auto spec = find_model_preset(name);
    const auto options = step_time_options(*spec, *gpu);
    if (!options) {
      EXPECT_EQ(options.status().code, StatusCode::unsupported) << name;
      EXPECT_TRUE(spec->parts.empty()) << name;
      continue;
    }
    const StepTime step = time_of(*options, {{1'000, 1}, {0, 500}});
    EXPECT_GT(step.total_ns(), 0) << name;
    EXPECT_LT(step.total_ns(), 10'000'000'000) << name;
    ++counted;
  }
  EXPECT_GE(counted, 22);
}

TEST(StepTimeNumbers, WithoutPartsAreRefused) {
  ModelSpec spec = *find_model_preset("Llama-3.1-8B");
  spec.parts.clear();
  EXPECT_EQ(step_time_options(spec, *find_gpu("A10")).status().code, StatusCode::unsupported);
  spec = *find_model_preset("Llama-3.1-8B");
  spec.kv_format = "none such";
  EXPECT_FALSE(step_time_options(spec, *find_gpu("A10")).is_ok());
  spec = *find_model_preset("GLM-4.5-Air");
  std::erase_if(spec.parts, [](const ParameterPart& part) { return part.num_experts > 0; });
  EXPECT_EQ(step_time_options(spec, *find_gpu("A10")).status().code, StatusCode::unsupported)
      << "a mixture whose experts nobody has counted";
}

}  // namespace
}  // namespace kvarena::capacity
