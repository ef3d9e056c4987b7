// Draft layers are a group of the same cache. Keys are zero, so that a token's output is the mean
// of the values that it sees.

#include "kvarena/cache/kv_cache.hpp"
#include "kvarena/device/host_device.hpp"
#include "support/status_matchers.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <vector>

namespace kvarena {
namespace {

constexpr std::int32_t kTarget = 0;    // of all tokens
constexpr std::int32_t kWindowed = 1;  // of the last kWindow tokens
constexpr std::int32_t kDraft = 2;     // has fewer heads, of all tokens
constexpr std::int64_t kWindow = 8;
constexpr std::int32_t kDrafted = 3;  // tokens at a time
constexpr std::int32_t kHeads = 2;
constexpr std::int32_t kDim = 8;

class DraftLayers : public ::testing::Test {
 protected:
  static Result<KvCache> create_cache(Device& device) {
    const GroupLayer target[] = {{kTarget}};
    const GroupLayer windowed[] = {{kWindowed}};
    const GroupLayer draft[] = {{kDraft}};
    LayerGroup group{.layers = target,
                     .num_kv_heads = kHeads,
                     .head_dim_k = kDim,
                     .dtype = DType::f32,
                     .block_size_tokens = 4};
    std::vector<LayerGroup> groups{group, group, group};
    groups[1].kind = PagedKind::window;
    groups[1].layers = windowed;
    groups[1].limit_tokens = kWindow;
    groups[1].rollback_tokens = kDrafted;
    groups[2].layers = draft;
    groups[2].num_kv_heads = 1;
    return KvCache::create(device, {.size = {.num_blocks = 60},
                                    .num_q_heads = kHeads,
                                    .max_sequences = 2,
                                    .max_step_tokens = 32,
                                    .num_threads = 1,
                                    .groups = groups,
                                    .prefix_cache = {.is_on = true}});
  }

  /// A step in which some layers write the values first, first + 1, ... Returns each layer's output
  /// for the last token.
  std::vector<float> step(std::span<const std::int32_t> layers, std::int32_t first,
                          std::int32_t count) {
    std::vector<float> outputs;
    std::vector<std::int32_t> tokens;
    for (std::int32_t i = 0; i < count; ++i) tokens.push_back(first + i);
    const AppendDemand demand{.sequence = id_, .num_tokens = count, .tokens = tokens};
    EXPECT_OK(cache_.begin_step());
    EXPECT_OK(cache_.append(std::span(&demand, 1)));
    for (const std::int32_t layer : layers) {
      const std::int32_t heads = layer == kDraft ? 1 : kHeads;
      std::vector<float> values;
      for (std::int32_t i = 0; i < count; ++i) {
        values.insert(values.end(), static_cast<std::size_t>(heads * kDim),
                      static_cast<float>(first + i));
      }
      EXPECT_OK(cache_.write_kv(
          {.layer = layer, .key = zeros_.data(), .value = values.data(), .dtype = DType::f32}));
      EXPECT_OK(cache_.attend({.layer = layer,
                               .q = zeros_.data(),
                               .q_dtype = DType::f32,
                               .out = out_.data(),
                               .out_dtype = DType::f32}));
      outputs.push_back(out_[static_cast<std::size_t>((count - 1) * kHeads * kDim)]);
    }
    EXPECT_OK(cache_.end_step());
    return outputs;
  }
  static float mean(std::int64_t first, std::int64_t last) {
    return static_cast<float>(first + last) / 2.0F;
  }

  std::unique_ptr<HostDevice> device_ =
      HostDevice::create({.streams = HostStreams::inline_calls}).value();
  KvCache cache_ = create_cache(*device_).value();
  SequenceId id_ = cache_.create_sequence().value();
  std::array<float, 512> zeros_{};
  std::array<float, 512> out_{};
};

TEST_F(DraftLayers, AreWrittenAloneThenCutAndWrittenWithAllLayers) {
  constexpr std::array kAll{kTarget, kWindowed, kDraft};
  constexpr std::array kOwn{kDraft};
  std::int32_t length = 6;
  step(kAll, 0, length);
  for (int round = 0; round < 12; ++round) {
    for (std::int32_t i = 0; i < kDrafted; ++i) {  // wrong tokens, which the cut takes away
      const std::vector<float> drafted = step(kOwn, 1000, 1);
      EXPECT_NE(drafted[0], mean(0, length + i));
    }
    ASSERT_OK(cache_.truncate(id_, length));
    const std::int64_t published = cache_.tables().prefix_stats().registered;
    const std::int32_t verified = 1 + round % (kDrafted + 1);
    const std::vector<float> found = step(kAll, length, verified);
    length += verified;
    EXPECT_FLOAT_EQ(found[0], mean(0, length - 1));
    EXPECT_FLOAT_EQ(found[1], mean(std::max<std::int64_t>(0, length - kWindow), length - 1));
    EXPECT_FLOAT_EQ(found[2], mean(0, length - 1));
    EXPECT_EQ(cache_.tables().prefix_stats().registered - published,
              length / 4 - (length - verified) / 4)
        << "drafts alone publish nothing";
  }
  EXPECT_OK(cache_.check_invariants());
}

}  // namespace
}  // namespace kvarena
