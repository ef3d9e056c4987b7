// The keys of a sparse-attention index in a cache with groups: what write_index leaves in the pool,
// copies on write, what a prefix cache publishes, and what calls refuse.

#include "kvarena/cache/kv_cache.hpp"

#include "support/device_buffer.hpp"
#include "support/devices.hpp"
#include "support/status_matchers.hpp"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

namespace kvarena {
namespace {

constexpr std::int32_t kDim = 64;
constexpr std::int32_t kTokens = 40;

/// Layers 0 and 2 have all tokens and an index, layer 1 has a window and none, layer 3 reads 2.
class KvCacheIndex : public ::testing::TestWithParam<DeviceKind> {
 protected:
  void SetUp() override {
    KVARENA_NEEDS_DEVICE(GetParam());
    device_ = test::make_device(GetParam(), {.streams = HostStreams::inline_calls});
    ASSERT_NE(device_, nullptr);
    groups_[0] = {.layers = full_,
                  .num_kv_heads = 2,
                  .head_dim_k = 64,
                  .dtype = DType::bf16,
                  .index_dim = kDim};
    groups_[1] = {.kind = PagedKind::window,
                  .layers = window_,
                  .num_kv_heads = 2,
                  .head_dim_k = 64,
                  .dtype = DType::bf16,
                  .limit_tokens = 20};
    Result<KvCache> cache = KvCache::create(*device_, {.size = {.num_blocks = 40},
                                                       .num_q_heads = 4,
                                                       .max_sequences = 8,
                                                       .max_sequence_tokens = 200,
                                                       .max_step_tokens = 64,
                                                       .groups = groups_,
                                                       .prefix_cache = {.is_on = true}});
    ASSERT_OK(cache);
    cache_ = std::make_unique<KvCache>(std::move(*cache));
    keys_ = test::DeviceBuffer::create(*device_, kTokens * 1024 * 4).value();
    ASSERT_OK(device_->fill(cache_->arena().base(), 0xFF,
                            static_cast<std::uint64_t>(cache_->arena().bytes()), cache_->stream()));
  }

  /// Element `d` of the key of a token: its magnitudes differ much from token to token.
  static float element(std::int32_t layer, std::int64_t token, std::int32_t d) {
    const auto whole = static_cast<float>((token * 7 + d * 3 + layer) % 17 - 8);
    return std::ldexp(whole, static_cast<int>(token % 9) - 4);
  }
  /// Writes the index of one layer for tokens first .. first + count - 1, as f32 with a stride.
  Status write(std::int32_t layer, std::int64_t first, std::int64_t count) {
    constexpr std::int64_t kStride = kDim + 8;
    std::vector<float> rows(static_cast<std::size_t>(count * kStride), NAN);
    for (std::int64_t i = 0; i < count; ++i) {
      for (std::int32_t d = 0; d < kDim; ++d) {
        rows[static_cast<std::size_t>(i * kStride + d)] = element(layer, first + i, d);
      }
    }
    if (Status s = device_->copy(keys_.data(), rows.data(), rows.size() * 4, cache_->stream()); !s)
      return s;
    const Status written = cache_->write_index({.layer = layer,
                                                .key = keys_.data(),
                                                .dtype = DType::f32,
                                                .key_token_stride_bytes = kStride * 4});
    return written ? cache_->synchronize() : written;
  }
  /// Compares the index of a sequence's first tokens with what was written.
  void expect_index(SequenceId sequence, std::int64_t tokens) {
    std::vector<std::byte> pool(static_cast<std::size_t>(cache_->arena().bytes()));
    ASSERT_OK(device_->copy(pool.data(), cache_->arena().base(), pool.size(), cache_->stream()));
    ASSERT_OK(cache_->synchronize());
    for (const std::int32_t layer : {0, 2}) {
      const std::int32_t part = cache_->arena().groups()->part_of(layer);
      const IndexView view = cache_->index_view(layer).value();
      ASSERT_EQ(view.index.dtype, DType::fp8_e4m3);
      const auto base = static_cast<std::size_t>(view.index.base - cache_->arena().base());
      for (std::int64_t token = 0; token < tokens; ++token) {
        const std::int64_t block = cache_->tables().slot_of(sequence, token, part).value() / 16;
        const auto in_block = static_cast<std::int32_t>(token % 16);
        float scale = 0.0F;
        std::memcpy(
            &scale,
            pool.data() + base + scale_byte(view.index, view.block_size, block, 0, in_block), 4);
        // At most 8 x 2^e: the smallest power of two s with 448 s at least as large.
        ASSERT_EQ(scale, std::ldexp(1.0F, static_cast<int>(token % 9) - 4 - 5)) << token;
        for (std::int32_t d = 0; d < kDim; ++d) {
          const auto at = static_cast<std::size_t>(block * view.index.block_stride +
                                                   in_block * view.index.token_stride + d);
          const auto bits = std::to_integer<unsigned>(pool[base + at]);
          ASSERT_EQ(of_fp8(bits) * scale, element(layer, token, d)) << token << ' ' << d;
        }
      }
    }
  }
  /// An e4m3 number by its definition.
  static float of_fp8(unsigned bits) {
    const int exponent = static_cast<int>(bits >> 3 & 15U);
    const auto fraction = static_cast<float>(bits & 7U);
    const float size =
        exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8.0F + fraction, exponent - 10);
    return (bits & 0x80U) != 0 ? -size : size;
  }
  /// A step of one sequence whose index is written for `layers`; K and V are the engine's.
  void step(SequenceId sequence, std::int64_t first, std::int32_t count,
            std::span<const std::int32_t> layers, std::span<const std::int32_t> tokens = {}) {
    ASSERT_OK(cache_->begin_step());
    const AppendDemand demand{.sequence = sequence, .num_tokens = count, .tokens = tokens};
    ASSERT_OK(cache_->append(std::span(&demand, 1)));
    for (const std::int32_t layer : layers) ASSERT_OK(write(layer, first, count));
    ASSERT_OK(cache_->end_step());
  }

  const std::array<GroupLayer, 3> full_{{{0}, {2}, {3, 2}}};
  const std::array<GroupLayer, 1> window_{{{1}}};
  std::array<LayerGroup, 2> groups_{};
  std::unique_ptr<Device> device_;
  std::unique_ptr<KvCache> cache_;
  test::DeviceBuffer keys_;
};

constexpr std::array<std::int32_t, 2> kAll{0, 2};
constexpr std::array<std::int32_t, 1> kOne{2};

TEST_P(KvCacheIndex, KeysAndScalesAreThereAndAreCopiedWithTheirBlock) {
  const SequenceId parent = cache_->create_sequence().value();
  step(parent, 0, 21, kAll);
  const SequenceId child = cache_->fork(parent, 19).value();
  step(child, 19, 5, kAll);
  step(parent, 21, 9, kAll);
  expect_index(parent, 30);
  expect_index(child, 24);
  EXPECT_OK(cache_->check_invariants());
}

// A step that left the index of a layer unwritten is as good as one that left out K and V.
TEST_P(KvCacheIndex, AnIndexThatIsNotWholeIsNotPublished) {
  std::array<std::int32_t, 33> tokens{};
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(i * i);
  const auto found = [&] {
    const Result<SequenceId> again = cache_->create_sequence({.tokens = tokens});
    EXPECT_OK(again.status());
    const std::int64_t covered = cache_->tables().prefix_of(*again).value().tokens;
    EXPECT_OK(cache_->destroy(*again));
    return covered;
  };
  const SequenceId partly = cache_->create_sequence({.tokens = tokens}).value();
  step(partly, 0, 33, kOne, tokens);
  EXPECT_EQ(found(), 0);
  ASSERT_OK(cache_->destroy(partly));
  const SequenceId whole = cache_->create_sequence({.tokens = tokens}).value();
  step(whole, 0, 33, kAll, tokens);
  EXPECT_EQ(found(), 32);
  ASSERT_OK(cache_->destroy(whole));
  ASSERT_OK(cache_->forget_all());
  const SequenceId own = cache_->create_sequence({.tokens = tokens}).value();
  step(own, 0, 33, {}, tokens);  // kernels of the engine
  EXPECT_EQ(found(), 32);
}

TEST_P(KvCacheIndex, RefusesOtherLayersTypesAndPlaces) {
  EXPECT_FAILS(cache_->index_view(1), invalid_argument, layer);
  EXPECT_FAILS(cache_->index_view(3), invalid_argument, layer) << "its K and V are layer 2's";
  EXPECT_FAILS(cache_->index_view(4), invalid_argument, layer);
  EXPECT_FAILS(cache_->write_index({.layer = 0, .key = keys_.data()}), failed_precondition, step);
  const SequenceId sequence = cache_->create_sequence().value();
  ASSERT_OK(cache_->begin_step());
  const AppendDemand demand{.sequence = sequence, .num_tokens = 3};
  ASSERT_OK(cache_->append(std::span(&demand, 1)));
  const Status wrong = cache_->write_index({.layer = 1, .key = keys_.data()});
  EXPECT_FAILS(wrong, invalid_argument, layer);
  EXPECT_NE(cache_->describe(wrong).find("index_dim"), std::string::npos)
      << cache_->describe(wrong);
  EXPECT_FAILS(cache_->write_index({.layer = 3, .key = keys_.data()}), invalid_argument, layer);
  EXPECT_FAILS(cache_->write_index({.layer = 0}), invalid_argument, pointer);
  EXPECT_FAILS(cache_->write_index({.layer = 0, .key = keys_.data(), .dtype = DType::fp8_e4m3}),
               unsupported, dtype);
  EXPECT_FAILS(
      cache_->write_index({.layer = 0, .key = keys_.data(), .key_token_stride_bytes = kDim}),
      invalid_argument, span_size);
  ASSERT_OK(cache_->abort_step());
}

TEST_P(KvCacheIndex, CreateRefusesWhatNoIndexHas) {
  const auto refusal = [&](std::int32_t dim) {
    std::array<LayerGroup, 2> groups = groups_;
    groups[0].index_dim = dim;
    return KvCache::create(*device_,
                           {.size = {.num_blocks = 4}, .num_q_heads = 4, .groups = groups})
        .status();
  };
  EXPECT_REFUSES(refusal(-4), invalid_argument, index_dim);
  EXPECT_REFUSES(refusal(6), invalid_argument, index_dim);
  EXPECT_REFUSES(refusal(132), invalid_argument, index_dim);
  std::array<LayerGroup, 2> groups = groups_;
  groups[1].scale = ScaleKind::per_token_head;
  EXPECT_REFUSES(
      KvCache::create(*device_, {.size = {.num_blocks = 4}, .num_q_heads = 4, .groups = groups}),
      unsupported, scale)
      << "bf16 has no scales";
}

INSTANTIATE_TEST_SUITE_P(Devices, KvCacheIndex,
                         ::testing::Values(DeviceKind::host, DeviceKind::cuda), test::kind_name);

}  // namespace
}  // namespace kvarena
